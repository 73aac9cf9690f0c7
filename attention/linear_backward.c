#include "linear_core.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

// ---- the gradient of the product phi = outer (x) inner

enum { MOST_INNERS = 8 }; // whose gradients stay in registers

typedef struct {       // d_phi (count * inner, TILE) + vector weights^T, and where it goes
    LinearFeatures *d; // += ...
    const LinearFeatures *features;
    const real *d_phi, *vector, *weights;
    int from, count, inner; // outer features [from, from + count)
} Contraction;

// For the inner features [first, first + inners). Inlined with a constant number of them.
static inline __attribute__((always_inline)) void contract_inners(const Contraction *at, int first, int inners,
                                                                  int lanes) {
    const real *inner = at->features->inner + (size_t)first * TILE;
    real *d_inner = at->d->inner + (size_t)first * TILE;
    for (int i = 0; i < lanes; i += LANES) {
        Vector weight = *(const Vector *)(at->weights + i), factor[MOST_INNERS] = {{0}}, d_factor[MOST_INNERS] = {{0}};
#pragma GCC unroll 8
        for (int p = 0; p < inners; p++) {
            factor[p] = *(const Vector *)(inner + p * TILE + i);
            d_factor[p] = *(Vector *)(d_inner + p * TILE + i);
        }
        for (int e = 0; e < at->count; e++) {
            const real *d_phi = at->d_phi + (size_t)(e * at->inner + first) * TILE + i;
            const real *vector = at->vector + e * at->inner + first;
            Vector outer = *(const Vector *)(at->features->outer + (size_t)(at->from + e) * TILE + i);
            Vector *place = (Vector *)(at->d->outer + (size_t)(at->from + e) * TILE + i), sum = *place;
#pragma GCC unroll 8
            for (int p = 0; p < inners; p++) {
                Vector d = *(const Vector *)(d_phi + p * TILE) + vector[p] * weight;
                sum += d * factor[p];
                d_factor[p] += d * outer;
            }
            *place = sum;
        }
#pragma GCC unroll 8
        for (int p = 0; p < inners; p++) *(Vector *)(d_inner + p * TILE + i) = d_factor[p];
    }
}

static void contract(const Contraction *at, int lanes) {
    int first = 0;
    for (; first + MOST_INNERS <= at->inner; first += MOST_INNERS) contract_inners(at, first, MOST_INNERS, lanes);
    if (first < at->inner) contract_inners(at, first, at->inner - first, lanes);
}

// d_outer (count, TILE) += vector weights^T: what a map without inner features has in its place
static void add_outer_product(real *d_outer, const real *vector, const real *weights, int count, int lanes) {
    for (int f = 0; f < count; f++)
        for (int i = 0; i < lanes; i++) d_outer[f * TILE + i] += vector[f] * weights[i];
}

// The rows' d_phi (F, TILE) = matrix extended + vector weights, contracted into the gradients of the factors at once.
static void gradient_from_state(Worker *worker, const real *extended, const real *weights, int rows) {
    const LinearMap *map = worker->map;
    RowTile *tile = &worker->rows;
    int inner = max_int(map->inner, 1), HS = worker->HS, lanes = tile_lanes(rows), step = linear_block_outers(map);
    for (int from = 0; from < map->outer; from += step) {
        int count = min_int(step, map->outer - from), width = count * inner;
        TileLeft matrix = {worker->state.matrix + (size_t)from * inner * worker->stride, worker->stride, 1};
        const real *vector = worker->state.vector + (size_t)from * inner;
        real *d_phi = map->inner ? worker->phi : tile->d.outer + (size_t)from * TILE;
        tile_multiply(d_phi, TILE, matrix, extended, TILE, width, lanes, HS, !map->inner, TILE_FULL);
        Contraction at = {&tile->d, &tile->features, d_phi, vector, weights, from, count, map->inner};
        if (map->inner)
            contract(&at, lanes);
        else
            add_outer_product(d_phi, vector, weights, count, lanes);
    }
}

// ---- the gradient of a learned decay's logarithm: the sum over all pairs of distance * score * its gradient
//
// The distance of a query in one chunk and a key in another is that from the query to the beginning of its chunk, plus
// the rows of the chunks in between, plus that from the key to the end of its chunk. The walk over the queries adds the
// first, that over the keys the last; for the rows in between both note what reaches over their chunks.

static int learns_decay(const Worker *worker) {
    return worker->config->decay == DECAY_LEARNED;
}

