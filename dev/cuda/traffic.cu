// Runs one pass of an attention, or a training step of a GPT-2 124M of few layers, on the harness in its count mode,
// which says what every kernel moves and multiplies; for report.py. With CUDA_ON_CPU_SKIP=1 nothing is computed, only
// the launches are counted: then the sizes may be a GPU's.
//
//     traffic attention NAME PASS B T C NH [options]   PASS: forward, backward, prompt (`step` with T tokens), step and
//                                                      decode (one more token); options: --features exp ...
//     traffic attention NAME memory B T C NH           bytes of a tensor (B,T,C), kept, of scratch
//     traffic gpt2 LAYERS T                            GPT-2 124M's widths, one step, batch 1
//     traffic muon T                                   a layer of 128 channels, one step with Muon, batch 1
//     traffic optional T                               kernels that only some runs launch, once each
//     traffic weights COUNT                            weights made ready for decoding
#define GPT2_MODEL_ONLY
#include "sample_gpt2.cu"

#include "core/gpu/test_gpu.h"

// The command line: its words and what its options make of the attention.
typedef struct {
    const char *words[7]; // "attention", NAME, pass, B, T, C, NH
    int count;
    AttentionConfig config;
    Options options;
} Order;

// Device memory, freed at its end; with random numbers unless nothing is computed.
template <typename Number> struct Numbers {
    Number *device = NULL;

    explicit Numbers(size_t count, double shift = 0) {
        cuda_check(cudaMalloc((void **)&device, (count ? count : 1) * sizeof(Number)));
        const char *skip = getenv("CUDA_ON_CPU_SKIP");
        if (skip && atoi(skip)) return;
        std::vector<float> drawn(count);
        random_fill_normal(drawn.data(), count, random_key(1, "numbers to count with", streams_used++), 1);
        std::vector<Number> rounded(count);
        for (size_t i = 0; i < count; i++) rounded[i] = from_float<Number>(drawn[i] + (float)shift);
        send_numbers(device, rounded);
    }
    ~Numbers() { cuda_check(cudaFree(device)); }
    Numbers(const Numbers &) = delete;
};

static AttentionConfig configure(const AttentionGPU *attention, const Order *order) {
    AttentionConfig config = order->config;
    Error error;
    config.B = atoi(order->words[3]), config.T = config.max_T = atoi(order->words[4]);
    config.C = atoi(order->words[5]), config.NH = atoi(order->words[6]), config.seed = 1;
    if (config.B < 1 || config.T < 1 || config.NH < 1) die("B, T, C and NH are numbers above 0");
    die_if(attention_configure(attention->cpu, &config, &order->options, &error), &error);
    AttentionStack stack = attention_stack_of(attention->cpu, &config);
    if (!attention_gpu_of(attention_stack_layer(&stack, 0), error.text, sizeof error.text)) die("%s", error.text);
    return config;
}

// The memory plan of one layer: what it is given and gives, what it keeps for backward, its scratch. Allocates nothing.
static void print_memory(const AttentionGPU *attention, const Order *order) {
    AttentionConfig config = configure(attention, order);
    printf("%zu %zu %zu\n", (size_t)config.B * (size_t)config.T * (size_t)config.C * sizeof(floatX),
           attention->saved_size(&config) * sizeof(float), attention->work_size(&config) * sizeof(float));
}

// One layer's constants as the passes want them.
struct Prepared {
    Sum drawn, parameters, packed;

    Prepared(const AttentionGPU *attention, const AttentionConfig *config)
        : drawn(attention_constant_count(attention->cpu, config), 1),
          parameters(attention_parameter_count(attention->cpu, config), 1),
          packed(attention->pack ? attention->packed_size(config) : 0) {
        attention_draw(attention->cpu, drawn.data(), parameters.data(), 0, config);
        drawn.send(), parameters.send();
        if (attention->pack) attention->pack(packed.device, drawn.device, parameters.device, config, stream);
        pass_constants = attention->pack ? packed.device : drawn.device;
    }
    const float *pass_constants;
};

static void run_decoding(const AttentionGPU *attention, const char *pass, floatX *out, float *cache, const floatX *qkv,
                         const Prepared *prepared, float *work, const AttentionConfig *config) {
    const float *constants = prepared->pass_constants, *parameters = prepared->parameters.device;
    int *position = device_copy(std::vector<int>{config->T - 1});
    if (!strcmp(pass, "prompt"))
        attention->step(out, cache, 0, config->T, qkv, constants, parameters, work, config, stream);
    else if (!strcmp(pass, "decode") && attention->decode)
        attention->decode(out, cache, position, qkv, constants, parameters, work, config, stream);
    else
        attention->step(out, cache, config->T - 1, 1, qkv, constants, parameters, work, config, stream);
    cuda_check(cudaStreamSynchronize(stream)), cuda_check(cudaFree(position));
}

