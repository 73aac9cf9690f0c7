// elu on the GPU: phi(x) = x + 1 for x > 0, exp(x) below. See elu.c.
#include "linear_gpu.h"

__global__ static void elu_features_kernel(float *phi, const float *x, size_t n) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float at = x[i], above = at < LINEAR_FEATURE_MAX ? at : LINEAR_FEATURE_MAX;
    phi[i] = at > 0 ? above + 1 : expf(at);
}

// The slope is 1 above zero, where phi > 1, and phi itself below.
__global__ static void elu_gradient_kernel(float *dx, const float *d_phi, const float *phi, size_t n) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    dx[i] = d_phi[i] * (phi[i] > 1 ? 1.0f : phi[i]);
}

static void elu_features(const LinearFeaturesGPU *features, LinearRowsGPU rows, const float *packed,
                         const float *constants, const AttentionConfig *config, cudaStream_t stream) {
    (void)packed, (void)constants;
    size_t n = linear_row_count(rows) * config->HS;
    elu_features_kernel<<<linear_blocks(n), LINEAR_THREADS, 0, stream>>>(features->outer, features->x, n);
    launch_check();
}

static void elu_gradient(const LinearFeaturesGPU *d, const LinearFeaturesGPU *features, LinearRowsGPU rows,
                         const float *packed, const float *constants, const AttentionConfig *config,
                         cudaStream_t stream) {
    (void)packed, (void)constants;
    size_t n = linear_row_count(rows) * config->HS;
    elu_gradient_kernel<<<linear_blocks(n), LINEAR_THREADS, 0, stream>>>(d->x, d->outer, features->outer, n);
    launch_check();
}

static LinearMapGPU elu_map(const AttentionConfig *config) {
    LinearMapGPU map = {};
    map.outer = config->HS;
    map.features = elu_features;
    map.gradient = elu_gradient;
    return map;
}
LINEAR_GPU_ATTENTION(elu, elu_map);
