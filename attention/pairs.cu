#include "pairs_gpu.h"
#include "linear_rows.cuh"

enum { BLOCK_QUERIES = 128 };

// ---- a pass and its scratch

typedef struct {                  // keys of the heads and sequences at hand
    float *outer, *unit, *values; // (heads * sequences, rows, ...)
    int rows;
} Keys;

typedef struct {
    const LinearMapGPU *map;
    const AttentionConfig *config;
    const float *constants;
    cudaStream_t stream;
    Segment segment; // the heads and sequences at hand, each with all its rows as one chunk
    int queries;     // of a head in one block
    int keys;        // the most that a query sees
    float *packed;
    LinearFeaturesGPU q, k, dq, dk;
    float *values, *d_values; // (rows, columns)
    float *numerator, *gamma; // (rows, columns)
    float *scores, *dots, *d; // (heads * sequences, queries, keys) of a block
} Pass;

// Places everything in `base` for the pass's segment; returns the size in numbers. base may be NULL.
static size_t lay_out(Pass *pass, float *base, int is_backward) {
    const LinearMapGPU *map = pass->map;
    Arena arena = {base, 0};
    int HS = pass->segment.HS;
    size_t rows = segment_rows(pass->segment), wide = rows * pass->segment.columns;
    size_t pairs = (size_t)pass->segment.heads * pass->segment.sequences * pass->queries * pass->keys;
    pass->packed = take(&arena, map->packed_size * pass->segment.heads);
    float *tape = take(&arena, rows * map->tape), *own_tape = is_backward ? take(&arena, rows * map->tape) : tape;
    pass->q = take_features(&arena, map, rows, HS, tape); // the forward pass needs no tape again: one for both
    pass->k = take_features(&arena, map, rows, HS, own_tape);
    pass->values = take(&arena, wide);
    pass->scores = take(&arena, pairs);
    pass->dots = take(&arena, pairs);
    if (!is_backward) {
        pass->numerator = take(&arena, wide);
        return arena.used;
    }
    pass->dq = take_features(&arena, map, rows, HS, NULL);
    pass->dk = take_features(&arena, map, rows, HS, NULL);
    pass->gamma = take(&arena, wide);
    pass->d_values = take(&arena, wide);
    pass->d = take(&arena, pairs);
    return arena.used;
}

// As many heads, then sequences, go together as linear_gpu_segment_numbers has room for.
static Pass make_pass(const LinearMapGPU *map, int is_backward, int keys, const float *constants,
                      const AttentionConfig *config, cudaStream_t stream) {
    Pass pass = {};
    pass.map = map, pass.config = config, pass.constants = constants, pass.stream = stream;
    pass.keys = keys;
    pass.queries = min_int(config->chunk ? config->chunk : BLOCK_QUERIES, config->T);
    Segment *segment = &pass.segment;
    segment->NH = config->NH, segment->HS = config->HS;
    segment->T = segment->chunk = config->T;
    segment->columns = value_columns(config->HS);
    segment->heads = segment->sequences = segment->chunks = 1;
    size_t tasks = linear_gpu_segment_numbers / lay_out(&pass, NULL, is_backward), NH = (size_t)config->NH;
    if (tasks > 1) segment->heads = tasks < NH ? (int)tasks : config->NH;
    if (tasks > NH) segment->sequences = tasks / NH < (size_t)config->B ? (int)(tasks / NH) : config->B;
    return pass;
}

// The pass for n positions of one sequence, for which work_size has room: no larger than that for all T.
static Pass make_step(const LinearMapGPU *map, int n, AttentionConfig *one, const float *constants,
                      cudaStream_t stream) {
    one->B = 1;
    Pass pass = make_pass(map, 0, one->max_T, constants, one, stream);
    pass.segment.T = pass.segment.chunk = n;
    pass.queries = min_int(pass.queries, n);
    return pass;
}

// Loads the given heads and sequences and makes their features.
static void load(Pass *pass, const Segment *largest, int head, int sequence, const floatX *qkv) {
    const LinearMapGPU *map = pass->map;
    pass->segment = group_at(largest, head, sequence, pass->config->B);
    LinearRowsGPU rows = map_rows(&pass->segment);
    map->pack(pass->packed, pass->constants, head, pass->segment.heads, pass->config, pass->stream);
    load_kernel<<<linear_row_blocks(segment_rows(pass->segment)), linear_row_threads(), 0, pass->stream>>>(
        pass->q.x, pass->k.x, pass->values, qkv, pass->segment);
    launch_check();
    map->features(&pass->k, rows, pass->packed, pass->constants, pass->config, pass->stream);
    map->features(&pass->q, rows, pass->packed, pass->constants, pass->config, pass->stream);
}

// ---- blocks of queries

typedef struct {
    int first, queries; // rows of each head
    int keys;           // that the last of them sees
    int key_rows;       // from one head's keys to the next one's
} Block;

