/*
Tests of the whole model. The Makefile builds this file twice:

  build/test_gpt2            float, as it ships: against PyTorch's numbers (dev/fixtures/gpt2_steps.safetensors)
  build/test_gpt2_gradient   double: every layer and every attention's model against finite differences

What must hold in either precision is tested in both. Run from the project's root.
*/
#define GPT2_MODEL_ONLY
#include "sample_gpt2.c" // and with it train_gpt2.c

#include "core/math/gemm.h"
#include "core/base/test.h"

// The rounding error of one operation, for bounds that hold in both builds.
#ifdef REAL_IS_DOUBLE
static const double ROUNDING = 2.3e-16;
#else
static const double ROUNDING = 1.2e-7;
#endif

// ---------------------------------------------------------------------------------------------------------------------
// Helpers

static uint64_t streams_used;

// `count` normal numbers, other ones with every call.
static real *random_numbers(size_t count, double scale) {
    real *numbers = memory_allocate(count, sizeof(real), "test numbers");
    random_fill_normal(numbers, count, random_key(1, "test numbers", streams_used++), scale);
    return numbers;
}

static int *random_tokens(size_t count, int vocabulary) {
    int *tokens = memory_allocate(count, sizeof(int), "test tokens");
    uint64_t key = random_key(2, "test tokens", streams_used++);
    for (size_t i = 0; i < count; i++) tokens[i] = (int)random_below(key, i, (uint64_t)vocabulary);
    return tokens;
}

static real *copy_of(const real *numbers, size_t count) {
    return memcpy(memory_allocate(count, sizeof(real), "a copy"), numbers, count * sizeof(real));
}

// Fills a result with numbers that no test can overlook when the code fails to overwrite them.
static real *unset_numbers(size_t count) {
    real *numbers = memory_allocate(count, sizeof(real), "test results");
    for (size_t i = 0; i < count; i++) numbers[i] = (real)NAN;
    return numbers;
}

static double largest(const real *x, size_t count) {
    double most = 0;
    for (size_t i = 0; i < count; i++) most = fmax(most, fabs((double)x[i]));
    return most;
}

static double root_mean_square(const real *x, size_t count) {
    double squares = 0;
    for (size_t i = 0; i < count; i++) squares += (double)x[i] * (double)x[i];
    return sqrt(squares / (double)count);
}

// The largest difference as a share of the expected tensor's largest number; infinite when anything is not finite.
static double worst_difference(const real *found, const real *expected, size_t count) {
    double worst = 0, scale = fmax(largest(expected, count), 1e-30);
    for (size_t i = 0; i < count; i++) {
        double difference = fabs((double)found[i] - (double)expected[i]) / scale;
        if (!isfinite(difference)) return INFINITY;
        worst = fmax(worst, difference);
    }
    return worst;
}

static void check_equal_within(const char *what, const real *found, const real *expected, size_t count, double bound) {
    double worst = worst_difference(found, expected, count);
    if (worst <= bound) return;
    CHECK(!"the tensors agree");
    printf("    %s: differs by %.3g of its largest number %.3g, allowed %.3g\n", what, worst, largest(expected, count),
           bound);
}

static void check_same_bits(const char *what, const real *found, const real *expected, size_t count) {
    if (!memcmp(found, expected, count * sizeof(real))) return;
    CHECK(!"the same bits");
    printf("    %s: differs by %.3g of its largest number\n", what, worst_difference(found, expected, count));
}

// A model of the given attention with its default options.
static const GPT2Config tiny = {.max_T = 12, .V = 19, .L = 2, .NH = 2, .C = 8};
enum { TINY_B = 2, TINY_T = 9 };

static void initialize(GPT2 *model) {
    ModelTensors tensors = gpt2_to_host(model, HOST_TO_FILL);
    model_initialize(&tensors, model->seed, 0.02);
    gpt2_from_host(model, HOST_TO_FILL);
}

// Weights so wide that nothing is nearly linear.
static void widen(GPT2 *model) {
    initialize(model);
    for (int i = 0; i < model->parameter_count; i++) {
        Parameter *p = &model->parameters[i];
        int is_scale = p->rank == 1 && strstr(p->name, ".weight") != NULL;
        random_fill_normal(p->value, p->count, random_key(6, p->name, 0), is_scale ? 0.1 : 0.3);
        for (size_t j = 0; is_scale && j < p->count; j++) p->value[j] += 1;
    }
}

// What models are made of here: every mechanism as it is by default, then with options, parameters of their own, and as
// lists over the layers. Models with a list have no learned positions.
static const char *kind_at(int i) {
    static const char *const others[] = {"favor:features=exp",
                                         "softmax:decay=learned",
                                         "yat:window=5:decay=fixed",
                                         "elu:decay=learned",
                                         "slay:learn=both:decay=learned",
                                         "slay:fusion=flat:M=20:learn=both",
                                         "slay:decay=learned:R=2:M=6:P=32,softmax:window=6",
                                         "uniform:decay=fixed,yat-spherical:decay=learned:window=40",
                                         NULL};
    int known = 0;
    while (attention_registry[known]) known++;
    return i < known ? attention_registry[i]->name : others[i - known];
}

// A model of `config`'s sizes for B rows of T tokens, which may hold documents.
static void create_kind(GPT2 *model, const char *kind, GPT2Config config, int B, int T, float dropout_share, int trains,
                        int recompute) {
    Error error;
    AttentionStack stack;
    AttentionConfig sizes = {
        .B = B, .T = T, .C = config.C, .NH = config.NH, .max_T = config.max_T, .packed = 1, .seed = 5};
    if (strchr(kind, ',')) config.positions = POSITIONS_NONE;
    die_if(attention_stack_configure(&stack, kind, &sizes, NULL, &error), &error);
    gpt2_create(model, &config, &stack, dropout_share, 5, trains, recompute);
    widen(model);
}

static void create_tiny_recomputing(GPT2 *model, const char *kind, float dropout_share, int recompute) {
    create_kind(model, kind, tiny, 4, tiny.max_T, dropout_share, TRAINS, recompute);
}

static void create_tiny(GPT2 *model, const char *attention, float dropout_share) {
    create_tiny_recomputing(model, attention, dropout_share, RECOMPUTE_NONE);
}

static MicroBatch whole_batch(const int *inputs, const int *targets, int B, int T, double scale) {
    return (MicroBatch){
        .inputs = inputs, .targets = targets, .B = B, .T = T, .is_first = 1, .is_last = 1, .scale = scale};
}

// Documents in two rows of TINY_T tokens.
static const int tiny_documents[] = {4, 5, 1, 7, 1}, tiny_positions[] = {0, 1, 2, 3, 0, 1, 2, 3, 4,
                                                                        0, 0, 1, 2, 3, 4, 5, 6, 0};
enum { TINY_DOCUMENTS = sizeof tiny_documents / sizeof *tiny_documents };

// Both passes; returns the sum of the losses.
static double forward_backward(GPT2 *model, MicroBatch batch) {
    gpt2_forward(model, &batch);
    gpt2_backward(model, &batch);
    return model->step_loss;
}

// All gradients of a model in one block, in the order of its parameters; free() it.
static real *gradients_of(const GPT2 *model, size_t *count) {
    *count = 0;
    for (int i = 0; i < model->parameter_count; i++) *count += model->parameters[i].count;
    real *all = memory_allocate(*count, sizeof(real), "the gradients"), *next = all;
    for (int i = 0; i < model->parameter_count; next += model->parameters[i++].count)
        memcpy(next, model->parameters[i].gradient, model->parameters[i].count * sizeof(real));
    return all;
}

