/*
The CPU trainer: GPT-2's forward and backward pass, AdamW and the training loop, in one file. (Muon, the other
optimiser, has a file of its own: core/ranks/muon.c.)

Layers come first, each one's forward and backward side by side; then the model that strings them together; then the
optimiser; at the bottom the loop. Conventions: outputs first, then inputs, then sizes; gradients are named `d` + the
forward name; N = B*T rows. Weights are stored (in, out) as Hugging Face's GPT-2 stores them. `real` is float; the
gradient tests compile this same file in double.

Weight gradients take `beta`: 0 overwrites (the first micro-batch of a step, so that no pass has to zero them), 1 adds.
Sums over rows are cut into blocks of a fixed size, so that they give the same bits with any number of threads.
*/
#include "core/math/arena.h"
#include "core/model/gpt2_parameters.h"
#include "core/math/matmul.h"
#include "core/base/memory.h"
#include "core/base/profile.h"
#include "core/base/random.h"
#include "core/ranks/muon.h"
#include "core/ranks/sharing.h"
#include "core/base/threads.h"
#include "core/train/trouble.h"
#include "core/base/vector_math.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------------------------------------------------------------
// Layers

enum { COLUMN_SLICE = 64, ROW_BLOCK = 16 };

// out (N,C) = wte[token] + wpe[position]; wpe may be NULL, and positions (N) too: then they are those in rows of T
static void embedding_forward(real *out, const int *tokens, const int *positions, const real *wte, const real *wpe,
                              int N, int T, int C) {
    profile_work(WORK_EMBEDDING);
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        int position = positions ? positions[n] : n % T;
        const real *token_row = wte + (size_t)tokens[n] * C, *position_row = wpe ? wpe + (size_t)position * C : NULL;
        real *out_row = out + (size_t)n * C;
        for (int c = 0; c < C; c++) out_row[c] = token_row[c] + (position_row ? position_row[c] : 0);
    }
}

// Adds to dwte (V,C), where the head has already put its part, and to dwpe (max_T,C) if there is one. Two rows may hold
// the same token: each thread takes a slice of columns through all rows, so that no two of them write to one place.
static void embedding_backward(real *dwte, real *dwpe, const real *dout, const int *tokens, const int *positions, int N,
                               int T, int C) {
    profile_work(WORK_EMBEDDING);
#pragma omp parallel for schedule(static)
    for (int start = 0; start < C; start += COLUMN_SLICE) {
        int end = start + COLUMN_SLICE < C ? start + COLUMN_SLICE : C;
        for (int n = 0; n < N; n++) {
            int position = positions ? positions[n] : n % T;
            const real *dout_row = dout + (size_t)n * C;
            real *dtoken_row = dwte + (size_t)tokens[n] * C, *dposition_row = dwpe ? dwpe + (size_t)position * C : NULL;
            for (int c = start; c < end; c++) dtoken_row[c] += dout_row[c];
            for (int c = start; dposition_row && c < end; c++) dposition_row[c] += dout_row[c];
        }
    }
}

// out (C) = weight * (x - mean) * rstd + bias. Returns the row's mean; *rstd is 1 / its standard deviation.
static real layernorm_forward_row(real *out, real *rstd, const real *x, const real *weight, const real *bias, int C) {
    const real eps = (real)LAYER_NORM_EPSILON;
    real sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
    for (int c = 0; c < C; c++) sum += x[c];
    real mean = sum / C;
#pragma omp simd reduction(+ : squares)
    for (int c = 0; c < C; c++) squares += (x[c] - mean) * (x[c] - mean);
    real s = *rstd = 1 / real_sqrt(squares / C + eps);
    for (int c = 0; c < C; c++) out[c] = (x[c] - mean) * s * weight[c] + bias[c];
    return mean;
}

// out (N,C), row by row, with mean and rstd (N) of each kept for backward
static void layernorm_forward(real *out, real *mean, real *rstd, const real *inp, const real *weight, const real *bias,
                              int N, int C) {
    profile_work(WORK_LAYERNORM);
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++)
        mean[n] = layernorm_forward_row(out + (size_t)n * C, &rstd[n], inp + (size_t)n * C, weight, bias, C);
}

// One row: adds to dinp, and to the block's sums for dweight and dbias.
static void layernorm_backward_row(real *dx, real *dweight, real *dbias, const real *dy, const real *x, real mean,
                                   real rstd, const real *weight, int C) {
    real sum = 0, product = 0; // of dnorm and of dnorm * norm
#pragma omp simd reduction(+ : sum, product)
    for (int c = 0; c < C; c++) {
        real dnorm = dy[c] * weight[c];
        sum += dnorm;
        product += dnorm * ((x[c] - mean) * rstd);
    }
    sum /= C, product /= C;
#pragma omp simd
    for (int c = 0; c < C; c++) {
        real norm = (x[c] - mean) * rstd;
        dx[c] += rstd * (dy[c] * weight[c] - sum - norm * product);
        dweight[c] += dy[c] * norm;
        dbias[c] += dy[c];
    }
}

// dsum (columns) = beta * dsum + the sum over `count` rows of part, whose rows are `stride` apart; by the threads of
// the parallel region at hand, without a barrier at the end.
static void sum_rows(real *dsum, const real *part, size_t stride, int count, int columns, real beta) {
#pragma omp for schedule(static) nowait
    for (int start = 0; start < columns; start += COLUMN_SLICE) {
        int width = start + COLUMN_SLICE < columns ? COLUMN_SLICE : columns - start;
        real sum[COLUMN_SLICE] = {0};
        for (int r = 0; r < count; r++) {
            const real *row = part + (size_t)r * stride + start;
            for (int c = 0; c < width; c++) sum[c] += row[c];
        }
        for (int c = 0; c < width; c++) dsum[start + c] = (beta == 0 ? 0 : dsum[start + c]) + sum[c];
    }
}

