// attention_eval: one attention on tensors from a file, so that anyone can check and time the C code from Python.
//
//   build/dev/attention_eval --in IN.safetensors --out OUT.safetensors --attention slay [options]
//
// IN holds q, k, v (B,H,T,d), for --mode backward also dout, and any of the mechanism's constants and parameters under
// their names; those that are absent are drawn from --seed. OUT holds o and, after backward, dq, dk, dv, (B,H,T,d), and
// the gradient of each parameter: that of `decay` is d_decay. All are float32.
#include "attention/attention.h"
#include "core/base/memory.h"
#include "core/base/progress.h"
#include "core/model/safetensors.h"

#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { MODE_FORWARD, MODE_BACKWARD, MODE_STEP };

typedef struct { // the command line
    const char *in, *out, *attention;
    int mode, prefill, horizon, threads, time;
    int64_t seed;
} Settings;

typedef struct { // everything between the two files
    const Attention *attention;
    AttentionConfig config;
    real *qkv, *dqkv; // (B,T,3C)
    real *out, *dout; // (B,T,C)
    real *saved, *work, *constants, *cache;
    real *parameters, *dparameters;
    size_t parameter_count;
} Evaluation;

static void add_options(Options *options, Settings *settings) {
    const Option table[] = {
        {.group = "files",
         .name = "in",
         .type = OPTION_STRING,
         .value = &settings->in,
         .choices = "FILE",
         .help = "safetensors with q, k, v, perhaps dout, constants and parameters"},
        {.group = "files",
         .name = "out",
         .type = OPTION_STRING,
         .value = &settings->out,
         .choices = "FILE",
         .help = "safetensors to write: o, dq, dk, dv, gradients of parameters"},
        {.group = "run",
         .name = "attention",
         .type = OPTION_STRING,
         .value = &settings->attention,
         .choices = "NAME",
         .help = "the mechanism"},
        {.group = "run",
         .name = "mode",
         .type = OPTION_CHOICE,
         .value = &settings->mode,
         .choices = "forward|backward|step",
         .help = "step: prefill, then one position at a time"},
        {.group = "run",
         .name = "prefill",
         .type = OPTION_INT,
         .value = &settings->prefill,
         .least = 0,
         .most = 1e9,
         .help = "positions of the first step"},
        {.group = "run",
         .name = "horizon",
         .type = OPTION_INT,
         .value = &settings->horizon,
         .least = 0,
         .most = 1e9,
         .help = "the model's context length; 0: T"},
        {.group = "run",
         .name = "seed",
         .type = OPTION_LONG,
         .value = &settings->seed,
         .least = 0,
         .most = 9e18,
         .help = "of the constants and parameters that the file does not hold"},
        {.group = "run",
         .name = "threads",
         .type = OPTION_INT,
         .value = &settings->threads,
         .least = 0,
         .most = 4096,
         .help = "0: as many as there are"},
        {.group = "run",
         .name = "time",
         .type = OPTION_FLAG,
         .value = &settings->time,
         .help = "print the median time and the peak memory"},
    };
    options_add(options, table, sizeof table / sizeof table[0]);
}

// ---- reading

// The common shape of q, k and v goes into the configuration.
static int read_sizes(AttentionConfig *config, const Safetensors *file, uint64_t shape[4], Error *error) {
    const Tensor *q = safetensors_find(file, "q");
    if (!q || q->rank != 4) return error_set(error, "%s: expected a tensor q of shape (B,H,T,d)", file->path);
    uint64_t channels, numbers = 1;
    for (int i = 0; i < 4; i++) {
        shape[i] = q->shape[i];
        if (shape[i] < 1 || size_multiply(numbers, shape[i], &numbers) || numbers > (uint64_t)1 << 32) {
            return error_set(error, "%s: q is empty or larger than 2^32 numbers", file->path);
        }
    }
    channels = shape[1] * shape[3];
    if (shape[0] > 1 << 24 || shape[2] > 1 << 28 || channels > 1 << 20) {
        return error_set(error,
                         "%s: q is (%llu,%llu,%llu,%llu); at most 2^24 sequences of 2^28 positions and 2^20 "
                         "channels are possible",
                         file->path, (unsigned long long)shape[0], (unsigned long long)shape[1],
                         (unsigned long long)shape[2], (unsigned long long)shape[3]);
    }
    config->B = (int)shape[0], config->NH = (int)shape[1], config->T = (int)shape[2], config->C = (int)channels;
    return 0;
}

// Copies between (B,H,T,d) and the columns column .. column + C - 1 of (B,T,stride); `to_rows`: into the latter.
static void copy_heads(float *heads, real *rows, size_t stride, size_t column, const AttentionConfig *c, int to_rows) {
    size_t T = c->T, HS = c->HS;
    for (size_t bh = 0; bh < (size_t)c->B * c->NH; bh++) {
        for (size_t t = 0; t < T; t++) {
            float *from = heads + (bh * T + t) * HS;
            real *to = rows + (bh / c->NH * T + t) * stride + column + bh % c->NH * HS;
            if (to_rows)
                memcpy(to, from, HS * sizeof *to);
            else
                memcpy(from, to, HS * sizeof *to);
        }
    }
}

