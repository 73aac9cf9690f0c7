/*
The GPU trainer: GPT-2's forward and backward pass, AdamW and the training loop in CUDA, in the order and with the names
of train_gpt2.c.

Layers come first, each one's kernels for forward and backward side by side; then the model that strings them together;
then the optimiser; at the bottom the loop. Conventions: outputs first, then inputs, then sizes; gradients are named `d`
+ the forward name; N = B*T rows. Weights are stored (in, out).

floatX, the type of weights and activations, is float or bf16 (core/gpu/cuda_common.h). Gradients of weights, master
weights, moments, statistics and sums are float or double. All work goes to one stream; the host waits for it once per
step.

The same bits from run to run: no atomics on floating-point numbers; every sum has a fixed order. What changes from
micro-batch to micro-batch reaches the kernels through device memory, so that a captured CUDA graph stays valid.
*/
#include "attention/stack_gpu.h"
#include "core/gpu/adamw_gpu.h"
#include "core/gpu/arena_gpu.h"
#include "core/model/batch_gpu.h"
#include "core/gpu/dropout_gpu.h"
#include "core/gpu/gelu_gpu.h"
#include "core/gpu/gpu_peak.h"
#include "core/gpu/graphs_gpu.h"
#include "core/gpu/kernel_gpu.h"
#include "core/gpu/matmul_gpu.h"
#include "core/ranks/muon_gpu.h"
#include "core/ranks/parallel_nccl.h"
#include "core/ranks/parameters_gpu.h"
#include "core/gpu/profile_gpu.h"
#include "core/gpu/rounding_gpu.h"
#include "core/gpu/sum_rows_gpu.h"
#include "core/gpu/sum_squares_gpu.h"

extern "C" {
#include "core/base/memory.h"
#include "core/base/random.h"
#include "core/base/threads.h"
#include "core/train/trouble.h"
}

#include <float.h>
#include <math.h>

// ---------------------------------------------------------------------------------------------------------------------
// Layers

// ---- embedding

// out (N,C) = wte[token] + wpe[position]; wpe may be NULL, and positions (N) too: then they are those in rows of T
template <int WIDTH>
__global__ void embedding_forward_kernel(floatX *out, const int *tokens, const int *positions, const floatX *wte,
                                         const floatX *wpe, size_t count, int T, int C) {
    size_t stride = (size_t)gridDim.x * BLOCK * WIDTH;
    for (size_t i = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * WIDTH; i < count; i += stride) {
        size_t n = i / (size_t)C, c = i % (size_t)C;
        Floats<WIDTH> token = load<WIDTH>(wte + (size_t)tokens[n] * (size_t)C + c);
        if (wpe) {
            size_t at = positions ? (size_t)positions[n] : n % (size_t)T;
            Floats<WIDTH> position = load<WIDTH>(wpe + at * (size_t)C + c);
            for (int j = 0; j < WIDTH; j++) token.at[j] += position.at[j];
        }
        store(out + i, token);
    }
}

static void embedding_forward(floatX *out, const int *tokens, const int *positions, const floatX *wte,
                              const floatX *wpe, int N, int T, int C, cudaStream_t stream) {
    NamedRange range("embedding forward", WORK_EMBEDDING, stream);
    size_t count = (size_t)N * (size_t)C;
    LAUNCH(embedding_forward_kernel, C, blocks_walking(count), BLOCK, stream, out, tokens, positions, wte, wpe, count,
           T, C);
}

