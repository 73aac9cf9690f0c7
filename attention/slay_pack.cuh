// SLAY's constants as its map wants them, and the gradients of those that are trained.
#ifndef ATTENTION_SLAY_PACK_CUH
#define ATTENTION_SLAY_PACK_CUH

#include "slay_map.cuh"

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

// ---- exponents (NH, RM)

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

// See slay_features.c.
static float slay_flat_coefficient(const AttentionConfig *config) {
    float d = (float)config->HS, scale = config->scale_features ? d * (d + 2) : 1;
    return sqrtf(scale / ((float)config->M * (2 + config->eps)));
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

static size_t slay_packed_size(const AttentionConfig *config) {
    SlayShape shape = slay_shape(config);
    return slay_packed(NULL, &shape, config).size;
}

static void slay_pack(float *packed, const float *all_constants, const float *parameters, const AttentionConfig *config,
                      cudaStream_t stream) {
    const int threads = 256;
    SlayShape shape = slay_shape(config);
    SlayPacked to = slay_packed(packed, &shape, config);
    SlayConstants constants = slay_constants_at(all_constants, parameters, config);
    pack_projections(packed, SlayOmega{constants, shape}, shape.projections, config, stream);
    pack_exponents_kernel<<<(shape.NH * shape.RM + threads - 1) / threads, threads, 0, stream>>>(
        (SlayExponent *)to.exponents, constants, shape, slay_flat_coefficient(config));
    launch_check();
    if (shape.poly != POLY_NYSTROM) return;
    int pieces = projection_pieces(shape.P), lanes = 2 * 2 * pieces * pieces * 32;
    pack_whitening_kernel<<<(lanes + threads - 1) / threads, threads, 0, stream>>>(
        (float4 *)to.whitening, constants.whitening, shape.P, pieces);
    launch_check();
}

#endif
