// What kernels share: numbers in packs, launches, sums over warps and blocks.
#ifndef CORE_KERNEL_GPU_H
#define CORE_KERNEL_GPU_H

#include "cuda_common.h"

enum { WARP = 32, BLOCK = 256, WARPS = BLOCK / WARP };

// PACK numbers go through memory in one instruction. Where rows are not a multiple of that, the same kernel runs with
// WIDTH 1.
enum { PACK = 4 };
template <typename Number, int WIDTH> struct alignas(sizeof(Number) * WIDTH) Packed { Number number[WIDTH]; };
template <int WIDTH> struct Floats { float at[WIDTH]; };

template <int WIDTH, typename Number> __device__ static inline Floats<WIDTH> load(const Number *from) {
    Packed<Number, WIDTH> packed = *reinterpret_cast<const Packed<Number, WIDTH> *>(from);
    Floats<WIDTH> x;
    for (int j = 0; j < WIDTH; j++) x.at[j] = to_float(packed.number[j]);
    return x;
}

template <int WIDTH, typename Number> __device__ static inline void store(Number *to, const Floats<WIDTH> &x) {
    Packed<Number, WIDTH> packed;
    for (int j = 0; j < WIDTH; j++) packed.number[j] = from_float<Number>(x.at[j]);
    *reinterpret_cast<Packed<Number, WIDTH> *>(to) = packed;
}

// Launches kernel<PACK> where `columns` allow it, else kernel<1>.
#define LAUNCH(kernel, columns, grid, block, stream, ...)                                                              \
    do {                                                                                                               \
        if ((columns) % PACK == 0)                                                                                     \
            kernel<PACK><<<(grid), (block), 0, (stream)>>>(__VA_ARGS__);                                               \
        else                                                                                                           \
            kernel<1><<<(grid), (block), 0, (stream)>>>(__VA_ARGS__);                                                  \
        launch_check();                                                                                                \
    } while (0)

static unsigned blocks_for(size_t items, size_t per_block) {
    return (unsigned)((items + per_block - 1) / per_block);
}

// Blocks of BLOCK threads for kernels whose threads walk over `count` numbers in strides of the whole grid.
static unsigned blocks_walking(size_t count) {
    const unsigned most = 4096;
    unsigned blocks = blocks_for(count, BLOCK * PACK);
    return blocks < most ? (blocks ? blocks : 1) : most;
}

template <typename Number> __device__ static inline Number warp_sum(Number x) {
    for (int offset = WARP / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

__device__ static inline float warp_max(float x) {
    for (int offset = WARP / 2; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

// The sum over a block of BLOCK threads, in every thread. Every thread of the block must call it.
template <typename Number> __device__ static inline Number block_sum(Number x) {
    __shared__ Number of_warp[WARPS];
    x = warp_sum(x);
    __syncthreads(); // of_warp may still be in use from the call before
    if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = x;
    __syncthreads();
    Number sum = 0;
    for (int w = 0; w < WARPS; w++) sum += of_warp[w];
    return sum;
}

__device__ static inline float block_max(float x) {
    __shared__ float of_warp[WARPS];
    x = warp_max(x);
    __syncthreads();
    if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = x;
    __syncthreads();
    float most = of_warp[0];
    for (int w = 1; w < WARPS; w++) most = fmaxf(most, of_warp[w]);
    return most;
}

#endif
