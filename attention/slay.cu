// slay on the GPU: the features of slay_features.c. Vectors are brought to unit length, projected once by everything
// the map needs, and what follows is pointwise in the projections.
#include "linear_gpu.h"
#include "pairs_gpu.h"

#include <math.h>

extern "C" {
#include "slay_features.h"
}

#define EXPONENT_MAX 20.0f  // exponents are clipped to +-20, without a gradient beyond
#define NORM_MIN     1e-12f // shorter vectors are divided by this, and get no gradient

// ---- the shape of a map: which projections, how much tape

typedef struct {
    int poly, hadamard;
    int HS, M, RM, P, NH;
    int projections; // rows of the projection matrix: R*M random ones, then the polynomial's
    int spare;       // columns of tape that the polynomial needs for itself
    float factor;    // of the polynomial features
} Shape;

static Shape shape_of(const AttentionConfig *config) {
    int poly = slay_polynomial(config), P = config->P, RM = config->R * config->M;
    float d = (float)config->HS, scale = 1; // what the polynomial's scores lack to be of size x^2
    Shape shape = {poly, config->fusion == FUSION_HADAMARD, config->HS, config->M, RM, P, config->NH, RM, 0, 0};
    if (poly == POLY_ANCHOR) scale = sqrtf(d * (d + 2));
    if (poly == POLY_MACLAURIN) scale = d;
    if (poly == POLY_NYSTROM || poly == POLY_TENSORSKETCH) scale = sqrtf((float)P), shape.spare = P;
    if (poly == POLY_ANCHOR || poly == POLY_NYSTROM) shape.projections += P;
    if (poly == POLY_MACLAURIN || poly == POLY_TENSORSKETCH) shape.projections += 2 * P;
    shape.factor = (config->scale_features ? scale : 1) / sqrtf((float)P);
    return shape;
}

// Whether there are polynomial features; the exact polynomial is formed pair by pair, from the unit vectors.
static int has_polynomial(const Shape *shape) {
    return shape->poly != POLY_NONE && shape->poly != POLY_EXACT;
}

typedef struct {         // the tape
    float *inverse_norm; // (rows) 1 / |x|, or 0 where there is no gradient
    float *projected;    // (rows, projections)
    float *spare;        // (rows, spare)
} Tape;

static Tape tape_at(float *base, const Shape *shape, size_t rows) {
    Tape tape = {base, base + rows, base + rows * (1 + shape->projections)};
    return tape;
}

// ---- packing: each head's projection (projections, HS)

// A sketch is a projection too: row h(c) has sign(c) in column c. Columns from a damaged file are not trusted.
__device__ static inline float sketch_at(const float *hash, const float *sign, int row, int c, int P) {
    int column = hash[c] >= 0 && hash[c] < P ? (int)hash[c] : 0;
    return column == row ? sign[c] : 0.0f;
}

__device__ static inline float polynomial_projection(const SlayConstants &constants, const Shape &shape, int p, int c) {
    int second = p >= shape.P, row = second ? p - shape.P : p;
    if (shape.poly == POLY_MACLAURIN)
        return (second ? constants.factor2 : constants.factor1)[(size_t)row * shape.HS + c];
    if (shape.poly == POLY_TENSORSKETCH)
        return sketch_at(second ? constants.hash2 : constants.hash1, second ? constants.sign2 : constants.sign1, row, c,
                         shape.P);
    return constants.anchors[(size_t)row * shape.HS + c];
}

__global__ static void pack_kernel(float *packed, SlayConstants constants, Shape shape, int first_head, size_t rows) {
    size_t row = linear_row();
    if (row >= rows) return;
    int head = first_head + (int)(row / shape.projections), e = (int)(row % shape.projections);
    int r = e / shape.M, m = e % shape.M;
    const float *omega = constants.omega + ((size_t)r * shape.NH + head) * shape.HS * shape.M;
    for (int c = threadIdx.x; c < shape.HS; c += LINEAR_LANES)
        packed[row * shape.HS + c] = e < shape.RM ? sqrtf(2 * constants.nodes[r]) * omega[(size_t)c * shape.M + m]
                                                  : polynomial_projection(constants, shape, e - shape.RM, c);
}

