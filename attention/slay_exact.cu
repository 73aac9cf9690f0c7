// slay with the exact polynomial on the GPU: the random features of unit vectors, in device memory, for the quadratic
// core of pairs.cu.
#include "pairs.cuh"

// projected (rows, RM) = unit projection^T, or d_unit (rows, HS) += projected projection. In full float precision:
// exponents need their digits.
static void project(float *to, const float *from, int is_gradient, PairRows rows, const float *packed,
                    const SlayShape *shape, cudaStream_t stream) {
    size_t head_rows = (size_t)rows.sequences * rows.T, size = (size_t)shape->RM * shape->HS;
    int width = is_gradient ? shape->HS : shape->RM, depth = is_gradient ? shape->RM : shape->HS;
    PairOperand left = {from, depth, head_rows * depth, 0};
    PairOperand projection = {packed + rows.first_head * size, shape->HS, size, !is_gradient};
    PairProduct product = {(int)head_rows, width, depth, rows.heads};
    pairs_multiply(to, width, head_rows * width, left, projection, product, is_gradient, 0, stream);
}

static const SlayExponent *exponents_of(PairRows rows, const float *packed, const SlayShape *shape,
                                        const AttentionConfig *config) {
    return slay_packed(packed, shape, config).exponents + (size_t)rows.first_head * shape->RM;
}

// ---- unit vectors

// x becomes u = x / |x|
__global__ static void normalise_kernel(float *x, float *inverse_norm, int HS, size_t rows) {
    size_t row = pair_row();
    if (row >= rows) return;
    float squares = 0;
    for (int c = threadIdx.x; c < HS; c += PAIR_LANES) squares += x[row * HS + c] * x[row * HS + c];
    float norm = sqrtf(pair_warp_sum(squares)), inverse = 1 / (norm < NORM_MIN ? NORM_MIN : norm);
    for (int c = threadIdx.x; c < HS; c += PAIR_LANES) x[row * HS + c] *= inverse;
    if (threadIdx.x == 0) inverse_norm[row] = norm < NORM_MIN ? 0.0f : inverse;
}

// du becomes dx = (du - u <u, du>) / |x|
__global__ static void normalise_gradient_kernel(float *du, const float *unit, const float *inverse_norm, int HS,
                                                 size_t rows) {
    size_t row = pair_row();
    if (row >= rows) return;
    float along = 0;
    for (int c = threadIdx.x; c < HS; c += PAIR_LANES) along += unit[row * HS + c] * du[row * HS + c];
    along = pair_warp_sum(along);
    for (int c = threadIdx.x; c < HS; c += PAIR_LANES)
        du[row * HS + c] = (du[row * HS + c] - unit[row * HS + c] * along) * inverse_norm[row];
}

// ---- exponential features; exponents (heads, RM) of heads with head_rows rows each

__global__ static void exponential_kernel(float *outer, const float *projected, const SlayExponent *exponents, int RM,
                                          size_t head_rows, size_t rows) {
    size_t row = pair_row();
    if (row >= rows) return;
    for (int e = threadIdx.x; e < RM; e += PAIR_LANES) {
        SlayExponent at = exponents[row / head_rows * RM + e];
        outer[row * RM + e] = at.coefficient * expf(slay_clipped(projected[row * RM + e] - at.shift));
    }
}

// The projections' gradients take the place of the projections.
__global__ static void exponential_gradient_kernel(float *projected, const float *d_outer, const float *outer,
                                                   const SlayExponent *exponents, int RM, size_t head_rows,
                                                   size_t rows) {
    size_t row = pair_row();
    if (row >= rows) return;
    for (int e = threadIdx.x; e < RM; e += PAIR_LANES) {
        size_t i = row * RM + e;
        float exponent = projected[i] - exponents[row / head_rows * RM + e].shift;
        projected[i] = d_outer[i] * (fabsf(exponent) <= EXPONENT_MAX ? outer[i] : 0.0f);
    }
}

// ---- the map

void slay_exact_features(PairFeatures features, PairRows rows, const float *packed, const AttentionConfig *config,
                         cudaStream_t stream) {
    SlayShape shape = slay_shape(config);
    size_t n = row_count(rows);
    dim3 blocks = pair_row_blocks(n), threads = pair_row_threads();
    normalise_kernel<<<blocks, threads, 0, stream>>>(features.unit, features.inverse_norm, shape.HS, n);
    launch_check();
    project(features.projected, features.unit, 0, rows, packed, &shape, stream);
    exponential_kernel<<<blocks, threads, 0, stream>>>(features.outer, features.projected,
                                                       exponents_of(rows, packed, &shape, config), shape.RM,
                                                       (size_t)rows.sequences * rows.T, n);
    launch_check();
}

void slay_exact_gradient(PairFeatures d, PairFeatures features, PairRows rows, const float *packed,
                         const AttentionConfig *config, cudaStream_t stream) {
    SlayShape shape = slay_shape(config);
    size_t n = row_count(rows);
    dim3 blocks = pair_row_blocks(n), threads = pair_row_threads();
    exponential_gradient_kernel<<<blocks, threads, 0, stream>>>(features.projected, d.outer, features.outer,
                                                                exponents_of(rows, packed, &shape, config), shape.RM,
                                                                (size_t)rows.sequences * rows.T, n);
    launch_check();
    project(d.unit, features.projected, 1, rows, packed, &shape, stream);
    normalise_gradient_kernel<<<blocks, threads, 0, stream>>>(d.unit, features.unit, features.inverse_norm, shape.HS,
                                                              n);
    launch_check();
}

void slay_exact_add_gradient(float *dparameters, float *d_projections, PairFeatures features, PairRows rows,
                             const float *packed, const AttentionConfig *config, cudaStream_t stream) {
    SlayShape shape = slay_shape(config);
    size_t head_rows = (size_t)rows.sequences * rows.T, size = (size_t)shape.RM * shape.HS;
    PairOperand left = {features.projected, shape.RM, head_rows * shape.RM, 1};
    PairOperand right = {features.unit, shape.HS, head_rows * shape.HS, 0};
    PairProduct product = {shape.RM, shape.HS, (int)head_rows, rows.heads};
    pairs_multiply(d_projections, shape.HS, size, left, right, product, 0, 0, stream);
    SlayProjectionGradients d = {d_projections, size, shape.HS, rows.first_head, rows.heads};
    slay_add_omega_gradient(dparameters, d, packed, config, stream);
}