// Adds rows of dout to the rows of dweight, (V,C) or (max_T,C), that `indices` (N), tokens or positions, name. A block
// is a list of rows and a slice of WARP packs of columns; its warps share the rows. There may be more blocks than
// lists: how many different tokens a micro-batch has is known on the device only.
template <int WIDTH>
__global__ void embedding_backward_kernel(float *dweight, const floatX *dout, const int *indices, RowLists lists,
                                          int C) {
    __shared__ Floats<WIDTH> of_warp[WARPS][WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, c = (blockIdx.y * WARP + lane) * WIDTH;
    int list = blockIdx.x;
    if (list < *lists.count) { // the whole block
        int start = lists.starts[list], end = lists.starts[list + 1];
        Floats<WIDTH> sum = {};
        for (int i = start + warp; c < C && i < end; i += WARPS) {
            Floats<WIDTH> row = load<WIDTH>(dout + (size_t)lists.rows[i] * (size_t)C + c);
            for (int j = 0; j < WIDTH; j++) sum.at[j] += row.at[j];
        }
        of_warp[warp][lane] = sum;
        __syncthreads();
        if (warp == 0 && c < C) {
            float *to = dweight + (size_t)indices[lists.rows[start]] * (size_t)C + c;
            Floats<WIDTH> total = load<WIDTH>(to);
            for (int w = 0; w < WARPS; w++)
                for (int j = 0; j < WIDTH; j++) total.at[j] += of_warp[w][lane].at[j];
            store(to, total);
        }
    }
}

// Adds to dwte (V,C), where the head has already put its part, and to dwpe (max_T,C), if there is one.
static void embedding_backward(float *dwte, float *dwpe, const floatX *dout, const int *tokens, const int *positions,
                               int N, int T, int C, int V, RowLists by_token, RowLists by_position,
                               cudaStream_t stream) {
    NamedRange range("embedding backward", WORK_EMBEDDING, stream);
    unsigned slices = blocks_for((size_t)C, (size_t)(WARP * (C % PACK == 0 ? PACK : 1)));
    dim3 token_grid((unsigned)(N < V ? N : V), slices), position_grid((unsigned)T, slices);
    LAUNCH(embedding_backward_kernel, C, token_grid, BLOCK, stream, dwte, dout, tokens, by_token, C);
    if (!dwpe) return;
    LAUNCH(embedding_backward_kernel, C, position_grid, BLOCK, stream, dwpe, dout, positions, by_position, C);
}

// ---- LayerNorm

// A warp per row. With a branch (else NULL), sum (N,C) = inp + branch times the dropout mask, and the sum is what is
// normalised: out (N,C) = weight * (sum - mean) * rstd + bias, with mean and rstd (N) of each row kept for backward.
template <int WIDTH>
__global__ void layernorm_forward_kernel(floatX *out, float *mean, float *rstd, floatX *sum, const floatX *inp,
                                         const floatX *branch, Dropout dropout, const floatX *weight,
                                         const floatX *bias, int N, int C) {
    int lane = threadIdx.x % WARP, n = blockIdx.x * WARPS + threadIdx.x / WARP;
    if (n >= N) return;
    const floatX *x = inp + (size_t)n * (size_t)C;
    float total = 0, squares = 0;
    for (int c = lane * WIDTH; c < C; c += WARP * WIDTH) {
        Floats<WIDTH> number = load<WIDTH>(x + c);
        if (branch) {
            Floats<WIDTH> added = drop(load<WIDTH>(branch + (size_t)n * (size_t)C + c), dropout, n, c, C);
            for (int j = 0; j < WIDTH; j++) number.at[j] = to_float(from_float<floatX>(number.at[j] + added.at[j]));
            store(sum + (size_t)n * (size_t)C + c, number);
        }
        for (int j = 0; j < WIDTH; j++) total += number.at[j];
    }
    if (branch) x = sum + (size_t)n * (size_t)C; // each lane reads back only what it wrote itself
    float m = warp_sum(total) / C;
    for (int c = lane * WIDTH; c < C; c += WARP * WIDTH) {
        Floats<WIDTH> number = load<WIDTH>(x + c);
        for (int j = 0; j < WIDTH; j++) squares += (number.at[j] - m) * (number.at[j] - m);
    }
    float s = 1 / sqrtf(warp_sum(squares) / C + (float)LAYER_NORM_EPSILON);
    for (int c = lane * WIDTH; c < C; c += WARP * WIDTH) {
        Floats<WIDTH> number = load<WIDTH>(x + c), w = load<WIDTH>(weight + c), b = load<WIDTH>(bias + c);
        for (int j = 0; j < WIDTH; j++) number.at[j] = (number.at[j] - m) * s * w.at[j] + b.at[j];
        store(out + (size_t)n * (size_t)C + c, number);
    }
    if (lane == 0) mean[n] = m, rstd[n] = s;
}

static void layernorm_forward(floatX *out, float *mean, float *rstd, const floatX *inp, const floatX *weight,
                              const floatX *bias, int N, int C, cudaStream_t stream) {
    NamedRange range("layernorm forward", WORK_LAYERNORM, stream);
    LAUNCH(layernorm_forward_kernel, C, blocks_for((size_t)N, WARPS), BLOCK, stream, out, mean, rstd, NULL, inp, NULL,
           Dropout(), weight, bias, N, C);
}

// The branch joins the residual stream on its way through the LayerNorm.
static void residual_layernorm_forward(floatX *out, float *mean, float *rstd, floatX *sum, const floatX *inp,
                                       const floatX *branch, Dropout dropout, const floatX *weight, const floatX *bias,
                                       int N, int C, cudaStream_t stream) {
    NamedRange range("layernorm forward", WORK_LAYERNORM, stream);
    LAUNCH(layernorm_forward_kernel, C, blocks_for((size_t)N, WARPS), BLOCK, stream, out, mean, rstd, sum, inp, branch,
           dropout, weight, bias, N, C);
}

enum { ROW_BLOCK = 32 }; // rows of a block in layernorm_backward

// A block is ROW_BLOCK rows. First a warp per row finds the row's two sums; then a thread per pack of columns goes down
// the rows, which the caches still hold: dinp += ..., and the block's share of dweight and dbias gathers in registers.
// part (blocks,2C): that share, dweight then dbias.
template <int WIDTH>
__global__ void layernorm_backward_kernel(floatX *dinp, float *part, const floatX *dout, const floatX *inp,
                                          const float *mean, const float *rstd, const floatX *weight, int N, int C) {
    __shared__ float row_sum[ROW_BLOCK], row_product[ROW_BLOCK]; // means of dnorm and of dnorm * norm
    int lane = threadIdx.x % WARP, first = blockIdx.x * ROW_BLOCK;
    int rows = N - first < ROW_BLOCK ? N - first : ROW_BLOCK;
    for (int r = threadIdx.x / WARP; r < rows; r += WARPS) {
        size_t row = (size_t)(first + r) * (size_t)C;
        float sum = 0, product = 0, m = mean[first + r], s = rstd[first + r];
        for (int c = lane * WIDTH; c < C; c += WARP * WIDTH) {
            Floats<WIDTH> dy = load<WIDTH>(dout + row + c), x = load<WIDTH>(inp + row + c), w = load<WIDTH>(weight + c);
            for (int j = 0; j < WIDTH; j++) {
                float dnorm = dy.at[j] * w.at[j];
                sum += dnorm;
                product += dnorm * ((x.at[j] - m) * s);
            }
        }
        sum = warp_sum(sum), product = warp_sum(product);
        if (lane == 0) row_sum[r] = sum / C, row_product[r] = product / C;
    }
    __syncthreads();
    for (int c = (int)threadIdx.x * WIDTH; c < C; c += BLOCK * WIDTH) {
        Floats<WIDTH> dweight = {}, dbias = {}, w = load<WIDTH>(weight + c);
        for (int r = 0; r < rows; r++) {
            size_t i = (size_t)(first + r) * (size_t)C + (size_t)c;
            float m = mean[first + r], s = rstd[first + r];
            Floats<WIDTH> dy = load<WIDTH>(dout + i), x = load<WIDTH>(inp + i), dx = load<WIDTH>(dinp + i);
            for (int j = 0; j < WIDTH; j++) {
                float norm = (x.at[j] - m) * s;
                dx.at[j] += s * (dy.at[j] * w.at[j] - row_sum[r] - norm * row_product[r]);
                dweight.at[j] += dy.at[j] * norm;
                dbias.at[j] += dy.at[j];
            }
            store(dinp + i, dx);
        }
        store(part + (size_t)blockIdx.x * 2 * (size_t)C + c, dweight);
        store(part + ((size_t)blockIdx.x * 2 + 1) * (size_t)C + c, dbias);
    }
}

// Adds to dinp (N,C): it is the gradient of the residual stream, which also flows around the LayerNorm.
// work: layernorm_work(N, C) numbers for the sums of each block of rows.
static void layernorm_backward(floatX *dinp, float *dweight, float *dbias, const floatX *dout, const floatX *inp,
                               const float *mean, const float *rstd, const floatX *weight, int N, int C, float beta,
                               float *work, cudaStream_t stream) {
    NamedRange range("layernorm backward", WORK_LAYERNORM, stream);
    int blocks = (N + ROW_BLOCK - 1) / ROW_BLOCK;
    LAUNCH(layernorm_backward_kernel, C, (unsigned)blocks, BLOCK, stream, dinp, work, dout, inp, mean, rstd, weight, N,
           C);
    float *sums = work + (size_t)blocks * 2 * (size_t)C;
    sum_rows(dweight, work, 2 * (size_t)C, blocks, C, beta, sums, stream);
    sum_rows(dbias, work + C, 2 * (size_t)C, blocks, C, beta, sums, stream);
}

static size_t layernorm_work(size_t N, size_t C) {
    size_t blocks = (N + ROW_BLOCK - 1) / ROW_BLOCK;
    return blocks * 2 * C + sum_rows_work(blocks, C);
}

// ---- linear, with a GELU after or before it where the product does that as well

// NVIDIA does not say how exact the tanh in cuBLASLt's GELU is. Where the products are rounded to bf16 or TF32 it does
// not matter; in full fp32, where layers are held to 1e-5, the GELU is our own kernels' unless the user says otherwise.
static bool gelu_is_fused(int fuse_gelu) {
#if defined PRECISION_BF16 || defined ALLOW_TF32
    if (fuse_gelu == FUSE_GELU_AUTO) return matmul_gpu_fuses_gelu();
#endif
    return fuse_gelu == FUSE_GELU_YES;
}

// out (N,OC) += bias (OC), for products that cuBLASLt has without it only.
template <int WIDTH> __global__ void bias_kernel(floatX *out, const floatX *bias, size_t count, int OC) {
    size_t stride = (size_t)gridDim.x * BLOCK * WIDTH;
    for (size_t i = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * WIDTH; i < count; i += stride) {
        Floats<WIDTH> x = load<WIDTH>(out + i), b = load<WIDTH>(bias + i % (size_t)OC);
        for (int j = 0; j < WIDTH; j++) x.at[j] += b.at[j];
        store(out + i, x);
    }
}

// out (N,OC) = inp (N,C) weight (C,OC) + bias (OC)
static void linear_forward(floatX *out, const floatX *inp, const floatX *weight, const floatX *bias, int N, int C,
                           int OC, cudaStream_t stream) {
    NamedRange range("linear forward", WORK_PRODUCTS, stream);
    MatmulShape shape = matmul_shape(N, OC, C, MATMUL_BIAS);
    MatmulExtra extra = {bias, NULL, NULL};
    if (!matmul_gpu_has(&shape)) shape.fusion = MATMUL_PLAIN;
    matmul_gpu(out, inp, weight, 0, &shape, &extra, stream);
    size_t count = (size_t)N * (size_t)OC;
    if (shape.fusion == MATMUL_PLAIN)
        LAUNCH(bias_kernel, OC, blocks_walking(count), BLOCK, stream, out, bias, count, OC);
}

// gelu_inp (N,OC) = inp (N,C) weight (C,OC) + bias (OC), and out (N,OC) its GELU
static void linear_gelu_forward(floatX *out, floatX *gelu_inp, const floatX *inp, const floatX *weight,
                                const floatX *bias, int N, int C, int OC, bool fused, cudaStream_t stream) {
    MatmulShape shape = matmul_shape(N, OC, C, MATMUL_BIAS_GELU);
    if (fused && matmul_gpu_has(&shape)) {
        NamedRange range("linear forward", WORK_PRODUCTS, stream);
        MatmulExtra extra = {bias, gelu_inp, NULL};
        matmul_gpu(out, inp, weight, 0, &shape, &extra, stream);
    } else {
        linear_forward(gelu_inp, inp, weight, bias, N, C, OC, stream);
        gelu_forward(out, gelu_inp, (size_t)N * (size_t)OC, stream);
    }
}

static size_t linear_work(size_t N, size_t OC) {
    size_t sums = sum_rows_work(N, OC);
    return sums > OC ? sums : OC;
}

__global__ void add_kernel(float *sum, const float *part, int count) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < count) sum[i] += part[i];
}

