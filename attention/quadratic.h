// The one tiled core of the quadratic attentions: every query looks at every key up to its own position, in tiles, so
// that memory grows with T and never with T^2. A mechanism defines the score of a pair; how the scores of a row become
// weights is one of two rules:
//
//   NORMALIZER_SOFTMAX   weight = exp(score) / sum of the row's; a running maximum keeps it in range
//   NORMALIZER_KERNEL    weight = score / (sum of the row + delta), for scores that are never negative
//
// With decay a kernel's score is multiplied by a factor of the head's own for every token of distance; softmax adds the
// factor's logarithm to the exponent. Factors below LEAST_FADE count as 0: keys that far away are skipped like those
// outside a window. Tiles in which no query sees a key cost nothing.
//
// Two numbers per row are kept for backward: the maximum and what to divide by. The log-sum-exp, their one-number form,
// would not do: for scores in the hundreds, which kernels have, it would leave the weights only five digits.
//
// The range of what comes in, q, k, v and dout, is limited (range.h); scores and their derivatives stop at limits of
// their own.
//
// The same bits come out for any number of threads: each row's sums run over the tiles in one order, by one thread.
#ifndef ATTENTION_QUADRATIC_H
#define ATTENTION_QUADRATIC_H

#include "attention.h"
#include "linear.h"
#include "range.h"

#define LARGEST_SCORE ((real)1e30)
#define LARGEST_SLOPE ((real)1e16)
#define LEAST_NORM ((real)1e-12)
// What is left of a score at the end of a head's reach. Far above the least float, so that products with it have all
// their digits and take no longer than others.
#define LEAST_FADE 1e-30
// Weights, which are divided only at the end of a row, are rescaled when one of them exceeds this.
#define LARGEST_WEIGHT ((real)1e10)
// |q|^2 + |k|^2 - 2<q,k> loses digits when q is near k: below this part of |q|^2 + |k|^2 the distance is summed
// directly.
#define NEAR ((real)0.25)

typedef struct {
    int scaled;      // q is divided by sqrt(HS)
    int unit_length; // q and k are divided by their norms (by 1e-12 where the norm is less)
    int normalizer;  // Normalizer
    // The score f(dot, distance) of a query with n keys, dot = <q,k>, distance = |q-k|^2, at most LARGEST_SCORE.
    // NULL: the score is dot.
    void (*scores)(real *score, const real *dot, const real *distance, int n, const AttentionConfig *config);
    // Backward through f: `slope` holds dL/dscore and becomes dL/ddot; `pull` receives -2 dL/ddistance, the strength
    // with which a pair is drawn together: dq = slope k + pull (k - q), dk = slope q + pull (q - k). Both are limited
    // to LARGEST_SLOPE.
    void (*slopes)(real *slope, real *pull, const real *dot, const real *distance, int n,
                   const AttentionConfig *config);
    // Rows of two parts, or NULL: a map makes of q and k a unit vector, its inner features, and its outer features.
    // `dot` then is of the former, and the dot product of the latter takes the place of `distance`, `pull` that of its
    // gradient.
    const LinearMap *map;
    const real *constants; // the map's, of the layer
} QuadraticKernel;

size_t quadratic_saved_size(const AttentionConfig *config);
size_t quadratic_work_size(const AttentionConfig *config);
size_t quadratic_cache_size(const AttentionConfig *config);
double quadratic_flops(const AttentionConfig *config); // of the matrix products, as is customary
double quadratic_keys_per_query(const AttentionConfig *config); // the mean over the causal rows
// The same for a kernel with a map.
size_t quadratic_work_size_of(const QuadraticKernel *kernel, const AttentionConfig *config);
size_t quadratic_cache_size_of(const QuadraticKernel *kernel, const AttentionConfig *config);

// config->chunk sets the rows of a tile (0: the default); the tests use it.
void quadratic_forward(const QuadraticKernel *kernel, real *out, real *saved, const real *qkv, const real *parameters,
                       real *work, const AttentionConfig *config);
void quadratic_backward(const QuadraticKernel *kernel, real *dqkv, real *dparameters, const real *dout, const real *qkv,
                        const real *out, const real *saved, const real *parameters, real *work,
                        const AttentionConfig *config);
void quadratic_step(const QuadraticKernel *kernel, real *out, real *cache, int pos, int n, const real *qkv,
                    const real *parameters, real *work, const AttentionConfig *config);

// The functions of struct Attention, from `const QuadraticKernel *kernel_of(const AttentionConfig *)`.
#define QUADRATIC_ATTENTION_FUNCTIONS(kernel_of)                                                                       \
    static void forward(real *out, real *saved, const real *qkv, const real *constants, const real *parameters,        \
                        real *work, const AttentionConfig *config) {                                                   \
        (void)constants;                                                                                               \
        quadratic_forward(kernel_of(config), out, saved, qkv, parameters, work, config);                               \
    }                                                                                                                  \
    static void backward(real *dqkv, real *dparameters, const real *dout, const real *qkv, const real *out,            \
                         const real *saved, const real *constants, const real *parameters, real *work,                 \
                         const AttentionConfig *config) {                                                              \
        (void)constants;                                                                                               \
        quadratic_backward(kernel_of(config), dqkv, dparameters, dout, qkv, out, saved, parameters, work, config);     \
    }                                                                                                                  \
    static void step(real *out, real *cache, int pos, int n, const real *qkv, const real *constants,                   \
                     const real *parameters, real *work, const AttentionConfig *config) {                              \
        (void)constants;                                                                                               \
        quadratic_step(kernel_of(config), out, cache, pos, n, qkv, parameters, work, config);                          \
    }
// Their places in a struct Attention.
#define QUADRATIC_ATTENTION_FIELDS                                                                                     \
    .saved_size = quadratic_saved_size, .work_size = quadratic_work_size, .cache_size = quadratic_cache_size,          \
    .forward = forward, .backward = backward, .step = step, .flops = quadratic_flops

#endif
