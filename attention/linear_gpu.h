// The one causal core of every linear attention on the GPU, and what a mechanism provides: the twin of linear.h.
//
// The rows of a sequence are cut into chunks. A pass has three steps, each parallel over all chunks of all heads:
//     the sum of phi(k) v^T over every chunk by itself;   matrix products
//     the sums over all chunks before each one;           an exclusive scan
//     outputs: phi(q) times that sum, plus the pairs of rows within the chunk.
// The backward pass mirrors it: sums of phi(q) gamma^T, scanned from the end. All big products are cuBLAS's, on float
// operands; the kernels in between touch each number once. phi = outer (x) inner is written out for a bounded number
// of chunks at a time (a segment), and a pair's score never sees it: <outer, outer> <inner, inner>.
//
// Within the core the rows of a segment are ordered by (head, sequence, row), so that a head's rows form one matrix to
// be multiplied with that head's constants. Rows past the end of a sequence fill up the last chunk: their inputs and
// values are 0, and so is what they add to anything.
#ifndef ATTENTION_LINEAR_GPU_H
#define ATTENTION_LINEAR_GPU_H

#include "attention_gpu.h"

extern "C" {
#include "linear.h"
#include "range.h"
}

// ---- what a mechanism provides

typedef struct { // the rows at hand: `heads` * `sequences` * `length`, in this order
    int heads, sequences, length;
    int first_head;
    int position; // of each first row, in its sequence
} LinearRowsGPU;

static inline size_t linear_row_count(LinearRowsGPU rows) {
    return (size_t)rows.heads * rows.sequences * rows.length;
}

typedef struct {      // features of queries or keys, or their gradients, row after row
    float *x;         // (rows, HS) what they are the features of; the map may overwrite it, for its own gradient
    float *outer;     // (rows, outer)
    float *inner;     // (rows, inner)
    float *log_scale; // (rows) log_scaled maps only: the features are exp(log_scale) times what is stored
    float *tape;      // (rows, tape) whatever `features` wants to hand to `gradient`
} LinearFeaturesGPU;

typedef struct {
    int outer, inner, tape;                 // widths
    int fixed_inner, log_scaled, is_signed; // as in linear.h
    size_t packed_size;                     // per head
    // Rearranges the constants of `heads` heads as the other two want them. NULL: there is nothing to rearrange.
    void (*pack)(float *packed, const float *constants, int first_head, int heads, const AttentionConfig *config,
                 cudaStream_t stream);
    // x -> the rest of `features`
    void (*features)(const LinearFeaturesGPU *features, LinearRowsGPU rows, const float *packed, const float *constants,
                     const AttentionConfig *config, cudaStream_t stream);
    // Gradients of the features -> d->x, overwritten. The rest of `d` may be used as scratch.
    void (*gradient)(const LinearFeaturesGPU *d, const LinearFeaturesGPU *features, LinearRowsGPU rows,
                     const float *packed, const float *constants, const AttentionConfig *config, cudaStream_t stream);
} LinearMapGPU;

// ---- what mechanisms and cores share

typedef struct { // one factor of a batch of products: a row-major matrix each
    const float *at;
    int stride;     // from row to row
    size_t step;    // from matrix to matrix
    int transposed; // taken as its transpose
} LinearOperand;

typedef struct { // the size of a batch of products: (rows, columns) = (rows, depth) (depth, columns)
    int rows, columns, depth, batch;
} LinearProduct;

// out = factor * left * right, added to out when `accumulate`. Inputs may be rounded to TF32, for the tensor cores,
// when `tensor_cores`.
void linear_gpu_multiply(float *out, int stride, size_t step, LinearOperand left, LinearOperand right,
                         LinearProduct size, float factor, int accumulate, int tensor_cores, cudaStream_t stream);

// Whether the factors of a map's products may be rounded like that.
static inline int uses_tensor_cores(const LinearMapGPU *map) {
    return sizeof(floatX) == 2 && !map->is_signed; // sums of signed scores cancel: they need all digits
}

// out (rows, width; leading dimension `stride`) = factor * x (rows, HS) times each head's own matrix (HS, width), or
// times the transpose of (width, HS). In full float precision: exponents need their digits.
void linear_gpu_project(float *out, int stride, const float *x, int x_stride, LinearOperand matrix, int width,
                        int depth, LinearRowsGPU rows, float factor, int accumulate, cudaStream_t stream);

// Kernels that work number by number have a thread for each.
enum { LINEAR_THREADS = 256 };

static inline dim3 linear_blocks(size_t numbers) {
    return dim3((unsigned)((numbers + LINEAR_THREADS - 1) / LINEAR_THREADS));
}

// Kernels that work row by row give a warp to each row: lane threadIdx.x, row linear_row().
enum { LINEAR_LANES = 32, LINEAR_WARPS = 8 };

