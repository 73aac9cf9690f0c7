/*
Text from a checkpoint, on the GPU: sample_gpt2.c's decoder with the weights and the attention's caches on the device.
The model comes from train_gpt2.cu; what a token costs is one pass over the weights, and one launch: a CUDA graph of the
whole pass, where the attentions find their position in device memory. At the bottom is the same loop as on the CPU: the
same options, and in fp32 the same text for the same seed.
*/
#ifdef GPT2_MODEL_ONLY
#include "train_gpt2.cu"
#else // here only train_gpt2.cu's main is unwanted
#define GPT2_MODEL_ONLY
#include "train_gpt2.cu"
#undef GPT2_MODEL_ONLY
#endif

extern "C" {
#include "core/sample/sampling.h"
}

// ---------------------------------------------------------------------------------------------------------------------
// The decoder

enum { PREFILL_ROWS = 128 }; // tokens of a prompt that go through the layers at once
enum { CACHE_ALIGN = 64 };   // floats: every layer's cache begins like an allocation, at a multiple of 256 bytes

typedef struct { // a token to decode
    int token, position;
} Next;

typedef struct {
    GPT2 *model;
    int position;               // of the next token
    bool decodes;               // every attention takes its position from device memory
    size_t cache_size;          // numbers of all layers
    float *cache;               // (cache_size)
    std::vector<size_t> caches; // (L): where each layer's begins in it
    float *kept;                // (cache_size): a copy, see decoder_keep_past; or NULL
    floatX *x, *hidden;         // (PREFILL_ROWS, C)
    floatX *branch;             // (PREFILL_ROWS, C): joins x in the LayerNorm that comes next
    floatX *wide, *wide2;       // (PREFILL_ROWS, 4C)
    float *mean, *rstd;         // (PREFILL_ROWS)
    int *tokens;                // (PREFILL_ROWS)
    int *targets;               // (PREFILL_ROWS)
    float *losses;              // (PREFILL_ROWS)
    floatX *logits;             // (PREFILL_ROWS, padded V)
    floatX *host;               // the same in pinned host memory
    Next *next, *host_next;     // (1): on the device, and in pinned host memory
    GraphsGPU graphs;           // one graph, of a token
    std::vector<float> last;    // (V): of the last token
    ArenaGPU arena;
} Decoder;

// Training rounds its weights at random, so that small updates add up; decoding takes the nearest.
__global__ void nearest_weights_kernel(floatX *rounded, const float *master, size_t count) {
    size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i < count) rounded[i] = from_float<floatX>(master[i]);
}

static size_t layer_cache_size(const GPT2 *model, int l) {
    size_t size = model->attentions[l].gpu->cache_size(&attention_stack_layer(&model->stack, l)->config);
    return (size + CACHE_ALIGN - 1) / CACHE_ALIGN * CACHE_ALIGN;
}

