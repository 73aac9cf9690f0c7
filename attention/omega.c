#include "omega.h"
#include "core/base/memory.h"
#include "core/base/random.h"

#include <math.h>
#include <stdlib.h>

uint64_t omega_key(const char *tensor, int layer, const AttentionConfig *config) {
    return random_key(config->seed, tensor, (uint64_t)layer);
}

// Constants are floats in checkpoints, so they are rounded here, in double builds too.
static real rounded(double x) {
    return (real)(float)x;
}

static double length_of(const double *vector, int d) {
    double sum = 0;
    for (int i = 0; i < d; i++) sum += vector[i] * vector[i];
    return sqrt(sum);
}

// Makes the n <= d rows of `vectors` (n, d) orthonormal. Twice, since one pass leaves an error where rows are close.
static void orthonormalise(double *vectors, int n, int d) {
    for (int i = 0; i < n; i++) {
        double *row = vectors + (size_t)i * d;
        for (int pass = 0; pass < 2; pass++)
            for (int j = 0; j < i; j++) {
                const double *earlier = vectors + (size_t)j * d;
                double dot = 0;
                for (int c = 0; c < d; c++) dot += row[c] * earlier[c];
                for (int c = 0; c < d; c++) row[c] -= dot * earlier[c];
            }
        double length = length_of(row, d);
        for (int c = 0; c < d; c++) row[c] /= length;
    }
}

// n vectors (n, d) from entries first, first + 1, ... of the stream. The directions are a random rotation, independent
// of the lengths; so the lengths can be those of the very vectors the directions were made from.
static void draw_block(double *vectors, int n, int d, uint64_t key, size_t first, int orthogonal) {
    double lengths[n];
    for (int i = 0; i < n * d; i++) vectors[i] = random_normal(key, first + (size_t)i);
    if (!orthogonal) return;
    for (int i = 0; i < n; i++) lengths[i] = length_of(vectors + (size_t)i * d, d);
    orthonormalise(vectors, n, d);
    for (int i = 0; i < n * d; i++) vectors[i] *= lengths[i / d];
}

void omega_draw(real *omega, int groups, int d, int M, uint64_t key, const AttentionConfig *config) {
    double *vectors = memory_allocate((size_t)d * d, sizeof(double), "random projections");
    for (int group = 0; group < groups; group++)
        for (int from = 0; from < M; from += d) {
            int n = M - from < d ? M - from : d;
            size_t first = ((size_t)group * M + from) * d;
            draw_block(vectors, n, d, key, first, config->omega == OMEGA_ORTHOGONAL);
            for (int m = 0; m < n; m++)
                for (int c = 0; c < d; c++)
                    omega[((size_t)group * d + c) * M + from + m] = rounded(vectors[(size_t)m * d + c]);
        }
    free(vectors);
}

void omega_draw_normal(real *out, size_t count, double scale, uint64_t key) {
    for (size_t i = 0; i < count; i++) out[i] = rounded(scale * random_normal(key, i));
}

void omega_draw_signs(real *out, size_t count, double scale, uint64_t key) {
    for (size_t i = 0; i < count; i++) out[i] = rounded(random_below(key, i, 2) ? scale : -scale);
}

void omega_draw_exponential(real *out, size_t count, double mean, uint64_t key) {
    for (size_t i = 0; i < count; i++) out[i] = rounded(-mean * log1p(-random_uniform(key, i)));
}

void omega_draw_unit(real *out, int count, int d, uint64_t key) {
    double vector[d];
    for (int p = 0; p < count; p++) {
        for (int c = 0; c < d; c++) vector[c] = random_normal(key, (size_t)p * d + c);
        double length = length_of(vector, d);
        for (int c = 0; c < d; c++) out[(size_t)p * d + c] = rounded(vector[c] / length);
    }
}
