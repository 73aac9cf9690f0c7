// attention_task: the model of the paper's synthetic tasks, trained and tested on shards with targets.
//
//   build/dev/attention_task --train TRAIN.bin --test TEST.bin --length T --vocab V --attention slay [options]
//
// Token and position embeddings, both standard normal, then layers h <- h + attention(h) and a linear head with a bias:
// no LayerNorm, no MLP. AdamW with PyTorch's defaults and first weights, a constant rate. Prints {"loss", "accuracy"}
// over the targets of the test rows that count.
#include "attention/attention.h"
#include "core/base/memory.h"
#include "core/base/random.h"
#include "core/math/matmul.h"
#include "dataloader/dataloader.h"

#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { LAYERS = 2 };

typedef struct { // the command line
    const char *train, *test, *attention;
    int T, V, C, NH, B, steps, threads;
    float rate, weight_decay;
    int64_t seed;
} Settings;

typedef struct { // parameters, or their gradients, in one block
    real *all;
    real *wte, *wpe;                                     // (V,C), (T,C)
    real *qkv[LAYERS], *out[LAYERS], *attention[LAYERS]; // (3C,C), (C,C), the mechanism's own
    real *head, *bias;                                   // (V,C), (V)
} Weights;

typedef struct {
    const Attention *attention;
    AttentionConfig config;
    int V;
    size_t count; // parameters
    Weights weights, gradients;
    real *mean, *square; // AdamW's
    real *constants[LAYERS];
    real *h[LAYERS + 1], *qkv[LAYERS], *out[LAYERS], *saved[LAYERS]; // (B,T,C), (B,T,3C), (B,T,C)
    real *dh, *dout, *dqkv, *logits, *work;                          // (B,T,C), (B,T,C), (B,T,3C), (B,T,V)
    int32_t *inputs, *targets;                                       // (B,T)
} Model;

typedef struct {
    double loss;
    int64_t correct, counted;
} Score;

static void add_options(Options *options, Settings *s) {
    const Option table[] = {
        {"data", "train", 0, OPTION_STRING, &s->train, 0, 0, "FILE", "shard of rows to train on", 0, ""},
        {"data", "test", 0, OPTION_STRING, &s->test, 0, 0, "FILE", "shard of rows to test on", 0, ""},
        {"data", "length", 0, OPTION_INT, &s->T, 1, 65536, NULL, "tokens of a row", 0, ""},
        {"data", "vocab", 0, OPTION_INT, &s->V, 2, 65535, NULL, "different tokens", 0, ""},
        {"model", "width", 0, OPTION_INT, &s->C, 1, 4096, NULL, "numbers per token", 0, ""},
        {"model", "heads", 0, OPTION_INT, &s->NH, 1, 4096, NULL, "heads; they divide the width", 0, ""},
        {"model", "attention", 0, OPTION_STRING, &s->attention, 0, 0, "NAME", "the mechanism", 0, ""},
        {"training", "steps", 0, OPTION_INT, &s->steps, 0, 1e9, NULL, "steps", 0, ""},
        {"training", "batch", 0, OPTION_INT, &s->B, 1, 65536, NULL, "rows of a step", 0, ""},
        {"training", "lr", 0, OPTION_FLOAT, &s->rate, 0, 100, NULL, "learning rate", 0, ""},
        {"training", "weight-decay", 0, OPTION_FLOAT, &s->weight_decay, 0, 100, NULL, "of all parameters", 0, ""},
        {"training", "seed", 0, OPTION_LONG, &s->seed, 0, 9e18, NULL, "of first weights and constants", 0, ""},
        {"training", "threads", 0, OPTION_INT, &s->threads, 0, 4096, NULL, "0: as many as there are", 0, ""},
    };
    options_add(options, table, sizeof table / sizeof table[0]);
}

// ---- making it

