/*
Text from a checkpoint, on the GPU: sample_gpt2.c's decoder with the weights and the attention's caches on the device. The
model comes from train_gpt2.cu; what a token costs is one pass over the weights and the attention's `step`. The program
around it is core/sample/sampler.c, as on the CPU: the same options, and in fp32 the same text for the same seed.
*/
#define GPT2_MODEL_ONLY
#include "train_gpt2.cu"

extern "C" {
#include "core/sample/sampler.h"
}

// ---------------------------------------------------------------------------------------------------------------------
// The decoder

enum { PREFILL_ROWS = 128 }; // tokens of a prompt that go through the layers at once
enum { CACHE_ALIGN = 64 };   // floats: every layer's cache begins like an allocation, at a multiple of 256 bytes

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
    int *targets;             // (PREFILL_ROWS)
    float *losses;            // (PREFILL_ROWS)
    floatX *logits;           // (PREFILL_ROWS, padded V)
    std::vector<floatX> host; // the same in host memory
    std::vector<float> last;  // (V): of the last token
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
    decoder->cache_size = (decoder->cache_size + CACHE_ALIGN - 1) / CACHE_ALIGN * CACHE_ALIGN;
    arena_gpu_plan(arena, &decoder->cache, L * decoder->cache_size);
    arena_gpu_plan(arena, &decoder->x, PREFILL_ROWS * C), arena_gpu_plan(arena, &decoder->hidden, PREFILL_ROWS * C);
    arena_gpu_plan(arena, &decoder->branch, PREFILL_ROWS * C);
    arena_gpu_plan(arena, &decoder->wide, PREFILL_ROWS * 4 * C),
        arena_gpu_plan(arena, &decoder->wide2, PREFILL_ROWS * 4 * C);
    arena_gpu_plan(arena, &decoder->mean, PREFILL_ROWS), arena_gpu_plan(arena, &decoder->rstd, PREFILL_ROWS);
    arena_gpu_plan(arena, &decoder->tokens, PREFILL_ROWS), arena_gpu_plan(arena, &decoder->targets, PREFILL_ROWS);
    arena_gpu_plan(arena, &decoder->losses, PREFILL_ROWS);
    arena_gpu_plan(arena, &decoder->logits, PREFILL_ROWS * padded);
    arena_gpu_allocate(arena);
    decoder->host.resize(PREFILL_ROWS * padded), decoder->last.resize((size_t)model->config.V);
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

static int decoder_most_rows(const Decoder *decoder) {
    int T = decoder->model->attention_config.T;
    return T < PREFILL_ROWS ? T : PREFILL_ROWS;
}

// logits (n,V) in host memory of rows first .. first + n - 1 of `hidden`, which go through a copy that begins where
// cuBLASLt likes it to.
static void logits_of_rows(Decoder *decoder, float *logits, int first, int n) {
    GPT2 *model = decoder->model;
    size_t C = (size_t)model->config.C, V = (size_t)model->config.V, padded = (size_t)padded_vocabulary((int)V);
    MatmulShape shape = matmul_shape(n, (int)padded, (int)C, MATMUL_PLAIN);
    shape.b_is_transposed = 1;
    cuda_check(cudaMemcpyAsync(decoder->x, decoder->hidden + (size_t)first * C, (size_t)n * C * sizeof(floatX),
                               cudaMemcpyDeviceToDevice, model->stream));
    matmul_gpu(decoder->logits, decoder->x, model->weights.wte, 0, &shape, NULL, model->stream);
    cuda_check(cudaMemcpyAsync(decoder->host.data(), decoder->logits, (size_t)n * padded * sizeof(floatX),
                               cudaMemcpyDeviceToHost, model->stream));
    cuda_check(cudaStreamSynchronize(model->stream));
    for (size_t i = 0; i < (size_t)n; i++)
        for (size_t v = 0; v < V; v++) logits[i * V + v] = to_float(decoder->host[i * padded + v]);
}

// Feeds n tokens and returns the logits (V) behind the last, in host memory. With `all_logits` (n,V) those of every token
// go there too.
static const float *gpt2_step(Decoder *decoder, const int *tokens, int n, float *all_logits) {
    size_t V = (size_t)decoder->model->config.V;
    int rows = 0, most = decoder_most_rows(decoder);
    for (int start = 0; start < n; start += rows) {
        rows = n - start < most ? n - start : most;
        decoder_block(decoder, tokens + start, rows);
        if (all_logits) logits_of_rows(decoder, all_logits + (size_t)start * V, 0, rows);
    }
    logits_of_rows(decoder, decoder->last.data(), rows - 1, 1);
    return decoder->last.data();
}

