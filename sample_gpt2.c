/*
Text from a checkpoint.

The model comes from train_gpt2.c; here is its decoder, which feeds one sequence through the attention's `step` and keeps
what earlier positions left behind in caches. The program around it is core/sample/sampler.c, as on the GPU.
*/
#define _GNU_SOURCE
#define GPT2_MODEL_ONLY
#pragma GCC diagnostic ignored "-Wunused-function" // decoding needs no backward pass
#include "train_gpt2.c"

#include "core/math/matvec.h"
#include "core/sample/sampler.h"

// ---------------------------------------------------------------------------------------------------------------------
// The decoder

// A prompt's tokens go through the layers PREFILL_ROWS at a time, as matrix products; the text's one by one, as products
// of a matrix and a vector, and so do the few tokens at a time that would not pay for the former.
enum { PREFILL_ROWS = 512, FEW_ROWS = 4 };

typedef struct {
    PackedMatrix qkv, proj, fc, fcproj;
} PackedLayer;

typedef struct {
    GPT2 *model;
    int position;        // tokens seen so far
    size_t cache_size;   // numbers per layer
    real *cache;         // (L, cache_size)
    real *x, *hidden;    // (PREFILL_ROWS, C)
    real *wide, *wide2;  // (PREFILL_ROWS, 4C)
    real *logits;        // (V): of the last token
    real *expanded;      // (4C, C): a matrix's weights as numbers, for matrix products
    PackedLayer *layers; // (L)
    PackedMatrix head;   // (V,C): wte
    void *packed;        // memory of the packed weights
    MatvecInput *inputs; // one per thread
    real *normed;        // (threads, C)
    int *taken;          // (1 + 4L): pieces of each of a token's products that threads have taken
    int threads;
    Arena arena;
} Decoder;

// ---- weights in the order and the bits that decoding wants

static size_t layer_bytes(WeightKind kind, int C) {
    return packed_bytes(kind, 3 * C, C) + packed_bytes(kind, C, C) + packed_bytes(kind, 4 * C, C) +
           packed_bytes(kind, C, 4 * C);
}

// Packs a matrix at *memory and moves on behind it. Without `keep` the source's memory is given up.
static PackedMatrix pack_next(char **memory, WeightKind kind, int rows, int columns, real *source, SourceOrder order,
                              int keep) {
    PackedMatrix matrix = packed_create(kind, rows, columns, *memory, source, order);
    *memory += packed_bytes(kind, rows, columns);
    if (!keep) memory_discard(source, (size_t)rows * (size_t)columns * sizeof *source);
    return matrix;
}

static void decoder_pack(Decoder *decoder, WeightKind kind, int keep) {
    const Weights *weights = &decoder->model->weights;
    int C = decoder->model->config.C, L = decoder->model->config.L, V = decoder->model->config.V;
    size_t bytes = packed_bytes(kind, V, C) + (size_t)L * layer_bytes(kind, C);
    char *memory = decoder->packed = memory_allocate(bytes, 1, "the packed weights");
    decoder->layers = memory_allocate_zeroed((size_t)L, sizeof(PackedLayer), "the list of layers");
    decoder->head = pack_next(&memory, kind, V, C, weights->wte, SOURCE_ROWS, keep);
    for (int l = 0; l < L; l++) {
        const LayerWeights *w = &weights->layers[l];
        PackedLayer *layer = &decoder->layers[l];
        layer->qkv = pack_next(&memory, kind, 3 * C, C, w->qkv_weight, SOURCE_COLUMNS, keep);
        layer->proj = pack_next(&memory, kind, C, C, w->proj_weight, SOURCE_COLUMNS, keep);
        layer->fc = pack_next(&memory, kind, 4 * C, C, w->fc_weight, SOURCE_COLUMNS, keep);
        layer->fcproj = pack_next(&memory, kind, C, 4 * C, w->fcproj_weight, SOURCE_COLUMNS, keep);
    }
}