// `decoder` is a struct of zeros; the model's weights have been sent.
static void decoder_create(Decoder *decoder, GPT2 *model) {
    size_t C = (size_t)model->config.C;
    size_t padded = (size_t)padded_vocabulary(model->config.V);
    ArenaGPU *arena = &decoder->arena;
    decoder->model = model, decoder->decodes = true;
    for (int l = 0; l < model->config.L; l++) {
        decoder->caches.push_back(decoder->cache_size);
        decoder->cache_size += layer_cache_size(model, l);
        decoder->decodes &= model->attentions[l].gpu->decode != NULL;
    }
    arena_gpu_plan(arena, &decoder->cache, decoder->cache_size);
    arena_gpu_plan(arena, &decoder->x, PREFILL_ROWS * C), arena_gpu_plan(arena, &decoder->hidden, PREFILL_ROWS * C);
    arena_gpu_plan(arena, &decoder->branch, PREFILL_ROWS * C);
    arena_gpu_plan(arena, &decoder->wide, PREFILL_ROWS * 4 * C),
        arena_gpu_plan(arena, &decoder->wide2, PREFILL_ROWS * 4 * C);
    arena_gpu_plan(arena, &decoder->mean, PREFILL_ROWS), arena_gpu_plan(arena, &decoder->rstd, PREFILL_ROWS);
    arena_gpu_plan(arena, &decoder->tokens, PREFILL_ROWS), arena_gpu_plan(arena, &decoder->targets, PREFILL_ROWS);
    arena_gpu_plan(arena, &decoder->losses, PREFILL_ROWS);
    arena_gpu_plan(arena, &decoder->logits, PREFILL_ROWS * padded), arena_gpu_plan(arena, &decoder->next, 1);
    arena_gpu_allocate(arena);
    cuda_check(cudaMallocHost((void **)&decoder->host, PREFILL_ROWS * padded * sizeof(floatX)));
    cuda_check(cudaMallocHost((void **)&decoder->host_next, sizeof(Next)));
    decoder->last.resize((size_t)model->config.V);
    if (decoder->cache_size)
        cuda_check(cudaMemsetAsync(decoder->cache, 0, decoder->cache_size * sizeof(float), model->stream));
    pack_constants(model, 0);
    size_t numbers = model->parameters.numbers;
    nearest_weights_kernel<<<blocks_for(numbers, BLOCK), BLOCK, 0, model->stream>>>(model->parameters.rounded,
                                                                                    model->parameters.master, numbers);
    launch_check();
}

static void decoder_free(Decoder *decoder) {
    cuda_check(cudaStreamSynchronize(decoder->model->stream));
    graphs_gpu_free(&decoder->graphs);
    arena_gpu_free(&decoder->arena);
    cuda_check(cudaFree(decoder->kept));
    cuda_check(cudaFreeHost(decoder->host)), cuda_check(cudaFreeHost(decoder->host_next));
}

// Keeps a copy of the caches, so that several texts can go on from here.
static inline void decoder_keep_past(Decoder *decoder) {
    size_t bytes = decoder->cache_size * sizeof(float);
    if (bytes == 0) return;
    if (!decoder->kept) cuda_check(cudaMalloc((void **)&decoder->kept, bytes));
    cuda_check(cudaMemcpyAsync(decoder->kept, decoder->cache, bytes, cudaMemcpyDeviceToDevice, decoder->model->stream));
}

static inline void decoder_restore_past(Decoder *decoder) {
    size_t bytes = decoder->cache_size * sizeof(float);
    if (bytes == 0) return;
    cuda_check(cudaMemcpyAsync(decoder->cache, decoder->kept, bytes, cudaMemcpyDeviceToDevice, decoder->model->stream));
}

// wide (n,3C): qkv -> hidden (n,C). Of one token the position is in device memory, if the attention wants it there.
static void decoder_attend(Decoder *decoder, int l, int n) {
    GPT2 *model = decoder->model;
    const LayerAttention *at = &model->attentions[l];
    const AttentionConfig *config = &attention_stack_layer(&model->stack, l)->config;
    float *cache = decoder->cache + decoder->caches[(size_t)l];
    if (n == 1 && decoder->decodes)
        at->gpu->decode(decoder->hidden, cache, &decoder->next->position, decoder->wide, attention_gpu_constants(at),
                        at->parameters, model->attention_work, config, model->stream);
    else
        at->gpu->step(decoder->hidden, cache, decoder->position, n, decoder->wide, attention_gpu_constants(at),
                      at->parameters, model->attention_work, config, model->stream);
}

