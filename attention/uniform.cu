// uniform on the GPU: every row is the plain average of the values so far. See uniform.c.
#include "linear_gpu.h"

__global__ static void fill_kernel(float *numbers, float value, size_t n) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) numbers[i] = value;
}

static void uniform_features(const LinearFeaturesGPU *features, LinearRowsGPU rows, const float *packed,
                             const float *constants, const AttentionConfig *config, cudaStream_t stream) {
    (void)packed, (void)constants, (void)config;
    size_t n = linear_row_count(rows);
    fill_kernel<<<linear_blocks(n), LINEAR_THREADS, 0, stream>>>(features->outer, 1, n);
    launch_check();
}

static void uniform_gradient(const LinearFeaturesGPU *d, const LinearFeaturesGPU *features, LinearRowsGPU rows,
                             const float *packed, const float *constants, const AttentionConfig *config,
                             cudaStream_t stream) {
    (void)features, (void)packed, (void)constants;
    size_t n = linear_row_count(rows) * config->HS;
    fill_kernel<<<linear_blocks(n), LINEAR_THREADS, 0, stream>>>(d->x, 0, n);
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
