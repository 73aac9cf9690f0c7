// favor on the GPU: random projections, relu or exp features. See favor.c.
#include "linear_gpu.h"

#include <math.h>

// omega (HS, M) of the first head at hand; each head has its own.
static LinearOperand omega_of(const float *constants, LinearRowsGPU rows, const AttentionConfig *config,
                              int transposed) {
    size_t size = (size_t)config->HS * config->M;
    LinearOperand omega = {constants + rows.first_head * size, config->M, size, transposed};
    return omega;
}

// y (rows, M) = factor * x omega
static void project(float *y, const float *x, float factor, LinearRowsGPU rows, const float *constants,
                    const AttentionConfig *config, cudaStream_t stream) {
    linear_gpu_project(y, config->M, x, config->HS, omega_of(constants, rows, config, 0), config->M, config->HS, rows,
                       factor, 0, stream);
}

// dx (rows, HS) = factor * dy omega^T
static void project_gradient(float *dx, const float *dy, float factor, int accumulate, LinearRowsGPU rows,
                             const float *constants, const AttentionConfig *config, cudaStream_t stream) {
    linear_gpu_project(dx, config->HS, dy, config->M, omega_of(constants, rows, config, 1), config->HS, config->M, rows,
                       factor, accumulate, stream);
}

// ---- relu

__global__ static void relu_kernel(float *y, size_t n) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float positive = y[i] > LINEAR_FEATURE_MAX ? LINEAR_FEATURE_MAX : y[i];
    y[i] = y[i] <= 0 ? 0.0f : positive; // NaN stays NaN
}

__global__ static void relu_gradient_kernel(float *d, const float *features, size_t n) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && features[i] <= 0) d[i] = 0; // NaN keeps its gradient
}

static void relu_features(const LinearFeaturesGPU *features, LinearRowsGPU rows, const float *packed,
                          const float *constants, const AttentionConfig *config, cudaStream_t stream) {
    (void)packed;
    size_t n = linear_row_count(rows) * config->M;
    project(features->outer, features->x, 1, rows, constants, config, stream);
    relu_kernel<<<linear_blocks(n), LINEAR_THREADS, 0, stream>>>(features->outer, n);
    launch_check();
}

static void relu_gradient(const LinearFeaturesGPU *d, const LinearFeaturesGPU *features, LinearRowsGPU rows,
                          const float *packed, const float *constants, const AttentionConfig *config,
                          cudaStream_t stream) {
    (void)packed;
    size_t n = linear_row_count(rows) * config->M;
    relu_gradient_kernel<<<linear_blocks(n), LINEAR_THREADS, 0, stream>>>(d->outer, features->outer, n);
    launch_check();
    project_gradient(d->x, d->outer, 1, 0, rows, constants, config, stream);
}

// ---- exp

typedef struct {
    float value;
    int index;
} Largest;

// The largest number of a row and where it first occurs, by a whole warp.
__device__ static inline Largest row_largest(const float *row, int n) {
    Largest largest = {-INFINITY, n};
    for (int i = threadIdx.x; i < n; i += LINEAR_LANES)
        if (row[i] > largest.value || largest.index == n) largest.value = row[i], largest.index = i;
    for (int offset = LINEAR_LANES / 2; offset; offset /= 2) {
        float value = __shfl_xor_sync(0xffffffffu, largest.value, offset);
        int index = __shfl_xor_sync(0xffffffffu, largest.index, offset);
        if (value > largest.value || (value == largest.value && index < largest.index))
            largest.value = value, largest.index = index;
    }
    return largest;
}

// Exponents y (rows, M) become features relative to the row's largest; the tape keeps which one that was.
__global__ static void exp_features_kernel(float *y, float *log_scale, float *tape, const float *x, int M, int HS,
                                           size_t rows) {
    size_t row = linear_row();
    if (row >= rows) return;
    float coefficient = 1 / sqrtf((float)M), squares = 0;
    Largest largest = row_largest(y + row * M, M);
    for (int c = threadIdx.x; c < HS; c += LINEAR_LANES) squares += x[row * HS + c] * x[row * HS + c];
    squares = linear_warp_sum(squares);
    for (int m = threadIdx.x; m < M; m += LINEAR_LANES)
        y[row * M + m] = coefficient * expf(y[row * M + m] - largest.value);
    if (threadIdx.x == 0) {
        log_scale[row] = largest.value - squares / (2 * sqrtf((float)HS));
        tape[row] = (float)largest.index;
    }
}

// d_outer (rows, M) becomes the gradient of the exponents; dx starts with what comes through |x|^2.
__global__ static void exp_gradient_kernel(float *dx, float *d_outer, const float *d_scale, const float *outer,
                                           const float *tape, const float *x, int M, int HS, size_t rows) {
    size_t row = linear_row();
    if (row >= rows) return;
    int largest = (int)tape[row];
    float total = 0;
    for (int m = threadIdx.x; m < M; m += LINEAR_LANES) {
        size_t at = row * M + m;
        d_outer[at] = d_outer[at] * outer[at] + (m == largest ? d_scale[row] : 0.0f);
        total += d_outer[at];
    }
    total = linear_warp_sum(total);
    for (int c = threadIdx.x; c < HS; c += LINEAR_LANES) dx[row * HS + c] = -total / sqrtf((float)HS) * x[row * HS + c];
}

static float exp_scale(const AttentionConfig *config) {
    return 1 / sqrtf(sqrtf((float)config->HS));
}

static void exp_features(const LinearFeaturesGPU *features, LinearRowsGPU rows, const float *packed,
                         const float *constants, const AttentionConfig *config, cudaStream_t stream) {
    (void)packed;
    size_t n = linear_row_count(rows);
    project(features->outer, features->x, exp_scale(config), rows, constants, config, stream);
    exp_features_kernel<<<linear_row_blocks(n), linear_row_threads(), 0, stream>>>(
        features->outer, features->log_scale, features->tape, features->x, config->M, config->HS, n);
    launch_check();
}

static void exp_gradient(const LinearFeaturesGPU *d, const LinearFeaturesGPU *features, LinearRowsGPU rows,
                         const float *packed, const float *constants, const AttentionConfig *config,
                         cudaStream_t stream) {
    (void)packed;
    size_t n = linear_row_count(rows);
    exp_gradient_kernel<<<linear_row_blocks(n), linear_row_threads(), 0, stream>>>(
        d->x, d->outer, d->log_scale, features->outer, features->tape, features->x, config->M, config->HS, n);
    launch_check();
    project_gradient(d->x, d->outer, exp_scale(config), 1, rows, constants, config, stream);
}

static LinearMapGPU favor_map(const AttentionConfig *config) {
    LinearMapGPU map = {};
    map.outer = config->M;
    map.features = relu_features;
    map.gradient = relu_gradient;
    if (config->features == FEATURES_EXP) {
        map.inner = map.fixed_inner = map.log_scaled = map.tape = 1;
        map.features = exp_features;
        map.gradient = exp_gradient;
    }
    return map;
}
LINEAR_GPU_ATTENTION(favor, favor_map);