// A decoder for the model's weights. Without `keep_weights` the model's own matrices are given up on the way, so that
// they are never in memory twice: the model is then good for nothing but this decoder.
static void decoder_create(Decoder *decoder, GPT2 *model, WeightKind kind, int keep_weights) {
    size_t C = (size_t)model->config.C;
    *decoder = (Decoder){.model = model, .threads = omp_get_max_threads(), .arena = {.what = "the decoder"}};
    size_t threads = (size_t)decoder->threads;
    decoder->cache_size = model->attention->cache_size(&model->attention_config);
    decoder_pack(decoder, kind, keep_weights);
    arena_plan(&decoder->arena, &decoder->cache, (size_t)model->config.L * decoder->cache_size);
    arena_plan(&decoder->arena, &decoder->x, PREFILL_ROWS * C);
    arena_plan(&decoder->arena, &decoder->hidden, PREFILL_ROWS * C);
    arena_plan(&decoder->arena, &decoder->wide, PREFILL_ROWS * 4 * C);
    arena_plan(&decoder->arena, &decoder->wide2, PREFILL_ROWS * 4 * C);
    arena_plan(&decoder->arena, &decoder->logits, (size_t)model->config.V);
    arena_plan(&decoder->arena, &decoder->expanded, 4 * C * C);
    arena_plan(&decoder->arena, &decoder->normed, threads * C);
    arena_allocate(&decoder->arena);
    memset(decoder->cache, 0, (size_t)model->config.L * decoder->cache_size * sizeof(real));
    decoder->inputs = memory_allocate(threads, sizeof(MatvecInput), "the decoder's vectors");
    decoder->taken = memory_allocate(1 + 4 * (size_t)model->config.L, sizeof *decoder->taken, "the decoder's counters");
    for (size_t t = 0; t < threads; t++) decoder->inputs[t] = matvec_input_create(4 * (int)C);
}

static void decoder_free(Decoder *decoder) {
    for (int t = 0; t < decoder->threads; t++) matvec_input_free(&decoder->inputs[t]);
    packed_free(&decoder->head);
    for (int l = 0; l < decoder->model->config.L; l++) {
        PackedLayer *layer = &decoder->layers[l];
        packed_free(&layer->qkv), packed_free(&layer->proj), packed_free(&layer->fc), packed_free(&layer->fcproj);
    }
    free(decoder->inputs), free(decoder->taken), free(decoder->layers), free(decoder->packed);
    arena_free(&decoder->arena);
}

// out (n,C) = wte[token] + wpe[position]
static void decoder_embed(Decoder *decoder, const int *tokens, int n) {
    size_t C = (size_t)decoder->model->config.C;
    for (int i = 0; i < n; i++) {
        real *x = decoder->x + (size_t)i * C;
        const real *position_row = decoder->model->weights.wpe + (size_t)(decoder->position + i) * C;
        packed_expand(x, &decoder->head, tokens[i], 1);
        for (size_t c = 0; c < C; c++) x[c] += position_row[c];
    }
}

// ---- many tokens at once

// Rows `first` to `first + count - 1` of a matrix as plain numbers.
static const real *plain_rows(Decoder *decoder, const PackedMatrix *matrix, int first, int count) {
    packed_expand(decoder->expanded, matrix, first, count);
    return decoder->expanded;
}

// out (n,rows) = inp (n,columns) matrix^T + bias [+ residual]
static void linear_rows(Decoder *decoder, real *out, const real *residual, const real *inp, const PackedMatrix *matrix,
                        const real *bias, int n) {
    size_t rows = (size_t)matrix->rows;
    const real *weights = plain_rows(decoder, matrix, 0, matrix->rows);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < (size_t)n; i++)
        for (size_t r = 0; r < rows; r++) out[i * rows + r] = bias[r] + (residual ? residual[i * rows + r] : 0);
    matmul_nt(out, inp, weights, n, matrix->rows, matrix->columns, 1);
}

