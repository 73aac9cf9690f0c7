/*
Text from a checkpoint, on the GPU: sample_gpt2.c's decoder with the weights and the attention's caches on the device. The
model comes from train_gpt2.cu; what a token costs is one pass over the weights and the attention's `step`.

This program takes prompts as text or as numbers and draws with temperature and top-k; everything else that sample_gpt2 can
do, it does with the same checkpoints.
*/
#define GPT2_MODEL_ONLY
#include "train_gpt2.cu"

extern "C" {
#include "core/file.h"
#include "core/options.h"
#include "dataloader/tokenizer.h"
}

#include <algorithm>

// ---------------------------------------------------------------------------------------------------------------------
// The decoder

enum { PREFILL_ROWS = 128 }; // tokens of a prompt that go through the layers at once

typedef struct {
    GPT2 *model;
    int position;             // tokens seen so far
    size_t cache_size;        // numbers per layer
    float *cache;             // (L, cache_size)
    floatX *x, *hidden;       // (PREFILL_ROWS, C)
    floatX *branch;           // (PREFILL_ROWS, C): joins x in the LayerNorm that comes next
    floatX *wide, *wide2;     // (PREFILL_ROWS, 4C)
    float *mean, *rstd;       // (PREFILL_ROWS)
    int *tokens;              // (PREFILL_ROWS)
    floatX *logits;           // (padded V): of the last token
    std::vector<floatX> host; // the same in host memory
    std::vector<float> floats;
    ArenaGPU arena;
} Decoder;

// Training rounds its weights at random, so that small updates add up; decoding takes the nearest.
__global__ void nearest_weights_kernel(floatX *rounded, const float *master, size_t count) {
    size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i < count) rounded[i] = from_float<floatX>(master[i]);
}

// `decoder` is a struct of zeros; the model's weights have been sent.
static void decoder_create(Decoder *decoder, GPT2 *model) {
    size_t C = (size_t)model->config.C, L = (size_t)model->config.L;
    size_t padded = (size_t)padded_vocabulary(model->config.V);
    ArenaGPU *arena = &decoder->arena;
    decoder->model = model;
    decoder->cache_size = model->attention->cache_size(&model->attention_config);
    arena_gpu_plan(arena, &decoder->cache, L * decoder->cache_size);
    arena_gpu_plan(arena, &decoder->x, PREFILL_ROWS * C), arena_gpu_plan(arena, &decoder->hidden, PREFILL_ROWS * C);
    arena_gpu_plan(arena, &decoder->branch, PREFILL_ROWS * C);
    arena_gpu_plan(arena, &decoder->wide, PREFILL_ROWS * 4 * C),
        arena_gpu_plan(arena, &decoder->wide2, PREFILL_ROWS * 4 * C);
    arena_gpu_plan(arena, &decoder->mean, PREFILL_ROWS), arena_gpu_plan(arena, &decoder->rstd, PREFILL_ROWS);
    arena_gpu_plan(arena, &decoder->tokens, PREFILL_ROWS);
    arena_gpu_plan(arena, &decoder->logits, padded);
    arena_gpu_allocate(arena);
    decoder->host.resize(padded), decoder->floats.resize((size_t)model->config.V);
    if (L * decoder->cache_size > 0)
        cuda_check(cudaMemsetAsync(decoder->cache, 0, L * decoder->cache_size * sizeof(float), model->stream));
    size_t numbers = model->parameters.numbers;
    nearest_weights_kernel<<<blocks_for(numbers, BLOCK), BLOCK, 0, model->stream>>>(model->parameters.rounded,
                                                                                    model->parameters.master, numbers);
    launch_check();
}

static void decoder_free(Decoder *decoder) {
    cuda_check(cudaStreamSynchronize(decoder->model->stream));
    arena_gpu_free(&decoder->arena);
}

// x (n,C) and what the layer before left in `branch` -> the same behind this layer.
static void decoder_layer(Decoder *decoder, int l, int n) {
    GPT2 *model = decoder->model;
    const LayerWeights<floatX> *w = &model->weights.layers[l];
    floatX *x = decoder->x, *hidden = decoder->hidden, *branch = decoder->branch, *wide = decoder->wide;
    Dropout none = dropout_of(0, NULL, NULL);
    cudaStream_t stream = model->stream;
    int C = model->config.C;
    layernorm_forward(hidden, decoder->mean, decoder->rstd, x, x, l > 0 ? branch : NULL, none, w->ln1_weight,
                      w->ln1_bias, n, C, stream);
    linear_forward(wide, NULL, hidden, w->qkv_weight, w->qkv_bias, n, C, 3 * C, stream);
    model->attention->step(hidden, decoder->cache + (size_t)l * decoder->cache_size, decoder->position, n, wide,
                           model->parameters.constants[l], model->attention_work, &model->attention_config, stream);
    linear_forward(branch, NULL, hidden, w->proj_weight, w->proj_bias, n, C, C, stream);
    layernorm_forward(hidden, decoder->mean, decoder->rstd, x, x, branch, none, w->ln2_weight, w->ln2_bias, n, C,
                      stream);
    linear_forward(decoder->wide2, wide, hidden, w->fc_weight, w->fc_bias, n, C, 4 * C, stream);
    linear_forward(branch, NULL, decoder->wide2, w->fcproj_weight, w->fcproj_bias, n, 4 * C, C, stream);
}

