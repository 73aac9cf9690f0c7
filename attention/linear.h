// The one causal core of every linear attention:
//     out_i = sum_{j<=i} A_ij v_j / (sum_{j<=i} A_ij + delta),   A_ij = decay^(i-j) <phi(q_i), phi(k_j)>
//
// A mechanism gives a feature map and its gradient; the core does the rest: chunks, states, decoding, threads. A
// feature vector is a product of two, phi = outer (x) inner, because that is what SLAY's are. So a score costs
// outer + inner multiplications instead of outer * inner, and the wide product exists for one block of one tile only.
// Maps that are not products have inner = 0.
//
// Features are stored feature-major: feature f of row i of a tile is at [f * TILE + i] (attention/linear_tile.h).
#ifndef ATTENTION_LINEAR_H
#define ATTENTION_LINEAR_H

#include "attention.h"
#include "linear_tile.h"

typedef struct {  // which rows a tile has
    int position; // of the first row in its sequence
    int count;    // 1 .. TILE; maps compute tile_lanes(count) of them, the rest of their input is 0
} LinearRows;

typedef struct {     // the features of one tile of queries or keys, or their gradients
    real *outer;     // (outer, TILE)
    real *inner;     // (inner, TILE)
    real *log_scale; // (TILE) maps with log_scaled only: the features are exp(log_scale) times what is stored
    real *tape;      // (tape, TILE) whatever `features` wants to hand to `gradient`
} LinearFeatures;

typedef struct LinearMap LinearMap;
struct LinearMap {
    int outer, inner, tape; // widths
    int fixed_inner;        // inner does not depend on the vector: its gradient is not computed
    int log_scaled;         // keys have a scale too large or small for a float; inner is then 1 and belongs to the core
    int is_signed;          // scores may be negative: so may sums, which are floored in magnitude and counted
    double feature_cost;    // multiplications per vector, for the flop count and the choice of form
    size_t packed_size;
    size_t d_packed_size; // maps with trained parameters: of the gradient of what they packed; 0: nothing is trained
    // Rearranges the constants of one head as the other two want them, (packed_size).
    void (*pack)(real *packed, const real *constants, const real *parameters, int head, const AttentionConfig *config);
    // x (HS, TILE) -> features and tape
    void (*features)(LinearFeatures *features, const real *x, LinearRows rows, const real *packed,
                     const AttentionConfig *config);
    // Gradients of features -> dx (HS, TILE), overwritten. `d` may be used as scratch. d->log_scale is the gradient
    // that reaches a log_scaled map through its scale (only delta sees the scale). Adds to d_packed (d_packed_size),
    // the sum over a head of a sequence, what its `count` rows give; lanes past them may hold anything.
    void (*gradient)(real *dx, real *d_packed, LinearFeatures *d, const LinearFeatures *features, LinearRows rows,
                     const real *packed, const AttentionConfig *config);
    // Adds what d_packed has gathered to the layer's dparameters, for one head of one sequence at a time.
    void (*unpack)(real *dparameters, const real *d_packed, int head, const AttentionConfig *config);
};

size_t linear_saved_size(const LinearMap *map, const AttentionConfig *config);
size_t linear_work_size(const LinearMap *map, const AttentionConfig *config);
size_t linear_cache_size(const LinearMap *map, const AttentionConfig *config);
void linear_attention_forward(const LinearMap *map, real *out, real *saved, const real *qkv, const real *constants,
                              const real *parameters, real *work, const AttentionConfig *config);
void linear_attention_backward(const LinearMap *map, real *dqkv, real *dparameters, const real *dout, const real *qkv,
                               const real *out, const real *saved, const real *constants, const real *parameters,
                               real *work, const AttentionConfig *config);
void linear_attention_step(const LinearMap *map, real *out, real *cache, int pos, int n, const real *qkv,
                           const real *constants, const real *parameters, real *work, const AttentionConfig *config);
double linear_flops(const LinearMap *map, const AttentionConfig *config);

// Rows per chunk for sequences of T rows: config->chunk, or the cheapest; T itself means pair by pair, without a state.
int linear_chunk_rows(const LinearMap *map, int T, const AttentionConfig *config);
// The most that this is for sequences of up to config->T rows: a short one may go pair by pair where a long one does
// not.
int linear_most_chunk_rows(const LinearMap *map, const AttentionConfig *config);

// How many rows of signed maps had a negative sum or one that the floor replaced, since the program started: rows whose
// output is not an average of values.
uint64_t linear_floored_rows(void);
void linear_count_floored_rows(uint64_t rows); // adds those of another device
// Says once per program that `name` has signed scores.
void linear_warn_signed(const char *name);

enum { LINEAR_OUTER_MAX = 65536 }; // outer features, for the mechanisms' checks

// Small enough for products of a query's and a key's features, times v, summed over a long sequence, not to overflow.
#define LINEAR_FEATURE_MAX ((real)1048576)

// The functions of struct Attention, from `LinearMap map_of(const AttentionConfig *)`. CORE(attention_forward) is the
// function of that name in the core that serves `config`; likewise the others.
#define MAPPED_ATTENTION_FUNCTIONS(map_of, CORE)                                                                       \
    static size_t saved_size(const AttentionConfig *config) {                                                          \
        LinearMap map = map_of(config);                                                                                \
        return CORE(saved_size)(&map, config);                                                                         \
    }                                                                                                                  \
    static size_t work_size(const AttentionConfig *config) {                                                           \
        LinearMap map = map_of(config);                                                                                \
        return CORE(work_size)(&map, config);                                                                          \
    }                                                                                                                  \
    static size_t cache_size(const AttentionConfig *config) {                                                          \
        LinearMap map = map_of(config);                                                                                \
        return CORE(cache_size)(&map, config);                                                                         \
    }                                                                                                                  \
    static void forward(real *out, real *saved, const real *qkv, const real *constants, const real *parameters,        \
                        real *work, const AttentionConfig *config) {                                                   \
        LinearMap map = map_of(config);                                                                                \
        CORE(attention_forward)(&map, out, saved, qkv, constants, parameters, work, config);                           \
    }                                                                                                                  \
    static void backward(real *dqkv, real *dparameters, const real *dout, const real *qkv, const real *out,            \
                         const real *saved, const real *constants, const real *parameters, real *work,                 \
                         const AttentionConfig *config) {                                                              \
        LinearMap map = map_of(config);                                                                                \
        CORE(attention_backward)(&map, dqkv, dparameters, dout, qkv, out, saved, constants, parameters, work, config); \
    }                                                                                                                  \
    static void step(real *out, real *cache, int pos, int n, const real *qkv, const real *constants,                   \
                     const real *parameters, real *work, const AttentionConfig *config) {                              \
        LinearMap map = map_of(config);                                                                                \
        CORE(attention_step)(&map, out, cache, pos, n, qkv, constants, parameters, work, config);                      \
    }                                                                                                                  \
    static double flops(const AttentionConfig *config) {                                                               \
        LinearMap map = map_of(config);                                                                                \
        return CORE(flops)(&map, config);                                                                              \
    }
#define LINEAR_CORE(function)              linear_##function
#define LINEAR_ATTENTION_FUNCTIONS(map_of) MAPPED_ATTENTION_FUNCTIONS(map_of, LINEAR_CORE)
// Their places in a struct Attention.
#define LINEAR_ATTENTION_FIELDS                                                                                        \
    .saved_size = saved_size, .work_size = work_size, .cache_size = cache_size, .forward = forward,                    \
    .backward = backward, .step = step, .flops = flops, .floored_rows = linear_floored_rows

#endif
