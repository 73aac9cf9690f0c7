/*
One step of GPT-2 124M on the GPU's code beside the C trainer: 12 layers, 12 heads, 768 channels, a vocabulary of 50257,
a row of 1024 tokens, random weights and tokens. At these sizes every loop over tiles, chunks, segments and parts of the
logits runs as often as in a real run, and offsets are as large. `make test-124M` runs it by dev/cuda_on_cpu in fp32 and
bf16; on a GPU it is one of `make test-gpu`.
*/
#define GPT2_MODEL_ONLY
#include "train_gpt2.cu"

#include "core/gpu/test_gpu.h"

extern "C" {
#include "dev/cuda/gpt2_twin.h"
}

// Losses of a token; the norm as a share of itself; a gradient's numbers as shares of its tensor's largest; the root
// mean square of a tensor's weights as a share of the learning rate, the furthest that a first step moves a weight.
// Found in fp32: 2e-8, 8e-9, 2e-6, 2e-5; with TF32 products whose factors are cut off: 0.0002, 0.001, 0.0023, 0.025; in
// bf16: 0.0013, 0.0004, 0.021, 0.12.
#ifdef PRECISION_BF16
static const double LOSS_BOUND = 3e-3, NORM_BOUND = 2e-3, GRADIENT_BOUND = 0.05, WEIGHT_BOUND = 0.25;
#elif defined ALLOW_TF32
static const double LOSS_BOUND = 1e-3, NORM_BOUND = 3e-3, GRADIENT_BOUND = 0.01, WEIGHT_BOUND = 0.08;
#else
static const double LOSS_BOUND = 1e-6, NORM_BOUND = 1e-6, GRADIENT_BOUND = 1e-5, WEIGHT_BOUND = 1e-4;
#endif
static const double RATE = 6e-4;

static Settings settings_of_124M(const char *name) {
    Error error;
    const Attention *attention = attention_find(name);
    Settings settings = settings_default();
    settings.model = {1024, 50257, 12, 12, 768, POSITIONS_LEARNED};
    settings.T = 1024, settings.batch = settings.micro_batch = 1, settings.attention = name;
    settings.adam_eps = 1e-5f; // a gradient that is nothing but rounding stays a small step
    AttentionConfig *config = &settings.attention_config;
    config->B = 1, config->T = settings.T, config->C = settings.model.C;
    config->NH = settings.model.NH, config->max_T = settings.model.max_T, config->seed = (uint64_t)settings.seed;
    die_if(attention_configure(attention, config, NULL, &error), &error);
    settings.stack = attention_stack_of(attention, config);
    return settings;
}

static void check_within(const char *what, double found, double bound) {
    printf("     %s: %.2g off, %.2g allowed\n", what, found, bound);
    CHECK(found <= bound);
}

static double root_mean_square(const real *found, const real *expected, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += ((double)found[i] - expected[i]) * ((double)found[i] - expected[i]);
    return isfinite(sum) ? sqrt(sum / (double)count) : INFINITY;
}

// After the first step AdamW's first moment is a tenth of the clipped gradient: so every gradient is compared.
static void check_tensors(ModelTensors found, ModelTensors expected) {
    double gradient = 0, weight = 0;
    for (int i = 0; i < found.count; i++) {
        const Parameter *p = &found.parameters[i], *q = &expected.parameters[i];
        gradient = fmax(gradient, worst_difference(p->m, q->m, p->count));
        weight = fmax(weight, root_mean_square(p->value, q->value, p->count) / RATE);
    }
    check_within("gradients", gradient, GRADIENT_BOUND);
    check_within("weights", weight, WEIGHT_BOUND);
}

static void step_beside_twin(const char *attention) {
    Settings settings = settings_of_124M(attention);
    std::vector<int> inputs = random_tokens((size_t)settings.T, settings.model.V),
                     targets(inputs.begin() + 1, inputs.end());
    targets.push_back(17);
    MicroBatch batch = {};
    batch.inputs = inputs.data(), batch.targets = targets.data(), batch.B = 1, batch.T = settings.T;
    batch.is_first = 1, batch.scale = 1.0 / settings.T;
    GPT2 gpu = {};
    create_model(&gpu, &settings);
    void *twin = twin_create(&settings);
    ModelTensors a = gpt2_to_host(&gpu, HOST_TO_FILL), b = twin_to_host(twin, HOST_TO_FILL);
    model_initialize(&a, (uint64_t)settings.seed, settings.init_std);
    model_initialize(&b, (uint64_t)settings.seed, settings.init_std);
    gpt2_from_host(&gpu, HOST_TO_FILL), twin_from_host(twin, HOST_TO_FILL);

    gpt2_forward(&gpu, &batch), twin_forward(twin, &batch);
    gpt2_backward(&gpu, &batch), twin_backward(twin, &batch);
    Update update = {0, RATE, 0, INFINITY, INFINITY};
    StepOutcome found = gpt2_update(&gpu, &settings, &update), expected = twin_update(twin, &settings, &update);
    CHECK(!found.trouble);
    printf("     loss %.4f, gradient norm %.4f\n", expected.loss / settings.T, expected.norm);
    check_within("loss", fabs(found.loss - expected.loss) / settings.T, LOSS_BOUND);
    check_within("norm", fabs(found.norm - expected.norm) / expected.norm, NORM_BOUND);
    check_tensors(gpt2_to_host(&gpu, HOST_TO_SAVE), twin_to_host(twin, HOST_TO_SAVE));
    gpt2_from_host(&gpu, HOST_TO_SAVE), twin_from_host(twin, HOST_TO_SAVE);
    double after = twin_evaluate(twin, &batch);
    CHECK(after < expected.loss); // the step has learned something
    check_within("loss after the step", fabs(gpt2_evaluate(&gpu, &batch) - after) / settings.T, LOSS_BOUND);
    gpt2_free(&gpu);
    twin_free(twin);
}

static void a_step_with_softmax(void) {
    step_beside_twin("softmax");
}
static void a_step_with_slay(void) {
    step_beside_twin("slay");
}

int main(void) {
    error_set_program("test_gpt2_124M");
    cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    RUN(a_step_with_softmax);
    RUN(a_step_with_slay);
    return test_summary();
}
