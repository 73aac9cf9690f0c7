/*
Text from a checkpoint.

The model comes from train_gpt2.c; here is its decoder, which feeds one sequence through the attention's `step` and keeps
what earlier positions left behind in caches, the sampler, and the program around them. Text goes to standard output,
everything else to standard error, so that the output can be piped.
*/
#define _GNU_SOURCE
#define GPT2_MODEL_ONLY
#pragma GCC diagnostic ignored "-Wunused-function" // decoding needs no backward pass
#include "train_gpt2.c"

#include "core/matvec.h"
#include "core/progress.h"
#include "core/threads.h"
#include "dataloader/dataloader.h"
#include "dataloader/tokenizer.h"

#include <signal.h>
#include <unistd.h>

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
    real *expanded;      // (4C, C): weights of fewer bits as numbers, for matrix products
    PackedLayer *layers; // (L)
    PackedMatrix head;   // (V,C): wte
    void *packed;        // memory of the packed weights
    MatvecInput *inputs; // one per thread
    real *normed;        // (threads, C)
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
    size_t head = kind == WEIGHTS_FP32 ? 0 : packed_bytes(kind, V, C);
    char *memory = decoder->packed = memory_allocate(L * layer_bytes(kind, C) + head, 1, "the packed weights");
    decoder->layers = memory_allocate_zeroed((size_t)L, sizeof(PackedLayer), "the list of layers");
    decoder->head = kind == WEIGHTS_FP32 ? packed_borrow(weights->wte, V, C)
                                         : pack_next(&memory, kind, V, C, weights->wte, SOURCE_ROWS, keep);
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
    arena_plan(&decoder->arena, &decoder->expanded, kind == WEIGHTS_FP32 ? 0 : 4 * C * C);
    arena_plan(&decoder->arena, &decoder->normed, threads * C);
    arena_allocate(&decoder->arena);
    memset(decoder->cache, 0, (size_t)model->config.L * decoder->cache_size * sizeof(real));
    decoder->inputs = memory_allocate(threads, sizeof(MatvecInput), "the decoder's vectors");
    for (size_t t = 0; t < threads; t++) decoder->inputs[t] = matvec_input_create(4 * (int)C);
}

