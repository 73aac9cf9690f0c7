// Softmax attention: S = q k^T / sqrt(HS), P = softmax over the keys j <= i, o = P v (MATH: 2.1).
#include "attention.h"
#include "../core/vector_math.h"

#include <string.h>

static size_t saved_size(const AttentionConfig *c) {
    return (size_t)c->B * c->NH * c->T; // log-sum-exp of every row
}

static size_t row_scratch(const AttentionConfig *c) {
    return 2 * (size_t)(c->T > c->max_T ? c->T : c->max_T);
}

static size_t work_size(const AttentionConfig *c) {
    return (size_t)c->B * c->NH * row_scratch(c);
}

static size_t cache_size(const AttentionConfig *c) {
    return 2 * (size_t)c->max_T * c->C; // k and v, (NH, max_T, HS) each
}

static real dot(const real *a, const real *b, int n) {
    real sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

// One query against `keys` keys; p (keys) receives the probabilities. Returns the log-sum-exp.
static real attend(real *o, real *p, const real *q, const real *k, const real *v, size_t stride, int keys, int HS) {
    real scale = 1 / real_sqrt((real)HS), max = -1e30f, sum = 0;
    for (int j = 0; j < keys; j++) {
        p[j] = scale * dot(q, k + j * stride, HS);
        max = real_max(max, p[j]);
    }
    for (int j = 0; j < keys; j++) sum += p[j] = real_exp(p[j] - max);
    memset(o, 0, HS * sizeof *o);
    for (int j = 0; j < keys; j++) {
        p[j] /= sum;
        for (int d = 0; d < HS; d++) o[d] += p[j] * v[j * stride + d];
    }
    return max + real_log(sum);
}

static void forward(real *out, real *saved, const real *qkv, const real *constants, real *work,
                    const AttentionConfig *c) {
    (void)constants;
    size_t C = c->C, stride = 3 * C;
#pragma omp parallel for schedule(dynamic)
    for (int bh = 0; bh < c->B * c->NH; bh++) {
        size_t b = bh / c->NH, h = bh % c->NH;
        const real *q = qkv + b * c->T * stride + h * c->HS;
        for (int t = 0; t < c->T; t++) {
            real lse = attend(out + (b * c->T + t) * C + h * c->HS, work + bh * row_scratch(c), q + t * stride, q + C,
                              q + 2 * C, stride, t + 1, c->HS);
            if (saved) saved[(size_t)bh * c->T + t] = lse;
        }
    }
}

static void backward(real *dqkv, const real *dout, const real *qkv, const real *out, const real *saved,
                     const real *constants, real *work, const AttentionConfig *c) {
    (void)constants, (void)work;
    int HS = c->HS;
    size_t C = c->C, stride = 3 * C;
    real scale = 1 / real_sqrt((real)HS);
    memset(dqkv, 0, (size_t)c->B * c->T * stride * sizeof *dqkv);
#pragma omp parallel for schedule(dynamic)
    for (int bh = 0; bh < c->B * c->NH; bh++) {
        size_t b = bh / c->NH, h = bh % c->NH, at = b * c->T * stride + h * HS;
        const real *q = qkv + at, *k = q + C, *v = k + C;
        real *dq = dqkv + at, *dk = dq + C, *dv = dk + C;
        for (int i = 0; i < c->T; i++) {
            const real *dO = dout + (b * c->T + i) * C + h * HS;
            real D = dot(dO, out + (b * c->T + i) * C + h * HS, HS);
            for (int j = 0; j <= i; j++) {
                real p = real_exp(scale * dot(q + i * stride, k + j * stride, HS) - saved[(size_t)bh * c->T + i]);
                real dS = scale * p * (dot(dO, v + j * stride, HS) - D);
                for (int d = 0; d < HS; d++) {
                    dv[j * stride + d] += p * dO[d];
                    dq[i * stride + d] += dS * k[j * stride + d];
                    dk[j * stride + d] += dS * q[i * stride + d];
                }
            }
        }
    }
}

static void step(real *out, real *cache, int pos, int n, const real *qkv, const real *constants, real *work,
                 const AttentionConfig *c) {
    (void)constants;
    int HS = c->HS;
    size_t C = c->C;
#pragma omp parallel for
    for (int h = 0; h < c->NH; h++) {
        real *k = cache + (size_t)h * c->max_T * HS, *v = k + (size_t)c->max_T * C;
        for (int i = 0; i < n; i++) {
            const real *q = qkv + i * 3 * C + (size_t)h * HS;
            memcpy(k + (size_t)(pos + i) * HS, q + C, HS * sizeof *k);
            memcpy(v + (size_t)(pos + i) * HS, q + 2 * C, HS * sizeof *v);
            attend(out + i * C + (size_t)h * HS, work + h * row_scratch(c), q, k, v, HS, pos + i + 1, HS);
        }
    }
}

static double flops(const AttentionConfig *c) {
    return 2.0 * 2.0 * c->HS * c->NH * (c->T + 1) / 2;
}

const Attention attention_softmax = {
    .name = "softmax",
    .summary = "softmax over scaled dot products, as in GPT-2",
    .uses = 0,
    .saved_size = saved_size,
    .work_size = work_size,
    .cache_size = cache_size,
    .forward = forward,
    .backward = backward,
    .step = step,
    .flops = flops,
};
