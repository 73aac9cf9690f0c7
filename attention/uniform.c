// uniform: every row is the plain average of the values so far. The baseline that a kernel has to beat.
#include "linear.h"

#include <string.h>

static void uniform_features(LinearFeatures *features, const real *x, LinearRows rows, const real *packed,
                             const AttentionConfig *config) {
    (void)x, (void)rows, (void)packed, (void)config;
    for (int i = 0; i < TILE; i++) features->outer[i] = 1;
}

static void uniform_gradient(real *dx, LinearFeatures *d, const LinearFeatures *features, LinearRows rows,
                             const real *packed, const AttentionConfig *config) {
    (void)d, (void)features, (void)rows, (void)packed;
    memset(dx, 0, sizeof(real) * (size_t)config->HS * TILE);
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