// x (n,C) and what the layer before left in `branch` -> the same after this layer.
static void decoder_layer(Decoder *decoder, int l, int n) {
    GPT2 *model = decoder->model;
    const LayerWeights<floatX> *w = &model->weights.layers[l];
    floatX *x = decoder->x, *hidden = decoder->hidden, *branch = decoder->branch, *wide = decoder->wide;
    Dropout none = dropout_of(0, NULL, NULL);
    cudaStream_t stream = model->stream;
    int C = model->config.C;
    if (l == 0)
        layernorm_forward(hidden, decoder->mean, decoder->rstd, x, w->ln1_weight, w->ln1_bias, n, C, stream);
    else
        residual_layernorm_forward(hidden, decoder->mean, decoder->rstd, x, x, branch, none, w->ln1_weight, w->ln1_bias,
                                   n, C, stream);
    linear_forward(wide, hidden, w->qkv_weight, w->qkv_bias, n, C, 3 * C, stream);
    decoder_attend(decoder, l, n);
    linear_forward(branch, hidden, w->proj_weight, w->proj_bias, n, C, C, stream);
    residual_layernorm_forward(hidden, decoder->mean, decoder->rstd, x, x, branch, none, w->ln2_weight, w->ln2_bias, n,
                               C, stream);
    linear_gelu_forward(decoder->wide2, wide, hidden, w->fc_weight, w->fc_bias, n, C, 4 * C, model->fuses_gelu, stream);
    linear_forward(branch, decoder->wide2, w->fcproj_weight, w->fcproj_bias, n, 4 * C, C, stream);
}

static void send_next(Decoder *decoder, int token) {
    *decoder->host_next = {token, decoder->position};
    cuda_check(cudaMemcpyAsync(decoder->next, decoder->host_next, sizeof(Next), cudaMemcpyHostToDevice,
                               decoder->model->stream));
}

// x (n,C), the embedded tokens -> hidden (n,C), their last hidden states
static void decoder_layers(Decoder *decoder, int n) {
    GPT2 *model = decoder->model;
    for (int l = 0; l < model->config.L; l++) decoder_layer(decoder, l, n);
    residual_layernorm_forward(decoder->hidden, decoder->mean, decoder->rstd, decoder->x, decoder->x, decoder->branch,
                               dropout_of(0, NULL, NULL), model->weights.lnf_weight, model->weights.lnf_bias, n,
                               model->config.C, model->stream);
}

// ---- many tokens at once

// Feeds n <= PREFILL_ROWS tokens; hidden (n,C) holds their last hidden states afterwards.
static void decoder_rows(Decoder *decoder, const int *tokens, int n) {
    GPT2 *model = decoder->model;
    int C = model->config.C;
    const floatX *wpe = model->weights.wpe ? model->weights.wpe + (size_t)decoder->position * (size_t)C : NULL;
    cuda_check(
        cudaMemcpyAsync(decoder->tokens, tokens, (size_t)n * sizeof(int), cudaMemcpyHostToDevice, model->stream));
    embedding_forward(decoder->x, decoder->tokens, NULL, model->weights.wte, wpe, n, n, C, model->stream);
    if (n == 1) send_next(decoder, tokens[0]); // where decoder_attend looks for its position
    decoder_layers(decoder, n);
    cuda_check(cudaStreamSynchronize(model->stream)); // `tokens` is the caller's again
    decoder->position += n;
}

static int decoder_most_rows(const Decoder *decoder) {
    int T = attention_stack_sizes(&decoder->model->stack)->T;
    return T < PREFILL_ROWS ? T : PREFILL_ROWS;
}

// decoder->host (n, padded V), once the stream is done: the logits of inp (n,C), which begins where cuBLASLt likes it
// to.
static void send_for_logits(Decoder *decoder, const floatX *inp, int n) {
    GPT2 *model = decoder->model;
    int padded = padded_vocabulary(model->config.V);
    MatmulShape shape = matmul_shape(n, padded, model->config.C, MATMUL_PLAIN);
    shape.b_is_transposed = 1;
    matmul_gpu(decoder->logits, inp, model->weights.wte, 0, &shape, NULL, model->stream);
    cuda_check(cudaMemcpyAsync(decoder->host, decoder->logits, (size_t)n * (size_t)padded * sizeof(floatX),
                               cudaMemcpyDeviceToHost, model->stream));
}

