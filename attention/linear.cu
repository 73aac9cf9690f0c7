#include "linear_kernels.cuh"

#include <string.h>

static int parts_of(int rows, int part) {
    return (rows + part - 1) / part;
}

// ---- products

void linear_gpu_multiply(float *out, int stride, size_t step, LinearOperand left, LinearOperand right,
                         LinearProduct size, float factor, int accumulate, int tensor_cores, cudaStream_t stream) {
    const int most = 32768; // matrices in one call
    float kept = accumulate ? 1 : 0;
    cublasComputeType_t compute = tensor_cores ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    for (int from = 0; from < size.batch; from += most) // cuBLAS is column-major: it gets the transpose
        cublas_check(cublasGemmStridedBatchedEx(
            cublas_on(stream), right.transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
            left.transposed ? CUBLAS_OP_T : CUBLAS_OP_N, size.columns, size.rows, size.depth, &factor,
            right.at + from * right.step, CUDA_R_32F, right.stride, (long long)right.step, left.at + from * left.step,
            CUDA_R_32F, left.stride, (long long)left.step, &kept, out + from * step, CUDA_R_32F, stride,
            (long long)step, min_int(most, size.batch - from), compute, CUBLAS_GEMM_DEFAULT));
}

void linear_gpu_project(float *out, int stride, const float *x, int x_stride, LinearOperand matrix, int width,
                        int depth, LinearRowsGPU rows, float factor, int accumulate, cudaStream_t stream) {
    size_t head_rows = (size_t)rows.sequences * rows.length;
    LinearOperand left = {x, x_stride, head_rows * x_stride, 0};
    LinearProduct size = {(int)head_rows, width, depth, rows.heads};
    linear_gpu_multiply(out, stride, head_rows * stride, left, matrix, size, factor, accumulate, 0, stream);
}

// ---- how a pass is cut up

size_t linear_gpu_segment_numbers = LINEAR_SEGMENT_NUMBERS;

typedef struct { // what a segment works with; see lay_out
    float *packed;
    LinearFeaturesGPU q, k, dq, dk;
    float *values, *d_values;    // (rows, columns)
    float *numerator, *gamma;    // (rows, columns)
    float *phi_q, *phi_k;        // (rows, F)
    float *scores, *inner, *d;   // (rows, chunk)
    float *states, *query_sums;  // (heads * sequences * chunks, F, columns)
    float *carry, *query_carry;  // (heads * sequences, F, columns) over all segments before; over all after
    float *boundaries;           // (segments, heads * sequences, F, columns) the states before each segment
    float *running_max, *shares; // (B * NH, T) log_scaled maps
} Buffers;

typedef struct {
    const LinearMapGPU *map;
    const AttentionConfig *config;
    const float *constants;
    cudaStream_t stream;
    int is_backward;
    int keeps_states; // there is history: more than one chunk, or decoding
    int segments;     // of a sequence
    Segment segment;  // the largest one, later the one at hand
    Scales scales;
    Buffers at;
} Pass;

// Width of phi.
static size_t feature_count(const LinearMapGPU *map) {
    return (size_t)map->outer * max_int(map->inner, 1);
}

static size_t state_size(const LinearMapGPU *map, int HS) {
    return feature_count(map) * value_columns(HS);
}

// Numbers that go to and from memory per row, roughly: scores, and the states and phi where there are several chunks.
static double row_traffic(const LinearMapGPU *map, int HS, int T, int chunk) {
    double F = (double)feature_count(map), pairs = 6.0 * chunk;
    return chunk >= T ? pairs : pairs + 4 * F * (1 + (double)value_columns(HS) / chunk);
}

// Rows per chunk: config->chunk, or what moves the fewest bytes; a short sequence may be one chunk, without a state.
static int chunk_rows(const LinearMapGPU *map, const AttentionConfig *config) {
    int T = config->T, whole = (T + 7) / 8 * 8, chunk = 64;
    if (config->chunk) return min_int(config->chunk, T);
    while (chunk < 1024 && row_traffic(map, config->HS, T, 2 * chunk) < row_traffic(map, config->HS, T, chunk))
        chunk *= 2;
    return T <= 2048 && row_traffic(map, config->HS, T, T) <= row_traffic(map, config->HS, T, chunk) ? whole : chunk;
}

