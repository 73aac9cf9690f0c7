#include "profile.h"
#include "progress.h"

#include <stdlib.h>
#include <string.h>

static const char *const work_names[WORK_KINDS] = {
    [WORK_EMBEDDING] = "embeddings",
    [WORK_LAYERNORM] = "LayerNorm",
    [WORK_PRODUCTS] = "matrix products",
    [WORK_ATTENTION] = "attention",
    [WORK_GELU] = "GELU",
    [WORK_DROPOUT] = "dropout",
    [WORK_HEAD] = "head and loss",
    [WORK_OPTIMIZER] = "norm and AdamW",
    [WORK_COMMUNICATION] = "communication",
    [WORK_DATA] = "reading data",
    [WORK_VALIDATION] = "validation",
    [WORK_SAVING] = "saving",
    [WORK_OTHER] = "all else",
};

static struct {
    int on;
    Work work, within;
    Phase phase;
    double since;
    double seconds[WORK_KINDS][PHASES];
} profile = {.work = WORK_OTHER, .within = WORK_OTHER};

void profile_begin(void) {
    profile.on = 1;
    profile.since = clock_seconds();
    memset(profile.seconds, 0, sizeof profile.seconds);
}

void profile_work(Work work) {
    if (!profile.on) return;
    double now = clock_seconds();
    Work charged = profile.within != WORK_OTHER ? profile.within : profile.work;
    profile.seconds[charged][profile.phase] += now - profile.since;
    profile.since = now;
    profile.work = work;
}

void profile_phase(Phase phase) {
    profile_work(WORK_OTHER);
    profile.phase = phase;
}

void profile_within(Work work) {
    profile_work(WORK_OTHER);
    profile.within = work;
}

static double work_seconds(int work) {
    return profile.seconds[work][PHASE_FORWARD] + profile.seconds[work][PHASE_BACKWARD];
}

static int by_seconds(const void *a, const void *b) {
    double x = work_seconds(*(const int *)a), y = work_seconds(*(const int *)b);
    return (x < y) - (x > y);
}

void profile_print(FILE *out, int64_t steps) {
    int order[WORK_KINDS];
    double total = 0, per_step = steps > 0 ? 1e3 / (double)steps : 0;
    profile_work(WORK_OTHER);
    for (int w = 0; w < WORK_KINDS; w++) order[w] = w, total += work_seconds(w);
    qsort(order, WORK_KINDS, sizeof *order, by_seconds);
    fprintf(out, "\n%-18s%12s%12s%12s%9s\n", "ms per step", "forward", "backward", "both", "share");
    for (int i = 0; i < WORK_KINDS && work_seconds(order[i]) > 0; i++) {
        const double *seconds = profile.seconds[order[i]];
        double share = work_seconds(order[i]) / total;
        fprintf(out, "%-18s%12.2f%12.2f%12.2f%8.1f%%  ", work_names[order[i]], seconds[PHASE_FORWARD] * per_step,
                seconds[PHASE_BACKWARD] * per_step, work_seconds(order[i]) * per_step, 100 * share);
        for (int bar = 0; bar < (int)(50 * share + 0.5); bar++) fputs("█", out);
        fputc('\n', out);
    }
    fprintf(out, "%-18s%36.2f\n", "in all", total * per_step);
}