// ---------------------------------------------------------------------------------------------------------------------
// Finite differences (double only)

#ifdef REAL_IS_DOUBLE

static double dot(const real *a, const real *b, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

typedef double (*LossFunction)(void *context);

// The derivative of the loss along `direction` (NULL: along x[index]), from four values: the error is of order h^4.
static double slope(LossFunction loss, void *context, real *x, const real *direction, size_t count, size_t index,
                    double h) {
    static const double at[4] = {-2, -1, 1, 2}, share[4] = {1, -8, 8, -1};
    real *saved = copy_of(x, count);
    double sum = 0;
    for (int i = 0; i < 4; i++) {
        if (direction)
            for (size_t j = 0; j < count; j++) x[j] = saved[j] + at[i] * h * direction[j];
        else
            x[index] = saved[index] + at[i] * h;
        sum += share[i] * loss(context);
        memcpy(x, saved, count * sizeof(real));
    }
    free(saved);
    return sum / (12 * h);
}

// How far `expected` is from the slope. Features with a kink (ReLU) and scores near a pole bend within the wider steps,
// so narrower ones are tried; a wrong gradient is wrong with all of them.
static double slope_error(LossFunction loss, void *context, real *x, const real *direction, size_t count, size_t index,
                          double expected, double allowed) {
    double error = INFINITY;
    for (double h = 2e-4; h > 1e-8 && !(error <= allowed); h /= 10) {
        double here = fabs(slope(loss, context, x, direction, count, index, h) - expected);
        if (here < error) error = here;
    }
    return error;
}

// Compares dx, the gradient that the code found, with slopes: at up to 16 places and along one random direction, which
// has a part in every place. Errors count as shares of the gradient's largest number.
static void check_gradient(const char *what, LossFunction loss, void *context, real *x, const real *dx, size_t count,
                           double bound) {
    double scale = fmax(largest(dx, count), 1e-6);
    uint64_t key = random_key(3, what, streams_used++);
    real *direction = random_numbers(count, 1 / sqrt((double)count));
    double worst = slope_error(loss, context, x, direction, count, 0, dot(dx, direction, count), bound * scale);
    for (size_t i = 0; i < (count < 16 ? count : 16); i++) {
        size_t index = count <= 16 ? i : (size_t)random_below(key, i, count);
        worst = fmax(worst, slope_error(loss, context, x, NULL, count, index, dx[index], bound * scale));
    }
    free(direction);
    if (worst <= bound * scale) return;
    CHECK(!"the gradient agrees with finite differences");
    printf("    %s: off by %.3g of its largest number %.3g, allowed %.3g\n", what, worst / scale, scale, bound);
}

// ---- each layer: the loss is the product of its output with fixed random numbers

typedef struct {
    int N, T, C, OC, V;
    real *inp, *weight, *bias, *residual, *out, *probe; // probe: the gradient of the loss at the output
    real *mean, *rstd, *work;
    int *tokens;
    double *losses;
    real scale;
} Layer;

static double embedding_loss(void *context) {
    Layer *l = context;
    embedding_forward(l->out, l->tokens, NULL, l->weight, l->bias, l->N, l->T, l->C);
    return dot(l->out, l->probe, (size_t)(l->N * l->C));
}

// weight is wte, bias is wpe; some tokens come more than once, and the last positions not at all.
static void embedding(void) {
    Layer l = {.N = 14, .T = 7, .C = 70, .V = 5};
    size_t count = (size_t)(l.N * l.C), wte_count = (size_t)(l.V * l.C), wpe_count = (size_t)(10 * l.C);
    l.weight = random_numbers(wte_count, 1), l.bias = random_numbers(wpe_count, 1);
    l.probe = random_numbers(count, 1), l.out = unset_numbers(count), l.tokens = random_tokens((size_t)l.N, l.V);
    real *before = random_numbers(wte_count, 1), *dwte = copy_of(before, wte_count);
    real *dwpe = memory_allocate_zeroed(wpe_count, sizeof(real), "dwpe");
    embedding_backward(dwte, dwpe, l.probe, l.tokens, NULL, l.N, l.T, l.C);
    for (size_t i = 0; i < wte_count; i++) dwte[i] -= before[i]; // it adds to what the head left there
    check_gradient("dwte", embedding_loss, &l, l.weight, dwte, wte_count, 1e-9);
    check_gradient("dwpe", embedding_loss, &l, l.bias, dwpe, wpe_count, 1e-9);
    free(l.weight), free(l.bias), free(l.probe), free(l.out), free(l.tokens), free(before), free(dwte), free(dwpe);
}

static double layernorm_loss(void *context) {
    Layer *l = context;
    layernorm_forward(l->out, l->mean, l->rstd, l->inp, l->weight, l->bias, l->N, l->C);
    return dot(l->out, l->probe, (size_t)(l->N * l->C));
}

static void layernorm_sizes(int N, int C) {
    Layer l = {.N = N, .C = C};
    size_t count = (size_t)(N * C), columns = (size_t)C;
    l.inp = random_numbers(count, 2), l.weight = random_numbers(columns, 1), l.bias = random_numbers(columns, 1);
    l.probe = random_numbers(count, 1), l.out = unset_numbers(count);
    l.mean = unset_numbers((size_t)N), l.rstd = unset_numbers((size_t)N),
    l.work = unset_numbers(layernorm_work((size_t)N, columns));
    real *before = random_numbers(count, 1), *dinp = copy_of(before, count);
    real *dweight = unset_numbers(columns), *dbias = unset_numbers(columns);
    layernorm_loss(&l);
    layernorm_backward(dinp, dweight, dbias, l.probe, l.inp, l.mean, l.rstd, l.weight, N, C, 0, l.work);
    for (size_t i = 0; i < count; i++) dinp[i] -= before[i]; // it adds to the residual stream's gradient
    check_gradient("dinp", layernorm_loss, &l, l.inp, dinp, count, 1e-7);
    check_gradient("dweight", layernorm_loss, &l, l.weight, dweight, columns, 1e-9);
    check_gradient("dbias", layernorm_loss, &l, l.bias, dbias, columns, 1e-9);
    real *once = copy_of(dweight, columns);
    layernorm_backward(dinp, dweight, dbias, l.probe, l.inp, l.mean, l.rstd, l.weight, N, C, 1, l.work);
    for (size_t i = 0; i < columns; i++) CHECK_CLOSE(dweight[i], 2 * once[i], 1e-12 * fmax(1, fabs(once[i])));
    free(l.inp), free(l.weight), free(l.bias), free(l.probe), free(l.out), free(l.mean), free(l.rstd), free(l.work);
    free(before), free(dinp), free(dweight), free(dbias), free(once);
}

static void layernorm(void) {
    layernorm_sizes(1, 3);
    layernorm_sizes(35, 70); // several blocks of rows and slices of columns, the last ones short
}

static double linear_loss(void *context) {
    Layer *l = context;
    if (l->residual)
        linear_residual_forward(l->out, l->residual, l->inp, l->weight, l->bias, l->N, l->C, l->OC);
    else
        linear_forward(l->out, l->inp, l->weight, l->bias, l->N, l->C, l->OC);
    return dot(l->out, l->probe, (size_t)(l->N * l->OC));
}

static void linear_case(int with_residual) {
    Layer l = {.N = 9, .C = 6, .OC = 70};
    size_t in = (size_t)(l.N * l.C), out = (size_t)(l.N * l.OC), matrix = (size_t)(l.C * l.OC);
    l.inp = random_numbers(in, 1), l.weight = random_numbers(matrix, 1), l.bias = random_numbers((size_t)l.OC, 1);
    l.residual = with_residual ? random_numbers(out, 1) : NULL;
    l.probe = random_numbers(out, 1), l.out = unset_numbers(out);
    real *dinp = unset_numbers(in), *dweight = unset_numbers(matrix), *dbias = unset_numbers((size_t)l.OC);
    linear_backward(dinp, dweight, dbias, l.probe, l.inp, l.weight, l.N, l.C, l.OC, 0);
    check_gradient("dinp", linear_loss, &l, l.inp, dinp, in, 1e-9);
    check_gradient("dweight", linear_loss, &l, l.weight, dweight, matrix, 1e-9);
    check_gradient("dbias", linear_loss, &l, l.bias, dbias, (size_t)l.OC, 1e-9);
    if (with_residual) check_gradient("dresidual", linear_loss, &l, l.residual, l.probe, out, 1e-9);
    real *once = copy_of(dweight, matrix);
    linear_backward(dinp, dweight, dbias, l.probe, l.inp, l.weight, l.N, l.C, l.OC, 1);
    for (size_t i = 0; i < matrix; i++) CHECK_CLOSE(dweight[i], 2 * once[i], 1e-12 * fmax(1, fabs(once[i])));
    free(l.inp), free(l.weight), free(l.bias), free(l.residual), free(l.probe), free(l.out);
    free(dinp), free(dweight), free(dbias), free(once);
}

static void linear(void) {
    linear_case(0);
    linear_case(1);
}

static double gelu_loss(void *context) {
    Layer *l = context;
    gelu_forward(l->out, l->inp, (size_t)l->N);
    return dot(l->out, l->probe, (size_t)l->N);
}

static void gelu(void) {
    Layer l = {.N = 401};
    size_t count = (size_t)l.N;
    l.inp = random_numbers(count, 2), l.probe = random_numbers(count, 1), l.out = unset_numbers(count);
    real *dinp = copy_of(l.probe, count);
    gelu_backward(dinp, l.inp, count);
    check_gradient("dinp", gelu_loss, &l, l.inp, dinp, count, 1e-9);
    gelu_loss(&l);
    real *textbook = unset_numbers(count);
    for (size_t i = 0; i < count; i++)
        textbook[i] = 0.5 * l.inp[i] * (1 + tanh(sqrt(2 / M_PI) * (l.inp[i] + 0.044715 * pow(l.inp[i], 3))));
    check_equal_within("against the form with tanh", l.out, textbook, count, 1e-14);
    // Far out: the identity on the right, nothing on the left, and no NaN from an exponential that overflows.
    real far[2] = {1000, -1000}, dfar[2] = {1, 1};
    gelu_backward(dfar, far, 2);
    gelu_forward(far, far, 2);
    CHECK(far[0] == 1000 && far[1] == 0 && dfar[0] == 1 && dfar[1] == 0);
    free(l.inp), free(l.probe), free(l.out), free(dinp), free(textbook);
}

static double head_loss(void *context) {
    Layer *l = context;
    head_forward_backward(l->losses, NULL, NULL, l->inp, l->weight, l->tokens, 0, l->N, l->C, l->V, 0, l->work);
    return l->scale * sum_losses(l->losses, l->N);
}

static void check_head_by_hand(const Layer *l) {
    for (int n = 0; n < l->N; n += 37) {
        double sum = 0, target = 0;
        for (int v = 0; v < l->V; v++) {
            double logit = dot(l->inp + n * l->C, l->weight + v * l->C, (size_t)l->C);
            sum += exp(logit);
            if (v == l->tokens[n]) target = logit;
        }
        CHECK_CLOSE(l->losses[n], l->tokens[n] < 0 ? 0 : log(sum) - target, 1e-12);
    }
}

// More rows than one block of logits, the last block short; some targets are to be ignored, in one case all of a block.
static void head(void) {
    Layer l = {.N = 2 * HEAD_ROWS + 88, .C = 3, .V = 7, .scale = 0.125};
    size_t count = (size_t)(l.N * l.C), wte_count = (size_t)(l.V * l.C);
    l.inp = random_numbers(count, 1), l.weight = random_numbers(wte_count, 1);
    l.work = unset_numbers(head_work((size_t)l.N, l.V)), l.tokens = random_tokens((size_t)l.N, l.V);
    l.losses = memory_allocate((size_t)l.N, sizeof(double), "losses");
    for (int n = 0; n < l.N; n++)
        if (n % 5 == 2 || n / HEAD_ROWS == 1) l.tokens[n] = -1;
    real *dhidden = unset_numbers(count), *dwte = unset_numbers(wte_count);
    head_forward_backward(l.losses, dhidden, dwte, l.inp, l.weight, l.tokens, l.scale, l.N, l.C, l.V, 0, l.work);
    check_head_by_hand(&l);
    check_gradient("dhidden", head_loss, &l, l.inp, dhidden, count, 1e-8);
    check_gradient("dwte", head_loss, &l, l.weight, dwte, wte_count, 1e-8);
    CHECK(largest(dhidden + 2 * l.C, (size_t)l.C) == 0); // row 2 is ignored
    real *once = copy_of(dwte, wte_count);
    head_forward_backward(l.losses, dhidden, dwte, l.inp, l.weight, l.tokens, l.scale, l.N, l.C, l.V, 1, l.work);
    for (size_t i = 0; i < wte_count; i++) CHECK_CLOSE(dwte[i], 2 * once[i], 1e-12);
    free(l.inp), free(l.weight), free(l.work), free(l.tokens), free(l.losses), free(dhidden), free(dwte), free(once);
}

// ---- the whole model, with every attention

typedef struct {
    GPT2 *model;
    MicroBatch batch;
} ModelLoss;

// With the model's dropout, which is the same as long as the step is.
static double model_loss(void *context) {
    ModelLoss *l = context;
    l->model->batch = l->batch;
    gpt2_hidden(l->model, 1);
    head_forward_backward(l->model->losses, NULL, NULL, l->model->acts.lnf, l->model->weights.wte, l->batch.targets, 0,
                          TINY_B * TINY_T, tiny.C, tiny.V, 0, l->model->head_work);
    return l->batch.scale * sum_losses(l->model->losses, TINY_B * TINY_T);
}

static void model_gradients(const char *attention, float dropout_share, const int *positions) {
    GPT2 model;
    create_tiny(&model, attention, dropout_share);
    int *inputs = random_tokens(TINY_B * TINY_T, tiny.V), *targets = random_tokens(TINY_B * TINY_T, tiny.V);
    targets[4] = -1;
    ModelLoss loss = {.model = &model, .batch = whole_batch(inputs, targets, TINY_B, TINY_T, 0.25)};
    loss.batch.step = 3, loss.batch.positions = positions;
    forward_backward(&model, loss.batch);
    for (int i = 0; i < model.parameter_count; i++) {
        const Parameter *p = &model.parameters[i];
        char what[128];
        snprintf(what, sizeof what, "%s, dropout %g%s: %s", attention, (double)dropout_share,
                 positions ? ", documents" : "", p->name);
        check_gradient(what, model_loss, &loss, p->value, p->gradient, p->count, 1e-6);
    }
    free(inputs), free(targets);
    gpt2_free(&model);
}

static void whole_model_of_every_attention(void) {
    for (int i = 0; kind_at(i); i++) model_gradients(kind_at(i), 0, NULL);
}

static void whole_model_with_dropout(void) {
    for (int i = 0; kind_at(i); i++) model_gradients(kind_at(i), 0.3f, NULL);
}

static void whole_model_with_documents(void) {
    for (int i = 0; kind_at(i); i++) model_gradients(kind_at(i), 0.3f, tiny_positions);
}

#endif // REAL_IS_DOUBLE

// ---------------------------------------------------------------------------------------------------------------------
// PyTorch's numbers (float only)

#ifndef REAL_IS_DOUBLE

#define FIXTURE "dev/fixtures/gpt2_steps.safetensors"
enum { FIXTURE_STEPS = 10, FIXTURE_B = 2, FIXTURE_T = 20 };

static double fixture_number(const Safetensors *file, const char *key) {
    const char *text = safetensors_metadata(file, key);
    if (!text) die("%s: no \"%s\" in its metadata", FIXTURE, key);
    return strtod(text, NULL);
}

static float *fixture_tensor(const Safetensors *file, const char *prefix, const char *name, size_t *count) {
    Error error;
    char full_name[128];
    snprintf(full_name, sizeof full_name, "%s%s", prefix, name);
    const Tensor *tensor = safetensors_find(file, full_name);
    if (!tensor) die("%s: no tensor \"%s\"", FIXTURE, full_name);
    *count = tensor_elements(tensor);
    float *values = memory_allocate(*count, sizeof(float), full_name);
    die_if(safetensors_read(values, file, full_name, tensor->rank, tensor->shape, &error), &error);
    return values;
}

static void create_fixture_model(GPT2 *model, const Safetensors *file) {
    Error error;
    GPT2Config config = {.max_T = (int)fixture_number(file, "n_positions"),
                         .V = (int)fixture_number(file, "vocab_size"),
                         .L = (int)fixture_number(file, "n_layer"),
                         .NH = (int)fixture_number(file, "n_head"),
                         .C = (int)fixture_number(file, "n_embd")};
    AttentionConfig sizes = {.B = FIXTURE_B, .T = FIXTURE_T, .C = config.C, .NH = config.NH, .max_T = config.max_T};
    const Attention *softmax = attention_find("softmax");
    die_if(attention_configure(softmax, &sizes, NULL, &error), &error);
    AttentionStack stack = attention_stack_of(softmax, &sizes);
    gpt2_create(model, &config, &stack, 0, 1, 1, RECOMPUTE_NONE);
    for (int i = 0; i < model->parameter_count; i++) {
        size_t count;
        float *values = fixture_tensor(file, "initial.", model->parameters[i].name, &count);
        if (count != model->parameters[i].count) die("%s: \"%s\" has another size", FIXTURE, model->parameters[i].name);
        memcpy(model->parameters[i].value, values, count * sizeof(float));
        free(values);
    }
}

// Batch number `step` of the fixture, cut into inputs and targets.
static void fixture_batch(int *inputs, int *targets, const float *tokens, int step) {
    const float *rows = tokens + step * FIXTURE_B * (FIXTURE_T + 1);
    for (int n = 0; n < FIXTURE_B * FIXTURE_T; n++) {
        inputs[n] = (int)rows[n / FIXTURE_T * (FIXTURE_T + 1) + n % FIXTURE_T];
        targets[n] = (int)rows[n / FIXTURE_T * (FIXTURE_T + 1) + n % FIXTURE_T + 1];
    }
}

static double fixture_step(GPT2 *model, const float *tokens, int step) {
    int inputs[FIXTURE_B * FIXTURE_T], targets[FIXTURE_B * FIXTURE_T];
    double scale = 1.0 / (FIXTURE_B * FIXTURE_T);
    fixture_batch(inputs, targets, tokens, step);
    return forward_backward(model, whole_batch(inputs, targets, FIXTURE_B, FIXTURE_T, scale)) * scale;
}

static void check_against(const GPT2 *model, const Safetensors *file, const char *prefix, int gradients, double bound) {
    for (int i = 0; i < model->parameter_count; i++) {
        const Parameter *p = &model->parameters[i];
        size_t count;
        char what[128];
        float *expected = fixture_tensor(file, prefix, p->name, &count);
        snprintf(what, sizeof what, "%s%s", prefix, p->name);
        check_equal_within(what, gradients ? p->gradient : p->value, expected, count, bound);
        free(expected);
    }
}

// The loss of each token and all gradients.
static void pytorch_loss_and_gradients(void) {
    Error error;
    Safetensors file;
    GPT2 model;
    size_t count;
    die_if(safetensors_open(&file, FIXTURE, &error), &error);
    create_fixture_model(&model, &file);
    float *tokens = fixture_tensor(&file, "", "tokens", &count), *losses = fixture_tensor(&file, "", "losses", &count);
    float *token_losses = fixture_tensor(&file, "", "token_losses", &count);
    CHECK_CLOSE(fixture_step(&model, tokens, 0), losses[0], 2e-6 * losses[0]);
    for (size_t n = 0; n < count; n++) CHECK_CLOSE(model.losses[n], token_losses[n], 1e-5);
    check_against(&model, &file, "gradient.", 1, 5e-6);
    free(tokens), free(losses), free(token_losses);
    gpt2_free(&model);
    safetensors_close(&file);
}

// Ten steps: clipped ones and others, decay on matrices only.
static void pytorch_ten_adamw_steps(void) {
    Error error;
    Safetensors file;
    GPT2 model;
    size_t count;
    die_if(safetensors_open(&file, FIXTURE, &error), &error);
    create_fixture_model(&model, &file);
    float *tokens = fixture_tensor(&file, "", "tokens", &count), *losses = fixture_tensor(&file, "", "losses", &count);
    float *norms = fixture_tensor(&file, "", "norms", &count);
    Settings settings = {.beta1 = (float)fixture_number(&file, "beta1"),
                         .beta2 = (float)fixture_number(&file, "beta2"),
                         .adam_eps = (float)fixture_number(&file, "eps"),
                         .clip = (float)fixture_number(&file, "clip"),
                         .weight_decay = (float)fixture_number(&file, "weight_decay")};
    for (int step = 0; step < FIXTURE_STEPS; step++) {
        CHECK_CLOSE(fixture_step(&model, tokens, step), losses[step], 3e-6 * losses[step]);
        Update update = {.step = step,
                         .rate = (float)fixture_number(&file, "lr"),
                         .most_loss = INFINITY,
                         .most_norm = INFINITY};
        StepOutcome outcome = gpt2_update(&model, &settings, &update);
        CHECK(outcome.trouble == NULL);
        CHECK_CLOSE(outcome.norm, norms[step], 1e-5 * norms[step]);
    }
    CHECK(norms[0] > settings.clip && norms[FIXTURE_STEPS - 1] < settings.clip); // the fixture has both kinds of step
    check_against(&model, &file, "final.", 0, 1e-5);
    free(tokens), free(losses), free(norms);
    gpt2_free(&model);
    safetensors_close(&file);
}

#endif // !REAL_IS_DOUBLE

// ---------------------------------------------------------------------------------------------------------------------
// In both precisions

static void dropout_mask(void) {
    enum { ROWS = 60, COLUMNS = 70 };
    size_t count = ROWS * COLUMNS;
    real *ones = memory_allocate(count, sizeof(real), "ones");
    for (size_t i = 0; i < count; i++) ones[i] = 1;
    real *whole = copy_of(ones, count), *again = copy_of(ones, count), *split = copy_of(ones, count);
    real *other = copy_of(ones, count);
    dropout(whole, ROWS, COLUMNS, 0, 0.25f, 77);
    omp_set_num_threads(1);
    dropout(again, ROWS, COLUMNS, 0, 0.25f, 77);
    omp_set_num_threads(omp_get_num_procs());
    for (size_t row = 0; row < ROWS; row += 20) dropout(split + row * COLUMNS, 20, COLUMNS, row, 0.25f, 77);
    dropout(other, ROWS, COLUMNS, 0, 0.25f, 78);
    check_same_bits("backward's mask, one thread", again, whole, count);
    check_same_bits("three micro-batches", split, whole, count);
    int zeros = 0, in_common = 0;
    for (size_t i = 0; i < count; i++) {
        CHECK(whole[i] == 0 || whole[i] == 1 / (real)0.75);
        zeros += whole[i] == 0, in_common += whole[i] == 0 && other[i] == 0;
    }
    CHECK_CLOSE(zeros, 0.25 * (double)count, 4 * sqrt((double)count * 0.25 * 0.75));
    CHECK_CLOSE(in_common, 0.0625 * (double)count, 4 * sqrt((double)count * 0.0625)); // another key, another mask
    real *none = copy_of(ones, count);
    dropout(none, ROWS, COLUMNS, 0, 0, 77);
    check_same_bits("a share of 0", none, ones, count);
    free(ones), free(whole), free(again), free(split), free(other), free(none);
}

// Gradients of a batch of four rows, taken `rows_at_once` rows at a time.
static real *accumulated_gradients(const char *attention, int rows_at_once, double *loss, size_t *count) {
    GPT2 model;
    create_tiny(&model, attention, 0.2f);
    streams_used = 1000; // the same tokens at every call
    int *inputs = random_tokens(4 * TINY_T, tiny.V), *targets = random_tokens(4 * TINY_T, tiny.V);
    *loss = 0;
    for (int row = 0; row < 4; row += rows_at_once) {
        MicroBatch batch =
            whole_batch(inputs + row * TINY_T, targets + row * TINY_T, rows_at_once, TINY_T, 1.0 / (4 * TINY_T));
        batch.first_row = row, batch.is_first = row == 0;
        *loss = forward_backward(&model, batch);
    }
    real *gradients = gradients_of(&model, count);
    free(inputs), free(targets);
    gpt2_free(&model);
    return gradients;
}

// One batch of four rows and four of one are the same step, up to the rounding of another order of sums. The bound is
// in roundings of the largest gradient; mechanisms whose divisor can come near zero magnify them.
static void gradient_accumulation(void) {
    for (int i = 0; kind_at(i); i++) {
        size_t count;
        double loss, split_loss, bound = (strcmp(kind_at(i), "softmax") ? 5000 : 100) * ROUNDING;
        real *whole = accumulated_gradients(kind_at(i), 4, &loss, &count);
        for (int rows = 1; rows <= 2; rows++) {
            real *split = accumulated_gradients(kind_at(i), rows, &split_loss, &count);
            CHECK_CLOSE(split_loss, loss, bound * loss);
            check_equal_within(kind_at(i), split, whole, count, bound);
            free(split);
        }
        free(whole);
    }
}

// ---- documents

// The gradients and losses of the same documents, each a batch of its own.
static real *gradients_of_documents_alone(const char *kind, const int *inputs, const int *targets, double *losses,
                                          size_t *count) {
    GPT2 model;
    create_tiny(&model, kind, 0);
    for (int i = 0, first = 0; i < TINY_DOCUMENTS; first += tiny_documents[i++]) {
        MicroBatch batch = whole_batch(inputs + first, targets + first, 1, tiny_documents[i], 0.125);
        batch.is_first = i == 0, batch.is_last = i == TINY_DOCUMENTS - 1;
        forward_backward(&model, batch);
        memcpy(losses + first, model.losses, (size_t)tiny_documents[i] * sizeof *losses);
    }
    real *gradients = gradients_of(&model, count);
    gpt2_free(&model);
    return gradients;
}

// Documents that share rows are what they are alone: every token's loss, and the step's gradients up to the rounding of
// another order of sums.
static void documents_equal_documents_alone(void) {
    for (int i = 0; kind_at(i); i++) {
        GPT2 model;
        size_t count;
        double alone_losses[TINY_B * TINY_T], bound = 5000 * ROUNDING;
        int *inputs = random_tokens(TINY_B * TINY_T, tiny.V), *targets = random_tokens(TINY_B * TINY_T, tiny.V);
        MicroBatch batch = whole_batch(inputs, targets, TINY_B, TINY_T, 0.125);
        batch.positions = tiny_positions;
        real *alone = gradients_of_documents_alone(kind_at(i), inputs, targets, alone_losses, &count);
        create_tiny(&model, kind_at(i), 0);
        forward_backward(&model, batch);
        for (int n = 0; n < TINY_B * TINY_T; n++)
            CHECK_CLOSE(model.losses[n], alone_losses[n], bound * alone_losses[n]);
        real *packed = gradients_of(&model, &count);
        check_equal_within(kind_at(i), packed, alone, count, bound);
        free(packed), free(alone), free(inputs), free(targets);
        gpt2_free(&model);
    }
}

static void documents_are_found(void) {
    static const int tokens[] = {3, 18, 5, 18, 18, 7, 18, 1, 2, 3, 4, 5};
    static const int expected[] = {0, 0, 1, 0, 0, 1, 0, 1, 2, 3, 4, 5};
    int positions[12];
    CHECK(micro_batch_positions(positions, tokens, 2, 6, 18));
    CHECK(!memcmp(positions, expected, sizeof expected));
    CHECK(!micro_batch_positions(positions, tokens + 6, 1, 6, 18)); // a row's own first token cuts nothing
    CHECK(!micro_batch_positions(positions, tokens, 2, 6, 17) && positions[5] == 5 && positions[6] == 0);
}

// ---- recomputing

// What backward makes again has the bits that forward made: every level of --recompute gives the same gradients, for
// less memory.
static void recomputing_changes_no_bit(void) {
    for (int i = 0; kind_at(i); i++) {
        real *gradients[RECOMPUTE_LEVELS];
        size_t count, bytes[RECOMPUTE_LEVELS];
        int *inputs = random_tokens(3 * TINY_T, tiny.V), *targets = random_tokens(3 * TINY_T, tiny.V);
        for (int level = 0; level < RECOMPUTE_LEVELS; level++) {
            GPT2 model;
            create_tiny_recomputing(&model, kind_at(i), 0.2f, level);
            forward_backward(&model, whole_batch(inputs, targets, 3, TINY_T, 0.05));
            gradients[level] = gradients_of(&model, &count);
            bytes[level] = arena_bytes(&model.activation_arena);
            gpt2_free(&model);
        }
        for (int level = 1; level < RECOMPUTE_LEVELS; level++) {
            check_same_bits(kind_at(i), gradients[level], gradients[0], count);
            CHECK(bytes[level] < bytes[level - 1]);
            free(gradients[level]);
        }
        free(gradients[0]), free(inputs), free(targets);
    }
}

// ---- threads

// Five steps of training with so many threads; the weights in one block.
static real *weights_after_training(int threads, size_t *count) {
    GPT2 model;
    Settings settings = settings_default();
    omp_set_num_threads(threads);
    create_tiny(&model, "softmax", 0.1f);
    streams_used = 2000;
    for (int step = 0; step < 5; step++) {
        int *inputs = random_tokens(4 * TINY_T, tiny.V), *targets = random_tokens(4 * TINY_T, tiny.V);
        forward_backward(&model, whole_batch(inputs, targets, 4, TINY_T, 1.0 / (4 * TINY_T)));
        settings.adam_eps = 1e-4f; // see the fixture's script
        Update update = {.step = step, .rate = 1e-2, .most_loss = INFINITY, .most_norm = INFINITY};
        gpt2_update(&model, &settings, &update);
        free(inputs), free(targets);
    }
    *count = 0;
    for (int i = 0; i < model.parameter_count; i++) *count += model.parameters[i].count;
    real *all = memory_allocate(*count, sizeof(real), "the weights"), *next = all;
    for (int i = 0; i < model.parameter_count; next += model.parameters[i++].count)
        memcpy(next, model.parameters[i].value, model.parameters[i].count * sizeof(real));
    gpt2_free(&model);
    omp_set_num_threads(omp_get_num_procs());
    return all;
}

// The same seed twice: the same bits. Another number of threads: BLAS may cut its products otherwise, so that only a
// bound holds.
static void training_with_threads(void) {
    size_t count;
    static const int threads[] = {1, 2, 7};
    real *first = weights_after_training(1, &count);
    for (int i = 0; i < 3; i++) {
        real *once = weights_after_training(threads[i], &count), *twice = weights_after_training(threads[i], &count);
        check_same_bits("the same seed twice", twice, once, count);
        if (HAVE_OWN_GEMM) // BLAS may sum in another order
            check_same_bits("against one thread", once, first, count);
        else
            check_equal_within("against one thread", once, first, count, 200 * ROUNDING);
        free(once), free(twice);
    }
    free(first);
}

typedef struct { // what the layers whose sums run over rows compute
    real *dwte, *dwpe, *dinp, *dweight, *dbias;
    double norm;
} RowSums;

static RowSums row_sums(int threads, const real *dout, const real *inp, const int *tokens, int N, int C) {
    omp_set_num_threads(threads);
    size_t count = (size_t)(N * C), columns = (size_t)C;
    RowSums sums = {.dwte = memory_allocate_zeroed(count, sizeof(real), "dwte"),
                    .dwpe = memory_allocate_zeroed(count, sizeof(real), "dwpe"),
                    .dinp = memory_allocate_zeroed(count, sizeof(real), "dinp"),
                    .dweight = unset_numbers(columns),
                    .dbias = unset_numbers(columns)};
    real *mean = unset_numbers((size_t)N), *rstd = unset_numbers((size_t)N), *out = unset_numbers(count);
    real *work = unset_numbers(layernorm_work((size_t)N, columns));
    embedding_backward(sums.dwte, sums.dwpe, dout, tokens, NULL, N, N, C);
    layernorm_forward(out, mean, rstd, inp, inp, inp + C, N, C);
    layernorm_backward(sums.dinp, sums.dweight, sums.dbias, dout, inp, mean, rstd, inp, N, C, 0, work);
    Parameter gradient = {.gradient = (real *)dout, .count = count};
    const char *bad;
    sums.norm = gpt2_gradient_norm(&(GPT2){.own = &gradient, .own_count = 1}, &bad);
    free(mean), free(rstd), free(out), free(work);
    omp_set_num_threads(omp_get_num_procs());
    return sums;
}

static void row_sums_free(RowSums *sums) {
    free(sums->dwte), free(sums->dwpe), free(sums->dinp), free(sums->dweight), free(sums->dbias);
}

// These promise the same bits with any number of threads.
static void sums_over_rows_with_threads(void) {
    enum { N = 700, C = 200 };
    real *dout = random_numbers(N * C, 1), *inp = random_numbers(N * C, 1);
    int *tokens = random_tokens(N, 11);
    RowSums one = row_sums(1, dout, inp, tokens, N, C);
    for (int threads = 2; threads <= 7; threads += 5) {
        RowSums many = row_sums(threads, dout, inp, tokens, N, C);
        check_same_bits("dwte", many.dwte, one.dwte, N * C);
        check_same_bits("dwpe", many.dwpe, one.dwpe, N * C);
        check_same_bits("dinp", many.dinp, one.dinp, N * C);
        check_same_bits("dweight", many.dweight, one.dweight, C);
        check_same_bits("dbias", many.dbias, one.dbias, C);
        CHECK(many.norm == one.norm);
        row_sums_free(&many);
    }
    row_sums_free(&one), free(dout), free(inp), free(tokens);
}

// ---- causality

static void check_causal(const char *attention) {
    enum { CHANGED = 5, N = TINY_B * TINY_T };
    GPT2 model;
    double before[N];
    create_tiny(&model, attention, 0);
    int *inputs = random_tokens(N, tiny.V), *targets = random_tokens(N, tiny.V);
    MicroBatch batch = whole_batch(inputs, targets, TINY_B, TINY_T, 1);
    gpt2_evaluate(&model, &batch);
    memcpy(before, model.losses, sizeof before);
    inputs[CHANGED] = (inputs[CHANGED] + 1) % tiny.V; // in row 0
    gpt2_evaluate(&model, &batch);
    for (int n = 0; n < N; n++) {
        int sees_it = n >= CHANGED && n < TINY_T;
        if (sees_it)
            CHECK(model.losses[n] != before[n]);
        else
            CHECK_CLOSE(model.losses[n], before[n], 20 * ROUNDING * before[n]);
    }
    free(inputs), free(targets);
    gpt2_free(&model);
}

// Another token changes the losses of its row from there on, and no others.
static void causality_of_every_attention(void) {
    for (int i = 0; kind_at(i); i++) check_causal(kind_at(i));
}

// A short pass after a long one gives what a model of that size gives: nothing of the long one is left over.
static void shorter_batches(void) {
    GPT2 model;
    size_t count;
    create_tiny(&model, "softmax", 0);
    int *inputs = random_tokens(4 * 12, tiny.V), *targets = random_tokens(4 * 12, tiny.V);
    forward_backward(&model, whole_batch(inputs, targets, 1, 1, 1));
    real *fresh = gradients_of(&model, &count);
    forward_backward(&model, whole_batch(inputs, targets, 4, 12, 1));
    forward_backward(&model, whole_batch(inputs, targets, 1, 1, 1));
    real *after = gradients_of(&model, &count);
    check_same_bits("gradients", after, fresh, count);
    free(inputs), free(targets), free(fresh), free(after);
    gpt2_free(&model);
}

// ---- initialisation and update

static void initial_weights(void) {
    GPT2 a, b;
    GPT2Config config = {.max_T = 16, .V = 101, .L = 3, .NH = 4, .C = 64};
    AttentionConfig sizes = {.B = 1, .T = 8, .C = config.C, .NH = config.NH, .max_T = config.max_T, .seed = 9};
    const Attention *softmax = attention_find("softmax");
    Error error;
    die_if(attention_configure(softmax, &sizes, NULL, &error), &error);
    AttentionStack stack = attention_stack_of(softmax, &sizes);
    gpt2_create(&a, &config, &stack, 0, 9, 1, RECOMPUTE_NONE);
    gpt2_create(&b, &config, &stack, 0, 9, 0, RECOMPUTE_NONE);
    initialize(&a), initialize(&b);
    uint64_t total = 0;
    for (int i = 0; i < a.parameter_count; i++) {
        const Parameter *p = &a.parameters[i];
        check_same_bits(p->name, b.parameters[i].value, p->value, p->count);
        double spread = root_mean_square(p->value, p->count);
        double expected = strstr(p->name, "c_proj.weight") ? 0.02 / sqrt(6) : 0.02;
        if (p->rank == 1) expected = strstr(p->name, ".weight") ? 1 : 0;
        CHECK_CLOSE(spread, expected, p->rank == 1 ? 0 : 4 * expected / sqrt(2.0 * (double)p->count));
        total += p->count;
    }
    CHECK(total == gpt2_config_parameters(&config));
    gpt2_free(&a), gpt2_free(&b);
}

// A model whose gradient is not finite is seen, and by name.
static void bad_gradients_are_named(void) {
    GPT2 model;
    const char *bad;
    create_tiny(&model, "softmax", 0);
    int *inputs = random_tokens(TINY_T, tiny.V), *targets = random_tokens(TINY_T, tiny.V);
    forward_backward(&model, whole_batch(inputs, targets, 1, TINY_T, 1));
    CHECK(isfinite(gpt2_gradient_norm(&model, &bad)) && !bad);
    model.dweights.layers[1].fc_bias[3] = (real)NAN;
    CHECK(isnan(gpt2_gradient_norm(&model, &bad)));
    CHECK(bad && !strcmp(bad, "transformer.h.1.mlp.c_fc.bias"));
    model.dweights.layers[1].fc_bias[3] = (real)INFINITY;
    CHECK(isinf(gpt2_gradient_norm(&model, &bad)) && bad);
    gpt2_free(&model);
    create_tiny(&model, "softmax,slay:decay=learned:learn=omega", 0);
    forward_backward(&model, whole_batch(inputs, targets, 1, TINY_T, 1));
    model.dweights.layers[1].attention[tiny.NH] = (real)NAN; // what follows the decay
    CHECK(isnan(gpt2_gradient_norm(&model, &bad)) && bad && !strcmp(bad, "transformer.h.1.attn.omega"));
    model.dweights.layers[1].attention[0] = (real)NAN;
    CHECK(isnan(gpt2_gradient_norm(&model, &bad)) && bad && !strcmp(bad, "transformer.h.1.attn.decay"));
    free(inputs), free(targets);
    gpt2_free(&model);
}

// ---------------------------------------------------------------------------------------------------------------------
// Decoding and sampling (sample_gpt2.c)

// The logits of every position by one forward pass, (T,V).
static real *forward_logits(GPT2 *model, const int *tokens, int T) {
    int C = model->config.C, V = model->config.V;
    real *logits = memory_allocate((size_t)T * (size_t)V, sizeof(real), "test logits");
    model->batch = whole_batch(tokens, NULL, 1, T, 1);
    gpt2_hidden(model, 0);
    matmul_nt(logits, model->acts.lnf, model->weights.wte, T, V, C, 0);
    return logits;
}

// A prompt of `prefill` tokens at once, then token by token.
static void check_decoding(GPT2 *model, WeightKind kind, const int *tokens, int T, int prefill, const real *expected,
                           double tolerance) {
    int V = model->config.V;
    char what[160], name[64];
    Decoder decoder;
    decoder_create(&decoder, model, kind, 1);
    for (int t = prefill > 0 ? prefill - 1 : 0; t < T; t++) {
        int n = t == prefill - 1 ? prefill : 1;
        const real *logits = decoder_step(&decoder, tokens + t + 1 - n, n, t + 1 - n, NULL);
        snprintf(what, sizeof what, "%s, prompt of %d, position %d", attention_stack_name(&model->stack, name, 64),
                 prefill, t);
        check_equal_within(what, logits, expected + (size_t)t * (size_t)V, (size_t)V, tolerance);
    }
    decoder_free(&decoder);
}

static void decoding_equals_forward(void) {
    for (int i = 0; kind_at(i); i++) {
        GPT2 model;
        create_tiny(&model, kind_at(i), 0);
        int T = attention_stack_sizes(&model.stack)->T, prompts[] = {0, 1, 2, T / 2, T};
        int *tokens = random_tokens((size_t)T, model.config.V);
        real *expected = forward_logits(&model, tokens, T);
        for (int j = 0; j < 5; j++)
            check_decoding(&model, WEIGHTS_FP32, tokens, T, prompts[j], expected, 2000 * ROUNDING);
        free(tokens), free(expected);
        gpt2_free(&model);
    }
}

// A model for decoding with room for more positions than its decoder takes at once.
enum { LONG_T = 150, LONG_BLOCK = 48 };

static void create_long(GPT2 *model, const char *kind) {
    const GPT2Config config = {.max_T = LONG_T, .V = tiny.V, .L = tiny.L, .NH = tiny.NH, .C = tiny.C};
    create_kind(model, kind, config, 1, LONG_BLOCK, 0, TRAINS_NOT, RECOMPUTE_NONE);
}

// A prompt in several blocks, the last one short, gives the logits that its tokens give one by one; the blocks' ends
// are not those of the tiles in which linear attentions take up their keys.
static void check_blocks(const char *attention) {
    GPT2 model;
    Decoder decoder;
    create_long(&model, attention);
    size_t V = (size_t)model.config.V;
    int *tokens = random_tokens(LONG_T, model.config.V);
    real *single = unset_numbers(LONG_T * V), *blocks = unset_numbers(LONG_T * V);
    decoder_create(&decoder, &model, WEIGHTS_FP32, 1);
    for (int t = 0; t < LONG_T; t++) decoder_step(&decoder, tokens + t, 1, t, single + (size_t)t * V);
    decoder_free(&decoder);
    decoder_create(&decoder, &model, WEIGHTS_FP32, 1);
    const real *last = decoder_step(&decoder, tokens, LONG_T, 0, blocks);
    check_equal_within(attention, blocks, single, LONG_T * V, 4000 * ROUNDING);
    check_equal_within(attention, last, single + (LONG_T - 1) * V, V, 4000 * ROUNDING);
    decoder_free(&decoder);
    free(tokens), free(single), free(blocks);
    gpt2_free(&model);
}

static void prompts_in_several_blocks(void) {
    for (int i = 0; kind_at(i); i++) check_blocks(kind_at(i));
}

// Another text after the same prompt, once its past is restored, has the bits that it has in a decoder of its own.
static void check_restoring(const char *attention) {
    enum { PROMPT = 70, TEXT = 64 }; // long enough for linear attentions to take its keys into their sums
    GPT2 model;
    Decoder decoder, other;
    create_long(&model, attention);
    size_t V = (size_t)model.config.V;
    int *tokens = random_tokens(PROMPT + 2 * TEXT, model.config.V), *second = tokens + PROMPT + TEXT;
    decoder_create(&decoder, &model, WEIGHTS_FP32, 1), decoder_create(&other, &model, WEIGHTS_FP32, 1);
    decoder_step(&decoder, tokens, PROMPT, 0, NULL);
    decoder_keep_past(&decoder);
    for (int t = 0; t < TEXT; t++) decoder_step(&decoder, tokens + PROMPT + t, 1, PROMPT + t, NULL);
    decoder_restore_past(&decoder);
    decoder_step(&other, tokens, PROMPT, 0, NULL);
    for (int t = 0; t < TEXT; t++) {
        const real *expected = decoder_step(&other, second + t, 1, PROMPT + t, NULL);
        check_same_bits(attention, decoder_step(&decoder, second + t, 1, PROMPT + t, NULL), expected, V);
    }
    decoder_free(&decoder), decoder_free(&other);
    free(tokens);
    gpt2_free(&model);
}

static void a_past_is_restored(void) {
    for (int i = 0; kind_at(i); i++) check_restoring(kind_at(i));
}

// Replaces the model's matrices by what packing makes of them.
static void round_weights(GPT2 *model, WeightKind kind) {
    for (int i = 0; i < model->parameter_count; i++) {
        Parameter *p = &model->parameters[i];
        if (p->rank != 2 || strstr(p->name, "wpe")) continue;
        int is_head = strstr(p->name, "wte") != NULL, rows = (int)p->shape[!is_head], columns = (int)p->shape[is_head];
        void *memory = memory_allocate(packed_bytes(kind, rows, columns), 1, "a packed matrix");
        real *plain = memory_allocate(p->count, sizeof(real), "a matrix");
        PackedMatrix matrix =
            packed_create(kind, rows, columns, memory, p->value, is_head ? SOURCE_ROWS : SOURCE_COLUMNS);
        packed_expand(plain, &matrix, 0, rows);
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < columns; c++)
                p->value[is_head ? r * columns + c : c * rows + r] = plain[(size_t)r * (size_t)columns + c];
        packed_free(&matrix);
        free(memory), free(plain);
    }
}