// Lays the tensors out one behind the other; returns how many numbers there are.
static size_t place_weights(Weights *w, real *all, const Model *m) {
    const AttentionConfig *c = &m->config;
    size_t C = c->C, at = 0, own = attention_parameter_count(m->attention, c);
    w->all = all;
    w->wte = all + at, at += m->V * C;
    w->wpe = all + at, at += c->T * C;
    for (int l = 0; l < LAYERS; l++) {
        w->qkv[l] = all + at, at += 3 * C * C;
        w->out[l] = all + at, at += C * C;
        w->attention[l] = all + at, at += own;
    }
    w->head = all + at, at += m->V * C;
    w->bias = all + at, at += m->V;
    return at;
}

// PyTorch's Linear: uniform within 1 / sqrt(inputs).
static void fill_uniform(real *out, size_t count, uint64_t key, int inputs) {
    for (size_t i = 0; i < count; i++) out[i] = (real)((2 * random_uniform(key, i) - 1) / sqrt(inputs));
}

static void draw_weights(Model *m, uint64_t seed) {
    const AttentionConfig *c = &m->config;
    size_t C = c->C;
    Weights *w = &m->weights;
    random_fill_normal(w->wte, m->V * C, random_key(seed, "wte", 0), 1);
    random_fill_normal(w->wpe, c->T * C, random_key(seed, "wpe", 0), 1);
    for (int l = 0; l < LAYERS; l++) {
        fill_uniform(w->qkv[l], 3 * C * C, random_key(seed, "qkv", l), c->C);
        fill_uniform(w->out[l], C * C, random_key(seed, "out", l), c->C);
        m->constants[l] =
            memory_allocate_zeroed(attention_constant_count(m->attention, c) + 1, sizeof(real), "constants");
        attention_draw(m->attention, m->constants[l], w->attention[l], l, c);
    }
    fill_uniform(w->head, m->V * C, random_key(seed, "head", 0), c->C);
    fill_uniform(w->bias, m->V, random_key(seed, "bias", 0), c->C);
}

static real *numbers(size_t count) {
    return memory_allocate_zeroed(count + 1, sizeof(real), "the model");
}

static void make_model(Model *m, uint64_t seed) {
    const AttentionConfig *c = &m->config;
    size_t rows = (size_t)c->B * c->T, C = c->C;
    Weights counting;
    m->count = place_weights(&counting, NULL, m);
    place_weights(&m->weights, numbers(m->count), m);
    place_weights(&m->gradients, numbers(m->count), m);
    m->mean = numbers(m->count), m->square = numbers(m->count);
    for (int l = 0; l <= LAYERS; l++) m->h[l] = numbers(rows * C);
    for (int l = 0; l < LAYERS; l++) {
        m->qkv[l] = numbers(3 * rows * C), m->out[l] = numbers(rows * C);
        m->saved[l] = numbers(m->attention->saved_size(c));
    }
    m->dh = numbers(rows * C), m->dout = numbers(rows * C), m->dqkv = numbers(3 * rows * C);
    m->logits = numbers(rows * m->V), m->work = numbers(m->attention->work_size(c));
    m->inputs = memory_allocate(rows, sizeof *m->inputs, "tokens");
    m->targets = memory_allocate(rows, sizeof *m->targets, "targets");
    draw_weights(m, seed);
}

static void free_model(Model *m) {
    real *all[] = {m->weights.all, m->gradients.all, m->mean, m->square, m->dh, m->dout, m->dqkv, m->logits, m->work};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
    for (int l = 0; l <= LAYERS; l++) free(m->h[l]);
    for (int l = 0; l < LAYERS; l++) free(m->qkv[l]), free(m->out[l]), free(m->saved[l]), free(m->constants[l]);
    free(m->inputs), free(m->targets);
}

// ---- a step

