#include "linear_core.h"
#include "core/base/vector_math.h"

#include <omp.h>
#include <stdatomic.h>
#include <string.h>

// ---- sizes and the choice of chunk

// Multiplications of one pair of rows, and of one row with a state (read and update).
static double pair_cost(const LinearMap *map, int HS) {
    return map->outer + map->inner + HS + 1;
}

static double state_cost(const LinearMap *map, int HS) {
    return 2.0 * (double)linear_feature_count(map) * (HS + 1);
}

// Per row, averaged over a sequence of T rows: half the pairs within a chunk, a state for all rows except those of the
// first and the last chunk. The backward pass costs the same multiple of both.
static double row_cost(const LinearMap *map, int HS, int T, int chunk) {
    return pair_cost(map, HS) * 0.5 * (chunk + 1) + state_cost(map, HS) * (1.0 - (double)chunk / T);
}

int linear_is_worth_threads(const LinearMap *map, int rows, int chunk, const AttentionConfig *config) {
    double row = pair_cost(map, config->HS) * 0.5 * chunk + state_cost(map, config->HS);
    return config->NH * rows * (row + 2 * map->feature_cost) > 5e4;
}

int linear_chunk_rows(const LinearMap *map, int T, const AttentionConfig *config) {
    if (config->chunk) return min_int(config->chunk, T);
    // Wider states, which the caches do not hold, are visited less often; a chunk's pairs are still cheap beside them.
    int chunk = TILE * min_int(16, max_int(1, (int)(linear_feature_count(map) / 384)));
    chunk = min_int(chunk, T);
    return row_cost(map, config->HS, T, T) <= row_cost(map, config->HS, T, chunk) ? T : chunk;
}

int linear_most_chunk_rows(const LinearMap *map, const AttentionConfig *config) {
    int most = linear_chunk_rows(map, config->T, config);
    if (config->chunk) return most;
    double pairs_pay = 2 * state_cost(map, config->HS) / pair_cost(map, config->HS); // up to so many rows
    return max_int(most, (int)fmin(config->T, pairs_pay + 1));
}

// ---- a tile of queries

// Numerators and denominators of queries that are `before` rows below the beginning of the chunk or tile.
static void read_history(Worker *worker, int before, int rows) {
    real power[TILE];
    linear_read_state(worker, worker->denominator, rows);
    if (!worker->fades) return;
    linear_query_powers(power, worker, before);
    linear_fade_rows(worker->numerator, power, rows, worker->stride);
    for (int i = 0; i < rows; i++) worker->denominator[i] *= power[i];
}

// Adds a tile of keys to the numerator and the denominator of a single query, which is `distance` rows below the first
// key, by products of a matrix and a vector.
static void add_pairs_of_one(Worker *worker, const RowTile *keys, int key_rows, int distance) {
    const LinearMap *map = worker->map;
    const LinearFeatures *q = &worker->rows.features;
    int lanes = tile_lanes(key_rows), stride = worker->stride;
    real *scores = worker->scores, *inner = worker->inner_scores;
    tile_multiply(scores, TILE, (TileLeft){q->outer, 1, TILE}, keys->features.outer, TILE, 1, lanes, map->outer, 0,
                  TILE_FULL);
    if (map->log_scaled)
        for (int j = 0; j < lanes; j++)
            inner[j] = real_exp(keys->scale[j] + (real)(distance - j) * worker->log_decay - worker->rows.scale[0]);
    else if (map->inner)
        tile_multiply(inner, TILE, (TileLeft){q->inner, 1, TILE}, keys->features.inner, TILE, 1, lanes, map->inner, 0,
                      TILE_FULL);
    if (map->inner)
        for (int j = 0; j < lanes; j++) scores[j] *= inner[j];
    if (worker->fades) {
        real power[TILE];
        linear_key_powers(power, worker, key_rows, distance + 1 - key_rows);
        linear_fade_columns(scores, scores, power, 1, key_rows);
    }
    for (int j = 0; j < key_rows; j++) worker->denominator[0] += scores[j];
    tile_multiply(worker->numerator, stride, (TileLeft){scores, TILE, 1}, keys->extended, stride, 1, stride, key_rows,
                  1, TILE_FULL);
}

