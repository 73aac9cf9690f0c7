#include "linear_core.h"
#include "range.h"
#include "core/base/vector_math.h"

#include <omp.h>
#include <string.h>

// ---- scratch

static real *layout_take(Layout *layout, size_t count) {
    real *piece = layout->base ? layout->base + layout->used : NULL;
    layout->used += (count + 15) / 16 * 16;
    return piece;
}

static LinearFeatures layout_features(Layout *layout, const LinearMap *map, int tape) {
    LinearFeatures features = {.outer = layout_take(layout, (size_t)map->outer * TILE),
                               .inner = layout_take(layout, (size_t)map->inner * TILE),
                               .log_scale = layout_take(layout, map->log_scaled ? TILE : 0),
                               .tape = layout_take(layout, (size_t)tape * TILE)};
    return features;
}

static KeyTile layout_key_tile(Layout *layout, const LinearMap *map, int HS, int backward) {
    KeyTile tile = {.features = layout_features(layout, map, backward ? map->tape : 0),
                    .v = layout_take(layout, (size_t)TILE * tile_stride(HS))};
    if (!backward) return tile;
    tile.d = layout_features(layout, map, 0);
    tile.d_outer_rows = layout_take(layout, (size_t)TILE * tile_stride(map->outer));
    tile.d_inner_rows = layout_take(layout, (size_t)TILE * tile_stride(map->inner));
    tile.dv = layout_take(layout, (size_t)TILE * tile_stride(HS));
    return tile;
}

KeyTile linear_key_tile(const Worker *worker, int index) {
    Layout layout = {worker->keys + (size_t)index * worker->key_tile_size, 0};
    return layout_key_tile(&layout, worker->map, worker->HS, worker->backward);
}

size_t linear_key_tile_size(const LinearMap *map, int HS, int backward) {
    Layout counter = {NULL, 0};
    layout_key_tile(&counter, map, HS, backward);
    return counter.used;
}

enum {
    PHI_ROWS = 96
}; // features in one block of phi: with its share of the state it stays in the first level of cache

static void lay_out_backward(Worker *worker, Layout *layout, int rows) {
    const LinearMap *map = worker->map;
    int HS = worker->HS;
    worker->dq = layout_features(layout, map, 0);
    worker->q_outer_rows = layout_take(layout, (size_t)TILE * tile_stride(map->outer));
    worker->q_inner_rows = layout_take(layout, (size_t)TILE * tile_stride(map->inner));
    worker->gamma = layout_take(layout, (size_t)TILE * worker->stride);
    worker->gamma_features = layout_take(layout, (size_t)TILE * HS);
    worker->beta = layout_take(layout, TILE);
    worker->d_scores = layout_take(layout, TILE * TILE);
    worker->d_inner_scores = layout_take(layout, TILE * TILE);
    real *sums = layout_take(layout, linear_state_size(map, HS));
    worker->query_sums = linear_state_at(sums, map, HS);
    worker->states = layout_take(layout, (size_t)chunks_of(rows, worker->chunk) * linear_state_size(map, HS));
}

