// The quadrature behind slay, x^2 / (2 + eps - 2x) as a sum of R exponentials, and the random features of each.
//
//   build/dev/experiments/kernel/quadrature --table nodes|values|shares|variance|eps [--eps X] [--draws n]
//
//   nodes     t_r, weights, s_r for some R
//   values    the kernel by R nodes over x, beside the exact one (R = 0)
//   shares    how much each node contributes for R = 3: at given x, and (x "mean") on average over independent unit
//             vectors of 64 dimensions
//   variance  relative variance of one random feature at each node of R = 1, 2, 3: exp(4 s (1 + x)) - 1, and as
//             measured from the library's features over --draws heads
//   eps       what epsilon changes: the exact kernel and R nodes at some x, for several epsilons
#include "probe.h"
#include "attention/quadrature.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int counts[] = {1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 32, 64};
enum { COUNTS = sizeof counts / sizeof *counts, POINTS = 401 };

typedef struct { // s_r and w_r
    double s[QUADRATURE_NODES_MAX], w[QUADRATURE_NODES_MAX];
    int R;
} Rule;

static Rule rule_of(int R, double eps) {
    Rule rule = {.R = R};
    quadrature_laguerre(rule.s, rule.w, R);
    for (int r = 0; r < R; r++) rule.s[r] /= 2 + eps, rule.w[r] /= 2 + eps;
    return rule;
}

static double term(const Rule *rule, int r, double x) {
    return rule->w[r] * x * x * exp(2 * rule->s[r] * x);
}

static double by_nodes(const Rule *rule, double x) {
    double sum = 0;
    for (int r = 0; r < rule->R; r++) sum += term(rule, r, x);
    return sum;
}

static void print_nodes(double eps) {
    printf("R,r,t,weight,s\n");
    for (int i = 0; i < COUNTS && counts[i] <= 8; i++) {
        double t[QUADRATURE_NODES_MAX], alpha[QUADRATURE_NODES_MAX];
        quadrature_laguerre(t, alpha, counts[i]);
        for (int r = 0; r < counts[i]; r++)
            printf("%d,%d,%.9g,%.9g,%.9g\n", counts[i], r + 1, t[r], alpha[r], t[r] / (2 + eps));
    }
}

static void print_values(double eps) {
    printf("R,x,kernel\n");
    for (int i = -1; i < COUNTS; i++) {
        Rule rule = rule_of(i < 0 ? 1 : counts[i], eps);
        for (int k = 0; k < POINTS; k++) {
            double x = -1 + 2.0 * k / (POINTS - 1), exact = x * x / (2 + eps - 2 * x);
            printf("%d,%.4g,%.9g\n", i < 0 ? 0 : counts[i], x, i < 0 ? exact : by_nodes(&rule, x));
        }
    }
}

// The mean of each node's term over x = cosine of independent vectors in d dimensions, density (1 - x^2)^((d - 3) / 2).
static void mean_terms(double *means, const Rule *rule, int d) {
    double total = 0, steps = 20000;
    for (int r = 0; r < rule->R; r++) means[r] = 0;
    for (double k = 0.5; k < steps; k++) {
        double x = -1 + 2 * k / steps, density = pow(1 - x * x, (d - 3) / 2.0);
        total += density;
        for (int r = 0; r < rule->R; r++) means[r] += density * term(rule, r, x);
    }
    for (int r = 0; r < rule->R; r++) means[r] /= total;
}

static void print_shares(double eps) {
    static const double places[] = {-1, -0.5, 0.25, 0.5, 0.9, 0.99, 1};
    Rule rule = rule_of(3, eps);
    double means[3];
    printf("x,node,share,value\n");
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        for (int r = 0; r < rule.R; r++)
            printf("%g,%d,%.6g,%.6g\n", places[i], r + 1, term(&rule, r, places[i]) / by_nodes(&rule, places[i]),
                   term(&rule, r, places[i]));
    mean_terms(means, &rule, 64);
    for (int r = 0; r < rule.R; r++)
        printf("mean,%d,%.6g,%.6g\n", r + 1, means[r] / (means[0] + means[1] + means[2]), means[r]);
}