static void lay_out_backward(Buffers *at, Arena *arena, const Pass *pass, size_t rows, size_t tasks, size_t chunks) {
    const LinearMapGPU *map = pass->map;
    size_t columns = pass->segment.columns, size = pass->keeps_states ? state_size(map, pass->segment.HS) : 0;
    at->dq = take_features(arena, map, rows, pass->segment.HS, NULL);
    at->dk = take_features(arena, map, rows, pass->segment.HS, NULL);
    at->gamma = take(arena, rows * columns);
    at->d_values = take(arena, rows * columns);
    at->d = take(arena, rows * pass->segment.chunk);
    at->query_sums = take(arena, chunks * size);
    at->query_carry = take(arena, tasks * size);
    at->boundaries = take(arena, pass->segments > 1 ? pass->segments * tasks * size : 0);
    at->shares = take(arena, map->log_scaled ? (size_t)pass->config->B * pass->config->NH * pass->config->T : 0);
}

// Places everything in `base` for the pass's segment; returns the size in numbers. base may be NULL.
static size_t lay_out(Pass *pass, float *base) {
    const LinearMapGPU *map = pass->map;
    const Segment *segment = &pass->segment;
    Arena arena = {base, 0};
    Buffers *at = &pass->at;
    size_t tasks = (size_t)segment->heads * segment->sequences, rows = segment_rows(*segment);
    size_t size = pass->keeps_states ? state_size(map, segment->HS) : 0;
    size_t phi = pass->keeps_states && map->inner ? rows * feature_count(map) : 0;
    memset(at, 0, sizeof *at);
    at->packed = take(&arena, map->packed_size * segment->heads);
    float *tape = take(&arena, rows * map->tape), *own_tape = pass->is_backward ? take(&arena, rows * map->tape) : tape;
    at->q = take_features(&arena, map, rows, segment->HS, tape); // the forward pass needs no tape again: one for both
    at->k = take_features(&arena, map, rows, segment->HS, own_tape);
    at->values = take(&arena, rows * segment->columns);
    at->numerator = pass->is_backward ? NULL : take(&arena, rows * segment->columns);
    at->phi_q = take(&arena, phi);
    at->phi_k = pass->is_backward ? take(&arena, phi) : at->phi_q;
    at->scores = take(&arena, rows * segment->chunk);
    at->inner = take(&arena, map->inner && !map->log_scaled ? rows * segment->chunk : 0);
    at->states = take(&arena, tasks * segment->chunks * size);
    at->carry = take(&arena, tasks * size);
    at->running_max = take(&arena, map->log_scaled ? (size_t)pass->config->B * pass->config->NH * pass->config->T : 0);
    if (pass->is_backward) lay_out_backward(at, &arena, pass, rows, tasks, tasks * segment->chunks);
    return arena.used;
}

// Chooses how many heads and sequences go together, and how many of their chunks.
static void choose_segment(Pass *pass) {
    Segment *segment = &pass->segment;
    int chunks = parts_of(segment->T, segment->chunk), NH = segment->NH, B = pass->config->B;
    segment->heads = segment->sequences = segment->chunks = pass->segments = 1;
    size_t with_one = lay_out(pass, NULL);
    segment->chunks = 2;
    size_t fitting = linear_gpu_segment_numbers / (lay_out(pass, NULL) - with_one) + 1, tasks = fitting / chunks;
    segment->chunks = chunks;
    if (tasks >= (size_t)NH) {
        segment->heads = NH;
        segment->sequences = tasks / NH < (size_t)B ? (int)(tasks / NH) : B;
    } else {
        segment->heads = fitting < (size_t)NH ? (int)fitting : NH;
        segment->chunks = (int)(fitting / segment->heads);
        pass->segments = parts_of(chunks, segment->chunks);
    }
}