// Decoding with weights of fewer bits is the forward pass of the rounded weights; int8 rounds its vectors too. (Packing
// weights that are rounded already leaves them as they are.)
static void decoding_with_fewer_bits(void) {
    const double tolerances[WEIGHT_KINDS] = {[WEIGHTS_BF16] = 1e-5, [WEIGHTS_INT8] = 2e-3};
    for (int kind = WEIGHTS_BF16; kind < WEIGHT_KINDS; kind++) {
        GPT2 model;
        create_tiny(&model, "softmax", 0);
        round_weights(&model, (WeightKind)kind);
        int T = attention_stack_sizes(&model.stack)->T, prompts[] = {0, 2, T / 2, T};
        int *tokens = random_tokens((size_t)T, model.config.V);
        real *expected = forward_logits(&model, tokens, T);
        for (int j = 0; j < 4; j++)
            check_decoding(&model, (WeightKind)kind, tokens, T, prompts[j], expected, tolerances[kind]);
        free(tokens), free(expected);
        gpt2_free(&model);
    }
}

enum { SAMPLER_V = 7 };
static const real sampler_logits[SAMPLER_V] = {0, 2, -1, 3, 1, (real)2.5, -4};

// How often each token comes in 20000 draws.
static void count_draws(int counts[SAMPLER_V], DrawSettings settings) {
    Candidate candidates[SAMPLER_V];
    memset(counts, 0, SAMPLER_V * sizeof(int));
    for (uint64_t i = 0; i < 20000; i++)
        counts[draw_token(sampler_logits, SAMPLER_V, &settings, random_uniform(5, i), candidates)]++;
}

