// The linear attentions as definitions: a score for every pair of a query and a key, in double precision.
#include "naive.h"
#include "core/base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- what they share: o_i = sum_{j<=i} A_ij v_j / g_i

static double stabilised(double z, int is_signed, const AttentionConfig *config) {
    double delta = config->delta;
    if (config->denominator == DENOMINATOR_CLAMP) return fmax(z, delta);
    return is_signed && z < 0 ? fmin(z, -delta) : z + delta;
}

// A (T, T): the scores before they fade with distance; entries above the diagonal are not read
static void average(double *o, const double *A, const double *v, const double *parameters, int head, int T,
                    int is_signed, const AttentionConfig *config) {
    int d = config->HS;
    double gamma = naive_decay(parameters, head, config);
    for (int i = 0; i < T; i++) {
        double z = 0;
        for (int c = 0; c < d; c++) o[i * d + c] = 0;
        for (int j = 0; j <= i; j++) {
            double score = A[i * T + j] * pow(gamma, i - j);
            z += score;
            for (int c = 0; c < d; c++) o[i * d + c] += score * v[j * d + c];
        }
        for (int c = 0; c < d; c++) o[i * d + c] /= stabilised(z, is_signed, config);
    }
}

static double dot(const double *a, const double *b, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static double *matrix(int rows, int columns) {
    return memory_allocate_zeroed((size_t)rows * columns, sizeof(double), "a naive attention");
}

typedef struct { // the tensors of a layer
    const double *constants, *parameters;
} Tensors;

static const double *tensor_named(const char *name, Tensors layer, const Attention *attention,
                                  const AttentionConfig *config) {
    AttentionTensor list[ATTENTION_TENSORS_MAX];
    size_t total;
    for (int i = attention_constants(attention, config, list, &total) - 1; i >= 0; i--)
        if (strcmp(list[i].name, name) == 0) return layer.constants + list[i].offset;
    for (int i = attention_parameters(attention, config, list, &total) - 1; i >= 0; i--)
        if (strcmp(list[i].name, name) == 0) return layer.parameters + list[i].offset;
    return NULL;
}

// ---- uniform, elu, cosformer

void naive_uniform(double *o, const double *q, const double *k, const double *v, const double *constants,
                   const double *parameters, int head, int T, const AttentionConfig *config) {
    (void)q, (void)k, (void)constants;
    double *A = matrix(T, T);
    for (int i = 0; i < T * T; i++) A[i] = 1;
    average(o, A, v, parameters, head, T, 0, config);
    free(A);
}

static double elu_plus_one(double x) {
    return x > 0 ? x + 1 : exp(x);
}

void naive_elu(double *o, const double *q, const double *k, const double *v, const double *constants,
               const double *parameters, int head, int T, const AttentionConfig *config) {
    (void)constants;
    int d = config->HS;
    double *A = matrix(T, T);
    for (int i = 0; i < T; i++)
        for (int j = 0; j <= i; j++)
            for (int c = 0; c < d; c++) A[i * T + j] += elu_plus_one(q[i * d + c]) * elu_plus_one(k[j * d + c]);
    average(o, A, v, parameters, head, T, 0, config);
    free(A);
}

void naive_cosformer(double *o, const double *q, const double *k, const double *v, const double *constants,
                     const double *parameters, int head, int T, const AttentionConfig *config) {
    (void)constants;
    int d = config->HS;
    double *A = matrix(T, T);
    for (int i = 0; i < T; i++)
        for (int j = 0; j <= i; j++) {
            for (int c = 0; c < d; c++) A[i * T + j] += fmax(q[i * d + c], 0) * fmax(k[j * d + c], 0);
            A[i * T + j] *= cos(M_PI / 2 * (i - j) / config->max_T);
        }
    average(o, A, v, parameters, head, T, 0, config);
    free(A);
}

// ---- random features

// y_m = <omega_m, x>, omega (d, M)
static void project(double *y, const double *omega, const double *x, int d, int M) {
    for (int m = 0; m < M; m++) {
        y[m] = 0;
        for (int c = 0; c < d; c++) y[m] += omega[c * M + m] * x[c];
    }
}

static void relu_features(double *phi, const double *W, const double *x, int d, int M) {
    project(phi, W, x, d, M);
    for (int m = 0; m < M; m++) phi[m] = fmax(phi[m], 0);
}

// Logarithms of the positive features of exp(<q,k> / sqrt(d))
static void softmax_exponents(double *a, const double *omega, const double *x, int d, int M) {
    double scaled[d];
    for (int c = 0; c < d; c++) scaled[c] = x[c] / pow(d, 0.25);
    project(a, omega, scaled, d, M);
    for (int m = 0; m < M; m++) a[m] -= dot(scaled, scaled, d) / 2;
}

static double largest(const double *a, int n, double so_far) {
    for (int i = 0; i < n; i++) so_far = fmax(so_far, a[i]);
    return so_far;
}

// Every row is divided by exp(largest exponent of the query + largest exponent of any key so far), so that delta is
// added to numbers of a known size. Exponents of keys fade with distance as their scores do.
static void softmax_scores(double *A, const double *q, const double *k, const double *omega, double log_gamma, int T,
                           const AttentionConfig *config) {
    int d = config->HS, M = config->M;
    double *of_keys = matrix(T, M), *of_query = matrix(1, M), key_scale = -INFINITY;
    for (int i = 0; i < T; i++) {
        softmax_exponents(of_keys + i * M, omega, k + i * d, d, M);
        softmax_exponents(of_query, omega, q + i * d, d, M);
        key_scale = largest(of_keys + i * M, M, key_scale + log_gamma);
        double scale = largest(of_query, M, -INFINITY) + key_scale;
        for (int j = 0; j <= i; j++)
            for (int m = 0; m < M; m++) A[i * T + j] += exp(of_query[m] + of_keys[j * M + m] - scale) / M;
    }
    free(of_keys);
    free(of_query);
}

void naive_favor(double *o, const double *q, const double *k, const double *v, const double *constants,
                 const double *parameters, int head, int T, const AttentionConfig *config) {
    int d = config->HS, M = config->M;
    const double *omega = constants + (size_t)head * d * M;
    double *A = matrix(T, T), *of_q = matrix(1, M), *of_k = matrix(1, M);
    double log_gamma = log(naive_decay(parameters, head, config));
    if (config->features == FEATURES_EXP) softmax_scores(A, q, k, omega, log_gamma, T, config);
    for (int i = 0; config->features == FEATURES_RELU && i < T; i++)
        for (int j = 0; j <= i; j++) {
            relu_features(of_q, omega, q + i * d, d, M);
            relu_features(of_k, omega, k + j * d, d, M);
            A[i * T + j] = dot(of_q, of_k, M);
        }
    average(o, A, v, parameters, head, T, 0, config);
    free(A);
    free(of_q);
    free(of_k);
}

static void fourier_features(double *phi, const double *omega, const double *bias, const double *x, int d, int M) {
    project(phi, omega, x, d, M);
    for (int m = 0; m < M; m++) phi[m] = sqrt(2.0 / M) * cos(phi[m] + bias[m]);
}

void naive_rff(double *o, const double *q, const double *k, const double *v, const double *constants,
               const double *parameters, int head, int T, const AttentionConfig *config) {
    int d = config->HS, M = config->M;
    Tensors layer = {constants, parameters};
    const double *omega = tensor_named("omega", layer, &attention_rff, config) + (size_t)head * d * M;
    const double *bias = tensor_named("bias", layer, &attention_rff, config) + (size_t)head * M;
    double *A = matrix(T, T), *of_q = matrix(1, M), *of_k = matrix(1, M);
    for (int i = 0; i < T; i++)
        for (int j = 0; j <= i; j++) {
            fourier_features(of_q, omega, bias, q + i * d, d, M);
            fourier_features(of_k, omega, bias, k + j * d, d, M);
            A[i * T + j] = dot(of_q, of_k, M);
        }
    average(o, A, v, parameters, head, T, 1, config);
    free(A);
    free(of_q);
    free(of_k);
}

// ---- slay

static void unit_vector(double *u, const double *x, int d) {
    double norm = sqrt(dot(x, x, d));
    for (int c = 0; c < d; c++) u[c] = x[c] / fmax(norm, 1e-12);
}

// One node: M features (phi) of the exponential w exp(2 s x), and for the hadamard fusion times y^2 / sqrt(M).
static void node_features(double *phi, const double *u, const double *omega, double s, double w,
                          const AttentionConfig *config) {
    int M = config->M;
    double y[M];
    project(y, omega, u, config->HS, M);
    for (int m = 0; m < M; m++) {
        phi[m] = sqrt(w / M) * exp(fmin(fmax(sqrt(2 * s) * y[m] - s, -20), 20));
        if (config->fusion == FUSION_HADAMARD) phi[m] *= y[m] * y[m] / sqrt(M);
    }
}

// phi_j = c <a_j,u>^2 exp(sqrt(2 s_j) <omega_j,u> - s_j), each j with an anchor, a scale and a projection of its own
static void flat_features(double *phi, const double *u, Tensors layer, int head, const AttentionConfig *config) {
    int d = config->HS, M = config->M;
    const double *omega = tensor_named("omega", layer, &attention_slay, config) + (size_t)head * d * M;
    const double *anchors = tensor_named("flat_anchors", layer, &attention_slay, config) + (size_t)head * M * d;
    const double *s = tensor_named("flat_scales", layer, &attention_slay, config) + (size_t)head * M;
    double c = sqrt((config->scale_features ? d * (d + 2.0) : 1) / (M * (2.0 + config->eps))), y[M];
    project(y, omega, u, d, M);
    for (int j = 0; j < M; j++)
        phi[j] = c * pow(dot(anchors + j * d, u, d), 2) * exp(fmin(fmax(sqrt(2 * s[j]) * y[j] - s[j], -20), 20));
}

static void exponential_features(double *phi, const double *u, Tensors layer, int head, const AttentionConfig *config) {
    if (config->fusion == FUSION_FLAT) {
        flat_features(phi, u, layer, head, config);
        return;
    }
    const double *omega = tensor_named("omega", layer, &attention_slay, config);
    const double *nodes = tensor_named("quad_nodes", layer, &attention_slay, config);
    const double *weights = tensor_named("quad_weights", layer, &attention_slay, config);
    size_t matrix_size = (size_t)config->HS * config->M;
    for (int r = 0; r < config->R; r++)
        node_features(phi + r * config->M, u, omega + (size_t)(r * config->NH + head) * matrix_size, nodes[r],
                      weights[r], config);
}

static void anchor_features(double *p, const double *u, const double *anchors, const AttentionConfig *config) {
    int d = config->HS, P = config->P;
    double scale = config->scale_features ? sqrt(d * (d + 2.0)) : 1;
    for (int i = 0; i < P; i++) p[i] = scale * pow(dot(anchors + i * d, u, d), 2) / sqrt(P);
}

static void maclaurin_features(double *p, const double *u, const double *r1, const double *r2,
                               const AttentionConfig *config) {
    int d = config->HS, P = config->P;
    double scale = config->scale_features ? d : 1;
    for (int i = 0; i < P; i++) p[i] = scale * dot(r1 + i * d, u, d) * dot(r2 + i * d, u, d) / sqrt(P);
}

static void nystrom_features(double *p, const double *u, const double *anchors, const double *W,
                             const AttentionConfig *config) {
    int d = config->HS, P = config->P;
    double scale = config->scale_features ? sqrt(P) : 1;
    for (int j = 0; j < P; j++) {
        p[j] = 0;
        for (int i = 0; i < P; i++) p[j] += scale * pow(dot(anchors + i * d, u, d), 2) * W[i * P + j] / sqrt(P);
    }
}

static void sketch_features(double *p, const double *u, Tensors layer, const AttentionConfig *config) {
    int d = config->HS, P = config->P;
    const double *hash1 = tensor_named("ts_hash1", layer, &attention_slay, config);
    const double *hash2 = tensor_named("ts_hash2", layer, &attention_slay, config);
    const double *sign1 = tensor_named("ts_sign1", layer, &attention_slay, config);
    const double *sign2 = tensor_named("ts_sign2", layer, &attention_slay, config);
    double scale = config->scale_features ? sqrt(P) : 1;
    for (int i = 0; i < P; i++) p[i] = 0;
    for (int a = 0; a < d; a++) // the sketch of the outer product of u with itself
        for (int b = 0; b < d; b++)
            p[((int)hash1[a] + (int)hash2[b]) % P] += scale * sign1[a] * sign2[b] * u[a] * u[b] / sqrt(P);
}

static void polynomial_features(double *p, const double *u, Tensors layer, const AttentionConfig *config) {
    const Attention *slay = &attention_slay;
    switch (config->poly) {
    case POLY_ANCHOR:
        anchor_features(p, u, tensor_named("anchor_vectors", layer, slay, config), config);
        break;
    case POLY_MACLAURIN:
    case POLY_RADEMACHER:
        maclaurin_features(p, u, tensor_named("rm_r1", layer, slay, config), tensor_named("rm_r2", layer, slay, config),
                           config);
        break;
    case POLY_NYSTROM:
        nystrom_features(p, u, tensor_named("nystrom_anchors", layer, slay, config),
                         tensor_named("nystrom_W", layer, slay, config), config);
        break;
    default:
        sketch_features(p, u, layer, config);
        break;
    }
}

void naive_slay_features(double *phi, const double *x, const double *constants, int head,
                         const AttentionConfig *config) {
    int P = config->P, RM = config->R * config->M;
    double u[config->HS], E[RM], p[P];
    unit_vector(u, x, config->HS);
    exponential_features(E, u, (Tensors){constants, NULL}, head, config);
    polynomial_features(p, u, (Tensors){constants, NULL}, config);
    for (int e = 0; e < RM; e++)
        for (int i = 0; i < P; i++) phi[e * P + i] = E[e] * p[i];
}

// <p(u), p(w)>, or what it stands for
static double polynomial_score(const double *u, const double *w, Tensors layer, const AttentionConfig *config) {
    double p[config->P], r[config->P];
    if (config->fusion != FUSION_TENSOR || config->poly == POLY_NONE) return 1;
    if (config->poly == POLY_EXACT) return pow(dot(u, w, config->HS), 2);
    polynomial_features(p, u, layer, config);
    polynomial_features(r, w, layer, config);
    return dot(p, r, config->P);
}

void naive_slay(double *o, const double *q, const double *k, const double *v, const double *constants,
                const double *parameters, int head, int T, const AttentionConfig *config) {
    int d = config->HS, RM = config->R * config->M;
    int is_signed = config->fusion == FUSION_TENSOR && config->poly != POLY_ANCHOR && config->poly != POLY_EXACT &&
                    config->poly != POLY_NONE;
    double *A = matrix(T, T), *E_q = matrix(1, RM), *E_k = matrix(1, RM), u[d], w[d];
    Tensors layer = {constants, parameters};
    for (int i = 0; i < T; i++)
        for (int j = 0; j <= i; j++) {
            unit_vector(u, q + i * d, d);
            unit_vector(w, k + j * d, d);
            exponential_features(E_q, u, layer, head, config);
            exponential_features(E_k, w, layer, head, config);
            A[i * T + j] = dot(E_q, E_k, RM) * polynomial_score(u, w, layer, config);
        }
    average(o, A, v, parameters, head, T, is_signed, config);
    free(A);
    free(E_q);
    free(E_k);
}

// ---- all of them

const NaiveTwin naive_linear_twins[] = {LINEAR_ATTENTIONS(NAIVE_TWIN){NULL, NULL}};
