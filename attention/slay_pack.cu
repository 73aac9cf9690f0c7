#include "slay_gpu.h"

enum { THREADS = 256 };

static unsigned blocks_of(size_t numbers) {
    return (unsigned)((numbers + THREADS - 1) / THREADS);
}

// ---- projections

// A sketch is a projection too: row h(c) has sign(c) in column c. Columns from a damaged file are not trusted.
__device__ static inline float sketch_at(const float *hash, const float *sign, int row, int c, int P) {
    int column = hash[c] >= 0 && hash[c] < P ? (int)hash[c] : 0;
    return column == row ? sign[c] : 0.0f;
}

struct SlayOmega {
    SlayConstants constants;
    SlayShape shape;

    __device__ float random(int head, int e, int c) const {
        int r = e / shape.M, m = e % shape.M;
        float s = shape.fusion == FUSION_FLAT ? constants.scales[head * shape.M + m] : constants.nodes[r];
        return sqrtf(2 * s) * constants.omega[(((size_t)r * shape.NH + head) * shape.HS + c) * shape.M + m];
    }
    __device__ float polynomial(int i, int c) const {
        if (shape.poly == POLY_MACLAURIN)
            return (i % 2 ? constants.factor2 : constants.factor1)[(size_t)(i / 2) * shape.HS + c];
        if (shape.poly == POLY_TENSORSKETCH)
            return i < shape.P ? sketch_at(constants.hash1, constants.sign1, i, c, shape.P)
                               : sketch_at(constants.hash2, constants.sign2, i - shape.P, c, shape.P);
        return constants.anchors[(size_t)i * shape.HS + c];
    }
    __device__ float operator()(int head, int e, int c) const {
        if (shape.fusion == FUSION_FLAT)
            return e % 2 ? constants.anchors[((size_t)head * shape.M + e / 2) * shape.HS + c] : random(head, e / 2, c);
        if (e < shape.RM) return random(head, e, c);
        return e < shape.polynomial ? 0.0f : polynomial(e - shape.polynomial, c);
    }
};

__global__ static void pack_plainly_kernel(float *packed, SlayOmega omega, size_t count) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    int HS = omega.shape.HS, RM = omega.shape.RM;
    if (i < count) packed[i] = omega((int)(i / HS / RM), (int)(i / HS % RM), (int)(i % HS));
}

// ---- exponents (NH, RM)

// See slay_features.c.
static float flat_coefficient_of(const AttentionConfig *config) {
    float d = (float)config->HS, scale = config->scale_features ? d * (d + 2) : 1;
    return sqrtf(scale / ((float)config->M * (2 + config->eps)));
}

__global__ static void pack_exponents_kernel(SlayExponent *exponents, SlayConstants constants, SlayShape shape,
                                             float flat_coefficient) {
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x), e = i % shape.RM;
    if (i >= shape.NH * shape.RM) return;
    if (shape.fusion == FUSION_FLAT) {
        exponents[i] = {constants.scales[i], flat_coefficient};
        return;
    }
    float s = constants.nodes[e / shape.M], coefficient = sqrtf(constants.weights[e / shape.M] / (float)shape.M);
    // what makes y^2 / sqrt(M) of the square of a projection that has sqrt(2 s) in it
    if (shape.fusion == FUSION_HADAMARD) coefficient *= 1 / (2 * s * sqrtf((float)shape.M));
    exponents[i] = {s, coefficient};
}

// ---- whitening W (P, P): right operands for rows times its transpose, then for rows times W itself; fragments
// [octet of columns][piece of 16 rows][lane], float in both precisions

__global__ static void pack_whitening_kernel(float4 *packed, const float *W, int P, int pieces) {
    int fragments = 2 * pieces * pieces, i = (int)(blockIdx.x * blockDim.x + threadIdx.x), lane = i % 32;
    int is_second = i / 32 / fragments, octet = i / 32 % fragments / pieces, piece = i / 32 % pieces;
    if (is_second > 1) return;
    float x[4];
    for (int k = 0; k < 4; k++) {
        int row = piece * 16 + 2 * (lane % 4) + k % 2 + k / 2 * 8, column = octet * 8 + lane / 4;
        size_t at = is_second ? (size_t)row * P + column : (size_t)column * P + row;
        x[k] = row < P && column < P ? W[at] : 0.0f;
    }
    packed[i] = make_float4(x[0], x[1], x[2], x[3]);
}

