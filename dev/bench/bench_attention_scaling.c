// One attention layer by sequence length: time and memory of every mechanism.
//
//   build/dev/bench/bench_attention_scaling [--attentions NAMES] [--from T] [--to T] [--backward-to T] [--seconds S]
//
// The layer is the paper's: embed 256 in 8 heads, batch 1, causal, projections included. For each mechanism and length
// T = from, 2 from, ... to, a process of its own runs the forward pass, and up to --backward-to forward and backward,
// repeatedly for S seconds (at least once after a warm-up), and reports the median and its peak memory. A line each:
//
//   attention, T, forward ms, forward + backward ms, forward MB, forward + backward MB, F
//
// with tabs between them, "-" for what was not measured and for the feature width F of quadratic attentions.
// dev/bench/scaling_page.py makes the tables, the plot and the JSON from it.
#include "attention/attention.h"
#include "core/base/error.h"
#include "core/math/matmul.h"
#include "core/base/memory.h"
#include "core/base/options.h"
#include "core/base/progress.h"
#include "core/base/random.h"
#include "core/base/threads.h"
#include "dev/feature_width.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EMBED = 256, HEADS = 8, RUNS_MAX = 101 };

typedef struct {
    const Attention *attention;
    AttentionConfig config;
    real *qkv_weight, *dqkv_weight, *proj_weight, *dproj_weight; // (C,3C), (C,3C), (C,C), (C,C)
    real *x, *qkv, *out, *y;                                     // (T,C), (T,3C), (T,C), (T,C)
    real *dy, *dout, *dqkv, *dx;                                 // of the same shapes; NULL without backward
    real *saved, *constants, *work;
} Layer;

static real *numbers(size_t count, uint64_t key) {
    real *block = memory_allocate(count + 1, sizeof(real), "the benchmark");
    random_fill_normal(block, count, random_key(1, "bench", key), 0.5);
    return block;
}

static AttentionConfig config_of(int T) {
    return (AttentionConfig){.B = 1, .T = T, .C = EMBED, .NH = HEADS, .max_T = T, .seed = 1};
}

static Layer layer_open(const Attention *attention, int T, int backward) {
    size_t C = EMBED, rows = (size_t)T * C;
    Layer l = {.attention = attention, .config = config_of(T)};
    Error error;
    die_if(attention_configure(attention, &l.config, NULL, &error), &error);
    l.constants = numbers(attention_constant_count(attention, &l.config), 1);
    attention_draw(attention, l.constants, NULL, 0, &l.config);
    l.qkv_weight = numbers(3 * C * C, 2), l.proj_weight = numbers(C * C, 3);
    l.x = numbers(rows, 4), l.y = memory_allocate(rows, sizeof(real), "y");
    l.qkv = memory_allocate(3 * rows, sizeof(real), "qkv"), l.out = memory_allocate(rows, sizeof(real), "out");
    l.work = memory_allocate(attention->work_size(&l.config) + 1, sizeof(real), "scratch");
    if (!backward) return l;
    l.saved = memory_allocate(attention->saved_size(&l.config) + 1, sizeof(real), "saved");
    l.dqkv_weight = numbers(3 * C * C, 5), l.dproj_weight = numbers(C * C, 6);
    l.dy = numbers(rows, 7), l.dx = memory_allocate(rows, sizeof(real), "dx");
    l.dqkv = memory_allocate(3 * rows, sizeof(real), "dqkv"), l.dout = memory_allocate(rows, sizeof(real), "dout");
    return l;
}