static Block block_at(const Pass *pass, int first, const Keys *keys) {
    int queries = min_int(pass->queries, pass->segment.T - first);
    Block block = {first, queries, pass->segment.position + first + queries, keys->rows};
    return block;
}

static LinearOperand queries_of(const Pass *pass, const float *rows, int width, Block block) {
    LinearOperand operand = {rows + (size_t)block.first * width, width, (size_t)pass->segment.T * width, 0};
    return operand;
}

static LinearOperand keys_of(const float *rows, int width, Block block, int transposed) {
    LinearOperand operand = {rows, width, (size_t)block.key_rows * width, transposed};
    return operand;
}

static LinearOperand pairs_of(const float *pairs, Block block, int transposed) {
    LinearOperand operand = {pairs, block.keys, (size_t)block.queries * block.keys, transposed};
    return operand;
}

// out (rows, columns) = left * right for every head; `like` says where in memory out is
static void multiply(const Pass *pass, LinearOperand like, int rows, int columns, int depth, LinearOperand left,
                     LinearOperand right, int accumulate) {
    LinearProduct size = {rows, columns, depth, pass->segment.heads * pass->segment.sequences};
    linear_gpu_multiply((float *)like.at, like.stride, like.step, left, right, size, 1, accumulate,
                        uses_tensor_cores(pass->map), pass->stream);
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
    return (size_t)pass->segment.heads * pass->segment.sequences * block.queries;
}

// scores, so far <outer, outer>, times the squares of dots; 0 for keys that the query does not see.
__global__ static void pair_score_kernel(float *scores, const float *dots, Block block, size_t rows) {
    size_t row = linear_row();
    if (row >= rows) return;
    int visible = block.keys - block.queries + (int)(row % block.queries) + 1;
    for (int j = threadIdx.x; j < block.keys; j += LINEAR_LANES) {
        size_t at = row * block.keys + j;
        scores[at] = j < visible ? scores[at] * (dots[at] * dots[at]) : 0.0f;
    }
}

// The same, and what reaches each factor: d becomes that of <outer, outer>, dots that of <u, u>.
__global__ static void pair_gradient_kernel(float *scores, float *dots, float *d, Block block, size_t rows) {
    size_t row = linear_row();
    if (row >= rows) return;
    int visible = block.keys - block.queries + (int)(row % block.queries) + 1;
    for (int j = threadIdx.x; j < block.keys; j += LINEAR_LANES) {
        size_t at = row * block.keys + j;
        float outer = scores[at], dot = dots[at], slope = d[at];
        scores[at] = j < visible ? outer * (dot * dot) : 0.0f;
        dots[at] = j < visible ? slope * outer * (2 * dot) : 0.0f;
        d[at] = j < visible ? slope * (dot * dot) : 0.0f;
    }
}

// ---- forward and decoding

// All queries against the keys; what they find goes to `out` and, unless it is NULL, `saved`.
static void attend(const Pass *pass, floatX *out, float *saved, const Keys *keys) {
    dim3 threads = linear_row_threads();
    for (int first = 0; first < pass->segment.T; first += pass->queries) {
        Block block = block_at(pass, first, keys);
        size_t rows = block_rows(pass, block);
        compare(pass, pass->scores, pass->q.outer, keys->outer, pass->map->outer, block);
        compare(pass, pass->dots, pass->q.x, keys->unit, pass->segment.HS, block);
        pair_score_kernel<<<linear_row_blocks(rows), threads, 0, pass->stream>>>(pass->scores, pass->dots, block, rows);
        launch_check();
        gather(pass, pass->numerator, pass->scores, keys->values, pass->segment.columns, block);
    }
    output_kernel<<<linear_row_blocks(segment_rows(pass->segment)), threads, 0, pass->stream>>>(
        out, saved, pass->numerator, denominator_rule(pass->map, pass->config), pass->segment);
    launch_check();
}

static Keys own_keys(const Pass *pass) {
    Keys keys = {pass->k.outer, pass->k.x, pass->values, pass->segment.T};
    return keys;
}

void pairs_gpu_forward(const LinearMapGPU *map, floatX *out, float *saved, const floatX *qkv, const float *constants,
                       const float *parameters, float *work, const AttentionConfig *config, cudaStream_t stream) {
    Pass pass = make_pass(map, 0, config->T, constants, config, stream);
    Segment largest = pass.segment;
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
    size_t outer = pass->map->outer, HS = pass->segment.HS;
    Keys keys = {cache + before * outer, cache + all * outer + before * HS,
                 cache + all * (outer + HS) + before * pass->segment.columns, (int)rows};
    return keys;
}

// Rows 0 .. T-1 of every head go to its rows from the segment's position on.
static void remember(const Pass *pass, float *to, const float *from, int width, const Keys *keys) {
    size_t row = width * sizeof(float), rows = pass->segment.T * row;
    cuda_check(cudaMemcpy2DAsync(to + (size_t)pass->segment.position * width, keys->rows * row, from, rows, rows,
                                 pass->segment.heads, cudaMemcpyDeviceToDevice, pass->stream));
}

