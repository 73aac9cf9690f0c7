// slay: the spherical YAT kernel x^2 / (2 + eps - 2x), x = cosine of query and key, in linear time. Gauss-Laguerre
// quadrature turns the fraction into R exponentials, random features make them products, a polynomial map does the
// same for x^2. This file holds the options and the constants; the features are in slay_features.c.
#include "omega.h"
#include "pairs.h"
#include "quadrature.h"
#include "slay_features.h"
#include "core/base/memory.h"
#include "core/base/random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FEATURES_MAX = 1 << 18, NYSTROM_MAX = 512, SKETCH_MAX = 4096 };

// Both presets have 384 features. The flat fusion has as many, each drawn by itself: no nodes and no products.
static void defaults(AttentionConfig *config) {
    int recall = config->preset == PRESET_RECALL, flat = config->fusion == FUSION_FLAT;
    config->R = flat || recall ? 1 : 3;
    config->M = flat ? 384 : recall ? 4 : 16;
    config->P = flat ? 1 : recall ? 96 : 8;
    config->eps = 1e-3f;
    config->delta = 1e-6f;
    config->poly = recall && config->fusion == FUSION_TENSOR ? POLY_NYSTROM : POLY_ANCHOR;
    config->scale_features = 1;
}

static int check_fusion(const AttentionConfig *config, char *why, size_t size) {
    int has_anchors = config->fusion == FUSION_FLAT || slay_polynomial(config) == POLY_ANCHOR;
    if (config->fusion == FUSION_HADAMARD && config->poly != POLY_ANCHOR && config->poly != POLY_NONE)
        snprintf(why, size, "fusion hadamard squares the random projections and has no other polynomial; remove poly");
    else if (config->fusion == FUSION_FLAT && config->poly != POLY_ANCHOR)
        snprintf(why, size, "fusion flat has an anchor for each feature and no other polynomial; remove poly");
    else if (config->fusion == FUSION_FLAT && (config->R != 1 || config->P != 1))
        snprintf(why, size, "fusion flat has M features and neither nodes nor products; remove R and P");
    else if (!has_anchors && (config->learn == LEARN_ANCHORS || config->learn == LEARN_BOTH))
        snprintf(why, size, "only the anchors of poly anchor and of fusion flat can be learned; change learn");
    else
        return 0;
    return -1;
}

static int check(const AttentionConfig *config, char *why, size_t size) {
    int poly = slay_polynomial(config);
    double outer = (double)config->R * config->M, inner = poly == POLY_NONE || poly == POLY_EXACT ? 1 : config->P;
    if (config->R < 1 || config->R > 64 || config->M < 1 || config->P < 1)
        snprintf(why, size, "R=%d M=%d P=%d: R must be from 1 to 64, M and P at least 1", config->R, config->M,
                 config->P);
    else if (outer * inner > FEATURES_MAX)
        snprintf(why, size, "R*M*P is %.0f features per head, at most %d are supported; make R, M or P smaller",
                 outer * inner, FEATURES_MAX);
    else if (poly == POLY_NYSTROM && config->P > NYSTROM_MAX)
        snprintf(why, size, "P=%d anchors, nystrom takes at most %d", config->P, NYSTROM_MAX);
    else if (poly == POLY_TENSORSKETCH && config->P > SKETCH_MAX)
        snprintf(why, size, "P=%d columns, tensorsketch takes at most %d", config->P, SKETCH_MAX);
    else if (check_fusion(config, why, size))
        return -1;
    else if (!(config->eps > 0) || !(config->delta > 0) || !isfinite(config->eps) || !isfinite(config->delta))
        snprintf(why, size, "eps=%g delta=%g: both must be positive numbers", config->eps, config->delta);
    else {
        if (slay_map(config).is_signed) linear_warn_signed("slay with nystrom, maclaurin, rademacher or tensorsketch");
        return 0;
    }
    return -1;
}

// ---- drawing the constants

// exp(-(2 + eps) s) is the weight function: s = t / (2 + eps). Without the polynomial the target is
// (2 + eps)^2 / 4 / (2 + eps - 2x), the part of the kernel that has the pole.
static void draw_quadrature(real *nodes, real *weights, const AttentionConfig *config) {
    double t[QUADRATURE_NODES_MAX], alpha[QUADRATURE_NODES_MAX], c = 2.0 + config->eps;
    int laplace_only = config->poly == POLY_NONE && config->fusion == FUSION_TENSOR;
    quadrature_laguerre(t, alpha, config->R);
    for (int r = 0; r < config->R; r++) {
        nodes[r] = (real)(float)(t[r] / c);
        weights[r] = (real)(float)(laplace_only ? alpha[r] * c / 4 : alpha[r] / c);
    }
}

