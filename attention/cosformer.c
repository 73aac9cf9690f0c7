// cosformer: relu features, and scores weighted by cos(pi/2 (i - j) / horizon) (Qin et al. 2022). The weight is a
// product of two, cos(a - b) = cos a cos b + sin a sin b: the inner factor of the features, (cos, sin) of the position.
// The horizon is the model's context length, so that a prefix does not depend on what follows.
#include "linear.h"
#include "core/base/vector_math.h"

static void cosformer_features(LinearFeatures *features, const real *x, LinearRows rows, const real *packed,
                               const AttentionConfig *config) {
    (void)packed;
    int lanes = tile_lanes(rows.count);
    const real quarter_turn = (real)1.57079632679489661923, horizon = (real)config->max_T;
    for (int c = 0; c < config->HS; c++)
        for (int i = 0; i < lanes; i++) {
            real at = x[c * TILE + i];
            real positive = at > LINEAR_FEATURE_MAX ? LINEAR_FEATURE_MAX : at;
            features->outer[c * TILE + i] = at <= 0 ? 0 : positive;
        }
    real angle[TILE];
    for (int i = 0; i < lanes; i++) angle[i] = quarter_turn * (real)(rows.position + i) / horizon;
    for (int i = 0; i < lanes; i++) features->inner[i] = real_cos(angle[i]);
    for (int i = 0; i < lanes; i++) features->inner[TILE + i] = real_sin(angle[i]);
}

static void cosformer_gradient(real *dx, real *d_packed, LinearFeatures *d, const LinearFeatures *features,
                               LinearRows rows, const real *packed, const AttentionConfig *config) {
    (void)d_packed, (void)packed;
    int lanes = tile_lanes(rows.count);
    for (int c = 0; c < config->HS; c++)
        for (int i = 0; i < lanes; i++)
            dx[c * TILE + i] = features->outer[c * TILE + i] <= 0 ? 0 : d->outer[c * TILE + i]; // NaN gets a gradient
}

static LinearMap cosformer_map(const AttentionConfig *config) {
    return (LinearMap){.outer = config->HS,
                       .inner = 2,
                       .fixed_inner = 1,
                       .feature_cost = 2,
                       .features = cosformer_features,
                       .gradient = cosformer_gradient};
}
LINEAR_ATTENTION_FUNCTIONS(cosformer_map)

static void defaults(AttentionConfig *config) {
    config->delta = 1e-6f;
}

const Attention attention_cosformer = {.name = "cosformer",
                                       .summary = "linear attention with relu features and cosine weights by distance",
                                       .uses = USES_DELTA | USES_DENOMINATOR | USES_CHUNK,
                                       .defaults = defaults,
                                       LINEAR_ATTENTION_FIELDS};
