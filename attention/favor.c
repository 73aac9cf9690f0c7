// favor: random projections, in two kinds.
//   relu  phi(x) = relu(x W), an order-1 arc-cosine kernel: the paper's baseline
//   exp   positive random features of exp(<q,k> / sqrt(d)), true FAVOR+ (Choromanski et al. 2021):
//         phi_m(x) = exp(<omega_m, x'> - |x'|^2 / 2) / sqrt(M), x' = x / d^(1/4)
// The exponents of exp have no bound. A row is stored relative to its own largest exponent, the log scale; the core
// weighs keys against each other by it as online softmax does.
#include "linear.h"
#include "omega.h"
#include "core/base/vector_math.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

// (HS, M) of one head -> (M, HS), times `scale`
static void pack(real *packed, const real *constants, const real *parameters, int head, const AttentionConfig *config) {
    (void)parameters;
    int HS = config->HS, M = config->M;
    const real *omega = constants + (size_t)head * HS * M;
    real scale = config->features == FEATURES_EXP ? 1 / real_sqrt(real_sqrt((real)HS)) : 1;
    for (int m = 0; m < M; m++)
        for (int c = 0; c < HS; c++) packed[(size_t)m * HS + c] = scale * omega[(size_t)c * M + m];
}

static void project_gradient(real *dx, const real *dy, const real *packed, int lanes, const AttentionConfig *config) {
    int HS = config->HS;
    tile_multiply(dx, TILE, (TileLeft){packed, 1, HS}, dy, TILE, HS, lanes, config->M, 0, TILE_FULL);
}

// ---- relu

static void relu_features(LinearFeatures *features, const real *x, LinearRows rows, const real *packed,
                          const AttentionConfig *config) {
    int lanes = tile_lanes(rows.count);
    tile_project(features->outer, packed, config->M, x, config->HS, rows.count);
    for (int m = 0; m < config->M; m++)
        for (int i = 0; i < lanes; i++) {
            real y = features->outer[m * TILE + i], positive = y > LINEAR_FEATURE_MAX ? LINEAR_FEATURE_MAX : y;
            features->outer[m * TILE + i] = y <= 0 ? 0 : positive;
        }
}

static void relu_gradient(real *dx, real *d_packed, LinearFeatures *d, const LinearFeatures *features, LinearRows rows,
                          const real *packed, const AttentionConfig *config) {
    (void)d_packed;
    int lanes = tile_lanes(rows.count);
    for (int m = 0; m < config->M; m++)
        for (int i = 0; i < lanes; i++)
            if (features->outer[m * TILE + i] <= 0) d->outer[m * TILE + i] = 0; // NaN keeps its gradient
    project_gradient(dx, d->outer, packed, lanes, config);
}

// ---- exp

typedef struct {   // the tape
    real *x;       // (HS, TILE)
    real *largest; // (TILE) which feature set the scale
} ExpTape;

static ExpTape exp_tape(const LinearFeatures *features, int HS) {
    return (ExpTape){features->tape, features->tape + (size_t)HS * TILE};
}

static void exp_features(LinearFeatures *features, const real *x, LinearRows rows, const real *packed,
                         const AttentionConfig *config) {
    int lanes = tile_lanes(rows.count), HS = config->HS, M = config->M;
    ExpTape tape = exp_tape(features, HS);
    real maximum[TILE], squares[TILE] = {0}, coefficient = 1 / real_sqrt((real)M);
    tile_project(features->outer, packed, config->M, x, config->HS, rows.count);
    memcpy(tape.x, x, sizeof(real) * (size_t)HS * TILE);
    memcpy(maximum, features->outer, sizeof(real) * (size_t)lanes);
    memset(tape.largest, 0, sizeof(real) * (size_t)lanes);
    for (int m = 1; m < M; m++)
        for (int i = 0; i < lanes; i++) {
            real y = features->outer[m * TILE + i];
            tape.largest[i] = y > maximum[i] ? (real)m : tape.largest[i];
            maximum[i] = y > maximum[i] ? y : maximum[i];
        }
    for (int c = 0; c < HS; c++)
        for (int i = 0; i < lanes; i++) squares[i] += x[c * TILE + i] * x[c * TILE + i];
    for (int i = 0; i < lanes; i++) features->log_scale[i] = maximum[i] - squares[i] / (2 * real_sqrt((real)HS));
    for (int m = 0; m < M; m++)
        for (int i = 0; i < lanes; i++)
            features->outer[m * TILE + i] = coefficient * real_exp(features->outer[m * TILE + i] - maximum[i]);
}