static Pass make_pass(const LinearMapGPU *map, int is_backward, int decodes, const float *constants,
                      const AttentionConfig *config, cudaStream_t stream) {
    Pass pass;
    memset(&pass, 0, sizeof pass);
    pass.map = map;
    pass.config = config;
    pass.constants = constants;
    pass.stream = stream;
    pass.is_backward = is_backward;
    pass.segment.NH = config->NH;
    pass.segment.HS = config->HS;
    pass.segment.T = config->T;
    pass.segment.columns = value_columns(config->HS);
    pass.segment.chunk = chunk_rows(map, config);
    pass.keeps_states = decodes || pass.segment.chunk < config->T;
    choose_segment(&pass);
    return pass;
}

static void select_group(Pass *pass, const Segment *largest, int first_head, int first_sequence) {
    pass->segment = group_at(largest, first_head, first_sequence, pass->config->B);
    if (pass->map->pack)
        pass->map->pack(pass->at.packed, pass->constants, first_head, pass->segment.heads, pass->config, pass->stream);
}

static void select_segment(Pass *pass, const Segment *largest, int index) {
    Segment *segment = &pass->segment;
    segment->start = index * largest->chunks * segment->chunk;
    segment->chunks = min_int(largest->chunks, parts_of(segment->T - segment->start, segment->chunk));
}

// ---- products over all chunks of a segment

static int chunk_count(const Segment *segment) {
    return segment->heads * segment->sequences * segment->chunks;
}

// Rows (chunk, width) of each chunk.
static LinearOperand rows_of(const Pass *pass, const float *rows, int width, int transposed) {
    LinearOperand operand = {rows, width, (size_t)pass->segment.chunk * width, transposed};
    return operand;
}

static LinearOperand states_of(const Pass *pass, const float *states, int transposed) {
    LinearOperand operand = {states, pass->segment.columns, state_size(pass->map, pass->segment.HS), transposed};
    return operand;
}

// out (chunk, width) of each chunk = left * right
static void multiply_rows(const Pass *pass, float *out, int width, LinearOperand left, LinearOperand right, int depth,
                          int accumulate) {
    LinearProduct size = {pass->segment.chunk, width, depth, chunk_count(&pass->segment)};
    linear_gpu_multiply(out, width, (size_t)pass->segment.chunk * width, left, right, size, 1, accumulate,
                        uses_tensor_cores(pass->map), pass->stream);
}

// ---- features

static void features_of(const Pass *pass, const LinearFeaturesGPU *features) {
    pass->map->features(features, map_rows(&pass->segment), pass->at.packed, pass->constants, pass->config,
                        pass->stream);
}

static void gradient_of(const Pass *pass, const LinearFeaturesGPU *d, const LinearFeaturesGPU *features) {
    pass->map->gradient(d, features, map_rows(&pass->segment), pass->at.packed, pass->constants, pass->config,
                        pass->stream);
}

// Loads the keys and values and, when asked, the queries of the segment at hand, and makes their features.
static void load(Pass *pass, const floatX *qkv, int with_queries) {
    size_t rows = segment_rows(pass->segment);
    Buffers *at = &pass->at;
    load_kernel<<<linear_row_blocks(rows), linear_row_threads(), 0, pass->stream>>>(
        with_queries ? at->q.x : NULL, at->k.x, at->values, qkv, pass->segment);
    launch_check();
    features_of(pass, &at->k);
    if (with_queries) features_of(pass, &at->q);
}

// log_scaled maps: the running maximum, unless it is known already, and the factors between rows and states.
static void relate_scales(Pass *pass, int maximum_is_known, int with_queries) {
    Buffers *at = &pass->at;
    const Segment *segment = &pass->segment;
    if (!pass->map->log_scaled) return;
    if (!maximum_is_known) {
        running_max_kernel<<<(unsigned)(segment->heads * segment->sequences), RUNNING_MAX_THREADS, 0, pass->stream>>>(
            (float *)pass->scales.running_max, at->k.log_scale, pass->scales.before, *segment);
        launch_check();
    }
    relative_scale_kernel<<<linear_blocks(segment_rows(*segment)), LINEAR_THREADS, 0, pass->stream>>>(
        with_queries ? at->q.inner : NULL, at->k.inner, at->k.log_scale, pass->scales, *segment);
    launch_check();
}

