// How near is the output of each feature map to that of the exact kernel, yat-spherical, on the same q, k and v?
//
//   build/dev/experiments/kernel/fidelity [--data module|independent|correlated] [--T T] [--R R] [--M M] [--P P] ...
//
// The data, 4 heads of 16 as in the paper's protocol:
//   module       x ~ N(0,1) of width 64 through projections with biases (uniform within 1/8, as PyTorch draws them);
//                compared is the module's output behind its output projection, eps 1e-6: the paper's protocol
//   independent  q, k, v ~ N(0,1), compared is the attention's output
//   correlated   k, v ~ N(0,1), each query has the cosine --rho with one of the keys that it sees
// Every variant is measured over --datasets sets of data times --draws draws of its constants. Within one set the error
// is taken apart: the mean output over the draws has the bias, the scatter around it the variance; both, like the error
// itself, in units of the exact output's length. A line of CSV for each variant.
#include "probe.h"
#include "core/base/memory.h"
#include "core/base/random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 4, SIZE = 16, WIDTH = HEADS * SIZE, RUNS_MAX = 4096 };
enum { DATA_MODULE, DATA_INDEPENDENT, DATA_CORRELATED };
#define DATA_NAMES "module|independent|correlated"

typedef struct {
    int data, T, R, M, P, datasets, draws;
    float rho;
    const char *only; // one variant's name; NULL: all
} Settings;

typedef struct {  // one set of data
    double *qkv;  // (T, 3 WIDTH)
    double *proj; // (WIDTH + 1, WIDTH) with the bias as its last row; NULL: none
} Data;

// ---- the data

static void uniform_numbers(double *out, size_t count, double most, uint64_t seed, const char *purpose) {
    uint64_t key = random_key(seed, purpose, 0);
    for (size_t i = 0; i < count; i++) out[i] = most * (2 * random_uniform(key, i) - 1);
}

// out (rows, columns) = in (rows, WIDTH) W (WIDTH, columns) + b, the last row of `weights`
static void project(double *out, const double *in, const double *weights, int rows, int columns) {
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) {
            double sum = weights[(size_t)WIDTH * columns + j];
            for (int c = 0; c < WIDTH; c++) sum += in[(size_t)i * WIDTH + c] * weights[(size_t)c * columns + j];
            out[(size_t)i * columns + j] = sum;
        }
}

static void make_module(Data *data, int T, uint64_t seed) {
    double *x = numbers((size_t)T * WIDTH), *weights = numbers((WIDTH + 1) * 3 * WIDTH);
    probe_normal(x, (size_t)T * WIDTH, seed, "x");
    uniform_numbers(weights, (WIDTH + 1) * 3 * WIDTH, 1 / sqrt(WIDTH), seed, "qkv");
    project(data->qkv, x, weights, T, 3 * WIDTH);
    data->proj = numbers((WIDTH + 1) * WIDTH);
    uniform_numbers(data->proj, (WIDTH + 1) * WIDTH, 1 / sqrt(WIDTH), seed, "projection");
    free(x), free(weights);
}

// Query i of every head is turned towards one of the keys 0 .. i: its cosine with that key becomes rho.
static void correlate(double *qkv, int T, double rho, uint64_t seed) {
    uint64_t choice = random_key(seed, "partner", 0);
    for (int i = 0; i < T; i++)
        for (int h = 0; h < HEADS; h++) {
            double *q = qkv + (size_t)i * 3 * WIDTH + h * SIZE, k2 = 0, q2 = 0, along = 0, across = 0;
            int partner = (int)random_below(choice, (uint64_t)i * HEADS + h, (uint64_t)i + 1);
            const double *k = qkv + (size_t)partner * 3 * WIDTH + WIDTH + h * SIZE;
            for (int c = 0; c < SIZE; c++) k2 += k[c] * k[c], q2 += q[c] * q[c], along += q[c] * k[c];
            for (int c = 0; c < SIZE; c++) q[c] -= along / k2 * k[c], across += q[c] * q[c];
            for (int c = 0; c < SIZE; c++)
                q[c] = sqrt(q2) * (rho * k[c] / sqrt(k2) + sqrt(1 - rho * rho) * q[c] / sqrt(across));
        }
}

static Data make_data(const Settings *s, uint64_t seed) {
    Data data = {.qkv = numbers((size_t)s->T * 3 * WIDTH)};
    if (s->data == DATA_MODULE)
        make_module(&data, s->T, seed);
    else
        probe_normal(data.qkv, (size_t)s->T * 3 * WIDTH, seed, "qkv");
    if (s->data == DATA_CORRELATED) correlate(data.qkv, s->T, s->rho, seed);
    return data;
}