// Adds to dinp (N,C): it is the gradient of the residual stream, which also flows around the LayerNorm.
// work: layernorm_work(N, C) numbers for the sums of each block of rows.
static void layernorm_backward(real *dinp, real *dweight, real *dbias, const real *dout, const real *inp,
                               const real *mean, const real *rstd, const real *weight, int N, int C, real beta,
                               real *work) {
    profile_work(WORK_LAYERNORM);
    int blocks = (N + ROW_BLOCK - 1) / ROW_BLOCK;
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int block = 0; block < blocks; block++) {
            real *block_dweight = work + (size_t)block * 2 * C, *block_dbias = block_dweight + C;
            memset(block_dweight, 0, 2 * (size_t)C * sizeof(real));
            int end = (block + 1) * ROW_BLOCK < N ? (block + 1) * ROW_BLOCK : N;
            for (int n = block * ROW_BLOCK; n < end; n++)
                layernorm_backward_row(dinp + (size_t)n * C, block_dweight, block_dbias, dout + (size_t)n * C,
                                       inp + (size_t)n * C, mean[n], rstd[n], weight, C);
        }
        sum_rows(dweight, work, 2 * (size_t)C, blocks, C, beta);
        sum_rows(dbias, work + C, 2 * (size_t)C, blocks, C, beta);
    }
}

static size_t layernorm_work(size_t N, size_t C) {
    return (N + ROW_BLOCK - 1) / ROW_BLOCK * 2 * C;
}

// GELU in its tanh form. 0.5 (1 + tanh u) = 1 / (1 + exp(-2u)), which needs one exponential; the two agree for all u.
static const real GELU_SCALE = (real)0.7978845608028654, GELU_CUBIC = (real)0.044715; // sqrt(2/pi)

// Threads get whole blocks: the exponential of a number that is left over after the last vector has other last bits,
// and which numbers these are must not depend on how many threads there are.
enum { GELU_BLOCK = 1024 };

static inline real gelu_of(real x) {
    return x / (1 + real_exp(-2 * GELU_SCALE * (x + GELU_CUBIC * x * x * x)));
}

static void gelu_forward(real *out, const real *inp, size_t count) {
    profile_work(WORK_GELU);
#pragma omp parallel for simd schedule(static, GELU_BLOCK)
    for (size_t i = 0; i < count; i++) out[i] = gelu_of(inp[i]);
}

// In place: dout becomes dinp. d/dx [x g(u)] = g + x g (1 - g) 2 u'(x), with g the logistic function of 2u.
static void gelu_backward(real *dout, const real *inp, size_t count) {
    profile_work(WORK_GELU);
#pragma omp parallel for simd schedule(static, GELU_BLOCK)
    for (size_t i = 0; i < count; i++) {
        real x = inp[i], u = GELU_SCALE * (x + GELU_CUBIC * x * x * x);
        real du = GELU_SCALE * (1 + 3 * GELU_CUBIC * x * x);
        real gate = 1 / (1 + real_exp(-2 * u));
        dout[i] *= gate + x * gate * (1 - gate) * 2 * du;
    }
}

// out (N,OC) = inp (N,C) weight (C,OC) + bias (OC). The product adds to what is already there, so that the bias costs
// no pass of its own.
static void linear_forward(real *out, const real *inp, const real *weight, const real *bias, int N, int C, int OC) {
    profile_work(WORK_PRODUCTS);
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) memcpy(out + (size_t)n * OC, bias, (size_t)OC * sizeof(real));
    matmul(out, inp, weight, N, OC, C, 1);
}

// The same + residual (N,OC).
static void linear_residual_forward(real *out, const real *residual, const real *inp, const real *weight,
                                    const real *bias, int N, int C, int OC) {
    profile_work(WORK_PRODUCTS);
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++)
        for (int c = 0; c < OC; c++) out[(size_t)n * OC + c] = bias[c] + residual[(size_t)n * OC + c];
    matmul(out, inp, weight, N, OC, C, 1);
}

// Overwrites dinp (N,C).
static void linear_backward(real *dinp, real *dweight, real *dbias, const real *dout, const real *inp,
                            const real *weight, int N, int C, int OC, real beta) {
    profile_work(WORK_PRODUCTS);
    matmul_nt(dinp, dout, weight, N, C, OC, 0);
    matmul_tn(dweight, inp, dout, C, OC, N, beta);
#pragma omp parallel
    sum_rows(dbias, dout, (size_t)OC, N, OC, beta);
}

// Zeroes a share p of the numbers and scales the others by 1/(1-p), in place. Number i of row r of the whole step's
// batch always gets the same verdict, so backward repeats the mask instead of storing it, and neither the thread count
// nor the split into micro-batches and ranks matters. Forward and backward are the same function.
static void dropout(real *x, size_t rows, size_t columns, size_t first_row, float p, uint64_t key) {
    if (p == 0) return;
    profile_work(WORK_DROPOUT);
    const real scale = 1 / (1 - (real)p);
    const uint32_t threshold = (uint32_t)((double)p * 4294967296.0);
#pragma omp parallel for schedule(static)
    for (size_t r = 0; r < rows; r++) {
        real *row = x + r * columns;
        for (size_t c = 0; c < columns; c++)
            row[c] = random_word(key, (first_row + r) * columns + c) < threshold ? 0 : row[c] * scale;
    }
}

// ---- tied head and cross-entropy, by blocks of rows: the (N,V) logits never exist at once

// More rows at once mean fewer passes over dwte, which is larger than any cache; fewer mean less memory.
enum { HEAD_ROWS = 384 };

// Rows of logits are padded to whole cache lines, and once more where their length would map them all onto the same few
// cache sets.
static int logits_stride(int V) {
    int stride = (V + 15) / 16 * 16;
    return stride % 1024 == 0 ? stride + 16 : stride;
}

// One row of logits -> its loss in nats; with `want_gradient` the row becomes dlogits = scale * (softmax - onehot).
// A target below 0 is ignored.
static double cross_entropy_row(real *logits, int target, real scale, int V, int want_gradient) {
    if (target < 0) {
        if (want_gradient) memset(logits, 0, (size_t)V * sizeof(real));
        return 0;
    }
    real largest = logits[0], target_logit = logits[target], sum = 0;
#pragma omp simd reduction(max : largest)
    for (int v = 0; v < V; v++) largest = logits[v] > largest ? logits[v] : largest;
#pragma omp simd reduction(+ : sum)
    for (int v = 0; v < V; v++) {
        logits[v] = real_exp(logits[v] - largest);
        sum += logits[v];
    }
    if (want_gradient) {
        real factor = scale / sum;
        for (int v = 0; v < V; v++) logits[v] *= factor;
        logits[target] -= scale;
    }
    return log((double)sum) - (double)(target_logit - largest);
}

