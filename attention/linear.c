#include "linear.h"
#include "../core/vector_math.h"

#include <omp.h>
#include <stdatomic.h>
#include <string.h>

// ---- sizes and the choice of chunk

static int min_int(int a, int b) {
    return a < b ? a : b;
}

static int max_int(int a, int b) {
    return a > b ? a : b;
}

// Width of phi; a squared inner map has no state, so it is never asked for one.
static size_t feature_count(const LinearMap *map) {
    return (size_t)map->outer * (size_t)max_int(map->inner, 1);
}

// Numbers in a state: phi(k) v^T (F, HS), phi(k) (F), and the log scale that both are relative to.
static size_t state_size(const LinearMap *map, int HS) {
    return feature_count(map) * ((size_t)HS + 1) + 1;
}

// Multiplications of one pair of rows, and of one row with a state (read and update).
static double pair_cost(const LinearMap *map, int HS) {
    return map->outer + map->inner + HS + 1;
}

static double state_cost(const LinearMap *map, int HS) {
    return 2.0 * (double)feature_count(map) * (HS + 1);
}

// Per row, averaged over a sequence of T rows: half of the pairs within a chunk, a state for all rows but those of the
// first and the last chunk. The backward pass costs the same multiple of both.
static double row_cost(const LinearMap *map, int HS, int T, int chunk) {
    return pair_cost(map, HS) * 0.5 * (chunk + 1) + state_cost(map, HS) * (1.0 - (double)chunk / T);
}

int linear_chunk_rows(const LinearMap *map, int T, const AttentionConfig *config) {
    if (map->squared_inner) return T;
    if (config->chunk) return min_int(config->chunk, T);
    // Wider states are visited less often: that keeps the states of the backward pass in bounds, and a chunk's pairs
    // are still cheap beside them.
    int chunk = TILE * min_int(16, max_int(1, (int)(feature_count(map) / 512)));
    chunk = min_int(chunk, T);
    return row_cost(map, config->HS, T, T) <= row_cost(map, config->HS, T, chunk) ? T : chunk;
}

static int tiles_of(int rows) {
    return (rows + TILE - 1) / TILE;
}

static int chunks_of(int T, int chunk) {
    return (T + chunk - 1) / chunk;
}

// ---- one thread's scratch

typedef struct { // hands out pieces of a block; without a block it only counts
    real *base;
    size_t used;
} Arena;

static real *arena_take(Arena *arena, size_t count) {
    real *piece = arena->base ? arena->base + arena->used : NULL;
    arena->used += (count + 15) / 16 * 16;
    return piece;
}

static LinearFeatures arena_features(Arena *arena, const LinearMap *map, int tape) {
    LinearFeatures features = {.outer = arena_take(arena, (size_t)map->outer * TILE),
                               .inner = arena_take(arena, (size_t)map->inner * TILE),
                               .log_scale = arena_take(arena, map->log_scaled ? TILE : 0),
                               .tape = arena_take(arena, (size_t)tape * TILE)};
    return features;
}

typedef struct { // a tile of keys and values
    LinearFeatures features;
    real *v; // (TILE, HS)
    // for the backward pass
    LinearFeatures d;                  // gradients of the features ...
    real *d_outer_rows, *d_inner_rows; // ... and their part that comes from pairs: (TILE, outer), (TILE, inner)
    real *dv;                          // (TILE, HS)
} KeyTile;

static KeyTile arena_key_tile(Arena *arena, const LinearMap *map, int HS, int backward) {
    KeyTile tile = {.features = arena_features(arena, map, backward ? map->tape : 0),
                    .v = arena_take(arena, (size_t)TILE * HS)};
    if (!backward) return tile;
    tile.d = arena_features(arena, map, 0);
    tile.d_outer_rows = arena_take(arena, (size_t)TILE * map->outer);
    tile.d_inner_rows = arena_take(arena, (size_t)TILE * map->inner);
    tile.dv = arena_take(arena, (size_t)TILE * HS);
    return tile;
}

typedef struct { // sum of phi(k) v^T (F, HS) and phi(k) (F), or of phi(q) gamma^T and phi(q) beta
    real *matrix, *vector;
    real *log_scale; // (1) of log_scaled maps: the true sums are exp(log_scale) times these
} State;

static State state_at(real *base, const LinearMap *map, int HS) {
    size_t F = feature_count(map);
    return (State){base, base + F * (size_t)HS, base + F * ((size_t)HS + 1)};
}

static void state_clear(State state, const LinearMap *map, int HS) {
    memset(state.matrix, 0, (state_size(map, HS) - 1) * sizeof(real));
    *state.log_scale = -INFINITY;
}

enum { PHI_ROWS = 96 }; // features in one block of the wide product: it stays in the first level of cache

typedef struct {
    const LinearMap *map;
    const AttentionConfig *config;
    int HS, backward;
    int chunk;            // rows
    real *packed;         // the constants of the current head
    real *x;              // (HS, TILE) an input or its gradient, feature-major
    LinearFeatures q;     // of the current tile of queries
    real *phi, *d_phi;    // (max(PHI_ROWS, inner), TILE) a block of phi
    real *inner_scores;   // (TILE keys, TILE queries) <inner, inner>, for the pair of tiles at hand
    real *scores;         // (TILE, TILE) <outer, outer>, then times the above: <phi(k_j), phi(q_i)>
    real *numerator;      // (TILE, HS)
    real *denominator;    // (TILE)
    real *running_max;    // (TILE) log_scaled maps: the largest log scale of any key so far, by query
    real *keys;           // the key tiles of a chunk
    size_t key_tile_size; // in numbers
    State state;          // over the keys before the chunk
    // for the backward pass
    LinearFeatures dq;
    real *q_outer_rows, *q_inner_rows; // (TILE, outer), (TILE, inner) the queries' features, row-major
    real *gamma;                       // (TILE, HS) gradient of the numerator
    real *gamma_features;              // (HS, TILE) the same, feature-major
    real *beta;                        // (TILE) gradient of Z
    real *d_scores;                    // (TILE, TILE) gradient of the scores
    real *d_inner_scores;              // (TILE, TILE) what reaches inner_scores, then inner
    real *raw_scores;                  // (TILE, TILE) squared_inner: inner_scores before squaring
    State query_sums;                  // U: over the queries after the chunk
    real *states;                      // the state before each chunk but the first
} Worker;

