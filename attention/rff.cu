// rff on the GPU: random Fourier features phi(x) = sqrt(2/M) cos(<omega_m, x> + b_m). See rff.c.
#include "linear_gpu.h"

// omega (HS, M) of the first head at hand; each head has its own.
static LinearOperand omega_of(const float *constants, LinearRowsGPU rows, const AttentionConfig *config,
                              int transposed) {
    size_t size = (size_t)config->HS * config->M;
    LinearOperand omega = {constants + rows.first_head * size, config->M, size, transposed};
    return omega;
}

// On entry the tape holds <omega_m, x>, then the slope, -sqrt(2/M) sin. bias (heads, M).
__global__ static void rff_features_kernel(float *outer, float *tape, const float *bias, int M, size_t head_rows,
                                           size_t rows) {
    size_t row = linear_row();
    if (row >= rows) return;
    float coefficient = sqrtf(2 / (float)M);
    for (int m = threadIdx.x; m < M; m += LINEAR_LANES) {
        float sine, cosine;
        sincosf(tape[row * M + m] + bias[row / head_rows * M + m], &sine, &cosine);
        outer[row * M + m] = coefficient * cosine;
        tape[row * M + m] = -coefficient * sine;
    }
}

__global__ static void rff_slope_kernel(float *d_outer, const float *slope, size_t n) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) d_outer[i] *= slope[i];
}

static void rff_features(const LinearFeaturesGPU *features, LinearRowsGPU rows, const float *packed,
                         const float *constants, const AttentionConfig *config, cudaStream_t stream) {
    (void)packed;
    int M = config->M, HS = config->HS;
    const float *bias = constants + (size_t)config->NH * HS * M + (size_t)rows.first_head * M;
    size_t n = linear_row_count(rows);
    linear_gpu_project(features->tape, M, features->x, HS, omega_of(constants, rows, config, 0), M, HS, rows, 1, 0,
                       stream);
    rff_features_kernel<<<linear_row_blocks(n), linear_row_threads(), 0, stream>>>(
        features->outer, features->tape, bias, M, (size_t)rows.sequences * rows.length, n);
    launch_check();
}

static void rff_gradient(const LinearFeaturesGPU *d, const LinearFeaturesGPU *features, LinearRowsGPU rows,
                         const float *packed, const float *constants, const AttentionConfig *config,
                         cudaStream_t stream) {
    (void)packed;
    size_t n = linear_row_count(rows) * config->M;
    rff_slope_kernel<<<linear_blocks(n), LINEAR_THREADS, 0, stream>>>(d->outer, features->tape, n);
    launch_check();
    linear_gpu_project(d->x, config->HS, d->outer, config->M, omega_of(constants, rows, config, 1), config->HS,
                       config->M, rows, 1, 0, stream);
}

static LinearMapGPU rff_map(const AttentionConfig *config) {
    LinearMapGPU map = {};
    map.outer = map.tape = config->M;
    map.is_signed = 1;
    map.features = rff_features;
    map.gradient = rff_gradient;
    return map;
}
LINEAR_GPU_ATTENTION(rff, rff_map);