// hidden (N,C), wte (V,C), targets (N) -> losses (N). With dhidden (N,C) also the gradients of scale * sum of losses,
// made in the same pass: dhidden is overwritten, dwte (V,C) follows beta. work: head_work(N, V) numbers.
static void head_forward_backward(double *losses, real *dhidden, real *dwte, const real *hidden, const real *wte,
                                  const int *targets, real scale, int N, int C, int V, real beta, real *work) {
    profile_work(WORK_HEAD);
    int stride = logits_stride(V);
    for (int start = 0; start < N; start += HEAD_ROWS) {
        int rows = N - start < HEAD_ROWS ? N - start : HEAD_ROWS;
        const real *hidden_rows = hidden + (size_t)start * C;
        matmul_nt_strided(work, stride, hidden_rows, wte, rows, V, C);
#pragma omp parallel for schedule(static)
        for (int r = 0; r < rows; r++)
            losses[start + r] =
                cross_entropy_row(work + (size_t)r * stride, targets[start + r], scale, V, dhidden != NULL);
        if (!dhidden) continue;
        matmul_strided_n(dhidden + (size_t)start * C, work, stride, wte, rows, C, V);
        matmul_strided_tn(dwte, work, stride, hidden_rows, V, C, rows, start == 0 ? beta : 1);
    }
}

static size_t head_work(size_t N, int V) {
    return (N < HEAD_ROWS ? N : HEAD_ROWS) * (size_t)logits_stride(V);
}

// ---------------------------------------------------------------------------------------------------------------------
// The model: weights, activations, forward, backward

typedef struct {                       // in the order of enum LayerTensor (core/model/gpt2_parameters.h)
    real *ln1_weight, *ln1_bias;       // (C), (C)
    real *qkv_weight, *qkv_bias;       // (C,3C), (3C)
    real *proj_weight, *proj_bias;     // (C,C), (C)
    real *ln2_weight, *ln2_bias;       // (C), (C)
    real *fc_weight, *fc_bias;         // (C,4C), (4C)
    real *fcproj_weight, *fcproj_bias; // (4C,C), (C)
    real *attention;                   // the mechanism's own parameters, one block; NULL: it has none
} LayerWeights;
_Static_assert(sizeof(LayerWeights) == (LAYER_TENSORS + 1) * sizeof(real *),
               "also an array of pointers: see name_weights");

typedef struct { // the weights, or their gradients
    real *wte;   // (V,C)
    real *wpe;   // (max_T,C), or NULL
    LayerWeights *layers;
    real *lnf_weight, *lnf_bias; // (C), (C)
} Weights;

typedef struct {                     // what a layer keeps from forward to backward; N = B*T rows
    real *ln1, *ln1_mean, *ln1_rstd; // (N,C), (N), (N)
    real *qkv;                       // (N,3C)
    real *attention_saved;           // the mechanism's own
    real *attention_out;             // (N,C)
    real *residual_mid;              // (N,C): after the attention
    real *ln2, *ln2_mean, *ln2_rstd; // (N,C), (N), (N)
    real *fc, *fc_gelu;              // (N,4C), (N,4C)
    real *residual_out;              // (N,C): after the MLP
} LayerActivations;
enum { LAYER_ACTIVATIONS = 13 };
_Static_assert(sizeof(LayerActivations) == LAYER_ACTIVATIONS * sizeof(real *),
               "also an array of pointers: see share_activations");

typedef struct {
    real *embedded; // (N,C)
    LayerActivations *layers;
    real *lnf, *lnf_mean, *lnf_rstd; // (N,C), (N), (N)
} Activations;

typedef struct {     // scratch of backward: one set for all layers
    real *dresidual; // (N,C)
    real *dhidden;   // (N,C)
    real *dwide;     // (N,4C): the MLP's inside, or dqkv; where the logits were, which are gone by then
    real *dbranch;   // (N,C): dresidual times the dropout mask
} BackwardScratch;

typedef struct {
    GPT2Config config;
    AttentionStack stack; // B and T: the capacity of the activations
    float dropout;
    int recompute; // Recompute
    uint64_t seed;

    Parameter *parameters;
    int parameter_count;
    Parameter *own, *updated; // parts of them whose norm this rank takes and that it updates; alone: all of them
    int own_count, updated_count;
    Sharing *sharing; // with the other ranks; NULL: alone
    Weights weights, dweights;
    real **constants; // the attention's, per layer
    Activations acts;
    BackwardScratch back;
    real *attention_work, *head_work, *layernorm_work, *muon_work; // the last: NULL unless Muon is the optimiser
    double *losses;                                                // (N)

    Arena weight_arena, gradient_arena, moment_arena, constant_arena, activation_arena, scratch_arena;
    int trains; // Trains

    MicroBatch batch; // of the last forward pass
    double step_loss; // the sum over the step's micro-batches so far
} GPT2;

static void plan_parameters(GPT2 *model, int by_muon) {
    model->parameters = gpt2_list_parameters(&model->config, &model->stack, &model->parameter_count);
    if (by_muon) gpt2_choose_muon(model->parameters, model->parameter_count);
    for (int i = 0; i < model->parameter_count; i++) {
        Parameter *p = &model->parameters[i];
        size_t count = p->of_attention ? p->block_count : p->count;
        if (count == 0) continue; // its place is in the block of an earlier one
        arena_plan(&model->weight_arena, &p->value, count);
        if (!model->trains) continue;
        arena_plan(&model->gradient_arena, &p->gradient, count);
        if (model->trains == TRAINS_SHARING_MOMENTS) continue;
        arena_plan(&model->moment_arena, &p->m, count);
        if (!p->muon_blocks) arena_plan(&model->moment_arena, &p->v, count);
    }
}

// The parameters of an attention after its first: their places are in the first one's block.
static void place_in_blocks(GPT2 *model) {
    const Parameter *first = NULL;
    for (int i = 0; i < model->parameter_count; i++) {
        Parameter *p = &model->parameters[i];
        if (p->block_count) first = p;
        if (!p->of_attention || p->block_count) continue;
        p->value = first->value + p->block_place;
        if (first->gradient) p->gradient = first->gradient + p->block_place;
        if (first->m) p->m = first->m + p->block_place, p->v = first->v + p->block_place;
    }
}

static real *next_tensor(const Parameter **next, int gradients) {
    const Parameter *p = (*next)++;
    return gradients ? p->gradient : p->value;
}

