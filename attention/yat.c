// Exact yat: the kernel K = <q,k>^2 / (|q-k|^2 + eps), normalised by its row's sum, o = sum K v / (sum K + delta), or
// by a softmax over its values.
#include "yat.h"

#include <stdio.h>

// dot * (dot / n) and not dot^2 / n: the square of a large dot product overflows where the quotient does not.
void yat_scores(real *score, const real *dot, const real *distance, int n, const AttentionConfig *config) {
    real eps = config->eps;
    for (int j = 0; j < n; j++) score[j] = limited(dot[j] * (dot[j] / (distance[j] + eps)), LARGEST_SCORE);
}

// With r = dot / (distance + eps): d score / d dot = 2 r, d score / d distance = -r^2.
void yat_slopes(real *slope, real *pull, const real *dot, const real *distance, int n, const AttentionConfig *config) {
    real eps = config->eps;
    for (int j = 0; j < n; j++) {
        real r = limited(dot[j] / (distance[j] + eps), LARGEST_SLOPE), by_dot = 2 * slope[j] * r;
        slope[j] = limited(by_dot, LARGEST_SLOPE);
        pull[j] = limited(by_dot * r, LARGEST_SLOPE);
    }
}

static const QuadraticKernel kernels[] = {
    [NORMALIZER_KERNEL] = {.normalizer = NORMALIZER_KERNEL, .scores = yat_scores, .slopes = yat_slopes},
    [NORMALIZER_SOFTMAX] = {.normalizer = NORMALIZER_SOFTMAX, .scores = yat_scores, .slopes = yat_slopes},
};

static void defaults(AttentionConfig *config) {
    config->eps = 1e-3f;
    config->delta = 1e-6f;
    config->normalizer = NORMALIZER_KERNEL;
}

static int check(const AttentionConfig *config, char *why, size_t size) {
    if (config->eps > 0 && config->delta > 0) return 0;
    snprintf(why, size, "eps is %g and delta is %g; both must be above 0", config->eps, config->delta);
    return -1;
}

static const QuadraticKernel *kernel_of(const AttentionConfig *config) {
    return &kernels[config->normalizer];
}

QUADRATIC_ATTENTION_FUNCTIONS(kernel_of)

const Attention attention_yat = {
    .name = "yat",
    .summary = "the exact kernel <q,k>^2 / (|q-k|^2 + eps)",
    .uses = USES_EPS | USES_DELTA | USES_NORMALIZER | USES_WINDOW,
    .defaults = defaults,
    .check = check,
    QUADRATIC_ATTENTION_FIELDS,
};