static void layer_rows(Decoder *decoder, int l, int n) {
    GPT2 *model = decoder->model;
    const LayerWeights *w = &model->weights.layers[l];
    const PackedLayer *packed = &decoder->layers[l];
    real *x = decoder->x, *hidden = decoder->hidden, *wide = decoder->wide, *wide2 = decoder->wide2;
    real mean[PREFILL_ROWS], rstd[PREFILL_ROWS];
    int C = model->config.C;
    layernorm_forward(hidden, mean, rstd, x, w->ln1_weight, w->ln1_bias, n, C);
    linear_rows(decoder, wide, NULL, hidden, &packed->qkv, w->qkv_bias, n);
    model->attention->step(hidden, decoder->cache + (size_t)l * decoder->cache_size, decoder->position, n, wide,
                           model->constants[l], model->attention_work, &model->attention_config);
    linear_rows(decoder, x, x, hidden, &packed->proj, w->proj_bias, n);
    layernorm_forward(hidden, mean, rstd, x, w->ln2_weight, w->ln2_bias, n, C);
    linear_rows(decoder, wide, NULL, hidden, &packed->fc, w->fc_bias, n);
    gelu_forward(wide2, wide, (size_t)n * 4 * (size_t)C);
    linear_rows(decoder, x, x, wide2, &packed->fcproj, w->fcproj_bias, n);
}

static int decoder_most_rows(const Decoder *decoder) {
    int T = decoder->model->attention_config.T;
    return T < PREFILL_ROWS ? T : PREFILL_ROWS;
}

// Feeds n <= decoder_most_rows tokens; hidden (n,C) holds their last hidden states afterwards.
static void decoder_rows(Decoder *decoder, const int *tokens, int n) {
    GPT2 *model = decoder->model;
    real mean[PREFILL_ROWS], rstd[PREFILL_ROWS];
    decoder_embed(decoder, tokens, n);
    for (int l = 0; l < model->config.L; l++) layer_rows(decoder, l, n);
    layernorm_forward(decoder->hidden, mean, rstd, decoder->x, model->weights.lnf_weight, model->weights.lnf_bias, n,
                      model->config.C);
    decoder->position += n;
}

// logits (n,V), whose rows are `stride` apart, of hidden (n,C)
static void logits_of_rows(Decoder *decoder, real *logits, int stride, const real *hidden, int n) {
    int C = decoder->model->config.C, V = decoder->model->config.V;
    int block = 4 * C; // what decoder->expanded holds
    for (int first = 0; first < V; first += block) {
        int count = V - first < block ? V - first : block;
        matmul_nt_strided(logits + first, stride, hidden, plain_rows(decoder, &decoder->head, first, count), n, count,
                          C);
    }
}

// ---- one token: every thread has its rows of each matrix, and they meet where one needs all of another's results

typedef struct { // one of the threads of a parallel region
    Decoder *decoder;
    MatvecInput *input;
    real *normed; // (C)
    int *taken;   // pieces of its next product
    int thread, threads;
} DecoderThread;

// `product` is the number of the region's first product within the token.
static DecoderThread decoder_thread(Decoder *decoder, int product) {
    int thread = omp_get_thread_num();
    return (DecoderThread){.decoder = decoder,
                           .input = &decoder->inputs[thread],
                           .normed = decoder->normed + (size_t)thread * (size_t)decoder->model->config.C,
                           .taken = decoder->taken + product,
                           .thread = thread,
                           .threads = omp_get_num_threads()};
}

// The thread's rows of out = matrix inp + bias [+ residual], behind a GELU if there is one.
static void multiply_share(DecoderThread *self, real *out, const real *residual, const real *inp,
                           const PackedMatrix *matrix, const real *bias, int then_gelu) {
    SharedRows rows = {.matrix = matrix, .thread = self->thread, .threads = self->threads, .taken = self->taken++};
    matrix->format->set_input(self->input, inp, matrix->columns);
    for (RowRange range; shared_rows_next(&rows, &range);) {
        matvec(out, matrix, self->input, bias, residual, range);
        if (!then_gelu) continue;
#pragma omp simd
        for (int r = range.first; r < range.last; r++) out[r] = gelu_of(out[r]);
    }
}

// The same of a row's LayerNorm, which every thread computes for itself: that is cheaper than waiting for another.
static void multiply_normed(DecoderThread *self, real *out, const real *x, const real *ln_weight, const real *ln_bias,
                            const PackedMatrix *matrix, const real *bias, int then_gelu) {
    real rstd;
    layernorm_forward_row(self->normed, &rstd, x, ln_weight, ln_bias, self->decoder->model->config.C);
    multiply_share(self, out, NULL, self->normed, matrix, bias, then_gelu);
}

