#include "linear_core.h"
#include "range.h"
#include "core/base/vector_math.h"

#include <omp.h>
#include <string.h>

// ---- scratch

real *linear_take(Layout *layout, size_t count) {
    real *piece = layout->base ? layout->base + layout->used : NULL;
    layout->used += (count + 15) / 16 * 16;
    return piece;
}

static LinearFeatures layout_features(Layout *layout, const LinearMap *map, int tape) {
    LinearFeatures features = {.outer = linear_take(layout, (size_t)map->outer * TILE),
                               .inner = linear_take(layout, (size_t)map->inner * TILE),
                               .log_scale = linear_take(layout, map->log_scaled ? TILE : 0),
                               .tape = linear_take(layout, (size_t)tape * TILE)};
    return features;
}

static RowTile layout_row_tile(Layout *layout, const LinearMap *map, int HS, int has_gradient) {
    size_t rows = (size_t)TILE * tile_stride(HS), scale = map->log_scaled ? TILE : 0;
    RowTile tile = {.features = layout_features(layout, map, has_gradient ? map->tape : 0),
                    .extended = linear_take(layout, rows),
                    .weights = linear_take(layout, TILE),
                    .scale = linear_take(layout, scale),
                    .d_scale = linear_take(layout, scale)};
    if (!has_gradient) return tile;
    tile.d = layout_features(layout, map, 0);
    tile.dv = linear_take(layout, rows);
    return tile;
}

RowTile linear_other(const Worker *worker, int index) {
    Layout layout = {worker->others + (size_t)index * worker->other_size, 0};
    int has_gradient = worker->walk == WALK_BOTH;
    RowTile tile = layout_row_tile(&layout, worker->map, worker->HS, has_gradient);
    if (!has_gradient) tile.features.tape = worker->tape;
    return tile;
}

static size_t other_size(const LinearMap *map, int HS, Walk walk) {
    Layout counter = {NULL, 0};
    layout_row_tile(&counter, map, HS, walk == WALK_BOTH);
    return counter.used;
}

enum {
    PHI_ROWS = 96
}; // features in one block of phi: with its share of the state it stays in the first level of cache

static void lay_out_gradients(Worker *worker, Layout *layout) {
    worker->extended = linear_take(layout, (size_t)TILE * worker->HS);
    worker->d_scores = linear_take(layout, TILE * TILE);
    worker->d_inner_scores = linear_take(layout, TILE * TILE);
    worker->turned = linear_take(layout, worker->walk == WALK_BOTH ? TILE * TILE : 0);
}

size_t linear_lay_out(Worker *worker, real *base, const LinearMap *map, int chunk, Walk walk,
                      const AttentionConfig *config) {
    int HS = config->HS;
    Layout layout = {base, 0};
    *worker = (Worker){.map = map, .config = config, .HS = HS, .stride = tile_stride(HS), .walk = walk, .chunk = chunk};
    worker->T = config->T;
    worker->fades = config->decay != DECAY_NONE && !map->log_scaled;
    worker->powers = linear_take(&layout, worker->fades ? 3 * TILE : 0);
    worker->far_powers = linear_take(&layout, worker->fades ? 3 * TILE : 0);
    worker->packed = linear_take(&layout, map->packed_size);
    worker->x = linear_take(&layout, (size_t)HS * TILE);
    worker->tape = linear_take(&layout, (size_t)map->tape * TILE);
    worker->rows = layout_row_tile(&layout, map, HS, 1);
    worker->phi = linear_take(&layout, (size_t)max_int(PHI_ROWS, map->inner) * TILE);
    worker->inner_scores = linear_take(&layout, TILE * TILE);
    worker->scores = linear_take(&layout, TILE * TILE);
    worker->numerator = linear_take(&layout, (size_t)TILE * worker->stride);
    worker->denominator = linear_take(&layout, TILE);
    real *state = linear_take(&layout, linear_state_size(map, HS));
    worker->state = linear_state_at(state, map, HS);
    worker->other_size = other_size(map, HS, walk);
    worker->others = linear_take(&layout, (size_t)tiles_of(chunk) * worker->other_size);
    if (walk != WALK_FORWARD) lay_out_gradients(worker, &layout);
    return layout.used;
}

