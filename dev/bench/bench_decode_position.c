// How fast a whole model decodes at a given position:
//
//   build/dev/bench/bench_decode_position RUN --position 65536 [--threads N] [--seconds X]
//
// RUN is a run or a checkpoint; its sizes and attention are used. The position may lie far beyond the model's context:
// the positions are then made longer, and the weights drawn afresh. What earlier tokens would have left is made up: a
// state of constant size comes from a real prefill, a cache of one row per position is filled with random numbers,
// because computing it would take the square of the position. Prints one line of JSON; the time is the median of single
// steps.
#define GPT2_MODEL_ONLY
#include "sample_gpt2.c"

#include "core/base/progress.h"
#include "core/base/threads.h"

#include <unistd.h>

enum { STEPS_MAX = 2000 };

typedef struct {
    const char *model;
    int position, threads;
    float seconds;
} DecodeSettings;

static int parse(DecodeSettings *settings, int argc, char **argv, Error *error) {
    static Options options = {.usage = "usage: bench_decode_position RUN --position N"};
    const Option table[] = {
        {"run", "position", 0, OPTION_INT, &settings->position, PREFILL_ROWS, 1 << 24, NULL, "tokens seen before", 0,
         ""},
        {"run", "threads", 0, OPTION_INT, &settings->threads, 0, 4096, NULL, "CPU threads; 0: all cores", 0, ""},
        {"run", "seconds", 0, OPTION_FLOAT, &settings->seconds, 1e-3, 1e6, NULL, "how long to measure", 0, ""},
    };
    int models;
    options_add(&options, table, sizeof table / sizeof *table);
    if (options_parse(&options, argc, argv, &settings->model, 1, &models, error)) return -1;
    return models == 1 ? 0 : error_set(error, "expected a run or a checkpoint, found none; see --help");
}

// A model of the checkpoint's sizes and attention with room for one more position than `position`.
static int create_model(GPT2 *model, const char *path, int position, Error *error) {
    Checkpoint checkpoint;
    GPT2Config config;
    AttentionStack stack;
    if (model_open_checkpoint(&checkpoint, &config, &stack, 1, PREFILL_ROWS, path, error)) return -1;
    if (config.max_T <= position) config.max_T = position + 1;
    attention_stack_set_model(&stack, config.C, config.NH, config.max_T);
    attention_stack_set_batch(&stack, 1, PREFILL_ROWS);
    gpt2_create(model, &config, &stack, 0, 1, TRAINS_NOT, RECOMPUTE_NONE);
    ModelTensors tensors = gpt2_to_host(model, HOST_TO_FILL);
    model_initialize(&tensors, 1, 0.02);
    gpt2_from_host(model, HOST_TO_FILL);
    checkpoint_close(&checkpoint);
    return 0;
}

// A cache that would not fit is refused before it is allocated: the system might end another program for it.
static void check_memory(const GPT2 *model) {
    double need = 0;
    for (int l = 0; l < model->config.L; l++) need += (double)layer_cache_size(model, l) * sizeof(real);
    double have = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if (need > have / 2)
        die("the cache of %d positions takes %.1f GB; expected at most half of this machine's %.1f GB",
            model->config.max_T, need / 1e9, have / 1e9);
}

static void fill_cache(Decoder *decoder) {
    int tokens[PREFILL_ROWS];
    for (int i = 0; i < PREFILL_ROWS; i++) tokens[i] = i % decoder->model->config.V;
    if (!attention_stack_is_endless(&decoder->model->stack)) // positive, since some of it may be sums or norms
        for (size_t i = 0; i < decoder->cache_size; i++)
            decoder->cache[i] = (real)((double)random_word(1, i) * 0x1p-32 + 0.01);
    decoder_step(decoder, tokens, PREFILL_ROWS, 0, NULL);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// The median time of decoding one token at `position`, in seconds.
static double measure(Decoder *decoder, int position, double seconds) {
    static double times[STEPS_MAX];
    double start = clock_seconds();
    int count = 0, token = 1 % decoder->model->config.V;
    while (count < STEPS_MAX && (count < 3 || clock_seconds() - start < seconds)) {
        double before = clock_seconds();
        decoder_step(decoder, &token, 1, position, NULL);
        times[count++] = clock_seconds() - before;
    }
    qsort(times, (size_t)count, sizeof *times, ascending);
    return times[count / 2];
}

int main(int argc, char **argv) {
    DecodeSettings settings = {.position = 1024, .seconds = 0.5f};
    GPT2 model;
    Decoder decoder;
    Error error;
    char name[256];
    threads_restart_with_wait_policy(argv);
    error_set_program(argv[0]);
    die_if(parse(&settings, argc, argv, &error), &error);
    threads_use(settings.threads);
    die_if(create_model(&model, settings.model, settings.position, &error), &error);
    check_memory(&model);
    decoder_create(&decoder, &model, WEIGHTS_FP32, 0);
    fill_cache(&decoder);
    measure(&decoder, settings.position, 0.1 * settings.seconds); // warms up
    double seconds = measure(&decoder, settings.position, settings.seconds);
    printf("{\"attention\": \"%s\", \"position\": %d, \"milliseconds\": %.4f, \"tokens_per_second\": %.1f, "
           "\"state_mb\": %.3f}\n",
           attention_stack_name(&model.stack, name, sizeof name), settings.position, 1e3 * seconds, 1 / seconds,
           (double)decoder.cache_size * sizeof(real) / 1e6);
    decoder_free(&decoder);
    gpt2_free(&model);
    return 0;
}