static void sampling_follows_probabilities(void) {
    int counts[SAMPLER_V];
    double sum = 0;
    count_draws(counts, (DrawSettings){.temperature = 0.5f, .top_p = 1});
    for (int v = 0; v < SAMPLER_V; v++) sum += exp(2 * (double)sampler_logits[v]);
    for (int v = 0; v < SAMPLER_V; v++)
        CHECK_CLOSE(counts[v] / 20000.0, exp(2 * (double)sampler_logits[v]) / sum, 0.012);
}

static void sampling_is_cut(void) {
    int counts[SAMPLER_V];
    count_draws(counts, (DrawSettings){.temperature = 0, .top_p = 1});
    CHECK(counts[3] == 20000);
    count_draws(counts, (DrawSettings){.temperature = 1, .top_k = 1, .top_p = 1});
    CHECK(counts[3] == 20000);
    count_draws(counts, (DrawSettings){.temperature = 1, .top_k = 3, .top_p = 1});
    CHECK(counts[3] > counts[5] && counts[5] > counts[1] && counts[1] > 0 &&
          counts[3] + counts[5] + counts[1] == 20000);
    // Tokens 3 and 5 have 0.44 and 0.27 of the probability: both are needed for 0.6, and no other.
    count_draws(counts, (DrawSettings){.temperature = 1, .top_p = 0.6f});
    CHECK(counts[3] > counts[5] && counts[5] > 0 && counts[3] + counts[5] == 20000);
    count_draws(counts, (DrawSettings){.temperature = 1, .top_p = 1e-6f});
    CHECK(counts[3] == 20000);
}