static KeyTile key_tile(const Worker *worker, int index) {
    Arena arena = {worker->keys + (size_t)index * worker->key_tile_size, 0};
    return arena_key_tile(&arena, worker->map, worker->HS, worker->backward);
}

static void lay_out_backward(Worker *worker, Arena *arena, int T) {
    const LinearMap *map = worker->map;
    int HS = worker->HS;
    worker->dq = arena_features(arena, map, 0);
    worker->q_outer_rows = arena_take(arena, (size_t)TILE * map->outer);
    worker->q_inner_rows = arena_take(arena, (size_t)TILE * map->inner);
    worker->gamma = arena_take(arena, (size_t)TILE * HS);
    worker->gamma_features = arena_take(arena, (size_t)TILE * HS);
    worker->beta = arena_take(arena, TILE);
    worker->d_scores = arena_take(arena, TILE * TILE);
    worker->d_inner_scores = arena_take(arena, TILE * TILE);
    worker->raw_scores = arena_take(arena, map->squared_inner ? TILE * TILE : 0);
    if (map->squared_inner) return;
    real *sums = arena_take(arena, state_size(map, HS));
    worker->query_sums = state_at(sums, map, HS);
    worker->states = arena_take(arena, (size_t)(chunks_of(T, worker->chunk) - 1) * state_size(map, HS));
}

// Places everything in `base` for sequences of T rows; returns the size in numbers. base may be NULL.
static size_t lay_out(Worker *worker, real *base, const LinearMap *map, int T, int chunk, int backward,
                      const AttentionConfig *config) {
    int HS = config->HS;
    Arena arena = {base, 0}, counter = {NULL, 0};
    *worker = (Worker){.map = map, .config = config, .HS = HS, .backward = backward, .chunk = chunk};
    worker->packed = arena_take(&arena, map->packed_size);
    worker->x = arena_take(&arena, (size_t)HS * TILE);
    worker->q = arena_features(&arena, map, map->tape);
    size_t phi_size = (size_t)max_int(PHI_ROWS, map->inner) * TILE;
    worker->phi = arena_take(&arena, phi_size);
    worker->d_phi = arena_take(&arena, backward ? phi_size : 0);
    worker->inner_scores = arena_take(&arena, TILE * TILE);
    worker->scores = arena_take(&arena, TILE * TILE);
    worker->numerator = arena_take(&arena, (size_t)TILE * HS);
    worker->denominator = arena_take(&arena, TILE);
    worker->running_max = arena_take(&arena, TILE);
    if (!map->squared_inner) {
        real *state = arena_take(&arena, state_size(map, HS));
        worker->state = state_at(state, map, HS);
    }
    arena_key_tile(&counter, map, HS, backward);
    worker->key_tile_size = counter.used;
    worker->keys = arena_take(&arena, (size_t)tiles_of(chunk) * worker->key_tile_size);
    if (backward) lay_out_backward(worker, &arena, T);
    return arena.used;
}

// ---- tiles in and out

// Numbers beyond this are taken for it, so that no sum over a long sequence overflows. NaN stays NaN.
#define INPUT_MAX ((real)1e15)

static real limited(real x) {
    return x > INPUT_MAX ? INPUT_MAX : x < -INPUT_MAX ? -INPUT_MAX : x;
}

// rows (n, HS; leading dimension `stride`) -> x (HS, TILE), with zeros up to whole lanes
static void load_features(real *x, const real *rows, int stride, int n, int HS) {
    int lanes = tile_lanes(n);
    tile_transpose(x, TILE, rows, stride, n, HS);
    for (int c = 0; c < HS; c++) {
        for (int i = n; i < lanes; i++) x[c * TILE + i] = 0;
        for (int i = 0; i < lanes; i++) x[c * TILE + i] = limited(x[c * TILE + i]);
    }
}

// rows (n, HS; leading dimension `stride`) -> v (TILE, HS)
static void load_rows(real *v, const real *rows, int stride, int n, int HS) {
    for (int i = 0; i < n; i++)
        for (int c = 0; c < HS; c++) v[i * HS + c] = limited(rows[(size_t)i * stride + c]);
}

typedef struct { // the rows of one head in a (T, 3C) or (T, C) array
    const real *q, *k, *v;
    int stride;
} HeadInput;

static HeadInput head_input(const real *qkv, int head, const AttentionConfig *config) {
    const real *q = qkv + (size_t)head * config->HS;
    return (HeadInput){q, q + config->C, q + 2 * (size_t)config->C, 3 * config->C};
}

static const real *row_at(const real *rows, int row, int stride) {
    return rows + (size_t)row * stride;
}

static void load_key_tile(Worker *worker, KeyTile *tile, HeadInput input, int row, LinearRows rows) {
    load_features(worker->x, row_at(input.k, row, input.stride), input.stride, rows.count, worker->HS);
    LinearFeatures features = tile->features;
    if (!worker->backward) features.tape = worker->q.tape; // not needed again: any place will do
    worker->map->features(&features, worker->x, rows, worker->packed, worker->config);
    load_rows(tile->v, row_at(input.v, row, input.stride), input.stride, rows.count, worker->HS);
}