void linear_set_walk(Worker *worker, Walk walk) {
    worker->walk = walk;
    worker->other_size = other_size(worker->map, worker->HS, walk);
}

// ---- tiles in and out

// rows (n, HS; leading dimension `stride`) -> v (TILE, HS), with zeros up to whole vectors
static void load_rows(real *restrict v, const real *restrict rows, int stride, int n, int HS) {
    for (int i = 0; i < n; i++, v += tile_stride(HS), rows += stride) {
        int outside = 0; // few rows have anything to limit
        for (int c = 0; c < HS; c++) {
            v[c] = rows[c];
            outside |= !(real_abs(rows[c]) <= LARGEST_INPUT);
        }
        for (int c = 0; outside && c < HS; c++) v[c] = limited_input(rows[c]);
        for (int c = HS; c < tile_stride(HS); c++) v[c] = 0;
    }
}

// The same feature-major, x (HS, TILE), with zeros up to whole lanes; by way of `v`
static void load_features(real *x, real *v, const real *rows, int stride, int n, int HS) {
    load_rows(v, rows, stride, n, HS);
    for (int c = 0; n % TILE_LANES && c < HS; c++)
        memset(x + c * TILE + n / TILE_LANES * TILE_LANES, 0, TILE_LANES * sizeof(real));
    tile_transpose(x, TILE, v, tile_stride(HS), n, HS, 0);
}

HeadInput linear_head_input(const real *qkv, Span span, int head, const AttentionConfig *config) {
    size_t C = (size_t)config->C;
    const real *q = qkv + (size_t)span.first * 3 * C + (size_t)head * (size_t)config->HS;
    return (HeadInput){q, q + C, q + 2 * C, 3 * config->C, span.count};
}

void linear_fetch(const real *rows, int stride, int HS, int row, int end) {
    for (int i = max_int(row, 0); i < min_int(row + TILE, end); i++)
        for (int c = 0; c < HS; c += 64 / (int)sizeof(real)) __builtin_prefetch(row_at(rows, i, stride) + c, 0, 2);
}

// x (HS, TILE) and the tile's features, of rows that begin at `from`; overwrites the numerator
static void load_tile_features(Worker *worker, RowTile *tile, const real *from, int stride, LinearRows rows) {
    load_features(worker->x, worker->numerator, from, stride, rows.count, worker->HS);
    worker->map->features(&tile->features, worker->x, rows, worker->packed, worker->config);
}

void linear_load_keys(Worker *worker, RowTile *tile, HeadInput input, int row, LinearRows rows) {
    load_tile_features(worker, tile, row_at(input.k, row, input.stride), input.stride, rows);
    load_rows(tile->extended, row_at(input.v, row, input.stride), input.stride, rows.count, worker->HS);
    for (int i = 0; i < TILE; i++) tile->weights[i] = i < rows.count;
    if (worker->map->log_scaled)
        memcpy(tile->scale, tile->features.log_scale, sizeof(real) * (size_t)tile_lanes(rows.count));
}

void linear_load_queries(Worker *worker, RowTile *tile, HeadInput input, int row, LinearRows rows) {
    load_tile_features(worker, tile, row_at(input.q, row, input.stride), input.stride, rows);
}

void linear_load_chunk_of_keys(Worker *worker, HeadInput input, int start, int count) {
    for (int row = 0; row < count; row += TILE) {
        RowTile tile = linear_other(worker, row / TILE);
        linear_load_keys(worker, &tile, input, start + row, (LinearRows){start + row, min_int(TILE, count - row)});
        linear_fetch(input.k, input.stride, worker->HS, start + row + TILE, input.rows);
        linear_fetch(input.v, input.stride, worker->HS, start + row + TILE, input.rows);
    }
}

void linear_pack(Worker *worker, int task) {
    linear_set_decay(worker, task);
    if (!worker->map->pack) return;
    worker->map->pack(worker->packed, worker->constants, worker->parameters, task % worker->config->NH, worker->config);
}