// The rows' <d_phi, phi>, where phi is a product <d_outer, outer> is the same: their sum, and the sum of
// (first + step * row) times them. What crosses a chunk is a small difference of such sums, hence doubles.
static void add_decay_gradient(Worker *worker, double *crossing, int rows, int first, int step) {
    const LinearFeatures *d = &worker->rows.d, *features = &worker->rows.features;
    for (int from = 0; from < rows; from += TILE_LANES) {
        const real *d_outer = d->outer + from, *outer = features->outer + from;
        double dots[TILE_LANES] = {0};
        for (int f = 0; f < worker->map->outer; f++)
            for (int i = 0; i < TILE_LANES; i++) dots[i] += (double)d_outer[f * TILE + i] * outer[f * TILE + i];
        for (int i = 0; i < min_int(TILE_LANES, rows - from); i++) {
            worker->d_log_decay += (first + step * (from + i)) * dots[i];
            *crossing += dots[i];
        }
    }
}

// What pairs give whose query is behind a chunk and whose key is before it, for all chunks of a head: `crossing`
// (chunks, 2) is the sum of score * gradient of a chunk's queries with earlier chunks, and of its keys with later ones.
// What passes over a chunk is the difference of these sums over all chunks behind it, and over all before it as well;
// the rounding of the shorter sum is the smaller one. `fading` is what a chunk leaves of a score.
static double crossing_gradient(const double *crossing, int T, int chunk, double fading) {
    int chunks = chunks_of(T, chunk);
    double before = 0, behind = 0, sum = 0;
    if (fading < 1e-9) return 0; // less than the rounding
    for (int c = 0; c < chunks; c++) behind += crossing[2 * c] - crossing[2 * c + 1];
    for (int c = 0; c < chunks; c++) {
        double from_keys = crossing[2 * c + 1], to_queries = crossing[2 * c], share = (c + 0.5) / chunks;
        behind -= to_queries;
        sum += min_int(chunk, T - c * chunk) * (share * behind + (1 - share) * (before - to_queries));
        before += from_keys - to_queries, behind += from_keys;
    }
    return sum;
}

// ---- what the forward pass left, and the incoming gradient

typedef struct { // of one head
    HeadInput input;
    const real *dout, *out;
    int stride;
    const real *denominator, *running_max; // (T)
    real *dq, *dk, *dv;
    int d_stride;
} Head;

// x (width, TILE) -> rows (n, width; leading dimension `stride`)
static void store_features(real *rows, int stride, const real *x, int n, int width) {
    tile_transpose(rows, stride, x, TILE, width, n, 0);
}

static real output_dot(const Head *head, int row, int HS) {
    const real *dout = row_at(head->dout, row, head->stride), *out = row_at(head->out, row, head->stride);
    real dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int c = 0; c < HS; c++) dot += dout[c] * out[c];
    return dot;
}

// The gradient of Z.
static real sum_gradient(const Worker *worker, real dot, real g) {
    return linear_is_floored(g, worker->map, worker->config) ? 0 : -dot / g;
}

// The gradient of the log scale that all scores of a row share: 0 except for what delta brings in.
static real scale_gradient(const Worker *worker, real dot, real g) {
    real added = worker->config->denominator == DENOMINATOR_ADD ? worker->config->delta : 0;
    return dot + sum_gradient(worker, dot, g) * (g - added);
}

// Queries with gamma, beta and, of log_scaled maps, the largest scale that each has seen and the rows' d_scale.
static void load_queries(Worker *worker, RowTile *tile, const Head *head, int row, int rows) {
    int HS = worker->HS, stride = worker->stride;
    linear_load_queries(worker, tile, head->input, row, (LinearRows){row, rows});
    memset(tile->weights, 0, TILE * sizeof(real));
    for (int i = 0; i < rows; i++) {
        const real *dout = row_at(head->dout, row + i, head->stride);
        real g = head->denominator[row + i], dot = output_dot(head, row + i, HS), *gamma = tile->extended + i * stride;
        for (int c = 0; c < HS; c++) gamma[c] = dout[c] / g;
        for (int c = HS; c < stride; c++) gamma[c] = 0;
        tile->weights[i] = sum_gradient(worker, dot, g);
        if (worker->map->log_scaled) tile->d_scale[i] = scale_gradient(worker, dot, g);
    }
    for (int i = 0; worker->map->log_scaled && i < tile_lanes(rows); i++)
        tile->scale[i] = head->running_max[row + min_int(i, rows - 1)];
}

// ---- from the state

static void clear_features(LinearFeatures *d, const LinearMap *map) {
    memset(d->outer, 0, sizeof(real) * (size_t)map->outer * TILE);
    memset(d->inner, 0, sizeof(real) * (size_t)map->inner * TILE);
}

