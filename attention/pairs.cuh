// What the quadratic core of maps (pairs.cu) and its map (slay_exact.cu) share: which rows they have at hand, their
// features, products, and kernels that give a warp to each row.
#ifndef ATTENTION_PAIRS_CUH
#define ATTENTION_PAIRS_CUH

#include "linear_denominators.cuh"
#include "slay_gpu.h"
#include "core/gpu/matmul_gpu.h"

// ---- which rows

typedef struct { // all rows of some heads of some sequences, ordered by (head, sequence, row)
    int heads, sequences, first_head, first_sequence;
    int T;        // rows of a sequence
    int position; // of row 0: when decoding, what came before
    int NH, HS;
    int columns; // of an extended value (v, 1): HS + 1, padded with zeros to a multiple of 8
} PairRows;

typedef struct { // one of these rows
    int head, sequence;
    size_t task; // one head of one sequence: sequence * NH + head
    int t;       // in its sequence
} PairPlace;

__device__ static inline PairPlace place_of(PairRows rows, size_t row) {
    size_t local_task = row / rows.T;
    PairPlace place;
    place.head = rows.first_head + (int)(local_task / rows.sequences);
    place.sequence = rows.first_sequence + (int)(local_task % rows.sequences);
    place.task = (size_t)place.sequence * rows.NH + place.head;
    place.t = (int)(row % rows.T);
    return place;
}

__host__ __device__ static inline size_t row_count(PairRows rows) {
    return (size_t)rows.heads * rows.sequences * rows.T;
}

// Where the head of a row begins in a tensor (sequence, t, parts * C): q, k, v are parts 0, 1, 2 of qkv.
__device__ static inline size_t head_at(PairRows rows, PairPlace place, int part, int parts) {
    size_t C = (size_t)rows.NH * rows.HS, row = (size_t)place.sequence * rows.T + place.t;
    return (row * parts + part) * C + (size_t)place.head * rows.HS;
}

// ---- kernels that work row by row: lane threadIdx.x, row pair_row()

enum { PAIR_LANES = 32, PAIR_WARPS = 8 };

static inline dim3 pair_row_blocks(size_t rows) {
    return dim3((unsigned)((rows + PAIR_WARPS - 1) / PAIR_WARPS));
}
static inline dim3 pair_row_threads(void) {
    return dim3(PAIR_LANES, PAIR_WARPS);
}
__device__ static inline size_t pair_row(void) {
    return (size_t)blockIdx.x * PAIR_WARPS + threadIdx.y;
}

// The sum over a warp, the same bits in every lane.
__device__ static inline float pair_warp_sum(float x) {
    for (int offset = PAIR_LANES / 2; offset; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

// ---- products

typedef struct { // one factor of a batch of products: a row-major matrix each
    const float *at;
    int stride;     // from row to row
    size_t step;    // from matrix to matrix
    int transposed; // taken as its transpose
} PairOperand;

typedef struct { // the size of a batch of products: (rows, columns) = (rows, depth) (depth, columns)
    int rows, columns, depth, batch;
} PairProduct;

// out = left * right, added to out when `accumulate`. Inputs may be rounded to TF32, for the tensor cores, when
// `tensor_cores`.
void pairs_multiply(float *out, int stride, size_t step, PairOperand left, PairOperand right, PairProduct size,
                    int accumulate, int tensor_cores, cudaStream_t stream);

// ---- features, row after row; or their gradients

typedef struct {
    float *unit;         // (rows, HS) what they are the features of, then brought to unit length
    float *outer;        // (rows, RM)
    float *inverse_norm; // (rows) 1 / |x|, or 0 where there is no gradient
    float *projected;    // (rows, RM)
} PairFeatures;

// `unit`, so far the vectors themselves -> the rest
void slay_exact_features(PairFeatures features, PairRows rows, const float *packed, const AttentionConfig *config,
                         cudaStream_t stream);
// Gradients of outer and unit (d.outer, d.unit) -> of the vectors, in d.unit; and in `projected` those of the
// projections.
void slay_exact_gradient(PairFeatures d, PairFeatures features, PairRows rows, const float *packed,
                         const AttentionConfig *config, cudaStream_t stream);
// Adds what then reaches a trained omega to dparameters; d_projections (heads, RM, HS) is scratch.
void slay_exact_add_gradient(float *dparameters, float *d_projections, PairFeatures features, PairRows rows,
                             const float *packed, const AttentionConfig *config, cudaStream_t stream);

#endif
