#include "pairs_gpu.h"
#include "linear_walk.cuh"
#include "pairs.cuh"

enum { BLOCK_QUERIES = 128 };

size_t pairs_gpu_group_numbers = PAIRS_GROUP_NUMBERS;

void pairs_multiply(float *out, int stride, size_t step, PairOperand left, PairOperand right, PairProduct size,
                    int accumulate, int tensor_cores, cudaStream_t stream) {
    const int most = 32768; // matrices in one call
    float one = 1, kept = accumulate ? 1 : 0;
    cublasComputeType_t compute = tensor_cores ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    for (int from = 0; from < size.batch; from += most) // cuBLAS is column-major: it gets the transpose
        cublas_check(cublasGemmStridedBatchedEx(
            cublas_on(stream), right.transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
            left.transposed ? CUBLAS_OP_T : CUBLAS_OP_N, size.columns, size.rows, size.depth, &one,
            right.at + from * right.step, CUDA_R_32F, right.stride, (long long)right.step, left.at + from * left.step,
            CUDA_R_32F, left.stride, (long long)left.step, &kept, out + from * step, CUDA_R_32F, stride,
            (long long)step, min_int(most, size.batch - from), compute, CUBLAS_GEMM_DEFAULT));
}

// ---- a pass and its scratch

typedef struct {                  // keys of the heads and sequences at hand
    float *outer, *unit, *values; // (heads * sequences, rows, ...)
    int rows;
} Keys;

typedef struct {
    const AttentionConfig *config;
    const float *packed;
    cudaStream_t stream;
    PairRows rows; // the heads and sequences at hand
    int RM;        // outer features
    int queries;   // of a head in one block
    int keys;      // the most that a query sees
    PairFeatures q, k, dq, dk;
    float *values, *d_values; // (rows, columns)
    float *numerator, *gamma; // (rows, columns)
    float *scores, *dots, *d; // (heads * sequences, queries, keys) of a block
    float *d_projections;     // (heads, RM, HS) where omega is trained
    LinearDecay decay;
    float *d_log_decay; // (rows) what reaches a learned decay's logarithm through each query
} Pass;

typedef struct { // hands out pieces of a block; without a block it only counts
    float *base;
    size_t used;
} Arena;

static float *take(Arena *arena, size_t count) {
    float *piece = arena->base ? arena->base + arena->used : NULL;
    arena->used += (count + 31) / 32 * 32;
    return piece;
}

static PairFeatures take_features(Arena *arena, const Pass *pass, int is_gradient) {
    size_t rows = row_count(pass->rows);
    PairFeatures features;
    features.unit = take(arena, rows * pass->rows.HS);
    features.outer = take(arena, rows * pass->RM);
    features.inverse_norm = take(arena, is_gradient ? 0 : rows);
    features.projected = take(arena, is_gradient ? 0 : rows * pass->RM);
    return features;
}

// Places everything in `base` for the pass's rows; returns the size in numbers. base may be NULL.
static size_t lay_out(Pass *pass, float *base, int is_backward) {
    Arena arena = {base, 0};
    size_t wide = row_count(pass->rows) * pass->rows.columns;
    size_t pairs = (size_t)pass->rows.heads * pass->rows.sequences * pass->queries * pass->keys;
    pass->q = take_features(&arena, pass, 0);
    pass->k = take_features(&arena, pass, 0);
    pass->values = take(&arena, wide);
    pass->scores = take(&arena, pairs);
    pass->dots = take(&arena, pairs);
    pass->numerator = take(&arena, is_backward ? 0 : wide);
    if (!is_backward) return arena.used;
    pass->dq = take_features(&arena, pass, 1);
    pass->dk = take_features(&arena, pass, 1);
    pass->gamma = take(&arena, wide);
    pass->d_values = take(&arena, wide);
    pass->d = take(&arena, pairs);
    pass->d_projections = take(&arena, pass->config->learn ? (size_t)pass->rows.heads * pass->RM * pass->rows.HS : 0);
    pass->d_log_decay = take(&arena, pass->config->decay == DECAY_LEARNED ? row_count(pass->rows) : 0);
    return arena.used;
}