// Feeds n <= PREFILL_ROWS tokens; hidden (n,C) holds their last hidden states afterwards.
static void decoder_block(Decoder *decoder, const int *tokens, int n) {
    GPT2 *model = decoder->model;
    int C = model->config.C;
    cuda_check(
        cudaMemcpyAsync(decoder->tokens, tokens, (size_t)n * sizeof(int), cudaMemcpyHostToDevice, model->stream));
    embedding_forward(decoder->x, decoder->tokens, model->weights.wte,
                      model->weights.wpe + (size_t)decoder->position * (size_t)C, n, n, C, model->stream);
    for (int l = 0; l < model->config.L; l++) decoder_layer(decoder, l, n);
    layernorm_forward(decoder->hidden, decoder->mean, decoder->rstd, decoder->x, decoder->x, decoder->branch,
                      dropout_of(0, NULL, NULL), model->weights.lnf_weight, model->weights.lnf_bias, n, C,
                      model->stream);
    cuda_check(cudaStreamSynchronize(model->stream)); // `tokens` is the caller's again
    decoder->position += n;
}

// Feeds n tokens and returns the logits (V) behind the last, in host memory.
static const float *gpt2_step(Decoder *decoder, const int *tokens, int n) {
    GPT2 *model = decoder->model;
    int C = model->config.C, padded = padded_vocabulary(model->config.V), rows = 0;
    for (int start = 0; start < n; start += rows) {
        rows = n - start < PREFILL_ROWS ? n - start : PREFILL_ROWS;
        decoder_block(decoder, tokens + start, rows);
    }
    // One row at a time through a copy, which begins where cuBLASLt likes it to.
    MatmulShape shape = matmul_shape(1, padded, C, MATMUL_PLAIN);
    shape.b_is_transposed = 1;
    cuda_check(cudaMemcpyAsync(decoder->x, decoder->hidden + (size_t)(rows - 1) * (size_t)C, (size_t)C * sizeof(floatX),
                               cudaMemcpyDeviceToDevice, model->stream));
    matmul_gpu(decoder->logits, decoder->x, model->weights.wte, 0, &shape, NULL, model->stream);
    cuda_check(cudaMemcpyAsync(decoder->host.data(), decoder->logits, (size_t)padded * sizeof(floatX),
                               cudaMemcpyDeviceToHost, model->stream));
    cuda_check(cudaStreamSynchronize(model->stream));
    for (size_t v = 0; v < decoder->floats.size(); v++) decoder->floats[v] = to_float(decoder->host[v]);
    return decoder->floats.data();
}

// The attention's capacity for decoding: a sequence, PREFILL_ROWS tokens at once.
static AttentionConfig decoding_config(const GPT2Config *config) {
    AttentionConfig decoding = {};
    decoding.B = 1, decoding.T = PREFILL_ROWS < config->max_T ? PREFILL_ROWS : config->max_T;
    decoding.C = config->C, decoding.NH = config->NH, decoding.HS = config->C / config->NH;
    decoding.max_T = config->max_T;
    return decoding;
}

#ifndef GPT2_SAMPLER_ONLY // test_gpt2.cu takes what is above
// ---------------------------------------------------------------------------------------------------------------------
// The program

typedef struct {
    const char *prompt, *tokenizer_path;
    int tokens, top_k;
    float temperature;
    int64_t seed;
} SampleSettings;

static void sample_options(Options *options, SampleSettings *s) {
    const Option items[] = {
        {"text", "prompt", 'p', OPTION_STRING, &s->prompt, 0, 0, "TEXT", "what the text starts with", 0, ""},
        {"text", "tokens", 'n', OPTION_INT, &s->tokens, 1, 1 << 24, NULL, "most tokens", 0, ""},
        {"choice", "temperature", 't', OPTION_FLOAT, &s->temperature, 0, 100, NULL, "0: the likeliest always", 0, ""},
        {"choice", "top-k", 'k', OPTION_INT, &s->top_k, 0, 1 << 24, NULL, "among the k likeliest; 0: all", 0, ""},
        {"choice", "seed", 0, OPTION_LONG, &s->seed, 0, 9e15, NULL, "the same seed gives the same text", 0, ""},
        {"program", "tokenizer", 0, OPTION_STRING, &s->tokenizer_path, 0, 0, "FILE", "default: the checkpoint's", 0,
         ""},
    };
    options->usage = "usage: sample_gpt2_cuda MODEL [options]\nText from a run or a checkpoint, on the GPU.";
    options_add(options, items, sizeof items / sizeof *items);
}