// Gives the listed tensors, weights or gradients, their names in the struct.
static void name_weights(Weights *weights, const GPT2 *model, int gradients) {
    const Parameter *next = model->parameters, *end = next + model->parameter_count;
    weights->layers = memory_allocate_zeroed((size_t)model->config.L, sizeof(LayerWeights), "the list of layers");
    weights->wte = next_tensor(&next, gradients);
    if (model->config.positions == POSITIONS_LEARNED) weights->wpe = next_tensor(&next, gradients);
    for (int l = 0; l < model->config.L; l++) {
        real **slots = (real **)&weights->layers[l];
        for (int i = 0; i < LAYER_TENSORS; i++) slots[i] = next_tensor(&next, gradients);
        if (next < end && next->of_attention) weights->layers[l].attention = next_tensor(&next, gradients);
        while (next < end && next->of_attention) next++;
    }
    weights->lnf_weight = next_tensor(&next, gradients);
    weights->lnf_bias = next_tensor(&next, gradients);
}

// What layer l's attention keeps; layers that share one place need room for the most that any of them keeps.
static size_t saved_numbers(const GPT2 *model, int l) {
    size_t most = 0;
    for (int i = 0; i < model->config.L; i++) {
        const StackEntry *entry = attention_stack_layer(&model->stack, i);
        size_t size = entry->attention->saved_size(&entry->config);
        if ((i == l || model->recompute == RECOMPUTE_BLOCKS) && size > most) most = size;
    }
    return most;
}

// The places of one layer's activations. With --recompute the layers share one place for those that backward makes
// again.
static void plan_layer(GPT2 *model, int l, size_t N, size_t C) {
    LayerActivations *a = &model->acts.layers[l];
    struct {
        real **slot;
        size_t count;
        Recompute shared_from; // the lowest level that makes it again
    } places[LAYER_ACTIVATIONS] = {
        {&a->ln1, N * C, RECOMPUTE_CHEAP},
        {&a->ln1_mean, N, RECOMPUTE_BLOCKS},
        {&a->ln1_rstd, N, RECOMPUTE_BLOCKS},
        {&a->qkv, N * 3 * C, RECOMPUTE_BLOCKS},
        {&a->attention_saved, saved_numbers(model, l), RECOMPUTE_BLOCKS},
        {&a->attention_out, N * C, RECOMPUTE_BLOCKS},
        {&a->residual_mid, N * C, RECOMPUTE_BLOCKS},
        {&a->ln2, N * C, RECOMPUTE_CHEAP},
        {&a->ln2_mean, N, RECOMPUTE_BLOCKS},
        {&a->ln2_rstd, N, RECOMPUTE_BLOCKS},
        {&a->fc, N * 4 * C, RECOMPUTE_BLOCKS},
        {&a->fc_gelu, N * 4 * C, RECOMPUTE_CHEAP},
        {&a->residual_out, N * C, RECOMPUTE_LEVELS},
    };
    for (int i = 0; i < LAYER_ACTIVATIONS; i++)
        if (l == 0 || model->recompute < (int)places[i].shared_from)
            arena_plan(&model->activation_arena, places[i].slot, places[i].count);
}

// What plan_layer left without a place of its own is the first layer's.
static void share_activations(LayerActivations *a, const LayerActivations *first) {
    real **own = (real **)a, *const *shared = (real *const *)first;
    for (int i = 0; i < LAYER_ACTIVATIONS; i++)
        if (!own[i]) own[i] = shared[i];
}

static void plan_activations(GPT2 *model, size_t N, size_t C) {
    Arena *arena = &model->activation_arena;
    Activations *acts = &model->acts;
    acts->layers = memory_allocate_zeroed((size_t)model->config.L, sizeof(LayerActivations), "the list of layers");
    arena_plan(arena, &acts->embedded, N * C);
    for (int l = 0; l < model->config.L; l++) plan_layer(model, l, N, C);
    arena_plan(arena, &acts->lnf, N * C), arena_plan(arena, &acts->lnf_mean, N), arena_plan(arena, &acts->lnf_rstd, N);
}

static void plan_scratch(GPT2 *model, size_t N, size_t C) {
    Arena *arena = &model->scratch_arena;
    size_t logits = head_work(N, model->config.V), wide = N * 4 * C;
    arena_plan(arena, &model->head_work, logits > wide ? logits : wide);
    arena_plan(arena, &model->layernorm_work, layernorm_work(N, C));
    arena_plan(arena, &model->back.dresidual, N * C);
    arena_plan(arena, &model->back.dhidden, N * C);
    arena_plan(arena, &model->back.dbranch, model->dropout > 0 ? N * C : 0);
}

static size_t most_rows(const AttentionStack *stack) {
    const AttentionConfig *sizes = attention_stack_sizes(stack);
    return (size_t)sizes->B * (size_t)sizes->T;
}

// Plans a model: what memory it needs is known before any is allocated. The B and T of `stack` are the most rows and
// tokens per row of any forward pass; with TRAINS_NOT there are only weights and the attention's scratch, for decoding.
// `recompute` is a level of --recompute; `trains` may have BY_MUON with it.
static void gpt2_plan(GPT2 *model, const GPT2Config *config, const AttentionStack *stack, float dropout_share,
                      uint64_t seed, int trains, int recompute) {
    *model = (GPT2){.config = *config,
                    .stack = *stack,
                    .dropout = dropout_share,
                    .seed = seed,
                    .trains = trains & ~BY_MUON,
                    .recompute = recompute,
                    .weight_arena = {.what = "weights"},
                    .gradient_arena = {.what = "gradients"},
                    .moment_arena = {.what = trains & BY_MUON ? "moments" : "AdamW moments"},
                    .constant_arena = {.what = "attention constants"},
                    .activation_arena = {.what = "activations"},
                    .scratch_arena = {.what = "scratch"}};
    size_t N = most_rows(stack), C = (size_t)config->C;
    plan_parameters(model, trains & BY_MUON);
    if (trains & BY_MUON) arena_plan(&model->scratch_arena, &model->muon_work, muon_work(config->C));
    arena_plan(&model->scratch_arena, &model->attention_work, attention_stack_work_size(stack));
    if (trains) plan_activations(model, N, C), plan_scratch(model, N, C);
    model->constants = memory_allocate_zeroed((size_t)config->L, sizeof(real *), "the list of constants");
    for (int l = 0; l < config->L; l++) {
        const StackEntry *entry = attention_stack_layer(stack, l);
        arena_plan(&model->constant_arena, &model->constants[l],
                   attention_constant_count(entry->attention, &entry->config));
    }
}

