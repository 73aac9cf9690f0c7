// The score of a query and a key over the angle between them, for any list of attentions.
//
//   build/dev/experiments/kernel/response --attentions 'slay;slay:poly=exact;elu' [--size d] [--norm X] [--draws n] ...
//
// Query and key have the length --norm (0: the square root of d, as behind a LayerNorm), and lie at angles 0 .. 180
// degrees in steps of --step in a plane of random direction. Each of --draws draws has its own plane and its own
// constants. A line of CSV for each attention and angle: mean and standard deviation of the score over the draws, and
// the mean length of its gradient with respect to the query, times the query's length (0 without --gradients).
#include "probe.h"
#include "core/base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *attentions;
    int size, draws, gradients;
    float norm, step;
} Settings;

// lengths (points) of |query| d score / d query, by central differences, which lose nothing in double precision
static void gradient_lengths(double *lengths, Probe *probe, const double *query, const double *keys, int points) {
    int d = probe->config.HS;
    double *moved = numbers((size_t)2 * d * d), *scores = numbers((size_t)2 * d * points), norm = 0, step;
    for (int c = 0; c < d; c++) norm += query[c] * query[c];
    step = 1e-5 * sqrt(norm);
    for (int i = 0; i < 2 * d; i++)
        for (int c = 0; c < d; c++) moved[(size_t)i * d + c] = query[c] + (c == i / 2 ? i % 2 ? -step : step : 0);
    probe_scores(scores, probe, moved, keys, 2 * d, points);
    for (int i = 0; i < points; i++) {
        double squares = 0;
        for (int c = 0; c < d; c++)
            squares += pow((scores[2 * c * points + i] - scores[(2 * c + 1) * points + i]) / (2 * step), 2);
        lengths[i] = sqrt(squares * norm);
    }
    free(moved), free(scores);
}

// mean and scatter (points) of the scores, mean of the gradients; a draw's plane is u and an orthogonal direction
static void tally(double *mean, double *squares, double *gradient, Probe *probe, int points, const Settings *s) {
    int d = s->size;
    double *keys = numbers((size_t)points * d), *scores = numbers(points), u[d];
    double norm = s->norm > 0 ? s->norm : sqrt(d);
    for (int draw = 0; draw < s->draws; draw++) {
        for (int i = 0; i < points; i++)
            probe_pair(u, keys + (size_t)i * d, d, cos(i * s->step * M_PI / 180), 1000 + (uint64_t)draw);
        for (int i = 0; i < points * d; i++) keys[i] *= norm;
        for (int c = 0; c < d; c++) u[c] *= norm;
        probe_draw(probe, 1 + (uint64_t)draw);
        probe_scores(scores, probe, u, keys, 1, points);
        for (int i = 0; i < points; i++) { // Welford's
            double delta = scores[i] - mean[i];
            mean[i] += delta / (draw + 1);
            squares[i] += delta * (scores[i] - mean[i]);
        }
        if (!s->gradients) continue;
        gradient_lengths(scores, probe, u, keys, points);
        for (int i = 0; i < points; i++) gradient[i] += scores[i] / s->draws;
    }
    free(keys), free(scores);
}

static void measure(const char *attention, const Settings *s) {
    int points = (int)floor(180 / s->step + 1e-6) + 1;
    int queries = s->gradients ? 2 * s->size : 1;
    double *mean = numbers(points), *squares = numbers(points), *gradient = numbers(points);
    Probe probe = probe_open(attention, points + queries, 1, s->size, 1);
    tally(mean, squares, gradient, &probe, points, s);
    for (int i = 0; i < points; i++)
        printf("%s,%d,%d,%d,%g,%.9g,%.9g,%.9g,%.6g\n", attention, probe_width(&probe), s->size, s->draws, i * s->step,
               cos(i * s->step * M_PI / 180), mean[i], sqrt(squares[i] / fmax(s->draws - 1, 1)), gradient[i]);
    probe_close(&probe);
    free(mean), free(squares), free(gradient);
}

int main(int argc, char **argv) {
    Settings s = {"yat-spherical;slay", 16, 64, 0, 0, 1};
    const Option items[] = {
        {"", "attentions", 0, OPTION_STRING, &s.attentions, 0, 0, "LIST", "with semicolons", 0, ""},
        {"", "size", 0, OPTION_INT, &s.size, 2, 1024, NULL, "of the head", 0, ""},
        {"", "draws", 0, OPTION_INT, &s.draws, 1, 1 << 20, NULL, "of planes and constants", 0, ""},
        {"", "gradients", 0, OPTION_FLAG, &s.gradients, 0, 0, NULL, "their lengths too", 0, ""},
        {"", "norm", 0, OPTION_FLOAT, &s.norm, 0, 1e6, NULL, "length of q and k; 0: sqrt(d)", 0, ""},
        {"", "step", 0, OPTION_FLOAT, &s.step, 0.1, 90, NULL, "degrees", 0, ""}};
    probe_parse("usage: response [options]\nScores over the angle between query and key.", items,
                sizeof items / sizeof *items, argc, argv);
    printf("attention,F,d,draws,angle,x,mean,sd,gradient\n");
    for (char *rest = memory_copy_string(s.attentions), *name; (name = strsep(&rest, ";"));) measure(name, &s);
    return 0;
}