// Loads the keys and values of rows [start, start + count), tile by tile.
static void load_keys(Worker *worker, HeadInput input, int start, int count, int position) {
    for (int row = 0; row < count; row += TILE) {
        KeyTile tile = key_tile(worker, row / TILE);
        load_key_tile(worker, &tile, input, start + row,
                      (LinearRows){position + start + row, min_int(TILE, count - row)});
    }
}

static void load_queries(Worker *worker, HeadInput input, int row, LinearRows rows) {
    load_features(worker->x, row_at(input.q, row, input.stride), input.stride, rows.count, worker->HS);
    worker->map->features(&worker->q, worker->x, rows, worker->packed, worker->config);
}

// ---- the wide product phi = outer (x) inner, a block at a time

static int block_outers(const LinearMap *map) {
    return max_int(1, PHI_ROWS / max_int(map->inner, 1));
}

// Block of phi for the outer features [from, from + count): (count * inner, TILE). Without inner it is there already.
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

// Gradient of the product: adds d_phi (count * inner, TILE) to the gradients of both factors.
static void contract(LinearFeatures *d, const real *d_phi, const LinearFeatures *features, int from, int count,
                     int lanes, const LinearMap *map) {
    int inner = max_int(map->inner, 1);
    for (int e = 0; e < count; e++) {
        const real *outer = features->outer + (size_t)(from + e) * TILE;
        real *d_outer = d->outer + (size_t)(from + e) * TILE;
        for (int p = 0; p < inner; p++) {
            const real *d_product = d_phi + (size_t)(e * inner + p) * TILE;
            const real *factor = features->inner + (size_t)p * TILE;
            real *d_factor = d->inner + (size_t)p * TILE;
            if (!map->inner)
                for (int i = 0; i < lanes; i++) d_outer[i] += d_product[i];
            else if (map->fixed_inner)
                for (int i = 0; i < lanes; i++) d_outer[i] += d_product[i] * factor[i];
            else
                for (int i = 0; i < lanes; i++) {
                    d_outer[i] += d_product[i] * factor[i];
                    d_factor[i] += d_product[i] * outer[i];
                }
        }
    }
}

// ---- rows and states

// numerator (rows, HS) += phi(q) matrix; denominator (TILE) += phi(q) vector
static void read_state(Worker *worker, State state, int rows) {
    const LinearMap *map = worker->map;
    int inner = max_int(map->inner, 1), HS = worker->HS, lanes = tile_lanes(rows), step = block_outers(map);
    for (int from = 0; from < map->outer; from += step) {
        int count = min_int(step, map->outer - from), width = count * inner;
        const real *phi = expand(worker->phi, &worker->q, from, count, lanes, map->inner);
        const real *vector = state.vector + (size_t)from * inner;
        tile_multiply(worker->numerator, HS, (TileLeft){phi, 1, TILE}, state.matrix + (size_t)from * inner * HS, HS,
                      rows, HS, width, 1, TILE_FULL);
        tile_multiply(worker->denominator, TILE, (TileLeft){vector, width, 1}, phi, TILE, 1, lanes, width, 1,
                      TILE_FULL);
    }
}

// matrix += phi^T right, vector += phi^T weights, for features of `rows` rows with right (rows, HS), weights (rows) or
// all ones.
static void add_to_state(Worker *worker, State state, const LinearFeatures *features, const real *right,
                         const real *weights, int rows) {
    const LinearMap *map = worker->map;
    int inner = max_int(map->inner, 1), HS = worker->HS, lanes = tile_lanes(rows), step = block_outers(map);
    for (int from = 0; from < map->outer; from += step) {
        int count = min_int(step, map->outer - from), width = count * inner;
        const real *phi = expand(worker->phi, features, from, count, lanes, map->inner);
        real *vector = state.vector + (size_t)from * inner;
        tile_multiply(state.matrix + (size_t)from * inner * HS, HS, (TileLeft){phi, TILE, 1}, right, HS, width, HS,
                      rows, 1, TILE_FULL);
        for (int f = 0; f < width; f++) {
            real sum = 0;
            const real *row = phi + (size_t)f * TILE;
#pragma omp simd reduction(+ : sum)
            for (int i = 0; i < rows; i++) sum += weights ? row[i] * weights[i] : row[i];
            vector[f] += sum;
        }
    }
}

static void scale_state(State state, real log_scale, const LinearMap *map, int HS) {
    real factor = real_exp(*state.log_scale - log_scale);
    size_t n = state_size(map, HS) - 1;
    if (factor != 1)
        for (size_t i = 0; i < n; i++) state.matrix[i] *= factor;
    *state.log_scale = log_scale;
}

// inner of a log_scaled map: the factor between the scale of a row and the scale of a state, never above 1.
static void set_relative_scale(LinearFeatures *features, const real *scale, real sign, real reference, int lanes) {
    for (int i = 0; i < lanes; i++) features->inner[i] = real_exp(sign * (scale[i] - reference));
}

// Adds the chunk's keys, already loaded, to a state.
static void absorb_keys(Worker *worker, State state, int count) {
    const LinearMap *map = worker->map;
    if (map->log_scaled) {
        real largest = *state.log_scale;
        for (int row = 0; row < count; row++) {
            KeyTile tile = key_tile(worker, row / TILE);
            largest = real_max(largest, tile.features.log_scale[row % TILE]);
        }
        scale_state(state, largest, map, worker->HS);
    }
    for (int row = 0; row < count; row += TILE) {
        KeyTile tile = key_tile(worker, row / TILE);
        int rows = min_int(TILE, count - row);
        if (map->log_scaled)
            set_relative_scale(&tile.features, tile.features.log_scale, 1, *state.log_scale, tile_lanes(rows));
        add_to_state(worker, state, &tile.features, tile.v, NULL, rows);
    }
}

// ---- pairs of tiles