// Plans and allocates a model.
static void gpt2_create(GPT2 *model, const GPT2Config *config, const AttentionStack *stack, float dropout_share,
                        uint64_t seed, int trains, int recompute) {
    gpt2_plan(model, config, stack, dropout_share, seed, trains, recompute);
    model->losses = memory_allocate(most_rows(stack), sizeof(double), "the losses");
    arena_allocate(&model->weight_arena);
    arena_allocate(&model->constant_arena);
    arena_allocate(&model->activation_arena);
    for (int l = 1; trains && l < config->L; l++) share_activations(&model->acts.layers[l], &model->acts.layers[0]);
    arena_allocate(&model->scratch_arena);
    model->back.dwide = model->head_work;
    if (trains) arena_allocate(&model->gradient_arena);
    if (model->trains == TRAINS) arena_allocate(&model->moment_arena), arena_clear(&model->moment_arena);
    place_in_blocks(model);
    name_weights(&model->weights, model, 0);
    name_weights(&model->dweights, model, 1);
    model->own = model->updated = model->parameters;
    model->own_count = model->updated_count = model->parameter_count;
}

static void gpt2_free(GPT2 *model) {
    arena_free(&model->weight_arena), arena_free(&model->gradient_arena), arena_free(&model->moment_arena);
    arena_free(&model->constant_arena), arena_free(&model->activation_arena), arena_free(&model->scratch_arena);
    free(model->parameters), free(model->weights.layers), free(model->dweights.layers), free(model->acts.layers);
    free(model->constants), free(model->losses);
}

// What files hold of the model (core/model/gpt2_parameters.h reads, writes and initialises it), in host memory: to be
// saved, when the first rank has all of it, or to be filled from a file. All ranks call it: with ZeRO each has a part
// of the moments.
static ModelTensors gpt2_to_host(GPT2 *model, HostPurpose purpose) {
    if (model->sharing) sharing_join_moments(model->sharing, purpose == HOST_TO_SAVE);
    return (ModelTensors){.config = model->config,
                          .stack = model->stack,
                          .parameters = model->parameters,
                          .count = model->parameter_count,
                          .constants = model->constants};
}

// Ends what gpt2_to_host began; what was filled in is the model's from now on.
static void gpt2_from_host(GPT2 *model, HostPurpose purpose) {
    if (model->sharing) sharing_split_moments(model->sharing, purpose == HOST_TO_FILL);
}

// dropout of x (N,C) at one of the model's sites, with the share that is asked for; forward and backward
static void dropout_at(const GPT2 *model, real *x, int site, float share) {
    const MicroBatch *batch = &model->batch;
    uint64_t key = dropout_key(model->seed, batch->step, site, model->config.L);
    dropout(x, (size_t)(batch->B * batch->T), (size_t)model->config.C, (size_t)batch->first_row * (size_t)batch->T,
            share, key);
}

// The attention of layer l, with the sizes of the batch at hand.
static StackEntry attention_now(const GPT2 *model, int l) {
    StackEntry entry = *attention_stack_layer(&model->stack, l);
    entry.config.B = model->batch.B, entry.config.T = model->batch.T, entry.config.positions = model->batch.positions;
    return entry;
}

static const real *layer_input(const GPT2 *model, int l) {
    return l > 0 ? model->acts.layers[l - 1].residual_out : model->acts.embedded;
}

// The layer's input (N,C) -> residual_out (N,C); what backward needs stays in the layer's activations. `again`: only
// that is computed, for residual_out stands.
static void layer_forward(GPT2 *model, int l, float dropout_share, int again) {
    const LayerWeights *w = &model->weights.layers[l];
    LayerActivations *a = &model->acts.layers[l];
    const real *x = layer_input(model, l);
    StackEntry entry = attention_now(model, l);
    int N = model->batch.B * model->batch.T, C = model->config.C;
    layernorm_forward(a->ln1, a->ln1_mean, a->ln1_rstd, x, w->ln1_weight, w->ln1_bias, N, C);
    linear_forward(a->qkv, a->ln1, w->qkv_weight, w->qkv_bias, N, C, 3 * C);
    profile_work(WORK_ATTENTION);
    entry.attention->forward(a->attention_out, a->attention_saved, a->qkv, model->constants[l], w->attention,
                             model->attention_work, &entry.config);
    if (dropout_share == 0) {
        linear_residual_forward(a->residual_mid, x, a->attention_out, w->proj_weight, w->proj_bias, N, C, C);
    } else {
        linear_forward(a->residual_mid, a->attention_out, w->proj_weight, w->proj_bias, N, C, C);
        dropout_at(model, a->residual_mid, l + 1, dropout_share);
#pragma omp parallel for simd schedule(static)
        for (size_t i = 0; i < (size_t)N * (size_t)C; i++) a->residual_mid[i] += x[i];
    }
    layernorm_forward(a->ln2, a->ln2_mean, a->ln2_rstd, a->residual_mid, w->ln2_weight, w->ln2_bias, N, C);
    linear_forward(a->fc, a->ln2, w->fc_weight, w->fc_bias, N, C, 4 * C);
    gelu_forward(a->fc_gelu, a->fc, (size_t)N * 4 * (size_t)C);
    if (!again)
        linear_residual_forward(a->residual_out, a->residual_mid, a->fc_gelu, w->fcproj_weight, w->fcproj_bias, N,
                                4 * C, C);
}

// model->batch's inputs (B,T) -> acts.lnf (B*T,C). `training` turns dropout on.
static void gpt2_hidden(GPT2 *model, int training) {
    Activations *acts = &model->acts;
    const MicroBatch *batch = &model->batch;
    int N = batch->B * batch->T, C = model->config.C, L = model->config.L;
    float dropout_share = training ? model->dropout : 0;
    embedding_forward(acts->embedded, batch->inputs, batch->positions, model->weights.wte, model->weights.wpe, N,
                      batch->T, C);
    dropout_at(model, acts->embedded, 0, dropout_share);
    for (int l = 0; l < L; l++) layer_forward(model, l, dropout_share, 0);
    layernorm_forward(acts->lnf, acts->lnf_mean, acts->lnf_rstd, layer_input(model, L), model->weights.lnf_weight,
                      model->weights.lnf_bias, N, C);
}