// dweight (C,OC) and dbias (OC) follow beta. Where cuBLASLt sums dout's columns on its way, it only overwrites: what
// has to be added goes through `work` first, linear_work(N, OC) numbers.
static void linear_weight_backward(float *dweight, float *dbias, const floatX *dout, const floatX *inp, int N, int C,
                                   int OC, float beta, float *work, cudaStream_t stream) {
    MatmulShape shape = matmul_shape(C, OC, N, MATMUL_COLUMN_SUMS);
    shape.a_is_transposed = 1, shape.out_is_float = 1;
    MatmulExtra extra = {NULL, NULL, beta == 0 ? dbias : work};
    if (matmul_gpu_has(&shape)) {
        matmul_gpu(dweight, inp, dout, beta, &shape, &extra, stream);
        if (beta == 0) return;
        add_kernel<<<blocks_for((size_t)OC, BLOCK), BLOCK, 0, stream>>>(dbias, work, OC);
        launch_check();
    } else {
        shape.fusion = MATMUL_PLAIN;
        matmul_gpu(dweight, inp, dout, beta, &shape, NULL, stream);
        sum_rows(dbias, dout, (size_t)OC, N, OC, beta, work, stream);
    }
}

// Overwrites dinp (N,C).
static void linear_backward(floatX *dinp, float *dweight, float *dbias, const floatX *dout, const floatX *inp,
                            const floatX *weight, int N, int C, int OC, float beta, float *work, cudaStream_t stream) {
    NamedRange range("linear backward", WORK_PRODUCTS, stream);
    linear_weight_backward(dweight, dbias, dout, inp, N, C, OC, beta, work, stream);
    MatmulShape shape = matmul_shape(N, C, OC, MATMUL_PLAIN);
    shape.b_is_transposed = 1;
    matmul_gpu(dinp, dout, weight, 0, &shape, NULL, stream);
}

// The same where inp is the GELU of gelu_inp (N,C): dinp is the gradient before the GELU.
static void gelu_linear_backward(floatX *dinp, float *dweight, float *dbias, const floatX *dout, const floatX *inp,
                                 const floatX *weight, floatX *gelu_inp, int N, int C, int OC, float beta, float *work,
                                 bool fused, cudaStream_t stream) {
    MatmulShape shape = matmul_shape(N, C, OC, MATMUL_GELU_BACKWARD);
    shape.b_is_transposed = 1;
    if (fused && matmul_gpu_has(&shape)) {
        NamedRange range("linear backward", WORK_PRODUCTS, stream);
        MatmulExtra extra = {NULL, gelu_inp, NULL};
        linear_weight_backward(dweight, dbias, dout, inp, N, C, OC, beta, work, stream);
        matmul_gpu(dinp, dout, weight, 0, &shape, &extra, stream);
    } else {
        linear_backward(dinp, dweight, dbias, dout, inp, weight, N, C, OC, beta, work, stream);
        gelu_backward(dinp, gelu_inp, (size_t)N * (size_t)C, stream);
    }
}

// ---- tied head and cross-entropy, by blocks of rows: the (N,V) logits never exist at once

// Rows of logits and of wte are padded, so that the tensor cores find them aligned. The rows of wte after the last
// token are zeros and stay so.
static int padded_vocabulary(int V) {
    return (V + 63) / 64 * 64;
}

// Rows of logits at once: as many as fit into 1 GB, or into a sixteenth of a smaller GPU. Every block of rows reads and
// writes all of dwte. A function of the GPU's size, not of what is free: sums have the same order in every run.
static int head_rows(int N, int V) {
    size_t available, total, most = (size_t)1 << 30;
    cuda_check(cudaMemGetInfo(&available, &total));
    if (total / 16 < most) most = total / 16;
    size_t rows = most / ((size_t)padded_vocabulary(V) * sizeof(floatX)) / 128 * 128;
    rows = rows < 128 ? 128 : rows;
    return rows < (size_t)N ? (int)rows : N;
}

// A block per row of logits (rows,stride): its loss in nats, and with `scale` the row becomes dlogits = *scale *
// (softmax - onehot). A target below 0 is ignored. Numbers from V on are padding: their gradient is 0.
__global__ void classifier_kernel(float *losses, floatX *logits, const int *targets, const float *scale, int V,
                                  int stride) {
    floatX *row = logits + (size_t)blockIdx.x * (size_t)stride;
    int target = targets[blockIdx.x];
    float largest = -FLT_MAX, sum = 0; // of exp(logit - largest), over this thread's numbers
    for (int v = (int)threadIdx.x * PACK; v < V; v += BLOCK * PACK) {
        Floats<PACK> x = load<PACK>(row + v);
        float before = largest;
        for (int j = 0; j < PACK && v + j < V; j++) largest = fmaxf(largest, x.at[j]);
        if (largest > before) sum *= expf(before - largest); // seldom: after the first few packs the largest stays
        for (int j = 0; j < PACK && v + j < V; j++) sum += expf(x.at[j] - largest);
    }
    float of_row = block_max(largest);
    sum = block_sum(sum * expf(largest - of_row));
    if (threadIdx.x == 0) losses[blockIdx.x] = target < 0 ? 0 : logf(sum) - (to_float(row[target]) - of_row);
    __syncthreads(); // row[target] has been read
    float factor = scale && target >= 0 ? *scale / sum : 0, onehot = scale && target >= 0 ? *scale : 0;
    for (int v = (int)threadIdx.x * PACK; scale && v < stride; v += BLOCK * PACK) {
        Floats<PACK> x = load<PACK>(row + v);
        for (int j = 0; j < PACK; j++)
            x.at[j] = v + j < V && target >= 0 ? expf(x.at[j] - of_row) * factor - (v + j == target ? onehot : 0) : 0;
        store(row + v, x);
    }
}