// What the current rows get from the state: `row` rows of the chunk precede them, which has `count`.
static void add_from_state(Worker *worker, int start, int row, int rows, int count) {
    int HS = worker->HS, lanes = tile_lanes(rows), are_keys = rows_are_keys(worker->walk);
    real power[TILE], faded[TILE], *extended = worker->extended, *weights = worker->rows.weights;
    int first = are_keys ? count - 1 - row : row + 1; // rows from the first of them to the state
    if (worker->map->log_scaled)
        linear_set_relative_scale(worker, &worker->rows.features, worker->rows.scale, are_keys ? 1 : -1,
                                  (are_keys ? -1 : 1) * *worker->state.log_scale, first, lanes);
    if (worker->fades) { // copies: the chunk's own pairs have powers of their own
        if (are_keys)
            linear_key_powers(power, worker, rows, count - row - rows);
        else
            linear_query_powers(power, worker, row);
        linear_fade_columns(worker->x, extended, power, HS, lanes);
        linear_fade_columns(faded, weights, power, 1, lanes);
        extended = worker->x, weights = faded;
    }
    gradient_from_state(worker, extended, weights, rows);
    if (learns_decay(worker))
        add_decay_gradient(worker, worker->crossing + 2 * (start / worker->chunk) + are_keys, rows, first,
                           are_keys ? -1 : 1);
    if (!are_keys) return;
    linear_read_state(worker, NULL, rows); // dv
    if (worker->fades) linear_fade_rows(worker->numerator, power, rows, worker->stride);
}

// Adds a tile of queries to the state: `before` rows of the chunk precede them, `largest` is the largest log scale
// before the chunk. Overwrites gamma and beta.
static void absorb_queries(Worker *worker, State state, double factor, RowTile *tile, real largest, int before,
                           int rows) {
    real power[TILE];
    if (worker->map->log_scaled)
        linear_set_relative_scale(worker, &tile->features, tile->scale, -1, largest, before + 1, tile_lanes(rows));
    if (worker->fades) {
        linear_query_powers(power, worker, before);
        linear_fade_rows(tile->extended, power, rows, worker->stride);
        linear_fade_columns(tile->weights, tile->weights, power, 1, rows);
    }
    linear_add_to_state(worker, state, factor, tile, rows);
}

static void absorb_chunk_of_queries(Worker *worker, const Head *head, int start, int count) {
    real largest = worker->map->log_scaled ? head->running_max[start - 1] : 0;
    double fading = linear_fading(worker, worker->state, count, -largest);
    for (int row = 0; row < count; row += TILE) {
        RowTile tile = linear_other(worker, row / TILE);
        absorb_queries(worker, worker->state, row ? 1 : fading, &tile, largest, row, min_int(TILE, count - row));
    }
}

// ---- from pairs

// For scores that are outer * inner * power: the gradients of outer, which replace d_scores, and of inner; and the
// scores. Returns the sum of distance * score * gradient. Inlined with constants for what a map has: `power` or NULL,
// `has_inner`.
static inline __attribute__((always_inline)) double share(Worker *worker, const real *power, int has_inner,
                                                          int other_rows, int lanes, int distance) {
    real sums[TILE] = {0}; // by row
    double sum = 0;
    for (int j = 0; j < other_rows; j++) {
        real *restrict d_scores = worker->d_scores + j * TILE, *restrict scores = worker->scores + j * TILE;
        real *restrict d_inner = worker->d_inner_scores + j * TILE, *restrict inners = worker->inner_scores + j * TILE;
        const real *restrict powers = power ? power - j : NULL;
        for (int i = 0; i < lanes; i++) {
            real fade = power ? powers[i] : 1, inner = has_inner ? inners[i] : 1;
            real d = d_scores[i] * fade, outer = scores[i], score = outer * inner;
            d_scores[i] = d * inner;
            if (has_inner) d_inner[i] = d * outer;
            scores[i] = score * fade;
            sums[i] += (real)(distance + i - j) * d * score;
        }
    }
    for (int i = 0; i < lanes; i++) sum += sums[i];
    return sum;
}

static double share_faded(Worker *worker, int other_rows, int lanes, int distance) {
    if (!worker->fades) return share(worker, NULL, 1, other_rows, lanes, distance);
    const real *power = linear_pair_powers(worker, distance);
    if (worker->map->inner) return share(worker, power, 1, other_rows, lanes, distance);
    return share(worker, power, 0, other_rows, lanes, distance);
}