static double sum_losses(const double *losses, int N) {
    double sum = 0;
    for (int n = 0; n < N; n++) sum += losses[n];
    return sum;
}

// The sum of the losses over all targets (B,T) that are not negative, in nats; without dropout.
static inline double gpt2_evaluate(GPT2 *model, const MicroBatch *batch) {
    int N = batch->B * batch->T;
    model->batch = *batch;
    gpt2_hidden(model, 0);
    head_forward_backward(model->losses, NULL, NULL, model->acts.lnf, model->weights.wte, batch->targets, 0, N,
                          model->config.C, model->config.V, 0, model->head_work);
    return sum_losses(model->losses, N);
}

// sums (B): those losses row by row.
static inline void gpt2_row_losses(double *sums, GPT2 *model, const MicroBatch *batch) {
    gpt2_evaluate(model, batch);
    for (int b = 0; b < batch->B; b++) sums[b] = sum_losses(model->losses + (size_t)b * (size_t)batch->T, batch->T);
}

// logits (V) of what follows token `position` of the batch's only row; without dropout.
static inline void gpt2_logits(real *logits, GPT2 *model, const MicroBatch *batch, int position) {
    int C = model->config.C, V = model->config.V;
    model->batch = *batch;
    gpt2_hidden(model, 0);
    matmul_nt(logits, model->acts.lnf + (size_t)position * (size_t)C, model->weights.wte, 1, V, C, 0);
}

// Forward pass with the head's part of backward in it: leaves the gradient of scale * (sum of losses) with respect to
// the last hidden state in back.dhidden and the head's share of dwte. Adds to the step's loss.
static inline void gpt2_forward(GPT2 *model, const MicroBatch *batch) {
    int N = batch->B * batch->T;
    profile_phase(PHASE_FORWARD);
    model->batch = *batch;
    gpt2_hidden(model, 1);
    head_forward_backward(model->losses, model->back.dhidden, model->dweights.wte, model->acts.lnf, model->weights.wte,
                          batch->targets, (real)batch->scale, N, model->config.C, model->config.V,
                          batch->is_first ? 0 : 1, model->head_work);
    model->step_loss = (batch->is_first ? 0 : model->step_loss) + sum_losses(model->losses, N);
}

// Makes what --recompute did not keep again, by the same functions, so that the same bits come out. The last layer's
// still stand: it is the first that backward comes to.
static void recompute_layer(GPT2 *model, int l) {
    const LayerWeights *w = &model->weights.layers[l];
    LayerActivations *a = &model->acts.layers[l];
    int N = model->batch.B * model->batch.T, C = model->config.C;
    if (model->recompute == RECOMPUTE_NONE || l == model->config.L - 1) return;
    if (model->recompute == RECOMPUTE_BLOCKS) {
        layer_forward(model, l, model->dropout, 1);
        return;
    }
    layernorm_forward(a->ln1, a->ln1_mean, a->ln1_rstd, layer_input(model, l), w->ln1_weight, w->ln1_bias, N, C);
    layernorm_forward(a->ln2, a->ln2_mean, a->ln2_rstd, a->residual_mid, w->ln2_weight, w->ln2_bias, N, C);
    gelu_forward(a->fc_gelu, a->fc, (size_t)N * 4 * (size_t)C);
}

// back.dresidual (N,C): the gradient at the layer's output becomes the gradient at its input.
static void layer_backward(GPT2 *model, int l, real beta) {
    const LayerWeights *w = &model->weights.layers[l];
    LayerWeights *dw = &model->dweights.layers[l];
    LayerActivations *a = &model->acts.layers[l];
    BackwardScratch *s = &model->back;
    StackEntry entry = attention_now(model, l);
    int N = model->batch.B * model->batch.T, C = model->config.C;
    recompute_layer(model, l);
    linear_backward(s->dwide, dw->fcproj_weight, dw->fcproj_bias, s->dresidual, a->fc_gelu, w->fcproj_weight, N, 4 * C,
                    C, beta);
    gelu_backward(s->dwide, a->fc, (size_t)N * 4 * (size_t)C);
    linear_backward(s->dhidden, dw->fc_weight, dw->fc_bias, s->dwide, a->ln2, w->fc_weight, N, C, 4 * C, beta);
    layernorm_backward(s->dresidual, dw->ln2_weight, dw->ln2_bias, s->dhidden, a->residual_mid, a->ln2_mean,
                       a->ln2_rstd, w->ln2_weight, N, C, beta, model->layernorm_work);
    const real *dbranch = s->dresidual;
    if (model->dropout > 0) {
        memcpy(s->dbranch, s->dresidual, (size_t)N * (size_t)C * sizeof(real));
        dropout_at(model, s->dbranch, l + 1, model->dropout);
        dbranch = s->dbranch;
    }
    linear_backward(s->dhidden, dw->proj_weight, dw->proj_bias, dbranch, a->attention_out, w->proj_weight, N, C, C,
                    beta);
    profile_work(WORK_ATTENTION);
    entry.attention->backward(s->dwide, dw->attention, s->dhidden, a->qkv, a->attention_out, a->attention_saved,
                              model->constants[l], w->attention, model->attention_work, &entry.config);
    linear_backward(s->dhidden, dw->qkv_weight, dw->qkv_bias, s->dwide, a->ln1, w->qkv_weight, N, C, 3 * C, beta);
    layernorm_backward(s->dresidual, dw->ln1_weight, dw->ln1_bias, s->dhidden, layer_input(model, l), a->ln1_mean,
                       a->ln1_rstd, w->ln1_weight, N, C, beta, model->layernorm_work);
}

// Of tensors whose backward pass knows no beta and only adds.
static void clear_added_gradients(GPT2 *model) {
    if (model->dweights.wpe)
        memset(model->dweights.wpe, 0, (size_t)model->config.max_T * (size_t)model->config.C * sizeof(real));
    for (int i = 0; i < model->parameter_count; i++) {
        const Parameter *p = &model->parameters[i];
        if (p->of_attention) memset(p->gradient, 0, p->count * sizeof(real));
    }
}