// What comes before the attention of layer l, or the logits behind the last layer.
static void before_attention(DecoderThread *self, int l) {
    Decoder *decoder = self->decoder;
    const Weights *weights = &decoder->model->weights;
    if (l < decoder->model->config.L) {
        const LayerWeights *w = &weights->layers[l];
        multiply_normed(self, decoder->wide, decoder->x, w->ln1_weight, w->ln1_bias, &decoder->layers[l].qkv,
                        w->qkv_bias, 0);
    } else {
        multiply_normed(self, decoder->logits, decoder->x, weights->lnf_weight, weights->lnf_bias, &decoder->head, NULL,
                        0);
    }
}

// What comes behind the attention of layer l, up to the next one's.
static void after_attention(DecoderThread *self, int l) {
    Decoder *decoder = self->decoder;
    const LayerWeights *w = &decoder->model->weights.layers[l];
    const PackedLayer *packed = &decoder->layers[l];
    real *x = decoder->x, *fc = decoder->wide2;
    multiply_share(self, x, x, decoder->hidden, &packed->proj, w->proj_bias, 0);
#pragma omp barrier
    multiply_normed(self, fc, x, w->ln2_weight, w->ln2_bias, &packed->fc, w->fc_bias, 1);
#pragma omp barrier
    multiply_share(self, x, x, fc, &packed->fcproj, w->fcproj_bias, 0);
#pragma omp barrier
    before_attention(self, l + 1);
}

// Feeds one token; its logits are in decoder->logits afterwards.
static void decoder_token(Decoder *decoder, int token) {
    GPT2 *model = decoder->model;
    decoder_embed(decoder, &token, 1);
    memset(decoder->taken, 0, (1 + 4 * (size_t)model->config.L) * sizeof *decoder->taken);
#pragma omp parallel num_threads(decoder->threads)
    {
        DecoderThread self = decoder_thread(decoder, 0);
        before_attention(&self, 0);
    }
    for (int l = 0; l < model->config.L; l++) {
        model->attention->step(decoder->hidden, decoder->cache + (size_t)l * decoder->cache_size, decoder->position, 1,
                               decoder->wide, model->constants[l], model->attention_work, &model->attention_config);
#pragma omp parallel num_threads(decoder->threads)
        {
            DecoderThread self = decoder_thread(decoder, 1 + 4 * l);
            after_attention(&self, l);
        }
    }
    decoder->position++;
}

// logits (V) of one hidden state (C)
static void logits_of_one(Decoder *decoder, const real *hidden) {
    decoder->taken[0] = 0;
#pragma omp parallel num_threads(decoder->threads)
    {
        DecoderThread self = decoder_thread(decoder, 0);
        multiply_share(&self, decoder->logits, NULL, hidden, &decoder->head, NULL, 0);
    }
}

// Feeds n tokens and returns the logits (V) behind the last. With `all_logits` (n,V) those of every token go there too.
static const real *gpt2_step(Decoder *decoder, const int *tokens, int n, real *all_logits) {
    size_t C = (size_t)decoder->model->config.C, V = (size_t)decoder->model->config.V;
    if (n <= FEW_ROWS) {
        for (int i = 0; i < n; i++) {
            decoder_token(decoder, tokens[i]);
            if (all_logits) memcpy(all_logits + (size_t)i * V, decoder->logits, V * sizeof(real));
        }
        return decoder->logits;
    }
    int rows = 0, most = decoder_most_rows(decoder);
    for (int start = 0; start < n; start += rows) {
        rows = n - start < most ? n - start : most;
        decoder_rows(decoder, tokens + start, rows);
        if (all_logits) logits_of_rows(decoder, all_logits + (size_t)start * V, (int)V, decoder->hidden, rows);
    }
    logits_of_one(decoder, decoder->hidden + (size_t)(rows - 1) * C);
    return decoder->logits;
}

