// cosformer on the GPU: relu features, and as inner factor (cos, sin) of the position's angle. See cosformer.c.
#include "linear_gpu.h"

__global__ static void cosformer_features_kernel(float *outer, float *inner, const float *x, int HS, int length,
                                                 int position, float horizon, size_t rows) {
    size_t row = linear_row();
    if (row >= rows) return;
    for (int c = threadIdx.x; c < HS; c += LINEAR_LANES) {
        float at = x[row * HS + c], positive = at > LINEAR_FEATURE_MAX ? LINEAR_FEATURE_MAX : at;
        outer[row * HS + c] = at <= 0 ? 0.0f : positive; // NaN stays NaN
    }
    const float quarter_turn = 1.57079632679489661923f;
    float angle = quarter_turn * (float)(position + (int)(row % length)) / horizon;
    if (threadIdx.x < 2) inner[row * 2 + threadIdx.x] = threadIdx.x ? sinf(angle) : cosf(angle);
}

__global__ static void cosformer_gradient_kernel(float *dx, const float *d_outer, const float *outer, size_t n) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) dx[i] = outer[i] <= 0 ? 0.0f : d_outer[i]; // NaN gets a gradient
}

static void cosformer_features(const LinearFeaturesGPU *features, LinearRowsGPU rows, const float *packed,
                               const float *constants, const AttentionConfig *config, cudaStream_t stream) {
    (void)packed, (void)constants;
    size_t n = linear_row_count(rows);
    cosformer_features_kernel<<<linear_row_blocks(n), linear_row_threads(), 0, stream>>>(
        features->outer, features->inner, features->x, config->HS, rows.length, rows.position, (float)config->max_T, n);
    launch_check();
}

static void cosformer_gradient(const LinearFeaturesGPU *d, const LinearFeaturesGPU *features, LinearRowsGPU rows,
                               const float *packed, const float *constants, const AttentionConfig *config,
                               cudaStream_t stream) {
    (void)packed, (void)constants;
    size_t n = linear_row_count(rows) * config->HS;
    cosformer_gradient_kernel<<<linear_blocks(n), LINEAR_THREADS, 0, stream>>>(d->x, d->outer, features->outer, n);
    launch_check();
}

static LinearMapGPU cosformer_map(const AttentionConfig *config) {
    LinearMapGPU map = {};
    map.outer = config->HS;
    map.inner = 2;
    map.fixed_inner = 1;
    map.features = cosformer_features;
    map.gradient = cosformer_gradient;
    return map;
}
LINEAR_GPU_ATTENTION(cosformer, cosformer_map);
