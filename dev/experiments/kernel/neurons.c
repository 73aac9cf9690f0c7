// Five neurons in the plane: which one answers a point most strongly, under each kernel? The paper's first figure.
//
//   build/dev/experiments/kernel/neurons --attentions LIST [--cells n] [--seed n]
//
// The neurons are keys, the points queries at the middles of n x n cells of the square from -3 to 3. Random maps are
// one draw. A line of CSV for each attention and row of cells: the number of the strongest neuron for each cell, and
// (`share`) the strongest one's part of the sum over the five, in hundredths, as a list with spaces.
#include "probe.h"
#include "core/base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NEURONS = 5 };
static const double EDGE = 3;
// Of different lengths and directions, the last almost behind the first.
static const double places[2 * NEURONS] = {1.5, 1.0, -1.0, 1.8, -2.0, -0.5, 0.4, -1.2, 0.8, 0.5};

typedef struct {
    const char *attentions;
    int cells, seed;
} Settings;

static void print_row(const char *attention, const char *what, int row, const double *values, int n) {
    printf("%s,%s,%d,", attention, what, row);
    for (int i = 0; i < n; i++) printf("%s%.0f", i ? " " : "", values[i]);
    printf("\n");
}

static void measure(const char *attention, const double *points, const Settings *s) {
    int n = s->cells * s->cells;
    double *scores = numbers((size_t)n * NEURONS), *winner = numbers(n), *share = numbers(n);
    Probe probe = probe_open(attention, n + NEURONS, 1, 2, (uint64_t)s->seed);
    probe_scores(scores, &probe, points, places, n, NEURONS);
    for (int i = 0; i < n; i++) {
        const double *of_point = scores + (size_t)i * NEURONS;
        double sum = 0;
        for (int k = 0; k < NEURONS; k++) {
            if (of_point[k] > of_point[(int)winner[i]]) winner[i] = k;
            sum += of_point[k];
        }
        share[i] = sum > 0 ? 100 * of_point[(int)winner[i]] / sum : 0;
        if (!(sum > 0)) winner[i] = -1; // none answers
    }
    for (int row = 0; row < s->cells; row++) print_row(attention, "winner", row, winner + row * s->cells, s->cells);
    for (int row = 0; row < s->cells; row++) print_row(attention, "share", row, share + row * s->cells, s->cells);
    probe_close(&probe);
    free(scores), free(winner), free(share);
}

int main(int argc, char **argv) {
    Settings s = {"yat;slay", 60, 1};
    const Option items[] = {{"", "attentions", 0, OPTION_STRING, &s.attentions, 0, 0, "LIST", "with semicolons", 0, ""},
                            {"", "cells", 0, OPTION_INT, &s.cells, 2, 400, NULL, "each way", 0, ""},
                            {"", "seed", 0, OPTION_INT, &s.seed, 0, 1 << 30, NULL, "of the constants", 0, ""}};
    probe_parse("usage: neurons [options]\nWhich of five neurons answers a point most strongly.", items,
                sizeof items / sizeof *items, argc, argv);
    double *points = numbers((size_t)2 * s.cells * s.cells);
    for (int i = 0; i < s.cells * s.cells; i++) { // the first row is the uppermost
        points[2 * i] = EDGE * (2 * (i % s.cells + 0.5) / s.cells - 1);
        points[2 * i + 1] = EDGE * (1 - 2 * (i / s.cells + 0.5) / s.cells);
    }
    printf("attention,what,row,cells\n");
    for (int k = 0; k < NEURONS; k++) printf("neuron,place,%d,%g %g\n", k, places[2 * k], places[2 * k + 1]);
    for (char *rest = memory_copy_string(s.attentions), *name; (name = strsep(&rest, ";"));) measure(name, points, &s);
    free(points);
    return 0;
}