// ---- decay

// Smaller powers count as 0: they add nothing to a sum, and products with them would be denormal numbers, which are
// slow.
static double power_or_zero(double power) {
    return power < 1e-30 ? 0 : power;
}

// decay^distance; 1 where nothing fades
static double power_at(const Worker *worker, int distance) {
    if (!worker->fades) return 1;
    return power_or_zero(exp((double)worker->log_decay * distance));
}

void linear_set_decay(Worker *worker, int task) {
    worker->log_decay = attention_log_decay(worker->parameters, task % worker->config->NH, worker->config);
    if (!worker->fades) return;
    // powers[i] = decay^i; the first n, multiplied by decay^n, give the n after them.
    double powers[2 * TILE] = {1}, next = exp((double)worker->log_decay);
    for (int n = 1; n < 2 * TILE; n *= 2, next *= next)
        for (int i = 0; i < n; i++) powers[n + i] = powers[i] * next;
    for (int i = 0; i < TILE; i++) worker->powers[i] = 0;
    for (int i = 0; i < 2 * TILE; i++) worker->powers[TILE + i] = (real)power_or_zero(powers[i]);
}

void linear_query_powers(real *power, const Worker *worker, int before) {
    double first = power_at(worker, before + 1);
    for (int i = 0; i < TILE; i++) power[i] = (real)power_or_zero(first * worker->powers[TILE + i]);
}

void linear_key_powers(real *power, const Worker *worker, int rows, int after) {
    double last = power_at(worker, after);
    for (int i = 0; i < TILE; i++) power[i] = (real)power_or_zero(last * worker->powers[TILE + rows - 1 - i]);
}

void linear_fade_rows(real *restrict rows, const real *restrict power, int n, int stride) {
    for (int i = 0; i < n; i++)
        for (int c = 0; c < stride; c++) rows[i * stride + c] *= power[i];
}

void linear_fade_columns(real *faded, const real *x, const real *power, int width, int lanes) {
    for (int c = 0; c < width; c++)
        for (int i = 0; i < lanes; i++) faded[c * TILE + i] = x[c * TILE + i] * power[i];
}

const real *linear_pair_powers(Worker *worker, int distance) {
    int mirrored = rows_are_keys(worker->walk);
    if (!mirrored && distance <= TILE) return worker->powers + TILE + distance;
    double factor = power_at(worker, max_int(distance - TILE, 0));
    const real *near = worker->powers + TILE + min_int(distance, TILE);
    real *power = worker->far_powers + TILE;
    for (int i = 1 - TILE; i < TILE; i++) power[mirrored ? -i : i] = (real)power_or_zero(factor * near[i]);
    return power;
}

// ---- the wide product phi = outer (x) inner, a block at a time

int linear_block_outers(const LinearMap *map) {
    return max_int(1, PHI_ROWS / max_int(map->inner, 1));
}

// Block of phi for the outer features [from, from + count): (count * inner, TILE). Without inner it exists already.
static const real *expand(real *phi, const LinearFeatures *features, int from, int count, int lanes, int inner) {
    if (!inner) return features->outer + (size_t)from * TILE;
    for (int e = 0; e < count; e++) {
        const real *outer = features->outer + (size_t)(from + e) * TILE;
        for (int p = 0; p < inner; p++) {
            const real *factor = features->inner + (size_t)p * TILE;
            real *product = phi + (size_t)(e * inner + p) * TILE;
            for (int i = 0; i < lanes; i++) product[i] = outer[i] * factor[i];
        }
    }
    return phi;
}

// ---- states

// The matrix, the vector and the log scale.
size_t linear_state_size(const LinearMap *map, int HS) {
    return linear_feature_count(map) * ((size_t)tile_stride(HS) + 1) + 1;
}

State linear_state_at(real *base, const LinearMap *map, int HS) {
    size_t F = linear_feature_count(map), size = F * (size_t)tile_stride(HS);
    return (State){base, base + size, base + size + F};
}

