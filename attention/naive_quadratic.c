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

void naive_softmax(double *o, const double *q, const double *k, const double *v, const double *constants,
                   const double *parameters, int head, int T, const AttentionConfig *config) {
    (void)constants, (void)parameters, (void)head;
    int HS = config->HS;
    double *weight = memory_allocate(T, sizeof *weight, "a row of weights");
    for (int i = 0; i < T; i++) {
        for (int j = 0; j <= i; j++) weight[j] = dot(q + i * HS, k + j * HS, HS) / sqrt(HS);
        exponentiate(weight, i + 1);
        average(o + i * HS, weight, v, i + 1, 0, HS);
    }
    free(weight);
}

void naive_yat(double *o, const double *q, const double *k, const double *v, const double *constants,
               const double *parameters, int head, int T, const AttentionConfig *config) {
    (void)constants, (void)parameters, (void)head;
    int HS = config->HS, is_softmax = config->normalizer == NORMALIZER_SOFTMAX;
    double *weight = memory_allocate(T, sizeof *weight, "a row of weights");
    for (int i = 0; i < T; i++) {
        for (int j = 0; j <= i; j++) {
            double a = dot(q + i * HS, k + j * HS, HS);
            weight[j] = a * a / (squared_distance(q + i * HS, k + j * HS, HS) + config->eps);
        }
        if (is_softmax) exponentiate(weight, i + 1);
        average(o + i * HS, weight, v, i + 1, is_softmax ? 0 : config->delta, HS);
    }
    free(weight);
}

void naive_yat_spherical(double *o, const double *q, const double *k, const double *v, const double *constants,
                         const double *parameters, int head, int T, const AttentionConfig *config) {
    (void)constants, (void)parameters, (void)head;
    int HS = config->HS;
    double *weight = memory_allocate(T, sizeof *weight, "a row of weights");
    for (int i = 0; i < T; i++) {
        double q_norm = fmax(sqrt(dot(q + i * HS, q + i * HS, HS)), 1e-12);
        for (int j = 0; j <= i; j++) {
            double k_norm = fmax(sqrt(dot(k + j * HS, k + j * HS, HS)), 1e-12);
            double x = dot(q + i * HS, k + j * HS, HS) / q_norm / k_norm;
            weight[j] = x * x / fmax(2 + (double)config->eps - 2 * x, 1e-6);
        }
        average(o + i * HS, weight, v, i + 1, config->delta, HS);
    }
    free(weight);
}

// ---- all of them

const NaiveTwin naive_quadratic_twins[] = {QUADRATIC_ATTENTIONS(NAIVE_TWIN){NULL, NULL}};
