// Runs one pass of an attention, or a training step of a GPT-2 of one layer, on the harness in its count mode, which says
// what every kernel moves; for report.py.
//
//     traffic attention NAME forward|backward|decode TOKENS     embed 256, 8 heads, batch 1
//     traffic attention NAME memory TOKENS                      bytes of a tensor (T, 256), kept, of scratch
//     traffic gpt2 TOKENS                                       GPT-2 124M's widths, one layer, one step
#define GPT2_MODEL_ONLY
#include "../../train_gpt2.cu"

#include "../../core/test_gpu.h"

static AttentionConfig attention_alone(const AttentionGPU *attention, int T) {
    AttentionConfig config = {};
    Error error;
    config.B = 1, config.T = config.max_T = T, config.NH = 8, config.C = 256, config.seed = 1;
    die_if(attention_configure(attention->cpu, &config, NULL, &error), &error);
    return config;
}

// The memory plan of one layer: what it is given and gives, what it keeps for backward, its scratch. Allocates nothing.
static void print_memory(const AttentionGPU *attention, int T) {
    AttentionConfig config = attention_alone(attention, T);
    printf("%zu %zu %zu\n", (size_t)T * 256 * sizeof(floatX), attention->saved_size(&config) * sizeof(float),
           attention->work_size(&config) * sizeof(float));
}

static void run_attention(const AttentionGPU *attention, const char *pass, int T) {
    AttentionConfig config = attention_alone(attention, T);
    AttentionConstant list[ATTENTION_CONSTANTS_MAX];
    size_t constant_count, numbers = (size_t)T * 256;
    attention_constants(attention->cpu, &config, list, &constant_count);
    Activation qkv(3 * numbers, 1), dout(numbers, 1), out(numbers, 1), dqkv(3 * numbers, 1);
    Sum constants(constant_count, 1), saved(attention->saved_size(&config), 0.1, 1),
        work(attention->work_size(&config)), cache(attention->cache_size(&config), 1);
    if (attention->cpu->draw) attention->cpu->draw(constants.data(), 0, &config);
    constants.send();
    if (!strcmp(pass, "forward"))
        attention->forward(out.device, saved.device, qkv.device, constants.device, work.device, &config, stream);
    else if (!strcmp(pass, "backward"))
        attention->backward(dqkv.device, dout.device, qkv.device, out.device, saved.device, constants.device,
                            work.device, &config, stream);
    else
        attention->step(out.device, cache.device, T - 1, 1, qkv.device, constants.device, work.device, &config, stream);
    cuda_check(cudaStreamSynchronize(stream));
}

static void run_gpt2(int T) {
    Settings settings = settings_default();
    Backend gpu = gpu_backend();
    Error error;
    settings.model = {T, 50257, 1, 12, 768};
    settings.T = T, settings.batch = settings.micro_batch = 1, settings.attention = "uniform";
    AttentionConfig *config = &settings.attention_config;
    config->B = 1, config->T = config->max_T = T, config->NH = 12, config->C = 768;
    const Attention *attention = attention_find(settings.attention);
    die_if(attention_configure(attention, config, NULL, &error), &error);
    void *model = gpu.create(&settings, attention);
    ModelTensors tensors = gpu.tensors(model);
    model_initialize(&tensors, 1, 0.02);
    gpu.send(model);
    std::vector<int> tokens = random_tokens((size_t)T + 1, 50257);
    MicroBatch batch = {};
    batch.inputs = tokens.data(), batch.targets = tokens.data() + 1, batch.B = 1, batch.T = T, batch.is_first = 1;
    batch.scale = 1.0 / T;
    gpu.gradients(model, &batch);
    (void)gpu.update(model, &settings, 0, 1e-4);
    gpu.free(model);
}

int main(int argc, char **argv) {
    error_set_program("traffic");
    const AttentionGPU *attention = argc == 5 ? attention_gpu_find(argv[2]) : NULL;
    int tokens = argc > 2 ? atoi(argv[argc - 1]) : 0;
    if (tokens < 1 || (!attention && argc != 3))
        die("usage: traffic attention NAME forward|backward|decode|memory TOKENS, or gpt2 TOKENS");
    cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    if (attention && !strcmp(argv[3], "memory"))
        print_memory(attention, tokens);
    else if (attention)
        run_attention(attention, argv[3], tokens);
    else
        run_gpt2(tokens);
    return 0;
}