// Adds a tile of keys to the numerators and denominators of the current queries.
static void add_pairs(Worker *worker, const RowTile *keys, int key_rows, int rows, int distance) {
    int lanes = tile_lanes(rows);
    linear_pair_scores(worker, keys, key_rows, rows, distance);
    if (worker->map->inner)
        for (int j = 0; j < key_rows; j++)
            for (int i = 0; i < lanes; i++) worker->scores[j * TILE + i] *= worker->inner_scores[j * TILE + i];
    linear_mask_future(worker, worker->scores, key_rows, lanes, distance);
    const real *power = worker->fades ? linear_pair_powers(worker, distance) : NULL;
    for (int j = 0; j < key_rows; j++) {
        real *scores = worker->scores + j * TILE;
        for (int i = 0; power && i < lanes; i++) scores[i] *= power[i - j];
        for (int i = 0; i < lanes; i++) worker->denominator[i] += scores[i];
    }
    linear_add_pairs(worker, keys, key_rows, rows, distance);
}

// ---- forward

static _Atomic uint64_t floored_rows;

uint64_t linear_floored_rows(void) {
    return atomic_load(&floored_rows);
}

void linear_count_floored_rows(uint64_t rows) {
    atomic_fetch_add(&floored_rows, rows);
}

void linear_warn_signed(const char *name) {
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&warned)) return;
    warn("%s has signed scores: a row's sum can be near zero or negative, its output then is large and noisy; sums are "
         "floored at delta in magnitude; negative and floored ones are counted (floored_rows in metrics.jsonl)",
         name);
}

// What the numerator is divided by: the sum plus delta; a negative sum is kept away from zero instead. NaN stays NaN.
static real stabilised(real z, const LinearMap *map, const AttentionConfig *config) {
    real delta = config->delta;
    if (config->denominator == DENOMINATOR_CLAMP) return z < delta ? delta : z;
    if (map->is_signed && z < 0) return z > -delta ? -delta : z;
    return z + delta;
}

int linear_is_floored(real g, const LinearMap *map, const AttentionConfig *config) {
    real delta = config->delta;
    if (config->denominator == DENOMINATOR_CLAMP) return g <= delta;
    return map->is_signed && g == -delta;
}

typedef struct { // where a head's results go; saved ones may be NULL
    real *out;
    int stride;
    real *denominator; // (T)
    real *running_max; // (T) log_scaled maps
} HeadOutput;

static void write_outputs(Worker *worker, HeadOutput output, int row, int rows) {
    int HS = worker->HS, doubtful = 0;
    for (int i = 0; i < rows; i++) {
        real g = stabilised(worker->denominator[i], worker->map, worker->config);
        doubtful += worker->denominator[i] < 0 || linear_is_floored(g, worker->map, worker->config);
        real *out = output.out + (size_t)(row + i) * output.stride;
        for (int c = 0; c < HS; c++) out[c] = worker->numerator[i * worker->stride + c] / g;
        if (output.denominator) output.denominator[row + i] = g;
        if (output.running_max) output.running_max[row + i] = worker->rows.scale[i];
    }
    if (doubtful && worker->map->is_signed) linear_count_floored_rows((uint64_t)doubtful);
}

// log_scaled maps: the largest faded log scale among the keys up to each query of a tile, from the scales of the tile's
// own keys and the largest before it; and the factors from there to the state, which is `distance` rows away.
static void relate_scales(Worker *worker, const real *key_scale, int rows, real largest, int distance) {
    int lanes = tile_lanes(rows);
    real *scale = worker->rows.scale;
    for (int i = 0; i < lanes; i++) {
        if (i < rows) largest = real_max(largest + worker->log_decay, key_scale[i]);
        scale[i] = largest;
    }
    linear_set_relative_scale(worker, &worker->rows.features, scale, -1, *worker->state.log_scale, distance, lanes);
}

static void clear_sums(Worker *worker, int rows) {
    memset(worker->numerator, 0, sizeof(real) * (size_t)rows * worker->stride);
    memset(worker->denominator, 0, sizeof(real) * (size_t)tile_lanes(rows));
}

