// The attention layer: one struct of functions per mechanism, chosen once by name. The model never asks which
// mechanism it has. Projections, residual, LayerNorm, MLP and dropout stay outside.
//
// Adding a mechanism: scripts/new_attention NAME, explained in docs/attentions.md.
#ifndef ATTENTION_ATTENTION_H
#define ATTENTION_ATTENTION_H

#include "core/base/error.h"
#include "core/base/options.h"
#include "core/base/real.h"

#include <stddef.h>
#include <stdint.h>

// Small enumerations; the words for the command line, print-outs and checkpoints are in attention.c, in this order.
typedef enum { NORMALIZER_KERNEL, NORMALIZER_SOFTMAX } Normalizer;
typedef enum { POLY_ANCHOR, POLY_EXACT, POLY_NYSTROM, POLY_TENSORSKETCH, POLY_MACLAURIN, POLY_NONE,
               POLY_RADEMACHER } Polynomial;
typedef enum { FUSION_TENSOR, FUSION_HADAMARD, FUSION_FLAT } Fusion;
typedef enum { OMEGA_GAUSSIAN, OMEGA_ORTHOGONAL } OmegaKind;
typedef enum { FEATURES_RELU, FEATURES_EXP } Features;
typedef enum { DENOMINATOR_ADD, DENOMINATOR_CLAMP } Denominator;
typedef enum { DECAY_NONE, DECAY_FIXED, DECAY_LEARNED } Decay;
typedef enum { LEARN_NONE, LEARN_OMEGA, LEARN_ANCHORS, LEARN_BOTH } Learn;
typedef enum { PRESET_PAPER, PRESET_RECALL } Preset;

enum { ATTENTION_OWN_MAX = 4 }; // options that only one mechanism has

typedef struct { // everything a mechanism may know; printed, logged, saved with the checkpoint
    int B, T, C, NH, HS;  // HS = C / NH
    int max_T;            // the model's horizon: positions, cosformer angles
    int R, M, P;          // quadrature nodes, random features, polynomial features
    float eps, delta;     // kernel epsilon, denominator stabiliser
    int normalizer;       // Normalizer
    int poly;             // Polynomial
    int fusion;           // Fusion
    int omega;            // OmegaKind
    int features;         // Features
    int denominator;      // Denominator
    int scale_features;   // 1: feature maps scaled so that delta is negligible (it cancels in the output)
    int chunk;            // rows per chunk of a linear mechanism; 0: chosen by cost
    int window;           // keys that a query of a quadratic mechanism sees, its own included; 0: all
    int decay;            // Decay: a score is multiplied by a factor of the head's own for every token of distance
    float decay_shortest, decay_longest; // reach of the first and the last head in tokens: see attention_log_decay
    int learn;            // Learn: which of the drawn tensors are trained
    int preset;           // Preset: where R, M, P and poly come from when they are not given
    uint64_t seed;        // of the constants
    float own[ATTENTION_OWN_MAX]; // values of the mechanism's own options, in their order
    // How a batch is cut into sequences; of the call, neither printed nor saved.
    int packed;           // rows may hold several documents: work_size covers any of them
    const int *positions; // (B,T) of each token in its document; NULL: in its row, which is one sequence
} AttentionConfig;

// A sequence: tokens first .. first + count - 1 of the batch's B*T, all in one row. Forward and backward treat every
// one as if it were alone, with the same bits.
typedef struct {
    int first, count;
} Span;

// The next sequence after *span that begins before token `end` of the same row, or 0. A span of no tokens stands before
// all that begin at its first token or later.
static inline int attention_next_span(Span *span, int end, const AttentionConfig *config) {
    const int *positions = config->positions;
    int first = span->first + span->count, next = first + 1;
    while (positions && first < end && positions[first] > 0) next = ++first + 1;
    if (first >= end) return 0;
    int row_end = (first / config->T + 1) * config->T;
    while (positions && next < row_end && positions[next] > 0) next++;
    *span = (Span){first, (positions ? next : row_end) - first};
    return 1;
}

// Which fields of the configuration a mechanism has; an option of another mechanism is refused.
enum {
    USES_R = 1 << 0, USES_M = 1 << 1, USES_P = 1 << 2, USES_EPS = 1 << 3, USES_DELTA = 1 << 4,
    USES_NORMALIZER = 1 << 5, USES_POLY = 1 << 6, USES_FUSION = 1 << 7, USES_OMEGA = 1 << 8, USES_FEATURES = 1 << 9,
    USES_DENOMINATOR = 1 << 10, USES_SCALE = 1 << 11, USES_CHUNK = 1 << 12, USES_WINDOW = 1 << 13,
    USES_LEARN = 1 << 14, USES_PRESET = 1 << 15,
    USES_DECAY = 1 << 16,     // set for all by attention.c
    USES_DOCUMENTS = 1 << 17, // of kernels for the GPU: rows may hold several sequences
};

typedef struct { // an option that only one mechanism has: a number, at config->own[its place in the list]
    const char *option; // on the command line, without the dashes
    const char *key;    // in JSON: the same word with _ in place of -
    float value;        // the default
    float least, most;  // range, inclusive
    const char *help;
} AttentionOption;

typedef struct { // one named tensor of a layer: a constant (omega, anchors, nodes, ...) or a trainable parameter
    const char *name;
    int rank;
    size_t shape[4];
    int trains;           // a parameter: the optimiser updates it; else a constant
    int decays;           // a parameter that weight decay applies to
    size_t offset, count; // in the layer's block of constants or in its block of parameters, in numbers
} AttentionTensor;
enum { ATTENTION_TENSORS_MAX = 10 };