static const float *expanded(const Pass *pass, float *phi, const LinearFeaturesGPU *features) {
    const LinearMapGPU *map = pass->map;
    size_t rows = segment_rows(pass->segment);
    if (!map->inner) return features->outer;
    expand_kernel<<<linear_row_blocks(rows), linear_row_threads(), 0, pass->stream>>>(
        phi, features->outer, features->inner, map->outer, map->inner, rows);
    launch_check();
    return phi;
}

// ---- states

// states = the sums over the chunks before each one (with `reverse`: after), of phi^T right
static void sum_states(const Pass *pass, float *states, const float *phi, const float *right, const float *carry_in,
                       float *carry_out, int reverse) {
    const Segment *segment = &pass->segment;
    int F = (int)feature_count(pass->map), columns = segment->columns;
    size_t size = state_size(pass->map, segment->HS);
    LinearProduct product = {F, columns, segment->chunk, chunk_count(segment)};
    linear_gpu_multiply(states, columns, size, rows_of(pass, phi, F, 1), rows_of(pass, right, columns, 0), product, 1,
                        0, uses_tensor_cores(pass->map), pass->stream);
    size_t threads = (size_t)segment->heads * segment->sequences * size;
    scan_kernel<<<linear_blocks(threads), LINEAR_THREADS, 0, pass->stream>>>(states, carry_in, carry_out, size, reverse,
                                                                             pass->scales, *segment);
    launch_check();
}

// ---- forward

static PairScores pair_scores(const Pass *pass) {
    const Buffers *at = &pass->at;
    PairScores pairs = {at->scores, pass->map->inner && !pass->map->log_scaled ? at->inner : NULL, at->d,
                        pass->map->log_scaled ? at->k.log_scale : NULL, pass->scales};
    return pairs;
}

// <outer, outer> and <inner, inner> of the queries of every chunk with its keys.
static void multiply_pairs(const Pass *pass, PairScores pairs) {
    const Buffers *at = &pass->at;
    int chunk = pass->segment.chunk, outer = pass->map->outer, inner = pass->map->inner;
    multiply_rows(pass, pairs.outer, chunk, rows_of(pass, at->q.outer, outer, 0), rows_of(pass, at->k.outer, outer, 1),
                  outer, 0);
    if (pairs.inner)
        multiply_rows(pass, pairs.inner, chunk, rows_of(pass, at->q.inner, inner, 0),
                      rows_of(pass, at->k.inner, inner, 1), inner, 0);
}

// numerator += scores (v, 1)
static void add_pairs(const Pass *pass, int accumulate) {
    const Buffers *at = &pass->at;
    int chunk = pass->segment.chunk, columns = pass->segment.columns;
    PairScores pairs = pair_scores(pass);
    multiply_pairs(pass, pairs);
    score_kernel<<<linear_row_blocks(segment_rows(pass->segment)), linear_row_threads(), 0, pass->stream>>>(
        pairs, pass->segment);
    launch_check();
    multiply_rows(pass, at->numerator, columns, rows_of(pass, at->scores, chunk, 0),
                  rows_of(pass, at->values, columns, 0), chunk, accumulate);
}

static void write_outputs(const Pass *pass, floatX *out, float *saved) {
    output_kernel<<<linear_row_blocks(segment_rows(pass->segment)), linear_row_threads(), 0, pass->stream>>>(
        out, saved, pass->at.numerator, denominator_rule(pass->map, pass->config), pass->segment);
    launch_check();
}

void linear_gpu_collect_floored_rows(cudaStream_t stream) {
    static unsigned long long collected;
    unsigned long long rows;
    cuda_check(cudaMemcpyFromSymbolAsync(&rows, floored_rows, sizeof rows, 0, cudaMemcpyDeviceToHost, stream));
    cuda_check(cudaStreamSynchronize(stream));
    linear_count_floored_rows(rows - collected);
    collected = rows;
}

