// What SLAY's code on the GPU shares: the shape of its map and its constants as the kernels want them (slay_pack.cu).
#ifndef ATTENTION_SLAY_GPU_H
#define ATTENTION_SLAY_GPU_H

#include "linear_map.cuh"

extern "C" {
#include "slay_features.h"
}

#define EXPONENT_MAX 20.0f  // exponents are clipped to +-20, without a gradient beyond
#define NORM_MIN     1e-12f // shorter vectors are divided by this, and get no gradient

// ---- the shape of a map, and its packed constants

typedef struct {
    int poly, fusion, trains;
    int NH, HS, M, RM, P;
    int polynomial;  // the polynomial's first projection, an even number; those before it are random
    int projections; // of which two neighbours belong together in the flat fusion (omega, anchor) and for maclaurin
    int mixed;       // the polynomial's projections that are mixed with each other: they go through shared memory
    float factor;    // of the polynomial features
} SlayShape;

static inline SlayShape slay_shape(const AttentionConfig *config) {
    int poly = slay_polynomial(config), P = config->P, RM = config->R * config->M;
    float d = (float)config->HS, scale = 1; // what the polynomial's scores lack to be of size x^2
    SlayShape shape = {};
    shape.poly = poly, shape.fusion = config->fusion, shape.trains = config->learn != LEARN_NONE;
    shape.NH = config->NH, shape.HS = config->HS, shape.M = config->M, shape.RM = RM, shape.P = P;
    shape.polynomial = (RM + 1) / 2 * 2;
    shape.projections = config->fusion == FUSION_FLAT ? 2 * RM : RM;
    if (poly == POLY_ANCHOR) scale = sqrtf(d * (d + 2));
    if (poly == POLY_MACLAURIN) scale = d;
    if (poly == POLY_NYSTROM || poly == POLY_TENSORSKETCH) scale = sqrtf((float)P);
    if (poly == POLY_NYSTROM) shape.mixed = P;
    if (poly == POLY_TENSORSKETCH) shape.mixed = 2 * P;
    if (poly == POLY_ANCHOR || poly == POLY_NYSTROM) shape.projections = shape.polynomial + P;
    if (poly == POLY_MACLAURIN || poly == POLY_TENSORSKETCH) shape.projections = shape.polynomial + 2 * P;
    shape.factor = (config->scale_features ? scale : 1) / sqrtf((float)P);
    return shape;
}

typedef struct { // of a random projection y: the feature coefficient exp(y - shift), times a square where there is one
    float shift, coefficient;
} SlayExponent;

typedef struct {                   // what `pack` makes, for all heads
    const float *projections;      // as linear_map.cuh has them; for the exact polynomial (NH, RM, HS)
    const float4 *whitening;       // nystrom: right operands for W and for its transpose
    const SlayExponent *exponents; // (NH, RM)
    size_t size;                   // in floats
} SlayPacked;

static inline SlayPacked slay_packed(const float *packed, const SlayShape *shape, const AttentionConfig *config) {
    size_t side = shape->poly == POLY_NYSTROM ? (size_t)projection_pieces(shape->P) * 16 : 0;
    size_t projections = shape->poly == POLY_EXACT
                             ? (size_t)shape->NH * shape->RM * ((shape->HS + 3) / 4 * 4)
                             : (size_t)shape->NH * projection_size(shape->projections, linear_width(config));
    const float *whitening = packed + projections, *exponents = whitening + 2 * side * side;
    SlayPacked at = {packed, (const float4 *)whitening, (const SlayExponent *)exponents,
                     projections + 2 * side * side + 2 * (size_t)shape->NH * shape->RM};
    return at;
}

__device__ static inline float slay_clipped(float exponent) { // NaN stays
    return max_or_nan(min_or_nan(exponent, EXPONENT_MAX), -EXPONENT_MAX);
}

// The functions of struct AttentionGPU.
size_t slay_packed_size(const AttentionConfig *config);
void slay_pack(float *packed, const float *constants, const float *parameters, const AttentionConfig *config,
               cudaStream_t stream);

// ---- gradients of trained projections

typedef struct {     // sums over the rows of each of `heads` heads
    const float *at; // (projections, width), `step` from head to head
    size_t step;
    int width, first_head, heads;
} SlayProjectionGradients;

// Adds them to those of the parameters: of omega, for the heads at hand; of anchors, which takes all heads.
void slay_add_omega_gradient(float *dparameters, SlayProjectionGradients d, const float *packed,
                             const AttentionConfig *config, cudaStream_t stream);
void slay_add_anchor_gradient(float *dparameters, SlayProjectionGradients d, const AttentionConfig *config,
                              cudaStream_t stream);

#endif