void linear_clear_state(State state, const LinearMap *map, int HS) {
    memset(state.matrix, 0, (linear_state_size(map, HS) - 1) * sizeof(real));
    *state.log_scale = -INFINITY;
}

double linear_fading(const Worker *worker, State state, int rows, real log_scale) {
    double factor = power_at(worker, rows);
    if (worker->map->log_scaled) factor = real_exp(*state.log_scale + (real)rows * worker->log_decay - log_scale);
    *state.log_scale = log_scale;
    return factor;
}

// A decay near 1 is a factor near 1 applied thousands of times, so the digits of it that a float cannot hold count too.
// What is left of a feature long gone ends as 0, never as a denormal number.
static void scale_state(const Worker *worker, real *numbers, size_t n, double factor) {
    real high = (real)factor, low = (real)(factor - high);
    if (!worker->fades)
        for (size_t i = 0; i < n; i++) numbers[i] *= high;
    else
        for (size_t i = 0; i < n; i++) {
            real scaled = high * numbers[i] + low * numbers[i];
            numbers[i] = real_abs(scaled) < (real)1e-37 ? 0 : scaled;
        }
}

void linear_add_to_state(Worker *worker, State state, double factor, const RowTile *tile, int rows) {
    const LinearMap *map = worker->map;
    int inner = max_int(map->inner, 1), stride = worker->stride, lanes = tile_lanes(rows);
    int step = linear_block_outers(map);
    for (int from = 0; from < map->outer; from += step) {
        int count = min_int(step, map->outer - from), width = count * inner;
        const real *phi = expand(worker->phi, &tile->features, from, count, lanes, map->inner);
        real *vector = state.vector + (size_t)from * inner, *matrix = state.matrix + (size_t)from * inner * stride;
        if (factor != 1) { // here, where the block comes into the cache anyway
            scale_state(worker, matrix, (size_t)width * stride, factor);
            scale_state(worker, vector, (size_t)width, factor);
        }
        tile_multiply(matrix, stride, (TileLeft){phi, TILE, 1}, tile->extended, stride, width, stride, rows, 1,
                      TILE_FULL);
        tile_add_dots(vector, 1, phi, TILE, width, tile->weights, lanes);
    }
}

void linear_read_state(Worker *worker, real *denominator, int rows) {
    const LinearMap *map = worker->map;
    int inner = max_int(map->inner, 1), stride = worker->stride, lanes = tile_lanes(rows);
    int step = linear_block_outers(map);
    for (int from = 0; from < map->outer; from += step) {
        int count = min_int(step, map->outer - from), width = count * inner;
        const real *phi = expand(worker->phi, &worker->rows.features, from, count, lanes, map->inner);
        const real *vector = worker->state.vector + (size_t)from * inner;
        tile_multiply(worker->numerator, stride, (TileLeft){phi, 1, TILE},
                      worker->state.matrix + (size_t)from * inner * stride, stride, rows, stride, width, 1, TILE_FULL);
        if (denominator)
            tile_multiply(denominator, TILE, (TileLeft){vector, width, 1}, phi, TILE, 1, lanes, width, 1, TILE_FULL);
    }
}

void linear_set_relative_scale(const Worker *worker, LinearFeatures *features, const real *scale, int sign,
                               real reference, int distance, int lanes) {
    for (int i = 0; i < lanes; i++)
        features->inner[i] =
            real_exp((real)sign * (scale[i] - reference) + (real)(distance - sign * i) * worker->log_decay);
}

void linear_absorb_keys(Worker *worker, State state, int count) {
    const LinearMap *map = worker->map;
    real largest = *state.log_scale, power[TILE];
    for (int row = 0; map->log_scaled && row < count; row++)
        largest = real_max(largest + worker->log_decay, linear_other(worker, row / TILE).scale[row % TILE]);
    double fading = linear_fading(worker, state, count, largest);
    for (int row = 0; row < count; row += TILE) {
        RowTile tile = linear_other(worker, row / TILE);
        int rows = min_int(TILE, count - row);
        if (map->log_scaled)
            linear_set_relative_scale(worker, &tile.features, tile.scale, 1, *state.log_scale, count - 1 - row,
                                      tile_lanes(rows));
        if (worker->fades) {
            linear_key_powers(power, worker, rows, count - row - rows);
            linear_fade_rows(tile.extended, power, rows, worker->stride);
            linear_fade_columns(tile.weights, tile.weights, power, 1, rows);
        }
        linear_add_to_state(worker, state, row ? 1 : fading, &tile, rows);
    }
}