// As many heads, then sequences, go together as pairs_gpu_group_numbers has room for.
static Pass make_pass(int is_backward, int keys, const float *packed, const float *parameters,
                      const AttentionConfig *config, cudaStream_t stream) {
    Pass pass = {};
    pass.config = config, pass.packed = packed, pass.stream = stream;
    pass.decay = {config->decay, config->NH, config->decay_shortest, config->decay_longest, parameters};
    pass.RM = config->R * config->M;
    pass.keys = keys;
    pass.queries = min_int(config->chunk ? config->chunk : BLOCK_QUERIES, config->T);
    PairRows *rows = &pass.rows;
    rows->NH = config->NH, rows->HS = config->HS, rows->T = config->T;
    rows->columns = (config->HS + 1 + 7) / 8 * 8;
    rows->heads = rows->sequences = 1;
    size_t tasks = pairs_gpu_group_numbers / lay_out(&pass, NULL, is_backward), NH = (size_t)config->NH;
    if (tasks > 1) rows->heads = tasks < NH ? (int)tasks : config->NH;
    if (tasks > NH) rows->sequences = tasks / NH < (size_t)config->B ? (int)(tasks / NH) : config->B;
    return pass;
}

// The pass for n positions of one sequence, for which work_size has room: no larger than that for all T.
static Pass make_step(int n, AttentionConfig *one, const float *packed, const float *parameters, cudaStream_t stream) {
    one->B = 1, one->positions = NULL;
    Pass pass = make_pass(0, one->max_T, packed, parameters, one, stream);
    pass.rows.T = n;
    pass.queries = min_int(pass.queries, n);
    return pass;
}

// ---- rows in and out

// q and k (rows, HS), extended values (rows, columns)
__global__ static void load_kernel(float *q, float *k, float *values, const floatX *qkv, PairRows rows) {
    size_t row = pair_row();
    if (row >= row_count(rows)) return;
    PairPlace place = place_of(rows, row);
    int HS = rows.HS;
    for (int c = threadIdx.x; c < HS; c += PAIR_LANES) {
        q[row * HS + c] = as_input(qkv[head_at(rows, place, 0, 3) + c]);
        k[row * HS + c] = as_input(qkv[head_at(rows, place, 1, 3) + c]);
    }
    for (int c = threadIdx.x; c < rows.columns; c += PAIR_LANES)
        values[row * rows.columns + c] = c < HS ? as_input(qkv[head_at(rows, place, 2, 3) + c]) : c == HS ? 1.0f : 0.0f;
}

__global__ static void store_gradient_kernel(floatX *dqkv, const float *dq, const float *dk, const float *d_values,
                                             PairRows rows) {
    size_t row = pair_row();
    if (row >= row_count(rows)) return;
    PairPlace place = place_of(rows, row);
    for (int c = threadIdx.x; c < rows.HS; c += PAIR_LANES) {
        dqkv[head_at(rows, place, 0, 3) + c] = from_float<floatX>(dq[row * rows.HS + c]);
        dqkv[head_at(rows, place, 1, 3) + c] = from_float<floatX>(dk[row * rows.HS + c]);
        dqkv[head_at(rows, place, 2, 3) + c] = from_float<floatX>(d_values[row * rows.columns + c]);
    }
}

static DenominatorRule rule_of(const AttentionConfig *config) {
    DenominatorRule rule = {config->delta, config->denominator == DENOMINATOR_CLAMP, 0};
    return rule;
}

// numerator (rows, columns), with the sum in column HS -> out; `denominators` (B * NH, T) may be NULL.
__global__ static void output_kernel(floatX *out, float *denominators, const float *numerator, DenominatorRule rule,
                                     PairRows rows) {
    size_t row = pair_row();
    if (row >= row_count(rows)) return;
    PairPlace place = place_of(rows, row);
    const float *sums = numerator + row * rows.columns;
    float g = stabilised(sums[rows.HS], rule);
    floatX *to = out + head_at(rows, place, 0, 1);
    for (int c = threadIdx.x; c < rows.HS; c += PAIR_LANES) to[c] = from_float<floatX>(sums[c] / g);
    if (denominators && threadIdx.x == 0) denominators[place.task * rows.T + place.t] = g;
}

typedef struct {
    const floatX *dout, *out;  // (B, T, C)
    const float *denominators; // (B * NH, T)
    DenominatorRule rule;
} OutputGradient;