void pairs_gpu_step(const LinearMapGPU *map, floatX *out, float *cache, int pos, int n, const floatX *qkv,
                    const float *constants, const float *parameters, float *work, const AttentionConfig *config,
                    cudaStream_t stream) {
    AttentionConfig one = *config;
    Pass pass = make_step(map, n, &one, constants, stream);
    pass.segment.position = pos;
    Segment largest = pass.segment;
    lay_out(&pass, work, 0);
    for (int head = 0; head < config->NH; head += largest.heads) {
        load(&pass, &largest, head, 0, qkv);
        Keys keys = cached_keys(&pass, cache, head);
        remember(&pass, keys.outer, pass.k.outer, map->outer, &keys);
        remember(&pass, keys.unit, pass.k.x, config->HS, &keys);
        remember(&pass, keys.values, pass.values, largest.columns, &keys);
        attend(&pass, out, NULL, &keys);
    }
}

// ---- backward

static void backward_block(const Pass *pass, Block block, int accumulate) {
    int outer = pass->map->outer, HS = pass->segment.HS, columns = pass->segment.columns;
    size_t rows = block_rows(pass, block);
    compare(pass, pass->scores, pass->q.outer, pass->k.outer, outer, block);
    compare(pass, pass->dots, pass->q.x, pass->k.x, HS, block);
    compare(pass, pass->d, pass->gamma, pass->values, columns, block);
    pair_gradient_kernel<<<linear_row_blocks(rows), linear_row_threads(), 0, pass->stream>>>(pass->scores, pass->dots,
                                                                                             pass->d, block, rows);
    launch_check();
    gather(pass, pass->dq.outer, pass->d, pass->k.outer, outer, block);
    gather(pass, pass->dq.x, pass->dots, pass->k.x, HS, block);
    scatter(pass, pass->dk.outer, pass->d, pass->q.outer, outer, block, accumulate);
    scatter(pass, pass->dk.x, pass->dots, pass->q.x, HS, block, accumulate);
    scatter(pass, pass->d_values, pass->scores, pass->gamma, columns, block, accumulate);
}

// The heads and sequences at hand. The last block sees all keys: the blocks before it add to what it has written.
static void backward_group(Pass *pass, floatX *dqkv, OutputGradient gradient) {
    dim3 blocks = linear_row_blocks(segment_rows(pass->segment)), threads = linear_row_threads();
    int last = (pass->segment.T - 1) / pass->queries * pass->queries;
    LinearRowsGPU rows = map_rows(&pass->segment);
    Keys keys = own_keys(pass);
    load_output_gradient_kernel<<<blocks, threads, 0, pass->stream>>>(pass->gamma, gradient, pass->segment);
    launch_check();
    for (int first = last; first >= 0; first -= pass->queries)
        backward_block(pass, block_at(pass, first, &keys), first < last);
    pass->map->gradient(&pass->dq, &pass->q, rows, pass->packed, pass->constants, pass->config, pass->stream);
    pass->map->gradient(&pass->dk, &pass->k, rows, pass->packed, pass->constants, pass->config, pass->stream);
    store_gradient_kernel<<<blocks, threads, 0, pass->stream>>>(dqkv, pass->dq.x, pass->dk.x, pass->d_values,
                                                                pass->segment);
    launch_check();
}

void pairs_gpu_backward(const LinearMapGPU *map, floatX *dqkv, float *dparameters, const floatX *dout,
                        const floatX *qkv, const floatX *out, const float *saved, const float *constants,
                        const float *parameters, float *work, const AttentionConfig *config, cudaStream_t stream) {
    Pass pass = make_pass(map, 1, config->T, constants, config, stream);
    Segment largest = pass.segment;
    OutputGradient gradient = {dout, out, saved, denominator_rule(map, config)};
    lay_out(&pass, work, 1);
    for (int sequence = 0; sequence < config->B; sequence += largest.sequences)
        for (int head = 0; head < config->NH; head += largest.heads) {
            load(&pass, &largest, head, sequence, qkv);
            backward_group(&pass, dqkv, gradient);
        }
}

// ---- sizes

size_t pairs_gpu_saved_size(const LinearMapGPU *, const AttentionConfig *config) {
    return (size_t)config->B * config->NH * config->T;
}

size_t pairs_gpu_work_size(const LinearMapGPU *map, const AttentionConfig *config) {
    AttentionConfig one = *config;
    Pass passes[] = {make_pass(map, 0, config->T, NULL, config, 0), make_step(map, config->T, &one, NULL, 0),
                     make_pass(map, 1, config->T, NULL, config, 0)};
    size_t largest = 0;
    for (int i = 0; i < 3; i++) {
        size_t size = lay_out(&passes[i], NULL, i == 2);
        if (size > largest) largest = size;
    }
    return largest;
}

size_t pairs_gpu_cache_size(const LinearMapGPU *map, const AttentionConfig *config) {
    return (size_t)config->NH * config->max_T * (map->outer + config->HS + value_columns(config->HS));
}