// ---- pairs of tiles

// log_scaled: the factor of every pair, exp(the key's scale, faded, - largest scale that the query has seen) <= 1
static void pair_scales(Worker *worker, const real *other_scale, int other_rows, int lanes, int distance) {
    const real *scale = worker->rows.scale;
    int sign = rows_are_keys(worker->walk) ? 1 : -1; // of the rows' scale
    for (int j = 0; j < other_rows; j++)
        for (int i = 0; i < lanes; i++) {
            real faded = (real)(distance + sign * (j - i)) * worker->log_decay;
            real difference = (real)sign * (scale[i] - other_scale[j]) + faded; // above 1 only where masked out
            worker->inner_scores[j * TILE + i] = real_exp(difference > 1 ? 1 : difference);
        }
}

void linear_pair_scores(Worker *worker, const RowTile *others, int other_rows, int rows, int distance) {
    const LinearMap *map = worker->map;
    const LinearFeatures *at = &worker->rows.features, *other = &others->features;
    TileShape shape = distance ? TILE_FULL : rows_are_keys(worker->walk) ? TILE_C_LOWER : TILE_C_UPPER;
    int lanes = tile_lanes(rows);
    tile_multiply(worker->scores, TILE, (TileLeft){other->outer, 1, TILE}, at->outer, TILE, other_rows, lanes,
                  map->outer, 0, shape);
    if (map->log_scaled)
        pair_scales(worker, others->scale, other_rows, lanes, distance);
    else if (map->inner)
        tile_multiply(worker->inner_scores, TILE, (TileLeft){other->inner, 1, TILE}, at->inner, TILE, other_rows, lanes,
                      map->inner, 0, shape);
}

void linear_mask_future(const Worker *worker, real *tile, int other_rows, int lanes, int distance) {
    int is_row_later = !rows_are_keys(worker->walk);
    for (int j = 0; j < other_rows; j++) {
        int from = is_row_later ? 0 : j + distance + 1, to = is_row_later ? min_int(lanes, j - distance) : lanes;
        for (int i = from; i < to; i++) tile[j * TILE + i] = 0;
    }
}

void linear_add_pairs(Worker *worker, const RowTile *others, int other_rows, int rows, int distance) {
    TileShape shape = distance ? TILE_FULL : rows_are_keys(worker->walk) ? TILE_A_UPPER : TILE_A_LOWER;
    tile_multiply(worker->numerator, worker->stride, (TileLeft){worker->scores, 1, TILE}, others->extended,
                  worker->stride, rows, worker->stride, other_rows, 1, shape);
}

// ---- segments

// As many as there are whole threads for each task: one segment more than that would be left over.
static Segments segments_of(int chunk, int tasks, const AttentionConfig *config) {
    int chunks = chunks_of(config->T, chunk), wanted = max_int(1, min_int(chunks, omp_get_max_threads() / tasks));
    int rows = chunks_of(chunks, wanted) * chunk;
    return (Segments){.count = chunks_of(config->T, rows), .rows = rows};
}

// With two threads for a head one walks over the first two thirds; the other adds up the keys of these, which is half
// of the work, and walks over the rest. The state that it begins with has the bits of the first one's.
static Segments forward_segments_of(int chunk, int tasks, const AttentionConfig *config) {
    Segments segments = segments_of(chunk, tasks, config);
    segments.alone = segments.count == 2;
    if (segments.alone) segments.rows = max_int(1, 2 * chunks_of(config->T, chunk) / 3) * chunk;
    return segments;
}

