#include "naive.h"
#include "core/base/memory.h"

#include <math.h>
#include <stdlib.h>

static double dot(const double *a, const double *b, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static double squared_distance(const double *a, const double *b, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (a[i] - b[i]) * (a[i] - b[i]);
    return sum;
}

// o (HS) = sum of weight_j v_j over n keys, divided by the sum of the weights + delta
static void average(double *o, const double *weight, const double *v, int n, double delta, int HS) {
    double sum = delta;
    for (int j = 0; j < n; j++) sum += weight[j];
    for (int d = 0; d < HS; d++) o[d] = 0;
    for (int j = 0; j < n; j++) {
        for (int d = 0; d < HS; d++) o[d] += weight[j] / sum * v[j * HS + d];
    }
}

static void exponentiate(double *score, int n) {
    double max = score[0];
    for (int j = 1; j < n; j++) max = fmax(max, score[j]);
    for (int j = 0; j < n; j++) score[j] = exp(score[j] - max);
}

// o (HS) of query i from its scores with the keys 0 .. i.
static void attend(double *o, double *score, const double *v, int i, const double *parameters, int head, int normalizer,
                   const AttentionConfig *config) {
    int first = config->window > 0 && i >= config->window ? i - config->window + 1 : 0, n = i + 1 - first;
    int is_softmax = normalizer == NORMALIZER_SOFTMAX;
    double log_gamma = log(naive_decay(parameters, head, config));
    for (int j = first; j <= i; j++)
        score[j] = is_softmax ? score[j] + (i - j) * log_gamma : score[j] * exp((i - j) * log_gamma);
    if (is_softmax) exponentiate(score + first, n);
    average(o, score + first, v + first * config->HS, n, is_softmax ? 0 : config->delta, config->HS);
}

void naive_softmax(double *o, const double *q, const double *k, const double *v, const double *constants,
                   const double *parameters, int head, int T, const AttentionConfig *config) {
    (void)constants;
    int HS = config->HS;
    double *score = memory_allocate(T, sizeof *score, "a row of scores");
    for (int i = 0; i < T; i++) {
        for (int j = 0; j <= i; j++) score[j] = dot(q + i * HS, k + j * HS, HS) / sqrt(HS);
        attend(o + i * HS, score, v, i, parameters, head, NORMALIZER_SOFTMAX, config);
    }
    free(score);
}

void naive_yat(double *o, const double *q, const double *k, const double *v, const double *constants,
               const double *parameters, int head, int T, const AttentionConfig *config) {
    (void)constants;
    int HS = config->HS;
    double *score = memory_allocate(T, sizeof *score, "a row of scores");
    for (int i = 0; i < T; i++) {
        for (int j = 0; j <= i; j++) {
            double a = dot(q + i * HS, k + j * HS, HS);
            score[j] = a * a / (squared_distance(q + i * HS, k + j * HS, HS) + config->eps);
        }
        attend(o + i * HS, score, v, i, parameters, head, config->normalizer, config);
    }
    free(score);
}

void naive_yat_spherical(double *o, const double *q, const double *k, const double *v, const double *constants,
                         const double *parameters, int head, int T, const AttentionConfig *config) {
    (void)constants;
    int HS = config->HS;
    double *score = memory_allocate(T, sizeof *score, "a row of scores");
    for (int i = 0; i < T; i++) {
        double q_norm = fmax(sqrt(dot(q + i * HS, q + i * HS, HS)), 1e-12);
        for (int j = 0; j <= i; j++) {
            double k_norm = fmax(sqrt(dot(k + j * HS, k + j * HS, HS)), 1e-12);
            double x = dot(q + i * HS, k + j * HS, HS) / q_norm / k_norm;
            score[j] = x * x / fmax(2 + (double)config->eps - 2 * x, 1e-6);
        }
        attend(o + i * HS, score, v, i, parameters, head, NORMALIZER_KERNEL, config);
    }
    free(score);
}

// ---- all of them

const NaiveTwin naive_quadratic_twins[] = {QUADRATIC_ATTENTIONS(NAIVE_TWIN){NULL, NULL}};