// Whatever the logits and the settings are, a token of the vocabulary comes out, or -1 where a logit is not finite.
static void sampling_takes_any_numbers(void) {
    static const real odd[] = {NAN, INFINITY, -INFINITY, (real)3e38, (real)-3e38, 0};
    enum { V = 50, ODD = sizeof odd / sizeof odd[0] };
    Candidate candidates[V];
    real logits[V];
    const DrawSettings settings[] = {{0, 0, 1},    {1, 0, 1},      {1, 40, 1},        {1, 40, 0.5f},
                                     {NAN, 40, 1}, {-1, 40, 0.5f}, {1e-38f, 3, 0.5f}, {1, 40, NAN}};
    for (int count = 1; count <= V; count += 7)
        for (int kind = 0; kind < ODD; kind++)
            for (size_t s = 0; s < sizeof settings / sizeof settings[0]; s++) {
                for (int v = 0; v < V; v++) logits[v] = v < count ? odd[kind] : (real)v / V;
                int token = draw_token(logits, V, &settings[s], 0.5, candidates);
                CHECK(isfinite(odd[kind]) ? token >= 0 && token < V : token == -1);
            }
}

static void text_comes_in_whole_characters(void) {
    char *text = NULL;
    size_t size = 0;
    TextStream stream = {.out = open_memstream(&text, &size)};
    stream_put(&stream, "a\xE2", 2); // the euro sign comes in two parts
    CHECK(size == 1);
    stream_put(&stream, "\x82\xAC", 2);
    CHECK(size == 4);
    stream_put(&stream, "\xF0\x9F", 2); // broken off by a letter: as it is
    stream_put(&stream, "b\xFF", 2);
    stream_put(&stream, "\xC3", 1);
    stream_flush(&stream);
    fclose(stream.out);
    CHECK(size == 9 && !memcmp(text,
                               "a\xE2\x82\xAC\xF0\x9F"
                               "b\xFF\xC3",
                               9));
    free(text);
}

int main(void) {
    error_set_program("test_gpt2");
#ifdef REAL_IS_DOUBLE
    RUN(embedding);
    RUN(layernorm);
    RUN(linear);
    RUN(gelu);
    RUN(head);
    RUN(whole_model_of_every_attention);
    RUN(whole_model_with_dropout);
    RUN(whole_model_with_documents);
#else
    RUN(pytorch_loss_and_gradients);
    RUN(pytorch_ten_adamw_steps);
#endif
    RUN(dropout_mask);
    RUN(gradient_accumulation);
    RUN(documents_equal_documents_alone);
    RUN(documents_are_found);
    RUN(recomputing_changes_no_bit);
    RUN(training_with_threads);
    RUN(sums_over_rows_with_threads);
    RUN(causality_of_every_attention);
    RUN(shorter_batches);
    RUN(initial_weights);
    RUN(bad_gradients_are_named);
    RUN(decoding_equals_forward);
    RUN(prompts_in_several_blocks);
    RUN(a_past_is_restored);
    RUN(decoding_with_fewer_bits);
    RUN(sampling_follows_probabilities);
    RUN(sampling_is_cut);
    RUN(sampling_takes_any_numbers);
    RUN(text_comes_in_whole_characters);
    return test_summary();
}