// log_scaled: the factor of every pair, exp(scale of key j - largest scale that query i has seen) <= 1
static void pair_scales(Worker *worker, const real *key_scale, int key_rows, int lanes) {
    for (int j = 0; j < key_rows; j++)
        for (int i = 0; i < lanes; i++)
            worker->inner_scores[j * TILE + i] = real_exp(real_min(key_scale[j] - worker->running_max[i], 0));
}

static void square_inner_scores(Worker *worker, int key_rows, int lanes) {
    for (int j = 0; j < key_rows; j++)
        for (int i = 0; i < lanes; i++) {
            real score = worker->inner_scores[j * TILE + i];
            if (worker->backward) worker->raw_scores[j * TILE + i] = score;
            worker->inner_scores[j * TILE + i] = score * score;
        }
}

// scores[j][i] = <outer(k_j), outer(q_i)> and inner_scores likewise. On the diagonal only i >= j is computed.
static void pair_scores(Worker *worker, const LinearFeatures *keys, int key_rows, int lanes, int diagonal) {
    const LinearMap *map = worker->map;
    TileShape shape = diagonal ? TILE_C_UPPER : TILE_FULL;
    tile_multiply(worker->scores, TILE, (TileLeft){keys->outer, 1, TILE}, worker->q.outer, TILE, key_rows, lanes,
                  map->outer, 0, shape);
    if (map->log_scaled)
        pair_scales(worker, keys->log_scale, key_rows, lanes);
    else if (map->inner)
        tile_multiply(worker->inner_scores, TILE, (TileLeft){keys->inner, 1, TILE}, worker->q.inner, TILE, key_rows,
                      lanes, map->inner, 0, shape);
    if (map->squared_inner) square_inner_scores(worker, key_rows, lanes);
}

// The query of column i stands `offset` + i rows below the tile's first key: it must not see keys further down.
static void mask_future(real *tile, int key_rows, int lanes, int offset) {
    for (int j = offset + 1; j < key_rows; j++)
        for (int i = 0; i < min_int(lanes, j - offset); i++) tile[j * TILE + i] = 0;
}

// Adds a tile of keys to the numerators and denominators of the current queries.
static void add_pairs(Worker *worker, const KeyTile *keys, int key_rows, int rows, int offset) {
    int lanes = tile_lanes(rows), HS = worker->HS, diagonal = offset == 0;
    pair_scores(worker, &keys->features, key_rows, lanes, diagonal);
    if (worker->map->inner)
        for (int j = 0; j < key_rows; j++)
            for (int i = 0; i < lanes; i++) worker->scores[j * TILE + i] *= worker->inner_scores[j * TILE + i];
    mask_future(worker->scores, key_rows, lanes, offset);
    for (int j = 0; j < key_rows; j++)
        for (int i = 0; i < lanes; i++) worker->denominator[i] += worker->scores[j * TILE + i];
    tile_multiply(worker->numerator, HS, (TileLeft){worker->scores, 1, TILE}, keys->v, HS, rows, HS, key_rows, 1,
                  diagonal ? TILE_A_LOWER : TILE_FULL);
}

// ---- forward

static _Atomic uint64_t floored_rows;

uint64_t linear_floored_rows(void) {
    return atomic_load(&floored_rows);
}

void linear_warn_signed(const char *name) {
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&warned)) return;
    warn("%s has signed scores: a row's sum can be near zero or negative, its output then is large and noisy; sums are "
         "floored at delta in magnitude, and the floored ones are counted",
         name);
}

// What the numerator is divided by. NaN stays NaN.
static real stabilised(real z, const LinearMap *map, const AttentionConfig *config) {
    real delta = config->delta;
    if (config->denominator == DENOMINATOR_CLAMP) return z < delta ? delta : z;
    real g = z + delta;
    return map->is_signed && real_abs(g) < delta ? (g < 0 ? -delta : delta) : g;
}

// Whether the sum counts, or the floor has taken its place.
static int is_floored(real g, const LinearMap *map, const AttentionConfig *config) {
    real delta = config->delta;
    if (config->denominator == DENOMINATOR_CLAMP) return g <= delta;
    return map->is_signed && real_abs(g) <= delta;
}

typedef struct { // where a head's results go; saved ones may be NULL
    real *out;
    int stride;
    real *denominator; // (T)
    real *running_max; // (T) log_scaled maps
} HeadOutput;

static void write_outputs(Worker *worker, HeadOutput output, int row, int rows) {
    int HS = worker->HS, floored = 0;
    for (int i = 0; i < rows; i++) {
        real g = stabilised(worker->denominator[i], worker->map, worker->config);
        floored += is_floored(g, worker->map, worker->config);
        real *out = output.out + (size_t)(row + i) * output.stride;
        for (int c = 0; c < HS; c++) out[c] = worker->numerator[i * HS + c] / g;
        if (output.denominator) output.denominator[row + i] = g;
        if (output.running_max) output.running_max[row + i] = worker->running_max[i];
    }
    if (floored && worker->map->is_signed) atomic_fetch_add(&floored_rows, (uint64_t)floored);
}

// The largest log scale among the keys up to each row of a tile; `before` is the largest of earlier tiles.
static void follow_maximum(Worker *worker, const real *key_scale, int rows, real before) {
    for (int i = 0; i < tile_lanes(rows); i++) {
        if (i < rows) before = real_max(before, key_scale[i]);
        worker->running_max[i] = before;
    }
}