static void run_attention(const AttentionGPU *attention, const Order *order) {
    const char *pass = order->words[2];
    AttentionConfig config = configure(attention, order);
    size_t numbers = (size_t)config.B * (size_t)config.T * (size_t)config.C;
    bool forward = !strcmp(pass, "forward"), backward = !strcmp(pass, "backward");
    Numbers<floatX> qkv(3 * numbers), out(numbers), dout(backward ? numbers : 0), dqkv(backward ? 3 * numbers : 0);
    Numbers<float> saved(attention->saved_size(&config), 5), work(attention->work_size(&config)),
        cache(forward || backward ? 0 : attention->cache_size(&config)),
        dparameters(attention_parameter_count(attention->cpu, &config));
    Prepared prepared(attention, &config);
    const float *constants = prepared.pass_constants, *parameters = prepared.parameters.device;
    if (forward)
        attention->forward(out.device, saved.device, qkv.device, constants, parameters, work.device, &config, stream);
    else if (backward)
        attention->backward(dqkv.device, dparameters.device, dout.device, qkv.device, out.device, saved.device,
                            constants, parameters, work.device, &config, stream);
    else
        run_decoding(attention, pass, out.device, cache.device, qkv.device, &prepared, work.device, &config);
    cuda_check(cudaStreamSynchronize(stream));
}

static void run_step(const GPT2Config *sizes, Optimizer optimizer) {
    Settings settings = settings_default();
    static GPT2 model;
    Error error;
    const int T = sizes->max_T;
    settings.model = *sizes, settings.optimizer = optimizer;
    settings.T = T, settings.batch = settings.micro_batch = 1, settings.attention = "uniform";
    AttentionConfig *config = &settings.attention_config;
    config->B = 1, config->T = config->max_T = T, config->NH = sizes->NH, config->C = sizes->C;
    const Attention *attention = attention_find(settings.attention);
    die_if(attention_configure(attention, config, NULL, &error), &error);
    settings.stack = attention_stack_of(attention, config);
    create_model(&model, &settings);
    ModelTensors tensors = gpt2_to_host(&model, HOST_TO_FILL);
    model_initialize(&tensors, 1, 0.02);
    gpt2_from_host(&model, HOST_TO_FILL);
    std::vector<int> tokens = random_tokens((size_t)T + 1, sizes->V);
    MicroBatch batch = {};
    batch.inputs = tokens.data(), batch.targets = tokens.data() + 1, batch.B = 1, batch.T = T, batch.is_first = 1;
    batch.scale = 1.0 / T;
    gpt2_forward(&model, &batch);
    gpt2_backward(&model, &batch);
    Update update = {};
    update.rate = 1e-4, update.muon_rate = 1e-2, update.most_loss = update.most_norm = INFINITY;
    (void)gpt2_update(&model, &settings, &update);
    gpt2_free(&model);
}

static void run_gpt2(int layers, int T) {
    GPT2Config sizes = {T, 50257, layers, 12, 768, POSITIONS_LEARNED};
    run_step(&sizes, OPTIMIZER_ADAMW);
}

static void run_muon(int T) {
    GPT2Config sizes = {T, 512, 1, 2, 128, POSITIONS_LEARNED};
    run_step(&sizes, OPTIMIZER_MUON);
}

// Dropout's, those of a bias and of a GELU that no product includes, a bias gradient's second micro-batch, and the
// embedding of a token that is decoded.
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
    Next *next = device_copy(std::vector<Next>{{1, 1}});
    embedding_of_next_kernel<<<blocks_for(C, BLOCK), BLOCK, 0, stream>>>(out.device, next, x.device, x.device, C);
    launch_check();
    cuda_check(cudaStreamSynchronize(stream));
    cuda_check(cudaFree(key)), cuda_check(cudaFree(first)), cuda_check(cudaFree(next));
}

static void run_weights(int count) {
    Sum master((size_t)count, 1);
    Activation rounded((size_t)count);
    nearest_weights_kernel<<<blocks_for((size_t)count, BLOCK), BLOCK, 0, stream>>>(rounded.device, master.device,
                                                                                   (size_t)count);
    launch_check();
    cuda_check(cudaStreamSynchronize(stream));
}

static void run(const Order *order, int last) {
    const char *what = order->words[0];
    const AttentionGPU *attention = order->count == 7 ? attention_gpu_find(order->words[1]) : NULL;
    if (attention && !strcmp(order->words[2], "memory"))
        print_memory(attention, order);
    else if (attention)
        run_attention(attention, order);
    else if (!strcmp(what, "muon"))
        run_muon(last);
    else if (!strcmp(what, "optional"))
        run_optional(last);
    else if (!strcmp(what, "weights"))
        run_weights(last);
    else if (!strcmp(what, "gpt2") && order->count == 3 && atoi(order->words[1]) > 0)
        run_gpt2(atoi(order->words[1]), last);
    else
        die("usage: traffic attention NAME forward|backward|prompt|step|decode|memory B T C NH [options], or gpt2 "
            "LAYERS T, "
            "or muon|optional|weights COUNT");
}

int main(int argc, char **argv) {
    Order order = {};
    Error error;
    error_set_program("traffic");
    attention_add_options(&order.options, &order.config);
    die_if(options_parse(&order.options, argc, argv, order.words, 7, &order.count, &error), &error);
    int last = order.count > 1 ? atoi(order.words[order.count - 1]) : 0;
    if (last < 1) die("a number is missing");
    cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    run(&order, last);
    return 0;
}