static void slay_pack(float *packed, const float *constants, int first_head, int heads, const AttentionConfig *config,
                      cudaStream_t stream) {
    Shape shape = shape_of(config);
    size_t rows = (size_t)heads * shape.projections;
    pack_kernel<<<linear_row_blocks(rows), linear_row_threads(), 0, stream>>>(
        packed, slay_constants_at(constants, NULL, config), shape, first_head, rows);
    launch_check();
}

// ---- unit vectors

// x becomes u = x / |x|
__global__ static void normalise_kernel(float *x, float *inverse_norm, int HS, size_t rows) {
    size_t row = linear_row();
    if (row >= rows) return;
    float squares = 0;
    for (int c = threadIdx.x; c < HS; c += LINEAR_LANES) squares += x[row * HS + c] * x[row * HS + c];
    float norm = sqrtf(linear_warp_sum(squares)), inverse = 1 / (norm < NORM_MIN ? NORM_MIN : norm);
    for (int c = threadIdx.x; c < HS; c += LINEAR_LANES) x[row * HS + c] *= inverse;
    if (threadIdx.x == 0) inverse_norm[row] = norm < NORM_MIN ? 0.0f : inverse;
}

// du becomes dx = (du - u <u, du>) / |x|
__global__ static void normalise_gradient_kernel(float *du, const float *unit, const float *inverse_norm, int HS,
                                                 size_t rows) {
    size_t row = linear_row();
    if (row >= rows) return;
    float along = 0;
    for (int c = threadIdx.x; c < HS; c += LINEAR_LANES) along += unit[row * HS + c] * du[row * HS + c];
    along = linear_warp_sum(along);
    for (int c = threadIdx.x; c < HS; c += LINEAR_LANES)
        du[row * HS + c] = (du[row * HS + c] - unit[row * HS + c] * along) * inverse_norm[row];
}

// ---- outer: exponential features, times the squared projection for the hadamard fusion

// sqrt(w_r / M) exp(y - s_r)
__device__ static inline float exponential(float y, float shift, float weight, int M) {
    float exponent = y - shift;
    exponent = exponent > EXPONENT_MAX ? EXPONENT_MAX : exponent < -EXPONENT_MAX ? -EXPONENT_MAX : exponent;
    return sqrtf(weight / (float)M) * expf(exponent);
}

// What turns a squared projection, which has sqrt(2 s_r) in it, into y^2 / sqrt(M)
__device__ static inline float square_factor(float shift, int M) {
    return 1 / (2 * shift * sqrtf((float)M));
}

__global__ static void exponential_kernel(float *outer, const float *projected, SlayConstants constants, Shape shape,
                                          size_t rows) {
    size_t row = linear_row();
    if (row >= rows) return;
    for (int e = threadIdx.x; e < shape.RM; e += LINEAR_LANES) {
        float shift = constants.nodes[e / shape.M], y = projected[row * shape.projections + e];
        float feature = exponential(y, shift, constants.weights[e / shape.M], shape.M);
        outer[row * shape.RM + e] = shape.hadamard ? feature * square_factor(shift, shape.M) * y * y : feature;
    }
}

// The projections' gradients take the place of the projections.
__global__ static void exponential_gradient_kernel(float *projected, const float *d_outer, const float *outer,
                                                   SlayConstants constants, Shape shape, size_t rows) {
    size_t row = linear_row();
    if (row >= rows) return;
    for (int e = threadIdx.x; e < shape.RM; e += LINEAR_LANES) {
        float shift = constants.nodes[e / shape.M], *y = projected + row * shape.projections + e;
        float slope = fabsf(*y - shift) <= EXPONENT_MAX ? outer[row * shape.RM + e] : 0.0f;
        if (shape.hadamard)
            slope += exponential(*y, shift, constants.weights[e / shape.M], shape.M) * square_factor(shift, shape.M) *
                     2 * *y;
        *y = d_outer[row * shape.RM + e] * slope;
    }
}

// ---- inner: polynomial features from their projections y (rows, P or 2P)