// Outputs of one chunk, whose keys are loaded; the state holds what came before it.
static void forward_chunk(Worker *worker, HeadInput input, HeadOutput output, int start, int count, int position,
                          int has_history) {
    const LinearMap *map = worker->map;
    real maximum = map->log_scaled ? *worker->state.log_scale : 0;
    for (int row = 0; row < count; row += TILE) {
        int rows = min_int(TILE, count - row), index = row / TILE, lanes = tile_lanes(rows);
        load_queries(worker, input, start + row, (LinearRows){position + start + row, rows});
        memset(worker->numerator, 0, sizeof(real) * (size_t)TILE * worker->HS);
        memset(worker->denominator, 0, sizeof(real) * TILE);
        if (map->log_scaled) {
            follow_maximum(worker, key_tile(worker, index).features.log_scale, rows, maximum);
            maximum = worker->running_max[rows - 1];
            set_relative_scale(&worker->q, worker->running_max, -1, *worker->state.log_scale, lanes);
        }
        if (has_history) read_state(worker, worker->state, rows);
        for (int j = 0; j <= index; j++) {
            KeyTile keys = key_tile(worker, j);
            add_pairs(worker, &keys, j < index ? TILE : rows, rows, j < index ? TILE : 0);
        }
        write_outputs(worker, output, start + row, rows);
    }
}

// Rows [0, n) of a head, at positions from `position` on. The worker's state holds the history and is left complete
// when `keep_state`.
static void forward_rows(Worker *worker, HeadInput input, HeadOutput output, int n, int position, int has_history,
                         int keep_state) {
    for (int start = 0; start < n; start += worker->chunk) {
        int count = min_int(worker->chunk, n - start);
        load_keys(worker, input, start, count, position);
        forward_chunk(worker, input, output, start, count, position, has_history || start > 0);
        if (keep_state || start + count < n) absorb_keys(worker, worker->state, count);
    }
}

static void pack_head(Worker *worker, const real *constants, int head) {
    if (worker->map->pack) worker->map->pack(worker->packed, constants, head, worker->config);
}

void linear_forward(const LinearMap *map, real *out, real *saved, const real *qkv, const real *constants, real *work,
                    const AttentionConfig *config) {
    int B = config->B, T = config->T, C = config->C, NH = config->NH, HS = config->HS;
    int chunk = linear_chunk_rows(map, T, config);
    size_t all_rows = (size_t)B * NH * T;
#pragma omp parallel
    {
        Worker worker;
        size_t size = lay_out(&worker, NULL, map, T, chunk, 0, config);
        lay_out(&worker, work + size * (size_t)omp_get_thread_num(), map, T, chunk, 0, config);
#pragma omp for schedule(dynamic)
        for (int task = 0; task < B * NH; task++) {
            int b = task / NH, head = task % NH;
            real *rows = saved ? saved + (size_t)task * T : NULL;
            HeadOutput output = {.out = out + (size_t)b * T * C + (size_t)head * HS,
                                 .stride = C,
                                 .denominator = rows,
                                 .running_max = rows && map->log_scaled ? rows + all_rows : NULL};
            pack_head(&worker, constants, head);
            if (!map->squared_inner) state_clear(worker.state, map, HS);
            forward_rows(&worker, head_input(qkv + (size_t)b * T * 3 * C, head, config), output, T, 0, 0, 0);
        }
    }
}

// ---- backward

typedef struct { // what the forward pass left, and the incoming gradient, for one head
    const real *dout, *out;
    int stride;
    const real *denominator, *running_max; // (T)
    real *dq, *dk, *dv;
    int d_stride;
} HeadGradient;

// x (HS, TILE) -> rows (n, HS; leading dimension `stride`)
static void store_features(real *rows, int stride, const real *x, int n, int HS) {
    tile_transpose(rows, stride, x, TILE, HS, n);
}

// The state before every chunk but the first, from a sweep over the keys alone.
static void recompute_states(Worker *worker, HeadInput input, int T) {
    const LinearMap *map = worker->map;
    size_t size = state_size(map, worker->HS);
    for (int start = 0, c = 0; start + worker->chunk < T; start += worker->chunk, c++) {
        State next = state_at(worker->states + (size_t)c * size, map, worker->HS);
        if (c == 0)
            state_clear(next, map, worker->HS);
        else
            memcpy(next.matrix, worker->states + (size_t)(c - 1) * size, size * sizeof(real));
        load_keys(worker, input, start, worker->chunk, 0);
        absorb_keys(worker, next, worker->chunk);
    }
}

// gamma, beta of a tile of queries. `d_scale` (TILE; log_scaled maps) receives the gradient of the common logarithm of
// a row's scores, which is 0 but for delta.
static void load_output_gradient(Worker *worker, HeadGradient gradient, int row, int rows, real *d_scale) {
    const AttentionConfig *config = worker->config;
    int HS = worker->HS;
    for (int i = 0; i < rows; i++) {
        const real *dout = row_at(gradient.dout, row + i, gradient.stride);
        const real *out = row_at(gradient.out, row + i, gradient.stride);
        real g = gradient.denominator[row + i], dot = 0;
        for (int c = 0; c < HS; c++) {
            dot += dout[c] * out[c];
            worker->gamma[i * HS + c] = dout[c] / g;
        }
        worker->beta[i] = is_floored(g, worker->map, config) ? 0 : -dot / g;
        real added = config->denominator == DENOMINATOR_ADD ? config->delta : 0;
        if (d_scale) d_scale[i] = dot + worker->beta[i] * (g - added);
    }
    for (int i = rows; i < tile_lanes(rows); i++) {
        worker->beta[i] = 0;
        memset(worker->gamma + (size_t)i * HS, 0, (size_t)HS * sizeof(real));
    }
    tile_transpose(worker->gamma_features, TILE, worker->gamma, HS, tile_lanes(rows), HS);
}

// d_phi (F, TILE) = matrix right + vector weights, contracted into the gradients of the factors at once.
static void gradient_from_state(Worker *worker, LinearFeatures *d, State state, const LinearFeatures *features,
                                const real *right, const real *weights, int rows) {
    const LinearMap *map = worker->map;
    int inner = max_int(map->inner, 1), HS = worker->HS, lanes = tile_lanes(rows), step = block_outers(map);
    for (int from = 0; from < map->outer; from += step) {
        int count = min_int(step, map->outer - from), width = count * inner;
        const real *matrix = state.matrix + (size_t)from * inner * HS, *vector = state.vector + (size_t)from * inner;
        for (int f = 0; f < width; f++)
            for (int i = 0; i < lanes; i++) worker->d_phi[f * TILE + i] = weights ? vector[f] * weights[i] : vector[f];
        tile_multiply(worker->d_phi, TILE, (TileLeft){matrix, HS, 1}, right, TILE, width, lanes, HS, 1, TILE_FULL);
        contract(d, worker->d_phi, features, from, count, lanes, map);
    }
}