Division linear_divide(const LinearMap *map, int is_backward, int has_documents, const AttentionConfig *config) {
    int chunk = linear_chunk_rows(map, config->T, config);
    int walks = is_backward && !has_documents ? linear_backward_walks(chunk, config->T) : 1;
    int tasks = config->B * config->NH * walks;
    Segments segments = has_documents ? segments_of(1, tasks, config)
                        : is_backward ? segments_of(chunk, tasks, config)
                                      : forward_segments_of(chunk, tasks, config);
    if (is_backward && map->d_packed_size) // one for each head and pass
        segments = (Segments){.count = 1, .rows = config->T};
    return (Division){has_documents ? linear_most_chunk_rows(map, config) : chunk, walks, segments};
}

size_t linear_boundary_size(const LinearMap *map, Segments segments, const AttentionConfig *config) {
    if (segments.count == 1 || segments.alone) return 0;
    return (size_t)config->B * config->NH * segments.count * linear_state_size(map, config->HS);
}

size_t linear_parameter_work_size(const LinearMap *map, Division division, int has_documents,
                                  const AttentionConfig *config) {
    size_t heads = (size_t)config->B * config->NH, walks = (size_t)division.walks, T = (size_t)config->T;
    size_t sums = walks * division.segments.count + 2 * (size_t)chunks_of(config->T, division.chunk);
    if (has_documents) sums = 3 * T;
    size_t decay = config->decay == DECAY_LEARNED ? heads * sums * sizeof(double) / sizeof(real) : 0;
    return round_up(decay, 16) + round_up(heads * walks * map->d_packed_size, 16);
}

State linear_boundary(real *boundaries, int task, int segment, Segments segments, const Worker *worker) {
    size_t index = (size_t)task * segments.count + segment;
    return linear_state_at(boundaries + index * linear_state_size(worker->map, worker->HS), worker->map, worker->HS);
}

void linear_add_states(Worker *worker, State a, State b, int rows) {
    const LinearMap *map = worker->map;
    size_t n = linear_state_size(map, worker->HS) - 1;
    real factor = (real)power_at(worker, rows);
    if (map->log_scaled) {
        real faded = *b.log_scale; // row by row, as the queries' largest scales are: the same bits
        for (int row = 0; row < rows; row++) faded += worker->log_decay;
        double own = linear_fading(worker, a, 0, real_max(*a.log_scale, faded));
        if (own != 1) scale_state(worker, a.matrix, n, own);
        factor = real_exp(*b.log_scale + (real)rows * worker->log_decay - *a.log_scale);
    }
    for (size_t i = 0; i < n; i++) a.matrix[i] += factor * b.matrix[i];
}

void linear_add_keys(Worker *worker, State state, HeadInput input, int start, int end) {
    for (int row = start; row < end; row += worker->chunk) {
        linear_load_chunk_of_keys(worker, input, row, worker->chunk);
        linear_absorb_keys(worker, state, worker->chunk);
    }
}

void linear_sum_keys(Worker *worker, real *boundaries, Segments segments, const real *qkv) {
    const LinearMap *map = worker->map;
    int heads = worker->config->B * worker->config->NH, inside = segments.count - 1;
#pragma omp for schedule(dynamic)
    for (int i = 0; i < heads * inside; i++) {
        int task = i / inside, segment = i % inside;
        State sum = linear_boundary(boundaries, task, segment + 1, segments, worker);
        HeadInput input =
            linear_head_input(qkv, linear_row_of(task, worker->config), task % worker->config->NH, worker->config);
        linear_pack(worker, task);
        linear_clear_state(sum, map, worker->HS);
        linear_add_keys(worker, sum, input, segment * segments.rows, (segment + 1) * segments.rows);
    }
#pragma omp for
    for (int task = 0; task < heads; task++) {
        linear_set_decay(worker, task);
        linear_clear_state(linear_boundary(boundaries, task, 0, segments, worker), map, worker->HS);
        for (int segment = 2; segment < segments.count; segment++)
            linear_add_states(worker, linear_boundary(boundaries, task, segment, segments, worker),
                              linear_boundary(boundaries, task, segment - 1, segments, worker), segments.rows);
    }
}