// ---- outputs and their distances

static void output_of(double *out, Probe *probe, const Data *data) {
    size_t T = (size_t)probe->config.T;
    for (size_t i = 0; i < T * 3 * WIDTH; i++) probe->qkv[i] = (real)data->qkv[i];
    probe_run(probe);
    double *heads = numbers(T * WIDTH);
    for (size_t i = 0; i < T * WIDTH; i++) heads[i] = probe->out[i];
    if (data->proj)
        project(out, heads, data->proj, (int)T, WIDTH);
    else
        memcpy(out, heads, T * WIDTH * sizeof *out);
    free(heads);
}

static double squared_distance(const double *a, const double *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (a[i] - b[i]) * (a[i] - b[i]);
    return sum;
}

// Mean over the positions of the cosine between two outputs (n, WIDTH).
static double mean_cosine(const double *a, const double *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++, a += WIDTH, b += WIDTH) {
        double ab = 0, aa = 0, bb = 0;
        for (int c = 0; c < WIDTH; c++) ab += a[c] * b[c], aa += a[c] * a[c], bb += b[c] * b[c];
        sum += ab / sqrt(fmax(aa * bb, 1e-300));
    }
    return sum / (double)n;
}

typedef struct {
    double errors[RUNS_MAX]; // of every run
    int runs;
    double cosine, mse, bias2, variance; // sums
} Tally;

// One set of data: `draws` outputs of a variant beside the exact one.
static void tally_data(Tally *tally, Probe *probe, const Data *data, const double *exact, int draws) {
    size_t T = (size_t)probe->config.T, n = T * WIDTH;
    double *outs = numbers(n * draws), *mean = numbers(n), *zero = numbers(n), scatter = 0;
    double length2 = squared_distance(exact, zero, n);
    for (int s = 0; s < draws; s++) {
        double *out = outs + n * s;
        probe_draw(probe, 1 + (uint64_t)s);
        output_of(out, probe, data);
        double distance2 = squared_distance(out, exact, n);
        tally->errors[tally->runs++] = sqrt(distance2 / length2);
        tally->cosine += mean_cosine(out, exact, T) / draws;
        tally->mse += distance2 / (double)n / draws;
        for (size_t i = 0; i < n; i++) mean[i] += out[i] / draws;
    }
    for (int s = 0; s < draws; s++) scatter += squared_distance(outs + n * s, mean, n) / fmax(draws - 1, 1);
    tally->variance += scatter / length2;
    // the mean over so many draws still scatters, which is no bias
    tally->bias2 += fmax(0, squared_distance(mean, exact, n) - scatter / draws) / length2;
    free(outs), free(mean), free(zero);
}

static void print_tally(const char *name, const char *text, int width, Tally *t, const Settings *s) {
    char data[32];
    double mean = 0, squares = 0;
    for (int i = 0; i < t->runs; i++) mean += t->errors[i] / t->runs;
    for (int i = 0; i < t->runs; i++) squares += pow(t->errors[i] - mean, 2) / fmax(t->runs - 1, 1);
    sort_numbers(t->errors, (size_t)t->runs);
    double median = (t->errors[(t->runs - 1) / 2] + t->errors[t->runs / 2]) / 2;
    printf("%s,%g,%d,%d,%d,%d,%s,%s,%d,%d,%d,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g\n",
           choice_name(DATA_NAMES, s->data, data, sizeof data), s->rho, s->T, s->R, s->M, s->P, name, text, width,
           s->datasets, s->draws, mean, sqrt(squares), median, t->cosine / s->datasets, t->mse / s->datasets,
           sqrt(t->bias2 / s->datasets), sqrt(t->variance / s->datasets));
    fflush(stdout);
}

// ---- the variants

typedef struct {
    const char *name, *attention;
    int wide;  // what M is multiplied with: 0: nothing, 1: P, 2: R P, so that all have F = R M P features
    int drawn; // has random constants
} Variant;

static const Variant variants[] = {
    {"yat-spherical", "yat-spherical", 0, 0}, // beside itself: 0
    {"uniform", "uniform", 0, 0},
    {"softmax", "softmax", 0, 0},
    {"elu", "elu", 0, 0},
    {"favor", "favor:M=64", 0, 1},
    {"favor F", "favor", 2, 1},
    {"anchor", "slay:poly=anchor", 0, 1},
    {"exact", "slay:poly=exact", 0, 1},
    {"nystrom", "slay:poly=nystrom", 0, 1},
    {"tensorsketch", "slay:poly=tensorsketch", 0, 1},
    {"maclaurin", "slay:poly=maclaurin", 0, 1},
    {"rademacher", "slay:poly=rademacher", 0, 1},
    {"none", "slay:poly=none", 1, 1},
    {"hadamard", "slay:fusion=hadamard", 1, 1},
    {"flat", "slay:fusion=flat", 2, 1},
};

