#include "probe.h"
#include "attention/stack.h"
#include "core/base/memory.h"
#include "core/base/random.h"
#include "dev/feature_width.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const float FAR_ABOVE = 0x1p100f; // a delta that no sum reaches
enum { NO_HORIZON = 1 << 24 };           // so far that cosformer's cosine is 1

double *numbers(size_t count) {
    return memory_allocate_zeroed(count + 1, sizeof(double), "an experiment");
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void sort_numbers(double *values, size_t count) {
    qsort(values, count, sizeof *values, ascending);
}

double entropy_of(const double *weights, int n) {
    double sum = 0, entropy = 0;
    for (int j = 0; j < n; j++) sum += weights[j];
    for (int j = 0; j < n; j++)
        if (weights[j] > 0) entropy -= weights[j] / sum * log(weights[j] / sum);
    return entropy / log(n);
}

void entropies_add(Entropies *entropies, const double *weights, int T) {
    for (int i = ENTROPIES_FIRST_ROW - 1; i < T; i++) {
        double entropy = entropy_of(weights + (size_t)i * T, i + 1);
        int bin = (int)(entropies->bins * entropy);
        entropies->counts[bin < 0 ? 0 : bin >= entropies->bins ? entropies->bins - 1 : bin]++;
        entropies->sum += entropy, entropies->rows++;
    }
}

void entropies_print(const Entropies *entropies, const char *attention) {
    for (int b = 0; b < entropies->bins; b++)
        printf("%s,%.4g,%.6g,%.6g\n", attention, (b + 0.5) / entropies->bins, entropies->counts[b] / entropies->rows,
               entropies->sum / entropies->rows);
}

void probe_parse(const char *usage, const Option *items, int count, int argc, char **argv) {
    static Options options;
    Error error;
    error_set_program(argv[0]);
    options.usage = usage;
    options_add(&options, items, count);
    die_if(options_parse(&options, argc, argv, NULL, 0, NULL, &error), &error);
}

// ---- opening

Probe probe_open(const char *text, int T, int heads, int head_size, uint64_t seed) {
    AttentionConfig given = {.B = 1, .T = T, .C = heads * head_size, .NH = heads, .max_T = T, .seed = seed};
    AttentionStack stack;
    Error error;
    die_if(attention_stack_configure(&stack, text, &given, NULL, &error), &error);
    Probe probe = {.attention = stack.entries[0].attention, .config = stack.entries[0].config};
    size_t constants = attention_constant_count(probe.attention, &probe.config) + 1, rows = (size_t)T * given.C;
    probe.constants = memory_allocate_zeroed(constants, sizeof(real), "constants");
    probe.work = memory_allocate_zeroed(probe.attention->work_size(&probe.config) + 1, sizeof(real), "scratch");
    probe.qkv = memory_allocate_zeroed(3 * rows, sizeof(real), "queries, keys and values");
    probe.out = memory_allocate_zeroed(rows, sizeof(real), "the output");
    probe_draw(&probe, seed);
    return probe;
}

void probe_draw(Probe *probe, uint64_t seed) {
    probe->config.seed = seed;
    attention_draw(probe->attention, probe->constants, NULL, 0, &probe->config);
}

void probe_close(Probe *probe) {
    free(probe->constants), free(probe->work), free(probe->qkv), free(probe->out);
    *probe = (Probe){0};
}

void probe_run(Probe *probe) {
    probe->attention->forward(probe->out, NULL, probe->qkv, probe->constants, NULL, probe->work, &probe->config);
}

int probe_width(const Probe *probe) {
    return feature_width(probe->attention, &probe->config);
}

// ---- scores, weights, sums

// Row i, column c of the values of a single head.
static real *value_at(Probe *probe, int i, int c) {
    int C = probe->config.C;
    return probe->qkv + (size_t)i * 3 * C + 2 * C + c;
}

// The values become 1 where key `first` + c meets column c, else 0.
static void set_one_key_a_column(Probe *probe, int first) {
    int d = probe->config.HS;
    for (int i = 0; i < probe->config.T; i++)
        for (int c = 0; c < d; c++) *value_at(probe, i, c) = i == first + c;
}

// Runs with a denominator of its own, delta instead of the sum, and without a horizon; returns what the output was
// divided by. Softmax and uniform have no delta.
static double run_undivided(Probe *probe) {
    AttentionConfig kept = probe->config;
    int has_delta = probe->attention->uses & USES_DELTA && kept.normalizer == NORMALIZER_KERNEL;
    if (has_delta) probe->config.delta = FAR_ABOVE, probe->config.denominator = DENOMINATOR_CLAMP;
    probe->config.max_T = NO_HORIZON;
    probe_run(probe);
    probe->config = kept;
    return has_delta ? FAR_ABOVE : 1;
}

// weights (n, m) of a softmax whose row i also has i + 1 keys that are 0, of score exp(0) = 1 each: what remains of 1
// for these is the scale of the others.
static void unscale(double *weights, int n, int m) {
    for (int i = 0; i < n; i++) {
        double rest = 1;
        for (int j = 0; j < m; j++) rest -= weights[(size_t)i * m + j];
        for (int j = 0; j < m; j++) weights[(size_t)i * m + j] *= (i + 1) / rest;
    }
}

static void scores_of_few_keys(double *scores, Probe *probe, const double *queries, const double *keys, int n, int m) {
    int d = probe->config.HS, C = probe->config.C;
    double factor = 1;
    for (int i = 0; i < m + n; i++)
        for (int c = 0; c < d; c++) {
            probe->qkv[(size_t)i * 3 * C + c] = i < m ? 0 : (real)queries[(size_t)(i - m) * d + c];
            probe->qkv[(size_t)i * 3 * C + C + c] = i < m ? (real)keys[(size_t)i * d + c] : 0;
        }
    for (int first = 0; first < m; first += d) {
        set_one_key_a_column(probe, first);
        factor = run_undivided(probe);
        for (int i = 0; i < n; i++)
            for (int c = 0; c < d && first + c < m; c++)
                scores[(size_t)i * m + first + c] = factor * probe->out[(size_t)(m + i) * C + c];
    }
    if (factor == 1) unscale(scores, n, m);
}

void probe_scores(double *scores, Probe *probe, const double *queries, const double *keys, int n, int m) {
    if (n >= m) {
        scores_of_few_keys(scores, probe, queries, keys, n, m);
        return;
    }
    double *turned = numbers((size_t)n * m); // scores are symmetric, and each key costs time
    scores_of_few_keys(turned, probe, keys, queries, m, n);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < m; j++) scores[(size_t)i * m + j] = turned[(size_t)j * n + i];
    free(turned);
}