// Outputs of one chunk, whose keys are loaded; the state holds what came before it.
static void forward_chunk(Worker *worker, HeadInput input, HeadOutput output, int start, int count) {
    const LinearMap *map = worker->map;
    real maximum = map->log_scaled ? *worker->state.log_scale : 0;
    for (int row = 0; row < count; row += TILE) {
        int rows = min_int(TILE, count - row), index = row / TILE;
        linear_load_queries(worker, &worker->rows, input, start + row, (LinearRows){start + row, rows});
        linear_fetch(input.q, input.stride, worker->HS, start + row + TILE, input.rows);
        clear_sums(worker, rows);
        if (map->log_scaled) {
            relate_scales(worker, linear_other(worker, index).scale, rows, maximum, row + 1);
            maximum = worker->rows.scale[rows - 1];
        }
        if (start > 0) read_history(worker, row, rows);
        for (int j = 0; j <= index; j++) {
            RowTile keys = linear_other(worker, j);
            add_pairs(worker, &keys, j < index ? TILE : rows, rows, row - j * TILE);
        }
        write_outputs(worker, output, start + row, rows);
    }
}

// Rows [start, end) of a head; the worker's state holds the history.
static void forward_rows(Worker *worker, HeadInput input, HeadOutput output, int start, int end) {
    for (int row = start; row < end; row += worker->chunk) {
        int count = min_int(worker->chunk, end - row);
        linear_load_chunk_of_keys(worker, input, row, count);
        forward_chunk(worker, input, output, row, count);
        if (row + count < end) linear_absorb_keys(worker, worker->state, count);
    }
}

static HeadOutput head_output(real *out, real *saved, Span span, int head, const LinearMap *map,
                              const AttentionConfig *config) {
    size_t T = (size_t)config->T, C = (size_t)config->C, NH = (size_t)config->NH;
    HeadOutput output = {.out = out + (size_t)span.first * C + (size_t)head * (size_t)config->HS, .stride = config->C};
    if (saved) output.denominator = saved + linear_kept_place(span, head, config);
    if (saved && map->log_scaled) output.running_max = output.denominator + (size_t)config->B * NH * T;
    return output;
}

typedef struct { // the arguments of linear_attention_forward, and how they are shared out
    real *out, *saved;
    const real *qkv;
    Segments segments;
    real *boundaries; // the states before each segment
} Pass;

// Rows [start, end) of one sequence; the worker's state holds the history.
static void forward_span(Worker *worker, const Pass *pass, Span span, int head, int start, int end) {
    forward_rows(worker, linear_head_input(pass->qkv, span, head, worker->config),
                 head_output(pass->out, pass->saved, span, head, worker->map, worker->config), start, end);
}

// The sequences that begin in rows [start, end) of a task, one after the other.
static void forward_sequences(Worker *worker, const Pass *pass, int task, int start, int end) {
    const AttentionConfig *config = worker->config;
    int row = linear_row_of(task, config).first;
    Span span = {.first = row + start};
    while (attention_next_span(&span, row + end, config)) {
        worker->chunk = linear_chunk_rows(worker->map, span.count, config);
        linear_clear_state(worker->state, worker->map, worker->HS);
        forward_span(worker, pass, span, task % config->NH, 0, span.count);
    }
}

// Number `i` of the segments of all heads. `own` is the worker's state.
static void forward_segment(Worker *worker, State own, const Pass *pass, int i) {
    const AttentionConfig *config = worker->config;
    Segments segments = pass->segments;
    int task = i / segments.count, segment = i % segments.count, start = segment * segments.rows;
    int end = min_int(start + segments.rows, config->T);
    linear_pack(worker, task);
    worker->state = own;
    if (segments.count == 1 || config->positions) {
        forward_sequences(worker, pass, task, start, end);
        return;
    }
    Span row = linear_row_of(task, config);
    int head = task % config->NH;
    if (segment && !segments.alone)
        worker->state = linear_boundary(pass->boundaries, task, segment, segments, worker);
    else
        linear_clear_state(own, worker->map, worker->HS);
    if (segment && segments.alone)
        linear_add_keys(worker, own, linear_head_input(pass->qkv, row, head, config), 0, start);
    forward_span(worker, pass, row, head, start, end);
}

