// Times one attention, forward and backward, whenever it is asked to: each line "T" on standard input gives a line
// "forward_ms backward_ms" on standard output. bench_attention_softmax.py drives it, side by side with PyTorch.
//
//   build/dev/bench/bench_attention_softmax [attention [B [heads [head size]]]]      default: softmax 1 12 64
#include "attention/attention.h"
#include "core/base/memory.h"
#include "core/base/progress.h"
#include "core/base/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { // the buffers of one length
    AttentionConfig config;
    real *qkv, *dqkv, *out, *dout, *saved, *constants, *work;
} Buffers;

static real *allocate_normal(size_t n, uint64_t key) {
    real *x = memory_allocate(n, sizeof *x, "benchmark input");
    for (size_t i = 0; i < n; i++) x[i] = (real)random_normal(key, i);
    return x;
}

static void buffers_make(Buffers *buffers, const Attention *attention) {
    const AttentionConfig *config = &buffers->config;
    size_t n = (size_t)config->B * config->T * config->C;
    size_t constants = attention_constant_count(attention, config);
    buffers->qkv = allocate_normal(3 * n, 1);
    buffers->dout = allocate_normal(n, 2);
    buffers->dqkv = memory_allocate_zeroed(3 * n, sizeof(real), "gradients");
    buffers->out = memory_allocate_zeroed(n, sizeof(real), "output");
    buffers->saved = memory_allocate_zeroed(attention->saved_size(config), sizeof(real), "saved numbers");
    buffers->work = memory_allocate_zeroed(attention->work_size(config), sizeof(real), "scratch");
    buffers->constants = memory_allocate_zeroed(constants + 1, sizeof(real), "constants");
    if (constants) attention_draw(attention, buffers->constants, NULL, 0, config);
}

static void buffers_free(Buffers *buffers) {
    real *all[] = {buffers->qkv,   buffers->dqkv,      buffers->out, buffers->dout,
                   buffers->saved, buffers->constants, buffers->work};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

static void run(const Attention *attention, Buffers *b) {
    double start = clock_seconds();
    attention->forward(b->out, b->saved, b->qkv, b->constants, NULL, b->work, &b->config);
    double middle = clock_seconds();
    attention->backward(b->dqkv, NULL, b->dout, b->qkv, b->out, b->saved, b->constants, NULL, b->work, &b->config);
    printf("%.4f %.4f\n", 1e3 * (middle - start), 1e3 * (clock_seconds() - middle));
    fflush(stdout);
}

static int argument(int argc, char **argv, int i, int otherwise) {
    return argc > i ? atoi(argv[i]) : otherwise;
}

int main(int argc, char **argv) {
    error_set_program(argv[0]);
    char names[256];
    Error error;
    const Attention *attention = attention_find(argc > 1 ? argv[1] : "softmax");
    if (!attention) die("unknown attention %s; known are %s", argv[1], attention_names(names, sizeof names));
    AttentionConfig sizes = {.B = argument(argc, argv, 2, 1), .NH = argument(argc, argv, 3, 12)};
    sizes.C = sizes.NH * argument(argc, argv, 4, 64);
    Buffers buffers = {.config = {.T = 0}};
    for (int T; scanf("%d", &T) == 1 && T > 0; run(attention, &buffers)) {
        if (T == buffers.config.T) continue;
        buffers_free(&buffers);
        buffers.config = sizes;
        buffers.config.T = buffers.config.max_T = T;
        die_if(attention_configure(attention, &buffers.config, NULL, &error), &error);
        buffers_make(&buffers, attention);
    }
    buffers_free(&buffers);
    return 0;
}