void probe_weights(double *weights, Probe *probe) {
    int d = probe->config.HS, T = probe->config.T;
    for (int first = 0; first < T; first += d) {
        set_one_key_a_column(probe, first);
        probe_run(probe);
        for (int i = 0; i < T; i++)
            for (int c = 0; c < d && first + c < T; c++)
                weights[(size_t)i * T + first + c] = first + c <= i ? probe->out[(size_t)i * d + c] : 0;
    }
}

void probe_sums(double *sums, Probe *probe) {
    int d = probe->config.HS;
    for (int i = 0; i < probe->config.T; i++)
        for (int c = 0; c < d; c++) *value_at(probe, i, c) = 1;
    double factor = run_undivided(probe);
    for (int i = 0; i < probe->config.T; i++) sums[i] = factor * probe->out[(size_t)i * d];
}

// ---- data

void probe_normal(double *out, size_t count, uint64_t seed, const char *purpose) {
    uint64_t key = random_key(seed, purpose, 0);
    for (size_t i = 0; i < count; i++) out[i] = random_normal(key, i);
}

static double dot(const double *a, const double *b, int d) {
    double sum = 0;
    for (int c = 0; c < d; c++) sum += a[c] * b[c];
    return sum;
}

void probe_pair(double *u, double *key, int d, double x, uint64_t seed) {
    probe_normal(u, d, seed, "direction");
    probe_normal(key, d, seed, "other direction");
    double norm = sqrt(dot(u, u, d));
    for (int c = 0; c < d; c++) u[c] /= norm;
    double along = dot(u, key, d);
    for (int c = 0; c < d; c++) key[c] -= along * u[c];
    norm = sqrt(dot(key, key, d));
    for (int c = 0; c < d; c++) key[c] = x * u[c] + sqrt(fmax(0, 1 - x * x)) * key[c] / norm;
}

void probe_fill(Probe *probe, int which, int head, const double *rows) {
    int d = probe->config.HS, C = probe->config.C;
    for (int i = 0; i < probe->config.T; i++)
        for (int c = 0; c < d; c++)
            probe->qkv[(size_t)i * 3 * C + which * C + head * d + c] = (real)rows[(size_t)i * d + c];
}