static void forward(Model *m) {
    const AttentionConfig *c = &m->config;
    const Weights *w = &m->weights;
    int rows = c->B * c->T, C = c->C;
    for (int i = 0; i < rows; i++) {
        const real *token = w->wte + (size_t)m->inputs[i] * C, *position = w->wpe + (size_t)(i % c->T) * C;
        for (int j = 0; j < C; j++) m->h[0][(size_t)i * C + j] = token[j] + position[j];
    }
    for (int l = 0; l < LAYERS; l++) {
        matmul_nt(m->qkv[l], m->h[l], w->qkv[l], rows, 3 * C, C, 0);
        m->attention->forward(m->out[l], m->saved[l], m->qkv[l], m->constants[l], w->attention[l], m->work, c);
        memcpy(m->h[l + 1], m->h[l], (size_t)rows * C * sizeof(real));
        matmul_nt(m->h[l + 1], m->out[l], w->out[l], rows, C, C, 1);
    }
    matmul_nt(m->logits, m->h[LAYERS], w->head, rows, m->V, C, 0);
    for (int i = 0; i < rows; i++) {
        for (int v = 0; v < m->V; v++) m->logits[(size_t)i * m->V + v] += w->bias[v];
    }
}

// One position: adds to the score and turns its logits into their gradient, times `scale`.
static void judge_position(real *logits, int V, int target, real scale, Score *score) {
    int likeliest = 0;
    double sum = 0;
    for (int v = 1; v < V; v++) {
        if (logits[v] > logits[likeliest]) likeliest = v;
    }
    real most = logits[likeliest], wanted = logits[target];
    for (int v = 0; v < V; v++) sum += logits[v] = real_exp(logits[v] - most);
    for (int v = 0; v < V; v++) logits[v] *= scale / (real)sum;
    logits[target] -= scale;
    score->loss += log(sum) + most - wanted;
    score->correct += likeliest == target;
    score->counted++;
}

// The logits become the gradient of the mean loss.
static void judge(Model *m, Score *score) {
    int rows = m->config.B * m->config.T, counted = 0;
    for (int i = 0; i < rows; i++) counted += m->targets[i] >= 0;
    for (int i = 0; i < rows; i++) {
        real *logits = m->logits + (size_t)i * m->V;
        if (m->targets[i] < 0)
            memset(logits, 0, m->V * sizeof *logits);
        else
            judge_position(logits, m->V, m->targets[i], (real)1 / counted, score);
    }
}

static void backward_embeddings(Model *m) {
    int rows = m->config.B * m->config.T, C = m->config.C;
    for (int i = 0; i < rows; i++) {
        real *token = m->gradients.wte + (size_t)m->inputs[i] * C;
        real *position = m->gradients.wpe + (size_t)(i % m->config.T) * C;
        for (int j = 0; j < C; j++) token[j] += m->dh[(size_t)i * C + j], position[j] += m->dh[(size_t)i * C + j];
    }
}

static void backward(Model *m) {
    const AttentionConfig *c = &m->config;
    const Weights *w = &m->weights;
    Weights *d = &m->gradients;
    int rows = c->B * c->T, C = c->C;
    memset(d->all, 0, m->count * sizeof(real));
    for (int i = 0; i < rows; i++) {
        for (int v = 0; v < m->V; v++) d->bias[v] += m->logits[(size_t)i * m->V + v];
    }
    matmul_tn(d->head, m->logits, m->h[LAYERS], m->V, C, rows, 0);
    matmul(m->dh, m->logits, w->head, rows, C, m->V, 0);
    for (int l = LAYERS - 1; l >= 0; l--) {
        matmul_tn(d->out[l], m->dh, m->out[l], C, C, rows, 0);
        matmul(m->dout, m->dh, w->out[l], rows, C, C, 0);
        m->attention->backward(m->dqkv, d->attention[l], m->dout, m->qkv[l], m->out[l], m->saved[l], m->constants[l],
                               w->attention[l], m->work, c);
        matmul_tn(d->qkv[l], m->dqkv, m->h[l], 3 * C, C, rows, 0);
        matmul(m->dh, m->dqkv, w->qkv[l], rows, C, 3 * C, 1);
    }
    backward_embeddings(m);
}