// After gpt2_forward of the same batch: the gradients of all weights. The step's first batch overwrites them, the
// others add to them; after its last one each layer's go to the other ranks as soon as they are made.
static inline void gpt2_backward(GPT2 *model, const MicroBatch *batch) {
    Activations *acts = &model->acts;
    const real beta = batch->is_first ? 0 : 1;
    int N = model->batch.B * model->batch.T, C = model->config.C, L = model->config.L;
    profile_phase(PHASE_BACKWARD);
    memset(model->back.dresidual, 0, (size_t)N * (size_t)C * sizeof(real));
    if (beta == 0) clear_added_gradients(model);
    layernorm_backward(model->back.dresidual, model->dweights.lnf_weight, model->dweights.lnf_bias, model->back.dhidden,
                       layer_input(model, L), acts->lnf_mean, acts->lnf_rstd, model->weights.lnf_weight, N, C, beta,
                       model->layernorm_work);
    for (int l = L - 1; l >= 0; l--) {
        layer_backward(model, l, beta);
        if (model->sharing && batch->is_last) sharing_ready(model->sharing, gpt2_layer_start(model->parameters, l));
    }
    dropout_at(model, model->back.dresidual, 0, model->dropout);
    embedding_backward(model->dweights.wte, model->dweights.wpe, model->back.dresidual, batch->inputs,
                       batch->positions, N, batch->T, C);
}

// Floating-point operations of a training step per token: two for each weight and product in forward, twice that in
// backward; the attention by its own count. The head counts, the embedding look-up does not.
static inline double gpt2_flops_per_token(const GPT2 *model) {
    double C = model->config.C, matrices = model->config.L * 12.0 * C * C + (double)model->config.V * C, sum = 0;
    for (int l = 0; l < model->config.L; l++) {
        const StackEntry *entry = attention_stack_layer(&model->stack, l);
        sum += entry->attention->flops(&entry->config);
    }
    return 6 * matrices + 3 * sum;
}

// ---------------------------------------------------------------------------------------------------------------------
// The optimiser

enum { NORM_BLOCK = 1 << 16 };

static size_t norm_blocks(size_t count) {
    return (count + NORM_BLOCK - 1) / NORM_BLOCK;
}

// The sum of squares of each block of x, shared among the threads of the parallel region at hand; no barrier at the
// end.
static void block_squares(double *sums, const real *x, size_t count) {
#pragma omp for schedule(static) nowait
    for (size_t b = 0; b < norm_blocks(count); b++) {
        size_t end = (b + 1) * NORM_BLOCK < count ? (b + 1) * NORM_BLOCK : count;
        double squares = 0;
#pragma omp simd reduction(+ : squares)
        for (size_t i = b * NORM_BLOCK; i < end; i++) squares += (double)x[i] * (double)x[i];
        sums[b] = squares;
    }
}

// The norm of the gradients that are this rank's: alone, all. When it is not finite, *bad is the name of the first
// tensor whose gradient is not. One parallel region for all tensors: most of them are too short to be worth waking a
// thread for.
static double gpt2_gradient_norm(const GPT2 *model, const char **bad) {
    profile_work(WORK_OPTIMIZER);
    size_t blocks = 0, at = 0;
    for (int i = 0; i < model->own_count; i++) blocks += norm_blocks(model->own[i].count);
    double *sums = memory_allocate(blocks, sizeof *sums, "the norm"), total = 0;
#pragma omp parallel firstprivate(at)
    for (int i = 0; i < model->own_count; at += norm_blocks(model->own[i++].count))
        block_squares(sums + at, model->own[i].gradient, model->own[i].count);
    *bad = NULL;
    for (int i = 0; i < model->own_count; i++) {
        double squares = 0;
        for (size_t b = 0; b < norm_blocks(model->own[i].count); b++) squares += sums[at++];
        if (!isfinite(squares) && !*bad) *bad = model->own[i].name;
        total += squares;
    }
    free(sums);
    return sqrt(total);
}

// AdamW's step number `step` (from 0) in one pass over weight, gradient and moments, the clip factor folded in; decay
// on matrices only.
static void adamw(Parameter *parameters, int count, const Settings *settings, int64_t step, double rate,
                  double gradient_scale) {
    const double t = (double)step + 1;
    const real beta1 = settings->beta1, beta2 = settings->beta2, eps = settings->adam_eps,
               g_scale = (real)gradient_scale;
    const real step_size = (real)(rate / (1 - pow(settings->beta1, t)));
    const real v_scale = (real)(1 / (1 - pow(settings->beta2, t)));
#pragma omp parallel
    for (int i = 0; i < count; i++) {
        Parameter *p = &parameters[i];
        real *value = p->value, *m = p->m, *v = p->v;
        const real *gradient = p->gradient, keep = p->decays ? (real)(1 - rate * settings->weight_decay) : 1;
        if (p->muon_blocks) continue;
#pragma omp for simd schedule(static) nowait
        for (size_t j = 0; j < p->count; j++) {
            real g = gradient[j] * g_scale;
            m[j] = beta1 * m[j] + (1 - beta1) * g;
            v[j] = beta2 * v[j] + (1 - beta2) * g * g;
            value[j] = value[j] * keep - step_size * m[j] / (real_sqrt(v[j] * v_scale) + eps);
        }
    }
}

// Muon's step for what AdamW leaves to it. With ZeRO each rank has made its parts of the directions, and needs all.
static void muon(GPT2 *model, const Settings *settings, const Update *update, double gradient_scale) {
    profile_work(WORK_OPTIMIZER);
    muon_directions(model->updated, model->updated_count, settings->muon_momentum, (real)gradient_scale);
    if (model->sharing && model->sharing->zero) exchange_gradients(model->sharing->exchange);
    muon_orthogonalize(model->parameters, model->parameter_count, model->updated, model->updated_count,
                       model->muon_work);
    muon_apply(model->updated, model->updated_count, (real)update->muon_rate,
               (real)(1 - update->rate * settings->weight_decay));
}

static int all_finite(const real *x, size_t count) {
    int finite = 1;
#pragma omp parallel for simd schedule(static) reduction(&& : finite)
    for (size_t i = 0; i < count; i++) finite = finite && isfinite(x[i]);
    return finite;
}

