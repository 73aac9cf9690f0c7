// Sums of squares in double, for norms: the parts that blocks leave, to be added up by whoever wants the sum.
#ifndef CORE_SUM_SQUARES_GPU_H
#define CORE_SUM_SQUARES_GPU_H

#include "kernel_gpu.h"

enum { NORM_BLOCKS = 1024 }; // blocks, and parts, of a sum over all gradients

// The blocks of a sum over `count` numbers: a function of nothing else, so that the sum always has the same order.
static unsigned norm_blocks(size_t count) {
    unsigned blocks = blocks_for(count, 16 * BLOCK);
    return blocks < (unsigned)NORM_BLOCKS ? blocks : (unsigned)NORM_BLOCKS;
}

// parts (blocks): sums of squares
template <typename Number> __global__ void sum_squares_kernel(double *parts, const Number *x, size_t count) {
    double squares = 0;
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < count; i += (size_t)gridDim.x * BLOCK)
        squares += (double)to_float(x[i]) * (double)to_float(x[i]);
    squares = block_sum(squares);
    if (threadIdx.x == 0) parts[blockIdx.x] = squares;
}

// Whether all are finite; waits for the device, and fast it is not. parts: (NORM_BLOCKS), on the device
template <typename Number>
static bool finite_on_device(double *parts, const Number *x, size_t count, cudaStream_t stream) {
    double host[NORM_BLOCKS], sum = 0;
    unsigned blocks = norm_blocks(count);
    sum_squares_kernel<<<blocks, BLOCK, 0, stream>>>(parts, x, count);
    launch_check();
    cuda_check(cudaMemcpyAsync(host, parts, blocks * sizeof(double), cudaMemcpyDeviceToHost, stream));
    cuda_check(cudaStreamSynchronize(stream));
    for (unsigned b = 0; b < blocks; b++) sum += host[b];
    return isfinite(sum);
}

#endif
