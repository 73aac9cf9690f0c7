// How evenly does an attention spread its weights? The entropy of a row in units of the logarithm of its length: 1 is
// plain averaging, 0 a single key.
//
//   build/dev/experiments/kernel/entropy --attentions LIST [--keys n] [--size d] [--draws n] [--bins n]
//
// With --bins 0: a query sees --keys keys, all random but one, which has a given cosine with it: entropy and that key's
// weight over the cosine, mean and standard deviation over the draws. Otherwise: the distribution of the entropy over
// the rows of a causal sequence of --keys random tokens, from the sixteenth row, as a histogram over 0 .. 1.
#include "probe.h"
#include "core/base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *attentions;
    int keys, size, draws, bins;
} Settings;

enum { SIMILARITIES = 41 };

// sums and squares of entropy (0, 1) and of the key's weight (2, 3)
static void tally_similarity(double sums[4], Probe *probe, double x, const Settings *s) {
    int d = s->size, n = s->keys;
    double *keys = numbers((size_t)n * d), *weights = numbers(n), query[d];
    for (int draw = 0; draw < s->draws; draw++) {
        probe_normal(keys, (size_t)n * d, 1000 + (uint64_t)draw, "keys");
        probe_pair(query, keys, d, x, 1000 + (uint64_t)draw);
        for (int c = 0; c < d; c++) query[c] *= sqrt(d), keys[c] *= sqrt(d);
        probe_draw(probe, 1 + (uint64_t)draw);
        probe_scores(weights, probe, query, keys, 1, n);
        double entropy = entropy_of(weights, n), total = 0;
        for (int j = 0; j < n; j++) total += weights[j];
        sums[0] += entropy, sums[1] += entropy * entropy;
        sums[2] += weights[0] / total, sums[3] += pow(weights[0] / total, 2);
    }
    free(keys), free(weights);
}

static double deviation(double sum, double squares, int n) {
    return n < 2 ? 0 : sqrt(fmax(0, (squares - sum * sum / n) / (n - 1)));
}

static void print_similarities(const char *attention, const Settings *s) {
    Probe probe = probe_open(attention, s->keys + 1, 1, s->size, 1);
    for (int i = 0; i < SIMILARITIES; i++) {
        double x = -1 + 2.0 * i / (SIMILARITIES - 1), sums[4] = {0};
        tally_similarity(sums, &probe, x, s);
        printf("%s,%d,%d,%d,%.4g,%.6g,%.6g,%.6g,%.6g\n", attention, s->keys, s->size, s->draws, x, sums[0] / s->draws,
               deviation(sums[0], sums[1], s->draws), sums[2] / s->draws, deviation(sums[2], sums[3], s->draws));
    }
    probe_close(&probe);
}

static void print_distribution(const char *attention, const Settings *s) {
    int T = s->keys, d = s->size;
    double *rows = numbers((size_t)T * d), *weights = numbers((size_t)T * T);
    Entropies entropies = {.bins = s->bins, .counts = numbers(s->bins)};
    Probe probe = probe_open(attention, T, 1, d, 1);
    for (int draw = 0; draw < s->draws; draw++) {
        for (int which = 0; which < 2; which++) {
            probe_normal(rows, (size_t)T * d, 1000 + (uint64_t)draw, which ? "keys" : "queries");
            probe_fill(&probe, which, 0, rows);
        }
        probe_draw(&probe, 1 + (uint64_t)draw);
        probe_weights(weights, &probe);
        entropies_add(&entropies, weights, T);
    }
    entropies_print(&entropies, attention);
    probe_close(&probe);
    free(rows), free(weights), free(entropies.counts);
}

int main(int argc, char **argv) {
    Settings s = {"softmax;slay", 64, 16, 32, 0};
    const Option items[] = {
        {"", "attentions", 0, OPTION_STRING, &s.attentions, 0, 0, "LIST", "with semicolons; positive ones", 0, ""},
        {"", "keys", 0, OPTION_INT, &s.keys, ENTROPIES_FIRST_ROW, 1 << 14, NULL, "that a query sees, or tokens", 0, ""},
        {"", "size", 0, OPTION_INT, &s.size, 2, 1024, NULL, "of the head", 0, ""},
        {"", "draws", 0, OPTION_INT, &s.draws, 1, 1 << 16, NULL, "of keys and constants", 0, ""},
        {"", "bins", 0, OPTION_INT, &s.bins, 0, 1000, NULL, "of the histogram; 0: over the cosine", 0, ""}};
    probe_parse("usage: entropy [options]\nHow evenly an attention spreads its weights.", items,
                sizeof items / sizeof *items, argc, argv);
    printf(s.bins ? "attention,entropy,share,mean\n"
                  : "attention,keys,d,draws,x,entropy,entropy_sd,weight,weight_sd\n");
    for (char *rest = memory_copy_string(s.attentions), *name; (name = strsep(&rest, ";"));)
        s.bins ? print_distribution(name, &s) : print_similarities(name, &s);
    return 0;
}