// Where the numbers went bad first in the last forward pass: a place as trouble_describe has it.
static int gpt2_bad_place(const GPT2 *model) {
    size_t count = (size_t)(model->batch.B * model->batch.T) * (size_t)model->config.C;
    int places = model->config.L * LAYER_PLACES;
    // the layers share what they recompute: only their outputs are still their own
    int first = model->recompute == RECOMPUTE_BLOCKS ? PLACE_OUTPUT : PLACE_QKV;
    if (!all_finite(model->acts.embedded, count)) return 0;
    for (int place = 0; place < places; place++) {
        const LayerActivations *a = &model->acts.layers[place / LAYER_PLACES];
        const real *tensors[LAYER_PLACES] = {a->qkv, a->attention_out, a->residual_mid, a->fc, a->residual_out};
        int i = place % LAYER_PLACES;
        if (i >= first && !all_finite(tensors[i], trouble_widths[i] * count)) return 1 + place;
    }
    return 1 + places;
}

// Clips the gradients to the norm settings->clip (0: not at all) and updates the weights, unless loss or norm are not
// finite or above the update's limits: then the weights stay as they are.
static inline StepOutcome gpt2_update(GPT2 *model, const Settings *settings, const Update *update) {
    StepOutcome outcome = {.loss = model->step_loss};
    const char *bad_gradient;
    if (model->sharing) exchange_finish(model->sharing->exchange);
    outcome.norm = gpt2_gradient_norm(model, &bad_gradient);
    if (model->sharing) {
        double sums[2] = {outcome.loss, outcome.norm * outcome.norm};
        parallel_sum(sums, 2);
        outcome.loss = sums[0], outcome.norm = sqrt(sums[1]);
    }
    if (!isfinite(outcome.loss) || !isfinite(outcome.norm)) {
        trouble_describe(&outcome, gpt2_bad_place(model), model->config.L, bad_gradient);
        return outcome;
    }
    if (outcome.loss > update->most_loss || outcome.norm > update->most_norm) return outcome;
    double clip = settings->clip > 0 && outcome.norm > settings->clip ? settings->clip / outcome.norm : 1;
    adamw(model->updated, model->updated_count, settings, update->step, update->rate, clip);
    if (model->muon_work) muon(model, settings, update, clip);
    if (model->sharing && model->sharing->zero) exchange_values(model->sharing->exchange);
    return outcome;
}

#ifndef GPT2_MODEL_ONLY // sample_gpt2.c and the tests take what is above
// ---------------------------------------------------------------------------------------------------------------------
// The program

// Each rank takes the norm of its own parts; with ZeRO it also updates only those.
static void share_model(GPT2 *model, int zero) {
    arena_close_gaps(&model->weight_arena), arena_close_gaps(&model->gradient_arena);
    model->sharing = sharing_create(model->parameters, model->parameter_count, zero, &model->moment_arena);
    model->own = model->sharing->own, model->own_count = model->sharing->own_count;
    if (zero) model->updated = model->own, model->updated_count = model->own_count;
}

// A model for training, alone or with the other ranks.
static void create_model(GPT2 *model, const Settings *settings) {
    gpt2_create(model, &settings->model, &settings->stack, settings->dropout, (uint64_t)settings->seed,
                training_memory(settings), settings->recompute);
    if (parallel_ranks() > 1) share_model(model, settings->zero);
}

// The memory plan in words, and in bytes.
static uint64_t model_bytes(const GPT2 *model, char *text, size_t size) {
    const Arena *arenas[] = {&model->weight_arena,     &model->gradient_arena, &model->moment_arena,
                             &model->activation_arena, &model->scratch_arena,  &model->constant_arena};
    uint64_t total = 0;
    size_t used = 0;
    for (int i = 0; i < 6; i++) {
        uint64_t bytes = arena_bytes(arenas[i]);
        total += bytes;
        if (bytes && used < size)
            used += (size_t)snprintf(text + used, size - used, "%s%s %.1f MB", used ? ", " : "", arenas[i]->what,
                                     (double)bytes / 1e6);
    }
    return total;
}

// Bytes on this machine, for training_check_memory: of all ranks that share it.
static uint64_t planned_bytes(const Settings *settings, char *text, size_t size) {
    GPT2 model;
    gpt2_plan(&model, &settings->model, &settings->stack, settings->dropout, 0, training_memory(settings),
              settings->recompute);
    uint64_t bytes = model_bytes(&model, text, size) * (uint64_t)parallel_local_ranks();
    gpt2_free(&model);
    return bytes;
}

int main(int argc, char **argv) {
    static Training training;
    GPT2 model;
    ModelTensors tensors;
    MicroBatch batch;
    char memory[512];
    threads_restart_with_wait_policy(argv);
    training_open(&training, argc, argv);
    training_check_memory(&training, memory_machine_bytes(), planned_bytes);
    create_model(&model, &training.settings);
    tensors = gpt2_to_host(&model, HOST_TO_FILL);
    training_load(&training, &tensors);
    gpt2_from_host(&model, HOST_TO_FILL);
    Machine machine = {.gflops = matmul_measure_gflops(), .memory = memory};
    machine.memory_bytes = model_bytes(&model, memory, sizeof memory);
    training_begin(&training, gpt2_flops_per_token(&model), &machine);
    for (;;) {
        if (training_validates(&training)) {
            double loss = 0;
            while (training_next_validation(&training, &batch)) loss += gpt2_evaluate(&model, &batch);
            training_end_validation(&training, loss);
        }
        if (training_evaluates(&training))
            while (training_next_evaluation(&training, &batch))
                gpt2_row_losses(training.evaluation.row_losses, &model, &batch);
        if (training_samples(&training))
            for (; training_next_sample(&training, &batch); training_put_sample(&training))
                gpt2_logits(training.logits, &model, &batch, training.sample_count - 1);
        if (training_rolls_back(&training)) {
            tensors = gpt2_to_host(&model, HOST_TO_FILL);
            training_roll_back(&training, &tensors);
            gpt2_from_host(&model, HOST_TO_FILL);
        }
        if (training_saves(&training)) {
            tensors = gpt2_to_host(&model, HOST_TO_SAVE);
            training_save(&training, &tensors);
            gpt2_from_host(&model, HOST_TO_SAVE);
        }
        if (!training_goes_on(&training)) break;
        while (training_next_batch(&training, &batch)) {
            gpt2_forward(&model, &batch);
            gpt2_backward(&model, &batch);
        }
        if (training.failed) continue; // its data could not be read: no update, and the last save
        StepOutcome outcome = gpt2_update(&model, &training.settings, &training.update);
        training_end_step(&training, &outcome);
    }
    sharing_free(model.sharing);
    gpt2_free(&model);
    return training_end(&training);
}
#endif
