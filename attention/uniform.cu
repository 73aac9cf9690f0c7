// uniform on the GPU: every row is the plain average of the values so far. See uniform.c.
#include "linear_gpu.h"

// 1, unless x holds NaN, which must not disappear.
__global__ static void uniform_features_kernel(float *outer, const float *x, int HS, size_t rows) {
    size_t row = linear_row();
    if (row >= rows) return;
    float nothing = 0;
    for (int c = threadIdx.x; c < HS; c += LINEAR_LANES) nothing += x[row * HS + c] - x[row * HS + c];
    outer[row] = 1 + linear_warp_sum(nothing);
}

// 0, except for NaN.
__global__ static void uniform_gradient_kernel(float *dx, const float *d_outer, int HS, size_t n) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) dx[i] = 0 * d_outer[i / HS];
}

static void uniform_features(const LinearFeaturesGPU *features, LinearRowsGPU rows, const float *packed,
                             const float *constants, const AttentionConfig *config, cudaStream_t stream) {
    (void)packed, (void)constants;
    size_t n = linear_row_count(rows);
    uniform_features_kernel<<<linear_row_blocks(n), linear_row_threads(), 0, stream>>>(features->outer, features->x,
                                                                                       config->HS, n);
    launch_check();
}

static void uniform_gradient(const LinearFeaturesGPU *d, const LinearFeaturesGPU *features, LinearRowsGPU rows,
                             const float *packed, const float *constants, const AttentionConfig *config,
                             cudaStream_t stream) {
    (void)features, (void)packed, (void)constants;
    size_t n = linear_row_count(rows) * config->HS;
    uniform_gradient_kernel<<<linear_blocks(n), LINEAR_THREADS, 0, stream>>>(d->x, d->outer, config->HS, n);
    launch_check();
}

static LinearMapGPU uniform_map(const AttentionConfig *config) {
    (void)config;
    LinearMapGPU map = {};
    map.outer = 1;
    map.features = uniform_features;
    map.gradient = uniform_gradient;
    return map;
}
LINEAR_GPU_ATTENTION(uniform, uniform_map);
