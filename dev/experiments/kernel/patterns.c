// What attentions do with the queries, keys and values of a trained model.
//
//   build/dev/experiments/kernel/patterns RUN --shard FILE.bin --table outputs|weights|entropy [--attentions LIST] ...
//
// The model reads --rows rows of --T tokens from the shard; then each attention of the list is given the q, k and v of
// every layer and head.
//   outputs  distance of its output to that of yat-spherical, for each layer over all rows, heads and --draws draws:
//            relative to the exact output's length, and the cosine
//   weights  of the first row, last layer, for each head: each query's weights in thousandths, a line for each query
//   entropy  histogram of the entropy of the rows (1: plain averaging), from the sixteenth, over all layers and heads
#define GPT2_MODEL_ONLY
#include "train_gpt2.c"

#include "probe.h"
#include "dataloader/shard.h"

#include <math.h>

enum { TABLE_OUTPUTS, TABLE_WEIGHTS, TABLE_ENTROPY };

typedef struct {
    const char *model, *shard, *attentions;
    int table, rows, T, draws, bins;
} Reading;

// ---- the model

static void read_model(GPT2 *model, const Reading *r) {
    Checkpoint checkpoint;
    GPT2Config config;
    AttentionStack stack;
    Error error;
    die_if(model_open_checkpoint(&checkpoint, &config, &stack, r->rows, r->T, r->model, &error), &error);
    if (r->T > config.max_T) die("--T: expected at most the model's context, %d, found %d", config.max_T, r->T);
    gpt2_create(model, &config, &stack, 0, 1, TRAINS_SHARING_MOMENTS, RECOMPUTE_NONE);
    ModelTensors tensors = gpt2_to_host(model, HOST_TO_FILL);
    die_if(model_read_checkpoint(&tensors, &checkpoint, MODEL_WEIGHTS | MODEL_ATTENTION, &error), &error);
    gpt2_from_host(model, HOST_TO_FILL);
    checkpoint_close(&checkpoint);
}

// The forward pass, which leaves every layer's q, k and v.
static void run_model(GPT2 *model, const Reading *r) {
    size_t count = (size_t)r->rows * r->T;
    uint16_t *tokens = memory_allocate(count, sizeof *tokens, "tokens");
    int *inputs = memory_allocate(count, sizeof *inputs, "inputs");
    Shard shard;
    Error error;
    die_if(shard_open(&shard, r->shard, &error) || shard_check(&shard, 0, count, model->config.V, &error) ||
               shard_read(&shard, 0, count, tokens, &error),
           &error);
    for (size_t i = 0; i < count; i++) inputs[i] = tokens[i];
    MicroBatch batch = {.inputs = inputs, .targets = inputs, .B = r->rows, .T = r->T};
    gpt2_evaluate(model, &batch);
    shard_close(&shard);
    free(tokens), free(inputs);
}

// q, k and v of one layer, row and head of the model go into a probe of one head.
static void take_head(Probe *probe, const GPT2 *model, int layer, int row, int head) {
    int d = probe->config.HS, C = model->config.C, T = probe->config.T;
    const real *qkv = model->acts.layers[layer].qkv + (size_t)row * T * 3 * C;
    for (int i = 0; i < T; i++)
        for (int which = 0; which < 3; which++)
            memcpy(probe->qkv + ((size_t)i * 3 + which) * d, qkv + ((size_t)i * 3 + which) * C + head * d,
                   sizeof(real) * d);
}

// ---- tables

typedef struct {
    double error2, length2, cosine;
    int outputs, positions;
} Distance;

static void add_distance(Distance *sum, const real *out, const real *exact, int T, int d) {
    for (int i = 0; i < T; i++, out += d, exact += d) {
        double ab = 0, aa = 0, bb = 0;
        for (int c = 0; c < d; c++) {
            sum->error2 += pow(out[c] - exact[c], 2);
            ab += (double)out[c] * exact[c], aa += (double)out[c] * out[c], bb += (double)exact[c] * exact[c];
        }
        sum->length2 += bb;
        sum->cosine += ab / sqrt(fmax(aa * bb, 1e-300));
    }
    sum->outputs++, sum->positions += T;
}