void linear_attention_forward(const LinearMap *map, real *out, real *saved, const real *qkv, const real *constants,
                              const real *parameters, real *work, const AttentionConfig *config) {
    int has_documents = config->positions != NULL;
    Division division = linear_divide(map, 0, has_documents, config);
    Pass pass = {.out = out, .saved = saved, .qkv = qkv, .segments = division.segments};
    int share = linear_is_worth_threads(map, config->B * config->T, division.chunk, config);
#pragma omp parallel if (share) firstprivate(pass)
    {
        Worker worker;
        size_t size = linear_lay_out(&worker, NULL, map, division.chunk, WALK_FORWARD, config);
        pass.boundaries = work + size * (size_t)omp_get_num_threads();
        linear_lay_out(&worker, work + size * (size_t)omp_get_thread_num(), map, division.chunk, WALK_FORWARD, config);
        worker.constants = constants, worker.parameters = parameters;
        State own = worker.state;
        if (pass.segments.count > 1 && !pass.segments.alone && !has_documents)
            linear_sum_keys(&worker, pass.boundaries, pass.segments, qkv);
#pragma omp for schedule(dynamic)
        for (int i = 0; i < config->B * config->NH * pass.segments.count; i++) forward_segment(&worker, own, &pass, i);
    }
}

// ---- decoding
//
// Keys wait in the cache until they fill a tile, which then enters the state as a whole. So the state is written once
// every TILE positions, and its sums are those of the forward pass; adding keys one at a time would lose digits in long
// sequences. Tiles begin at multiples of TILE, however many positions each call brings.

static void copy_columns(real *to, const real *from, int width, int count) {
    for (int f = 0; f < width; f++)
        memcpy(to + (size_t)f * TILE, from + (size_t)f * TILE, sizeof(real) * (size_t)count);
}

// Puts the keys and values of the rows into a tile of the cache, from `column` on.
static void cache_keys(Worker *worker, const RowTile *tile, HeadInput input, int row, LinearRows rows, int column) {
    const LinearMap *map = worker->map;
    RowTile fresh = worker->rows;
    fresh.extended = tile->extended + (size_t)column * worker->stride;
    linear_load_keys(worker, &fresh, input, row, rows);
    copy_columns(tile->features.outer + column, fresh.features.outer, map->outer, rows.count);
    copy_columns(tile->weights + column, fresh.weights, 1, rows.count);
    if (map->log_scaled)
        copy_columns(tile->scale + column, fresh.scale, 1, rows.count);
    else
        copy_columns(tile->features.inner + column, fresh.features.inner, map->inner, rows.count);
}

// The largest log scale before a column of the tile at hand.
static real largest_scale_before(const Worker *worker, const RowTile *tile, int column) {
    real largest = *worker->state.log_scale;
    for (int j = 0; j < column; j++) largest = real_max(largest + worker->log_decay, tile->scale[j]);
    return largest;
}

// Rows that fall into one tile: their keys are put into the cache, then their queries read the state and that tile.
static void step_tile(Worker *worker, HeadInput input, HeadOutput output, int row, LinearRows rows) {
    const LinearMap *map = worker->map;
    int column = rows.position % TILE, count = rows.count;
    RowTile own = linear_other(worker, 0);
    cache_keys(worker, &own, input, row, rows, column);
    linear_load_queries(worker, &worker->rows, input, row, rows);
    clear_sums(worker, count);
    if (map->log_scaled)
        relate_scales(worker, own.scale + column, count, largest_scale_before(worker, &own, column), column + 1);
    if (rows.position >= TILE) read_history(worker, column, count);
    if (count == 1)
        add_pairs_of_one(worker, &own, column + 1, column);
    else
        add_pairs(worker, &own, column + count, count, column);
    write_outputs(worker, output, row, count);
    if (column + count == TILE) linear_absorb_keys(worker, worker->state, TILE);
}

