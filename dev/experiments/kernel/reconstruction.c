// How well do features rebuild the kernel? Scores over the angle beside those of yat-spherical.
//
//   build/dev/experiments/kernel/reconstruction --attentions LIST [--size d] [--draws n] [--step X]
//
// Each draw has its own plane and constants; its error is |c scores - exact| / |exact| over angles from --step to 180
// degrees, with the best factor c, since factors cancel in an attention's output. Twice: over all angles, and over
// those of 30 degrees and more, without the peak. A line of CSV for each: median and quartiles over the draws.
#include "probe.h"
#include "core/base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *attentions;
    int size, draws;
    float step;
} Settings;

static const double EPS = 1e-3;

// Of n scores beside the exact ones at the best factor.
static double relative_error(const double *scores, const double *exact, int n) {
    double both = 0, own = 0, whole = 0;
    for (int i = 0; i < n; i++)
        both += scores[i] * exact[i], own += scores[i] * scores[i], whole += exact[i] * exact[i];
    return sqrt(fmax(0, 1 - both * both / fmax(own * whole, 1e-300)));
}

static void print_quartiles(const char *attention, int width, double from, double *errors, const Settings *s) {
    int n = s->draws;
    sort_numbers(errors, (size_t)n);
    printf("%s,%d,%d,%d,%g,%.6g,%.6g,%.6g\n", attention, width, s->size, n, from, errors[n / 2], errors[n / 4],
           errors[n - 1 - n / 4]);
}

static void measure(const char *attention, const Settings *s) {
    int d = s->size, points = (int)floor(180 / s->step + 1e-6), beyond = (int)ceil(30 / s->step - 1e-6) - 1;
    double *keys = numbers((size_t)points * d), *scores = numbers(points), *exact = numbers(points), u[d];
    double *errors = numbers(s->draws), *errors_beyond = numbers(s->draws);
    Probe probe = probe_open(attention, points + 1, 1, d, 1);
    for (int draw = 0; draw < s->draws; draw++) {
        for (int i = 0; i < points; i++) {
            double x = cos((i + 1) * s->step * M_PI / 180);
            probe_pair(u, keys + (size_t)i * d, d, x, 1000 + (uint64_t)draw);
            exact[i] = x * x / (2 + EPS - 2 * x);
        }
        probe_draw(&probe, 1 + (uint64_t)draw);
        probe_scores(scores, &probe, u, keys, 1, points);
        errors[draw] = relative_error(scores, exact, points);
        errors_beyond[draw] = relative_error(scores + beyond, exact + beyond, points - beyond);
    }
    print_quartiles(attention, probe_width(&probe), s->step, errors, s);
    print_quartiles(attention, probe_width(&probe), (beyond + 1) * s->step, errors_beyond, s);
    probe_close(&probe);
    free(keys), free(scores), free(exact), free(errors), free(errors_beyond);
}

int main(int argc, char **argv) {
    Settings s = {"yat-spherical;slay", 16, 64, 2};
    const Option items[] = {
        {"", "attentions", 0, OPTION_STRING, &s.attentions, 0, 0, "LIST", "with semicolons; of unit vectors", 0, ""},
        {"", "size", 0, OPTION_INT, &s.size, 2, 1024, NULL, "of the head", 0, ""},
        {"", "draws", 0, OPTION_INT, &s.draws, 1, 1 << 20, NULL, "of planes and constants", 0, ""},
        {"", "step", 0, OPTION_FLOAT, &s.step, 0.1, 30, NULL, "degrees", 0, ""}};
    probe_parse("usage: reconstruction [options]\nHow well features rebuild the kernel.", items,
                sizeof items / sizeof *items, argc, argv);
    printf("attention,F,d,draws,from,median,first_quartile,third_quartile\n");
    for (char *rest = memory_copy_string(s.attentions), *name; (name = strsep(&rest, ";"));) measure(name, &s);
    return 0;
}
