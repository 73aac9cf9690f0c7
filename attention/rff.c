// rff: random Fourier features phi(x) = sqrt(2/M) cos(<omega_m, x> + b_m) of the Gaussian kernel exp(-|q - k|^2 / 2).
// Scores are signed, so a row's sum can vanish; kept for comparison, not for use.
#include "linear.h"
#include "omega.h"
#include "core/base/random.h"
#include "core/base/vector_math.h"

#include <stdio.h>

// packed: omega (M, HS), then bias (M)
static void pack(real *packed, const real *constants, const real *parameters, int head, const AttentionConfig *config) {
    (void)parameters;
    int HS = config->HS, M = config->M;
    const real *omega = constants + (size_t)head * HS * M;
    const real *bias = constants + (size_t)config->NH * HS * M + (size_t)head * M;
    for (int m = 0; m < M; m++) {
        for (int c = 0; c < HS; c++) packed[(size_t)m * HS + c] = omega[(size_t)c * M + m];
        packed[(size_t)M * HS + m] = bias[m];
    }
}

// The tape holds the slope, -sqrt(2/M) sin.
static void rff_features(LinearFeatures *features, const real *x, LinearRows rows, const real *packed,
                         const AttentionConfig *config) {
    int lanes = tile_lanes(rows.count), HS = config->HS, M = config->M;
    const real *bias = packed + (size_t)M * HS;
    real coefficient = real_sqrt(2 / (real)M);
    tile_project(features->tape, packed, M, x, HS, rows.count);
    for (int m = 0; m < M; m++) { // three loops: one with both cos and sin would not be vectorised
        real *angle = features->tape + m * TILE, *outer = features->outer + m * TILE;
        for (int i = 0; i < lanes; i++) angle[i] += bias[m];
        for (int i = 0; i < lanes; i++) outer[i] = coefficient * real_cos(angle[i]);
        for (int i = 0; i < lanes; i++) angle[i] = -coefficient * real_sin(angle[i]);
    }
}

static void rff_gradient(real *dx, real *d_packed, LinearFeatures *d, const LinearFeatures *features, LinearRows rows,
                         const real *packed, const AttentionConfig *config) {
    (void)d_packed;
    int lanes = tile_lanes(rows.count), HS = config->HS;
    for (int m = 0; m < config->M; m++)
        for (int i = 0; i < lanes; i++) d->outer[m * TILE + i] *= features->tape[m * TILE + i];
    tile_multiply(dx, TILE, (TileLeft){packed, 1, HS}, d->outer, TILE, HS, lanes, config->M, 0, TILE_FULL);
}

static LinearMap rff_map(const AttentionConfig *config) {
    return (LinearMap){.outer = config->M,
                       .tape = config->M,
                       .is_signed = 1,
                       .feature_cost = (double)config->M * config->HS,
                       .packed_size = (size_t)config->M * (config->HS + 1),
                       .pack = pack,
                       .features = rff_features,
                       .gradient = rff_gradient};
}
LINEAR_ATTENTION_FUNCTIONS(rff_map)

static int tensors(const AttentionConfig *config, AttentionTensor list[ATTENTION_TENSORS_MAX]) {
    size_t NH = (size_t)config->NH, HS = (size_t)config->HS, M = (size_t)config->M;
    list[0] = (AttentionTensor){.name = "omega", .rank = 3, .shape = {NH, HS, M}};
    list[1] = (AttentionTensor){.name = "bias", .rank = 2, .shape = {NH, M}};
    return 2;
}

static void draw(real *out, real *parameters, int layer, const AttentionConfig *config) {
    (void)parameters;
    size_t bias_count = (size_t)config->NH * config->M;
    real *bias = out + bias_count * (size_t)config->HS;
    uint64_t bias_key = omega_key("bias", layer, config);
    omega_draw(out, config->NH, config->HS, config->M, omega_key("omega", layer, config), config);
    for (size_t i = 0; i < bias_count; i++) bias[i] = (real)(float)(6.283185307179586 * random_uniform(bias_key, i));
}

static int check(const AttentionConfig *config, char *why, size_t size) {
    if (config->M < 1 || config->M > LINEAR_OUTER_MAX) {
        snprintf(why, size, "M=%d, must be from 1 to %d", config->M, LINEAR_OUTER_MAX);
        return -1;
    }
    linear_warn_signed("rff");
    return 0;
}

static void defaults(AttentionConfig *config) {
    config->M = 64;
    config->delta = 1e-6f;
}

const Attention attention_rff = {.name = "rff",
                                 .summary = "linear attention with random Fourier features (signed scores)",
                                 .uses = USES_M | USES_DELTA | USES_OMEGA | USES_DENOMINATOR | USES_CHUNK,
                                 .defaults = defaults,
                                 .check = check,
                                 .tensors = tensors,
                                 .draw = draw,
                                 LINEAR_ATTENTION_FIELDS};