// gamma (rows, columns): the gradient of the numerator, and in column HS that of the sum.
__global__ static void load_output_gradient_kernel(float *gamma, OutputGradient gradient, PairRows rows) {
    size_t row = pair_row();
    if (row >= row_count(rows)) return;
    PairPlace place = place_of(rows, row);
    size_t at = head_at(rows, place, 0, 1);
    float *to = gamma + row * rows.columns, g = gradient.denominators[place.task * rows.T + place.t], dot = 0;
    for (int c = threadIdx.x; c < rows.HS; c += PAIR_LANES)
        dot += to_float(gradient.dout[at + c]) * to_float(gradient.out[at + c]);
    float beta = sum_gradient(pair_warp_sum(dot), g, gradient.rule);
    for (int c = threadIdx.x; c < rows.columns; c += PAIR_LANES)
        to[c] = c < rows.HS ? to_float(gradient.dout[at + c]) / g : c == rows.HS ? beta : 0.0f;
}

// Loads the heads and sequences from the given ones on, as many as go together in `largest`, and makes their features.
static void load(Pass *pass, const PairRows *largest, int head, int sequence, const floatX *qkv) {
    pass->rows = *largest;
    pass->rows.first_head = head, pass->rows.first_sequence = sequence;
    pass->rows.heads = min_int(largest->heads, largest->NH - head);
    pass->rows.sequences = min_int(largest->sequences, pass->config->B - sequence);
    load_kernel<<<pair_row_blocks(row_count(pass->rows)), pair_row_threads(), 0, pass->stream>>>(
        pass->q.unit, pass->k.unit, pass->values, qkv, pass->rows);
    launch_check();
    slay_exact_features(pass->k, pass->rows, pass->packed, pass->config, pass->stream);
    slay_exact_features(pass->q, pass->rows, pass->packed, pass->config, pass->stream);
}

// ---- blocks of queries

typedef struct {
    int first, queries; // rows of each head
    int keys;           // that the last of them sees
    int key_rows;       // from one head's keys to the next one's
} Block;

static Block block_at(const Pass *pass, int first, const Keys *keys) {
    int queries = min_int(pass->queries, pass->rows.T - first);
    Block block = {first, queries, pass->rows.position + first + queries, keys->rows};
    return block;
}

static PairOperand queries_of(const Pass *pass, const float *rows, int width, Block block) {
    PairOperand operand = {rows + (size_t)block.first * width, width, (size_t)pass->rows.T * width, 0};
    return operand;
}

static PairOperand keys_of(const float *rows, int width, Block block, int transposed) {
    PairOperand operand = {rows, width, (size_t)block.key_rows * width, transposed};
    return operand;
}

static PairOperand pairs_of(const float *pairs, Block block, int transposed) {
    PairOperand operand = {pairs, block.keys, (size_t)block.queries * block.keys, transposed};
    return operand;
}

// out (rows, columns) = left * right for every head; `like` says where in memory out is
static void multiply(const Pass *pass, PairOperand like, int rows, int columns, int depth, PairOperand left,
                     PairOperand right, int accumulate) {
    PairProduct size = {rows, columns, depth, pass->rows.heads * pass->rows.sequences};
    pairs_multiply((float *)like.at, like.stride, like.step, left, right, size, accumulate, sizeof(floatX) == 2,
                   pass->stream);
}

// pairs = queries keys^T
static void compare(const Pass *pass, float *pairs, const float *queries, const float *keys, int width, Block block) {
    multiply(pass, pairs_of(pairs, block, 0), block.queries, block.keys, width, queries_of(pass, queries, width, block),
             keys_of(keys, width, block, 1), 0);
}

// queries = pairs keys
static void gather(const Pass *pass, float *queries, const float *pairs, const float *keys, int width, Block block) {
    multiply(pass, queries_of(pass, queries, width, block), block.queries, width, block.keys, pairs_of(pairs, block, 0),
             keys_of(keys, width, block, 0), 0);
}

// keys = pairs^T queries, added to when `accumulate`
static void scatter(const Pass *pass, float *keys, const float *pairs, const float *queries, int width, Block block,
                    int accumulate) {
    multiply(pass, keys_of(keys, width, block, 0), block.keys, width, block.queries, pairs_of(pairs, block, 1),
             queries_of(pass, queries, width, block), accumulate);
}