// The variant as the trainer's command line has it.
static void name_variant(char *text, size_t room, const Variant *v, const Settings *s, const char *eps) {
    int is_slay = !strncmp(v->attention, "slay", 4), length = snprintf(text, room, "%s", v->attention);
    int M = s->M * (v->wide > 0 ? s->P : 1) * (v->wide > 1 ? s->R : 1);
    if (is_slay || v->wide) length += snprintf(text + length, room - length, ":M=%d", M);
    if (is_slay || strstr(text, "yat")) length += snprintf(text + length, room - length, ":eps=%s", eps);
    if (is_slay && v->wide < 2) length += snprintf(text + length, room - length, ":R=%d", s->R);
    if (is_slay && v->wide < 1) snprintf(text + length, room - length, ":P=%d", s->P);
}

static void measure(const Variant *variant, const Data *data, double *const *exact, const char *eps,
                    const Settings *s) {
    static Tally tally;
    tally = (Tally){.runs = 0};
    char text[200];
    name_variant(text, sizeof text, variant, s, eps);
    Probe probe = probe_open(text, s->T, HEADS, SIZE, 1);
    for (int i = 0; i < s->datasets; i++) tally_data(&tally, &probe, &data[i], exact[i], variant->drawn ? s->draws : 1);
    Settings shown = *s;
    if (!variant->drawn) shown.draws = 1;
    print_tally(variant->name, text, probe_width(&probe), &tally, &shown);
    probe_close(&probe);
}

int main(int argc, char **argv) {
    Settings s = {DATA_MODULE, 128, 2, 8, 8, 3, 4, 0, NULL};
    const Option items[] = {
        {"", "data", 0, OPTION_CHOICE, &s.data, 0, 0, DATA_NAMES, "what q, k and v are", 0, ""},
        {"", "T", 0, OPTION_INT, &s.T, 1, 1 << 16, NULL, "tokens", 0, ""},
        {"", "R", 0, OPTION_INT, &s.R, 1, 64, NULL, "quadrature nodes", 0, ""},
        {"", "M", 0, OPTION_INT, &s.M, 1, 4096, NULL, "random features for each", 0, ""},
        {"", "P", 0, OPTION_INT, &s.P, 1, 4096, NULL, "polynomial features", 0, ""},
        {"", "rho", 0, OPTION_FLOAT, &s.rho, 0, 1, NULL, "cosine of a query with its key", 0, ""},
        {"", "datasets", 0, OPTION_INT, &s.datasets, 1, 64, NULL, "sets of data", 0, ""},
        {"", "draws", 0, OPTION_INT, &s.draws, 1, 64, NULL, "draws of the constants for each", 0, ""},
        {"", "only", 0, OPTION_STRING, &s.only, 0, 0, "NAME", "one variant", 0, ""}};
    probe_parse("usage: fidelity [options]\nOutputs of feature maps beside the exact kernel's.", items,
                sizeof items / sizeof *items, argc, argv);
    const char *eps = s.data == DATA_MODULE ? "1e-6" : "1e-3";
    char reference[64];
    Data *data = memory_allocate_zeroed((size_t)s.datasets, sizeof *data, "data");
    double **exact = memory_allocate_zeroed((size_t)s.datasets, sizeof *exact, "exact outputs");
    snprintf(reference, sizeof reference, "yat-spherical:eps=%s", eps);
    Probe probe = probe_open(reference, s.T, HEADS, SIZE, 1);
    for (int i = 0; i < s.datasets; i++) {
        data[i] = make_data(&s, (uint64_t)i);
        exact[i] = numbers((size_t)s.T * WIDTH);
        output_of(exact[i], &probe, &data[i]);
    }
    printf("data,rho,T,R,M,P,variant,attention,F,datasets,draws,rel_l2,sd,median,cosine,mse,bias,spread\n");
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++)
        if (!s.only || !strcmp(s.only, variants[v].name)) measure(&variants[v], data, exact, eps, &s);
    for (int i = 0; i < s.datasets; i++) free(data[i].qkv), free(data[i].proj), free(exact[i]);
    free(data), free(exact);
    probe_close(&probe);
    return 0;
}
