// How fast the loader delivers tokens, in order and shuffled, compared with the bare work of widening uint16 to int32.
//   build/dev/bench/bench_loader [--tokens 100M] [--repeats 5]
// The variants take turns, so that a busy machine hurts all of them alike; the median is shown.
#define _GNU_SOURCE
#include "core/base/memory.h"
#include "core/base/options.h"
#include "core/base/progress.h"
#include "core/base/random.h"
#include "dataloader/dataloader.h"

#include <stdlib.h>
#include <unistd.h>

enum { B = 16, VOCAB = 50257, MOST_REPEATS = 100, VARIANTS = 3 };
static const char *const variant_names[VARIANTS] = {"widening alone", "rows in order", "rows shuffled"};

static char folder[] = "/tmp/bench_loader.XXXXXX", path[64];

static void write_shard(int64_t tokens) {
    enum { BLOCK = 1 << 16 };
    static uint16_t block[BLOCK];
    Error error;
    ShardWriter writer;
    for (uint64_t i = 0; i < BLOCK; i++) block[i] = (uint16_t)random_below(1, i, VOCAB);
    die_if(shard_writer_open(&writer, path, &error), &error);
    for (int64_t done = 0; done < tokens; done += BLOCK)
        die_if(shard_write(&writer, block, tokens - done < BLOCK ? (size_t)(tokens - done) : BLOCK, &error), &error);
    die_if(shard_writer_commit(&writer, &error), &error);
}

// Tokens per second over one epoch of rows.
static double measure_loader(DataLoader *loader, int T, int32_t *inputs, int32_t *targets) {
    Error error;
    int64_t batches = dataloader_rows(loader) / B;
    double start = clock_seconds();
    for (int64_t i = 0; i < batches; i++) {
        die_if(dataloader_rows_at(loader, 0, B, inputs, targets, &error), &error);
        dataloader_advance(loader, B);
    }
    return (double)(batches * B * T) / (clock_seconds() - start);
}

// The same amount of output from one row that is always in the cache: nothing can be faster.
static double measure_widening(int64_t batches, int T, const uint16_t *row, int32_t *inputs, int32_t *targets) {
    double start = clock_seconds();
    for (int64_t i = 0; i < batches; i++)
        for (int b = 0; b < B; b++) {
            for (int t = 0; t < T; t++) inputs[b * T + t] = row[t];
            for (int t = 0; t < T; t++) targets[b * T + t] = row[t + 1];
            __asm__ volatile("" ::: "memory"); // the copies must not be merged into one
        }
    return (double)(batches * B * T) / (clock_seconds() - start);
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void bench_length(int T, int repeats) {
    Error error;
    DataLoader *loaders[VARIANTS] = {NULL};
    for (int v = 1; v < VARIANTS; v++) {
        DataLoaderConfig config = {.pattern = path, .T = T, .vocab = VOCAB, .shuffle = v == 2, .seed = 1};
        die_if(dataloader_open(&loaders[v], &config, &error), &error);
    }
    int32_t *inputs = memory_allocate((size_t)B * (size_t)T, sizeof *inputs, "inputs");
    int32_t *targets = memory_allocate((size_t)B * (size_t)T, sizeof *targets, "targets");
    uint16_t *row = memory_allocate_zeroed((size_t)T + 1, sizeof *row, "a row");
    double speeds[VARIANTS][MOST_REPEATS];
    for (int r = 0; r < repeats; r++) {
        speeds[0][r] = measure_widening(dataloader_rows(loaders[1]) / B, T, row, inputs, targets);
        for (int v = 1; v < VARIANTS; v++) speeds[v][r] = measure_loader(loaders[v], T, inputs, targets);
    }
    for (int v = 0; v < VARIANTS; v++) {
        qsort(speeds[v], (size_t)repeats, sizeof(double), compare_doubles);
        printf("T %5d  %-15s %8.0f M tokens/s  (%.2f of widening alone)\n", T, variant_names[v],
               speeds[v][repeats / 2] / 1e6, speeds[v][repeats / 2] / speeds[0][repeats / 2]);
        dataloader_close(loaders[v]);
    }
    free(inputs);
    free(targets);
    free(row);
}

static void bench_open(void) {
    Error error;
    DataLoader *loader;
    DataLoaderConfig config = {.pattern = path, .T = 1024, .vocab = VOCAB};
    double start = clock_seconds();
    die_if(dataloader_open(&loader, &config, &error), &error);
    printf("opening and validating the shard: %.2f ms\n", 1e3 * (clock_seconds() - start));
    dataloader_close(loader);
}

int main(int argc, char **argv) {
    static int64_t tokens = 100000000;
    static int repeats = 5;
    static Options options = {.usage = "usage: bench_loader [options]\nTokens per second of the data loader.\n"};
    const Option items[] = {
        {"Size", "tokens", 0, OPTION_LONG, &tokens, 1 << 17, 1e11, NULL, "tokens in the test shard", 0, ""},
        {"Size", "repeats", 0, OPTION_INT, &repeats, 1, MOST_REPEATS, NULL, "rounds; the median is shown", 0, ""},
    };
    Error error;
    int positionals = 0;
    error_set_program(argv[0]);
    options_add(&options, items, 2);
    die_if(options_parse(&options, argc, argv, NULL, 0, &positionals, &error), &error);
    if (!mkdtemp(folder)) die("%s: cannot create a folder for the test shard", folder);
    snprintf(path, sizeof path, "%s/bench.bin", folder);
    write_shard(tokens);
    bench_open();
    int lengths[] = {64, 1024, 8192};
    for (int i = 0; i < 3; i++) bench_length(lengths[i], repeats);
    unlink(path);
    rmdir(folder);
    return 0;
}
