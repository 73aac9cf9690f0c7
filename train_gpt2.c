/*
The CPU trainer: GPT-2's forward and backward pass, AdamW and the training loop, in one file.

Layers come first, each one's forward and backward side by side; then the model that strings them together; then the
optimiser; then the loop. Conventions: outputs first, then inputs, then sizes; gradients are named `d` + the forward name;
N = B*T rows. Weights are stored (in, out) as Hugging Face's GPT-2 stores them. `real` is float; the gradient tests
compile this same file in double.

Weight gradients take `beta`: 0 overwrites (the first micro-batch of a step, so that no pass has to zero them), 1 adds.
Sums over rows are cut into blocks of a fixed size, so that they give the same bits with any number of threads.
*/
#include "attention/attention.h"
#include "core/arena.h"
#include "core/checkpoint.h"
#include "core/error.h"
#include "core/gpt2_config.h"
#include "core/llmc_model.h"
#include "core/matmul.h"
#include "core/memory.h"
#include "core/progress.h"
#include "core/random.h"
#include "core/run.h"
#include "core/settings.h"
#include "core/threads.h"
#include "core/vector_math.h"
#include "dataloader/dataloader.h"
#include "dataloader/tokenizer.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------------------------------------------------------------
// Layers

enum { COLUMN_SLICE = 64, ROW_BLOCK = 16 };

// out (N,C) = wte[token] + wpe[position]
static void embedding_forward(real *out, const int *tokens, const real *wte, const real *wpe, int N, int T, int C) {
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        const real *token_row = wte + (size_t)tokens[n] * C, *position_row = wpe + (size_t)(n % T) * C;
        real *out_row = out + (size_t)n * C;
        for (int c = 0; c < C; c++) out_row[c] = token_row[c] + position_row[c];
    }
}

// Adds to dwte (V,C), where the head has already put its part, and to dwpe (max_T,C). Two rows may hold the same token:
// each thread takes a slice of columns through all rows, so that no two of them write to one place.
static void embedding_backward(real *dwte, real *dwpe, const real *dout, const int *tokens, int N, int T, int C) {
#pragma omp parallel for schedule(static)
    for (int start = 0; start < C; start += COLUMN_SLICE) {
        int end = start + COLUMN_SLICE < C ? start + COLUMN_SLICE : C;
        for (int n = 0; n < N; n++) {
            const real *dout_row = dout + (size_t)n * C;
            real *dtoken_row = dwte + (size_t)tokens[n] * C, *dposition_row = dwpe + (size_t)(n % T) * C;
            for (int c = start; c < end; c++) {
                dtoken_row[c] += dout_row[c];
                dposition_row[c] += dout_row[c];
            }
        }
    }
}

// out (N,C) = weight * (inp - mean) * rstd + bias, with mean and rstd (N) of each row kept for backward
static void layernorm_forward(real *out, real *mean, real *rstd, const real *inp, const real *weight, const real *bias,
                              int N, int C) {
    const real eps = (real)1e-5;
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        const real *x = inp + (size_t)n * C;
        real *y = out + (size_t)n * C, sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
        for (int c = 0; c < C; c++) sum += x[c];
        real m = sum / C;
#pragma omp simd reduction(+ : squares)
        for (int c = 0; c < C; c++) squares += (x[c] - m) * (x[c] - m);
        real s = 1 / real_sqrt(squares / C + eps);
        for (int c = 0; c < C; c++) y[c] = (x[c] - m) * s * weight[c] + bias[c];
        mean[n] = m, rstd[n] = s;
    }
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

// dsum (columns) = beta * dsum + the sum over `count` rows of part, whose rows are `stride` apart
static void sum_rows(real *dsum, const real *part, size_t stride, int count, int columns, real beta) {
#pragma omp parallel for schedule(static)
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
    int blocks = (N + ROW_BLOCK - 1) / ROW_BLOCK;
#pragma omp parallel for schedule(static)
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

static size_t layernorm_work(size_t N, size_t C) {
    return (N + ROW_BLOCK - 1) / ROW_BLOCK * 2 * C;
}

// out (N,OC) = inp (N,C) weight (C,OC) + bias (OC) [+ residual (N,OC)]. The product adds to what is already there, so
// that bias and residual cost no pass of their own.
static void linear_forward(real *out, const real *residual, const real *inp, const real *weight, const real *bias,
                           int N, int C, int OC) {
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        real *row = out + (size_t)n * OC;
        if (!residual)
            memcpy(row, bias, (size_t)OC * sizeof(real));
        else
            for (int c = 0; c < OC; c++) row[c] = bias[c] + residual[(size_t)n * OC + c];
    }
    matmul(out, inp, weight, N, OC, C, 1);
}

// Overwrites dinp (N,C).
static void linear_backward(real *dinp, real *dweight, real *dbias, const real *dout, const real *inp,
                            const real *weight, int N, int C, int OC, real beta) {
    matmul_nt(dinp, dout, weight, N, C, OC, 0);
    matmul_tn(dweight, inp, dout, C, OC, N, beta);
    sum_rows(dbias, dout, (size_t)OC, N, OC, beta);
}

// GELU in its tanh form. 0.5 (1 + tanh u) = 1 / (1 + exp(-2u)), which needs one exponential; the two agree for all u.
static const real GELU_SCALE = (real)0.7978845608028654, GELU_CUBIC = (real)0.044715; // sqrt(2/pi)

static void gelu_forward(real *out, const real *inp, size_t count) {
#pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < count; i++) {
        real x = inp[i], u = GELU_SCALE * (x + GELU_CUBIC * x * x * x);
        out[i] = x / (1 + real_exp(-2 * u));
    }
}

// In place: dout becomes dinp. d/dx [x g(u)] = g + x g (1 - g) 2 u'(x), with g the logistic function of 2u.
static void gelu_backward(real *dout, const real *inp, size_t count) {
#pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < count; i++) {
        real x = inp[i], u = GELU_SCALE * (x + GELU_CUBIC * x * x * x);
        real du = GELU_SCALE * (1 + 3 * GELU_CUBIC * x * x);
        real gate = 1 / (1 + real_exp(-2 * u));
        dout[i] *= gate + x * gate * (1 - gate) * 2 * du;
    }
}