// d_scores[j][i] = <extended, extended> + weight * weight of other row j and row i, and from it what reaches each
// factor of the scores: d_inner_scores and, in place of d_scores, d_outer_scores; and the scores themselves.
static void pair_gradients(Worker *worker, const RowTile *others, int other_rows, int rows, int distance) {
    int lanes = tile_lanes(rows), are_keys = rows_are_keys(worker->walk);
    for (int j = 0; j < other_rows; j++)
        for (int i = 0; i < lanes; i++) worker->d_scores[j * TILE + i] = others->weights[j] * worker->rows.weights[i];
    tile_multiply(worker->d_scores, TILE, (TileLeft){others->extended, worker->stride, 1}, worker->extended, TILE,
                  other_rows, lanes, worker->HS, 1,
                  distance   ? TILE_FULL
                  : are_keys ? TILE_C_LOWER
                             : TILE_C_UPPER);
    real *masked[] = {worker->scores, worker->d_scores, worker->map->inner ? worker->inner_scores : NULL};
    for (int m = 0; !distance && m < 3; m++)
        if (masked[m]) linear_mask_future(worker, masked[m], other_rows, lanes, 0);
    if (worker->config->decay != DECAY_NONE) {
        double near = share_faded(worker, other_rows, lanes, distance);
        if (!are_keys) worker->d_log_decay += near; // once for every pair
    } else if (worker->map->inner)
        share(worker, NULL, 1, other_rows, lanes, distance);
}

// The other rows' share of a factor: d_other (width, TILE) += x d_scores^T
static void add_to_others(Worker *worker, real *d_other, const real *x, const real *d_scores, int width, int other_rows,
                          int rows, int distance) {
    int lanes = tile_lanes(other_rows);
    tile_transpose(worker->turned, TILE, d_scores, TILE, other_rows, tile_lanes(rows), 0);
    for (int i = 0; i < rows; i++)
        for (int j = other_rows; j < lanes; j++) worker->turned[i * TILE + j] = 0;
    tile_multiply(d_other, TILE, (TileLeft){x, TILE, 1}, worker->turned, TILE, width, lanes, rows, 1,
                  distance ? TILE_FULL : TILE_B_LOWER);
}

static void add_pair_gradients(Worker *worker, RowTile *others, int other_rows, int rows, int distance) {
    const LinearMap *map = worker->map;
    RowTile *tile = &worker->rows;
    int are_keys = rows_are_keys(worker->walk), has_inner = map->inner && !map->fixed_inner, stride = worker->stride;
    TileShape shape = distance ? TILE_FULL : are_keys ? TILE_B_LOWER : TILE_B_UPPER;
    linear_pair_scores(worker, others, other_rows, rows, distance);
    pair_gradients(worker, others, other_rows, rows, distance);
    tile_multiply(tile->d.outer, TILE, (TileLeft){others->features.outer, TILE, 1}, worker->d_scores, TILE, map->outer,
                  tile_lanes(rows), other_rows, 1, shape);
    if (has_inner)
        tile_multiply(tile->d.inner, TILE, (TileLeft){others->features.inner, TILE, 1}, worker->d_inner_scores, TILE,
                      map->inner, tile_lanes(rows), other_rows, 1, shape);
    if (are_keys) linear_add_pairs(worker, others, other_rows, rows, distance); // dv
    if (worker->walk != WALK_BOTH) return;
    add_to_others(worker, others->d.outer, tile->features.outer, worker->d_scores, map->outer, other_rows, rows,
                  distance);
    if (has_inner)
        add_to_others(worker, others->d.inner, tile->features.inner, worker->d_inner_scores, map->inner, other_rows,
                      rows, distance);
    tile_multiply(others->dv, stride, (TileLeft){worker->scores, TILE, 1}, tile->extended, stride, other_rows, stride,
                  rows, 1, distance ? TILE_FULL : TILE_A_UPPER);
}

// ---- log scales

// Whether a row's own key has the largest log scale, now that all before it have faded.
static int raises_scale(const Worker *worker, const real *running_max, int row) {
    return row == 0 || running_max[row] > running_max[row - 1] + worker->log_decay;
}

// The largest log scale so far moves with the key that set it. Walking backwards, a key that raised the maximum takes
// what the rows since then have gathered in `pending`; every other row had it fade once more. On entry d_scale holds
// the rows' shares, on return what the keys' log scales get.
static void pass_scale_gradients(Worker *worker, const real *running_max, int start, int count, real *pending) {
    for (int row = count - 1; row >= 0; row--) {
        real *d_scale = linear_other(worker, row / TILE).d_scale + row % TILE;
        *pending += *d_scale;
        int raised = raises_scale(worker, running_max, start + row);
        *d_scale = raised ? -*pending : 0;
        if (raised)
            *pending = 0;
        else
            worker->d_log_decay -= *pending;
    }
}