static void adamw(Model *m, const Settings *s, int step) {
    double first = 1 - pow(0.9, step), second = 1 - pow(0.999, step);
    for (size_t i = 0; i < m->count; i++) {
        real g = m->gradients.all[i];
        m->mean[i] = (real)0.9 * m->mean[i] + (real)0.1 * g;
        m->square[i] = (real)0.999 * m->square[i] + (real)0.001 * g * g;
        double direction = m->mean[i] / first / (sqrt(m->square[i] / second) + 1e-8);
        m->weights.all[i] -= (real)(s->rate * (direction + s->weight_decay * m->weights.all[i]));
    }
}

// ---- training and testing

static int open_rows(DataLoader **loader, const char *path, const Settings *s, Error *error) {
    DataLoaderConfig config = {.pattern = path, .T = s->T, .vocab = s->V, .least_rows = s->B};
    return dataloader_open(loader, &config, error);
}

static int train(Model *m, const Settings *s, DataLoader *loader, Error *error) {
    for (int step = 1; step <= s->steps; step++) {
        Score score = {0};
        if (dataloader_rows_at(loader, 0, s->B, m->inputs, m->targets, error)) return -1;
        dataloader_advance(loader, s->B);
        forward(m);
        judge(m, &score);
        if (!isfinite(score.loss)) return error_set(error, "step %d: the loss is not finite; lower --lr", step);
        backward(m);
        adamw(m, s, step);
    }
    return 0;
}

// The test rows in whole batches.
static int test(Model *m, const Settings *s, DataLoader *loader, Error *error) {
    Score score = {0};
    for (int64_t first = 0; first + s->B <= dataloader_rows(loader); first += s->B) {
        if (dataloader_rows_at(loader, first, s->B, m->inputs, m->targets, error)) return -1;
        forward(m);
        judge(m, &score);
    }
    if (!score.counted) return error_set(error, "%s: no target counts", s->test);
    printf("{\"loss\": %.6f, \"accuracy\": %.6f, \"targets\": %lld}\n", score.loss / score.counted,
           (double)score.correct / score.counted, (long long)score.counted);
    return 0;
}

static int run(Model *m, const Settings *s, Error *error) {
    DataLoader *training = NULL, *testing = NULL;
    int status = open_rows(&training, s->train, s, error) || open_rows(&testing, s->test, s, error);
    if (!status) {
        make_model(m, (uint64_t)s->seed);
        status = train(m, s, training, error) || test(m, s, testing, error);
        free_model(m);
    }
    dataloader_close(training);
    dataloader_close(testing);
    return status;
}

int main(int argc, char **argv) {
    error_set_program(argv[0]);
    Settings s = {.attention = "softmax", .T = 32, .V = 32, .C = 64, .NH = 4, .B = 32, .steps = 200, .seed = 42};
    s.rate = 1e-3f, s.weight_decay = 0.01f;
    Model m = {.attention = NULL};
    static Options options = {
        .usage = "attention_task --train TRAIN.bin --test TEST.bin --length T --vocab V --attention NAME"};
    char names[256];
    Error error;
    int positionals;
    add_options(&options, &s);
    attention_add_options(&options, &m.config);
    die_if(options_parse(&options, argc, argv, NULL, 0, &positionals, &error), &error);
    if (!s.train || !s.test) die("--train and --test are needed; --help lists the options");
    m.attention = attention_find(s.attention);
    if (!m.attention)
        die("unknown attention \"%.40s\"; known are %s", s.attention, attention_names(names, sizeof names));
    if (s.C % s.NH) die("--heads: expected a divisor of the width %d, found %d", s.C, s.NH);
    m.V = s.V;
    m.config.B = s.B, m.config.T = m.config.max_T = s.T, m.config.C = s.C, m.config.NH = s.NH;
    m.config.seed = (uint64_t)s.seed;
    die_if(attention_configure(m.attention, &m.config, &options, &error), &error);
#ifdef _OPENMP
    if (s.threads) omp_set_num_threads(s.threads);
#endif
    die_if(run(&m, &s, &error), &error);
    return 0;
}