// Rotates rows and columns p, q of a symmetric matrix so that a[p][q] becomes 0; v collects the rotations.
static void jacobi_rotate(double *a, double *v, int n, int p, int q) {
    if (a[p * n + q] == 0) return;
    double theta = (a[q * n + q] - a[p * n + p]) / (2 * a[p * n + q]);
    double t = (theta < 0 ? -1 : 1) / (fabs(theta) + sqrt(theta * theta + 1));
    double c = 1 / sqrt(t * t + 1), s = t * c;
    for (int k = 0; k < n; k++) {
        double x = a[k * n + p], y = a[k * n + q];
        a[k * n + p] = c * x - s * y;
        a[k * n + q] = s * x + c * y;
    }
    for (int k = 0; k < n; k++) {
        double x = a[p * n + k], y = a[q * n + k];
        a[p * n + k] = c * x - s * y;
        a[q * n + k] = s * x + c * y;
        x = v[k * n + p], y = v[k * n + q];
        v[k * n + p] = c * x - s * y;
        v[k * n + q] = s * x + c * y;
    }
}

// W = (K + lambda I)^(-1/2) with K_ij = <a_i, a_j>^2
static void draw_whitening(real *W, const real *anchors, int P, int d) {
    const double lambda = 1e-3, least = 1e-6;
    double *K = memory_allocate((size_t)P * P, sizeof(double), "the anchors' kernel matrix");
    double *v = memory_allocate_zeroed((size_t)P * P, sizeof(double), "its eigenvectors");
    for (int i = 0; i < P; i++) {
        v[i * P + i] = 1;
        for (int j = 0; j < P; j++) {
            double dot = 0;
            for (int c = 0; c < d; c++) dot += (double)anchors[i * d + c] * anchors[j * d + c];
            K[i * P + j] = dot * dot + (i == j ? lambda : 0);
        }
    }
    for (int sweep = 0; sweep < 15; sweep++)
        for (int p = 0; p < P; p++)
            for (int q = p + 1; q < P; q++) jacobi_rotate(K, v, P, p, q);
    for (int i = 0; i < P; i++)
        for (int j = 0; j < P; j++) {
            double sum = 0;
            for (int k = 0; k < P; k++) sum += v[i * P + k] * v[j * P + k] / sqrt(fmax(K[k * P + k], least));
            W[i * P + j] = (real)(float)sum;
        }
    free(K);
    free(v);
}

static void draw_sketch(real *hash, real *sign, int d, int P, uint64_t key) {
    for (int i = 0; i < d; i++) {
        hash[i] = (real)random_below(key, (uint64_t)(2 * i), (uint64_t)P);
        sign[i] = random_below(key, (uint64_t)(2 * i + 1), 2) ? 1 : -1;
    }
}

static void draw_flat(SlayConstants at, int layer, const AttentionConfig *config) {
    int count = config->NH * config->M;
    omega_draw_exponential((real *)at.scales, (size_t)count, 1 / (2.0 + config->eps),
                           omega_key("flat_scales", layer, config));
    omega_draw_unit((real *)at.anchors, count, config->HS, omega_key("anchors", layer, config));
}

static void draw(real *constants, real *parameters, int layer, const AttentionConfig *config) {
    SlayConstants at = slay_constants_at(constants, parameters, config);
    int P = config->P, d = config->HS;
    size_t factors = (size_t)P * d;
    omega_draw((real *)at.omega, config->R * config->NH, d, config->M, omega_key("omega", layer, config), config);
    if (at.scales) {
        draw_flat(at, layer, config);
        return;
    }
    draw_quadrature((real *)at.nodes, (real *)at.weights, config);
    if (at.anchors) omega_draw_unit((real *)at.anchors, P, d, omega_key("anchors", layer, config));
    if (at.whitening) draw_whitening((real *)at.whitening, at.anchors, P, d);
    if (at.factor1) {
        void (*draw_factor)(real *, size_t, double, uint64_t) =
            config->poly == POLY_RADEMACHER ? omega_draw_signs : omega_draw_normal;
        draw_factor((real *)at.factor1, factors, 1 / sqrt(d), omega_key("rm_r1", layer, config));
        draw_factor((real *)at.factor2, factors, 1 / sqrt(d), omega_key("rm_r2", layer, config));
    }
    if (at.hash1) {
        draw_sketch((real *)at.hash1, (real *)at.sign1, d, P, omega_key("sketch1", layer, config));
        draw_sketch((real *)at.hash2, (real *)at.sign2, d, P, omega_key("sketch2", layer, config));
    }
}

#define SLAY_CORE(function) (slay_polynomial(config) == POLY_EXACT ? pairs_##function : linear_##function)
MAPPED_ATTENTION_FUNCTIONS(slay_map, SLAY_CORE)

const Attention attention_slay = {.name = "slay",
                                  .summary = "spherical YAT kernel in linear time: quadrature, random features",
                                  .uses = USES_R | USES_M | USES_P | USES_EPS | USES_DELTA | USES_POLY | USES_FUSION |
                                          USES_OMEGA | USES_DENOMINATOR | USES_SCALE | USES_CHUNK | USES_LEARN |
                                          USES_PRESET,
                                  .defaults = defaults,
                                  .check = check,
                                  .tensors = slay_tensors,
                                  .draw = draw,
                                  LINEAR_ATTENTION_FIELDS};
