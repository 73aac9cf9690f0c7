// uniform: every row is the plain average of the values so far. The baseline that a kernel has to beat.
#include "linear.h"

static void uniform_features(LinearFeatures *features, const real *x, LinearRows rows, const real *packed,
                             const AttentionConfig *config) {
    (void)packed;
    int lanes = tile_lanes(rows.count);
    for (int i = 0; i < lanes; i++) features->outer[i] = 1;
    for (int c = 0; c < config->HS; c++) // the difference is 0 except for NaN, which must not disappear
        for (int i = 0; i < lanes; i++) features->outer[i] += x[c * TILE + i] - x[c * TILE + i];
}

static void uniform_gradient(real *dx, real *d_packed, LinearFeatures *d, const LinearFeatures *features,
                             LinearRows rows, const real *packed, const AttentionConfig *config) {
    (void)d_packed, (void)features, (void)packed;
    int lanes = tile_lanes(rows.count);
    for (int c = 0; c < config->HS; c++) // 0, except for NaN
        for (int i = 0; i < lanes; i++) dx[c * TILE + i] = 0 * d->outer[i];
}

static LinearMap uniform_map(const AttentionConfig *config) {
    (void)config;
    return (LinearMap){.outer = 1, .features = uniform_features, .gradient = uniform_gradient};
}
LINEAR_ATTENTION_FUNCTIONS(uniform_map)

const Attention attention_uniform = {.name = "uniform",
                                     .summary = "the average of all values so far: the baseline to beat",
                                     .uses = USES_CHUNK,
                                     LINEAR_ATTENTION_FIELDS};