// What a head's cache holds: its state, its tile of keys, and what follows from the layer's constants alone.
static Layout cache_layout(Worker *worker, real *cache) {
    const LinearMap *map = worker->map;
    Layout layout = {cache, 0};
    worker->state = linear_state_at(linear_take(&layout, linear_state_size(map, worker->HS)), map, worker->HS);
    worker->others = linear_take(&layout, worker->other_size);
    worker->packed = linear_take(&layout, map->packed_size);
    worker->powers = linear_take(&layout, worker->fades ? 3 * TILE : 0);
    return layout;
}

static void use_cache(Worker *worker, real *cache, int head, int pos) {
    cache_layout(worker, cache);
    worker->log_decay = attention_log_decay(worker->parameters, head, worker->config);
    if (pos > 0) return;
    linear_clear_state(worker->state, worker->map, worker->HS);
    linear_pack(worker, head);
}

static void step_head(Worker *worker, HeadInput input, HeadOutput output, int pos, int n) {
    for (int row = 0, count; row < n; row += count) {
        count = min_int(n - row, TILE - (pos + row) % TILE);
        step_tile(worker, input, output, row, (LinearRows){pos + row, count});
    }
}

void linear_attention_step(const LinearMap *map, real *out, real *cache, int pos, int n, const real *qkv,
                           const real *constants, const real *parameters, real *work, const AttentionConfig *config) {
    int NH = config->NH, HS = config->HS;
    size_t head_cache = linear_cache_size(map, config) / (size_t)NH;
    int share = linear_is_worth_threads(map, n, TILE, config);
#pragma omp parallel if (share)
    {
        Worker worker;
        size_t size = linear_lay_out(&worker, NULL, map, TILE, WALK_FORWARD, config);
        linear_lay_out(&worker, work + size * (size_t)omp_get_thread_num(), map, TILE, WALK_FORWARD, config);
        worker.constants = constants, worker.parameters = parameters;
#pragma omp for schedule(static)
        for (int head = 0; head < NH; head++) {
            HeadOutput output = {.out = out + (size_t)head * HS, .stride = config->C};
            use_cache(&worker, cache + head_cache * (size_t)head, head, pos);
            step_head(&worker, linear_head_input(qkv, (Span){0, n}, head, config), output, pos, n);
        }
    }
}

// ---- sizes

size_t linear_saved_size(const LinearMap *map, const AttentionConfig *config) {
    return (size_t)config->B * config->NH * config->T * (map->log_scaled ? 2 : 1);
}

// Of forward and backward, for rows that are one sequence or that are cut into documents.
static size_t batch_work_size(const LinearMap *map, int has_documents, const AttentionConfig *config) {
    Worker worker;
    Division forward = linear_divide(map, 0, has_documents, config);
    Division backward = linear_divide(map, 1, has_documents, config);
    size_t threads = (size_t)omp_get_max_threads();
    size_t forward_size = threads * linear_lay_out(&worker, NULL, map, forward.chunk, WALK_FORWARD, config);
    size_t backward_size =
        threads * linear_lay_out(&worker, NULL, map, backward.chunk, linear_backward_walk(backward.walks), config) +
        linear_parameter_work_size(map, backward, has_documents, config);
    if (has_documents) return max_size(forward_size, backward_size);
    return max_size(forward_size + linear_boundary_size(map, forward.segments, config),
                    backward_size + 2 * linear_boundary_size(map, backward.segments, config));
}

size_t linear_work_size(const LinearMap *map, const AttentionConfig *config) {
    Worker worker;
    size_t threads = (size_t)omp_get_max_threads(), documents = config->packed ? batch_work_size(map, 1, config) : 0;
    size_t step_size = threads * linear_lay_out(&worker, NULL, map, TILE, WALK_FORWARD, config);
    return max_size(max_size(batch_work_size(map, 0, config), documents), step_size);
}

size_t linear_cache_size(const LinearMap *map, const AttentionConfig *config) {
    Worker worker;
    linear_lay_out(&worker, NULL, map, TILE, WALK_FORWARD, config);
    return cache_layout(&worker, NULL).used * (size_t)config->NH;
}

double linear_flops(const LinearMap *map, const AttentionConfig *config) {
    int chunk = linear_chunk_rows(map, config->T, config);
    return 2.0 * config->NH * (2 * map->feature_cost + row_cost(map, config->HS, config->T, chunk));
}
