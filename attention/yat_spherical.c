// Spherical yat: the kernel of unit vectors, K = x^2 / (2 + eps - 2x) with x the cosine of q and k, normalised by its
// row's sum, o = sum K v / (sum K + delta).
#include "yat.h"

#include <stdio.h>

static const QuadraticKernel kernel = {
    .unit_length = 1, .normalizer = NORMALIZER_KERNEL, .scores = yat_scores, .slopes = yat_slopes};

static void defaults(AttentionConfig *config) {
    config->eps = 1e-3f;
    config->delta = 1e-6f;
}

// The published kernel clamps its denominator at 1e-6. Formed as |q-k|^2 + eps, it never gets that small if eps is
// larger.
static int check(const AttentionConfig *config, char *why, size_t size) {
    if (config->eps >= 1e-6f && config->delta > 0) return 0;
    snprintf(why, size, "eps is %g and delta is %g; eps must be at least 1e-6 and delta above 0", config->eps,
             config->delta);
    return -1;
}

static const QuadraticKernel *kernel_of(const AttentionConfig *config) {
    (void)config;
    return &kernel;
}

QUADRATIC_ATTENTION_FUNCTIONS(kernel_of)

const Attention attention_yat_spherical = {
    .name = "yat-spherical",
    .summary = "the exact kernel of unit vectors, x^2 / (2 + eps - 2x)",
    .uses = USES_EPS | USES_DELTA | USES_WINDOW,
    .defaults = defaults,
    .check = check,
    QUADRATIC_ATTENTION_FIELDS,
};