static int read_inputs(Evaluation *e, const Safetensors *file, const uint64_t shape[4], int with_dout, Error *error) {
    static const char *const names[] = {"q", "k", "v"};
    const AttentionConfig *c = &e->config;
    size_t C = c->C, numbers = (size_t)c->B * c->T * C;
    float *heads = memory_allocate(numbers, sizeof *heads, "a tensor");
    int status = 0;
    for (int i = 0; !status && i < 3; i++) {
        status = safetensors_read(heads, file, names[i], 4, shape, error);
        if (!status) copy_heads(heads, e->qkv, 3 * C, i * C, c, 1);
    }
    if (!status && with_dout) status = safetensors_read(heads, file, "dout", 4, shape, error);
    if (!status && with_dout) copy_heads(heads, e->dout, C, 0, c, 1);
    free(heads);
    return status;
}

static int read_tensors(real *block, const AttentionTensor *list, int n, const Safetensors *file, Error *error) {
    for (int i = 0; i < n; i++) {
        uint64_t shape[4];
        for (int d = 0; d < list[i].rank; d++) shape[d] = list[i].shape[d];
        if (!safetensors_find(file, list[i].name)) continue;
        if (safetensors_read(block + list[i].offset, file, list[i].name, list[i].rank, shape, error)) return -1;
    }
    return 0;
}

// Draws all constants and parameters, then takes over those that the file holds.
static int read_attention(Evaluation *e, const Safetensors *file, Error *error) {
    AttentionTensor constants[ATTENTION_TENSORS_MAX], parameters[ATTENTION_TENSORS_MAX];
    size_t total;
    int n = attention_constants(e->attention, &e->config, constants, &total);
    int trained = attention_parameters(e->attention, &e->config, parameters, &e->parameter_count);
    e->constants = memory_allocate_zeroed(total + 1, sizeof(real), "constants");
    e->parameters = memory_allocate_zeroed(e->parameter_count + 1, sizeof(real), "parameters");
    e->dparameters = memory_allocate_zeroed(e->parameter_count + 1, sizeof(real), "gradients of parameters");
    attention_draw(e->attention, e->constants, e->parameters, 0, &e->config);
    if (read_tensors(e->constants, constants, n, file, error)) return -1;
    return read_tensors(e->parameters, parameters, trained, file, error);
}

static void allocate(Evaluation *e, int mode) {
    const AttentionConfig *c = &e->config;
    size_t numbers = (size_t)c->B * c->T * c->C;
    e->qkv = memory_allocate(3 * numbers, sizeof(real), "q, k and v");
    e->out = memory_allocate(numbers, sizeof(real), "the output");
    e->work = memory_allocate_zeroed(e->attention->work_size(c), sizeof(real), "scratch");
    if (mode == MODE_BACKWARD) {
        e->dqkv = memory_allocate(3 * numbers, sizeof(real), "gradients");
        e->dout = memory_allocate(numbers, sizeof(real), "the output's gradient");
        e->saved = memory_allocate_zeroed(e->attention->saved_size(c), sizeof(real), "saved numbers");
    }
    if (mode == MODE_STEP) e->cache = memory_allocate_zeroed(e->attention->cache_size(c), sizeof(real), "the cache");
}