// One segment; carries are the states before and after it, either may be NULL.
static void forward_segment(Pass *pass, floatX *out, float *saved, const floatX *qkv, const float *carry_in,
                            float *carry_out) {
    Buffers *at = &pass->at;
    int F = (int)feature_count(pass->map), columns = pass->segment.columns;
    load(pass, qkv, 1);
    relate_scales(pass, 0, 1);
    if (pass->keeps_states) {
        const float *phi_k = expanded(pass, at->phi_k, &at->k);
        sum_states(pass, at->states, phi_k, at->values, carry_in, carry_out, 0);
        const float *phi_q = expanded(pass, at->phi_q, &at->q);
        multiply_rows(pass, at->numerator, columns, rows_of(pass, phi_q, F, 0), states_of(pass, at->states, 0), F, 0);
    }
    add_pairs(pass, pass->keeps_states);
    write_outputs(pass, out, saved);
}

static float *saved_running_max(float *saved, const AttentionConfig *config) {
    return saved + (size_t)config->B * config->NH * config->T;
}

void linear_gpu_forward(const LinearMapGPU *map, floatX *out, float *saved, const floatX *qkv, const float *constants,
                        const float *parameters, float *work, const AttentionConfig *config, cudaStream_t stream) {
    Pass pass = make_pass(map, 0, 0, constants, config, stream);
    Segment largest = pass.segment;
    lay_out(&pass, work);
    if (map->log_scaled) pass.scales.running_max = saved ? saved_running_max(saved, config) : pass.at.running_max;
    for (int sequence = 0; sequence < config->B; sequence += largest.sequences)
        for (int head = 0; head < config->NH; head += largest.heads) {
            select_group(&pass, &largest, head, sequence);
            for (int i = 0; i < pass.segments; i++) {
                select_segment(&pass, &largest, i);
                forward_segment(&pass, out, saved, qkv, i ? pass.at.carry : NULL,
                                i + 1 < pass.segments ? pass.at.carry : NULL);
            }
        }
}

// ---- backward

static size_t boundary_size(const Pass *pass, const Segment *largest) {
    return (size_t)largest->heads * largest->sequences * state_size(pass->map, largest->HS);
}

// The state before each segment of a group but the first, from a sweep over the keys.
static void sweep_keys(Pass *pass, const Segment *largest, const floatX *qkv) {
    size_t size = boundary_size(pass, largest);
    for (int i = 0; i + 1 < pass->segments; i++) {
        float *before = i ? pass->at.boundaries + i * size : NULL;
        select_segment(pass, largest, i);
        load(pass, qkv, 0);
        relate_scales(pass, 1, 0);
        sum_states(pass, pass->at.states, expanded(pass, pass->at.phi_k, &pass->at.k), pass->at.values, before,
                   pass->at.boundaries + (i + 1) * size, 0);
    }
}

// Gradients of features from a state: d_phi = right state^T, contracted into the gradients of its factors.
static void gradient_from_states(const Pass *pass, const LinearFeaturesGPU *d, const LinearFeaturesGPU *features,
                                 const float *right, const float *states) {
    const LinearMapGPU *map = pass->map;
    int F = (int)feature_count(map), columns = pass->segment.columns;
    float *d_phi = map->inner ? pass->at.phi_q : d->outer;
    size_t rows = segment_rows(pass->segment);
    multiply_rows(pass, d_phi, F, rows_of(pass, right, columns, 0), states_of(pass, states, 1), columns, 0);
    if (!map->inner) return;
    contract_kernel<<<linear_row_blocks(rows), linear_row_threads(), 0, pass->stream>>>(
        d->outer, map->fixed_inner ? NULL : d->inner, d_phi, features->outer, features->inner, map->outer, map->inner,
        rows);
    launch_check();
}

// What reaches the segment's rows by way of the states before and after their chunks.
static void backward_states(const Pass *pass, const float *carry_in, int has_next) {
    const Buffers *at = &pass->at;
    int F = (int)feature_count(pass->map), columns = pass->segment.columns;
    const float *phi_k = expanded(pass, at->phi_k, &at->k), *phi_q = expanded(pass, at->phi_q, &at->q);
    sum_states(pass, at->states, phi_k, at->values, carry_in, NULL, 0);
    sum_states(pass, at->query_sums, phi_q, at->gamma, has_next ? at->query_carry : NULL, at->query_carry, 1);
    multiply_rows(pass, at->d_values, columns, rows_of(pass, phi_k, F, 0), states_of(pass, at->query_sums, 0), F, 0);
    gradient_from_states(pass, &at->dq, &at->q, at->gamma, at->states);
    gradient_from_states(pass, &at->dk, &at->k, at->values, at->query_sums);
}