// logits (n,V) from decoder->host; waits for them.
static void take_logits(Decoder *decoder, float *logits, int n) {
    size_t V = (size_t)decoder->model->config.V, padded = (size_t)padded_vocabulary((int)V);
    cuda_check(cudaStreamSynchronize(decoder->model->stream));
    for (size_t i = 0; i < (size_t)n; i++)
        for (size_t v = 0; v < V; v++) logits[i * V + v] = to_float(decoder->host[i * padded + v]);
}

// logits (n,V) of rows first .. first + n - 1 of `hidden`
static void fetch_logits(Decoder *decoder, float *logits, int first, int n) {
    size_t C = (size_t)decoder->model->config.C;
    if (first)
        cuda_check(cudaMemcpyAsync(decoder->x, decoder->hidden + (size_t)first * C, (size_t)n * C * sizeof(floatX),
                                   cudaMemcpyDeviceToDevice, decoder->model->stream));
    send_for_logits(decoder, first ? decoder->x : decoder->hidden, n);
    take_logits(decoder, logits, n);
}

// ---- one token, as one launch

// out (C) = wte[token] + wpe[position], if the model has positions
__global__ void embedding_of_next_kernel(floatX *out, const Next *next, const floatX *wte, const floatX *wpe, int C) {
    int c = blockIdx.x * BLOCK + threadIdx.x;
    if (c >= C) return;
    float x = to_float(wte[(size_t)next->token * (size_t)C + c]);
    if (wpe) x += to_float(wpe[(size_t)next->position * (size_t)C + c]);
    out[c] = from_float<floatX>(x);
}

// Everything between the token in host memory and its logits there.
static void launch_token(Decoder *decoder, int token) {
    GPT2 *model = decoder->model;
    int C = model->config.C;
    send_next(decoder, token);
    embedding_of_next_kernel<<<blocks_for((size_t)C, BLOCK), BLOCK, 0, model->stream>>>(
        decoder->x, decoder->next, model->weights.wte, model->weights.wpe, C);
    launch_check();
    decoder_layers(decoder, 1);
    send_for_logits(decoder, decoder->hidden, 1);
}

// Feeds one token; decoder->last holds its logits afterwards. The first token is launched kernel by kernel, the second
// captured, the others are the same graph again: token and position are read from memory.
static void decoder_token(Decoder *decoder, int token) {
    cudaStream_t stream = decoder->model->stream;
    if (graphs_gpu_begin(&decoder->graphs, 1, 1, 1, 0, stream) == GRAPH_REPLAYS)
        *decoder->host_next = {token, decoder->position}; // the graph sends it
    else
        launch_token(decoder, token);
    graphs_gpu_end(&decoder->graphs, stream);
    decoder->position++;
    take_logits(decoder, decoder->last.data(), 1);
}

// Feeds n tokens, the first of them at `position`, and returns the logits (V) after the last, in host memory. With
// `all_logits` (n,V) those after every token go there too.
static const float *decoder_step(Decoder *decoder, const int *tokens, int n, int position, float *all_logits) {
    size_t V = (size_t)decoder->model->config.V;
    int rows = 0, most = decoder_most_rows(decoder);
    decoder->position = position;
    if (n == 1 && decoder->decodes) {
        decoder_token(decoder, tokens[0]);
        if (all_logits) memcpy(all_logits, decoder->last.data(), V * sizeof(float));
        return decoder->last.data();
    }
    for (int start = 0; start < n; start += rows) {
        rows = n - start < most ? n - start : most;
        decoder_rows(decoder, tokens + start, rows);
        if (all_logits) fetch_logits(decoder, all_logits + (size_t)start * V, 0, rows);
    }
    fetch_logits(decoder, decoder->last.data(), rows - 1, 1);
    return decoder->last.data();
}

// Whether no token is likelier than the target.
static bool is_likeliest(const floatX *logits, int target, int V) {
    bool likelier = target < 0;
    for (int v = 0; v < V && !likelier; v++) likelier = to_float(logits[v]) > to_float(logits[target]);
    return !likelier;
}