typedef struct {
    const char *name;    // "slay": also what checkpoints say
    const char *summary; // one line for --help and tables
    unsigned uses;       // USES_...: the shared options it has
    int has_horizon;     // positions beyond max_T mean nothing to it
    AttentionOption own[ATTENTION_OWN_MAX]; // its own options; the first without a name ends them
    // Fills in the mechanism's defaults for every option that was not given; `features` is as it was given, or 0.
    void (*defaults)(AttentionConfig *);
    // Refuses a bad configuration before anything is allocated: 0, or -1 and why.
    int (*check)(const AttentionConfig *, char *why, size_t size);
    // Lists the mechanism's own tensors of one layer (offsets and counts are filled in by attention_constants and
    // attention_parameters) and returns their number. NULL: none.
    int (*tensors)(const AttentionConfig *, AttentionTensor list[ATTENTION_TENSORS_MAX]);
    // Draws them for `layer` from config->seed, the parameters' first values too. The same on every rank, thread count
    // and backend. To be called by attention_draw.
    void (*draw)(real *constants, real *parameters, int layer, const AttentionConfig *);
    // Numbers kept from forward to backward, per layer: O(T), never O(T^2).
    size_t (*saved_size)(const AttentionConfig *);
    // Scratch in numbers, one for all layers; covers forward, backward and step, for omp_get_max_threads() threads.
    size_t (*work_size)(const AttentionConfig *);
    // Decode state in numbers per layer and sequence, for max_T positions; constant for linear mechanisms.
    size_t (*cache_size)(const AttentionConfig *);
    // qkv (B,T,3C) as the projection leaves it -> out (B,T,C), sequence by sequence (Span); `saved` may be NULL when no
    // backward will follow.
    void (*forward)(real *out, real *saved, const real *qkv, const real *constants, const real *parameters, real *work,
                    const AttentionConfig *);
    // Overwrites dqkv (B,T,3C), adds to dparameters.
    void (*backward)(real *dqkv, real *dparameters, const real *dout, const real *qkv, const real *out,
                     const real *saved, const real *constants, const real *parameters, real *work,
                     const AttentionConfig *);
    // Decoding of one sequence: positions pos .. pos+n-1, qkv (n,3C) -> out (n,C). n > 1: prefill; n == 1: decode.
    // A cache starts as zeros; pos == 0 starts a new sequence whatever the cache holds. n is at most the config's T (so
    // that work_size covers it), B is not looked at; pos + n <= max_T for mechanisms with a cache of max_T rows.
    void (*step)(real *out, real *cache, int pos, int n, const real *qkv, const real *constants,
                 const real *parameters, real *work, const AttentionConfig *);
    double (*flops)(const AttentionConfig *); // floating-point operations of the forward pass per token, all heads
    // Rows since the program started whose denominator was negative or replaced by its floor: their output is not an
    // average of values. NULL: there are never any.
    uint64_t (*floored_rows)(void);
} Attention;

extern const Attention *const attention_registry[]; // ends with NULL

const Attention *attention_find(const char *name);   // NULL when there is none of that name
const char *attention_names(char *text, size_t size); // "softmax, yat, ...", for messages

// Adds the mechanisms' options (--R, --eps, ...) to a program's table; they write into `config`.
void attention_add_options(Options *options, AttentionConfig *config);
int attention_is_option(const Option *option); // of any mechanism
// Whether a mechanism has the option; the refusal of one that it has not.
int attention_has_option(const Attention *attention, const char *option);
int attention_refuse_option(const Attention *attention, const char *option, Error *error);
// After parsing: mechanism defaults for every option not given, refusal of options that the mechanism does not have,
// HS from C and NH, then the mechanism's own check.
int attention_configure(const Attention *attention, AttentionConfig *config, const Options *options, Error *error);

// The constants of one layer with offsets and counts; their total in numbers goes to *total. Returns their number.
int attention_constants(const Attention *attention, const AttentionConfig *config,
                        AttentionTensor list[ATTENTION_TENSORS_MAX], size_t *total);
// Likewise the trainable parameters: those of a learned decay, then the mechanism's own.
int attention_parameters(const Attention *attention, const AttentionConfig *config,
                         AttentionTensor list[ATTENTION_TENSORS_MAX], size_t *total);
// How many numbers these are.
size_t attention_constant_count(const Attention *attention, const AttentionConfig *config);
size_t attention_parameter_count(const Attention *attention, const AttentionConfig *config);
// The constants and the parameters' first values; the same for every call with the same layer and seed.
void attention_draw(const Attention *attention, real *constants, real *parameters, int layer,
                    const AttentionConfig *config);

// The logarithm of a head's decay factor gamma; 0 without decay. A fixed gamma is 1 - 1 / reach; the heads' reaches are
// a geometric ladder from decay_shortest to decay_longest, and a single head has the longest. A learned gamma is the
// logistic function of the layer's parameter number `head`, whose first value gives the same ladder.
real attention_log_decay(const real *parameters, int head, const AttentionConfig *config);
// Adds to a learned decay's gradient what reaches the logarithm of the head's factor.
void attention_decay_gradient(real *dparameters, const real *parameters, int head, real dlog_decay,
                              const AttentionConfig *config);

// The configuration as it stands in checkpoints: the name and the fields the mechanism uses.
json_t *attention_to_json(const Attention *attention, const AttentionConfig *config);
int attention_from_json(const Attention **attention, AttentionConfig *config, const json_t *json, Error *error);

#endif