static size_t block_rows(const Pass *pass, Block block) {
    return (size_t)pass->rows.heads * pass->rows.sequences * block.queries;
}

typedef struct { // how the pairs of a block fade
    LinearDecay decay;
    int first_head, head_rows; // rows of the block that each head has
    const int *positions;      // (sequences, T) of each query in its document; NULL: rows are documents
} PairDecay;

static PairDecay decay_of(const Pass *pass, Block block) {
    const int *positions = pass->config->positions;
    if (positions) positions += (size_t)pass->rows.first_sequence * pass->rows.T;
    PairDecay decay = {pass->decay, pass->rows.first_head, pass->rows.sequences * block.queries, positions};
    return decay;
}

__device__ static inline float log_decay_of_row(PairDecay decay, size_t row) {
    return log_decay_of(decay.decay, decay.first_head + (int)(row / decay.head_rows));
}

// The first key that a row of the block sees; `own` is its own.
__device__ static inline int first_key(PairDecay decay, Block block, size_t row, int own) {
    size_t sequence = row % decay.head_rows / block.queries;
    return decay.positions ? own - decay.positions[sequence * block.key_rows + own] : 0;
}

// scores, so far <outer, outer>, times the squares of dots and the decay; 0 for keys that the query does not see.
__global__ static void pair_score_kernel(float *scores, const float *dots, Block block, PairDecay decay, size_t rows) {
    size_t row = pair_row();
    if (row >= rows) return;
    int own = block.keys - block.queries + (int)(row % block.queries); // the query's own key
    int first = first_key(decay, block, row, own);
    float log_decay = log_decay_of_row(decay, row);
    for (int j = threadIdx.x; j < block.keys; j += PAIR_LANES) {
        size_t at = row * block.keys + j;
        float faded = expf(log_decay * (float)(own - j));
        scores[at] = j >= first && j <= own ? scores[at] * (dots[at] * dots[at]) * faded : 0.0f;
    }
}

// The same, and what reaches each factor: d becomes that of <outer, outer>, dots that of <u, u>. d_log_decay (rows of
// all blocks) may be NULL.
__global__ static void pair_gradient_kernel(float *scores, float *dots, float *d, float *d_log_decay, Block block,
                                            PairDecay decay, int T, size_t rows) {
    size_t row = pair_row();
    if (row >= rows) return;
    int own = block.keys - block.queries + (int)(row % block.queries), first = first_key(decay, block, row, own);
    float log_decay = log_decay_of_row(decay, row), along = 0;
    for (int j = threadIdx.x; j < block.keys; j += PAIR_LANES) {
        size_t at = row * block.keys + j;
        float outer = scores[at], dot = dots[at], slope = d[at], faded = expf(log_decay * (float)(own - j));
        bool is_seen = j >= first && j <= own;
        scores[at] = is_seen ? outer * (dot * dot) * faded : 0.0f;
        dots[at] = is_seen ? slope * outer * (2 * dot) * faded : 0.0f;
        d[at] = is_seen ? slope * (dot * dot) * faded : 0.0f;
        if (is_seen) along += (float)(own - j) * scores[at] * slope;
    }
    along = pair_warp_sum(along);
    if (d_log_decay && threadIdx.x == 0)
        d_log_decay[row / block.queries * T + block.first + row % block.queries] = along;
}

// Adds to a learned decay's gradient what its logarithm has gathered; as attention_decay_gradient. A block per head.
__global__ static void decay_gradient_kernel(float *dparameters, const float *d_log_decay, PairDecay decay) {
    __shared__ double sums[PAIR_WARPS * PAIR_LANES];
    int head = decay.first_head + (int)blockIdx.x;
    double sum = 0;
    for (int i = threadIdx.x; i < decay.head_rows; i += PAIR_WARPS * PAIR_LANES)
        sum += d_log_decay[(size_t)blockIdx.x * decay.head_rows + i];
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x) return;
    for (int i = 1; i < PAIR_WARPS * PAIR_LANES; i++) sum += sums[i];
    dparameters[head] += (float)(sum / (1 + exp((double)decay.decay.parameters[head])));
}

// ---- forward and decoding

