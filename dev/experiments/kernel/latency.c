// How long the forward pass of each attention takes, without projections: the latency beside the fidelity. In fp32.
//
//   build/dev/experiments/kernel/latency --attentions LIST [--T T] [--heads n] [--size d] [--passes n]
//
// A line of CSV for each: feature width and the median over --passes passes, in milliseconds, after one to warm up.
#include "probe.h"
#include "core/base/memory.h"
#include "core/base/progress.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    const char *attentions;
    int T, heads, size, passes;
} Settings;

static void measure(const char *attention, const Settings *s) {
    size_t count = (size_t)s->T * 3 * s->heads * s->size;
    double *values = numbers(count), *times = numbers(s->passes);
    Probe probe = probe_open(attention, s->T, s->heads, s->size, 1);
    probe_normal(values, count, 1, "qkv");
    for (size_t i = 0; i < count; i++) probe.qkv[i] = (real)values[i];
    for (int pass = -1; pass < s->passes; pass++) {
        double start = clock_seconds();
        probe_run(&probe);
        if (pass >= 0) times[pass] = 1e3 * (clock_seconds() - start);
    }
    sort_numbers(times, (size_t)s->passes);
    printf("%s,%d,%d,%d,%d,%d,%.6g\n", attention, s->T, s->heads, s->size, probe_width(&probe), s->passes,
           (times[(s->passes - 1) / 2] + times[s->passes / 2]) / 2);
    probe_close(&probe);
    free(values), free(times);
}

int main(int argc, char **argv) {
    Settings s = {"softmax;slay", 128, 4, 16, 31};
    const Option items[] = {{"", "attentions", 0, OPTION_STRING, &s.attentions, 0, 0, "LIST", "with semicolons", 0, ""},
                            {"", "T", 0, OPTION_INT, &s.T, 1, 1 << 20, NULL, "tokens", 0, ""},
                            {"", "heads", 0, OPTION_INT, &s.heads, 1, 1024, NULL, "", 0, ""},
                            {"", "size", 0, OPTION_INT, &s.size, 1, 1024, NULL, "of a head", 0, ""},
                            {"", "passes", 0, OPTION_INT, &s.passes, 1, 1 << 20, NULL, "that are timed", 0, ""}};
    probe_parse("usage: latency [options]\nMilliseconds of a forward pass.", items, sizeof items / sizeof *items, argc,
                argv);
    printf("attention,T,heads,d,F,passes,ms\n");
    for (char *rest = memory_copy_string(s.attentions), *name; (name = strsep(&rest, ";"));) measure(name, &s);
    return 0;
}