size_t linear_lay_out(Worker *worker, real *base, const LinearMap *map, int rows, int chunk, int backward,
                      const AttentionConfig *config) {
    int HS = config->HS;
    Layout layout = {base, 0};
    *worker = (Worker){
        .map = map, .config = config, .HS = HS, .stride = tile_stride(HS), .backward = backward, .chunk = chunk};
    worker->fades = config->decay != DECAY_NONE && !map->log_scaled;
    worker->powers = layout_take(&layout, worker->fades ? 3 * TILE : 0);
    worker->far_powers = layout_take(&layout, worker->fades ? 3 * TILE : 0);
    worker->packed = layout_take(&layout, map->packed_size);
    worker->x = layout_take(&layout, (size_t)HS * TILE);
    worker->q = layout_features(&layout, map, map->tape);
    size_t phi_size = (size_t)max_int(PHI_ROWS, map->inner) * TILE;
    worker->phi = layout_take(&layout, phi_size);
    worker->d_phi = layout_take(&layout, backward ? phi_size : 0);
    worker->inner_scores = layout_take(&layout, TILE * TILE);
    worker->scores = layout_take(&layout, TILE * TILE);
    worker->numerator = layout_take(&layout, (size_t)TILE * worker->stride);
    worker->denominator = layout_take(&layout, TILE);
    worker->running_max = layout_take(&layout, TILE);
    real *state = layout_take(&layout, linear_state_size(map, HS));
    worker->state = linear_state_at(state, map, HS);
    worker->key_tile_size = linear_key_tile_size(map, HS, backward);
    worker->keys = layout_take(&layout, (size_t)tiles_of(chunk) * worker->key_tile_size);
    if (backward) lay_out_backward(worker, &layout, rows);
    return layout.used;
}

// ---- tiles in and out

// rows (n, HS; leading dimension `stride`) -> x (HS, TILE), with zeros up to whole lanes
static void load_features(real *x, const real *rows, int stride, int n, int HS) {
    int lanes = tile_lanes(n);
    tile_transpose(x, TILE, rows, stride, n, HS, 0);
    for (int c = 0; c < HS; c++) {
        for (int i = n; i < lanes; i++) x[c * TILE + i] = 0;
        for (int i = 0; i < lanes; i++) x[c * TILE + i] = limited_input(x[c * TILE + i]);
    }
}

// rows (n, HS; leading dimension `stride`) -> v (TILE, HS), with zeros up to whole vectors
static void load_rows(real *v, const real *rows, int stride, int n, int HS) {
    for (int i = 0; i < n; i++, v += tile_stride(HS)) {
        for (int c = 0; c < HS; c++) v[c] = limited_input(rows[(size_t)i * stride + c]);
        for (int c = HS; c < tile_stride(HS); c++) v[c] = 0;
    }
}

HeadInput linear_head_input(const real *qkv, int task, const AttentionConfig *config) {
    size_t C = (size_t)config->C, sequence = (size_t)(task / config->NH), head = (size_t)(task % config->NH);
    const real *q = qkv + sequence * (size_t)config->T * 3 * C + head * (size_t)config->HS;
    return (HeadInput){q, q + C, q + 2 * C, 3 * config->C};
}

void linear_load_key_tile(Worker *worker, KeyTile *tile, HeadInput input, int row, LinearRows rows) {
    load_features(worker->x, row_at(input.k, row, input.stride), input.stride, rows.count, worker->HS);
    LinearFeatures features = tile->features;
    if (!worker->backward) features.tape = worker->q.tape; // not needed again: any place will do
    worker->map->features(&features, worker->x, rows, worker->packed, worker->config);
    load_rows(tile->v, row_at(input.v, row, input.stride), input.stride, rows.count, worker->HS);
}

void linear_load_keys(Worker *worker, HeadInput input, int start, int count) {
    for (int row = 0; row < count; row += TILE) {
        KeyTile tile = linear_key_tile(worker, row / TILE);
        linear_load_key_tile(worker, &tile, input, start + row, (LinearRows){start + row, min_int(TILE, count - row)});
    }
}

