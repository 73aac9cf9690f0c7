/*
Text from a checkpoint.

The model comes from train_gpt2.c; here is its decoder, which feeds one sequence through the attention's `step` and
keeps what later positions need of earlier ones in caches. At the bottom is the loop that draws tokens.
*/
#define _GNU_SOURCE
#ifdef GPT2_MODEL_ONLY
#include "train_gpt2.c"
#else // here only train_gpt2.c's main is unwanted
#define GPT2_MODEL_ONLY
#include "train_gpt2.c"
#undef GPT2_MODEL_ONLY
#endif

#include "core/math/matvec.h"
#include "core/sample/sampling.h"

// ---------------------------------------------------------------------------------------------------------------------
// The decoder

// A prompt's tokens go through the layers PREFILL_ROWS at a time, as matrix products; the text's one by one, as
// products of a matrix and a vector, and so do the few tokens at a time that would not pay for the former.
enum { PREFILL_ROWS = 512, FEW_ROWS = 4 };

typedef struct {
    PackedMatrix qkv, proj, fc, fcproj;
} PackedLayer;

typedef struct {
    GPT2 *model;
    int position;        // of the next token
    size_t cache_size;   // numbers of all layers
    real *cache;         // (cache_size)
    real **caches;       // (L) where each layer's begins in it
    real *kept;          // (cache_size): a copy, see decoder_keep_past; or NULL
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

// Packs a matrix at *memory, which moves on to its end. Without `keep` the source's memory is given up.
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

// In whole cache lines.
static size_t layer_cache_size(const GPT2 *model, int l) {
    const StackEntry *entry = attention_stack_layer(&model->stack, l);
    return (entry->attention->cache_size(&entry->config) + 15) / 16 * 16;
}

// A decoder for the model's weights. Without `keep_weights` the model's own matrices are given up on the way, so that
// they are never in memory twice: the model is then good for nothing but this decoder.
static void decoder_create(Decoder *decoder, GPT2 *model, WeightKind kind, int keep_weights) {
    size_t C = (size_t)model->config.C;
    *decoder = (Decoder){.model = model, .threads = omp_get_max_threads(), .arena = {.what = "the decoder"}};
    size_t threads = (size_t)decoder->threads;
    for (int l = 0; l < model->config.L; l++) decoder->cache_size += layer_cache_size(model, l);
    decoder_pack(decoder, kind, keep_weights);
    arena_plan(&decoder->arena, &decoder->cache, decoder->cache_size);
    arena_plan(&decoder->arena, &decoder->x, PREFILL_ROWS * C);
    arena_plan(&decoder->arena, &decoder->hidden, PREFILL_ROWS * C);
    arena_plan(&decoder->arena, &decoder->wide, PREFILL_ROWS * 4 * C);
    arena_plan(&decoder->arena, &decoder->wide2, PREFILL_ROWS * 4 * C);
    arena_plan(&decoder->arena, &decoder->logits, (size_t)model->config.V);
    arena_plan(&decoder->arena, &decoder->expanded, 4 * C * C);
    arena_plan(&decoder->arena, &decoder->normed, threads * C);
    arena_allocate(&decoder->arena);
    memset(decoder->cache, 0, decoder->cache_size * sizeof(real));
    decoder->caches = memory_allocate((size_t)model->config.L, sizeof *decoder->caches, "the list of caches");
    decoder->caches[0] = decoder->cache;
    for (int l = 1; l < model->config.L; l++)
        decoder->caches[l] = decoder->caches[l - 1] + layer_cache_size(model, l - 1);
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
    free(decoder->inputs), free(decoder->taken), free(decoder->layers), free(decoder->packed), free(decoder->kept);
    free(decoder->caches);
    arena_free(&decoder->arena);
}

// Keeps a copy of the caches, so that several texts can go on from here.
static inline void decoder_keep_past(Decoder *decoder) {
    if (!decoder->kept) decoder->kept = memory_allocate(decoder->cache_size, sizeof(real), "the prompt's caches");
    memcpy(decoder->kept, decoder->cache, decoder->cache_size * sizeof(real));
}

static inline void decoder_restore_past(Decoder *decoder) {
    memcpy(decoder->cache, decoder->kept, decoder->cache_size * sizeof(real));
}

// out (n,C) = wte[token] + wpe[position], if the model has positions
static void decoder_embed(Decoder *decoder, const int *tokens, int n) {
    size_t C = (size_t)decoder->model->config.C;
    const real *wpe = decoder->model->weights.wpe;
    for (int i = 0; i < n; i++) {
        real *x = decoder->x + (size_t)i * C;
        packed_expand(x, &decoder->head, tokens[i], 1);
        for (size_t c = 0; wpe && c < C; c++) x[c] += wpe[(size_t)(decoder->position + i) * C + c];
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

// wide (n,3C): qkv -> hidden (n,C)
static void decoder_attend(Decoder *decoder, int l, int n) {
    GPT2 *model = decoder->model;
    const StackEntry *entry = attention_stack_layer(&model->stack, l);
    entry->attention->step(decoder->hidden, decoder->caches[l], decoder->position, n, decoder->wide,
                           model->constants[l], model->weights.layers[l].attention, model->attention_work,
                           &entry->config);
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
    decoder_attend(decoder, l, n);
    linear_rows(decoder, x, x, hidden, &packed->proj, w->proj_bias, n);
    layernorm_forward(hidden, mean, rstd, x, w->ln2_weight, w->ln2_bias, n, C);
    linear_rows(decoder, wide, NULL, hidden, &packed->fc, w->fc_bias, n);
    gelu_forward(wide2, wide, (size_t)n * 4 * (size_t)C);
    linear_rows(decoder, x, x, wide2, &packed->fcproj, w->fcproj_bias, n);
}

static int decoder_most_rows(const Decoder *decoder) {
    int T = attention_stack_sizes(&decoder->model->stack)->T;
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

// The thread's rows of out = matrix inp + bias [+ residual], then their GELU if wanted.
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

// What comes before the attention of layer l, or after the last layer: the logits.
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

// What comes after the attention of layer l, up to the next one's.
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
        decoder_attend(decoder, l, 1);
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

// Feeds n tokens, the first of them at `position`, and returns the logits (V) after the last. With `all_logits` (n,V)
// those after every token go there too.
static const real *decoder_step(Decoder *decoder, const int *tokens, int n, int position, real *all_logits) {
    size_t C = (size_t)decoder->model->config.C, V = (size_t)decoder->model->config.V;
    decoder->position = position;
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

// Whether no token is likelier than the target.
static int is_likeliest(const real *logits, int target, int V) {
    int likelier = target < 0;
    for (int v = 0; v < V && !likelier; v++) likelier = logits[v] > logits[target];
    return !likelier;
}

// The sum of the losses of a row of T tokens from position 0; targets below 0 do not count. The row's own losses and
// whether each target is the likeliest token are written where there is room for them.
static inline double decoder_row_loss(Decoder *decoder, const LossRows *row, int T) {
    int C = decoder->model->config.C, V = decoder->model->config.V, stride = logits_stride(V);
    int most = decoder_most_rows(decoder);
    real *logits = memory_allocate(LOSS_ROWS * (size_t)stride, sizeof(real), "the logits");
    double losses[LOSS_ROWS], sum = 0;
    decoder->position = 0;
    for (int start = 0, rows; start < T; start += rows) {
        rows = T - start < most ? T - start : most;
        decoder_rows(decoder, row->inputs + start, rows);
        for (int first = 0, n; first < rows; first += n) {
            int at = start + first;
            n = rows - first < LOSS_ROWS ? rows - first : LOSS_ROWS;
            logits_of_rows(decoder, logits, stride, decoder->hidden + (size_t)first * (size_t)C, n);
#pragma omp parallel for schedule(static)
            for (int i = 0; i < n; i++) {
                real *of_token = logits + (size_t)i * (size_t)stride;
                int target = row->targets[at + i];
                if (row->likeliest) row->likeliest[at + i] = (unsigned char)is_likeliest(of_token, target, V);
                losses[i] = cross_entropy_row(of_token, target, 0, V, 0);
                if (row->losses) row->losses[at + i] = (float)losses[i];
            }
            sum += sum_losses(losses, n);
        }
    }
    free(logits);
    return sum;
}

#ifndef GPT2_MODEL_ONLY // tests and benchmarks take what is above
// ---------------------------------------------------------------------------------------------------------------------
// The program

int main(int argc, char **argv) {
    static Sampling sampling;
    GPT2 model;
    Decoder decoder;
    Feed feed;
    threads_restart_with_wait_policy(argv);
    sampling_open(&sampling, PREFILL_ROWS, 1, argc, argv);
    gpt2_create(&model, &sampling.config, &sampling.stack, 0, 0, TRAINS_NOT, RECOMPUTE_NONE);
    ModelTensors tensors = gpt2_to_host(&model, HOST_TO_FILL);
    sampling_load(&sampling, &tensors);
    gpt2_from_host(&model, HOST_TO_FILL);
    decoder_create(&decoder, &model, (WeightKind)sampling.settings.weights, 0);
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
                    const real *logits = decoder_step(&decoder, feed.tokens, feed.n, feed.position, NULL);
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