static inline dim3 linear_row_blocks(size_t rows) {
    return dim3((unsigned)((rows + LINEAR_WARPS - 1) / LINEAR_WARPS));
}

static inline dim3 linear_row_threads(void) {
    return dim3(LINEAR_LANES, LINEAR_WARPS);
}

__device__ static inline size_t linear_row(void) {
    return (size_t)blockIdx.x * LINEAR_WARPS + threadIdx.y;
}

// The sum over a warp, the same bits in every lane.
__device__ static inline float linear_warp_sum(float x) {
    for (int offset = LINEAR_LANES / 2; offset; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

// ---- the functions of struct AttentionGPU

size_t linear_gpu_saved_size(const LinearMapGPU *map, const AttentionConfig *config);
size_t linear_gpu_work_size(const LinearMapGPU *map, const AttentionConfig *config);
size_t linear_gpu_cache_size(const LinearMapGPU *map, const AttentionConfig *config);
void linear_gpu_forward(const LinearMapGPU *map, floatX *out, float *saved, const floatX *qkv, const float *constants,
                        const float *parameters, float *work, const AttentionConfig *config, cudaStream_t stream);
void linear_gpu_backward(const LinearMapGPU *map, floatX *dqkv, float *dparameters, const floatX *dout,
                         const floatX *qkv, const floatX *out, const float *saved, const float *constants,
                         const float *parameters, float *work, const AttentionConfig *config, cudaStream_t stream);
void linear_gpu_step(const LinearMapGPU *map, floatX *out, float *cache, int pos, int n, const floatX *qkv,
                     const float *constants, const float *parameters, float *work, const AttentionConfig *config,
                     cudaStream_t stream);

void linear_gpu_collect_floored_rows(cudaStream_t stream);

// Numbers of scratch that one segment of a pass may take, unless a single chunk takes more: 256 MB. Tests make it
// small, to have many segments.
enum { LINEAR_SEGMENT_NUMBERS = 1 << 26 };
extern size_t linear_gpu_segment_numbers;

// Defines attention_gpu_NAME from `LinearMapGPU map_of(const AttentionConfig *)`. CORE(forward) is the function of that
// name in the core that serves `config`; likewise the others.
#define MAPPED_GPU_ATTENTION(name, map_of, CORE)                                                                       \
    static size_t saved_size(const AttentionConfig *config) {                                                          \
        LinearMapGPU map = map_of(config);                                                                             \
        return CORE(saved_size)(&map, config);                                                                         \
    }                                                                                                                  \
    static size_t work_size(const AttentionConfig *config) {                                                           \
        LinearMapGPU map = map_of(config);                                                                             \
        return CORE(work_size)(&map, config);                                                                          \
    }                                                                                                                  \
    static size_t cache_size(const AttentionConfig *config) {                                                          \
        LinearMapGPU map = map_of(config);                                                                             \
        return CORE(cache_size)(&map, config);                                                                         \
    }                                                                                                                  \
    static void forward(floatX *out, float *saved, const floatX *qkv, const float *constants, const float *parameters, \
                        float *work, const AttentionConfig *config, cudaStream_t stream) {                             \
        LinearMapGPU map = map_of(config);                                                                             \
        CORE(forward)(&map, out, saved, qkv, constants, parameters, work, config, stream);                             \
    }                                                                                                                  \
    static void backward(floatX *dqkv, float *dparameters, const floatX *dout, const floatX *qkv, const floatX *out,   \
                         const float *saved, const float *constants, const float *parameters, float *work,             \
                         const AttentionConfig *config, cudaStream_t stream) {                                         \
        LinearMapGPU map = map_of(config);                                                                             \
        CORE(backward)(&map, dqkv, dparameters, dout, qkv, out, saved, constants, parameters, work, config, stream);   \
    }                                                                                                                  \
    static void step(floatX *out, float *cache, int pos, int n, const floatX *qkv, const float *constants,             \
                     const float *parameters, float *work, const AttentionConfig *config, cudaStream_t stream) {       \
        LinearMapGPU map = map_of(config);                                                                             \
        CORE(step)(&map, out, cache, pos, n, qkv, constants, parameters, work, config, stream);                        \
    }                                                                                                                  \
    extern "C" const Attention attention_##name;                                                                       \
    extern const AttentionGPU attention_gpu_##name;                                                                    \
    const AttentionGPU attention_gpu_##name = {                                                                        \
        &attention_##name, saved_size, work_size, cache_size, forward,                                                 \
        backward,          step,       NULL,      NULL,       linear_gpu_collect_floored_rows}

#define LINEAR_GPU_CORE(function)          linear_gpu_##function
#define LINEAR_GPU_ATTENTION(name, map_of) MAPPED_GPU_ATTENTION(name, map_of, LINEAR_GPU_CORE)

#endif