void linear_load_queries(Worker *worker, HeadInput input, int row, LinearRows rows) {
    load_features(worker->x, row_at(input.q, row, input.stride), input.stride, rows.count, worker->HS);
    worker->map->features(&worker->q, worker->x, rows, worker->packed, worker->config);
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

double linear_power(const Worker *worker, int distance) {
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
    double first = linear_power(worker, before + 1);
    for (int i = 0; i < TILE; i++) power[i] = (real)power_or_zero(first * worker->powers[TILE + i]);
}

void linear_key_powers(real *power, const Worker *worker, int rows, int after) {
    double last = linear_power(worker, after);
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
    if (distance <= TILE) return worker->powers + TILE + distance;
    double factor = linear_power(worker, distance - TILE);
    for (int i = TILE; i < 3 * TILE; i++) worker->far_powers[i] = (real)power_or_zero(factor * worker->powers[i]);
    return worker->far_powers + 2 * TILE;
}

// ---- the wide product phi = outer (x) inner, a block at a time

int linear_block_outers(const LinearMap *map) {
    return max_int(1, PHI_ROWS / max_int(map->inner, 1));
}

const real *linear_expand(real *phi, const LinearFeatures *features, int from, int count, int lanes, int inner) {
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
    double factor = linear_power(worker, rows);
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

// Two loops: a choice within one would be made for every number.
static real weighted_sum(const real *x, const real *weights, int n) {
    real sum = 0;
    if (weights) {
#pragma omp simd reduction(+ : sum)
        for (int i = 0; i < n; i++) sum += x[i] * weights[i];
    } else {
#pragma omp simd reduction(+ : sum)
        for (int i = 0; i < n; i++) sum += x[i];
    }
    return sum;
}

void linear_add_to_state(Worker *worker, State state, double factor, const LinearFeatures *features, const real *right,
                         const real *weights, int rows) {
    const LinearMap *map = worker->map;
    int inner = max_int(map->inner, 1), stride = worker->stride, lanes = tile_lanes(rows);
    int step = linear_block_outers(map);
    for (int from = 0; from < map->outer; from += step) {
        int count = min_int(step, map->outer - from), width = count * inner;
        const real *phi = linear_expand(worker->phi, features, from, count, lanes, map->inner);
        real *vector = state.vector + (size_t)from * inner, *matrix = state.matrix + (size_t)from * inner * stride;
        if (factor != 1) { // here, where the block comes into the cache anyway
            scale_state(worker, matrix, (size_t)width * stride, factor);
            scale_state(worker, vector, (size_t)width, factor);
        }
        tile_multiply(matrix, stride, (TileLeft){phi, TILE, 1}, right, stride, width, stride, rows, 1, TILE_FULL);
        for (int f = 0; f < width; f++) vector[f] += weighted_sum(phi + (size_t)f * TILE, weights, rows);
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
    for (int row = 0; map->log_scaled && row < count; row++) {
        KeyTile tile = linear_key_tile(worker, row / TILE);
        largest = real_max(largest + worker->log_decay, tile.features.log_scale[row % TILE]);
    }
    double fading = linear_fading(worker, state, count, largest);
    for (int row = 0; row < count; row += TILE) {
        KeyTile tile = linear_key_tile(worker, row / TILE);
        int rows = min_int(TILE, count - row);
        if (map->log_scaled)
            linear_set_relative_scale(worker, &tile.features, tile.features.log_scale, 1, *state.log_scale,
                                      count - 1 - row, tile_lanes(rows));
        if (worker->fades) {
            linear_key_powers(power, worker, rows, count - row - rows);
            linear_fade_rows(tile.v, power, rows, worker->stride);
        }
        linear_add_to_state(worker, state, row ? 1 : fading, &tile.features, tile.v, worker->fades ? power : NULL,
                            rows);
    }
}

// ---- pairs of tiles

// log_scaled: the factor of every pair, exp(scale of key j, faded, - largest scale that query i has seen) <= 1
static void pair_scales(Worker *worker, const real *key_scale, int key_rows, int lanes, int distance) {
    for (int j = 0; j < key_rows; j++)
        for (int i = 0; i < lanes; i++) {
            real faded = key_scale[j] + (real)(distance + i - j) * worker->log_decay;
            real difference = faded - worker->running_max[i]; // above 1 only for keys that are masked out
            worker->inner_scores[j * TILE + i] = real_exp(difference > 1 ? 1 : difference);
        }
}

void linear_pair_scores(Worker *worker, const LinearFeatures *keys, int key_rows, int lanes, int distance) {
    const LinearMap *map = worker->map;
    TileShape shape = distance ? TILE_FULL : TILE_C_UPPER;
    tile_multiply(worker->scores, TILE, (TileLeft){keys->outer, 1, TILE}, worker->q.outer, TILE, key_rows, lanes,
                  map->outer, 0, shape);
    if (map->log_scaled)
        pair_scales(worker, keys->log_scale, key_rows, lanes, distance);
    else if (map->inner)
        tile_multiply(worker->inner_scores, TILE, (TileLeft){keys->inner, 1, TILE}, worker->q.inner, TILE, key_rows,
                      lanes, map->inner, 0, shape);
}

void linear_mask_future(real *tile, int key_rows, int lanes, int distance) {
    for (int j = distance + 1; j < key_rows; j++)
        for (int i = 0; i < min_int(lanes, j - distance); i++) tile[j * TILE + i] = 0;
}

// ---- segments

Segments linear_segments(const LinearMap *map, int chunk, const AttentionConfig *config) {
    int heads = config->B * config->NH, threads = omp_get_max_threads(), chunks = chunks_of(config->T, chunk);
    int whole = map->d_packed_size || heads >= threads; // one d_packed for each head
    int wanted = whole ? 1 : min_int(chunks, chunks_of(threads, heads));
    int rows = chunks_of(chunks, wanted) * chunk;
    return (Segments){chunks_of(config->T, rows), rows};
}

size_t linear_boundary_size(const LinearMap *map, Segments segments, const AttentionConfig *config) {
    if (segments.count == 1) return 0;
    return (size_t)config->B * config->NH * segments.count * linear_state_size(map, config->HS);
}

size_t linear_decay_size(Segments segments, const AttentionConfig *config) {
    size_t sums = config->decay == DECAY_LEARNED ? (size_t)config->B * config->NH * segments.count : 0;
    return round_up(sums * sizeof(double) / sizeof(real), 16);
}

size_t linear_packed_gradient_size(const LinearMap *map, const AttentionConfig *config) {
    return round_up((size_t)config->B * config->NH * map->d_packed_size, 16);
}

State linear_boundary(real *boundaries, int task, int segment, Segments segments, const Worker *worker) {
    size_t index = (size_t)task * segments.count + segment;
    return linear_state_at(boundaries + index * linear_state_size(worker->map, worker->HS), worker->map, worker->HS);
}

void linear_add_states(Worker *worker, State a, State b, int rows) {
    const LinearMap *map = worker->map;
    size_t n = linear_state_size(map, worker->HS) - 1;
    real factor = (real)linear_power(worker, rows);
    if (map->log_scaled) {
        real faded = *b.log_scale; // row by row, as the queries' largest scales are: the same bits
        for (int row = 0; row < rows; row++) faded += worker->log_decay;
        double own = linear_fading(worker, a, 0, real_max(*a.log_scale, faded));
        if (own != 1) scale_state(worker, a.matrix, n, own);
        factor = real_exp(*b.log_scale + (real)rows * worker->log_decay - *a.log_scale);
    }
    for (size_t i = 0; i < n; i++) a.matrix[i] += factor * b.matrix[i];
}

void linear_sum_keys(Worker *worker, real *boundaries, Segments segments, const real *qkv) {
    const LinearMap *map = worker->map;
    int heads = worker->config->B * worker->config->NH, inside = segments.count - 1;
#pragma omp for schedule(dynamic)
    for (int i = 0; i < heads * inside; i++) {
        int task = i / inside, segment = i % inside;
        State sum = linear_boundary(boundaries, task, segment + 1, segments, worker);
        HeadInput input = linear_head_input(qkv, task, worker->config);
        linear_pack(worker, task);
        linear_clear_state(sum, map, worker->HS);
        for (int row = segment * segments.rows; row < (segment + 1) * segments.rows; row += worker->chunk) {
            linear_load_keys(worker, input, row, worker->chunk);
            linear_absorb_keys(worker, sum, worker->chunk);
        }
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