// What the rows from `end` on have gathered for the key that set the largest scale before them.
static real pending_at(const Worker *worker, const Head *head, int end) {
    real pending = 0;
    if (!worker->map->log_scaled) return 0;
    for (int row = end; row < worker->T && !raises_scale(worker, head->running_max, row); row++)
        pending += scale_gradient(worker, output_dot(head, row, worker->HS), head->denominator[row]);
    return pending;
}

// ---- a chunk

static void load_others(Worker *worker, const Head *head, int start, int count) {
    const LinearMap *map = worker->map;
    if (!rows_are_keys(worker->walk)) linear_load_chunk_of_keys(worker, head->input, start, count);
    for (int row = 0; row < count; row += TILE) {
        RowTile tile = linear_other(worker, row / TILE);
        if (rows_are_keys(worker->walk)) load_queries(worker, &tile, head, start + row, min_int(TILE, count - row));
        if (worker->walk != WALK_BOTH) continue;
        clear_features(&tile.d, map);
        memset(tile.dv, 0, sizeof(real) * (size_t)TILE * worker->stride);
    }
}

// The current rows, and their extended ones feature-major too.
static void load_rows(Worker *worker, const Head *head, int row, int rows) {
    RowTile *tile = &worker->rows;
    int stride = worker->stride, lanes = tile_lanes(rows);
    if (rows_are_keys(worker->walk)) {
        linear_load_keys(worker, tile, head->input, row, (LinearRows){row, rows});
        memset(worker->numerator, 0, sizeof(real) * (size_t)rows * stride);
    } else {
        load_queries(worker, tile, head, row, rows);
    }
    memset(tile->extended + (size_t)rows * stride, 0, sizeof(real) * (size_t)(lanes - rows) * stride);
    tile_transpose(worker->extended, TILE, tile->extended, stride, lanes, worker->HS, 0);
    clear_features(&tile->d, worker->map);
}

static void store_gradient(Worker *worker, RowTile *tile, real *dx, int d_stride, int row, int rows) {
    worker->map->gradient(worker->x, worker->d_packed, &tile->d, &tile->features, (LinearRows){row, rows},
                          worker->packed, worker->config);
    store_features(dx + (size_t)row * d_stride, d_stride, worker->x, rows, worker->HS);
}

// A tile's keys and values.
static void store_key_gradient(Worker *worker, RowTile *tile, const real *dv, const Head *head, int row, int rows) {
    store_gradient(worker, tile, head->dk, head->d_stride, row, rows);
    for (int i = 0; i < rows; i++)
        memcpy(head->dv + (size_t)(row + i) * head->d_stride, dv + (size_t)i * worker->stride,
               (size_t)worker->HS * sizeof(real));
}

// Stores the gradients of tile `index` of a chunk's rows, which are complete.
static void end_rows(Worker *worker, const Head *head, int start, int index, int rows) {
    RowTile *tile = &worker->rows, other = linear_other(worker, index);
    int row = start + index * TILE, are_keys = rows_are_keys(worker->walk);
    if (worker->map->log_scaled)
        for (int i = 0; i < tile_lanes(rows); i++)
            tile->d.log_scale[i] = i >= rows ? 0 : are_keys ? other.d_scale[i] : -tile->d_scale[i];
    if (worker->walk == WALK_BOTH && worker->map->log_scaled)
        memcpy(other.d_scale, tile->d_scale, sizeof(real) * (size_t)rows);
    if (are_keys)
        store_key_gradient(worker, tile, worker->numerator, head, row, rows);
    else
        store_gradient(worker, tile, head->dq, head->d_stride, row, rows);
}

static void end_others(Worker *worker, const Head *head, int start, int count, real *pending_scale) {
    if (worker->map->log_scaled) pass_scale_gradients(worker, head->running_max, start, count, pending_scale);
    for (int row = 0; row < count; row += TILE) {
        RowTile tile = linear_other(worker, row / TILE);
        if (worker->map->log_scaled)
            memcpy(tile.d.log_scale, tile.d_scale, sizeof(real) * (size_t)min_int(TILE, count - row));
        store_key_gradient(worker, &tile, tile.dv, head, start + row, min_int(TILE, count - row));
    }
}

