// GELU in its tanh form; 0.5 (1 + tanh u) = 1 / (1 + exp(-2u)). Where matrix products have it fused, the kernels rest.
#ifndef CORE_GELU_GPU_H
#define CORE_GELU_GPU_H

#include "kernel_gpu.h"
#include "profile_gpu.h"

#define GELU_SCALE 0.7978845608028654f // sqrt(2/pi)
#define GELU_CUBIC 0.044715f

__device__ static inline float gelu(float x) {
    return x / (1 + expf(-2 * GELU_SCALE * (x + GELU_CUBIC * x * x * x)));
}

// d/dx [x g(u)] = g + x g (1 - g) 2 u'(x), with g the logistic function of 2u
__device__ static inline float gelu_slope(float x) {
    float gate = 1 / (1 + expf(-2 * GELU_SCALE * (x + GELU_CUBIC * x * x * x)));
    return gate + x * gate * (1 - gate) * 2 * GELU_SCALE * (1 + 3 * GELU_CUBIC * x * x);
}

template <int WIDTH> __global__ void gelu_forward_kernel(floatX *out, const floatX *inp, size_t count) {
    size_t stride = (size_t)gridDim.x * BLOCK * WIDTH;
    for (size_t i = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * WIDTH; i < count; i += stride) {
        Floats<WIDTH> x = load<WIDTH>(inp + i);
        for (int j = 0; j < WIDTH; j++) x.at[j] = gelu(x.at[j]);
        store(out + i, x);
    }
}

template <int WIDTH> __global__ void gelu_backward_kernel(floatX *dout, const floatX *inp, size_t count) {
    size_t stride = (size_t)gridDim.x * BLOCK * WIDTH;
    for (size_t i = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * WIDTH; i < count; i += stride) {
        Floats<WIDTH> x = load<WIDTH>(inp + i), dx = load<WIDTH>(dout + i);
        for (int j = 0; j < WIDTH; j++) dx.at[j] *= gelu_slope(x.at[j]);
        store(dout + i, dx);
    }
}

static void gelu_forward(floatX *out, const floatX *inp, size_t count, cudaStream_t stream) {
    NamedRange range("gelu forward", WORK_GELU, stream);
    LAUNCH(gelu_forward_kernel, count, blocks_walking(count), BLOCK, stream, out, inp, count);
}

// In place: dout becomes dinp.
static void gelu_backward(floatX *dout, const floatX *inp, size_t count, cudaStream_t stream) {
    NamedRange range("gelu backward", WORK_GELU, stream);
    LAUNCH(gelu_backward_kernel, count, blocks_walking(count), BLOCK, stream, dout, inp, count);
}

#endif