// All queries against the keys; what they find goes to `out` and, unless it is NULL, `saved`.
static void attend(const Pass *pass, floatX *out, float *saved, const Keys *keys) {
    dim3 threads = pair_row_threads();
    for (int first = 0; first < pass->rows.T; first += pass->queries) {
        Block block = block_at(pass, first, keys);
        size_t rows = block_rows(pass, block);
        compare(pass, pass->scores, pass->q.outer, keys->outer, pass->RM, block);
        compare(pass, pass->dots, pass->q.unit, keys->unit, pass->rows.HS, block);
        pair_score_kernel<<<pair_row_blocks(rows), threads, 0, pass->stream>>>(pass->scores, pass->dots, block,
                                                                               decay_of(pass, block), rows);
        launch_check();
        gather(pass, pass->numerator, pass->scores, keys->values, pass->rows.columns, block);
    }
    output_kernel<<<pair_row_blocks(row_count(pass->rows)), threads, 0, pass->stream>>>(
        out, saved, pass->numerator, rule_of(pass->config), pass->rows);
    launch_check();
}

static Keys own_keys(const Pass *pass) {
    Keys keys = {pass->k.outer, pass->k.unit, pass->values, pass->rows.T};
    return keys;
}

void pairs_gpu_forward(floatX *out, float *saved, const floatX *qkv, const float *packed, const float *parameters,
                       float *work, const AttentionConfig *config, cudaStream_t stream) {
    Pass pass = make_pass(0, config->T, packed, parameters, config, stream);
    PairRows largest = pass.rows;
    lay_out(&pass, work, 0);
    for (int sequence = 0; sequence < config->B; sequence += largest.sequences)
        for (int head = 0; head < config->NH; head += largest.heads) {
            load(&pass, &largest, head, sequence, qkv);
            Keys keys = own_keys(&pass);
            attend(&pass, out, saved, &keys);
        }
}

// The cache's rows of the heads from `head` on.
static Keys cached_keys(const Pass *pass, float *cache, size_t head) {
    size_t rows = pass->config->max_T, all = rows * pass->config->NH, before = head * rows;
    size_t outer = pass->RM, HS = pass->rows.HS;
    Keys keys = {cache + before * outer, cache + all * outer + before * HS,
                 cache + all * (outer + HS) + before * pass->rows.columns, (int)rows};
    return keys;
}

// Rows 0 .. T-1 of every head go to its rows from the step's position on.
static void remember(const Pass *pass, float *to, const float *from, int width, const Keys *keys) {
    size_t row = width * sizeof(float), rows = pass->rows.T * row;
    cuda_check(cudaMemcpy2DAsync(to + (size_t)pass->rows.position * width, keys->rows * row, from, rows, rows,
                                 pass->rows.heads, cudaMemcpyDeviceToDevice, pass->stream));
}

void pairs_gpu_step(floatX *out, float *cache, int pos, int n, const floatX *qkv, const float *packed,
                    const float *parameters, float *work, const AttentionConfig *config, cudaStream_t stream) {
    AttentionConfig one = *config;
    Pass pass = make_step(n, &one, packed, parameters, stream);
    pass.rows.position = pos;
    PairRows largest = pass.rows;
    lay_out(&pass, work, 0);
    for (int head = 0; head < config->NH; head += largest.heads) {
        load(&pass, &largest, head, 0, qkv);
        Keys keys = cached_keys(&pass, cache, head);
        remember(&pass, keys.outer, pass.k.outer, pass.RM, &keys);
        remember(&pass, keys.unit, pass.k.unit, config->HS, &keys);
        remember(&pass, keys.values, pass.values, largest.columns, &keys);
        attend(&pass, out, NULL, &keys);
    }
}

// ---- decoding from a position in device memory: launches are the same for every position

typedef struct {
    const float *outer, *unit, *values; // of one row of each head
} DecodeRows;

// A row for each head goes to the head's row *position of the keys.
__global__ static void remember_kernel(Keys keys, DecodeRows row, int RM, PairRows rows, const int *position) {
    size_t head = pair_row(), to = head * keys.rows + *position;
    if (head >= (size_t)rows.heads) return;
    for (int e = threadIdx.x; e < RM; e += PAIR_LANES) keys.outer[to * RM + e] = row.outer[head * RM + e];
    for (int c = threadIdx.x; c < rows.HS; c += PAIR_LANES) keys.unit[to * rows.HS + c] = row.unit[head * rows.HS + c];
    for (int c = threadIdx.x; c < rows.columns; c += PAIR_LANES)
        keys.values[to * rows.columns + c] = row.values[head * rows.columns + c];
}