static void exp_gradient(real *dx, real *d_packed, LinearFeatures *d, const LinearFeatures *features, LinearRows rows,
                         const real *packed, const AttentionConfig *config) {
    (void)d_packed;
    int lanes = tile_lanes(rows.count), HS = config->HS;
    ExpTape tape = exp_tape(features, HS);
    real total[TILE] = {0}, scale = 1 / real_sqrt((real)HS);
    for (int m = 0; m < config->M; m++)
        for (int i = 0; i < lanes; i++) {
            real from_scale = tape.largest[i] == (real)m ? d->log_scale[i] : 0;
            real da = d->outer[m * TILE + i] * features->outer[m * TILE + i] + from_scale;
            d->outer[m * TILE + i] = da;
            total[i] += da;
        }
    project_gradient(dx, d->outer, packed, lanes, config);
    for (int c = 0; c < HS; c++)
        for (int i = 0; i < lanes; i++) dx[c * TILE + i] -= total[i] * scale * tape.x[c * TILE + i];
}

static LinearMap favor_map(const AttentionConfig *config) {
    LinearMap map = {.outer = config->M,
                     .feature_cost = (double)config->M * config->HS,
                     .packed_size = (size_t)config->M * config->HS,
                     .pack = pack,
                     .features = relu_features,
                     .gradient = relu_gradient};
    if (config->features == FEATURES_EXP) {
        map.inner = map.fixed_inner = map.log_scaled = 1;
        map.tape = config->HS + 1;
        map.features = exp_features;
        map.gradient = exp_gradient;
    }
    return map;
}
LINEAR_ATTENTION_FUNCTIONS(favor_map)

static int tensors(const AttentionConfig *config, AttentionTensor list[ATTENTION_TENSORS_MAX]) {
    list[0] = (AttentionTensor){.name = config->features == FEATURES_EXP ? "omega" : "proj_matrix",
                                .rank = 3,
                                .shape = {(size_t)config->NH, (size_t)config->HS, (size_t)config->M}};
    return 1;
}

// proj_matrix includes the factor 1 / sqrt(d), omega does not.
static void draw(real *out, real *parameters, int layer, const AttentionConfig *config) {
    (void)parameters;
    size_t count = (size_t)config->NH * config->HS * config->M;
    omega_draw(out, config->NH, config->HS, config->M, omega_key("omega", layer, config), config);
    if (config->features == FEATURES_RELU)
        for (size_t i = 0; i < count; i++) out[i] = (real)(float)(out[i] / sqrt(config->HS));
}

static int check(const AttentionConfig *config, char *why, size_t size) {
    if (config->M >= 1 && config->M <= LINEAR_OUTER_MAX) return 0;
    snprintf(why, size, "M=%d, must be from 1 to %d", config->M, LINEAR_OUTER_MAX);
    return -1;
}

static void defaults(AttentionConfig *config) {
    config->M = 64;
    config->omega = config->features == FEATURES_EXP ? OMEGA_ORTHOGONAL : OMEGA_GAUSSIAN; // FAVOR+'s, the paper's
    config->delta = 1e-6f;
    config->scale_features = 1;
}

const Attention attention_favor = {.name = "favor",
                                   .summary = "linear attention with random features, relu or exp",
                                   .uses = USES_M | USES_DELTA | USES_FEATURES | USES_OMEGA | USES_DENOMINATOR |
                                           USES_SCALE | USES_CHUNK,
                                   .defaults = defaults,
                                   .check = check,
                                   .tensors = tensors,
                                   .draw = draw,
                                   LINEAR_ATTENTION_FIELDS};