// Gradients of a chunk's rows; the state holds the others before it, or after it.
static void backward_chunk(Worker *worker, const Head *head, int start, int count, real *pending_scale) {
    int are_keys = rows_are_keys(worker->walk), tiles = tiles_of(count);
    int has_state = are_keys ? start + count < worker->T : start > 0;
    load_others(worker, head, start, count);
    if (are_keys && worker->map->log_scaled)
        pass_scale_gradients(worker, head->running_max, start, count, pending_scale);
    for (int index = 0; index < tiles; index++) {
        int row = index * TILE, rows = min_int(TILE, count - row);
        load_rows(worker, head, start + row, rows);
        if (has_state) add_from_state(worker, start, row, rows, count);
        for (int j = are_keys ? index : 0; j < (are_keys ? tiles : index + 1); j++) {
            RowTile others = linear_other(worker, j);
            add_pair_gradients(worker, &others, min_int(TILE, count - j * TILE), rows, TILE * abs(index - j));
        }
        end_rows(worker, head, start, index, rows);
    }
    if (worker->walk == WALK_BOTH) end_others(worker, head, start, count, pending_scale);
}

// What the next chunk will need from memory, which begins at row `row`.
static void fetch_chunk(const Worker *worker, const Head *head, int row) {
    int T = worker->T, HS = worker->HS;
    const real *inputs[] = {head->input.q, head->input.k, head->input.v};
    const real *outputs[] = {head->dout, head->out};
    if (worker->chunk != TILE || row < 0 || row >= T) return;
    for (int i = 0; i < 3; i++) linear_fetch(inputs[i], head->input.stride, HS, row, T);
    for (int i = 0; i < 2; i++) linear_fetch(outputs[i], head->stride, HS, row, T);
}

// Rows [start, end) of a head, chunk by chunk, with what lies before them, or behind them, in the state.
static void backward_rows(Worker *worker, const Head *head, int start, int end) {
    int are_keys = rows_are_keys(worker->walk), chunks = chunks_of(end - start, worker->chunk);
    real pending_scale = are_keys || worker->walk == WALK_BOTH ? pending_at(worker, head, end) : 0;
    for (int i = 0; i < chunks; i++) {
        int row = start + (are_keys ? chunks - 1 - i : i) * worker->chunk, count = min_int(worker->chunk, end - row);
        fetch_chunk(worker, head, row + (are_keys ? -1 : 1) * worker->chunk);
        backward_chunk(worker, head, row, count, &pending_scale);
        if (i + 1 == chunks) break;
        if (are_keys)
            absorb_chunk_of_queries(worker, head, row, count);
        else
            linear_absorb_keys(worker, worker->state, count);
    }
}

// ---- segments

typedef struct { // the arguments of linear_attention_backward, and what the heads' parameters receive
    real *dqkv;
    const real *dout, *qkv, *out, *saved;
    double *d_log_decay; // (B, NH, walks, segments); of documents (B, NH, T), at their first rows
    double *crossing;    // (B, NH, chunks, 2); of documents (B, NH, T, 2), from their first rows on
    real *d_packed;      // (B, NH, walks, d_packed_size)
    int walks;
    Segments segments;
} Pass;

static Head head_at(const Pass *pass, Span span, int h, const AttentionConfig *config) {
    size_t C = (size_t)config->C, rows = (size_t)span.first, column = (size_t)h * (size_t)config->HS;
    size_t kept = linear_kept_place(span, h, config);
    real *dq = pass->dqkv + rows * 3 * C + column;
    return (Head){.input = linear_head_input(pass->qkv, span, h, config),
                  .dout = pass->dout + rows * C + column,
                  .out = pass->out + rows * C + column,
                  .stride = config->C,
                  .denominator = pass->saved + kept,
                  .running_max = pass->saved + (size_t)config->B * (size_t)config->NH * (size_t)config->T + kept,
                  .dq = dq,
                  .dk = dq + C,
                  .dv = dq + 2 * C,
                  .d_stride = 3 * config->C};
}

// U, the sum over the queries [start, end) alone, relative to the largest scale before them.
static void sum_segment_queries(Worker *worker, State sums, const Head *head, int start, int end) {
    real largest = worker->map->log_scaled ? head->running_max[start - 1] : 0;
    RowTile tile = linear_other(worker, 0);
    linear_clear_state(sums, worker->map, worker->HS);
    *sums.log_scale = -largest;
    for (int row = start; row < end; row += TILE) {
        int rows = min_int(TILE, end - row);
        load_queries(worker, &tile, head, row, rows);
        absorb_queries(worker, sums, 1, &tile, largest, row - start, rows);
    }
}