// Milliseconds of one pass.
static double layer_run(Layer *l) {
    int T = l->config.T, C = EMBED;
    double start = clock_seconds();
    matmul(l->qkv, l->x, l->qkv_weight, T, 3 * C, C, 0);
    l->attention->forward(l->out, l->saved, l->qkv, l->constants, NULL, l->work, &l->config);
    matmul(l->y, l->out, l->proj_weight, T, C, C, 0);
    if (l->dy) {
        matmul_nt(l->dout, l->dy, l->proj_weight, T, C, C, 0);
        matmul_tn(l->dproj_weight, l->out, l->dy, C, C, T, 0);
        l->attention->backward(l->dqkv, NULL, l->dout, l->qkv, l->out, l->saved, l->constants, NULL, l->work,
                               &l->config);
        matmul_nt(l->dx, l->dqkv, l->qkv_weight, T, C, 3 * C, 0);
        matmul_tn(l->dqkv_weight, l->x, l->dqkv, C, 3 * C, T, 0);
    }
    return 1e3 * (clock_seconds() - start);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct {
    double ms, megabytes;
} Measurement;

static Measurement measure_here(const Attention *attention, int T, int backward, double seconds) {
    double times[RUNS_MAX], end;
    int runs = 0;
    Layer layer = layer_open(attention, T, backward);
    layer_run(&layer); // warms up
    end = clock_seconds() + seconds;
    while (runs < 1 || (clock_seconds() < end && runs < RUNS_MAX)) times[runs++] = layer_run(&layer);
    qsort(times, (size_t)runs, sizeof *times, ascending);
    return (Measurement){(times[(runs - 1) / 2] + times[runs / 2]) / 2, (double)memory_peak_bytes() / 1e6};
}

// In a process of its own: a peak of memory does not come down again.
static Measurement measure(const Attention *attention, int T, int backward, double seconds) {
    Measurement result = {0};
    int ends[2];
    fflush(stdout); // or the child would print a copy of what is buffered
    if (pipe(ends)) die("no pipe for the measuring process");
    pid_t child = fork();
    if (child < 0) die("no process to measure in");
    if (child == 0) {
        result = measure_here(attention, T, backward, seconds);
        _exit(write(ends[1], &result, sizeof result) == (ssize_t)sizeof result ? 0 : 1);
    }
    close(ends[1]);
    if (read(ends[0], &result, sizeof result) != (ssize_t)sizeof result)
        die("%s at T=%d: the measuring process failed", attention->name, T);
    close(ends[0]);
    waitpid(child, NULL, 0);
    return result;
}

typedef struct {
    const char *attentions;
    int from, to, backward_to;
    float seconds;
} Range;

static int width_of(const Attention *attention) {
    AttentionConfig config = config_of(1);
    Error error;
    die_if(attention_configure(attention, &config, NULL, &error), &error);
    return feature_width(attention, &config);
}

static void measure_lengths(const Attention *attention, const Range *range) {
    char F[16] = "-";
    for (int T = range->from; T <= range->to; T *= 2) {
        if (width_of(attention)) snprintf(F, sizeof F, "%d", width_of(attention));
        Measurement forward = measure(attention, T, 0, range->seconds);
        printf("%s\t%d\t%.4f\t", attention->name, T, forward.ms);
        if (T <= range->backward_to) {
            Measurement both = measure(attention, T, 1, range->seconds);
            printf("%.4f\t%.1f\t%.1f\t%s\n", both.ms, forward.megabytes, both.megabytes, F);
        } else {
            printf("-\t%.1f\t-\t%s\n", forward.megabytes, F);
        }
        fflush(stdout);
    }
}

int main(int argc, char **argv) {
    static Options options = {.usage = "usage: bench_attention_scaling [options]\n"
                                       "Time and memory of one attention layer by sequence length."};
    Range range = {"all", 128, 16384, 16384, 0.5f};
    const Option items[] = {
        {"", "attentions", 0, OPTION_STRING, &range.attentions, 0, 0, "NAMES", "with commas; or all", 0, ""},
        {"", "from", 0, OPTION_INT, &range.from, 1, 1 << 24, NULL, "shortest sequence", 0, ""},
        {"", "to", 0, OPTION_INT, &range.to, 1, 1 << 24, NULL, "longest sequence", 0, ""},
        {"", "backward-to", 0, OPTION_INT, &range.backward_to, 0, 1 << 24, NULL, "longest with backward", 0, ""},
        {"", "seconds", 0, OPTION_FLOAT, &range.seconds, 0, 1e4, NULL, "per measurement", 0, ""}};
    Error error;
    char names[256];
    threads_restart_with_wait_policy(argv);
    error_set_program(argv[0]);
    options_add(&options, items, sizeof items / sizeof *items);
    die_if(options_parse(&options, argc, argv, NULL, 0, NULL, &error), &error);
    char *list = memory_copy_string(strcmp(range.attentions, "all") ? range.attentions : "");
    for (char *name = strtok(list, ","); name; name = strtok(NULL, ",")) {
        const Attention *attention = attention_find(name);
        if (!attention) die("--attentions: expected names among %s, found %s", attention_names(names, 256), name);
        measure_lengths(attention, &range);
    }
    for (int i = 0; !strcmp(range.attentions, "all") && attention_registry[i]; i++)
        measure_lengths(attention_registry[i], &range);
    free(list);
    return 0;
}
