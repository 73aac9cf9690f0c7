// Scores of one query with keys all over the sphere (three dimensions): how round is a random map's response?
//
//   build/dev/experiments/kernel/sphere --attentions LIST [--rows n] [--draws n] [--norm X]
//
// The query points at latitude 0, longitude 0. A line of CSV for each attention and key, at the middle of a cell of
// `rows` latitudes and twice as many longitudes: the score of the first draw and the mean over all draws, both in units
// of the largest on the grid.
#include "probe.h"
#include "core/base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *attentions;
    int rows, draws;
    float norm;
} Settings;

static double latitude(int cell, const Settings *s) {
    return 90 - 180 * (cell / (2 * s->rows) + 0.5) / s->rows;
}
static double longitude(int cell, const Settings *s) {
    return 180 * (cell % (2 * s->rows) + 0.5) / s->rows - 180;
}

static double largest(const double *values, int n) {
    double found = 0;
    for (int i = 0; i < n; i++) found = fmax(found, values[i]);
    return found;
}

static void measure(const char *attention, const double *keys, int cells, const Settings *s) {
    double query[3] = {s->norm, 0, 0};
    double *first = numbers(cells), *mean = numbers(cells), *scores = numbers(cells);
    Probe probe = probe_open(attention, cells + 1, 1, 3, 1);
    for (int draw = 0; draw < s->draws; draw++) {
        probe_draw(&probe, 1 + (uint64_t)draw);
        probe_scores(scores, &probe, query, keys, 1, cells);
        if (draw == 0) memcpy(first, scores, sizeof(double) * (size_t)cells);
        for (int i = 0; i < cells; i++) mean[i] += scores[i] / s->draws;
    }
    double most_first = largest(first, cells), most_mean = largest(mean, cells);
    for (int i = 0; i < cells; i++)
        printf("%s,%g,%g,%d,%.4g,%.4g\n", attention, latitude(i, s), longitude(i, s), s->draws, first[i] / most_first,
               mean[i] / most_mean);
    probe_close(&probe);
    free(first), free(mean), free(scores);
}

int main(int argc, char **argv) {
    Settings s = {"yat-spherical;slay", 18, 32, 1.7320508f};
    const Option items[] = {{"", "attentions", 0, OPTION_STRING, &s.attentions, 0, 0, "LIST", "with semicolons", 0, ""},
                            {"", "rows", 0, OPTION_INT, &s.rows, 2, 180, NULL, "latitudes", 0, ""},
                            {"", "draws", 0, OPTION_INT, &s.draws, 1, 1 << 16, NULL, "of the constants", 0, ""},
                            {"", "norm", 0, OPTION_FLOAT, &s.norm, 0, 1e6, NULL, "length of query and keys", 0, ""}};
    probe_parse("usage: sphere [options]\nScores of one query with keys all over the sphere.", items,
                sizeof items / sizeof *items, argc, argv);
    int cells = 2 * s.rows * s.rows;
    double *keys = numbers((size_t)cells * 3);
    for (int i = 0; i < cells; i++) {
        double phi = latitude(i, &s) * M_PI / 180, lambda = longitude(i, &s) * M_PI / 180;
        keys[3 * i] = s.norm * cos(phi) * cos(lambda);
        keys[3 * i + 1] = s.norm * cos(phi) * sin(lambda);
        keys[3 * i + 2] = s.norm * sin(phi);
    }
    printf("attention,latitude,longitude,draws,first,mean\n");
    for (char *rest = memory_copy_string(s.attentions), *name; (name = strsep(&rest, ";"));)
        measure(name, keys, cells, &s);
    free(keys);
    return 0;
}
