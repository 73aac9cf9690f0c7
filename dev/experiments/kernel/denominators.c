// The sums that rows are divided by, Z_i = sum over j <= i of the scores: how they are distributed, how many are not
// positive, how much they change from one draw of the constants to the next.
//
//   build/dev/experiments/kernel/denominators --attentions LIST [--T T] [--size d] [--draws n] [--bins n]
//
// q and k are standard normal and the same for every draw. With --bins 0 a line of CSV for each attention: quantiles of
// Z over all rows and draws, the share that is not positive, and the scatter of a row's Z over the draws in units of
// its mean, as the median over the rows. Otherwise a histogram of log10 Z from -8 to 8, with the rows that have none
// (Z <= 0) in a bin of their own.
#include "probe.h"
#include "core/base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *attentions;
    int T, size, draws, bins;
} Settings;

// all (draws, T)
static void fill(double *all, Probe *probe, const Settings *s) {
    double *rows = numbers((size_t)s->T * s->size);
    for (int which = 0; which < 2; which++) {
        probe_normal(rows, (size_t)s->T * s->size, 1, which ? "keys" : "queries");
        probe_fill(probe, which, 0, rows);
    }
    for (int draw = 0; draw < s->draws; draw++) {
        probe_draw(probe, 1 + (uint64_t)draw);
        probe_sums(all + (size_t)draw * s->T, probe);
    }
    free(rows);
}

// The median over the rows of standard deviation over mean.
static double instability(const double *all, const Settings *s) {
    double *ratios = numbers(s->T);
    for (int i = 0; i < s->T; i++) {
        double mean = 0, squares = 0;
        for (int draw = 0; draw < s->draws; draw++) mean += all[(size_t)draw * s->T + i] / s->draws;
        for (int draw = 0; draw < s->draws; draw++) squares += pow(all[(size_t)draw * s->T + i] - mean, 2);
        ratios[i] = sqrt(squares / fmax(s->draws - 1, 1)) / fabs(mean);
    }
    sort_numbers(ratios, (size_t)s->T);
    double median = ratios[s->T / 2];
    free(ratios);
    return median;
}

static void print_quantiles(const char *attention, int width, double *all, const Settings *s) {
    size_t n = (size_t)s->T * s->draws;
    double scatter = instability(all, s), not_positive = 0;
    for (size_t i = 0; i < n; i++) not_positive += !(all[i] > 0);
    sort_numbers(all, n);
    printf("%s,%d,%d,%d,%d,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g\n", attention, width, s->T, s->size, s->draws, all[0],
           all[n / 100], all[n / 2], all[n - 1], not_positive / (double)n, scatter);
}

static void print_histogram(const char *attention, const double *all, const Settings *s) {
    size_t n = (size_t)s->T * s->draws;
    double *counts = numbers(s->bins), not_positive = 0;
    for (size_t i = 0; i < n; i++) {
        int bin = (int)floor((log10(fmax(all[i], 1e-300)) + 8) / 16 * s->bins);
        if (!(all[i] > 0))
            not_positive++;
        else
            counts[bin < 0 ? 0 : bin >= s->bins ? s->bins - 1 : bin]++;
    }
    printf("%s,not positive,%.6g\n", attention, not_positive / (double)n);
    for (int b = 0; b < s->bins; b++)
        if (counts[b] > 0) printf("%s,%.6g,%.6g\n", attention, -8 + 16 * (b + 0.5) / s->bins, counts[b] / (double)n);
    free(counts);
}

static void measure(const char *attention, const Settings *s) {
    double *all = numbers((size_t)s->T * s->draws);
    Probe probe = probe_open(attention, s->T, 1, s->size, 1);
    fill(all, &probe, s);
    if (s->bins)
        print_histogram(attention, all, s);
    else
        print_quantiles(attention, probe_width(&probe), all, s);
    probe_close(&probe);
    free(all);
}

int main(int argc, char **argv) {
    Settings s = {"slay", 256, 64, 16, 0};
    const Option items[] = {
        {"", "attentions", 0, OPTION_STRING, &s.attentions, 0, 0, "LIST", "with semicolons", 0, ""},
        {"", "T", 0, OPTION_INT, &s.T, 1, 1 << 16, NULL, "tokens", 0, ""},
        {"", "size", 0, OPTION_INT, &s.size, 1, 1024, NULL, "of the head", 0, ""},
        {"", "draws", 0, OPTION_INT, &s.draws, 1, 1 << 16, NULL, "of the constants", 0, ""},
        {"", "bins", 0, OPTION_INT, &s.bins, 0, 1000, NULL, "of the histogram; 0: quantiles", 0, ""}};
    probe_parse("usage: denominators [options]\nThe sums that rows are divided by.", items,
                sizeof items / sizeof *items, argc, argv);
    printf(s.bins ? "attention,log10,share\n"
                  : "attention,F,T,d,draws,least,percentile_1,median,most,not_positive,scatter\n");
    for (char *rest = memory_copy_string(s.attentions), *name; (name = strsep(&rest, ";"));) measure(name, &s);
    return 0;
}
