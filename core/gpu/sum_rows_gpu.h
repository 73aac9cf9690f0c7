// Sums over the rows of a matrix, column by column: gradients of biases, and of LayerNorm's weights from its blocks'
// shares. Memory decides how fast that can be: the rows are cut into blocks, enough of them to keep a GPU busy, and a
// second stage adds up the blocks' sums. How they are cut follows from the sizes alone, so that every sum always has
// the same order.
#ifndef CORE_SUM_ROWS_GPU_H
#define CORE_SUM_ROWS_GPU_H

#include "kernel_gpu.h"

enum { SUM_ROWS_LEAST = 64, SUM_ROW_BLOCKS = 128 }; // rows of a block at least, blocks of rows at most

static int sum_row_blocks(int count) {
    int blocks = (count + SUM_ROWS_LEAST - 1) / SUM_ROWS_LEAST;
    return blocks < SUM_ROW_BLOCKS ? blocks : SUM_ROW_BLOCKS;
}

// Numbers of scratch memory for sum_rows.
static size_t sum_rows_work(size_t count, size_t columns) {
    int blocks = sum_row_blocks((int)count);
    return blocks > 1 ? (size_t)blocks * columns : 0;
}

// Row blockIdx.y of sums (gridDim.y,columns) = beta * itself + the sum over that block's share of `count` rows of part,
// whose rows are `stride` apart. A block has WARP packs of columns; its warps share its rows.
template <int WIDTH, typename Number>
__global__ void sum_rows_kernel(float *sums, const Number *part, size_t stride, int count, int columns, float beta) {
    __shared__ Floats<WIDTH> of_warp[WARPS][WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, c = (blockIdx.x * WARP + lane) * WIDTH;
    int share = (count + (int)gridDim.y - 1) / (int)gridDim.y, first = (int)blockIdx.y * share;
    int end = first + share < count ? first + share : count;
    Floats<WIDTH> sum = {};
    for (int r = first + warp; c < columns && r < end; r += WARPS) {
        Floats<WIDTH> row = load<WIDTH>(part + (size_t)r * stride + (size_t)c);
        for (int j = 0; j < WIDTH; j++) sum.at[j] += row.at[j];
    }
    of_warp[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && c < columns) {
        float *to = sums + (size_t)blockIdx.y * (size_t)columns + c;
        Floats<WIDTH> total = {};
        if (beta != 0) total = load<WIDTH>(to);
        for (int w = 0; w < WARPS; w++)
            for (int j = 0; j < WIDTH; j++) total.at[j] += of_warp[w][lane].at[j];
        store(to, total);
    }
}

// dsum (columns) = beta * dsum + the sum over `count` rows of part, whose rows are `stride` apart. beta is 0 or 1.
// work: sum_rows_work(count, columns) numbers.
template <typename Number>
static void sum_rows(float *dsum, const Number *part, size_t stride, int count, int columns, float beta, float *work,
                     cudaStream_t stream) {
    unsigned blocks = (unsigned)sum_row_blocks(count);
    bool packed = columns % PACK == 0 && stride % PACK == 0;
    dim3 grid(blocks_for((size_t)columns, (size_t)(WARP * (packed ? PACK : 1))), blocks > 1 ? blocks : 1);
    if (packed)
        sum_rows_kernel<PACK>
            <<<grid, BLOCK, 0, stream>>>(blocks > 1 ? work : dsum, part, stride, count, columns, blocks > 1 ? 0 : beta);
    else
        sum_rows_kernel<1>
            <<<grid, BLOCK, 0, stream>>>(blocks > 1 ? work : dsum, part, stride, count, columns, blocks > 1 ? 0 : beta);
    launch_check();
    if (blocks <= 1) return;
    // few numbers: narrow packs make more blocks of them
    sum_rows_kernel<1><<<blocks_for((size_t)columns, WARP), BLOCK, 0, stream>>>(dsum, work, (size_t)columns,
                                                                                (int)blocks, columns, beta);
    launch_check();
}

#endif