static void print_outputs(const GPT2 *model, const char *attention, const Reading *r) {
    int d = model->config.C / model->config.NH;
    Probe probe = probe_open(attention, r->T, 1, d, 1), exact = probe_open("yat-spherical", r->T, 1, d, 1);
    for (int layer = 0; layer < model->config.L; layer++) {
        Distance sum = {0};
        for (int i = 0; i < r->rows * model->config.NH; i++) {
            take_head(&exact, model, layer, i / model->config.NH, i % model->config.NH);
            probe_run(&exact);
            memcpy(probe.qkv, exact.qkv, sizeof(real) * 3 * (size_t)r->T * d);
            for (int draw = 0; draw < r->draws; draw++) {
                probe_draw(&probe, 1 + (uint64_t)draw);
                probe_run(&probe);
                add_distance(&sum, probe.out, exact.out, r->T, d);
            }
        }
        printf("%s,%d,%d,%d,%d,%d,%.6g,%.6g\n", attention, probe_width(&probe), layer + 1, r->rows, model->config.NH,
               r->draws, sqrt(sum.error2 / sum.length2), sum.cosine / sum.positions);
    }
    probe_close(&probe), probe_close(&exact);
}

static void print_weights(const GPT2 *model, const char *attention, const Reading *r) {
    int d = model->config.C / model->config.NH, T = r->T;
    double *weights = numbers((size_t)T * T);
    Probe probe = probe_open(attention, T, 1, d, 1);
    for (int head = 0; head < model->config.NH; head++) {
        take_head(&probe, model, model->config.L - 1, 0, head);
        probe_weights(weights, &probe);
        for (int i = 0; i < T; i++) {
            printf("%s,%d,%d,", attention, head + 1, i);
            for (int j = 0; j <= i; j++) printf("%s%.0f", j ? " " : "", 1000 * weights[(size_t)i * T + j]);
            printf("\n");
        }
    }
    probe_close(&probe);
    free(weights);
}

static void print_entropy(const GPT2 *model, const char *attention, const Reading *r) {
    int d = model->config.C / model->config.NH, T = r->T, heads = model->config.NH;
    double *weights = numbers((size_t)T * T);
    Entropies entropies = {.bins = r->bins, .counts = numbers(r->bins)};
    Probe probe = probe_open(attention, T, 1, d, 1);
    for (int i = 0; i < model->config.L * heads * r->rows; i++) {
        take_head(&probe, model, i / (heads * r->rows), i / heads % r->rows, i % heads);
        probe_weights(weights, &probe);
        entropies_add(&entropies, weights, T);
    }
    entropies_print(&entropies, attention);
    probe_close(&probe);
    free(weights), free(entropies.counts);
}

int main(int argc, char **argv) {
    static Options options = {.usage = "usage: patterns RUN --shard FILE [options]\n"
                                       "Attentions on the queries, keys and values of a trained model."};
    static const char *const heads[] = {"attention,F,layer,rows,heads,draws,rel_l2,cosine",
                                        "attention,head,query,weights", "attention,entropy,share,mean"};
    Reading r = {NULL, NULL, "yat-spherical;slay", TABLE_OUTPUTS, 8, 64, 4, 40};
    const Option items[] = {
        {"", "shard", 0, OPTION_STRING, &r.shard, 0, 0, "FILE", "tokens", 0, ""},
        {"", "attentions", 0, OPTION_STRING, &r.attentions, 0, 0, "LIST", "with semicolons", 0, ""},
        {"", "table", 0, OPTION_CHOICE, &r.table, 0, 0, "outputs|weights|entropy", "what to print", 0, ""},
        {"", "rows", 0, OPTION_INT, &r.rows, 1, 4096, NULL, "of tokens", 0, ""},
        {"", "T", 0, OPTION_INT, &r.T, ENTROPIES_FIRST_ROW, 1 << 16, NULL, "tokens in a row", 0, ""},
        {"", "draws", 0, OPTION_INT, &r.draws, 1, 4096, NULL, "of the constants", 0, ""},
        {"", "bins", 0, OPTION_INT, &r.bins, 1, 1000, NULL, "of the histogram", 0, ""}};
    Error error;
    GPT2 model;
    int models;
    error_set_program(argv[0]);
    options_add(&options, items, sizeof items / sizeof *items);
    die_if(options_parse(&options, argc, argv, &r.model, 1, &models, &error), &error);
    if (models != 1 || !r.shard) die("expected a run and --shard FILE; see --help");
    read_model(&model, &r);
    run_model(&model, &r);
    printf("%s\n", heads[r.table]);
    for (char *rest = memory_copy_string(r.attentions), *name; (name = strsep(&rest, ";"));) {
        if (r.table == TABLE_OUTPUTS) print_outputs(&model, name, &r);
        if (r.table == TABLE_WEIGHTS) print_weights(&model, name, &r);
        if (r.table == TABLE_ENTROPY) print_entropy(&model, name, &r);
    }
    gpt2_free(&model);
    return 0;
}