// One factor's share: dq += d_scores k, dk += d_scores^T q
static void add_factor_gradients(const Pass *pass, float *dq, float *dk, const float *q, const float *k,
                                 const float *d_scores, int width, int accumulate) {
    int chunk = pass->segment.chunk;
    multiply_rows(pass, dq, width, rows_of(pass, d_scores, chunk, 0), rows_of(pass, k, width, 0), chunk, accumulate);
    multiply_rows(pass, dk, width, rows_of(pass, d_scores, chunk, 1), rows_of(pass, q, width, 0), chunk, accumulate);
}

static void add_pair_gradients(const Pass *pass, int accumulate) {
    const Buffers *at = &pass->at;
    const LinearMapGPU *map = pass->map;
    int chunk = pass->segment.chunk, columns = pass->segment.columns;
    PairScores pairs = pair_scores(pass);
    multiply_pairs(pass, pairs);
    multiply_rows(pass, at->d, chunk, rows_of(pass, at->gamma, columns, 0), rows_of(pass, at->values, columns, 1),
                  columns, 0);
    score_gradient_kernel<<<linear_row_blocks(segment_rows(pass->segment)), linear_row_threads(), 0, pass->stream>>>(
        pairs, pass->segment);
    launch_check();
    add_factor_gradients(pass, at->dq.outer, at->dk.outer, at->q.outer, at->k.outer, at->d, map->outer, accumulate);
    if (map->inner && !map->fixed_inner)
        add_factor_gradients(pass, at->dq.inner, at->dk.inner, at->q.inner, at->k.inner, at->inner, map->inner,
                             accumulate);
    multiply_rows(pass, at->d_values, columns, rows_of(pass, at->scores, chunk, 1),
                  rows_of(pass, at->gamma, columns, 0), chunk, accumulate);
}

static void backward_segment(Pass *pass, floatX *dqkv, const floatX *qkv, OutputGradient gradient,
                             const float *carry_in, int has_next) {
    Buffers *at = &pass->at;
    dim3 blocks = linear_row_blocks(segment_rows(pass->segment)), threads = linear_row_threads();
    load(pass, qkv, 1);
    relate_scales(pass, 1, 1);
    load_output_gradient_kernel<<<blocks, threads, 0, pass->stream>>>(at->gamma, gradient, pass->segment);
    launch_check();
    if (pass->keeps_states) backward_states(pass, carry_in, has_next);
    add_pair_gradients(pass, pass->keeps_states);
    if (pass->map->log_scaled) {
        scale_gradient_kernel<<<blocks, threads, 0, pass->stream>>>(at->dq.log_scale, at->dk.log_scale, at->shares,
                                                                    pass->scales.running_max, pass->segment);
        launch_check();
    }
    gradient_of(pass, &at->dq, &at->q);
    gradient_of(pass, &at->dk, &at->k);
    store_gradient_kernel<<<blocks, threads, 0, pass->stream>>>(dqkv, at->dq.x, at->dk.x, at->d_values, pass->segment);
    launch_check();
}

// log_scaled maps: the shares of all rows of a group.
static void share_scales(Pass *pass, const Segment *largest, OutputGradient gradient) {
    if (!pass->map->log_scaled) return;
    for (int i = 0; i < pass->segments; i++) {
        select_segment(pass, largest, i);
        scale_shares_kernel<<<linear_row_blocks(segment_rows(pass->segment)), linear_row_threads(), 0, pass->stream>>>(
            pass->at.shares, gradient, pass->segment);
        launch_check();
    }
}

