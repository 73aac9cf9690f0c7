// What benchmarks in C share: things that are compared take turns, and their ratios are taken turn by turn.
#ifndef DEV_BENCH_TURNS_H
#define DEV_BENCH_TURNS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TURNS_MAX = 64 };

static inline int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// The value below which `share` of them lie; between two of them where it falls there.
static inline double quantile(const double *values, int n, double share) {
    double sorted[TURNS_MAX], place = share * (n - 1);
    memcpy(sorted, values, (size_t)n * sizeof *values);
    qsort(sorted, (size_t)n, sizeof *sorted, ascending);
    int below = (int)place, above = below + 1 < n ? below + 1 : below;
    return sorted[below] + (place - below) * (sorted[above] - sorted[below]);
}

static inline double median(const double *values, int n) {
    return quantile(values, n, 0.5);
}

typedef struct {
    const char *work, *unit, *peer;
    double wanted; // 0: nothing
} Comparison;

// Prints a line, and adds one of JSON to the table of make bench (dev/bench/results.py) where that asks for one. `ours`
// and `theirs` are in units, by turn; a ratio above 1 says that ours is better, where less of a unit is better or,
// for rates, more.
static inline void report_turns(Comparison what, const double *ours, const double *theirs, int n, int is_rate) {
    double ratios[TURNS_MAX];
    for (int i = 0; i < n; i++) ratios[i] = is_rate ? ours[i] / theirs[i] : theirs[i] / ours[i];
    double ratio = median(ratios, n), low = quantile(ratios, n, 0.25), high = quantile(ratios, n, 0.75);
    printf("%-44s %9.4g %s, %s %.4g: %.2fx (%.2f .. %.2f)\n", what.work, median(ours, n), what.unit, what.peer,
           median(theirs, n), ratio, low, high);
    fflush(stdout);
    const char *path = getenv("BENCH_RESULTS");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    fprintf(file,
            "{\"work\": \"%s\", \"unit\": \"%s\", \"ours\": %.4g, \"peer\": \"%s\", \"theirs\": %.4g, \"ratio\": %.4f, "
            "\"low\": %.4f, \"high\": %.4f, \"rounds\": %d, \"wanted\": ",
            what.work, what.unit, median(ours, n), what.peer, median(theirs, n), ratio, low, high, n);
    fprintf(file, what.wanted > 0 ? "%g, \"share\": null}\n" : "null, \"share\": null}\n", what.wanted);
    fclose(file);
}

#endif