// The sum of the losses of a row of T tokens from position 0; targets below 0 do not count. The row's own losses and
// whether each target is the likeliest token are written where there is room for them.
static inline double decoder_row_loss(Decoder *decoder, const LossRows *row, int T) {
    GPT2 *model = decoder->model;
    int most = decoder_most_rows(decoder), C = model->config.C, V = model->config.V;
    size_t padded = (size_t)padded_vocabulary(V);
    std::vector<float> losses((size_t)most);
    double sum = 0;
    decoder->position = 0;
    for (int start = 0, rows; start < T; start += rows) {
        rows = T - start < most ? T - start : most;
        decoder_rows(decoder, row->inputs + start, rows);
        cuda_check(cudaMemcpyAsync(decoder->targets, row->targets + start, (size_t)rows * sizeof(int),
                                   cudaMemcpyHostToDevice, model->stream));
        head_forward_backward(decoder->losses, NULL, NULL, decoder->hidden, model->weights.wte, decoder->targets, NULL,
                              rows, C, V, 0, decoder->logits, rows, model->stream);
        if (row->likeliest)
            cuda_check(cudaMemcpyAsync(decoder->host, decoder->logits, (size_t)rows * padded * sizeof(floatX),
                                       cudaMemcpyDeviceToHost, model->stream));
        cuda_check(cudaMemcpyAsync(losses.data(), decoder->losses, (size_t)rows * sizeof(float), cudaMemcpyDeviceToHost,
                                   model->stream));
        cuda_check(cudaStreamSynchronize(model->stream));
        for (int i = 0; i < rows; i++) {
            int at = start + i;
            sum += losses[(size_t)i];
            if (row->losses) row->losses[at] = losses[(size_t)i];
            if (row->likeliest)
                row->likeliest[at] = is_likeliest(decoder->host + (size_t)i * padded, row->targets[at], V);
        }
    }
    return sum;
}

#ifndef GPT2_MODEL_ONLY // tests take what is above
// ---------------------------------------------------------------------------------------------------------------------
// The program

int main(int argc, char **argv) {
    static Sampling sampling;
    static GPT2 model;
    static Decoder decoder;
    Feed feed;
    threads_restart_with_wait_policy(argv);
    sampling_open(&sampling, PREFILL_ROWS, 0, argc, argv);
    gpt2_create(&model, &sampling.config, &sampling.stack, 0, 0, TRAINS_NOT, RECOMPUTE_NONE);
    ModelTensors tensors = gpt2_to_host(&model, HOST_TO_FILL);
    sampling_load(&sampling, &tensors);
    gpt2_from_host(&model, HOST_TO_FILL);
    decoder_create(&decoder, &model);
    sampling_begin(&sampling);
    if (sampling.loader) { // --loss
        double loss = 0;
        while (isfinite(loss) && sampling_next_row(&sampling))
            loss += decoder_row_loss(&decoder, &sampling.at, sampling.row_tokens);
        sampling_end_loss(&sampling, loss);
    } else if (sampling.logits) { // --logits
        decoder_step(&decoder, sampling.history, sampling.history_count, 0, sampling.logits);
        sampling_write_logits(&sampling);
    } else {
        while (sampling_next_prompt(&sampling)) {
            if (sampling.past > 0) { // several samples read the prompt once
                decoder_step(&decoder, sampling.history, sampling.past, 0, NULL);
                decoder_keep_past(&decoder);
            }
            while (sampling_next_sample(&sampling)) {
                if (sampling.past > 0) decoder_restore_past(&decoder);
                while (sampling_next_feed(&sampling, &feed)) {
                    const float *logits = decoder_step(&decoder, feed.tokens, feed.n, feed.position, NULL);
                    int token = sampling_draw(&sampling, logits);
                    sampling_put(&sampling, token);
                }
            }
        }
    }
    decoder_free(&decoder);
    gpt2_free(&model);
    return sampling_end(&sampling);
}
#endif