// ---- all of it

size_t slay_packed_size(const AttentionConfig *config) {
    SlayShape shape = slay_shape(config);
    return slay_packed(NULL, &shape, config).size;
}

void slay_pack(float *packed, const float *all_constants, const float *parameters, const AttentionConfig *config,
               cudaStream_t stream) {
    SlayShape shape = slay_shape(config);
    SlayPacked to = slay_packed(packed, &shape, config);
    SlayConstants constants = slay_constants_at(all_constants, parameters, config);
    SlayOmega omega = {constants, shape};
    size_t exponents = (size_t)shape.NH * shape.RM, plain = exponents * shape.HS;
    pack_exponents_kernel<<<blocks_of(exponents), THREADS, 0, stream>>>((SlayExponent *)to.exponents, constants, shape,
                                                                        flat_coefficient_of(config));
    launch_check();
    if (shape.poly == POLY_EXACT) {
        pack_plainly_kernel<<<blocks_of(plain), THREADS, 0, stream>>>(packed, omega, plain);
        launch_check();
        return;
    }
    pack_projections(packed, omega, shape.projections, config, stream);
    if (shape.poly != POLY_NYSTROM) return;
    int pieces = projection_pieces(shape.P);
    size_t lanes = (size_t)2 * 2 * pieces * pieces * 32;
    pack_whitening_kernel<<<blocks_of(lanes), THREADS, 0, stream>>>((float4 *)to.whitening, constants.whitening,
                                                                    shape.P, pieces);
    launch_check();
}

// ---- gradients of trained projections

// d_omega (R, NH, HS, M) += d times what omega was multiplied by
__global__ static void add_omega_gradient_kernel(float *d_omega, SlayProjectionGradients d,
                                                 const SlayExponent *exponents, SlayShape shape, size_t count) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    int c = (int)(i % shape.HS), e = (int)(i / shape.HS % shape.RM), local = (int)(i / shape.HS / shape.RM);
    int head = d.first_head + local, projection = shape.fusion == FUSION_FLAT ? 2 * e : e;
    size_t to = (((size_t)(e / shape.M) * shape.NH + head) * shape.HS + c) * shape.M + e % shape.M;
    d_omega[to] += sqrtf(2 * exponents[(size_t)head * shape.RM + e].shift) *
                   d.at[local * d.step + (size_t)projection * d.width + c];
}

// d_anchors (P, HS) += the sum over the heads; each head of the flat fusion has its own, (NH, M, HS)
__global__ static void add_anchor_gradient_kernel(float *d_anchors, SlayProjectionGradients d, SlayShape shape,
                                                  size_t count) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    int c = (int)(i % shape.HS), row = (int)(i / shape.HS), is_flat = shape.fusion == FUSION_FLAT;
    int projection = is_flat ? 2 * (row % shape.M) + 1 : shape.polynomial + row;
    float sum = 0;
    for (int head = is_flat ? row / shape.M : 0; head < (is_flat ? row / shape.M + 1 : d.heads); head++)
        sum += d.at[head * d.step + (size_t)projection * d.width + c];
    d_anchors[i] += sum;
}

void slay_add_omega_gradient(float *dparameters, SlayProjectionGradients d, const float *packed,
                             const AttentionConfig *config, cudaStream_t stream) {
    SlayShape shape = slay_shape(config);
    float *d_omega = (float *)slay_constants_at(NULL, dparameters, config).omega;
    size_t count = (size_t)d.heads * shape.RM * shape.HS;
    if (!d_omega) return;
    add_omega_gradient_kernel<<<blocks_of(count), THREADS, 0, stream>>>(
        d_omega, d, slay_packed(packed, &shape, config).exponents, shape, count);
    launch_check();
}

void slay_add_anchor_gradient(float *dparameters, SlayProjectionGradients d, const AttentionConfig *config,
                              cudaStream_t stream) {
    SlayShape shape = slay_shape(config);
    float *d_anchors = (float *)slay_constants_at(NULL, dparameters, config).anchors;
    size_t count = (size_t)(shape.fusion == FUSION_FLAT ? shape.NH * shape.M : shape.P) * shape.HS;
    if (!d_anchors) return;
    add_anchor_gradient_kernel<<<blocks_of(count), THREADS, 0, stream>>>(d_anchors, d, shape, count);
    launch_check();
}