// Fills in U after each segment but the last. All threads call it together.
static void sum_queries(Worker *worker, real *boundaries, const Pass *pass) {
    const AttentionConfig *config = worker->config;
    Segments segments = pass->segments;
    int heads = config->B * config->NH, inside = segments.count - 1;
#pragma omp for schedule(dynamic)
    for (int i = 0; i < heads * inside; i++) {
        int task = i / inside, segment = i % inside, start = (segment + 1) * segments.rows;
        Head head = head_at(pass, linear_row_of(task, config), task % config->NH, config);
        linear_pack(worker, task);
        sum_segment_queries(worker, linear_boundary(boundaries, task, segment, segments, worker), &head, start,
                            min_int(start + segments.rows, config->T));
    }
#pragma omp for
    for (int task = 0; task < heads; task++) {
        linear_set_decay(worker, task);
        for (int segment = segments.count - 3; segment >= 0; segment--)
            linear_add_states(worker, linear_boundary(boundaries, task, segment, segments, worker),
                              linear_boundary(boundaries, task, segment + 1, segments, worker), segments.rows);
    }
}

// The worker's own state with nothing in it: that before the first row of a sequence, or after the last.
static void open_own_state(Worker *worker, State own, const Head *head) {
    worker->state = own;
    linear_clear_state(own, worker->map, worker->HS);
    if (rows_are_keys(worker->walk) && worker->map->log_scaled) *own.log_scale = -head->running_max[worker->T - 1];
}

// The worker's state before the rows of a segment, or after them: that at its boundary, or its own.
static void open_state(Worker *worker, State own, const Head *head, int task, int segment, const Pass *pass,
                       real *boundaries) {
    if (segment == (rows_are_keys(worker->walk) ? pass->segments.count - 1 : 0))
        open_own_state(worker, own, head);
    else
        worker->state = linear_boundary(boundaries, task, segment, pass->segments, worker);
}

// One segment of one head, in one of the passes over it: number `i` of them all. The boundaries are read only when
// there are several segments.
static void backward_segment(Worker *worker, State own, int i, const Pass *pass, real *key_boundaries,
                             real *query_boundaries) {
    const AttentionConfig *config = worker->config;
    int segments = pass->segments.count, segment = i % segments, slot = i / segments;
    int task = slot / pass->walks,
        pass_index = slot % pass->walks; // a head's passes follow each other: it is in the cache
    int start = segment * pass->segments.rows, end = min_int(start + pass->segments.rows, config->T);
    Head head = head_at(pass, linear_row_of(task, config), task % config->NH, config);
    linear_set_walk(worker, pass->walks == 1 ? WALK_BOTH : pass_index ? WALK_QUERIES : WALK_KEYS);
    linear_pack(worker, task);
    worker->d_packed = pass->d_packed + (size_t)slot * worker->map->d_packed_size;
    worker->crossing = pass->crossing + 2 * (size_t)task * chunks_of(config->T, worker->chunk);
    worker->d_log_decay = 0;
    open_state(worker, own, &head, task, segment, pass,
               rows_are_keys(worker->walk) ? query_boundaries : key_boundaries);
    backward_rows(worker, &head, start, end);
    if (learns_decay(worker)) pass->d_log_decay[slot * segments + segment] = worker->d_log_decay;
}

// ---- documents

// One document: both passes over it, and what its decay receives.
static void backward_document(Worker *worker, State own, Span span, int h, const Pass *pass) {
    const AttentionConfig *config = worker->config;
    size_t place = linear_kept_place(span, h, config);
    Head head = head_at(pass, span, h, config);
    worker->T = span.count;
    worker->chunk = linear_chunk_rows(worker->map, span.count, config);
    worker->crossing = pass->crossing + 2 * place;
    worker->d_log_decay = 0;
    for (int walks = linear_backward_walks(worker->chunk, span.count), i = 0; i < walks; i++) {
        linear_set_walk(worker, walks == 1 ? WALK_BOTH : i ? WALK_QUERIES : WALK_KEYS);
        open_own_state(worker, own, &head);
        backward_rows(worker, &head, 0, span.count);
    }
    if (!learns_decay(worker)) return;
    pass->d_log_decay[place] = worker->d_log_decay +
                               crossing_gradient(worker->crossing, span.count, worker->chunk,
                                                 exp((double)worker->log_decay * worker->chunk));
}