// The sum over m of a[m] b[(n - m) mod P]
__device__ static inline float convolution(const float *a, const float *b, int n, int P) {
    float sum = 0;
    for (int m = 0; m < P; m++) sum += a[m] * b[n >= m ? n - m : n - m + P];
    return sum;
}

// The sum over n of g[n] b[(n - m) mod P]
__device__ static inline float correlation(const float *g, const float *b, int m, int P) {
    float sum = 0;
    for (int n = 0; n < P; n++) sum += g[n] * b[n >= m ? n - m : n - m + P];
    return sum;
}

// For nystrom these are the features before whitening.
__global__ static void polynomial_kernel(float *inner, const float *projected, Shape shape, size_t rows) {
    size_t row = linear_row();
    if (row >= rows) return;
    const float *y = projected + row * shape.projections + shape.RM, *y2 = y + shape.P;
    for (int p = threadIdx.x; p < shape.P; p += LINEAR_LANES) {
        float product = y[p] * (shape.poly == POLY_MACLAURIN ? y2[p] : y[p]);
        if (shape.poly == POLY_TENSORSKETCH) product = convolution(y, y2, p, shape.P);
        inner[row * shape.P + p] = shape.factor * product;
    }
}

// Squares and products: the projections' gradients take the place of the projections.
__global__ static void polynomial_gradient_kernel(float *projected, const float *d_inner, Shape shape, size_t rows) {
    size_t row = linear_row();
    if (row >= rows) return;
    float *y = projected + row * shape.projections + shape.RM, *y2 = y + shape.P;
    for (int p = threadIdx.x; p < shape.P; p += LINEAR_LANES) {
        float d = shape.factor * d_inner[row * shape.P + p], first = y[p];
        y[p] = shape.poly == POLY_MACLAURIN ? d * y2[p] : 2 * d * first;
        if (shape.poly == POLY_MACLAURIN) y2[p] = d * first;
    }
}

// The same for sketches. Each of a warp's three steps overwrites what the step before has read.
__global__ static void sketch_gradient_kernel(float *projected, float *spare, const float *d_inner, Shape shape,
                                              size_t rows) {
    size_t row = linear_row();
    if (row >= rows) return;
    int P = shape.P;
    float *y = projected + row * shape.projections + shape.RM, *y2 = y + P;
    const float *d = d_inner + row * P;
    spare += row * P;
    for (int p = threadIdx.x; p < P; p += LINEAR_LANES) spare[p] = shape.factor * correlation(d, y2, p, P);
    __syncwarp();
    for (int p = threadIdx.x; p < P; p += LINEAR_LANES) y2[p] = shape.factor * correlation(d, y, p, P);
    __syncwarp();
    for (int p = threadIdx.x; p < P; p += LINEAR_LANES) y[p] = spare[p];
}

// out (rows, P) = in times the whitening matrix or its transpose
static void whiten(float *out, const float *in, const float *whitening, int transposed, int P, LinearRowsGPU rows,
                   cudaStream_t stream) {
    LinearOperand matrix = {whitening, P, 0, transposed};
    linear_gpu_project(out, P, in, P, matrix, P, P, rows, 1, 0, stream);
}

static void polynomial_features(const LinearFeaturesGPU *features, Tape tape, const float *whitening,
                                const Shape *shape, LinearRowsGPU rows, cudaStream_t stream) {
    size_t n = linear_row_count(rows);
    if (!has_polynomial(shape)) return;
    float *inner = shape->poly == POLY_NYSTROM ? tape.spare : features->inner;
    polynomial_kernel<<<linear_row_blocks(n), linear_row_threads(), 0, stream>>>(inner, tape.projected, *shape, n);
    launch_check();
    if (shape->poly == POLY_NYSTROM) whiten(features->inner, tape.spare, whitening, 0, shape->P, rows, stream);
}