// One feature a head, so every head is a draw of its own. The estimate of head h is q and k through its one feature.
static double measured_variance(double s, double x, int draws) {
    enum { SIZE = 4 };
    Probe probe = probe_open("slay:poly=none:R=1:M=1:P=1:chunk=0", 2, draws, SIZE, 1);
    AttentionTensor list[ATTENTION_TENSORS_MAX];
    size_t total;
    for (int i = attention_constants(probe.attention, &probe.config, list, &total) - 1; i >= 0; i--)
        if (!strcmp(list[i].name, "quad_nodes")) probe.constants[list[i].offset] = (real)s;
    double rows[2 * SIZE] = {0}, mean = 0, squares = 0;
    for (int h = 0; h < draws; h++) { // row 0 is the key, with value 1; row 1 the query, with its own key's value 0
        probe_pair(rows + SIZE, rows, SIZE, x, (uint64_t)h);
        probe_fill(&probe, 1, h, rows);
        probe_fill(&probe, 0, h, rows);
        probe.qkv[2 * probe.config.C + h * SIZE] = 1;
    }
    probe.config.delta = 0x1p100f, probe.config.denominator = DENOMINATOR_CLAMP;
    probe_run(&probe);
    for (int h = 0; h < draws; h++) {
        double estimate = probe.out[probe.config.C + h * SIZE] * 0x1p100;
        mean += estimate / draws, squares += estimate * estimate / draws;
    }
    probe_close(&probe);
    return (squares - mean * mean) / (mean * mean);
}

static void print_variance(double eps, int draws) {
    static const double places[] = {-1, -0.5, 0, 0.5, 1};
    printf("R,node,s,x,closed_form,measured,draws\n");
    for (int R = 1; R <= 3; R++) {
        Rule rule = rule_of(R, eps);
        for (int r = 0; r < R; r++)
            for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
                double closed = exp(4 * rule.s[r] * (1 + places[i])) - 1;
                printf("%d,%d,%.6g,%g,%.6g,", R, r + 1, rule.s[r], places[i], closed);
                // beyond that the sample variance of such a skewed number needs more draws
                if (closed < 2)
                    printf("%.6g,%d\n", measured_variance(rule.s[r], places[i], draws), draws);
                else
                    printf(",0\n");
            }
    }
}

static void print_eps(void) {
    static const double values[] = {1e-6, 1e-3, 1e-2, 0.1, 1}, places[] = {0.5, 0.9, 0.99, 1};
    printf("eps,R,x,kernel\n");
    for (size_t e = 0; e < sizeof values / sizeof *values; e++)
        for (int R = 0; R <= 3; R++)
            for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
                double x = places[i], exact = x * x / (2 + values[e] - 2 * x);
                Rule rule = rule_of(R ? R : 1, values[e]);
                printf("%g,%d,%g,%.9g\n", values[e], R, x, R ? by_nodes(&rule, x) : exact);
            }
}

int main(int argc, char **argv) {
    enum { NODES, VALUES, SHARES, VARIANCE, EPS };
    int table = VALUES, draws = 65536;
    float eps = 1e-3f;
    const Option items[] = {
        {"", "table", 0, OPTION_CHOICE, &table, 0, 0, "nodes|values|shares|variance|eps", "what to print", 0, ""},
        {"", "eps", 0, OPTION_FLOAT, &eps, 1e-9, 1, NULL, "of the kernel", 0, ""},
        {"", "draws", 0, OPTION_INT, &draws, 2, 1 << 17, NULL, "of features, for the variance", 0, ""}};
    probe_parse("usage: quadrature [options]\nThe quadrature behind slay.", items, sizeof items / sizeof *items, argc,
                argv);
    if (table == NODES) print_nodes(eps);
    if (table == VALUES) print_values(eps);
    if (table == SHARES) print_shares(eps);
    if (table == VARIANCE) print_variance(eps, draws);
    if (table == EPS) print_eps();
    return 0;
}