// dv (rows, HS) += phi(k) U
static void value_gradient_from_sums(Worker *worker, const KeyTile *keys, int rows) {
    const LinearMap *map = worker->map;
    int inner = max_int(map->inner, 1), HS = worker->HS, lanes = tile_lanes(rows), step = block_outers(map);
    for (int from = 0; from < map->outer; from += step) {
        int count = min_int(step, map->outer - from), width = count * inner;
        const real *phi = expand(worker->phi, &keys->features, from, count, lanes, map->inner);
        tile_multiply(keys->dv, HS, (TileLeft){phi, 1, TILE}, worker->query_sums.matrix + (size_t)from * inner * HS, HS,
                      rows, HS, width, 1, TILE_FULL);
    }
}

static void clear_features(LinearFeatures *d, const LinearMap *map) {
    memset(d->outer, 0, sizeof(real) * (size_t)map->outer * TILE);
    memset(d->inner, 0, sizeof(real) * (size_t)map->inner * TILE);
}

// Starts the gradients of a chunk's keys and values with what reaches them from later chunks.
static void begin_key_gradients(Worker *worker, int count, int has_future) {
    const LinearMap *map = worker->map;
    for (int row = 0; row < count; row += TILE) {
        KeyTile tile = key_tile(worker, row / TILE);
        int rows = min_int(TILE, count - row), lanes = tile_lanes(rows), HS = worker->HS;
        clear_features(&tile.d, map);
        memset(tile.d_outer_rows, 0, sizeof(real) * (size_t)map->outer * TILE);
        memset(tile.d_inner_rows, 0, sizeof(real) * (size_t)map->inner * TILE);
        memset(tile.dv, 0, sizeof(real) * (size_t)TILE * HS);
        if (!has_future) continue;
        if (map->log_scaled)
            set_relative_scale(&tile.features, tile.features.log_scale, 1, -*worker->query_sums.log_scale, lanes);
        for (int i = rows; i < lanes; i++) memset(tile.v + (size_t)i * HS, 0, (size_t)HS * sizeof(real));
        tile_transpose(worker->x, TILE, tile.v, HS, lanes, HS);
        gradient_from_state(worker, &tile.d, worker->query_sums, &tile.features, worker->x, NULL, rows);
        value_gradient_from_sums(worker, &tile, rows);
    }
}

// d_scores[j][i] = <gamma_i, v_j> + beta_i. From it what reaches each factor of the scores: d_inner_scores and, in its
// own place, d_outer_scores; and the scores themselves.
static void pair_gradients(Worker *worker, const KeyTile *keys, int key_rows, int lanes, int diagonal) {
    int HS = worker->HS;
    for (int j = 0; j < key_rows; j++) memcpy(worker->d_scores + j * TILE, worker->beta, sizeof(real) * (size_t)lanes);
    tile_multiply(worker->d_scores, TILE, (TileLeft){keys->v, HS, 1}, worker->gamma_features, TILE, key_rows, lanes, HS,
                  1, diagonal ? TILE_C_UPPER : TILE_FULL);
    if (worker->map->inner)
        for (int i = 0; i < key_rows * TILE; i++) {
            real d = worker->d_scores[i], outer = worker->scores[i], inner = worker->inner_scores[i];
            worker->d_scores[i] = d * inner;
            worker->d_inner_scores[i] = d * outer;
            worker->scores[i] = outer * inner;
        }
    if (worker->map->squared_inner)
        for (int i = 0; i < key_rows * TILE; i++) worker->d_inner_scores[i] *= 2 * worker->raw_scores[i];
    if (!diagonal) return;
    mask_future(worker->scores, key_rows, lanes, 0);
    mask_future(worker->d_scores, key_rows, lanes, 0);
    mask_future(worker->d_inner_scores, key_rows, lanes, 0);
}

// One factor's share: dq (width, TILE) += k d_scores, dk (TILE, width) += d_scores q
static void factor_gradients(real *dq, real *dk_rows, const real *k, const real *q_rows, const real *d_scores,
                             int width, int key_rows, int rows, int diagonal) {
    tile_multiply(dq, TILE, (TileLeft){k, TILE, 1}, d_scores, TILE, width, tile_lanes(rows), key_rows, 1,
                  diagonal ? TILE_B_UPPER : TILE_FULL);
    tile_multiply(dk_rows, width, (TileLeft){d_scores, TILE, 1}, q_rows, width, key_rows, width, rows, 1,
                  diagonal ? TILE_A_UPPER : TILE_FULL);
}

static void add_pair_gradients(Worker *worker, const KeyTile *keys, int key_rows, int rows, int diagonal) {
    const LinearMap *map = worker->map;
    int lanes = tile_lanes(rows), HS = worker->HS;
    pair_scores(worker, &keys->features, key_rows, lanes, diagonal);
    pair_gradients(worker, keys, key_rows, lanes, diagonal);
    factor_gradients(worker->dq.outer, keys->d_outer_rows, keys->features.outer, worker->q_outer_rows, worker->d_scores,
                     map->outer, key_rows, rows, diagonal);
    if (map->inner && !map->fixed_inner)
        factor_gradients(worker->dq.inner, keys->d_inner_rows, keys->features.inner, worker->q_inner_rows,
                         worker->d_inner_scores, map->inner, key_rows, rows, diagonal);
    tile_multiply(keys->dv, HS, (TileLeft){worker->scores, TILE, 1}, worker->gamma, HS, key_rows, HS, rows, 1,
                  diagonal ? TILE_A_UPPER : TILE_FULL);
}

