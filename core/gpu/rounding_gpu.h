// Weights as the layers read them, from the master weights.
#ifndef CORE_ROUNDING_GPU_H
#define CORE_ROUNDING_GPU_H

#include "kernel_gpu.h"
#include "random_gpu.h"

// bf16 from fp32, up or down with a chance that makes the mean come out right: small updates are not lost. The lower
// half of the bits is rounded away by adding 16 random ones and cutting it off.
[[maybe_unused]] __device__ static inline __nv_bfloat16 round_randomly(float x, uint32_t word) {
    if (!isfinite(x)) return __float2bfloat16_rn(x);
    return __ushort_as_bfloat16((unsigned short)((__float_as_uint(x) + (word >> 16)) >> 16));
}

// `rounded` = x, WIDTH weights that begin at place j of the flat arrays. In fp32 the layers read the master weights
// themselves.
template <int WIDTH> __device__ static inline void store_weights(float *, const Floats<WIDTH> &, uint64_t, size_t) {}
template <int WIDTH>
__device__ static inline void store_weights(__nv_bfloat16 *rounded, const Floats<WIDTH> &x, uint64_t key, size_t j) {
    Packed<__nv_bfloat16, WIDTH> packed;
    uint32_t words[WIDTH];
    random_words_gpu(words, key, j);
    for (int k = 0; k < WIDTH; k++) packed.number[k] = round_randomly(x.at[k], words[k]);
    *reinterpret_cast<Packed<__nv_bfloat16, WIDTH> *>(rounded) = packed;
}

template <int WIDTH>
__global__ void round_weights_kernel(floatX *rounded, const float *master, uint64_t key, size_t count) {
    size_t stride = (size_t)gridDim.x * BLOCK * WIDTH;
    for (size_t j = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * WIDTH; j < count; j += stride)
        store_weights<WIDTH>(rounded + j, load<WIDTH>(master + j), key, j);
}

#endif