void linear_gpu_backward(const LinearMapGPU *map, floatX *dqkv, float *dparameters, const floatX *dout,
                         const floatX *qkv, const floatX *out, const float *saved, const float *constants,
                         const float *parameters, float *work, const AttentionConfig *config, cudaStream_t stream) {
    Pass pass = make_pass(map, 1, 0, constants, config, stream);
    Segment largest = pass.segment;
    OutputGradient gradient = {dout, out, saved, denominator_rule(map, config)};
    lay_out(&pass, work);
    if (map->log_scaled) pass.scales.running_max = saved_running_max((float *)saved, config);
    for (int sequence = 0; sequence < config->B; sequence += largest.sequences)
        for (int head = 0; head < config->NH; head += largest.heads) {
            select_group(&pass, &largest, head, sequence);
            share_scales(&pass, &largest, gradient);
            sweep_keys(&pass, &largest, qkv);
            for (int i = pass.segments - 1; i >= 0; i--) {
                select_segment(&pass, &largest, i);
                backward_segment(&pass, dqkv, qkv, gradient,
                                 i ? pass.at.boundaries + i * boundary_size(&pass, &largest) : NULL,
                                 i + 1 < pass.segments);
            }
        }
}

// ---- decoding

// What a cache holds: the states, the log scales of log_scaled maps, the pending keys.
static float *state_scales(const Pass *pass, float *cache) {
    return cache + pass->config->NH * state_size(pass->map, pass->config->HS);
}

static DecodeCache decode_cache(const Pass *pass, float *cache, int pos) {
    const LinearMapGPU *map = pass->map;
    size_t NH = (size_t)pass->config->NH, rows = NH * PENDING_KEYS;
    float *scales = state_scales(pass, cache), *at = scales + (map->log_scaled ? NH : 0);
    DecodeCache found = {pos >= PENDING_KEYS ? cache : NULL, scales, {}};
    found.pending.outers = map->outer, found.pending.inners = map->log_scaled ? 0 : map->inner;
    found.pending.rows = PENDING_KEYS;
    found.pending.outer = at, at += rows * found.pending.outers;
    found.pending.inner = at, at += rows * found.pending.inners;
    found.pending.values = at, at += rows * value_columns(pass->config->HS);
    found.pending.log_scale = map->log_scaled ? at : NULL;
    return found;
}

// Whole tiles of positions of every head, as in the forward pass: the states in the cache are what is carried in and
// out.
static void step_tiles(Pass *pass, floatX *out, float *cache, int pos, const floatX *qkv) {
    Segment largest = pass->segment;
    size_t size = state_size(pass->map, largest.HS);
    float *kept_scale = state_scales(pass, cache);
    if (pass->map->log_scaled) {
        pass->scales.running_max = pass->at.running_max;
        pass->scales.before = pos ? kept_scale : NULL;
    }
    for (int head = 0; head < largest.NH; head += largest.heads) {
        select_group(pass, &largest, head, 0);
        float *states = cache + head * size;
        for (int i = 0; i < parts_of(largest.T, largest.chunk * largest.chunks); i++) {
            select_segment(pass, &largest, i);
            forward_segment(pass, out, NULL, qkv, pos || i ? states : NULL, states);
        }
    }
    if (!pass->map->log_scaled) return;
    keep_scale_kernel<<<linear_blocks(largest.NH), LINEAR_THREADS, 0, pass->stream>>>(
        kept_scale, pass->scales.running_max, largest.NH, largest.T);
    launch_check();
}

// The pending keys of all heads enter the states.
static void fold_pending(const Pass *pass, float *cache, DecodeCache from) {
    int NH = pass->config->NH, columns = pass->segment.columns;
    dim3 blocks((unsigned)NH, (unsigned)parts_of(columns, LINEAR_LANES));
    fold_kernel<<<blocks, linear_row_threads(), 0, pass->stream>>>(cache, from, columns);
    launch_check();
    if (!pass->map->log_scaled) return;
    fold_scale_kernel<<<linear_blocks(NH), LINEAR_THREADS, 0, pass->stream>>>(state_scales(pass, cache), from, NH);
    launch_check();
}

