// Naive twins: every mechanism once more, as a few obvious lines in double precision, O(T^2), one head at a time. They
// are the readable definitions; the tests compare the fast code with them.
#ifndef ATTENTION_NAIVE_H
#define ATTENTION_NAIVE_H

#include "attention.h"
#include "registry.h"

#include <math.h>

// q, k, v, o: (T, HS) of one head. `constants` and `parameters` are the layer's, in double, laid out as
// attention_constants and attention_parameters say; NULL for mechanisms without any. `head` chooses among those that
// differ by head.
typedef void NaiveAttention(double *o, const double *q, const double *k, const double *v, const double *constants,
                            const double *parameters, int head, int T, const AttentionConfig *config);

// naive_softmax, ... A mechanism may lack its twin: the weak symbol is NULL then, which test_registry reports by name.
#define DECLARE_TWIN(symbol)                                                                                           \
    extern const Attention attention_##symbol;                                                                         \
    __attribute__((weak)) NaiveAttention naive_##symbol;
ATTENTIONS(DECLARE_TWIN)

typedef struct {
    const Attention *attention;
    NaiveAttention *naive;
} NaiveTwin;
#define NAIVE_TWIN(symbol) {&attention_##symbol, naive_##symbol},
extern const NaiveTwin naive_quadratic_twins[], naive_linear_twins[]; // end with {NULL, NULL}

static inline NaiveAttention *naive_twin(const NaiveTwin *twins, const Attention *attention) {
    while (twins->attention && twins->attention != attention) twins++;
    return twins->naive;
}

// The factor by which a head's scores fade for every token of distance.
static inline double naive_decay(const double *parameters, int head, const AttentionConfig *config) {
    if (config->decay == DECAY_NONE) return 1;
    if (config->decay == DECAY_LEARNED) return 1 / (1 + exp(-parameters[head]));
    double shortest = config->decay_shortest, longest = config->decay_longest;
    double along = config->NH > 1 ? (double)head / (config->NH - 1) : 1;
    return 1 - 1 / exp(log(shortest) + along * (log(longest) - log(shortest)));
}

// The features of one vector x (HS) whose products are slay's scores: phi (R, M, P), with fusion tensor and any
// polynomial that has features.
void naive_slay_features(double *phi, const double *x, const double *constants, int head,
                         const AttentionConfig *config);

#endif