static void decoder_free(Decoder *decoder) {
    for (int t = 0; t < decoder->threads; t++) matvec_input_free(&decoder->inputs[t]);
    free(decoder->inputs), free(decoder->layers), free(decoder->packed);
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

// Rows `first` to `first + count - 1` of a matrix as plain numbers: in place, or expanded.
static const real *plain_rows(Decoder *decoder, const PackedMatrix *matrix, int first, int count) {
    if (matrix->kind == WEIGHTS_FP32) return (const real *)matrix->data + (size_t)first * (size_t)matrix->columns;
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
    int block = decoder->head.kind == WEIGHTS_FP32 ? V : 4 * C; // what decoder->expanded holds
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
    int thread, threads;
} DecoderThread;

static DecoderThread decoder_thread(Decoder *decoder) {
    int thread = omp_get_thread_num();
    return (DecoderThread){.decoder = decoder,
                           .input = &decoder->inputs[thread],
                           .normed = decoder->normed + (size_t)thread * (size_t)decoder->model->config.C,
                           .thread = thread,
                           .threads = omp_get_num_threads()};
}

// The thread's rows of out = matrix inp + bias [+ residual].
static RowRange multiply_share(const DecoderThread *self, real *out, const real *residual, const real *inp,
                               const PackedMatrix *matrix, const real *bias) {
    RowRange range = packed_share(matrix, self->thread, self->threads);
    matvec_input_set(self->input, inp, matrix->columns, matrix->kind);
    matvec(out, matrix, self->input, bias, residual, range);
    return range;
}

// The same behind a LayerNorm, which every thread computes for itself: that is cheaper than waiting for another.
static RowRange multiply_normed(const DecoderThread *self, real *out, const real *x, const real *ln_weight,
                                const real *ln_bias, const PackedMatrix *matrix, const real *bias) {
    real mean, rstd;
    layernorm_forward(self->normed, &mean, &rstd, x, ln_weight, ln_bias, 1, self->decoder->model->config.C);
    return multiply_share(self, out, NULL, self->normed, matrix, bias);
}

// What comes before the attention of layer l, or the logits behind the last layer.
static void before_attention(const DecoderThread *self, int l) {
    Decoder *decoder = self->decoder;
    const Weights *weights = &decoder->model->weights;
    if (l < decoder->model->config.L) {
        const LayerWeights *w = &weights->layers[l];
        multiply_normed(self, decoder->wide, decoder->x, w->ln1_weight, w->ln1_bias, &decoder->layers[l].qkv,
                        w->qkv_bias);
    } else {
        multiply_normed(self, decoder->logits, decoder->x, weights->lnf_weight, weights->lnf_bias, &decoder->head,
                        NULL);
    }
}

// What comes behind the attention of layer l, up to the next one's.
static void after_attention(const DecoderThread *self, int l) {
    Decoder *decoder = self->decoder;
    const LayerWeights *w = &decoder->model->weights.layers[l];
    const PackedLayer *packed = &decoder->layers[l];
    real *x = decoder->x, *fc = decoder->wide2;
    multiply_share(self, x, x, decoder->hidden, &packed->proj, w->proj_bias);
#pragma omp barrier
    RowRange range = multiply_normed(self, fc, x, w->ln2_weight, w->ln2_bias, &packed->fc, w->fc_bias);
    gelu_forward(fc + range.first, fc + range.first, (size_t)(range.last - range.first));
#pragma omp barrier
    multiply_share(self, x, x, fc, &packed->fcproj, w->fcproj_bias);
#pragma omp barrier
    before_attention(self, l + 1);
}

// Feeds one token; its logits are in decoder->logits afterwards.
static void decoder_token(Decoder *decoder, int token) {
    GPT2 *model = decoder->model;
    decoder_embed(decoder, &token, 1);
#pragma omp parallel num_threads(decoder->threads)
    {
        DecoderThread self = decoder_thread(decoder);
        before_attention(&self, 0);
    }
    for (int l = 0; l < model->config.L; l++) {
        model->attention->step(decoder->hidden, decoder->cache + (size_t)l * decoder->cache_size, decoder->position, 1,
                               decoder->wide, model->constants[l], model->attention_work, &model->attention_config);
#pragma omp parallel num_threads(decoder->threads)
        {
            DecoderThread self = decoder_thread(decoder);
            after_attention(&self, l);
        }
    }
    decoder->position++;
}

// logits (V) of one hidden state (C)
static void logits_of_one(Decoder *decoder, const real *hidden) {
#pragma omp parallel num_threads(decoder->threads)
    {
        DecoderThread self = decoder_thread(decoder);
        multiply_share(&self, decoder->logits, NULL, hidden, &decoder->head, NULL);
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

// ---------------------------------------------------------------------------------------------------------------------
// The sampler

typedef struct {
    float temperature; // 0: always the likeliest token
    int top_k;         // among the k likeliest only; 0: all
    float top_p;       // among the likeliest that together have this probability
} SamplerSettings;

typedef struct {
    float weight;
    int token;
} Candidate;

static int heavier_first(const void *a, const void *b) {
    const Candidate *x = a, *y = b;
    if (x->weight != y->weight) return x->weight < y->weight ? 1 : -1;
    return x->token - y->token; // ties by number, so that a seed gives the same text everywhere
}

// The k heaviest candidates to the front, in no order (Hoare's selection).
static void select_heaviest(Candidate *candidates, int count, int k) {
    int low = 0, high = count - 1;
    while (low < high) {
        Candidate pivot = candidates[low + (high - low) / 2];
        int i = low, j = high;
        while (i <= j) {
            while (heavier_first(&candidates[i], &pivot) < 0) i++;
            while (heavier_first(&candidates[j], &pivot) > 0) j--;
            if (i > j) break;
            Candidate swapped = candidates[i];
            candidates[i++] = candidates[j], candidates[j--] = swapped;
        }
        if (k - 1 <= j)
            high = j;
        else if (k - 1 >= i)
            low = i;
        else
            break;
    }
}

static int likeliest(const real *logits, int V) {
    int best = 0;
    for (int v = 1; v < V; v++)
        if (logits[v] > logits[best]) best = v;
    return best;
}

// The fewest heaviest candidates whose weights reach the share p of their sum; they come first, in order. A candidate
// lighter than (1 - p) / count of the sum can never be needed, so that only the few others have to be sorted.
static int keep_nucleus(Candidate *candidates, int count, float p) {
    double sum = 0, kept_sum = 0;
    for (int i = 0; i < count; i++) sum += candidates[i].weight;
    int heavy = 0, kept = 0;
    for (int i = 0; i < count; i++)
        if (candidates[i].weight >= (1 - p) / count * sum) candidates[heavy++] = candidates[i];
    qsort(candidates, (size_t)heavy, sizeof *candidates, heavier_first);
    while (kept < heavy && kept_sum < p * sum) kept_sum += candidates[kept++].weight;
    return kept > 0 ? kept : 1;
}

// One token drawn from the logits (V); `uniform` is in [0,1). `candidates` is scratch of V.
static int sample_token(const real *logits, int V, const SamplerSettings *settings, double uniform,
                        Candidate *candidates) {
    int best = likeliest(logits, V), count = V;
    if (settings->temperature == 0) return best;
    for (int v = 0; v < V; v++)
        candidates[v] = (Candidate){(float)real_exp((logits[v] - logits[best]) / settings->temperature), v};
    if (settings->top_k > 0 && settings->top_k < V) select_heaviest(candidates, V, count = settings->top_k);
    if (settings->top_p < 1) count = keep_nucleus(candidates, count, settings->top_p);
    double sum = 0, threshold, running = 0;
    for (int i = 0; i < count; i++) sum += candidates[i].weight;
    threshold = uniform * sum;
    for (int i = 0; i < count; i++)
        if ((running += candidates[i].weight) > threshold) return candidates[i].token;
    return best;
}

// ---------------------------------------------------------------------------------------------------------------------
// Text on the screen: whole UTF-8 characters as they come

typedef struct {
    FILE *out;
    char pending[4]; // the start of a character whose end has not come yet
    int count;
} TextStream;

// The bytes of the character that starts with `byte`; 1 for a byte that starts none.
static int character_bytes(unsigned char byte) {
    return byte < 0xC2 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : byte < 0xF5 ? 4 : 1;
}

static void stream_flush(TextStream *stream) {
    fwrite(stream->pending, 1, (size_t)stream->count, stream->out);
    stream->count = 0;
}

static void stream_put(TextStream *stream, const char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        int continues = ((unsigned char)bytes[i] & 0xC0) == 0x80;
        if (!continues) stream_flush(stream); // what is pending was not valid: as it is
        stream->pending[stream->count++] = bytes[i];
        if (stream->count >= character_bytes((unsigned char)stream->pending[0])) stream_flush(stream);
    }
    fflush(stream->out);
}

#ifndef GPT2_SAMPLER_ONLY // test_gpt2.c takes what is above
// ---------------------------------------------------------------------------------------------------------------------
// The program

typedef struct {
    const char *model, *tokenizer_path, *prompt, *prompt_file, *prompt_ids, *logits_path, *loss_shards;
    int tokens, samples, begin, stop, stats, interactive, threads, weights;
    SamplerSettings sampler;
    int64_t seed, loss_tokens;
} SampleSettings;

typedef struct {
    SampleSettings settings;
    GPT2 model;
    Tokenizer *tokenizer; // NULL when none is known: prompts and output are numbers
    Decoder decoder;
    Candidate *candidates;
    int *history, history_count; // the whole text so far as tokens; room for a prompt and the longest sample
    double prefill_seconds, decode_seconds;
    int64_t prefill_tokens, decode_tokens;
} Sampler;

static void sample_options(Options *options, SampleSettings *s) {
    // clang-format off
    const Option items[] = {
        {"text", "prompt", 'p', OPTION_STRING, &s->prompt, 0, 0, "TEXT", "what the text starts with", 0, ""},
        {"text", "prompt-file", 'f', OPTION_STRING, &s->prompt_file, 0, 0, "FILE", "the same from a file; - is standard input", 0, ""},
        {"text", "prompt-ids", 0, OPTION_STRING, &s->prompt_ids, 0, 0, "IDS", "the same as token numbers: 15496,11,995", 0, ""},
        {"text", "tokens", 'n', OPTION_INT, &s->tokens, 0, 1 << 24, NULL, "most tokens per sample", 0, ""},
        {"text", "samples", 's', OPTION_INT, &s->samples, 1, 1 << 20, NULL, "texts from the same prompt", 0, ""},
        {"text", "begin", 0, OPTION_FLAG, &s->begin, 0, 1, NULL, "the prompt begins a document; --no-begin: in the middle of one", 0, ""},
        {"text", "stop", 0, OPTION_FLAG, &s->stop, 0, 1, NULL, "stop at end-of-text; --no-stop: go on behind it", 0, ""},
        {"text", "interactive", 'i', OPTION_FLAG, &s->interactive, 0, 1, NULL, "ask for prompts (as without a prompt at a terminal)", 0, ""},
        {"choice", "temperature", 't', OPTION_FLOAT, &s->sampler.temperature, 0, 100, NULL, "0: the likeliest token always", 0, ""},
        {"choice", "top-k", 'k', OPTION_INT, &s->sampler.top_k, 0, 1 << 24, NULL, "among the k likeliest; 0: all", 0, ""},
        {"choice", "top-p", 0, OPTION_FLOAT, &s->sampler.top_p, 1e-6, 1, NULL, "among the likeliest with this probability together", 0, ""},
        {"choice", "seed", 0, OPTION_LONG, &s->seed, 0, 9e15, NULL, "the same seed gives the same text", 0, ""},
        {"program", "tokenizer", 0, OPTION_STRING, &s->tokenizer_path, 0, 0, "FILE", "vocabulary; default: the checkpoint's, or data/gpt2.tiktoken", 0, ""},
        {"program", "weights", 0, OPTION_CHOICE, &s->weights, 0, 0, WEIGHT_KIND_CHOICES, "fewer bits per weight: faster, a little less exact", 0, ""},
        {"program", "threads", 0, OPTION_INT, &s->threads, 0, 4096, NULL, "CPU threads; 0: all cores", 0, ""},
        {"program", "stats", 0, OPTION_FLAG, &s->stats, 0, 1, NULL, "speed, on standard error", 0, ""},
        {"program", "logits", 0, OPTION_STRING, &s->logits_path, 0, 0, "FILE", "write the prompt's logits as safetensors and stop", 0, ""},
        {"program", "loss", 0, OPTION_STRING, &s->loss_shards, 0, 0, "SHARDS", "print the mean loss over token shards (--no-begin: rows begin at any token) and stop", 0, ""},
        {"program", "loss-tokens", 0, OPTION_LONG, &s->loss_tokens, 0, 1e15, NULL, "tokens of them, from their start; 0: all", 0, ""},
    };
    // clang-format on
    options->usage = "usage: sample_gpt2 MODEL [options]\n"
                     "Text from a model: a run, a checkpoint, a Hugging Face GPT-2 directory or an llm.c model file.";
    options->closing = "examples\n"
                       "  ./sample_gpt2 runs/quickstart --prompt 'Once upon a time' --samples 3\n"
                       "  echo 'The lantern' | ./sample_gpt2 runs/quickstart --temperature 0 > story.txt\n"
                       "  ./sample_gpt2 runs/quickstart            (asks for prompts)";
    options_add(options, items, sizeof items / sizeof *items);
}

// ---- the model and its vocabulary

static AttentionConfig decoding_config(const GPT2Config *config) {
    int rows = PREFILL_ROWS < config->max_T ? PREFILL_ROWS : config->max_T;
    return (AttentionConfig){
        .B = 1, .T = rows, .C = config->C, .NH = config->NH, .HS = config->C / config->NH, .max_T = config->max_T};
}

static int load_llmc(Sampler *sampler, Error *error) {
    LlmcModel file;
    if (llmc_model_open(&file, sampler->settings.model, error)) return -1;
    AttentionConfig config = decoding_config(&file.config);
    gpt2_create(&sampler->model, &file.config, attention_find("softmax"), &config, 0, 0, 0, RECOMPUTE_NONE);
    ModelTensors tensors = gpt2_tensors(&sampler->model);
    int result = model_read_llmc(&tensors, &file, error);
    llmc_model_close(&file);
    return result;
}

// Where the vocabulary is when --tokenizer does not say: in the checkpoint, or GPT-2's in data/.
static void find_tokenizer(Sampler *sampler, const char *directory) {
    char *path = path_join(directory, "tokenizer.tiktoken");
    if (sampler->settings.tokenizer_path)
        free(path);
    else if (file_exists(path))
        sampler->settings.tokenizer_path = path;
    else
        free(path);
}

static int load_checkpoint(Sampler *sampler, Error *error) {
    Checkpoint checkpoint;
    GPT2Config config;
    const Attention *attention = attention_find("softmax");
    if (checkpoint_open_newest(&checkpoint, sampler->settings.model, error)) return -1;
    int failed = gpt2_config_from_json(&config, checkpoint.config, checkpoint.path, error);
    const json_t *saved = failed ? NULL : gpt2_config_attention(checkpoint.config);
    AttentionConfig attention_config = {0};
    if (!failed) attention_config = decoding_config(&config);
    failed = failed || (saved && attention_from_json(&attention, &attention_config, saved, error));
    if (!failed) {
        gpt2_create(&sampler->model, &config, attention, &attention_config, 0, 0, 0, RECOMPUTE_NONE);
        ModelTensors tensors = gpt2_tensors(&sampler->model);
        failed = model_read_checkpoint(&tensors, &checkpoint, MODEL_WEIGHTS | MODEL_CONSTANTS, error);
        find_tokenizer(sampler, checkpoint.path);
    }
    checkpoint_close(&checkpoint);
    return failed ? -1 : 0;
}

static int load_tokenizer(Sampler *sampler, Error *error) {
    const char *path = sampler->settings.tokenizer_path;
    int V = sampler->model.config.V;
    if (!path && V == 50257 && file_exists("data/gpt2.tiktoken")) path = "data/gpt2.tiktoken";
    int needs_none = sampler->settings.prompt_ids || sampler->settings.logits_path || sampler->settings.loss_shards;
    if (!path && needs_none) return 0;
    if (!path)
        return error_set(error,
                         "%.700s: no vocabulary beside the model; give --tokenizer FILE (scripts/get_gpt2_vocab.sh "
                         "fetches GPT-2's)",
                         sampler->settings.model);
    if (tokenizer_load(&sampler->tokenizer, path, 0, error)) return -1;
    if (tokenizer_vocab_size(sampler->tokenizer) > V)
        return error_set(error, "%.700s: expected a vocabulary of at most %d tokens for this model, found %d", path, V,
                         tokenizer_vocab_size(sampler->tokenizer));
    return 0;
}

// ---- prompts

// The prompt's tokens, with room for the sample behind them. `begins` puts an end-of-text before them, as every document
// had it in training; without any token there is always one.
static void set_history(Sampler *sampler, const uint32_t *tokens, size_t count, int begins) {
    size_t room = count + 1 + (size_t)sampler->settings.tokens;
    int end = sampler->tokenizer ? (int)tokenizer_end_of_text(sampler->tokenizer) : sampler->model.config.V - 1;
    sampler->history = memory_resize(sampler->history, room, sizeof(int), "the text");
    sampler->history_count = 0;
    if (begins || count == 0) sampler->history[sampler->history_count++] = end;
    for (size_t i = 0; i < count; i++) sampler->history[sampler->history_count++] = (int)tokens[i];
}

static int encode_prompt(Sampler *sampler, const char *text, size_t bytes) {
    uint32_t *tokens = NULL;
    size_t capacity = 0, count = tokenizer_encode(sampler->tokenizer, text, bytes, &tokens, &capacity);
    set_history(sampler, tokens, count, sampler->settings.begin);
    free(tokens);
    return 0;
}

// "15496,11,995": every number below the vocabulary's size.
static int read_prompt_ids(Sampler *sampler, const char *text, Error *error) {
    uint32_t *tokens = memory_allocate(strlen(text) + 1, sizeof *tokens, "the prompt");
    size_t count = 0;
    for (const char *at = text; *at; at += *at == ',' || *at == ' ') {
        char *end;
        unsigned long id = strtoul(at, &end, 10);
        if (end == at || id >= (unsigned long)sampler->model.config.V) {
            free(tokens);
            return error_set(error, "option --prompt-ids: expected numbers below %d with commas, found \"%.40s\"",
                             sampler->model.config.V, at);
        }
        tokens[count++] = (uint32_t)id, at = end;
    }
    set_history(sampler, tokens, count, 0);
    free(tokens);
    return 0;
}

enum { PROMPT_LIMIT = 64 << 20 };

static int read_prompt(Sampler *sampler, Error *error) {
    const SampleSettings *settings = &sampler->settings;
    char *text;
    size_t bytes;
    if (settings->prompt_ids) return read_prompt_ids(sampler, settings->prompt_ids, error);
    if (settings->prompt) return encode_prompt(sampler, settings->prompt, strlen(settings->prompt));
    if (!settings->prompt_file) return encode_prompt(sampler, "", 0);
    if (!strcmp(settings->prompt_file, "-")) {
        if (file_read_stream(&text, &bytes, stdin, "standard input", PROMPT_LIMIT, error)) return -1;
    } else if (file_read(&text, &bytes, settings->prompt_file, PROMPT_LIMIT, error)) {
        return -1;
    }
    while (bytes > 0 && text[bytes - 1] == '\n') bytes--; // an editor's last line break is not part of the prompt
    encode_prompt(sampler, text, bytes);
    free(text);
    return 0;
}

// ---- generation

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number) {
    (void)number;
    interrupted = 1;
}

// Logits behind the last token of the history. When the context is full, the text's last half is read anew, so that
// generation can go on for ever.
static const real *next_logits(Sampler *sampler) {
    Decoder *decoder = &sampler->decoder;
    int max_T = sampler->model.config.max_T, start = sampler->history_count - 1;
    if (decoder->position == 0 || decoder->position == max_T) {
        int keep = decoder->position == max_T ? (max_T + 1) / 2 : max_T;
        start = sampler->history_count > keep ? sampler->history_count - keep : 0;
        decoder->position = 0;
    }
    double begin = clock_seconds();
    int count = sampler->history_count - start, is_prefill = count > 1;
    const real *logits = gpt2_step(decoder, sampler->history + start, count, NULL);
    *(is_prefill ? &sampler->prefill_seconds : &sampler->decode_seconds) += clock_seconds() - begin;
    *(is_prefill ? &sampler->prefill_tokens : &sampler->decode_tokens) += count;
    return logits;
}

// One sample behind the prompt in the history, onto standard output.
static void generate(Sampler *sampler, int sample) {
    const SampleSettings *settings = &sampler->settings;
    uint64_t key = random_key((uint64_t)settings->seed, "sample", (uint64_t)sample);
    TextStream stream = {.out = stdout};
    int end = sampler->tokenizer ? (int)tokenizer_end_of_text(sampler->tokenizer) : sampler->model.config.V - 1;
    for (int i = 0; i < settings->tokens && !interrupted; i++) {
        const real *logits = next_logits(sampler);
        double begin = clock_seconds();
        int token = sample_token(logits, sampler->model.config.V, &settings->sampler, random_uniform(key, (uint64_t)i),
                                 sampler->candidates);
        sampler->decode_seconds += clock_seconds() - begin;
        if (token == end && settings->stop) break;
        sampler->history[sampler->history_count++] = token;
        size_t bytes = 0;
        const char *text = sampler->tokenizer ? tokenizer_token(sampler->tokenizer, (uint32_t)token, &bytes) : NULL;
        if (!sampler->tokenizer)
            printf("%s%d", i ? "," : "", token);
        else if (token == end)
            stream_put(&stream, "<|endoftext|>\n", 14); // as ./tokenize reads it back
        else
            stream_put(&stream, text, bytes);
    }
    stream_flush(&stream);
    printf("\n");
    fflush(stdout);
}

static void print_prompt(const Sampler *sampler) {
    for (int i = 0; sampler->tokenizer && i < sampler->history_count; i++) {
        size_t bytes;
        const char *text = tokenizer_token(sampler->tokenizer, (uint32_t)sampler->history[i], &bytes);
        fwrite(text, 1, bytes, stdout);
    }
    fflush(stdout);
}

// All samples of one prompt. The prompt is read once; further samples start from a copy of the caches behind it.
static void generate_samples(Sampler *sampler) {
    Decoder *decoder = &sampler->decoder;
    int prompt_count = sampler->history_count, samples = sampler->settings.samples;
    size_t cache = (size_t)sampler->model.config.L * decoder->cache_size;
    int is_shared = samples > 1 && prompt_count > 1 && prompt_count <= sampler->model.config.max_T;
    real *saved = is_shared ? memory_allocate(cache, sizeof(real), "the prompt's caches") : NULL;
    decoder->position = 0;
    if (saved) { // all but the last token, which every sample feeds itself
        double begin = clock_seconds();
        gpt2_step(decoder, sampler->history, prompt_count - 1, NULL);
        memcpy(saved, decoder->cache, cache * sizeof(real));
        sampler->prefill_seconds += clock_seconds() - begin, sampler->prefill_tokens += prompt_count - 1;
    }
    for (int sample = 0; sample < samples && !interrupted; sample++) {
        if (sample > 0) printf("---\n");
        sampler->history_count = prompt_count;
        if (saved) memcpy(decoder->cache, saved, cache * sizeof(real));
        decoder->position = saved ? prompt_count - 1 : 0;
        print_prompt(sampler);
        generate(sampler, sample);
    }
    free(saved);
}

static void interact(Sampler *sampler) {
    char *line = NULL;
    size_t capacity = 0;
    fprintf(stderr, "Type the beginning of a text; Ctrl-C stops a sample, an empty line or Ctrl-D ends.\n");
    for (;;) {
        fprintf(stderr, "> ");
        interrupted = 0;
        ssize_t length = getline(&line, &capacity, stdin);
        if (length <= 1) break;
        encode_prompt(sampler, line, (size_t)length - (line[length - 1] == '\n'));
        generate_samples(sampler);
        sampler->settings.seed++; // the same line again gives another text
    }
    free(line);
}

static int write_logits(Sampler *sampler, Error *error) {
    int n = sampler->history_count, V = sampler->model.config.V;
    if (n > sampler->model.config.max_T)
        return error_set(error, "option --logits: expected a prompt of at most %d tokens, found %d",
                         sampler->model.config.max_T, n);
    real *logits = memory_allocate((size_t)n * (size_t)V, sizeof(real), "the logits");
    gpt2_step(&sampler->decoder, sampler->history, n, logits);
    Tensor tensor = {"logits", DTYPE_F32, 2, {(uint64_t)n, (uint64_t)V}, logits};
    int result = safetensors_write(sampler->settings.logits_path, &tensor, 1, NULL, error);
    free(logits);
    return result;
}

enum { LOSS_ROWS = 128 }; // whose logits are in memory at once

// The losses of one row of tokens, from position 0; where the target is below 0 it is 0.
static void row_losses(Decoder *decoder, double *losses, const int *inputs, const int *targets, int T, real *logits) {
    int C = decoder->model->config.C, V = decoder->model->config.V, stride = logits_stride(V);
    int most = decoder_most_rows(decoder);
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
}

// The mean loss over the targets of all shards, as the trainer's validation has it for rows as long as the context.
static int print_loss(Sampler *sampler, Error *error) {
    int T = sampler->model.config.max_T, V = sampler->model.config.V;
    DataLoader *loader;
    DataLoaderConfig config = {.pattern = sampler->settings.loss_shards,
                               .T = T,
                               .vocab = V,
                               .whole = 1,
                               .documents = sampler->settings.begin,
                               .limit = sampler->settings.loss_tokens};
    if (dataloader_open(&loader, &config, error)) return -1;
    int *inputs = memory_allocate(2 * (size_t)T, sizeof(int), "a row of tokens"), *targets = inputs + T, failed = 0;
    double *losses = memory_allocate((size_t)T, sizeof(double), "the losses"), sum = 0;
    real *logits = memory_allocate(LOSS_ROWS * (size_t)logits_stride(V), sizeof(real), "the logits");
    for (int64_t row = 0; row < dataloader_rows(loader) && !failed && !interrupted; row++) {
        failed = dataloader_rows_at(loader, row, 1, inputs, targets, error);
        if (!failed) row_losses(&sampler->decoder, losses, inputs, targets, T, logits);
        for (int t = 0; t < T && !failed; t++) sum += losses[t];
    }
    double mean = sum / (double)dataloader_targets(loader);
    if (!failed && !interrupted)
        printf("loss %.6f  perplexity %.3f  (%lld tokens)\n", mean, exp(mean), (long long)dataloader_targets(loader));
    dataloader_close(loader);
    free(inputs), free(losses), free(logits);
    return failed;
}

static void print_stats(const Sampler *sampler) {
    if (sampler->prefill_tokens)
        fprintf(stderr, "prompt: %lld tokens, %.0f tokens/s\n", (long long)sampler->prefill_tokens,
                (double)sampler->prefill_tokens / sampler->prefill_seconds);
    if (sampler->decode_tokens)
        fprintf(stderr, "text:   %lld tokens, %.0f tokens/s, %.2f ms each\n", (long long)sampler->decode_tokens,
                (double)sampler->decode_tokens / sampler->decode_seconds,
                1e3 * sampler->decode_seconds / (double)sampler->decode_tokens);
}

static int run_sampler(Sampler *sampler, Error *error) {
    SampleSettings *settings = &sampler->settings;
    int has_prompt = settings->prompt || settings->prompt_file || settings->prompt_ids;
    if (settings->loss_shards) has_prompt = 1; // none is wanted
    if (!has_prompt && !isatty(STDIN_FILENO)) settings->prompt_file = "-";
    if (!has_prompt && isatty(STDIN_FILENO)) settings->interactive = !settings->logits_path;
    if (llmc_model_is(settings->model) ? load_llmc(sampler, error) : load_checkpoint(sampler, error)) return -1;
    if (load_tokenizer(sampler, error)) return -1;
    decoder_create(&sampler->decoder, &sampler->model, (WeightKind)settings->weights, 0);
    sampler->candidates = memory_allocate((size_t)sampler->model.config.V, sizeof(Candidate), "the candidates");
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESETHAND};
    if (settings->interactive) action.sa_flags = 0;
    sigaction(SIGINT, &action, NULL);
    if (settings->loss_shards) return print_loss(sampler, error);
    if (settings->interactive) return interact(sampler), 0;
    if (read_prompt(sampler, error)) return -1;
    if (settings->logits_path) return write_logits(sampler, error);
    generate_samples(sampler);
    return 0;
}

int main(int argc, char **argv) {
    static Sampler sampler;
    Options options = {0};
    Error error;
    int positionals = 0;
    threads_wait_briefly(argv);
    error_set_program(argv[0]);
    sampler.settings = (SampleSettings){.tokens = 256,
                                        .samples = 1,
                                        .begin = 1,
                                        .stop = 1,
                                        .stats = 1,
                                        .sampler = {.temperature = 0.8f, .top_p = 1},
                                        .seed = 1};
    sample_options(&options, &sampler.settings);
    die_if(options_parse(&options, argc, argv, &sampler.settings.model, 1, &positionals, &error), &error);
    if (positionals == 0) die("no model: give a run, a checkpoint or a model file (--help tells more)");
    threads_use(sampler.settings.threads);
    die_if(run_sampler(&sampler, &error), &error);
    if (sampler.settings.stats) print_stats(&sampler);
    decoder_free(&sampler.decoder);
    gpt2_free(&sampler.model);
    tokenizer_free(sampler.tokenizer);
    free(sampler.candidates), free(sampler.history);
    return interrupted ? 130 : 0;
}
#endif
