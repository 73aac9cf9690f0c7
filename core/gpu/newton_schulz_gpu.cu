#include "newton_schulz_gpu.h"
#include "matmul_gpu.h"
#include "sum_squares_gpu.h"

extern "C" {
#include "core/math/newton_schulz.h"
}

void newton_schulz_gpu_plan(NewtonSchulzGPU *scratch, ArenaGPU *arena, size_t count, size_t side) {
    arena_gpu_plan(arena, &scratch->next, count);
    arena_gpu_plan(arena, &scratch->gram, side * side), arena_gpu_plan(arena, &scratch->poly, side * side);
    arena_gpu_plan(arena, &scratch->parts, (size_t)NORM_BLOCKS);
}

// x (count) / (its norm + epsilon), the norm in `parts`; every block adds them up in the same order.
__global__ void normalize_kernel(floatX *x, const double *parts, int part_count, size_t count) {
    double squares = 0;
    for (int b = (int)threadIdx.x; b < part_count; b += BLOCK) squares += parts[b];
    float scale = (float)(1 / (sqrt(block_sum(squares)) + NEWTON_SCHULZ_EPSILON));
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < count; i += (size_t)gridDim.x * BLOCK)
        x[i] = from_float<floatX>(to_float(x[i]) * scale);
}

// poly (n,n), which holds gram gram, becomes a + b gram + c gram gram.
__global__ void polynomial_kernel(floatX *poly, const floatX *gram, size_t n) {
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < n * n; i += (size_t)gridDim.x * BLOCK) {
        float sum = (float)NEWTON_SCHULZ_B * to_float(gram[i]) + (float)NEWTON_SCHULZ_C * to_float(poly[i]);
        poly[i] = from_float<floatX>(i / n == i % n ? sum + (float)NEWTON_SCHULZ_A : sum);
    }
}

static void normalize(floatX *x, size_t count, double *parts, cudaStream_t stream) {
    unsigned blocks = norm_blocks(count);
    sum_squares_kernel<<<blocks, BLOCK, 0, stream>>>(parts, x, count);
    launch_check();
    normalize_kernel<<<blocks_walking(count), BLOCK, 0, stream>>>(x, parts, (int)blocks, count);
    launch_check();
}

void newton_schulz_gpu(floatX *x, int rows, int columns, const NewtonSchulzGPU *scratch, cudaStream_t stream) {
    bool is_wide = rows <= columns;
    int n = is_wide ? rows : columns;
    size_t side = (size_t)n, count = (size_t)rows * (size_t)columns;
    MatmulShape product = matmul_shape(n, n, is_wide ? columns : rows, MATMUL_PLAIN), square = product;
    product.b_is_transposed = is_wide, product.a_is_transposed = !is_wide;
    square.k = n;
    MatmulShape last = matmul_shape(rows, columns, n, MATMUL_PLAIN);
    floatX *now = x, *next = scratch->next;
    normalize(x, count, scratch->parts, stream);
    for (int step = 0; step < NEWTON_SCHULZ_STEPS; step++) {
        matmul_gpu(scratch->gram, now, now, 0, &product, NULL, stream);
        matmul_gpu(scratch->poly, scratch->gram, scratch->gram, 0, &square, NULL, stream);
        polynomial_kernel<<<blocks_walking(side * side), BLOCK, 0, stream>>>(scratch->poly, scratch->gram, side);
        launch_check();
        matmul_gpu(next, is_wide ? scratch->poly : now, is_wide ? now : scratch->poly, 0, &last, NULL, stream);
        floatX *before = now;
        now = next, next = before;
    }
    if (now != x) cuda_check(cudaMemcpyAsync(x, now, count * sizeof(floatX), cudaMemcpyDeviceToDevice, stream));
}