static void release(Evaluation *e) {
    real *all[] = {e->qkv,  e->dqkv,      e->out,   e->dout,       e->saved,
                   e->work, e->constants, e->cache, e->parameters, e->dparameters};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

// ---- running

// Every sequence through `step`: a prefill of that many positions, then one at a time.
static void run_steps(Evaluation *e, int prefill) {
    AttentionConfig *c = &e->config;
    size_t C = c->C;
    for (int b = 0; b < c->B; b++) {
        const real *qkv = e->qkv + (size_t)b * c->T * 3 * C;
        real *out = e->out + (size_t)b * c->T * C;
        for (int pos = 0, n; pos < c->T; pos += n) {
            n = pos == 0 && prefill > 0 ? (prefill < c->T ? prefill : c->T) : 1;
            e->attention->step(out + pos * C, e->cache, pos, n, qkv + pos * 3 * C, e->constants, e->parameters, e->work,
                               c);
        }
    }
}

static void run(Evaluation *e, const Settings *settings) {
    const Attention *a = e->attention;
    if (settings->mode == MODE_STEP) {
        run_steps(e, settings->prefill);
        return;
    }
    a->forward(e->out, e->saved, e->qkv, e->constants, e->parameters, e->work, &e->config);
    if (settings->mode == MODE_BACKWARD) {
        memset(e->dparameters, 0, e->parameter_count * sizeof(real)); // backward adds to them
        a->backward(e->dqkv, e->dparameters, e->dout, e->qkv, e->out, e->saved, e->constants, e->parameters, e->work,
                    &e->config);
    }
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// The median of up to 15 runs, as many as fit into three seconds.
static void run_timed(Evaluation *e, const Settings *settings) {
    double times[15], start = clock_seconds();
    int n = 0;
    while (n < 15 && (n == 0 || clock_seconds() - start < 3)) {
        double before = clock_seconds();
        run(e, settings);
        times[n++] = clock_seconds() - before;
    }
    qsort(times, n, sizeof times[0], compare_doubles);
    printf("%s: median %.3f ms of %d, peak memory %.1f MB\n", e->attention->name, 1e3 * times[n / 2], n,
           memory_peak_bytes() / 1e6);
}

// ---- writing

// The gradients of the parameters as tensors named d_decay, ...; returns their number.
static int list_gradients(Tensor *tensors, char names[][80], const Evaluation *e) {
    AttentionTensor list[ATTENTION_TENSORS_MAX];
    size_t total;
    int n = attention_parameters(e->attention, &e->config, list, &total);
    for (int i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], "d_%s", list[i].name);
        tensors[i] = (Tensor){
            .name = names[i], .dtype = DTYPE_F32, .rank = list[i].rank, .data = e->dparameters + list[i].offset};
        for (int d = 0; d < list[i].rank; d++) tensors[i].shape[d] = list[i].shape[d];
    }
    return n;
}

static int write_results(Evaluation *e, const char *path, const uint64_t shape[4], int mode, Error *error) {
    static const char *const names[] = {"o", "dq", "dk", "dv"};
    const AttentionConfig *c = &e->config;
    size_t C = c->C, numbers = (size_t)c->B * c->T * C;
    int count = mode == MODE_BACKWARD ? 4 : 1;
    float *heads = memory_allocate(count * numbers, sizeof *heads, "the results");
    Tensor tensors[4 + ATTENTION_TENSORS_MAX];
    char gradient_names[ATTENTION_TENSORS_MAX][80];
    for (int i = 0; i < count; i++) {
        tensors[i] = (Tensor){.name = names[i], .dtype = DTYPE_F32, .rank = 4, .data = heads + i * numbers};
        memcpy(tensors[i].shape, shape, 4 * sizeof *shape);
        if (i == 0)
            copy_heads(heads, e->out, C, 0, c, 0);
        else
            copy_heads(heads + i * numbers, e->dqkv, 3 * C, (i - 1) * C, c, 0);
    }
    if (mode == MODE_BACKWARD) count += list_gradients(tensors + count, gradient_names, e);
    int status = safetensors_write(path, tensors, count, NULL, error);
    free(heads);
    return status;
}

static int evaluate(Evaluation *e, const Settings *settings, const Options *options, const Safetensors *file,
                    Error *error) {
    uint64_t shape[4];
    if (read_sizes(&e->config, file, shape, error)) return -1;
    e->config.max_T = settings->horizon ? settings->horizon : e->config.T;
    e->config.seed = (uint64_t)settings->seed;
    if (e->config.max_T < e->config.T) {
        return error_set(error, "the horizon is %d, but the file has %d positions; give --horizon %d or more",
                         e->config.max_T, e->config.T, e->config.T);
    }
    if (attention_configure(e->attention, &e->config, options, error)) return -1;
    allocate(e, settings->mode);
    if (read_inputs(e, file, shape, settings->mode == MODE_BACKWARD, error)) return -1;
    if (read_attention(e, file, error)) return -1;
    if (settings->time)
        run_timed(e, settings);
    else
        run(e, settings);
    return write_results(e, settings->out, shape, settings->mode, error);
}

int main(int argc, char **argv) {
    error_set_program(argv[0]);
    Settings settings = {.attention = "softmax", .mode = MODE_FORWARD, .seed = 1};
    Evaluation e = {.attention = NULL};
    static Options options = {.usage = "attention_eval --in IN.safetensors --out OUT.safetensors --attention NAME"};
    char names[256];
    Error error;
    int positionals;
    add_options(&options, &settings);
    attention_add_options(&options, &e.config);
    die_if(options_parse(&options, argc, argv, NULL, 0, &positionals, &error), &error);
    if (!settings.in || !settings.out) die("--in and --out are needed; --help lists the options");
    e.attention = attention_find(settings.attention);
    if (!e.attention) {
        die("unknown attention \"%.40s\"; known are %s", settings.attention, attention_names(names, sizeof names));
    }
#ifdef _OPENMP
    if (settings.threads) omp_set_num_threads(settings.threads);
#endif
    Safetensors file;
    die_if(safetensors_open(&file, settings.in, &error), &error);
    int status = evaluate(&e, &settings, &options, &file, &error);
    safetensors_close(&file);
    release(&e);
    die_if(status, &error);
    return 0;
}