// hidden (N,C), wte (padded V,C), targets (N) -> losses (N). With dhidden (N,C) also the gradients of *scale * sum of
// losses, made in the same pass: dhidden is overwritten, dwte (padded V,C) follows beta. work: `work_rows` rows of
// padded V numbers.
static void head_forward_backward(float *losses, floatX *dhidden, float *dwte, const floatX *hidden, const floatX *wte,
                                  const int *targets, const float *scale, int N, int C, int V, float beta, floatX *work,
                                  int work_rows, cudaStream_t stream) {
    NamedRange range("head", WORK_HEAD, stream);
    int padded = padded_vocabulary(V);
    for (int start = 0; start < N; start += work_rows) {
        int rows = N - start < work_rows ? N - start : work_rows;
        const floatX *hidden_rows = hidden + (size_t)start * (size_t)C;
        MatmulShape logits = matmul_shape(rows, padded, C, MATMUL_PLAIN),
                    dinp = matmul_shape(rows, C, padded, MATMUL_PLAIN);
        MatmulShape dweight = matmul_shape(padded, C, rows, MATMUL_PLAIN);
        logits.b_is_transposed = 1, dweight.a_is_transposed = 1, dweight.out_is_float = 1;
        matmul_gpu(work, hidden_rows, wte, 0, &logits, NULL, stream);
        classifier_kernel<<<(unsigned)rows, BLOCK, 0, stream>>>(losses + start, work, targets + start,
                                                                dhidden ? scale : NULL, V, padded);
        launch_check();
        if (!dhidden) continue;
        matmul_gpu(dhidden + (size_t)start * (size_t)C, work, wte, 0, &dinp, NULL, stream);
        matmul_gpu(dwte, work, hidden_rows, start == 0 ? beta : 1, &dweight, NULL, stream);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// The model: weights, activations, forward, backward

template <typename Number> struct LayerWeights { // in the order of enum LayerTensor (core/model/gpt2_parameters.h)
    Number *ln1_weight, *ln1_bias;               // (C), (C)
    Number *qkv_weight, *qkv_bias;               // (C,3C), (3C)
    Number *proj_weight, *proj_bias;             // (C,C), (C)
    Number *ln2_weight, *ln2_bias;               // (C), (C)
    Number *fc_weight, *fc_bias;                 // (C,4C), (4C)
    Number *fcproj_weight, *fcproj_bias;         // (4C,C), (C)
};
static_assert(sizeof(LayerWeights<float>) == LAYER_TENSORS * sizeof(float *), "also an array of pointers");

template <typename Number> struct Weights { // the weights, or their gradients
    Number *wte;                            // (padded V,C)
    Number *wpe;                            // (max_T,C); NULL: the model has no positions
    LayerWeights<Number> *layers;
    Number *lnf_weight, *lnf_bias; // (C), (C)
};

typedef struct {                // what a layer keeps from forward to backward; N = B*T rows
    floatX *ln1;                // (N,C)
    float *ln1_mean, *ln1_rstd; // (N), (N)
    floatX *qkv;                // (N,3C)
    float *attention_saved;     // the mechanism's own
    floatX *attention_out;      // (N,C)
    floatX *residual_mid;       // (N,C): after the attention
    floatX *ln2;                // (N,C)
    float *ln2_mean, *ln2_rstd; // (N), (N)
    floatX *fc, *fc_gelu;       // (N,4C), (N,4C)
    floatX *residual_out;       // (N,C): after the MLP
} LayerActivations;
enum { LAYER_ACTIVATIONS = 13 };
static_assert(sizeof(LayerActivations) == LAYER_ACTIVATIONS * sizeof(void *),
              "also an array of pointers: see share_activations");

typedef struct {
    floatX *embedded; // (N,C)
    LayerActivations *layers;
    floatX *branch;             // (N,C): what attention or MLP put out last, before it joins the residual stream
    floatX *lnf;                // (N,C)
    float *lnf_mean, *lnf_rstd; // (N), (N)
    float *losses;              // (N)
} Activations;

typedef struct {       // scratch of backward: one set for all layers
    floatX *dresidual; // (N,C)
    floatX *dhidden;   // (N,C)
    floatX *dwide;     // (N,4C): the MLP's inside, or dqkv
    floatX *dbranch;   // (N,C): dresidual times the dropout mask
    float *dbias;      // linear_work(N, 4C): a bias's gradient on its way
} BackwardScratch;

typedef struct {
    GPT2Config config;
    AttentionStack stack;       // B and T: the capacity of the activations
    LayerAttention *attentions; // (L)
    float dropout;
    uint64_t seed;
    int recompute; // Recompute (core/train/settings.h)
    int trains;    // Trains
    bool fuses_gelu;

    ParametersGPU parameters;
    int64_t rounded_for_step; // the step that parameters.rounded is for
    int64_t packed_for_step;  // the step that the attentions' packed constants are for
    Weights<floatX> weights;
    Weights<float> dweights;

    Activations acts;
    BackwardScratch back;
    float *attention_work, *layernorm_work;
    floatX *head_work;
    int head_rows;      // of logits at once, at most
    double *norm_parts; // (NORM_BLOCKS and one for each part that is updated)
    StepState *state;   // on the device
    MuonGPU muon;       // scratch, if it is the optimiser
    BatchGPU batch;

    ArenaGPU activation_arena, scratch_arena;
    cudaStream_t stream;
    GraphsGPU graphs;
    int use_graphs; // --graphs

    ExchangeGPU *exchange; // with the other ranks; NULL: alone
    int sends;             // backward hands its gradients to them as it makes them

    int B, T; // of the last forward pass
} GPT2;

// Gives the listed tensors, weights or gradients, their names in the struct. They lie one after the other in `all`.
template <typename Number> static void point_weights(Weights<Number> *weights, const GPT2 *model, Number *all) {
    const size_t *offsets = model->parameters.offsets, *next = offsets;
    weights->layers = (LayerWeights<Number> *)memory_allocate((size_t)model->config.L, sizeof(LayerWeights<Number>),
                                                              "the list of layers");
    weights->wte = all + *next++;
    if (model->config.positions == POSITIONS_LEARNED) weights->wpe = all + *next++;
    for (int l = 0; l < model->config.L; l++) {
        Number **slots = (Number **)&weights->layers[l];
        next = offsets + gpt2_layer_start(model->parameters.list, l);
        for (int i = 0; i < LAYER_TENSORS; i++) slots[i] = all + *next++;
    }
    next = offsets + model->parameters.count - 2;
    weights->lnf_weight = all + *next++;
    weights->lnf_bias = all + *next++;
}

// What the attention's functions read besides activations: constants, and parameters as they are trained, in float.
static void point_attentions(GPT2 *model) {
    const ParametersGPU *p = &model->parameters;
    for (int l = 0; l < model->config.L; l++) {
        model->attentions[l].drawn = p->constants[l];
        model->attentions[l].parameters = parameters_gpu_attention(p, l);
        model->attentions[l].dparameters = parameters_gpu_attention_gradients(p, l);
    }
}

// What layer l's attention keeps; layers that share one place need room for the most that any of them keeps.
static size_t saved_numbers(const GPT2 *model, int l) {
    size_t most = 0;
    for (int i = 0; i < model->config.L; i++) {
        size_t size = model->attentions[i].gpu->saved_size(&attention_stack_layer(&model->stack, i)->config);
        if ((i == l || model->recompute == RECOMPUTE_BLOCKS) && size > most) most = size;
    }
    return most;
}

// Layer 0 has every tensor; the other layers only what is not computed again (see share_activations).
static void plan_layer(GPT2 *model, int l, size_t N, size_t C) {
    ArenaGPU *arena = &model->activation_arena;
    LayerActivations *a = &model->acts.layers[l];
    size_t cheap = l == 0 || model->recompute < RECOMPUTE_CHEAP ? N : 0;
    size_t block = l == 0 || model->recompute < RECOMPUTE_BLOCKS ? N : 0;
    arena_gpu_plan(arena, &a->ln1, cheap * C);
    arena_gpu_plan(arena, &a->ln1_mean, block), arena_gpu_plan(arena, &a->ln1_rstd, block);
    arena_gpu_plan(arena, &a->qkv, block * 3 * C);
    arena_gpu_plan(arena, &a->attention_saved, block ? saved_numbers(model, l) : 0);
    arena_gpu_plan(arena, &a->attention_out, block * C);
    arena_gpu_plan(arena, &a->residual_mid, block * C);
    arena_gpu_plan(arena, &a->ln2, cheap * C);
    arena_gpu_plan(arena, &a->ln2_mean, block), arena_gpu_plan(arena, &a->ln2_rstd, block);
    arena_gpu_plan(arena, &a->fc, block * 4 * C), arena_gpu_plan(arena, &a->fc_gelu, cheap * 4 * C);
    arena_gpu_plan(arena, &a->residual_out, N * C);
}

// What plan_layer left without a place of its own is the first layer's.
static void share_activations(LayerActivations *a, const LayerActivations *first) {
    void **own = (void **)a, *const *shared = (void *const *)first;
    for (int i = 0; i < LAYER_ACTIVATIONS; i++)
        if (!own[i]) own[i] = shared[i];
}

static void plan_activations(GPT2 *model, size_t N, size_t C) {
    ArenaGPU *arena = &model->activation_arena;
    Activations *acts = &model->acts;
    acts->layers = (LayerActivations *)memory_allocate_zeroed((size_t)model->config.L, sizeof(LayerActivations),
                                                              "the list of layers");
    arena_gpu_plan(arena, &acts->embedded, N * C);
    for (int l = 0; l < model->config.L; l++) plan_layer(model, l, N, C);
    arena_gpu_plan(arena, &acts->branch, N * C), arena_gpu_plan(arena, &acts->lnf, N * C);
    arena_gpu_plan(arena, &acts->lnf_mean, N), arena_gpu_plan(arena, &acts->lnf_rstd, N);
    arena_gpu_plan(arena, &acts->losses, N);
}

static void plan_scratch(GPT2 *model, size_t N, size_t C) {
    ArenaGPU *arena = &model->scratch_arena;
    model->head_rows = head_rows((int)N, model->config.V);
    arena_gpu_plan(arena, &model->head_work, (size_t)model->head_rows * (size_t)padded_vocabulary(model->config.V));
    arena_gpu_plan(arena, &model->layernorm_work, layernorm_work(N, C));
    arena_gpu_plan(arena, &model->back.dresidual, N * C), arena_gpu_plan(arena, &model->back.dhidden, N * C);
    arena_gpu_plan(arena, &model->back.dwide, N * 4 * C);
    arena_gpu_plan(arena, &model->back.dbranch, model->dropout > 0 ? N * C : 0);
    arena_gpu_plan(arena, &model->back.dbias, linear_work(N, 4 * C));
    arena_gpu_plan(arena, &model->norm_parts, (size_t)(NORM_BLOCKS + model->parameters.updated_count));
    arena_gpu_plan(arena, &model->state, 1);
}

static size_t most_rows(const AttentionStack *stack) {
    const AttentionConfig *sizes = attention_stack_sizes(stack);
    return (size_t)sizes->B * (size_t)sizes->T;
}

// Plans a model: what memory it needs is known before any is allocated. The B and T of `stack` are the most rows and
// tokens per row of any forward pass; with TRAINS_NOT there are only weights and the attention's scratch, for decoding.
// `model` is a GPT2 of zeros.
static void gpt2_plan(GPT2 *model, const GPT2Config *config, const AttentionStack *stack, float dropout_share,
                      uint64_t seed, int trains, int recompute) {
    size_t N = most_rows(stack), C = (size_t)config->C;
    model->config = *config, model->stack = *stack, model->attentions = attention_gpu_layers(stack, config->L);
    model->dropout = dropout_share, model->seed = seed, model->recompute = recompute, model->trains = trains & ~BY_MUON;
    model->activation_arena.what = "activations", model->scratch_arena.what = "scratch";
    model->rounded_for_step = model->packed_for_step = -1, model->fuses_gelu = gelu_is_fused(FUSE_GELU_AUTO);
    parameters_gpu_plan(&model->parameters, config, stack, padded_vocabulary(config->V), trains);
    for (int l = 0; l < config->L; l++)
        arena_gpu_plan(
            &model->parameters.constant_arena, &model->attentions[l].packed,
            attention_gpu_packed_size(&model->attentions[l], &attention_stack_layer(&model->stack, l)->config));
    arena_gpu_plan(&model->scratch_arena, &model->attention_work, attention_gpu_work_size(stack));
    if (!trains) return;
    if (trains & BY_MUON) muon_gpu_plan(&model->muon, &model->scratch_arena, config->C);
    plan_activations(model, N, C), plan_scratch(model, N, C);
    model->batch.bytes = batch_gpu_bytes(N, config->L);
}

// Plans and allocates a model.
static void gpt2_create(GPT2 *model, const GPT2Config *config, const AttentionStack *stack, float dropout_share,
                        uint64_t seed, int trains, int recompute) {
    gpt2_plan(model, config, stack, dropout_share, seed, trains, recompute);
    cuda_check(cudaStreamCreateWithFlags(&model->stream, cudaStreamNonBlocking));
    parameters_gpu_allocate(&model->parameters);
    arena_gpu_allocate(&model->activation_arena), arena_gpu_allocate(&model->scratch_arena);
    point_weights(&model->weights, model, model->parameters.rounded);
    point_attentions(model);
    if (!trains) return;
    point_weights(&model->dweights, model, model->parameters.gradients);
    for (int l = 1; l < config->L; l++) share_activations(&model->acts.layers[l], &model->acts.layers[0]);
    batch_gpu_create(&model->batch, most_rows(stack), config->V, config->L);
}

// Also of a model that is only planned.
static void gpt2_free(GPT2 *model) {
    if (model->stream) cuda_check(cudaStreamSynchronize(model->stream));
    graphs_gpu_free(&model->graphs);
    parameters_gpu_free(&model->parameters);
    arena_gpu_free(&model->activation_arena), arena_gpu_free(&model->scratch_arena);
    batch_gpu_free(&model->batch);
    if (model->stream) cuda_check(cudaStreamDestroy(model->stream));
    free(model->weights.layers), free(model->dweights.layers), free(model->acts.layers), free(model->attentions);
}

// What files hold of the model (core/model/gpt2_parameters.h reads, writes and initialises it), in host memory: to be
// saved, when the first rank has all of it, or to be filled from a file. All ranks call it: with ZeRO each has a part
// of the master weights and moments.
static ModelTensors gpt2_to_host(GPT2 *model, HostPurpose purpose) {
    ModelTensors tensors = {};
    if (purpose == HOST_TO_SAVE) parameters_gpu_fetch(&model->parameters, model->stream);
    tensors.config = model->config;
    tensors.stack = model->stack;
    tensors.parameters = model->parameters.list;
    tensors.count = model->parameters.count;
    tensors.constants = model->parameters.host_constants;
    return tensors;
}

// Ends what gpt2_to_host began; what was filled in is the model's from now on.
static void gpt2_from_host(GPT2 *model, HostPurpose purpose) {
    if (purpose == HOST_TO_SAVE) return;
    parameters_gpu_send(&model->parameters, model->stream);
    model->rounded_for_step = model->packed_for_step = -1;
}

static void gpt2_round_weights(GPT2 *model, int64_t step);
static StepState gpt2_state(GPT2 *model);

// The constants as the attentions read them: all of them once, then those that depend on what the step trained.
static void pack_constants(GPT2 *model, int64_t step) {
    if (model->packed_for_step == step) return;
    attention_gpu_pack(model->attentions, &model->stack, model->config.L, model->packed_for_step >= 0, model->stream);
    model->packed_for_step = step;
}

// Sends the micro-batch to the device, where the weights that it is to meet are rounded if they are not yet.
static void begin_micro_batch(GPT2 *model, const MicroBatch *batch, int training) {
    model->B = batch->B, model->T = batch->T;
    batch_gpu_upload(&model->batch, batch, training, model->seed, model->stream);
    gpt2_round_weights(model, batch->step);
    pack_constants(model, batch->step);
}

// site 0: the embeddings; l + 1: layer l's attention output
static Dropout mask_at(const GPT2 *model, int site, float share) {
    return dropout_of(share, model->batch.device.dropout_keys + site, model->batch.device.first_token);
}

// The attention of layer l, with the sizes of the batch at hand.
static StackEntry attention_now(const GPT2 *model, int l) {
    StackEntry entry = *attention_stack_layer(&model->stack, l);
    entry.config.B = model->B, entry.config.T = model->T;
    if (entry.config.packed) entry.config.positions = model->batch.device.positions;
    return entry;
}

static floatX *layer_input(const GPT2 *model, int l) {
    return l > 0 ? model->acts.layers[l - 1].residual_out : model->acts.embedded;
}

// What layer l reads, (N,C), and leaves: residual_mid, and in acts.branch the MLP's output, which the LayerNorm that
// comes next adds to it. So the layer begins by completing the residual stream of the layer before. `again`: its input
// stands complete, and only what backward needs is computed.
static void layer_forward(GPT2 *model, int l, float dropout_share, int again) {
    const LayerWeights<floatX> *w = &model->weights.layers[l];
    LayerActivations *a = &model->acts.layers[l];
    floatX *x = layer_input(model, l), *branch = model->acts.branch;
    const LayerAttention *at = &model->attentions[l];
    StackEntry entry = attention_now(model, l);
    int N = model->B * model->T, C = model->config.C;
    cudaStream_t stream = model->stream;
    if (l == 0 || again)
        layernorm_forward(a->ln1, a->ln1_mean, a->ln1_rstd, x, w->ln1_weight, w->ln1_bias, N, C, stream);
    else
        residual_layernorm_forward(a->ln1, a->ln1_mean, a->ln1_rstd, x, a[-1].residual_mid, branch,
                                   mask_at(model, 0, 0), w->ln1_weight, w->ln1_bias, N, C, stream);
    linear_forward(a->qkv, a->ln1, w->qkv_weight, w->qkv_bias, N, C, 3 * C, stream);
    {
        NamedRange range("attention forward", WORK_ATTENTION, stream);
        at->gpu->forward(a->attention_out, a->attention_saved, a->qkv, attention_gpu_constants(at), at->parameters,
                         model->attention_work, &entry.config, stream);
    }
    linear_forward(branch, a->attention_out, w->proj_weight, w->proj_bias, N, C, C, stream);
    residual_layernorm_forward(a->ln2, a->ln2_mean, a->ln2_rstd, a->residual_mid, x, branch,
                               mask_at(model, l + 1, dropout_share), w->ln2_weight, w->ln2_bias, N, C, stream);
    if (model->recompute == RECOMPUTE_CHEAP) { // by the kernel that backward uses again: cuBLASLt's last bits differ
        linear_forward(a->fc, a->ln2, w->fc_weight, w->fc_bias, N, C, 4 * C, stream);
        gelu_forward(a->fc_gelu, a->fc, (size_t)N * 4 * (size_t)C, stream);
    } else {
        linear_gelu_forward(a->fc_gelu, a->fc, a->ln2, w->fc_weight, w->fc_bias, N, C, 4 * C, model->fuses_gelu,
                            stream);
    }
    if (!again) linear_forward(branch, a->fc_gelu, w->fcproj_weight, w->fcproj_bias, N, 4 * C, C, stream);
}

// The uploaded inputs (B,T) -> acts.lnf (B*T,C). `training` turns dropout on.
static void gpt2_hidden(GPT2 *model, int training) {
    Activations *acts = &model->acts;
    profile_phase(PHASE_FORWARD);
    int N = model->B * model->T, C = model->config.C;
    float share = training ? model->dropout : 0;
    cudaStream_t stream = model->stream;
    const BatchData *data = &model->batch.device;
    embedding_forward(acts->embedded, data->inputs, data->positions, model->weights.wte, model->weights.wpe, N,
                      model->T, C, stream);
    if (share > 0) dropout_forward(acts->embedded, acts->embedded, mask_at(model, 0, share), N, C, stream);
    for (int l = 0; l < model->config.L; l++) layer_forward(model, l, share, 0);
    LayerActivations *last = &acts->layers[model->config.L - 1];
    residual_layernorm_forward(acts->lnf, acts->lnf_mean, acts->lnf_rstd, last->residual_out, last->residual_mid,
                               acts->branch, mask_at(model, 0, 0), model->weights.lnf_weight, model->weights.lnf_bias,
                               N, C, stream);
}

// state->loss = beta * state->loss + the sum of the losses (N); one block.
__global__ void sum_losses_kernel(StepState *state, const float *losses, int N, float beta) {
    double sum = 0;
    for (int n = (int)threadIdx.x; n < N; n += BLOCK) sum += losses[n];
    sum = block_sum(sum);
    if (threadIdx.x == 0) state->loss = (beta == 0 ? 0 : state->loss) + sum;
}

static void head(GPT2 *model, floatX *dhidden, float beta) {
    int N = model->B * model->T;
    head_forward_backward(model->acts.losses, dhidden, model->dweights.wte, model->acts.lnf, model->weights.wte,
                          model->batch.device.targets, model->batch.device.scale, N, model->config.C, model->config.V,
                          beta, model->head_work, model->head_rows, model->stream);
    sum_losses_kernel<<<1, BLOCK, 0, model->stream>>>(model->state, model->acts.losses, N, beta);
    launch_check();
}

// The sum of the losses over all targets (B,T) that are not negative, in nats; without dropout.
static inline double gpt2_evaluate(GPT2 *model, const MicroBatch *batch) {
    begin_micro_batch(model, batch, 0);
    gpt2_hidden(model, 0);
    head(model, NULL, 0);
    return gpt2_state(model).loss;
}

// sums (B), in host memory: those losses row by row.
static inline void gpt2_row_losses(double *sums, GPT2 *model, const MicroBatch *batch) {
    size_t T = (size_t)batch->T;
    std::vector<float> losses((size_t)batch->B * T);
    gpt2_evaluate(model, batch);
    cuda_check(cudaMemcpyAsync(losses.data(), model->acts.losses, losses.size() * sizeof(float), cudaMemcpyDeviceToHost,
                               model->stream));
    cuda_check(cudaStreamSynchronize(model->stream));
    for (size_t n = 0; n < losses.size(); n++) sums[n / T] = (n % T ? sums[n / T] : 0) + losses[n];
}

// logits (V), in host memory, of what follows token `position` of the batch's only row; without dropout.
static inline void gpt2_logits(float *logits, GPT2 *model, const MicroBatch *batch, int position) {
    int C = model->config.C, V = model->config.V;
    floatX *hidden = model->acts.branch; // the row, where cuBLASLt likes it
    MatmulShape shape = matmul_shape(1, padded_vocabulary(V), C, MATMUL_PLAIN);
    shape.b_is_transposed = 1;
    begin_micro_batch(model, batch, 0);
    gpt2_hidden(model, 0);
    cuda_check(cudaMemcpyAsync(hidden, model->acts.lnf + (size_t)position * C, (size_t)C * sizeof(floatX),
                               cudaMemcpyDeviceToDevice, model->stream));
    matmul_gpu(model->head_work, hidden, model->weights.wte, 0, &shape, NULL, model->stream);
    fetch_floats(logits, model->head_work, (size_t)V, model->stream);
}

// Forward pass with the head's part of backward in it: leaves the gradient of scale * (sum of losses) with respect to
// the last hidden state in back.dhidden and the head's share of dwte, and adds to state->loss.
static inline void gpt2_forward(GPT2 *model, const MicroBatch *batch) {
    int beta = batch->is_first ? 0 : 1;
    begin_micro_batch(model, batch, 1);
    model->sends = model->exchange && batch->is_last;
    // NCCL's own stream stays out of graphs
    int wants_graph = model->use_graphs && !profiling && !model->sends;
    if (graphs_gpu_begin(&model->graphs, wants_graph, model->B, model->T, beta, model->stream) == GRAPH_REPLAYS)
        return; // all of it runs in backward
    gpt2_hidden(model, 1);
    head(model, model->back.dhidden, (float)beta);
}

// Makes what --recompute did not keep again, by the same functions, so that the same bits come out. The last layer's
// still stand: it is the first that backward comes to.
static void recompute_layer(GPT2 *model, int l) {
    const LayerWeights<floatX> *w = &model->weights.layers[l];
    LayerActivations *a = &model->acts.layers[l];
    int N = model->B * model->T, C = model->config.C;
    cudaStream_t stream = model->stream;
    if (model->recompute == RECOMPUTE_NONE || l == model->config.L - 1) return;
    if (model->recompute == RECOMPUTE_BLOCKS) {
        layer_forward(model, l, model->dropout, 1);
        return;
    }
    layernorm_forward(a->ln1, a->ln1_mean, a->ln1_rstd, layer_input(model, l), w->ln1_weight, w->ln1_bias, N, C,
                      stream);
    layernorm_forward(a->ln2, a->ln2_mean, a->ln2_rstd, a->residual_mid, w->ln2_weight, w->ln2_bias, N, C, stream);
    gelu_forward(a->fc_gelu, a->fc, (size_t)N * 4 * (size_t)C, stream);
}

// The gradients of this stretch will not change again in this step.
static void gradients_ready(GPT2 *model, int stretch) {
    if (model->sends) exchange_gpu_ready(model->exchange, parameters_gpu_stretch(&model->parameters, stretch));
}

// back.dresidual (N,C): the gradient at the layer's output becomes the gradient at its input.
static void layer_backward(GPT2 *model, int l, float beta) {
    const LayerWeights<floatX> *w = &model->weights.layers[l];
    LayerWeights<float> *dw = &model->dweights.layers[l];
    LayerActivations *a = &model->acts.layers[l];
    BackwardScratch *s = &model->back;
    const LayerAttention *at = &model->attentions[l];
    StackEntry entry = attention_now(model, l);
    int N = model->B * model->T, C = model->config.C;
    cudaStream_t stream = model->stream;
    recompute_layer(model, l);
    gelu_linear_backward(s->dwide, dw->fcproj_weight, dw->fcproj_bias, s->dresidual, a->fc_gelu, w->fcproj_weight,
                         a->fc, N, 4 * C, C, beta, s->dbias, model->fuses_gelu, stream);
    linear_backward(s->dhidden, dw->fc_weight, dw->fc_bias, s->dwide, a->ln2, w->fc_weight, N, C, 4 * C, beta, s->dbias,
                    stream);
    layernorm_backward(s->dresidual, dw->ln2_weight, dw->ln2_bias, s->dhidden, a->residual_mid, a->ln2_mean,
                       a->ln2_rstd, w->ln2_weight, N, C, beta, model->layernorm_work, stream);
    const floatX *dbranch = s->dresidual;
    if (model->dropout > 0) {
        dropout_forward(s->dbranch, s->dresidual, mask_at(model, l + 1, model->dropout), N, C, stream);
        dbranch = s->dbranch;
    }
    linear_backward(s->dhidden, dw->proj_weight, dw->proj_bias, dbranch, a->attention_out, w->proj_weight, N, C, C,
                    beta, s->dbias, stream);
    {
        NamedRange range("attention backward", WORK_ATTENTION, stream);
        at->gpu->backward(s->dwide, at->dparameters, s->dhidden, a->qkv, a->attention_out, a->attention_saved,
                          attention_gpu_constants(at), at->parameters, model->attention_work, &entry.config, stream);
    }
    linear_backward(s->dhidden, dw->qkv_weight, dw->qkv_bias, s->dwide, a->ln1, w->qkv_weight, N, C, 3 * C, beta,
                    s->dbias, stream);
    layernorm_backward(s->dresidual, dw->ln1_weight, dw->ln1_bias, s->dhidden, layer_input(model, l), a->ln1_mean,
                       a->ln1_rstd, w->ln1_weight, N, C, beta, model->layernorm_work, stream);
    gradients_ready(model, l);
}

// Of tensors whose backward pass knows no beta and only adds.
static void clear_added_gradients(GPT2 *model) {
    const ParametersGPU *p = &model->parameters;
    size_t positions = (size_t)model->config.max_T * (size_t)model->config.C;
    if (model->dweights.wpe)
        cuda_check(cudaMemsetAsync(model->dweights.wpe, 0, positions * sizeof(float), model->stream));
    for (int i = 0; i < p->count; i++)
        if (p->list[i].of_attention)
            cuda_check(
                cudaMemsetAsync(p->gradients + p->offsets[i], 0, p->list[i].count * sizeof(float), model->stream));
}

// After gpt2_forward of the same batch: the gradients of all weights. The step's first batch overwrites them, the
// others add to them; after its last one each layer's go to the other ranks as soon as they are made.
static inline void gpt2_backward(GPT2 *model, const MicroBatch *batch) {
    Activations *acts = &model->acts;
    BackwardScratch *s = &model->back;
    const float beta = batch->is_first ? 0 : 1;
    profile_phase(PHASE_BACKWARD);
    if (model->graphs.use == GRAPH_REPLAYS) { // forward and backward are in the graph
        graphs_gpu_end(&model->graphs, model->stream);
        return;
    }
    int N = model->B * model->T, C = model->config.C, L = model->config.L;
    cudaStream_t stream = model->stream;
    cuda_check(cudaMemsetAsync(s->dresidual, 0, (size_t)N * (size_t)C * sizeof(floatX), stream));
    if (beta == 0) clear_added_gradients(model);
    layernorm_backward(s->dresidual, model->dweights.lnf_weight, model->dweights.lnf_bias, s->dhidden,
                       layer_input(model, L), acts->lnf_mean, acts->lnf_rstd, model->weights.lnf_weight, N, C, beta,
                       model->layernorm_work, stream);
    for (int l = L - 1; l >= 0; l--) layer_backward(model, l, beta);
    gradients_ready(model, STRETCH_VECTORS(L)), gradients_ready(model, STRETCH_ATTENTION(L));
    if (model->dropout > 0)
        dropout_forward(s->dresidual, s->dresidual, mask_at(model, 0, model->dropout), N, C, stream);
    const BatchData *data = &model->batch.device;
    embedding_backward(model->dweights.wte, model->dweights.wpe, s->dresidual, data->inputs, data->positions, N,
                       model->T, C, model->config.V, data->by_token, data->by_position, stream);
    gradients_ready(model, STRETCH_WTE(L)), gradients_ready(model, STRETCH_WPE(L));
    graphs_gpu_end(&model->graphs, stream);
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

// One block: the norm, and what follows from it.
__global__ void finish_norm_kernel(StepState *state, const double *parts, int count, float clip, double most_loss,
                                   double most_norm) {
    double squares = 0;
    for (int b = (int)threadIdx.x; b < count; b += BLOCK) squares += parts[b];
    squares = block_sum(squares);
    if (threadIdx.x == 0) {
        double norm = sqrt(squares);
        state->norm = norm;
        state->gradient_scale = clip > 0 && norm > clip ? (float)(clip / norm) : 1;
        state->taken = isfinite(norm) && isfinite(state->loss) && state->loss <= most_loss && norm <= most_norm;
    }
}

// The squares of what this rank updates; returns in how many parts. Every rank has as many.
static unsigned sum_squares(GPT2 *model) {
    const ParametersGPU *p = &model->parameters;
    unsigned used = 0, most = (unsigned)(NORM_BLOCKS / p->updated_count + 1);
    for (int k = 0; k < p->updated_count; k++) {
        Range range = p->updated[k].range;
        unsigned wanted = norm_blocks(range.count), blocks = wanted < most ? wanted : most;
        sum_squares_kernel<<<blocks, BLOCK, 0, model->stream>>>(model->norm_parts + used, p->gradients + range.start,
                                                                p->updated[k].counts ? range.count : 0);
        launch_check();
        used += blocks;
    }
    return used;
}

// The global norm of all gradients, the clip factor and whether the step is to be taken, all left on the device. The
// gaps between the tensors are zeros. Without ZeRO each rank has all sums and comes to the same norm by itself.
static void decide_step(GPT2 *model, float clip, double most_loss, double most_norm) {
    unsigned parts = sum_squares(model);
    if (model->trains == TRAINS_SHARING_MOMENTS) exchange_gpu_sum(model->exchange, model->norm_parts, parts);
    finish_norm_kernel<<<1, BLOCK, 0, model->stream>>>(model->state, model->norm_parts, (int)parts, clip, most_loss,
                                                       most_norm);
    launch_check();
}

// The rounding of the weights is a function of the master weights and the step that they are for: a resumed run finds
// the same ones.
static uint64_t rounding_key(const GPT2 *model, int64_t step) {
    return random_key(model->seed, "rounding", (uint64_t)step);
}

static void gpt2_round_weights(GPT2 *model, int64_t step) {
    if (model->rounded_for_step == step || sizeof(floatX) == sizeof(float)) return;
    model->rounded_for_step = step;
    LAUNCH(round_weights_kernel, model->parameters.numbers, blocks_walking(model->parameters.numbers), BLOCK,
           model->stream, model->parameters.rounded, model->parameters.whole, rounding_key(model, step),
           model->parameters.numbers);
}

// AdamW for `count` numbers from `start` of the flat arrays on, which are in `part`.
static void adamw_range(GPT2 *model, const UpdatedPart *part, size_t start, size_t count, AdamW adamw, uint64_t key) {
    const ParametersGPU *p = &model->parameters;
    size_t own = part->own + (start - part->range.start);
    if (count == 0) return;
    LAUNCH(adamw_kernel, start | own | count, blocks_walking(count), BLOCK, model->stream, p->master + own,
           p->rounded + start, p->m + own, p->v + own, p->gradients + start, model->state, adamw, key, start, count);
}

// AdamW's step number `step` (from 0), decay on matrices only; with Muon, what lies in its range is Muon's. The device
// decides by itself whether the step is taken (see decide_step).
static void update_weights(GPT2 *model, const Settings *settings, const Update *update) {
    const ParametersGPU *p = &model->parameters;
    int64_t t = update->step + 1;
    uint64_t key = rounding_key(model, t);
    AdamW matrix = {settings->beta1, settings->beta2, settings->adam_eps, 0, 0, 0}, vector;
    matrix.step_size = (float)(update->rate / (1 - pow(settings->beta1, (double)t)));
    matrix.v_scale = (float)(1 / (1 - pow(settings->beta2, (double)t)));
    matrix.keep = (float)(1 - update->rate * settings->weight_decay);
    vector = matrix, vector.keep = 1;
    for (int k = 0; k < p->updated_count; k++) {
        const UpdatedPart *part = &p->updated[k];
        size_t start = part->range.start, end = start + part->range.count;
        Range muon = muon_gpu_share(p, part->range); // empty, at the end, with AdamW alone
        adamw_range(model, part, start, muon.start - start, part->decays ? matrix : vector, key);
        adamw_range(model, part, muon.start + muon.count, end - (muon.start + muon.count), matrix, key);
    }
    if (p->by_muon) {
        MuonStepGPU muon = {settings->muon_momentum, (float)update->muon_rate, matrix.keep, key, model->state};
        muon_gpu_step(&model->muon, p, model->exchange, &muon, model->stream);
    }
    model->rounded_for_step = t;
    if (p->shares) parameters_gpu_gather(&model->parameters, model->exchange, model->stream);
}

// Waits for the device.
static StepState gpt2_state(GPT2 *model) {
    StepState state;
    exchange_gpu_wait(model->exchange); // the copy would wait, too, and not look after the other ranks
    cuda_check(cudaMemcpyAsync(&state, model->state, sizeof state, cudaMemcpyDeviceToHost, model->stream));
    attention_gpu_collect_floored_rows(&model->stack, model->stream);
    cuda_check(cudaStreamSynchronize(model->stream));
    return state;
}

// ---- what to say when a number is not finite; nothing here is fast

static const char *gpt2_bad_gradient(GPT2 *model) {
    for (int i = 0; i < model->parameters.count; i++)
        if (!finite_on_device(model->norm_parts, model->parameters.gradients + model->parameters.offsets[i],
                              model->parameters.list[i].count, model->stream))
            return model->parameters.list[i].name;
    return NULL;
}

// Where the numbers went bad first in the last forward pass: a place as trouble_describe has it.
static int gpt2_bad_place(GPT2 *model) {
    size_t count = (size_t)(model->B * model->T) * (size_t)model->config.C;
    int places = model->config.L * LAYER_PLACES;
    // the layers share what they recompute: only their outputs are still their own
    int first = model->recompute == RECOMPUTE_BLOCKS ? PLACE_OUTPUT : PLACE_QKV;
    if (!finite_on_device(model->norm_parts, model->acts.embedded, count, model->stream)) return 0;
    for (int place = 0; place < places; place++) {
        const LayerActivations *a = &model->acts.layers[place / LAYER_PLACES];
        const floatX *tensors[LAYER_PLACES] = {a->qkv, a->attention_out, a->residual_mid, a->fc, a->residual_out};
        int i = place % LAYER_PLACES;
        if (i >= first && !finite_on_device(model->norm_parts, tensors[i], trouble_widths[i] * count, model->stream))
            return 1 + place;
    }
    return 1 + places;
}

// Clips the gradients to the norm settings->clip (0: not at all) and updates the weights, unless loss or norm are not
// finite or above the update's limits: then the weights stay as they are.
static inline StepOutcome gpt2_update(GPT2 *model, const Settings *settings, const Update *update) {
    if (model->exchange) { // the gradients that are under way, and the loss
        NamedRange range("exchange", WORK_COMMUNICATION, model->stream);
        exchange_gpu_finish(model->exchange);
        exchange_gpu_sum(model->exchange, &model->state->loss, 1);
    }
    NamedRange range("norm and AdamW", WORK_OPTIMIZER, model->stream);
    decide_step(model, settings->clip, update->most_loss, update->most_norm); // of the same sums on every rank
    update_weights(model, settings, update);
    StepState state = gpt2_state(model);
    StepOutcome outcome = {state.loss, state.norm, NULL, 0};
    if (isfinite(outcome.loss) && isfinite(outcome.norm)) return outcome;
    trouble_describe(&outcome, gpt2_bad_place(model), model->config.L, gpt2_bad_gradient(model));
    return outcome;
}

// ---------------------------------------------------------------------------------------------------------------------
// The program

// A model for training. `model` is a GPT2 of zeros.
static inline void create_model(GPT2 *model, const Settings *settings) {
    int shares = parallel_ranks() > 1;
    parallel_choose_device();
    gpt2_create(model, &settings->model, &settings->stack, settings->dropout, (uint64_t)settings->seed,
                training_memory(settings), settings->recompute);
    if (shares)
        model->exchange =
            exchange_gpu_create(model->parameters.rounded, model->parameters.gradients, settings->zero, model->stream);
    model->use_graphs = settings->graphs;
    if (shares && settings->graphs && parallel_rank() == 0 &&
        settings->micro_batch * parallel_ranks() >= settings->batch)
        warn("--graphs captures nothing: a rank's last micro-batch of a step sends its gradients and stays out of "
             "graphs, and there is only one");
    model->fuses_gelu = gelu_is_fused(settings->fuse_gelu);
    profiling = settings->profile;
}

#ifndef GPT2_MODEL_ONLY // sample_gpt2.cu and the tests take what is above
// The memory plan in words, and in bytes.
static uint64_t model_bytes(const GPT2 *model, char *text, size_t size) {
    const ParametersGPU *p = &model->parameters;
    const ArenaGPU *arenas[] = {&p->weight_arena,         &p->gradient_arena,    &p->moment_arena,
                                &model->activation_arena, &model->scratch_arena, &p->constant_arena};
    uint64_t total = CUBLAS_WORKSPACE_BYTES + model->batch.bytes;
    size_t used = (size_t)snprintf(text, size, "cuBLAS %.1f MB, batch %.1f MB", (double)CUBLAS_WORKSPACE_BYTES / 1e6,
                                   (double)model->batch.bytes / 1e6);
    for (const ArenaGPU *arena : arenas) {
        uint64_t bytes = arena_gpu_bytes(arena);
        total += bytes;
        if (bytes && used < size)
            used += (size_t)snprintf(text + used, size - used, ", %s %.1f MB", arena->what, (double)bytes / 1e6);
    }
    return total;
}

// For training_choose_micro_batch and training_check_memory.
static uint64_t planned_bytes(const Settings *settings, char *text, size_t size) {
    GPT2 model = {};
    gpt2_plan(&model, &settings->model, &settings->stack, settings->dropout, 0, training_memory(settings),
              settings->recompute);
    uint64_t bytes = model_bytes(&model, text, size);
    gpt2_free(&model);
    return bytes;
}

// What is free of the GPU's memory, but for a part that cuBLASLt, cuDNN and NCCL take for themselves.
static uint64_t available_bytes(void) {
    size_t available, total;
    cuda_check(cudaMemGetInfo(&available, &total));
    return available > total / 32 ? available - total / 32 : 0;
}

int main(int argc, char **argv) {
    static Training training;
    static GPT2 model;
    ModelTensors tensors;
    MicroBatch batch;
    char memory[512], notes[400] = "";
    threads_restart_with_wait_policy(argv);
    training_open(&training, argc, argv);
    if (parallel_ranks() > 1 && !exchange_gpu_exists())
        die("started as one of %d processes, but built without NCCL; install it and make again", parallel_ranks());
    parallel_choose_device();
    training_choose_micro_batch(&training, available_bytes(), planned_bytes);
    training_check_memory(&training, available_bytes(), planned_bytes);
    double gflops = gpu_peak_gflops(); // a measurement needs memory that the model will take
    create_model(&model, &training.settings);
    tensors = gpt2_to_host(&model, HOST_TO_FILL);
    training_load(&training, &tensors);
    gpt2_from_host(&model, HOST_TO_FILL);
    attention_gpu_describe(&model.stack, notes, sizeof notes);
    Machine machine = {gflops,
                       gpu_device_name(),
                       memory,
                       model_bytes(&model, memory, sizeof memory),
                       notes[0] ? notes : NULL,
                       model.fuses_gelu ? "within cuBLASLt's products" : "by our own kernels"};
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
    exchange_gpu_free(model.exchange);
    gpt2_free(&model);
    return training_end(&training);
}
#endif