// Gradients of the queries of tile `index` of a chunk, and what they give to the chunk's keys and values and to U.
static void backward_queries(Worker *worker, HeadInput input, HeadGradient gradient, int start, int index, int rows,
                             int has_history) {
    const LinearMap *map = worker->map;
    int row = start + index * TILE, lanes = tile_lanes(rows);
    LinearRows where = {row, rows};
    real *d_scale = map->log_scaled ? key_tile(worker, index).d.log_scale : NULL;
    load_queries(worker, input, row, where);
    load_output_gradient(worker, gradient, row, rows, d_scale);
    clear_features(&worker->dq, map);
    if (map->log_scaled) {
        for (int i = 0; i < lanes; i++) worker->running_max[i] = gradient.running_max[row + min_int(i, rows - 1)];
        for (int i = 0; i < lanes; i++) worker->dq.log_scale[i] = i < rows ? -d_scale[i] : 0;
        if (has_history) set_relative_scale(&worker->q, worker->running_max, -1, *worker->state.log_scale, lanes);
    }
    if (has_history)
        gradient_from_state(worker, &worker->dq, worker->state, &worker->q, worker->gamma_features, worker->beta, rows);
    tile_transpose(worker->q_outer_rows, map->outer, worker->q.outer, TILE, map->outer, rows);
    if (!map->fixed_inner) tile_transpose(worker->q_inner_rows, map->inner, worker->q.inner, TILE, map->inner, rows);
    for (int j = 0; j <= index; j++) {
        KeyTile keys = key_tile(worker, j);
        add_pair_gradients(worker, &keys, j < index ? TILE : rows, rows, j == index);
    }
    if (has_history) add_to_state(worker, worker->query_sums, &worker->q, worker->gamma, worker->beta, rows);
    map->gradient(worker->x, &worker->dq, &worker->q, where, worker->packed, worker->config);
    store_features(gradient.dq + (size_t)row * gradient.d_stride, gradient.d_stride, worker->x, rows, worker->HS);
}

// The largest log scale so far moves with the key that set it. Walking backwards, a key that raised the maximum takes
// what the rows since then have gathered in `pending`. On entry d.log_scale holds the rows' shares.
static void pass_scale_gradients(Worker *worker, const real *running_max, int start, int count, real *pending) {
    for (int row = count - 1; row >= 0; row--) {
        real *d_scale = key_tile(worker, row / TILE).d.log_scale + row % TILE;
        *pending += *d_scale;
        int raised = start + row == 0 || running_max[start + row] > running_max[start + row - 1];
        *d_scale = raised ? -*pending : 0;
        if (raised) *pending = 0;
    }
}

static void add_transposed(real *features, const real *rows, int width, int count) {
    for (int f = 0; f < width; f++)
        for (int i = 0; i < count; i++) features[f * TILE + i] += rows[i * width + f];
}

static void end_key_gradients(Worker *worker, HeadGradient gradient, int start, int count) {
    const LinearMap *map = worker->map;
    int HS = worker->HS;
    for (int row = 0; row < count; row += TILE) {
        KeyTile tile = key_tile(worker, row / TILE);
        int rows = min_int(TILE, count - row);
        size_t at = (size_t)(start + row) * gradient.d_stride;
        add_transposed(tile.d.outer, tile.d_outer_rows, map->outer, rows);
        if (!map->fixed_inner) add_transposed(tile.d.inner, tile.d_inner_rows, map->inner, rows);
        map->gradient(worker->x, &tile.d, &tile.features, (LinearRows){start + row, rows}, worker->packed,
                      worker->config);
        store_features(gradient.dk + at, gradient.d_stride, worker->x, rows, HS);
        for (int i = 0; i < rows; i++)
            memcpy(gradient.dv + at + (size_t)i * gradient.d_stride, tile.dv + (size_t)i * HS,
                   (size_t)HS * sizeof(real));
    }
}

// One chunk of the reverse sweep: on entry U holds the queries after the chunk, on return also those of the chunk.
static void backward_chunk(Worker *worker, HeadInput input, HeadGradient gradient, int start, int count, int T,
                           real *pending_scale) {
    const LinearMap *map = worker->map;
    int has_history = start > 0, has_future = start + count < T;
    if (has_history) {
        size_t before = (size_t)(start / worker->chunk - 1) * state_size(map, worker->HS);
        worker->state = state_at(worker->states + before, map, worker->HS);
    }
    load_keys(worker, input, start, count, 0);
    begin_key_gradients(worker, count, has_future);
    if (map->log_scaled && has_history) // from here on relative to the largest scale before the chunk: smaller factors
        scale_state(worker->query_sums, -*worker->state.log_scale, map, worker->HS);
    for (int row = 0; row < count; row += TILE)
        backward_queries(worker, input, gradient, start, row / TILE, min_int(TILE, count - row), has_history);
    if (map->log_scaled) pass_scale_gradients(worker, gradient.running_max, start, count, pending_scale);
    end_key_gradients(worker, gradient, start, count);
}

static void backward_head(Worker *worker, HeadInput input, HeadGradient gradient, int T) {
    const LinearMap *map = worker->map;
    int last = (chunks_of(T, worker->chunk) - 1) * worker->chunk;
    real pending_scale = 0;
    if (!map->squared_inner) {
        recompute_states(worker, input, T);
        state_clear(worker->query_sums, map, worker->HS);
        if (map->log_scaled) *worker->query_sums.log_scale = -gradient.running_max[T - 1];
    }
    for (int start = last; start >= 0; start -= worker->chunk)
        backward_chunk(worker, input, gradient, start, min_int(worker->chunk, T - start), T, &pending_scale);
}

