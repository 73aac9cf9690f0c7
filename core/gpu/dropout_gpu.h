// Dropout on the device. Its mask is a function of step, site and place, so that backward repeats it instead of storing
// it.
#ifndef CORE_DROPOUT_GPU_H
#define CORE_DROPOUT_GPU_H

#include "kernel_gpu.h"
#include "profile_gpu.h"
#include "random_gpu.h"

typedef struct {
    uint32_t threshold; // share * 2^32; 0: no dropout
    float scale;        // 1 / (1 - share)
    const uint64_t *key;
    const int64_t *first_token; // of the micro-batch at hand within the step's batch, times T
} Dropout;

static inline Dropout dropout_of(float share, const uint64_t *key, const int64_t *first_token) {
    return {(uint32_t)((double)share * 4294967296.0), 1 / (1 - share), key, first_token};
}

// x times the mask, for WIDTH numbers of row `row` (of the micro-batch) from column `column` on. Rounded by itself,
// never as part of a sum that it goes into: the same bits as on the CPU.
template <int WIDTH>
__device__ static inline Floats<WIDTH> drop(Floats<WIDTH> x, const Dropout &dropout, int64_t row, int column, int C) {
    if (dropout.threshold == 0) return x;
    uint32_t words[WIDTH];
    random_words_gpu(words, *dropout.key, (uint64_t)(*dropout.first_token + row) * (uint64_t)C + (uint64_t)column);
    for (int j = 0; j < WIDTH; j++) x.at[j] = words[j] < dropout.threshold ? 0 : __fmul_rn(x.at[j], dropout.scale);
    return x;
}

// out (N,C) = inp (N,C) times the mask; forward and backward are the same, and in place is allowed.
template <int WIDTH>
__global__ void dropout_kernel(floatX *out, const floatX *inp, Dropout dropout, size_t count, int C) {
    size_t stride = (size_t)gridDim.x * BLOCK * WIDTH;
    for (size_t i = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * WIDTH; i < count; i += stride)
        store(out + i, drop(load<WIDTH>(inp + i), dropout, (int64_t)(i / (size_t)C), (int)(i % (size_t)C), C));
}

static void dropout_forward(floatX *out, const floatX *inp, Dropout dropout, int N, int C, cudaStream_t stream) {
    NamedRange range("dropout", WORK_DROPOUT, stream);
    size_t count = (size_t)N * (size_t)C;
    LAUNCH(dropout_kernel, C, blocks_walking(count), BLOCK, stream, out, inp, dropout, count, C);
}

#endif