enum { LOSS_ROWS = 128 }; // whose logits are in memory at once

// The losses of one row of tokens, from position 0; where the target is below 0 it is 0.
static void gpt2_row_losses(Decoder *decoder, double *losses, const int *inputs, const int *targets, int T) {
    int C = decoder->model->config.C, V = decoder->model->config.V, stride = logits_stride(V);
    int most = decoder_most_rows(decoder);
    real *logits = memory_allocate(LOSS_ROWS * (size_t)stride, sizeof(real), "the logits");
    decoder->position = 0;
    for (int start = 0, rows; start < T; start += rows) {
        rows = T - start < most ? T - start : most;
        decoder_rows(decoder, inputs + start, rows);
        for (int first = 0, n; first < rows; first += n) {
            n = rows - first < LOSS_ROWS ? rows - first : LOSS_ROWS;
            logits_of_rows(decoder, logits, stride, decoder->hidden + (size_t)first * (size_t)C, n);
#pragma omp parallel for schedule(static)
            for (int i = 0; i < n; i++) {
                int t = start + first + i;
                losses[t] = cross_entropy_row(logits + (size_t)i * (size_t)stride, targets[t], 0, V, 0);
            }
        }
    }
    free(logits);
}

#ifndef GPT2_SAMPLER_ONLY // test_gpt2.c takes what is above
// ---------------------------------------------------------------------------------------------------------------------
// What the program (core/sample/sampler.c) asks of the model

typedef struct {
    GPT2 model;
    Decoder decoder;
    real *kept; // the caches behind the prompt, (L, cache_size)
} SampledModel;

static void *sampled_create(const GPT2Config *config, const Attention *attention,
                            const AttentionConfig *attention_config) {
    SampledModel *sampled = memory_allocate_zeroed(1, sizeof *sampled, "the model");
    gpt2_create(&sampled->model, config, attention, attention_config, 0, 0, 0, RECOMPUTE_NONE);
    return sampled;
}

static ModelTensors sampled_tensors(void *sampled) {
    return gpt2_tensors(&((SampledModel *)sampled)->model);
}

static void sampled_begin(void *model, const SampleSettings *settings) {
    SampledModel *sampled = model;
    decoder_create(&sampled->decoder, &sampled->model, (WeightKind)settings->weights, 0);
}

static void sampled_free(void *model) {
    SampledModel *sampled = model;
    decoder_free(&sampled->decoder);
    gpt2_free(&sampled->model);
    free(sampled->kept), free(sampled);
}

static const real *sampled_step(void *model, int position, const int *tokens, int n, real *all_logits) {
    Decoder *decoder = &((SampledModel *)model)->decoder;
    decoder->position = position;
    return gpt2_step(decoder, tokens, n, all_logits);
}

static size_t past_size(const SampledModel *sampled) {
    return (size_t)sampled->model.config.L * sampled->decoder.cache_size;
}

static void sampled_keep_past(void *model) {
    SampledModel *sampled = model;
    if (!sampled->kept) sampled->kept = memory_allocate(past_size(sampled), sizeof(real), "the prompt's caches");
    memcpy(sampled->kept, sampled->decoder.cache, past_size(sampled) * sizeof(real));
}

static void sampled_restore_past(void *model) {
    SampledModel *sampled = model;
    memcpy(sampled->decoder.cache, sampled->kept, past_size(sampled) * sizeof(real));
}

static void sampled_row_losses(void *model, double *losses, const int *inputs, const int *targets, int T) {
    gpt2_row_losses(&((SampledModel *)model)->decoder, losses, inputs, targets, T);
}

int main(int argc, char **argv) {
    const SamplerBackend cpu = {.prefill_rows = PREFILL_ROWS,
                                .has_weight_kinds = 1,
                                .create = sampled_create,
                                .tensors = sampled_tensors,
                                .begin = sampled_begin,
                                .free = sampled_free,
                                .step = sampled_step,
                                .keep_past = sampled_keep_past,
                                .restore_past = sampled_restore_past,
                                .row_losses = sampled_row_losses};
    return sampler_main(&cpu, argc, argv);
}
#endif