// scores (heads, keys.rows) of a query for each head with the keys up to *position. A warp per key, heads in
// blockIdx.y.
__global__ static void decode_score_kernel(float *scores, Keys keys, DecodeRows q, int RM, int HS, PairDecay decay,
                                           const int *position) {
    size_t key = pair_row(), head = blockIdx.y, at = head * keys.rows + key;
    if (key > (size_t)*position) return;
    float outer = 0, dot = 0;
    for (int e = threadIdx.x; e < RM; e += PAIR_LANES) outer += q.outer[head * RM + e] * keys.outer[at * RM + e];
    for (int c = threadIdx.x; c < HS; c += PAIR_LANES) dot += q.unit[head * HS + c] * keys.unit[at * HS + c];
    outer = pair_warp_sum(outer), dot = pair_warp_sum(dot);
    float log_decay = log_decay_of(decay.decay, decay.first_head + (int)head);
    if (threadIdx.x == 0) scores[at] = outer * (dot * dot) * expf(log_decay * (float)(*position - (int)key));
}

// numerator (heads, columns): a lane per column, heads in blockIdx.y; each warp has every eighth key.
__global__ static void decode_gather_kernel(float *numerator, const float *scores, Keys keys, int columns,
                                            const int *position) {
    __shared__ float sums[PAIR_WARPS][PAIR_LANES];
    int c = (int)(blockIdx.x * PAIR_LANES + threadIdx.x);
    size_t head = blockIdx.y;
    float sum = 0;
    for (int key = threadIdx.y; c < columns && key <= *position; key += PAIR_WARPS)
        sum += scores[head * keys.rows + key] * keys.values[(head * keys.rows + key) * columns + c];
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || c >= columns) return;
    for (int warp = 1; warp < PAIR_WARPS; warp++) sum += sums[warp][threadIdx.x];
    numerator[head * columns + c] = sum;
}

void pairs_gpu_decode(floatX *out, float *cache, const int *position, const floatX *qkv, const float *packed,
                      const float *parameters, float *work, const AttentionConfig *config, cudaStream_t stream) {
    AttentionConfig one = *config;
    Pass pass = make_step(1, &one, packed, parameters, stream);
    PairRows largest = pass.rows;
    dim3 threads = pair_row_threads();
    lay_out(&pass, work, 0);
    for (int head = 0; head < config->NH; head += largest.heads) {
        load(&pass, &largest, head, 0, qkv);
        Keys keys = cached_keys(&pass, cache, head);
        PairDecay decay = {pass.decay, head, 1, NULL};
        DecodeRows q = {pass.q.outer, pass.q.unit, NULL}, k = {pass.k.outer, pass.k.unit, pass.values};
        unsigned heads = (unsigned)pass.rows.heads, across = (unsigned)(largest.columns + PAIR_LANES - 1) / PAIR_LANES;
        remember_kernel<<<pair_row_blocks(heads), threads, 0, stream>>>(keys, k, pass.RM, pass.rows, position);
        launch_check();
        decode_score_kernel<<<dim3(pair_row_blocks(keys.rows).x, heads), threads, 0, stream>>>(
            pass.scores, keys, q, pass.RM, config->HS, decay, position);
        launch_check();
        decode_gather_kernel<<<dim3(across, heads), threads, 0, stream>>>(pass.numerator, pass.scores, keys,
                                                                          largest.columns, position);
        launch_check();
        output_kernel<<<pair_row_blocks(heads), threads, 0, stream>>>(out, NULL, pass.numerator, rule_of(config),
                                                                      pass.rows);
        launch_check();
    }
}

// ---- backward

