// Runs one pass of an attention, or a training step of a GPT-2 of one layer, on the harness in its count mode, which
// says what every kernel moves; for report.py.
//
//     traffic attention NAME forward|backward|decode TOKENS [options]   embed 256, 8 heads, batch 1; --features exp ...
//     traffic attention NAME memory TOKENS                              bytes of a tensor (T, 256), kept, of scratch
//     traffic gpt2 TOKENS                                               GPT-2 124M's widths, one layer, one step
//     traffic optional TOKENS                                           kernels that only some runs launch, once each
//     traffic weights COUNT                                             weights made ready for decoding
#define GPT2_MODEL_ONLY
#include "sample_gpt2.cu"

#include "core/gpu/test_gpu.h"

// The command line: its words and what its options make of the attention.
typedef struct {
    const char *words[4]; // "attention", NAME, pass, TOKENS
    int count;
    AttentionConfig config;
    Options options;
} Order;

static AttentionConfig attention_alone(const AttentionGPU *attention, const Order *order, int T) {
    AttentionConfig config = order->config;
    Error error;
    config.B = 1, config.T = config.max_T = T, config.NH = 8, config.C = 256, config.seed = 1;
    die_if(attention_configure(attention->cpu, &config, &order->options, &error), &error);
    return config;
}

// The memory plan of one layer: what it is given and gives, what it keeps for backward, its scratch. Allocates nothing.
static void print_memory(const AttentionGPU *attention, const Order *order, int T) {
    AttentionConfig config = attention_alone(attention, order, T);
    printf("%zu %zu %zu\n", (size_t)T * 256 * sizeof(floatX), attention->saved_size(&config) * sizeof(float),
           attention->work_size(&config) * sizeof(float));
}

static void run_attention(const AttentionGPU *attention, const Order *order, int T) {
    const char *pass = order->words[2];
    AttentionConfig config = attention_alone(attention, order, T);
    size_t constant_count = attention_constant_count(attention->cpu, &config), numbers = (size_t)T * 256;
    Activation qkv(3 * numbers, 1), dout(numbers, 1), out(numbers, 1), dqkv(3 * numbers, 1);
    Sum constants(constant_count, 1), saved(attention->saved_size(&config), 0.1, 1),
        work(attention->work_size(&config)), cache(attention->cache_size(&config), 1);
    attention_draw(attention->cpu, constants.data(), NULL, 0, &config);
    constants.send();
    if (!strcmp(pass, "forward"))
        attention->forward(out.device, saved.device, qkv.device, constants.device, NULL, work.device, &config, stream);
    else if (!strcmp(pass, "backward"))
        attention->backward(dqkv.device, NULL, dout.device, qkv.device, out.device, saved.device, constants.device,
                            NULL, work.device, &config, stream);
    else
        attention->step(out.device, cache.device, T - 1, 1, qkv.device, constants.device, NULL, work.device, &config,
                        stream);
    cuda_check(cudaStreamSynchronize(stream));
}

static void run_gpt2(int T) {
    Settings settings = settings_default();
    static GPT2 model;
    Error error;
    settings.model = {T, 50257, 1, 12, 768, POSITIONS_LEARNED};
    settings.T = T, settings.batch = settings.micro_batch = 1, settings.attention = "uniform";
    AttentionConfig *config = &settings.attention_config;
    config->B = 1, config->T = config->max_T = T, config->NH = 12, config->C = 768;
    const Attention *attention = attention_find(settings.attention);
    die_if(attention_configure(attention, config, NULL, &error), &error);
    settings.stack = attention_stack_of(attention, config);
    create_model(&model, &settings);
    ModelTensors tensors = gpt2_to_host(&model, HOST_TO_FILL);
    model_initialize(&tensors, 1, 0.02);
    gpt2_from_host(&model, HOST_TO_FILL);
    std::vector<int> tokens = random_tokens((size_t)T + 1, 50257);
    MicroBatch batch = {};
    batch.inputs = tokens.data(), batch.targets = tokens.data() + 1, batch.B = 1, batch.T = T, batch.is_first = 1;
    batch.scale = 1.0 / T;
    gpt2_forward(&model, &batch);
    gpt2_backward(&model, &batch);
    Update update = {0, 1e-4, INFINITY, INFINITY};
    (void)gpt2_update(&model, &settings, &update);
    gpt2_free(&model);
}

// Dropout's, those of a bias and of a GELU that no product includes, and a bias gradient's second micro-batch.
static void run_optional(int T) {
    const int C = 768;
    size_t count = (size_t)T * C;
    Activation x(count, 1), out(count), wide(4 * count, 1), wide_out(4 * count);
    Sum total(4 * C, 1), part(4 * C, 1);
    uint64_t *key = device_copy(std::vector<uint64_t>{1});
    int64_t *first = device_copy(std::vector<int64_t>{0});
    dropout_forward(out.device, x.device, dropout_of(0.1f, key, first), T, C, stream);
    LAUNCH(bias_kernel, 4 * C, blocks_walking(4 * count), BLOCK, stream, wide_out.device, wide.device, 4 * count,
           4 * C);
    gelu_forward(wide_out.device, wide.device, 4 * count, stream);
    gelu_backward(wide_out.device, wide.device, 4 * count, stream);
    add_kernel<<<blocks_for(4 * C, BLOCK), BLOCK, 0, stream>>>(total.device, part.device, 4 * C);
    launch_check();
    cuda_check(cudaStreamSynchronize(stream));
    cuda_check(cudaFree(key)), cuda_check(cudaFree(first));
}

static void run_weights(int count) {
    Sum master((size_t)count, 1);
    Activation rounded((size_t)count);
    nearest_weights_kernel<<<blocks_for((size_t)count, BLOCK), BLOCK, 0, stream>>>(rounded.device, master.device,
                                                                                   (size_t)count);
    launch_check();
    cuda_check(cudaStreamSynchronize(stream));
}

static void run(const Order *order, int tokens) {
    const char *what = order->words[0];
    const AttentionGPU *attention = order->count == 4 ? attention_gpu_find(order->words[1]) : NULL;
    if (attention && !strcmp(order->words[2], "memory"))
        print_memory(attention, order, tokens);
    else if (attention)
        run_attention(attention, order, tokens);
    else if (!strcmp(what, "optional"))
        run_optional(tokens);
    else if (!strcmp(what, "weights"))
        run_weights(tokens);
    else if (!strcmp(what, "gpt2"))
        run_gpt2(tokens);
    else
        die("usage: traffic attention NAME forward|backward|decode|memory TOKENS [options], or gpt2|optional|weights "
            "COUNT");
}

int main(int argc, char **argv) {
    Order order = {};
    Error error;
    error_set_program("traffic");
    attention_add_options(&order.options, &order.config);
    die_if(options_parse(&order.options, argc, argv, order.words, 4, &order.count, &error), &error);
    int tokens = order.count > 1 ? atoi(order.words[order.count - 1]) : 0;
    if (tokens < 1) die("a number of tokens is missing");
    cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    run(&order, tokens);
    return 0;
}