static int load_model(GPT2 *model, const char *path, char **tokenizer_path, Error *error) {
    Checkpoint checkpoint;
    GPT2Config config;
    const Attention *attention = attention_find("softmax");
    if (checkpoint_open_newest(&checkpoint, path, error)) return -1;
    int failed = gpt2_config_from_json(&config, checkpoint.config, checkpoint.path, error);
    if (!failed) {
        const json_t *saved = gpt2_config_attention(checkpoint.config);
        AttentionConfig decoding = decoding_config(&config);
        failed = saved && attention_from_json(&attention, &decoding, saved, error);
        if (!failed)
            gpt2_create(model, &config, attention_gpu_find(attention->name), &decoding, 0, 0, 0, RECOMPUTE_NONE);
        ModelTensors tensors = failed ? ModelTensors() : gpt2_tensors(model);
        failed = failed || model_read_checkpoint(&tensors, &checkpoint, MODEL_WEIGHTS | MODEL_CONSTANTS, error);
        *tokenizer_path = path_join(checkpoint.path, "tokenizer.tiktoken");
    }
    checkpoint_close(&checkpoint);
    return failed ? -1 : 0;
}

// One token drawn from the logits; `uniform` is in [0,1).
static int sample_token(const float *logits, int V, const SampleSettings *settings, double uniform) {
    std::vector<int> order((size_t)V);
    for (int v = 0; v < V; v++) order[(size_t)v] = v;
    int count = settings->temperature == 0 ? 1 : settings->top_k > 0 && settings->top_k < V ? settings->top_k : V;
    std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int a, int b) {
        return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; // ties by number: the same text everywhere
    });
    double sum = 0, running = 0, largest = logits[order[0]];
    auto weight = [&](int i) { return exp((logits[order[(size_t)i]] - largest) / settings->temperature); };
    for (int i = 0; count > 1 && i < count; i++) sum += weight(i);
    for (int i = 0; count > 1 && i < count; i++)
        if ((running += weight(i)) > uniform * sum) return order[(size_t)i];
    return order[0];
}

static void generate(Decoder *decoder, const Tokenizer *tokenizer, const SampleSettings *settings) {
    uint32_t *tokens = NULL, end = tokenizer_end_of_text(tokenizer);
    size_t capacity = 0,
           count = tokenizer_encode(tokenizer, settings->prompt, strlen(settings->prompt), &tokens, &capacity);
    std::vector<int> prompt = {(int)end};
    for (size_t i = 0; i < count; i++) prompt.push_back((int)tokens[i]);
    free(tokens);
    int max_T = decoder->model->config.max_T;
    if (prompt.size() > (size_t)max_T)
        die("option --prompt: expected at most %d tokens, found %zu", max_T - 1, prompt.size() - 1);
    const float *logits = gpt2_step(decoder, prompt.data(), (int)prompt.size());
    uint64_t key = random_key((uint64_t)settings->seed, "sample", 0);
    fputs(settings->prompt, stdout);
    for (int i = 0; i < settings->tokens; i++) {
        int token = sample_token(logits, decoder->model->config.V, settings, random_uniform(key, (uint64_t)i));
        size_t bytes = 0;
        if ((uint32_t)token == end || token >= tokenizer_vocab_size(tokenizer)) break;
        const char *text = tokenizer_token(tokenizer, (uint32_t)token, &bytes);
        fwrite(text, 1, bytes, stdout);
        fflush(stdout);
        if (decoder->position == max_T) break; // the context is full
        logits = gpt2_step(decoder, &token, 1);
    }
    putchar('\n');
}

int main(int argc, char **argv) {
    static Options options;
    SampleSettings settings = {"", NULL, 256, 0, 1, 1};
    const char *path = NULL;
    char *beside = NULL;
    int paths = 0;
    Error error;
    Tokenizer *tokenizer;
    GPT2 model = {};
    Decoder decoder = {};
    error_set_program(argv[0]);
    sample_options(&options, &settings);
    die_if(options_parse(&options, argc, argv, &path, 1, &paths, &error), &error);
    if (!paths) die("no model: give a run or a checkpoint (--help says more)");
    die_if(load_model(&model, path, &beside, &error), &error);
    die_if(tokenizer_load(&tokenizer, settings.tokenizer_path ? settings.tokenizer_path : beside, 0, &error), &error);
    parameters_gpu_send(&model.parameters, model.stream);
    decoder_create(&decoder, &model);
    generate(&decoder, tokenizer, &settings);
    decoder_free(&decoder);
    gpt2_free(&model);
    tokenizer_free(tokenizer);
    free(beside);
    return 0;
}
#endif