void linear_backward(const LinearMap *map, real *dqkv, const real *dout, const real *qkv, const real *out,
                     const real *saved, const real *constants, real *work, const AttentionConfig *config) {
    int B = config->B, T = config->T, C = config->C, NH = config->NH, HS = config->HS;
    int chunk = linear_chunk_rows(map, T, config);
#pragma omp parallel
    {
        Worker worker;
        size_t size = lay_out(&worker, NULL, map, T, chunk, 1, config);
        lay_out(&worker, work + size * (size_t)omp_get_thread_num(), map, T, chunk, 1, config);
#pragma omp for schedule(dynamic)
        for (int task = 0; task < B * NH; task++) {
            int b = task / NH, head = task % NH;
            size_t rows = (size_t)b * T, column = (size_t)head * HS;
            real *dq = dqkv + rows * 3 * C + column;
            HeadGradient gradient = {.dout = dout + rows * C + column,
                                     .out = out + rows * C + column,
                                     .stride = C,
                                     .denominator = saved + (size_t)task * T,
                                     .running_max = saved + (size_t)(B * NH + task) * T,
                                     .dq = dq,
                                     .dk = dq + C,
                                     .dv = dq + 2 * C,
                                     .d_stride = 3 * C};
            pack_head(&worker, constants, head);
            backward_head(&worker, head_input(qkv + rows * 3 * C, head, config), gradient, T);
        }
    }
}

// ---- decoding

// The cache of a squared map: its key tiles, for max_T positions.
static size_t cached_tile_size(const LinearMap *map, int HS) {
    Arena counter = {NULL, 0};
    arena_key_tile(&counter, map, HS, 0);
    return counter.used;
}

static void copy_columns(real *to, const real *from, int width, int count) {
    for (int f = 0; f < width; f++)
        memcpy(to + (size_t)f * TILE, from + (size_t)f * TILE, sizeof(real) * (size_t)count);
}

// Rows that fall into one tile of the cache: their keys are put there, then their queries see all tiles so far.
static void step_cached_tile(Worker *worker, HeadInput input, HeadOutput output, int row, int position, int rows) {
    const LinearMap *map = worker->map;
    int index = position / TILE, column = position % TILE, HS = worker->HS;
    KeyTile tile = key_tile(worker, index), fresh = tile;
    LinearRows where = {position, rows};
    fresh.features = worker->q;
    fresh.v = tile.v + (size_t)column * HS;
    load_key_tile(worker, &fresh, input, row, where);
    copy_columns(tile.features.outer + column, fresh.features.outer, map->outer, rows);
    copy_columns(tile.features.inner + column, fresh.features.inner, map->inner, rows);
    load_queries(worker, input, row, where);
    memset(worker->numerator, 0, sizeof(real) * (size_t)TILE * HS);
    memset(worker->denominator, 0, sizeof(real) * TILE);
    for (int j = 0; j <= index; j++) {
        KeyTile keys = key_tile(worker, j);
        add_pairs(worker, &keys, j < index ? TILE : column + rows, rows, j < index ? TILE : column);
    }
    write_outputs(worker, output, row, rows);
}

static void step_cached(Worker *worker, real *cache, HeadInput input, HeadOutput output, int pos, int n) {
    worker->keys = cache;
    for (int row = 0, rows; row < n; row += rows) {
        rows = min_int(n - row, TILE - (pos + row) % TILE);
        step_cached_tile(worker, input, output, row, pos + row, rows);
    }
}

static void step_state(Worker *worker, real *cache, HeadInput input, HeadOutput output, int pos, int n) {
    worker->state = state_at(cache, worker->map, worker->HS);
    if (pos == 0) state_clear(worker->state, worker->map, worker->HS);
    forward_rows(worker, input, output, n, pos, pos > 0, 1);
}

void linear_step(const LinearMap *map, real *out, real *cache, int pos, int n, const real *qkv, const real *constants,
                 real *work, const AttentionConfig *config) {
    int C = config->C, NH = config->NH, HS = config->HS;
    size_t head_cache = linear_cache_size(map, config) / (size_t)NH;
#pragma omp parallel
    {
        Worker worker;
        size_t size = lay_out(&worker, NULL, map, TILE, TILE, 0, config);
        lay_out(&worker, work + size * (size_t)omp_get_thread_num(), map, TILE, TILE, 0, config);
#pragma omp for schedule(static)
        for (int head = 0; head < NH; head++) {
            HeadOutput output = {.out = out + (size_t)head * HS, .stride = C};
            pack_head(&worker, constants, head);
            (map->squared_inner ? step_cached : step_state)(&worker, cache + head_cache * (size_t)head,
                                                            head_input(qkv, head, config), output, pos, n);
        }
    }
}

// ---- sizes

size_t linear_saved_size(const LinearMap *map, const AttentionConfig *config) {
    return (size_t)config->B * config->NH * config->T * (map->log_scaled ? 2 : 1);
}

size_t linear_work_size(const LinearMap *map, const AttentionConfig *config) {
    Worker worker;
    int chunk = linear_chunk_rows(map, config->T, config);
    size_t size = lay_out(&worker, NULL, map, config->T, chunk, 1, config);
    size_t step_size = lay_out(&worker, NULL, map, TILE, TILE, 0, config);
    return (size > step_size ? size : step_size) * (size_t)omp_get_max_threads();
}

size_t linear_cache_size(const LinearMap *map, const AttentionConfig *config) {
    size_t head = map->squared_inner ? cached_tile_size(map, config->HS) * (size_t)tiles_of(config->max_T)
                                     : state_size(map, config->HS);
    return head * (size_t)config->NH;
}

double linear_flops(const LinearMap *map, const AttentionConfig *config) {
    int chunk = linear_chunk_rows(map, config->T, config);
    return 2.0 * config->NH * (2 * map->feature_cost + row_cost(map, config->HS, config->T, chunk));
}