// The documents that begin in one segment of one head's row: number `i` of them all.
static void backward_documents(Worker *worker, State own, int i, const Pass *pass) {
    const AttentionConfig *config = worker->config;
    int task = i / pass->segments.count, start = i % pass->segments.count * pass->segments.rows;
    int row = linear_row_of(task, config).first, end = row + min_int(start + pass->segments.rows, config->T);
    Span span = {.first = row + start};
    linear_pack(worker, task);
    worker->d_packed = pass->d_packed + (size_t)task * worker->map->d_packed_size;
    while (attention_next_span(&span, end, config)) backward_document(worker, own, span, task % config->NH, pass);
}

// ---- parameters

// What a head of a row has gathered for its learned decay.
static double decay_gradient(const Pass *pass, int task, int chunk, const real *parameters,
                             const AttentionConfig *config) {
    int sums = config->positions ? config->T : pass->walks * pass->segments.count;
    double sum = 0;
    for (int i = 0; i < sums; i++) sum += pass->d_log_decay[(size_t)task * sums + i];
    if (config->positions) return sum;
    real log_decay = attention_log_decay(parameters, task % config->NH, config);
    return sum + crossing_gradient(pass->crossing + 2 * (size_t)task * chunks_of(config->T, chunk), config->T, chunk,
                                   exp((double)log_decay * chunk));
}

// What the heads have gathered for the layer's parameters, in an order that does not depend on threads.
static void add_parameter_gradients(real *dparameters, const Pass *pass, const LinearMap *map, int chunk,
                                    const real *parameters, const AttentionConfig *config) {
    for (int task = 0; task < config->B * config->NH; task++) {
        double sum = config->decay == DECAY_LEARNED ? decay_gradient(pass, task, chunk, parameters, config) : 0;
        attention_decay_gradient(dparameters, parameters, task % config->NH, (real)sum, config);
        for (int walk = 0; map->d_packed_size && walk < pass->walks; walk++)
            map->unpack(dparameters, pass->d_packed + (size_t)(task * pass->walks + walk) * map->d_packed_size,
                        task % config->NH, config);
    }
}

// Where in `work` the heads' parameters gather their gradients, which begin at 0.
static real *open_parameter_work(Pass *pass, real *work, const LinearMap *map, Division division,
                                 const AttentionConfig *config) {
    size_t size = linear_parameter_work_size(map, division, config->positions != NULL, config);
    size_t heads = (size_t)config->B * config->NH;
    size_t sums = config->positions ? (size_t)config->T : (size_t)(division.walks * division.segments.count);
    memset(work, 0, size * sizeof(real));
    pass->d_log_decay = (double *)work;
    pass->crossing = pass->d_log_decay + heads * sums;
    pass->d_packed = work + size - round_up(heads * (size_t)pass->walks * map->d_packed_size, 16);
    return work + size;
}

void linear_attention_backward(const LinearMap *map, real *dqkv, real *dparameters, const real *dout, const real *qkv,
                               const real *out, const real *saved, const real *constants, const real *parameters,
                               real *work, const AttentionConfig *config) {
    Division division = linear_divide(map, 1, config->positions != NULL, config);
    int chunk = division.chunk, share = linear_is_worth_threads(map, config->B * config->T, chunk, config);
    Pass pass = {.dqkv = dqkv, .dout = dout, .qkv = qkv, .out = out, .saved = saved, .walks = division.walks};
    pass.segments = division.segments;
    work = open_parameter_work(&pass, work, map, division, config);
#pragma omp parallel if (share)
    {
        Worker worker;
        Walk walk = linear_backward_walk(pass.walks);
        size_t size = linear_lay_out(&worker, NULL, map, chunk, walk, config);
        real *key_boundaries = work + size * (size_t)omp_get_num_threads();
        real *query_boundaries = key_boundaries + linear_boundary_size(map, pass.segments, config);
        linear_lay_out(&worker, work + size * (size_t)omp_get_thread_num(), map, chunk, walk, config);
        worker.constants = constants, worker.parameters = parameters;
        State own = worker.state;
        if (pass.segments.count > 1 && !config->positions) {
            linear_sum_keys(&worker, key_boundaries, pass.segments, qkv);
            sum_queries(&worker, query_boundaries, &pass);
        }
#pragma omp for schedule(dynamic)
        for (int i = 0; i < config->B * config->NH * pass.walks * pass.segments.count; i++)
            if (config->positions)
                backward_documents(&worker, own, i, &pass);
            else
                backward_segment(&worker, own, i, &pass, key_boundaries, query_boundaries);
    }
    add_parameter_gradients(dparameters, &pass, map, chunk, parameters, config);
}