static void polynomial_gradient(const LinearFeaturesGPU *d, Tape tape, const float *whitening, const Shape *shape,
                                LinearRowsGPU rows, cudaStream_t stream) {
    size_t n = linear_row_count(rows);
    dim3 blocks = linear_row_blocks(n), threads = linear_row_threads();
    if (!has_polynomial(shape)) return;
    if (shape->poly == POLY_TENSORSKETCH) {
        sketch_gradient_kernel<<<blocks, threads, 0, stream>>>(tape.projected, tape.spare, d->inner, *shape, n);
    } else {
        if (shape->poly == POLY_NYSTROM) whiten(tape.spare, d->inner, whitening, 1, shape->P, rows, stream);
        polynomial_gradient_kernel<<<blocks, threads, 0, stream>>>(
            tape.projected, shape->poly == POLY_NYSTROM ? tape.spare : d->inner, *shape, n);
    }
    launch_check();
}

// ---- the map

static LinearOperand projection_of(const float *packed, const Shape *shape, int transposed) {
    LinearOperand projection = {packed, shape->HS, (size_t)shape->projections * shape->HS, transposed};
    return projection;
}

static void slay_features(const LinearFeaturesGPU *features, LinearRowsGPU rows, const float *packed,
                          const float *all_constants, const AttentionConfig *config, cudaStream_t stream) {
    Shape shape = shape_of(config);
    SlayConstants constants = slay_constants_at(all_constants, NULL, config);
    size_t n = linear_row_count(rows);
    dim3 blocks = linear_row_blocks(n), threads = linear_row_threads();
    Tape tape = tape_at(features->tape, &shape, n);
    normalise_kernel<<<blocks, threads, 0, stream>>>(features->x, tape.inverse_norm, shape.HS, n);
    launch_check();
    linear_gpu_project(tape.projected, shape.projections, features->x, shape.HS, projection_of(packed, &shape, 1),
                       shape.projections, shape.HS, rows, 1, 0, stream);
    exponential_kernel<<<blocks, threads, 0, stream>>>(features->outer, tape.projected, constants, shape, n);
    launch_check();
    polynomial_features(features, tape, constants.whitening, &shape, rows, stream);
}

static void slay_gradient(const LinearFeaturesGPU *d, const LinearFeaturesGPU *features, LinearRowsGPU rows,
                          const float *packed, const float *all_constants, const AttentionConfig *config,
                          cudaStream_t stream) {
    Shape shape = shape_of(config);
    SlayConstants constants = slay_constants_at(all_constants, NULL, config);
    size_t n = linear_row_count(rows);
    dim3 blocks = linear_row_blocks(n), threads = linear_row_threads();
    Tape tape = tape_at(features->tape, &shape, n);
    int is_exact = shape.poly == POLY_EXACT; // then d->x has what comes from the unit vectors' own products
    exponential_gradient_kernel<<<blocks, threads, 0, stream>>>(tape.projected, d->outer, features->outer, constants,
                                                                shape, n);
    launch_check();
    polynomial_gradient(d, tape, constants.whitening, &shape, rows, stream);
    linear_gpu_project(d->x, shape.HS, tape.projected, shape.projections, projection_of(packed, &shape, 0), shape.HS,
                       shape.projections, rows, 1, is_exact, stream);
    normalise_gradient_kernel<<<blocks, threads, 0, stream>>>(d->x, features->x, tape.inverse_norm, shape.HS, n);
    launch_check();
}

static LinearMapGPU slay_gpu_map(const AttentionConfig *config) {
    Shape shape = shape_of(config);
    int poly = shape.poly;
    LinearMapGPU map = {};
    map.outer = shape.RM;
    map.inner = has_polynomial(&shape) ? shape.P : 0;
    map.tape = 1 + shape.projections + shape.spare;
    map.is_signed = poly == POLY_NYSTROM || poly == POLY_MACLAURIN || poly == POLY_TENSORSKETCH;
    map.packed_size = (size_t)shape.projections * shape.HS;
    map.pack = slay_pack;
    map.features = slay_features;
    map.gradient = slay_gradient;
    return map;
}

#define SLAY_CORE(function) (slay_polynomial(config) == POLY_EXACT ? pairs_gpu_##function : linear_gpu_##function)
MAPPED_GPU_ATTENTION(slay, slay_gpu_map, SLAY_CORE);