// Zeroes a share p of the numbers and scales the others by 1/(1-p), in place. Number i of row r of the whole step's batch
// always gets the same verdict, so backward repeats the mask instead of storing it, and neither the thread count nor the
// split into micro-batches and ranks matters. Forward and backward are the same function.
static void dropout(real *x, size_t rows, size_t columns, size_t first_row, float p, uint64_t key) {
    if (p == 0) return;
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

enum { HEAD_ROWS = 256 };

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

// hidden (N,C), wte (V,C), targets (N) -> losses (N). With dhidden (N,C) also the gradients of scale * sum of losses, made
// in the same pass: dhidden is overwritten, dwte (V,C) follows beta. work: head_work(V) numbers.
static void head_forward_backward(double *losses, real *dhidden, real *dwte, const real *hidden, const real *wte,
                                  const int *targets, real scale, int N, int C, int V, real beta, real *work) {
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

static size_t head_work(int V) {
    return (size_t)HEAD_ROWS * (size_t)logits_stride(V);
}

// ---------------------------------------------------------------------------------------------------------------------
// The model: weights, activations, forward, backward

typedef struct {
    real *ln1_weight, *ln1_bias;       // (C), (C)
    real *qkv_weight, *qkv_bias;       // (C,3C), (3C)
    real *proj_weight, *proj_bias;     // (C,C), (C)
    real *ln2_weight, *ln2_bias;       // (C), (C)
    real *fc_weight, *fc_bias;         // (C,4C), (4C)
    real *fcproj_weight, *fcproj_bias; // (4C,C), (C)
} LayerWeights;

typedef struct { // the weights, or their gradients
    real *wte;   // (V,C)
    real *wpe;   // (max_T,C)
    LayerWeights *layers;
    real *lnf_weight, *lnf_bias; // (C), (C)
} Weights;

// The tensors of a layer: Hugging Face's name, place in LayerWeights, shape in multiples of C (0 rows: a vector).
static const struct {
    const char *name;
    size_t slot;
    int rows, columns;
} layer_tensors[] = {
    {"ln_1.weight", offsetof(LayerWeights, ln1_weight), 0, 1},
    {"ln_1.bias", offsetof(LayerWeights, ln1_bias), 0, 1},
    {"attn.c_attn.weight", offsetof(LayerWeights, qkv_weight), 1, 3},
    {"attn.c_attn.bias", offsetof(LayerWeights, qkv_bias), 0, 3},
    {"attn.c_proj.weight", offsetof(LayerWeights, proj_weight), 1, 1},
    {"attn.c_proj.bias", offsetof(LayerWeights, proj_bias), 0, 1},
    {"ln_2.weight", offsetof(LayerWeights, ln2_weight), 0, 1},
    {"ln_2.bias", offsetof(LayerWeights, ln2_bias), 0, 1},
    {"mlp.c_fc.weight", offsetof(LayerWeights, fc_weight), 1, 4},
    {"mlp.c_fc.bias", offsetof(LayerWeights, fc_bias), 0, 4},
    {"mlp.c_proj.weight", offsetof(LayerWeights, fcproj_weight), 4, 1},
    {"mlp.c_proj.bias", offsetof(LayerWeights, fcproj_bias), 0, 1},
};
enum { LAYER_TENSORS = sizeof layer_tensors / sizeof *layer_tensors };

typedef struct { // one weight tensor with all that training keeps for it
    char name[64];
    int rank;
    uint64_t shape[2];
    size_t count;
    real **value_slot, **gradient_slot; // where Weights keeps the pointers
    real *value, *gradient, *m, *v;     // v, m: AdamW's moments
} Parameter;

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

typedef struct {
    real *embedded; // (N,C)
    LayerActivations *layers;
    real *lnf, *lnf_mean, *lnf_rstd; // (N,C), (N), (N)
} Activations;

typedef struct {     // scratch of backward: one set for all layers
    real *dresidual; // (N,C)
    real *dhidden;   // (N,C)
    real *dwide;     // (N,4C): the MLP's inside, or dqkv
    real *dbranch;   // (N,C): dresidual behind the dropout mask
} BackwardScratch;

typedef struct {
    GPT2Config config;
    const Attention *attention;
    AttentionConfig attention_config; // B and T: the capacity of the activations
    float dropout;
    uint64_t seed;

    Parameter *parameters;
    int parameter_count;
    Weights weights, dweights;
    real **constants; // the attention's, per layer
    Activations acts;
    BackwardScratch back;
    real *attention_work, *head_work, *layernorm_work;
    double *losses; // (N)

    Arena weight_arena, gradient_arena, moment_arena, constant_arena, activation_arena, scratch_arena;
    int trains; // gradients, moments and activations exist

    int64_t step;      // of the optimiser, from 0
    int64_t first_row; // of the micro-batch at hand within the step's batch
    int B, T;          // of the last forward pass
    const int *inputs; // of the last forward pass
} GPT2;

static void add_parameter(GPT2 *model, const char *name, int rank, size_t rows, size_t columns, real **value,
                          real **gradient) {
    Parameter *parameter = &model->parameters[model->parameter_count++];
    *parameter = (Parameter){.rank = rank, .shape = {rank == 2 ? rows : columns, columns}, .count = rows * columns};
    parameter->value_slot = value, parameter->gradient_slot = gradient;
    snprintf(parameter->name, sizeof parameter->name, "transformer.%s", name);
    arena_plan(&model->weight_arena, value, parameter->count);
    if (!model->trains) return;
    arena_plan(&model->gradient_arena, gradient, parameter->count);
    arena_plan(&model->moment_arena, &parameter->m, parameter->count);
    arena_plan(&model->moment_arena, &parameter->v, parameter->count);
}

static void plan_parameters(GPT2 *model) {
    size_t C = (size_t)model->config.C, L = (size_t)model->config.L;
    Weights *w = &model->weights, *dw = &model->dweights;
    model->parameters = memory_allocate_zeroed(4 + L * LAYER_TENSORS, sizeof(Parameter), "the list of weights");
    w->layers = memory_allocate_zeroed(L, sizeof(LayerWeights), "the list of layers");
    dw->layers = memory_allocate_zeroed(L, sizeof(LayerWeights), "the list of layers");
    add_parameter(model, "wte.weight", 2, (size_t)model->config.V, C, &w->wte, &dw->wte);
    add_parameter(model, "wpe.weight", 2, (size_t)model->config.max_T, C, &w->wpe, &dw->wpe);
    for (size_t l = 0; l < L; l++) {
        for (int i = 0; i < LAYER_TENSORS; i++) {
            char name[48];
            snprintf(name, sizeof name, "h.%zu.%s", l, layer_tensors[i].name);
            size_t slot = layer_tensors[i].slot, rows = (size_t)layer_tensors[i].rows;
            add_parameter(model, name, rows ? 2 : 1, rows ? rows * C : 1, (size_t)layer_tensors[i].columns * C,
                          (real **)((char *)&w->layers[l] + slot), (real **)((char *)&dw->layers[l] + slot));
        }
    }
    add_parameter(model, "ln_f.weight", 1, 1, C, &w->lnf_weight, &dw->lnf_weight);
    add_parameter(model, "ln_f.bias", 1, 1, C, &w->lnf_bias, &dw->lnf_bias);
}

static void plan_activations(GPT2 *model) {
    size_t N = (size_t)model->attention_config.B * (size_t)model->attention_config.T, C = (size_t)model->config.C;
    Arena *arena = &model->activation_arena;
    Activations *acts = &model->acts;
    acts->layers = memory_allocate_zeroed((size_t)model->config.L, sizeof(LayerActivations), "the list of layers");
    arena_plan(arena, &acts->embedded, N * C);
    for (int l = 0; l < model->config.L; l++) {
        LayerActivations *a = &acts->layers[l];
        arena_plan(arena, &a->ln1, N * C), arena_plan(arena, &a->ln1_mean, N), arena_plan(arena, &a->ln1_rstd, N);
        arena_plan(arena, &a->qkv, N * 3 * C);
        arena_plan(arena, &a->attention_saved, model->attention->saved_size(&model->attention_config));
        arena_plan(arena, &a->attention_out, N * C);
        arena_plan(arena, &a->residual_mid, N * C);
        arena_plan(arena, &a->ln2, N * C), arena_plan(arena, &a->ln2_mean, N), arena_plan(arena, &a->ln2_rstd, N);
        arena_plan(arena, &a->fc, N * 4 * C), arena_plan(arena, &a->fc_gelu, N * 4 * C);
        arena_plan(arena, &a->residual_out, N * C);
    }
    arena_plan(arena, &acts->lnf, N * C), arena_plan(arena, &acts->lnf_mean, N), arena_plan(arena, &acts->lnf_rstd, N);
}

static void plan_scratch(GPT2 *model) {
    size_t N = (size_t)model->attention_config.B * (size_t)model->attention_config.T, C = (size_t)model->config.C;
    Arena *arena = &model->scratch_arena;
    arena_plan(arena, &model->head_work, head_work(model->config.V));
    arena_plan(arena, &model->layernorm_work, layernorm_work(N, C));
    arena_plan(arena, &model->back.dresidual, N * C);
    arena_plan(arena, &model->back.dhidden, N * C);
    arena_plan(arena, &model->back.dwide, N * 4 * C);
    arena_plan(arena, &model->back.dbranch, model->dropout > 0 ? N * C : 0);
}

// Plans and allocates a model. attention_config.B and .T are the most rows and tokens per row of any forward pass; with
// `trains` 0 there are only weights and the attention's scratch, for decoding.
static void gpt2_create(GPT2 *model, const GPT2Config *config, const Attention *attention,
                        const AttentionConfig *attention_config, float dropout_share, uint64_t seed, int trains) {
    *model = (GPT2){.config = *config,
                    .attention = attention,
                    .attention_config = *attention_config,
                    .dropout = dropout_share,
                    .seed = seed,
                    .trains = trains,
                    .weight_arena = {.what = "weights"},
                    .gradient_arena = {.what = "gradients"},
                    .moment_arena = {.what = "AdamW moments"},
                    .constant_arena = {.what = "attention constants"},
                    .activation_arena = {.what = "activations"},
                    .scratch_arena = {.what = "scratch"}};
    size_t N = (size_t)attention_config->B * (size_t)attention_config->T, constant_count;
    AttentionConstant list[ATTENTION_CONSTANTS_MAX];
    attention_constants(attention, attention_config, list, &constant_count);
    plan_parameters(model);
    arena_plan(&model->scratch_arena, &model->attention_work, attention->work_size(attention_config));
    if (trains) plan_activations(model), plan_scratch(model);
    model->constants = memory_allocate_zeroed((size_t)config->L, sizeof(real *), "the list of constants");
    for (int l = 0; l < config->L; l++) arena_plan(&model->constant_arena, &model->constants[l], constant_count);
    model->losses = memory_allocate(N, sizeof(double), "the losses");
    arena_allocate(&model->weight_arena);
    arena_allocate(&model->constant_arena);
    arena_allocate(&model->activation_arena);
    arena_allocate(&model->scratch_arena);
    if (trains) arena_allocate(&model->gradient_arena), arena_allocate(&model->moment_arena);
    for (int i = 0; i < model->parameter_count; i++) {
        Parameter *p = &model->parameters[i];
        p->value = *p->value_slot;
        p->gradient = trains ? *p->gradient_slot : NULL;
        if (trains) memset(p->m, 0, p->count * sizeof(real)), memset(p->v, 0, p->count * sizeof(real));
    }
}

static void gpt2_free(GPT2 *model) {
    arena_free(&model->weight_arena), arena_free(&model->gradient_arena), arena_free(&model->moment_arena);
    arena_free(&model->constant_arena), arena_free(&model->activation_arena), arena_free(&model->scratch_arena);
    free(model->parameters), free(model->weights.layers), free(model->dweights.layers), free(model->acts.layers);
    free(model->constants), free(model->losses);
}

// GPT-2's initialisation: N(0, std) with std 0.02, the projections into the residual stream smaller by sqrt(2L), biases 0, LayerNorm
// weights 1. Each tensor has a random stream of its own, so that models that differ only in their attention start equal.
static void gpt2_initialize(GPT2 *model, double std) {
    for (int i = 0; i < model->parameter_count; i++) {
        Parameter *p = &model->parameters[i];
        int is_residual = strstr(p->name, "c_proj.weight") != NULL;
        double scale = is_residual ? std / sqrt(2.0 * model->config.L) : std;
        if (p->rank == 2)
            random_fill_normal(p->value, p->count, random_key(model->seed, p->name, 0), scale);
        else
            for (size_t j = 0; j < p->count; j++) p->value[j] = strstr(p->name, ".weight") ? 1 : 0;
    }
    if (!model->attention->draw) return;
    for (int l = 0; l < model->config.L; l++) model->attention->draw(model->constants[l], l, &model->attention_config);
}

static uint64_t dropout_key(const GPT2 *model, int site) { // site 0: the embeddings; l + 1: layer l's attention output
    return random_key(model->seed, "dropout", (uint64_t)model->step * (uint64_t)(model->config.L + 1) + (uint64_t)site);
}

static AttentionConfig attention_config_now(const GPT2 *model) {
    AttentionConfig config = model->attention_config;
    config.B = model->B, config.T = model->T;
    return config;
}

// x (N,C) -> a->residual_out (N,C); what backward needs stays in `a`.
static void layer_forward(GPT2 *model, int l, const real *x, float dropout_share) {
    const LayerWeights *w = &model->weights.layers[l];
    LayerActivations *a = &model->acts.layers[l];
    AttentionConfig config = attention_config_now(model);
    int N = model->B * model->T, C = model->config.C;
    layernorm_forward(a->ln1, a->ln1_mean, a->ln1_rstd, x, w->ln1_weight, w->ln1_bias, N, C);
    linear_forward(a->qkv, NULL, a->ln1, w->qkv_weight, w->qkv_bias, N, C, 3 * C);
    model->attention->forward(a->attention_out, a->attention_saved, a->qkv, model->constants[l], model->attention_work,
                              &config);
    if (dropout_share == 0) {
        linear_forward(a->residual_mid, x, a->attention_out, w->proj_weight, w->proj_bias, N, C, C);
    } else {
        linear_forward(a->residual_mid, NULL, a->attention_out, w->proj_weight, w->proj_bias, N, C, C);
        dropout(a->residual_mid, (size_t)N, (size_t)C, (size_t)model->first_row * (size_t)model->T, dropout_share,
                dropout_key(model, l + 1));
#pragma omp parallel for simd schedule(static)
        for (size_t i = 0; i < (size_t)N * (size_t)C; i++) a->residual_mid[i] += x[i];
    }
    layernorm_forward(a->ln2, a->ln2_mean, a->ln2_rstd, a->residual_mid, w->ln2_weight, w->ln2_bias, N, C);
    linear_forward(a->fc, NULL, a->ln2, w->fc_weight, w->fc_bias, N, C, 4 * C);
    gelu_forward(a->fc_gelu, a->fc, (size_t)N * 4 * (size_t)C);
    linear_forward(a->residual_out, a->residual_mid, a->fc_gelu, w->fcproj_weight, w->fcproj_bias, N, 4 * C, C);
}

// inputs (B,T) -> acts.lnf (B*T,C). `training` turns dropout on.
static void gpt2_hidden(GPT2 *model, const int *inputs, int B, int T, int training) {
    Activations *acts = &model->acts;
    int N = B * T, C = model->config.C;
    float dropout_share = training ? model->dropout : 0;
    model->B = B, model->T = T, model->inputs = inputs;
    embedding_forward(acts->embedded, inputs, model->weights.wte, model->weights.wpe, N, T, C);
    dropout(acts->embedded, (size_t)N, (size_t)C, (size_t)model->first_row * (size_t)T, dropout_share,
            dropout_key(model, 0));
    const real *x = acts->embedded;
    for (int l = 0; l < model->config.L; l++) {
        layer_forward(model, l, x, dropout_share);
        x = acts->layers[l].residual_out;
    }
    layernorm_forward(acts->lnf, acts->lnf_mean, acts->lnf_rstd, x, model->weights.lnf_weight, model->weights.lnf_bias,
                      N, C);
}

static double sum_losses(const double *losses, int N) {
    double sum = 0;
    for (int n = 0; n < N; n++) sum += losses[n];
    return sum;
}

// The sum of the losses over all targets (B,T) that are not negative, in nats.
static double gpt2_evaluate(GPT2 *model, const int *inputs, const int *targets, int B, int T) {
    gpt2_hidden(model, inputs, B, T, 0);
    head_forward_backward(model->losses, NULL, NULL, model->acts.lnf, model->weights.wte, targets, 0, B * T,
                          model->config.C, model->config.V, 0, model->head_work);
    return sum_losses(model->losses, B * T);
}

// Forward pass with the head's part of backward in it: leaves the gradient of scale * (sum of losses) with respect to the
// last hidden state in back.dhidden and the head's share of dwte. Returns the sum of the losses.
static double gpt2_forward(GPT2 *model, const int *inputs, const int *targets, int B, int T, real scale, real beta) {
    gpt2_hidden(model, inputs, B, T, 1);
    head_forward_backward(model->losses, model->back.dhidden, model->dweights.wte, model->acts.lnf, model->weights.wte,
                          targets, scale, B * T, model->config.C, model->config.V, beta, model->head_work);
    return sum_losses(model->losses, B * T);
}

// back.dresidual (N,C): the gradient at the layer's output becomes the gradient at its input x.
static void layer_backward(GPT2 *model, int l, const real *x, real beta) {
    const LayerWeights *w = &model->weights.layers[l];
    LayerWeights *dw = &model->dweights.layers[l];
    LayerActivations *a = &model->acts.layers[l];
    BackwardScratch *s = &model->back;
    AttentionConfig config = attention_config_now(model);
    int N = model->B * model->T, C = model->config.C;
    linear_backward(s->dwide, dw->fcproj_weight, dw->fcproj_bias, s->dresidual, a->fc_gelu, w->fcproj_weight, N, 4 * C,
                    C, beta);
    gelu_backward(s->dwide, a->fc, (size_t)N * 4 * (size_t)C);
    linear_backward(s->dhidden, dw->fc_weight, dw->fc_bias, s->dwide, a->ln2, w->fc_weight, N, C, 4 * C, beta);
    layernorm_backward(s->dresidual, dw->ln2_weight, dw->ln2_bias, s->dhidden, a->residual_mid, a->ln2_mean,
                       a->ln2_rstd, w->ln2_weight, N, C, beta, model->layernorm_work);
    const real *dbranch = s->dresidual;
    if (model->dropout > 0) {
        memcpy(s->dbranch, s->dresidual, (size_t)N * (size_t)C * sizeof(real));
        dropout(s->dbranch, (size_t)N, (size_t)C, (size_t)model->first_row * (size_t)model->T, model->dropout,
                dropout_key(model, l + 1));
        dbranch = s->dbranch;
    }
    linear_backward(s->dhidden, dw->proj_weight, dw->proj_bias, dbranch, a->attention_out, w->proj_weight, N, C, C,
                    beta);
    model->attention->backward(s->dwide, s->dhidden, a->qkv, a->attention_out, a->attention_saved, model->constants[l],
                               model->attention_work, &config);
    linear_backward(s->dhidden, dw->qkv_weight, dw->qkv_bias, s->dwide, a->ln1, w->qkv_weight, N, C, 3 * C, beta);
    layernorm_backward(s->dresidual, dw->ln1_weight, dw->ln1_bias, s->dhidden, x, a->ln1_mean, a->ln1_rstd,
                       w->ln1_weight, N, C, beta, model->layernorm_work);
}

// After gpt2_forward: the gradients of all weights. beta 0 overwrites them, beta 1 adds to them.
static void gpt2_backward(GPT2 *model, real beta) {
    Activations *acts = &model->acts;
    int N = model->B * model->T, C = model->config.C, L = model->config.L;
    memset(model->back.dresidual, 0, (size_t)N * (size_t)C * sizeof(real));
    if (beta == 0) memset(model->dweights.wpe, 0, (size_t)model->config.max_T * (size_t)C * sizeof(real));
    layernorm_backward(model->back.dresidual, model->dweights.lnf_weight, model->dweights.lnf_bias, model->back.dhidden,
                       L > 0 ? acts->layers[L - 1].residual_out : acts->embedded, acts->lnf_mean, acts->lnf_rstd,
                       model->weights.lnf_weight, N, C, beta, model->layernorm_work);
    for (int l = L - 1; l >= 0; l--)
        layer_backward(model, l, l > 0 ? acts->layers[l - 1].residual_out : acts->embedded, beta);
    dropout(model->back.dresidual, (size_t)N, (size_t)C, (size_t)model->first_row * (size_t)model->T, model->dropout,
            dropout_key(model, 0));
    embedding_backward(model->dweights.wte, model->dweights.wpe, model->back.dresidual, model->inputs, N, model->T, C);
}

// Floating-point operations of a training step per token: two for each weight and product in forward, twice that in
// backward; the attention by its own count. The head counts, the embedding look-up does not.
static double gpt2_flops_per_token(const GPT2 *model) {
    double C = model->config.C, matrices = model->config.L * 12.0 * C * C + (double)model->config.V * C;
    return 6 * matrices + 3 * model->config.L * model->attention->flops(&model->attention_config);
}

// ---------------------------------------------------------------------------------------------------------------------
// The optimiser

enum { NORM_BLOCK = 1 << 16 };

static double sum_squares(const real *x, size_t count) {
    size_t blocks = (count + NORM_BLOCK - 1) / NORM_BLOCK;
    double *partial = memory_allocate(blocks, sizeof(double), "the norm"), sum = 0;
#pragma omp parallel for schedule(static)
    for (size_t b = 0; b < blocks; b++) {
        size_t end = (b + 1) * NORM_BLOCK < count ? (b + 1) * NORM_BLOCK : count;
        double squares = 0;
#pragma omp simd reduction(+ : squares)
        for (size_t i = b * NORM_BLOCK; i < end; i++) squares += (double)x[i] * (double)x[i];
        partial[b] = squares;
    }
    for (size_t b = 0; b < blocks; b++) sum += partial[b];
    free(partial);
    return sum;
}

// The global norm of all gradients. When it is not finite, *bad is the first parameter whose gradient is not.
static double gpt2_gradient_norm(const GPT2 *model, const Parameter **bad) {
    double total = 0;
    *bad = NULL;
    for (int i = 0; i < model->parameter_count; i++) {
        double squares = sum_squares(model->parameters[i].gradient, model->parameters[i].count);
        if (!isfinite(squares) && !*bad) *bad = &model->parameters[i];
        total += squares;
    }
    return sqrt(total);
}

// AdamW in one pass over weight, gradient and moments, the clip factor folded in; decay on matrices only.
static void gpt2_update(GPT2 *model, const Settings *settings, double rate, double gradient_scale) {
    int64_t t = ++model->step;
    const real beta1 = settings->beta1, beta2 = settings->beta2, eps = settings->adam_eps,
               g_scale = (real)gradient_scale;
    const real step_size = (real)(rate / (1 - pow(settings->beta1, (double)t)));
    const real v_scale = (real)(1 / (1 - pow(settings->beta2, (double)t)));
    for (int i = 0; i < model->parameter_count; i++) {
        Parameter *p = &model->parameters[i];
        real *value = p->value, *m = p->m, *v = p->v;
        const real *gradient = p->gradient, keep = p->rank == 2 ? (real)(1 - rate * settings->weight_decay) : 1;
#pragma omp parallel for simd schedule(static)
        for (size_t j = 0; j < p->count; j++) {
            real g = gradient[j] * g_scale;
            m[j] = beta1 * m[j] + (1 - beta1) * g;
            v[j] = beta2 * v[j] + (1 - beta2) * g * g;
            value[j] = value[j] * keep - step_size * m[j] / (real_sqrt(v[j] * v_scale) + eps);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Files: a model as named tensors, read from checkpoints, Hugging Face directories and llm.c's files

enum { MODEL_WEIGHTS = 1, MODEL_CONSTANTS = 2 };

// The model's tensors under the names of the file; free() the list. `names` receives the memory of the constants' names.
static int gpt2_tensors(const GPT2 *model, int which, Tensor **tensors, char (**names)[64]) {
    AttentionConstant constants[ATTENTION_CONSTANTS_MAX];
    size_t total;
    int per_layer = attention_constants(model->attention, &model->attention_config, constants, &total), count = 0;
    size_t most = (size_t)model->parameter_count + (size_t)(per_layer * model->config.L);
    Tensor *list = memory_allocate_zeroed(most, sizeof *list, "the list of tensors");
    *names = memory_allocate(most, sizeof **names, "the names of tensors");
    for (int i = 0; (which & MODEL_WEIGHTS) && i < model->parameter_count; i++) {
        const Parameter *p = &model->parameters[i];
        list[count++] = (Tensor){p->name, DTYPE_F32, p->rank, {p->shape[0], p->shape[1]}, p->value};
    }
    for (int l = 0; (which & MODEL_CONSTANTS) && l < model->config.L; l++) {
        for (int i = 0; i < per_layer; i++) {
            Tensor *tensor = &list[count];
            snprintf((*names)[count], sizeof **names, "transformer.h.%d.attn.%s", l, constants[i].name);
            *tensor =
                (Tensor){(*names)[count], DTYPE_F32, constants[i].rank, {0}, model->constants[l] + constants[i].offset};
            for (int r = 0; r < constants[i].rank; r++) tensor->shape[r] = constants[i].shape[r];
            count++;
        }
    }
    *tensors = list;
    return count;
}

// AdamW's moments: NAME.m and NAME.v.
static int gpt2_optimizer_tensors(const GPT2 *model, Tensor **tensors, char (**names)[80]) {
    int count = 0;
    Tensor *list = memory_allocate_zeroed(2 * (size_t)model->parameter_count, sizeof *list, "the list of tensors");
    *names = memory_allocate(2 * (size_t)model->parameter_count, sizeof **names, "the names of tensors");
    for (int i = 0; i < model->parameter_count; i++) {
        const Parameter *p = &model->parameters[i];
        for (int moment = 0; moment < 2; moment++, count++) {
            snprintf((*names)[count], sizeof **names, "%s.%c", p->name, moment ? 'v' : 'm');
            list[count] =
                (Tensor){(*names)[count], DTYPE_F32, p->rank, {p->shape[0], p->shape[1]}, moment ? p->v : p->m};
        }
    }
    *tensors = list;
    return count;
}

static int gpt2_read_checkpoint(GPT2 *model, const Checkpoint *checkpoint, int which, Error *error) {
    Tensor *tensors;
    char(*names)[64];
    int count = gpt2_tensors(model, which, &tensors, &names);
    int result = checkpoint_read_model(checkpoint, tensors, count, error);
    free(tensors), free(names);
    return result;
}

static int gpt2_read_optimizer(GPT2 *model, const Checkpoint *checkpoint, Error *error) {
    Tensor *tensors;
    char(*names)[80];
    int count = gpt2_optimizer_tensors(model, &tensors, &names);
    int result = checkpoint_read_optimizer(checkpoint, tensors, count, error);
    free(tensors), free(names);
    return result;
}

static int gpt2_read_llmc(GPT2 *model, const LlmcModel *file, Error *error) {
    Tensor *tensors;
    char(*names)[64];
    int count = gpt2_tensors(model, MODEL_WEIGHTS, &tensors, &names);
    int result = llmc_model_read(file, tensors, count, error);
    free(tensors), free(names);
    return result;
}

static int gpt2_save(const GPT2 *model, const char *run, const json_t *state, const char *tokenizer_path,
                     Error *error) {
    Tensor *tensors, *moments;
    char(*names)[64], (*moment_names)[80];
    json_t *attention = attention_to_json(model->attention, &model->attention_config);
    json_t *config = gpt2_config_to_json(&model->config, attention);
    CheckpointContents contents = {.config = config, .state = state, .tokenizer_path = tokenizer_path};
    contents.model_count = gpt2_tensors(model, MODEL_WEIGHTS | MODEL_CONSTANTS, &tensors, &names);
    contents.optimizer_count = gpt2_optimizer_tensors(model, &moments, &moment_names);
    contents.model = tensors, contents.optimizer = moments;
    int result = checkpoint_save(run, model->step, &contents, error);
    free(tensors), free(names), free(moments), free(moment_names);
    json_decref(attention), json_decref(config);
    return result;
}

#ifndef GPT2_MODEL_ONLY // sample_gpt2.c and test_gpt2.c take what is above
// ---------------------------------------------------------------------------------------------------------------------
// The training loop

enum { CALIBRATION_STEPS = 6 }; // --seconds: steps that are timed before their number is first estimated

typedef struct {
    Settings settings;
    Options options;
    GPT2 model;
    DataLoader *train, *val;
    int *token_bytes;      // (V) bytes of each token's text; NULL without a vocabulary
    int *inputs, *targets; // (micro_batch,T)
    Run run;
    double machine_gflops;
    double start, elapsed_before; // clock at the start; seconds of the run before it was resumed
    int64_t tokens;               // seen so far
    double val_loss, val_seconds; // of the last validation
    double step_seconds;          // smoothed
    double training_seconds;      // in steps, since the start
    int settled;                  // --seconds: the number of steps is final
} Trainer;

// ---- starting

// The vocabulary's size, and how many bytes each token stands for.
static int load_vocabulary(Trainer *trainer, Error *error) {
    Settings *settings = &trainer->settings;
    Tokenizer *tokenizer;
    if (!settings->tokenizer) return 0;
    if (tokenizer_load(&tokenizer, settings->tokenizer, settings->model.V, error)) return -1;
    int V = tokenizer_vocab_size(tokenizer), failed = settings->model.V && settings->model.V != V;
    if (failed)
        error_set(error, "%.700s: expected a vocabulary of %d tokens for this model, found %d", settings->tokenizer,
                  settings->model.V, V);
    settings->model.V = V;
    trainer->token_bytes = memory_allocate((size_t)V, sizeof(int), "the tokens' lengths");
    for (int id = 0; id < V; id++) {
        size_t bytes;
        tokenizer_token(tokenizer, (uint32_t)id, &bytes);
        trainer->token_bytes[id] = (int)bytes;
    }
    tokenizer_free(tokenizer);
    return failed ? -1 : 0;
}

static int open_data(Trainer *trainer, Error *error) {
    const Settings *settings = &trainer->settings;
    if (!settings->train) return error_set(error, "no training data: give --train SHARDS (make quickstart makes some)");
    DataLoaderConfig config = {.pattern = settings->train,
                               .T = settings->T,
                               .vocab = settings->model.V,
                               .shuffle = settings->shuffle,
                               .documents = settings->documents,
                               .seed = random_key((uint64_t)settings->seed, "data order", 0),
                               .least_rows = 1};
    if (dataloader_open(&trainer->train, &config, error)) return -1;
    if (!settings->val) return 0;
    DataLoaderConfig val = {.pattern = settings->val,
                            .T = settings->T,
                            .vocab = settings->model.V,
                            .whole = 1,
                            .documents = settings->documents,
                            .limit = settings->val_tokens};
    if (dataloader_open(&trainer->val, &val, error)) return -1;
    int shared = dataloader_shared_shards(trainer->train, trainer->val);
    if (shared) warn("%d of the validation shards are training shards too; the validation loss will flatter", shared);
    return 0;
}

static void create_model(Trainer *trainer, const Attention *attention) {
    const Settings *settings = &trainer->settings;
    size_t N = (size_t)settings->micro_batch * (size_t)settings->T;
    gpt2_create(&trainer->model, &settings->model, attention, &settings->attention_config, settings->dropout,
                (uint64_t)settings->seed, 1);
    trainer->inputs = memory_allocate(N, sizeof(int), "the inputs");
    trainer->targets = memory_allocate(N, sizeof(int), "the targets");
}

static int start_fresh(Trainer *trainer, const Attention **attention, Error *error) {
    if (load_vocabulary(trainer, error)) return -1;
    if (settings_finish(&trainer->settings, &trainer->options, attention, NULL, error)) return -1;
    if (open_data(trainer, error)) return -1;
    create_model(trainer, *attention);
    gpt2_initialize(&trainer->model, trainer->settings.init_std);
    return 0;
}

// Weights of a Hugging Face directory or of one of our checkpoints; its attention is taken over unless another is asked
// for.
static int start_from_checkpoint(Trainer *trainer, const Attention **attention, Error *error) {
    Settings *settings = &trainer->settings;
    Checkpoint checkpoint;
    GPT2Config config;
    if (checkpoint_open_newest(&checkpoint, settings->init, error)) return -1;
    const json_t *saved = gpt2_config_attention(checkpoint.config);
    if (options_find(&trainer->options, "attention")->given) saved = NULL;
    int failed = gpt2_config_from_json(&config, checkpoint.config, settings->init, error) ||
                 gpt2_config_agrees(&settings->model, &config, settings->init, error);
    settings->model = config;
    failed = failed || load_vocabulary(trainer, error) ||
             settings_finish(settings, &trainer->options, attention, saved, error) || open_data(trainer, error);
    if (!failed) {
        create_model(trainer, *attention);
        gpt2_initialize(&trainer->model, trainer->settings.init_std); // draws the constants that the file may lack
        failed =
            gpt2_read_checkpoint(&trainer->model, &checkpoint, MODEL_WEIGHTS | (saved ? MODEL_CONSTANTS : 0), error);
    }
    checkpoint_close(&checkpoint);
    return failed ? -1 : 0;
}

static int start_from_llmc(Trainer *trainer, const Attention **attention, Error *error) {
    Settings *settings = &trainer->settings;
    LlmcModel file;
    if (llmc_model_open(&file, settings->init, error)) return -1;
    int failed = gpt2_config_agrees(&settings->model, &file.config, settings->init, error);
    settings->model = file.config;
    failed = failed || load_vocabulary(trainer, error) ||
             settings_finish(settings, &trainer->options, attention, NULL, error) || open_data(trainer, error);
    if (!failed) {
        create_model(trainer, *attention);
        gpt2_initialize(&trainer->model, trainer->settings.init_std);
        failed = gpt2_read_llmc(&trainer->model, &file, error);
    }
    llmc_model_close(&file);
    return failed ? -1 : 0;
}

// What the state file says of the run so far.
static int read_state(Trainer *trainer, const json_t *state, const char *path, Error *error) {
    const json_t *step = json_object_get(state, "step"), *tokens = json_object_get(state, "tokens");
    if (!json_is_integer(step) || json_integer_value(step) < 0 || !json_is_integer(tokens))
        return error_set(error, "%.700s/state.json: expected the numbers \"step\" and \"tokens\", found none", path);
    trainer->model.step = json_integer_value(step);
    trainer->tokens = json_integer_value(tokens);
    trainer->elapsed_before = json_number_value(json_object_get(state, "seconds"));
    return dataloader_from_json(trainer->train, json_object_get(state, "loader"), trainer->settings.force, error);
}

static int start_from_run(Trainer *trainer, const Attention **attention, Error *error) {
    Settings *settings = &trainer->settings;
    Checkpoint checkpoint;
    if (checkpoint_open_newest(&checkpoint, settings->resume, error)) return -1;
    const json_t *saved_attention = gpt2_config_attention(checkpoint.config);
    json_t *softmax = json_pack("{s:s}", "name", "softmax");
    if (!saved_attention) saved_attention = softmax;
    int failed = 0, was_timed = options_find(&trainer->options, "seconds")->given;
    if (!checkpoint.state || !checkpoint.has_optimizer)
        failed =
            error_set(error, "%.700s: expected a checkpoint with optimizer and state, found weights alone; use --init",
                      checkpoint.path);
    failed = failed ||
             settings_resume(&trainer->options, json_object_get(checkpoint.state, "options"), saved_attention,
                             settings->force, error) ||
             load_vocabulary(trainer, error) ||
             settings_finish(settings, &trainer->options, attention, saved_attention, error) ||
             open_data(trainer, error);
    if (!was_timed) settings->seconds = 0; // the number of steps was settled when the run began
    threads_use(settings->threads);        // as many as before, for the same bits
    if (!failed) {
        create_model(trainer, *attention);
        failed = gpt2_read_checkpoint(&trainer->model, &checkpoint, MODEL_WEIGHTS | MODEL_CONSTANTS, error) ||
                 gpt2_read_optimizer(&trainer->model, &checkpoint, error) ||
                 read_state(trainer, checkpoint.state, checkpoint.path, error);
    }
    json_decref(softmax);
    checkpoint_close(&checkpoint);
    return failed ? -1 : 0;
}

static int start(Trainer *trainer, Error *error) {
    Settings *settings = &trainer->settings;
    const Attention *attention = NULL;
    if (settings->resume && settings->init) return error_set(error, "options --resume and --init exclude each other");
    if (settings->resume && !file_is_directory(settings->resume))
        return error_set(error, "%.700s: expected a run to resume, found no such directory", settings->resume);
    if (settings->resume && !options_find(&trainer->options, "out")->given)
        settings->out = run_of_checkpoint(settings->resume);
    if (run_open(&trainer->run, settings->out, error)) return -1;
    trainer->run.quiet = settings->quiet;
    if (settings->resume) return start_from_run(trainer, &attention, error);
    int64_t *steps;
    int existing = checkpoint_list(&steps, settings->out);
    if (existing) free(steps);
    if (existing)
        return error_set(error, "%.700s: a run is there already; --resume it, choose another --out, or remove it",
                         settings->out);
    if (!settings->init) return start_fresh(trainer, &attention, error);
    if (llmc_model_is(settings->init)) return start_from_llmc(trainer, &attention, error);
    return start_from_checkpoint(trainer, &attention, error);
}

// ---- what the user sees first

static void print_memory(const GPT2 *model) {
    const Arena *arenas[] = {&model->weight_arena,     &model->gradient_arena, &model->moment_arena,
                             &model->activation_arena, &model->scratch_arena,  &model->constant_arena};
    double total = 0;
    printf("%-14s", "memory");
    for (int i = 0; i < 6; i++) {
        double megabytes = (double)arena_bytes(arenas[i]) / 1e6;
        total += megabytes;
        if (megabytes > 0) printf("%s %.1f MB, ", arenas[i]->what, megabytes);
    }
    printf("in all %.1f MB\n", total);
}

static void print_start(const Trainer *trainer, const json_t *machine) {
    const GPT2 *model = &trainer->model;
    json_t *attention = attention_to_json(model->attention, &model->attention_config);
    settings_print(&trainer->options, attention, stdout);
    json_decref(attention);
    printf("%-14s%llu, %.1f MFLOP per token and step\n", "parameters",
           (unsigned long long)gpt2_config_parameters(&model->config), gpt2_flops_per_token(model) / 1e6);
    print_memory(model);
    printf("%-14s%lld tokens in %d shards, %lld rows of %d\n", "training data",
           (long long)dataloader_tokens(trainer->train), dataloader_shards(trainer->train),
           (long long)dataloader_rows(trainer->train), trainer->settings.T);
    if (trainer->val)
        printf("%-14s%lld tokens, the same every time\n", "validation", (long long)dataloader_targets(trainer->val));
    printf("%-14s%s, %d threads, %s, %.0f GFLOP/s\n", "machine",
           json_string_value(json_object_get(machine, "processor")), omp_get_max_threads(),
           json_string_value(json_object_get(machine, "blas")), trainer->machine_gflops);
    if (model->step) printf("%-14sat step %lld\n", "continues", (long long)model->step);
    printf("\n");
    fflush(stdout);
}

static int open_metrics(Trainer *trainer, Error *error) {
    const GPT2 *model = &trainer->model;
    json_t *machine = run_machine();
    trainer->machine_gflops = matmul_measure_gflops();
    json_object_set_new(machine, "gflops", json_real(trainer->machine_gflops));
    if (!trainer->settings.quiet) print_start(trainer, machine);
    json_t *attention = attention_to_json(model->attention, &model->attention_config);
    json_t *line = json_pack("{s:s, s:o, s:o, s:o, s:I, s:o}", "type", "configuration", "options",
                             settings_to_json(&trainer->options), "attention", attention, "model",
                             gpt2_config_to_json(&model->config, attention), "parameters",
                             (json_int_t)gpt2_config_parameters(&model->config), "machine", machine);
    int result = run_open_metrics(&trainer->run, line, model->step, error);
    json_decref(line);
    return result;
}

// ---- one step

typedef struct {
    double loss, norm, rate;
    int rows;
    const char *trouble; // NULL, or what was not finite
} StepResult;

static int all_finite(const real *x, size_t count) {
    return isfinite(sum_squares(x, count));
}

// Where the numbers went bad first: walks the last forward pass in its order, then the gradients.
static const char *find_trouble(GPT2 *model, const Parameter *bad_gradient) {
    static char text[128];
    size_t count = (size_t)(model->B * model->T) * (size_t)model->config.C;
    if (!all_finite(model->acts.embedded, count)) return "the embeddings";
    for (int l = 0; l < model->config.L; l++) {
        const LayerActivations *a = &model->acts.layers[l];
        const struct {
            const char *name;
            const real *values;
            size_t count;
        } tensors[] = {{"qkv", a->qkv, 3 * count},
                       {"attention output", a->attention_out, count},
                       {"attention projection", a->residual_mid, count},
                       {"MLP", a->fc, 4 * count},
                       {"output", a->residual_out, count}};
        for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
            if (all_finite(tensors[i].values, tensors[i].count)) continue;
            snprintf(text, sizeof text, "layer %d's %s", l, tensors[i].name);
            return text;
        }
    }
    if (bad_gradient) snprintf(text, sizeof text, "the gradient of %s", bad_gradient->name);
    return bad_gradient ? text : "the head";
}

// Gradients of one step's batch, accumulated over micro-batches of at most micro_batch rows.
static int accumulate_gradients(Trainer *trainer, int rows, double *loss, Error *error) {
    const Settings *settings = &trainer->settings;
    GPT2 *model = &trainer->model;
    double scale = 1.0 / ((double)rows * settings->T), sum = 0;
    for (int first = 0; first < rows; first += settings->micro_batch) {
        int B = rows - first < settings->micro_batch ? rows - first : settings->micro_batch;
        if (dataloader_rows_at(trainer->train, first, B, trainer->inputs, trainer->targets, error)) return -1;
        real beta = first == 0 ? 0 : 1;
        model->first_row = first;
        sum += gpt2_forward(model, trainer->inputs, trainer->targets, B, settings->T, (real)scale, beta);
        gpt2_backward(model, beta);
    }
    *loss = sum * scale;
    return 0;
}

static int train_step(Trainer *trainer, StepResult *result, Error *error) {
    const Settings *settings = &trainer->settings;
    GPT2 *model = &trainer->model;
    const Parameter *bad_gradient;
    *result = (StepResult){.rate = schedule_rate(&settings->schedule, model->step)};
    result->rows = schedule_batch(settings->batch_start, settings->batch, settings->batch_ramp, model->step);
    if (accumulate_gradients(trainer, result->rows, &result->loss, error)) return -1;
    result->norm = gpt2_gradient_norm(model, &bad_gradient);
    dataloader_advance(trainer->train, result->rows);
    trainer->tokens += (int64_t)result->rows * settings->T;
    if (!isfinite(result->loss) || !isfinite(result->norm)) { // never reaches the weights
        result->trouble = find_trouble(model, bad_gradient);
        model->step++;
        return 0;
    }
    double clip = settings->clip > 0 && result->norm > settings->clip ? settings->clip / result->norm : 1;
    gpt2_update(model, settings, result->rate, clip);
    return 0;
}

// ---- validation and checkpoints

// The mean loss over the fixed validation set; every token counts the same.
static int validate(Trainer *trainer, Error *error) {
    GPT2 *model = &trainer->model;
    const Settings *settings = &trainer->settings;
    double sum = 0, bytes = 0, start_time = clock_seconds();
    int64_t rows = dataloader_rows(trainer->val), tokens = 0;
    for (int64_t first = 0; first < rows; first += settings->micro_batch) {
        int B = rows - first < settings->micro_batch ? (int)(rows - first) : settings->micro_batch;
        if (dataloader_rows_at(trainer->val, first, B, trainer->inputs, trainer->targets, error)) return -1;
        sum += gpt2_evaluate(model, trainer->inputs, trainer->targets, B, settings->T);
        for (size_t n = 0; n < (size_t)B * (size_t)settings->T; n++) {
            if (trainer->targets[n] < 0) continue;
            tokens++;
            if (trainer->token_bytes) bytes += trainer->token_bytes[trainer->targets[n]];
        }
    }
    ValidationReport report = {.step = model->step, .tokens = tokens, .loss = sum / (double)tokens};
    if (bytes > 0) report.bits_per_byte = sum / 0.6931471805599453 / bytes;
    trainer->val_loss = report.loss;
    trainer->val_seconds = clock_seconds() - start_time;
    run_report_validation(&trainer->run, &report);
    return 0;
}

static double elapsed(const Trainer *trainer) {
    return trainer->elapsed_before + clock_seconds() - trainer->start;
}

static int save(Trainer *trainer, Error *error) {
    const Settings *settings = &trainer->settings;
    json_t *state = json_pack("{s:I, s:I, s:f, s:o, s:o}", "step", (json_int_t)trainer->model.step, "tokens",
                              (json_int_t)trainer->tokens, "seconds", elapsed(trainer), "loader",
                              dataloader_to_json(trainer->train), "options", settings_to_json(&trainer->options));
    if (trainer->val_loss > 0) json_object_set_new(state, "validation_loss", json_real(trainer->val_loss));
    int result = gpt2_save(&trainer->model, settings->out, state, settings->tokenizer, error);
    json_decref(state);
    if (result) return -1;
    char text[1200];
    snprintf(text, sizeof text, "saved %.900s/step_%08lld", settings->out, (long long)trainer->model.step);
    run_report_event(&trainer->run, trainer->model.step, "saved", text);
    return checkpoint_prune(settings->out, settings->keep_last, settings->keep_every, error);
}

// ---- the loop

static int is_due(int64_t step, int64_t every, int64_t last) {
    return step == last || (every > 0 && step % every == 0);
}

// --seconds: estimates the number of steps from the time of those so far, until half the time is over; then it stays.
static void settle_steps(Trainer *trainer, int64_t first_step) {
    Settings *settings = &trainer->settings;
    int64_t done = trainer->model.step - first_step;
    double spent = clock_seconds() - trainer->start;
    if (settings->seconds <= 0 || done < CALIBRATION_STEPS) return;
    if (trainer->settled || (spent > settings->seconds / 2 && done > CALIBRATION_STEPS)) {
        trainer->settled = 1;
        return;
    }
    double per_step = trainer->training_seconds / (double)done;
    if (trainer->val) { // validating is a forward pass: a third of a training step's work for as many tokens
        double batches = (double)dataloader_targets(trainer->val) / ((double)settings->batch * settings->T);
        double validation = trainer->val_seconds > 0 ? trainer->val_seconds : per_step / 3 * batches;
        spent += validation; // the last one
        if (settings->val_every > 0) per_step += validation / (double)settings->val_every;
    }
    int64_t more = spent < settings->seconds ? (int64_t)((settings->seconds - spent) / per_step) : 0;
    settings->steps = settings->schedule.total = trainer->model.step + (more > 0 ? more : 1);
    if (done == CALIBRATION_STEPS)
        run_print(&trainer->run, "about %lld steps fit into %.0f s", (long long)settings->steps, settings->seconds);
}

static void report_step(Trainer *trainer, const StepResult *result, double seconds) {
    const Settings *settings = &trainer->settings;
    int64_t tokens = (int64_t)result->rows * settings->T;
    double smoothing = trainer->step_seconds > 0 ? 0.1 : 1;
    trainer->step_seconds += smoothing * (seconds - trainer->step_seconds);
    trainer->training_seconds += seconds;
    StepReport report = {.step = trainer->model.step,
                         .steps = settings->steps,
                         .tokens = trainer->tokens,
                         .batch_tokens = tokens,
                         .loss = result->loss,
                         .norm = result->norm,
                         .rate = result->rate,
                         .seconds = seconds,
                         .elapsed = elapsed(trainer),
                         .remaining = (double)(settings->steps - trainer->model.step) * trainer->step_seconds,
                         .gflops = gpt2_flops_per_token(&trainer->model) * (double)tokens / seconds / 1e9,
                         .machine_gflops = trainer->machine_gflops};
    run_report_step(&trainer->run, &report);
}

// A loss or gradient that is not finite: the weights are untouched. `stop` ends the run, `skip` goes on without the step.
static int handle_trouble(Trainer *trainer, const StepResult *result, Error *error) {
    char text[256];
    snprintf(text, sizeof text, "step %lld: %s is not finite (loss %g, gradient norm %g)",
             (long long)trainer->model.step, result->trouble, result->loss, result->norm);
    if (trainer->settings.on_nan == ON_NAN_STOP)
        return error_set(error, "%s; the weights are as they were before; lower --lr or set --clip, or --on-nan skip",
                         text);
    run_report_event(&trainer->run, trainer->model.step, "skipped", text);
    return 0;
}

static int train(Trainer *trainer, Error *error) {
    Settings *settings = &trainer->settings;
    GPT2 *model = &trainer->model;
    int64_t first_step = model->step, saved = -1;
    trainer->start = clock_seconds();
    if (model->step >= settings->steps && trainer->val) return validate(trainer, error); // nothing left but to look
    while (model->step < settings->steps && !run_signal()) {
        StepResult result;
        double step_start = clock_seconds();
        if (train_step(trainer, &result, error)) return -1;
        if (result.trouble && handle_trouble(trainer, &result, error)) return -1;
        if (!result.trouble) report_step(trainer, &result, clock_seconds() - step_start);
        settle_steps(trainer, first_step);
        if (trainer->val && is_due(model->step, settings->val_every, settings->steps) && validate(trainer, error))
            return -1;
        if (is_due(model->step, settings->save_every, settings->steps)) {
            if (save(trainer, error)) return -1;
            saved = model->step;
        }
    }
    if (saved != model->step && model->step > first_step) return save(trainer, error);
    return 0;
}

static void list_attentions(void) {
    for (int i = 0; attention_registry[i]; i++)
        printf("%-14s %s\n", attention_registry[i]->name, attention_registry[i]->summary);
}

int main(int argc, char **argv) {
    static Trainer trainer;
    Error error;
    threads_wait_politely(argv);
    error_set_program(argv[0]);
    trainer.settings = settings_default();
    settings_options(&trainer.options, &trainer.settings);
    die_if(options_parse(&trainer.options, argc, argv, NULL, 0, NULL, &error), &error);
    if (!strcmp(trainer.settings.attention, "list")) return list_attentions(), 0;
    trainer.settings.threads = threads_use(trainer.settings.threads);
    run_catch_signals();
    die_if(start(&trainer, &error), &error);
    die_if(open_metrics(&trainer, &error), &error);
    die_if(train(&trainer, &error), &error);
    char duration[32];
    run_print(&trainer.run, "%s %s/step_%08lld  %s  peak memory %.0f MB",
              run_signal() ? "interrupted, saved:" : "done:", trainer.settings.out, (long long)trainer.model.step,
              duration_text(elapsed(&trainer), duration), (double)memory_peak_bytes() / 1e6);
    run_close(&trainer.run);
    gpt2_free(&trainer.model);
    return run_signal() ? 128 + run_signal() : 0;
}
#endif