static void backward_block(const Pass *pass, Block block, int accumulate) {
    int outer = pass->RM, HS = pass->rows.HS, columns = pass->rows.columns;
    size_t rows = block_rows(pass, block);
    compare(pass, pass->scores, pass->q.outer, pass->k.outer, outer, block);
    compare(pass, pass->dots, pass->q.unit, pass->k.unit, HS, block);
    compare(pass, pass->d, pass->gamma, pass->values, columns, block);
    pair_gradient_kernel<<<pair_row_blocks(rows), pair_row_threads(), 0, pass->stream>>>(
        pass->scores, pass->dots, pass->d, pass->config->decay == DECAY_LEARNED ? pass->d_log_decay : NULL, block,
        decay_of(pass, block), pass->rows.T, rows);
    launch_check();
    gather(pass, pass->dq.outer, pass->d, pass->k.outer, outer, block);
    gather(pass, pass->dq.unit, pass->dots, pass->k.unit, HS, block);
    scatter(pass, pass->dk.outer, pass->d, pass->q.outer, outer, block, accumulate);
    scatter(pass, pass->dk.unit, pass->dots, pass->q.unit, HS, block, accumulate);
    scatter(pass, pass->d_values, pass->scores, pass->gamma, columns, block, accumulate);
}

// The heads and sequences at hand. The last block sees all keys: the blocks before it add to what it has written.
static void backward_group(Pass *pass, floatX *dqkv, float *dparameters, OutputGradient gradient) {
    dim3 blocks = pair_row_blocks(row_count(pass->rows)), threads = pair_row_threads();
    int last = (pass->rows.T - 1) / pass->queries * pass->queries;
    Keys keys = own_keys(pass);
    load_output_gradient_kernel<<<blocks, threads, 0, pass->stream>>>(pass->gamma, gradient, pass->rows);
    launch_check();
    for (int first = last; first >= 0; first -= pass->queries)
        backward_block(pass, block_at(pass, first, &keys), first < last);
    if (pass->config->decay == DECAY_LEARNED) {
        PairDecay decay = {pass->decay, pass->rows.first_head, pass->rows.sequences * pass->rows.T, NULL};
        decay_gradient_kernel<<<(unsigned)pass->rows.heads, PAIR_WARPS * PAIR_LANES, 0, pass->stream>>>(
            dparameters, pass->d_log_decay, decay);
        launch_check();
    }
    const PairFeatures d[2] = {pass->dq, pass->dk}, features[2] = {pass->q, pass->k};
    for (int i = 0; i < 2; i++) {
        slay_exact_gradient(d[i], features[i], pass->rows, pass->packed, pass->config, pass->stream);
        if (pass->config->learn)
            slay_exact_add_gradient(dparameters, pass->d_projections, features[i], pass->rows, pass->packed,
                                    pass->config, pass->stream);
    }
    store_gradient_kernel<<<blocks, threads, 0, pass->stream>>>(dqkv, pass->dq.unit, pass->dk.unit, pass->d_values,
                                                                pass->rows);
    launch_check();
}

void pairs_gpu_backward(floatX *dqkv, float *dparameters, const floatX *dout, const floatX *qkv, const floatX *out,
                        const float *saved, const float *packed, const float *parameters, float *work,
                        const AttentionConfig *config, cudaStream_t stream) {
    Pass pass = make_pass(1, config->T, packed, parameters, config, stream);
    PairRows largest = pass.rows;
    OutputGradient gradient = {dout, out, saved, rule_of(config)};
    lay_out(&pass, work, 1);
    for (int sequence = 0; sequence < config->B; sequence += largest.sequences)
        for (int head = 0; head < config->NH; head += largest.heads) {
            load(&pass, &largest, head, sequence, qkv);
            backward_group(&pass, dqkv, dparameters, gradient);
        }
}

// ---- sizes

size_t pairs_gpu_saved_size(const AttentionConfig *config) {
    return (size_t)config->B * config->NH * config->T;
}

size_t pairs_gpu_work_size(const AttentionConfig *config) {
    AttentionConfig one = *config;
    Pass passes[] = {make_pass(0, config->T, NULL, NULL, config, 0), make_step(config->T, &one, NULL, NULL, 0),
                     make_pass(1, config->T, NULL, NULL, config, 0)};
    size_t largest = 0;
    for (int i = 0; i < 3; i++) {
        size_t size = lay_out(&passes[i], NULL, i == 2);
        if (size > largest) largest = size;
    }
    return largest;
}

size_t pairs_gpu_cache_size(const AttentionConfig *config) {
    return (size_t)config->NH * config->max_T * (config->R * config->M + config->HS + (config->HS + 1 + 7) / 8 * 8);
}