// The losses of one row of tokens, from position 0; where the target is below 0 it is 0.
static void gpt2_row_losses(Decoder *decoder, double *losses, const int *inputs, const int *targets, int T) {
    GPT2 *model = decoder->model;
    int most = decoder_most_rows(decoder), C = model->config.C, V = model->config.V;
    std::vector<float> found((size_t)most);
    decoder->position = 0;
    for (int start = 0, rows; start < T; start += rows) {
        rows = T - start < most ? T - start : most;
        decoder_block(decoder, inputs + start, rows);
        cuda_check(cudaMemcpyAsync(decoder->targets, targets + start, (size_t)rows * sizeof(int),
                                   cudaMemcpyHostToDevice, model->stream));
        head_forward_backward(decoder->losses, NULL, NULL, decoder->hidden, model->weights.wte, decoder->targets, NULL,
                              rows, C, V, rows, 0, decoder->logits, model->stream);
        cuda_check(cudaMemcpyAsync(found.data(), decoder->losses, (size_t)rows * sizeof(float), cudaMemcpyDeviceToHost,
                                   model->stream));
        cuda_check(cudaStreamSynchronize(model->stream));
        for (int i = 0; i < rows; i++) losses[start + i] = found[(size_t)i];
    }
}

#ifndef GPT2_SAMPLER_ONLY // test_gpt2.cu takes what is above
// ---------------------------------------------------------------------------------------------------------------------
// What the program (core/sample/sampler.c) asks of the model

struct SampledModel {
    GPT2 model;
    Decoder decoder;
    float *kept; // the caches behind the prompt, (L, cache_size)
};

static void *sampled_create(const GPT2Config *config, const Attention *attention,
                            const AttentionConfig *attention_config) {
    const AttentionGPU *on_device = gpu_attention(attention, attention_config);
    SampledModel *sampled = new SampledModel();
    gpt2_create(&sampled->model, config, on_device, attention_config, 0, 0, 0, RECOMPUTE_NONE);
    return sampled;
}

static void sampled_begin(void *model, const SampleSettings *) {
    SampledModel *sampled = (SampledModel *)model;
    parameters_gpu_send(&sampled->model.parameters, sampled->model.stream);
    decoder_create(&sampled->decoder, &sampled->model);
}

static void sampled_free(void *model) {
    SampledModel *sampled = (SampledModel *)model;
    decoder_free(&sampled->decoder);
    gpt2_free(&sampled->model);
    if (sampled->kept) cuda_check(cudaFree(sampled->kept));
    delete sampled;
}

static const float *sampled_step(void *model, int position, const int *tokens, int n, float *all_logits) {
    Decoder *decoder = &((SampledModel *)model)->decoder;
    decoder->position = position;
    return gpt2_step(decoder, tokens, n, all_logits);
}

static size_t past_bytes(const SampledModel *sampled) {
    return (size_t)sampled->model.config.L * sampled->decoder.cache_size * sizeof(float);
}

static void sampled_keep_past(void *model) {
    SampledModel *sampled = (SampledModel *)model;
    size_t bytes = past_bytes(sampled);
    if (!bytes) return;
    if (!sampled->kept) cuda_check(cudaMalloc((void **)&sampled->kept, bytes));
    cuda_check(
        cudaMemcpyAsync(sampled->kept, sampled->decoder.cache, bytes, cudaMemcpyDeviceToDevice, sampled->model.stream));
}

static void sampled_restore_past(void *model) {
    SampledModel *sampled = (SampledModel *)model;
    if (sampled->kept)
        cuda_check(cudaMemcpyAsync(sampled->decoder.cache, sampled->kept, past_bytes(sampled), cudaMemcpyDeviceToDevice,
                                   sampled->model.stream));
}

static void sampled_row_losses(void *model, double *losses, const int *inputs, const int *targets, int T) {
    gpt2_row_losses(&((SampledModel *)model)->decoder, losses, inputs, targets, T);
}

int main(int argc, char **argv) {
    SamplerBackend gpu = {};
    gpu.prefill_rows = PREFILL_ROWS;
    gpu.create = sampled_create, gpu.begin = sampled_begin, gpu.free = sampled_free;
    gpu.tensors = [](void *model) { return gpt2_tensors(&((SampledModel *)model)->model); };
    gpu.step = sampled_step, gpu.row_losses = sampled_row_losses;
    gpu.keep_past = sampled_keep_past, gpu.restore_past = sampled_restore_past;
    return sampler_main(&gpu, argc, argv);
}
#endif
