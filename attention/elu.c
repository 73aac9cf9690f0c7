// elu: phi(x) = x + 1 for x > 0, exp(x) below (Katharopoulos et al. 2020). Always positive, no constants.
#include "linear.h"
#include "core/base/vector_math.h"

#include <stdio.h>

static void elu_features(LinearFeatures *features, const real *x, LinearRows rows, const real *packed,
                         const AttentionConfig *config) {
    (void)packed;
    int lanes = tile_lanes(rows.count);
    for (int c = 0; c < config->HS; c++)
        for (int i = 0; i < lanes; i++) {
            real at = x[c * TILE + i], below = real_exp(at > 0 ? 0 : at);
            real above = at < LINEAR_FEATURE_MAX ? at : LINEAR_FEATURE_MAX;
            features->outer[c * TILE + i] = at > 0 ? above + 1 : below;
        }
}

// The slope is 1 above zero, where phi > 1, and phi itself below.
static void elu_gradient(real *dx, real *d_packed, LinearFeatures *d, const LinearFeatures *features,
                         LinearRows rows, const real *packed, const AttentionConfig *config) {
    (void)d_packed, (void)packed;
    int lanes = tile_lanes(rows.count);
    for (int c = 0; c < config->HS; c++)
        for (int i = 0; i < lanes; i++) {
            real phi = features->outer[c * TILE + i];
            dx[c * TILE + i] = d->outer[c * TILE + i] * (phi > 1 ? 1 : phi);
        }
}

static LinearMap elu_map(const AttentionConfig *config) {
    return (LinearMap){
        .outer = config->HS, .feature_cost = config->HS, .features = elu_features, .gradient = elu_gradient};
}
LINEAR_ATTENTION_FUNCTIONS(elu_map)

static void defaults(AttentionConfig *config) {
    config->delta = 1e-6f;
}

const Attention attention_elu = {.name = "elu",
                                 .summary = "linear attention with the features elu(x) + 1",
                                 .uses = USES_DELTA | USES_DENOMINATOR | USES_CHUNK,
                                 .defaults = defaults,
                                 LINEAR_ATTENTION_FIELDS};