// Positions of every head that all fall into one tile of the sequence.
static void step_pending(Pass *pass, floatX *out, float *cache, int pos, const floatX *qkv) {
    Buffers *at = &pass->at;
    Segment largest = pass->segment;
    DecodeCache from = decode_cache(pass, cache, pos);
    int first = pos % PENDING_KEYS;
    for (int head = 0; head < largest.NH; head += largest.heads) {
        select_group(pass, &largest, head, 0);
        for (int i = 0; i < parts_of(largest.T, largest.chunk * largest.chunks); i++) {
            select_segment(pass, &largest, i);
            size_t rows = segment_rows(pass->segment);
            load(pass, qkv, 1);
            cache_keys_kernel<<<linear_row_blocks(rows), linear_row_threads(), 0, pass->stream>>>(
                from.pending, at->k, at->values, first, pass->segment);
            launch_check();
            dim3 blocks((unsigned)rows, (unsigned)parts_of(largest.columns, LINEAR_LANES));
            decode_kernel<<<blocks, linear_row_threads(), 0, pass->stream>>>(at->numerator, from, at->q, first,
                                                                             pass->segment);
            launch_check();
            write_outputs(pass, out, NULL);
        }
    }
    if (first + largest.T == PENDING_KEYS) fold_pending(pass, cache, from);
}

// The pass for n positions of one sequence. Its chunks and segments are those of `config`, or smaller: work_size covers
// them.
static Pass make_step(const LinearMapGPU *map, int n, AttentionConfig *one, const float *constants,
                      cudaStream_t stream) {
    one->B = 1;
    Pass pass = make_pass(map, 0, 1, constants, one, stream);
    Segment *segment = &pass.segment;
    one->T = segment->T = n;
    segment->chunk = min_int(segment->chunk, n);
    segment->chunks = min_int(segment->chunks, parts_of(n, segment->chunk));
    if (n == 1) segment->heads = segment->NH;
    return pass;
}

void linear_gpu_step(const LinearMapGPU *map, floatX *out, float *cache, int pos, int n, const floatX *qkv,
                     const float *constants, const float *parameters, float *work, const AttentionConfig *config,
                     cudaStream_t stream) {
    for (int row = 0, rows; row < n; row += rows) {
        int column = (pos + row) % PENDING_KEYS, left = n - row;
        int is_whole = column == 0 && left >= PENDING_KEYS; // begins with a whole tile
        rows = is_whole ? left - left % PENDING_KEYS : min_int(left, PENDING_KEYS - column);
        AttentionConfig one = *config;
        Pass pass = make_step(map, rows, &one, constants, stream);
        pass.segment.position = pos + row;
        lay_out(&pass, work);
        (is_whole ? step_tiles : step_pending)(&pass, out + (size_t)row * config->C, cache, pos + row,
                                               qkv + (size_t)row * 3 * config->C);
    }
}

// ---- sizes

size_t linear_gpu_saved_size(const LinearMapGPU *map, const AttentionConfig *config) {
    return (size_t)config->B * config->NH * config->T * (map->log_scaled ? 2 : 1);
}

size_t linear_gpu_work_size(const LinearMapGPU *map, const AttentionConfig *config) {
    AttentionConfig prefill = *config, decode = *config;
    Pass passes[] = {make_pass(map, 0, 0, NULL, config, 0), make_pass(map, 1, 0, NULL, config, 0),
                     make_step(map, config->T, &prefill, NULL, 0), make_step(map, 1, &decode, NULL, 0)};
    size_t largest = 0;
    for (int i = 0; i < 4; i++) {
        size_t size = lay_out(&passes[i], NULL);
        if (size > largest) largest = size;
    }
    return largest;
}

// The states and log scales of all heads and PENDING_KEYS pending keys of each.
size_t linear_gpu_cache_size(const LinearMapGPU *map, const AttentionConfig *config) {
    size_t NH = (size_t)config->NH, features = map->outer + (map->log_scaled ? 0 : map->inner);
    size_t key = features + value_columns(config->HS) + (map->log_scaled ? 1 : 0);
    return NH * (state_size(map, config->HS) + (map->log_scaled ? 1 : 0) + PENDING_KEYS * key);
}
