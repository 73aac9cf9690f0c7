#include "linear_core.h"

#include <omp.h>
#include <string.h>

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

// ---- the gradient of a learned decay's logarithm: the sum over all pairs of distance * score * its gradient
//
// The distance of a query in one chunk and a key in another is that from the query to the beginning of its chunk, plus
// the rows of the chunks in between, plus that from the key to the end of its chunk; each is added where it is known.

static int learns_decay(const Worker *worker) {
    return worker->config->decay == DECAY_LEARNED;
}

// sum over the rows of (first + step * row) <d_phi, phi>; where phi is a product, <d_outer, outer> is the same
static double weighted_dots(const LinearFeatures *d, const LinearFeatures *features, int width, int rows, int first,
                            int step) {
    double sum = 0;
    for (int from = 0; from < rows; from += TILE_LANES) {
        const real *d_outer = d->outer + from, *outer = features->outer + from;
        real dots[TILE_LANES] = {0};
        for (int f = 0; f < width; f++)
            for (int i = 0; i < TILE_LANES; i++) dots[i] += d_outer[f * TILE + i] * outer[f * TILE + i];
        for (int i = 0; i < min_int(TILE_LANES, rows - from); i++) sum += (first + step * (from + i)) * (double)dots[i];
    }
    return sum;
}

// <S, U>, the sum over all pairs of a query and a key on either side of a chunk
static double state_dot(State a, State b, const LinearMap *map, int HS) {
    int n = (int)linear_state_size(map, HS) - 1; // matrix and vector
    real sums[TILE] = {0};
    double sum = 0;
    for (int from = 0; from < n; from += TILE)
        for (int i = 0; i < min_int(TILE, n - from); i++) sums[i] += a.matrix[from + i] * b.matrix[from + i];
    for (int i = 0; i < TILE; i++) sum += sums[i];
    return sum;
}

// ---- backward

typedef struct { // what the forward pass left, and the incoming gradient, for one head
    const real *dout, *out;
    int stride;
    const real *denominator, *running_max; // (T)
    real *dq, *dk, *dv;
    int d_stride;
} HeadGradient;

// x (width, TILE) -> rows (n, width; leading dimension `stride`)
static void store_features(real *rows, int stride, const real *x, int n, int width) {
    tile_transpose(rows, stride, x, TILE, width, n, 0);
}

// The state before every chunk of rows [start, end), from a sweep over the keys; `history` is the one before the first.
static void recompute_states(Worker *worker, HeadInput input, int start, int end, const State *history) {
    const LinearMap *map = worker->map;
    size_t size = linear_state_size(map, worker->HS);
    real *states = worker->states;
    if (history)
        memcpy(states, history->matrix, size * sizeof(real));
    else
        linear_clear_state(linear_state_at(states, map, worker->HS), map, worker->HS);
    for (int row = start; row + worker->chunk < end; row += worker->chunk, states += size) {
        memcpy(states + size, states, size * sizeof(real));
        linear_load_keys(worker, input, row, worker->chunk);
        linear_absorb_keys(worker, linear_state_at(states + size, map, worker->HS), worker->chunk);
    }
}

static real output_dot(HeadGradient gradient, int row, int HS) {
    const real *dout = row_at(gradient.dout, row, gradient.stride), *out = row_at(gradient.out, row, gradient.stride);
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

// gamma and beta of a tile of queries. `d_scale` (TILE) is for log_scaled maps, NULL for others.
static void load_output_gradient(Worker *worker, HeadGradient gradient, int row, int rows, real *d_scale) {
    int HS = worker->HS, stride = worker->stride;
    if (stride > HS || rows < TILE) memset(worker->gamma, 0, sizeof(real) * (size_t)TILE * stride);
    for (int i = 0; i < rows; i++) {
        const real *dout = row_at(gradient.dout, row + i, gradient.stride);
        real g = gradient.denominator[row + i], dot = output_dot(gradient, row + i, HS);
        for (int c = 0; c < HS; c++) worker->gamma[i * stride + c] = dout[c] / g;
        worker->beta[i] = sum_gradient(worker, dot, g);
        if (d_scale) d_scale[i] = scale_gradient(worker, dot, g);
    }
    for (int i = rows; i < tile_lanes(rows); i++) worker->beta[i] = 0;
    tile_transpose(worker->gamma_features, TILE, worker->gamma, stride, tile_lanes(rows), HS, 0);
}

// d_phi (F, TILE) = matrix right + vector weights, contracted into the gradients of the factors right away.
static void gradient_from_state(Worker *worker, LinearFeatures *d, State state, const LinearFeatures *features,
                                const real *right, const real *weights, int rows) {
    const LinearMap *map = worker->map;
    int inner = max_int(map->inner, 1), HS = worker->HS, lanes = tile_lanes(rows), step = linear_block_outers(map);
    for (int from = 0; from < map->outer; from += step) {
        int count = min_int(step, map->outer - from), width = count * inner;
        const real *matrix = state.matrix + (size_t)from * inner * worker->stride;
        const real *vector = state.vector + (size_t)from * inner;
        for (int f = 0; f < width; f++)
            for (int i = 0; i < lanes; i++) worker->d_phi[f * TILE + i] = weights ? vector[f] * weights[i] : vector[f];
        tile_multiply(worker->d_phi, TILE, (TileLeft){matrix, worker->stride, 1}, right, TILE, width, lanes, HS, 1,
                      TILE_FULL);
        contract(d, worker->d_phi, features, from, count, lanes, map);
    }
}

// dv (rows, HS) += phi(k) U
static void value_gradient_from_sums(Worker *worker, const KeyTile *keys, int rows) {
    const LinearMap *map = worker->map;
    int inner = max_int(map->inner, 1), stride = worker->stride, lanes = tile_lanes(rows);
    int step = linear_block_outers(map);
    for (int from = 0; from < map->outer; from += step) {
        int count = min_int(step, map->outer - from), width = count * inner;
        const real *phi = linear_expand(worker->phi, &keys->features, from, count, lanes, map->inner);
        tile_multiply(keys->dv, stride, (TileLeft){phi, 1, TILE},
                      worker->query_sums.matrix + (size_t)from * inner * stride, stride, rows, stride, width, 1,
                      TILE_FULL);
    }
}

static void clear_features(LinearFeatures *d, const LinearMap *map) {
    memset(d->outer, 0, sizeof(real) * (size_t)map->outer * TILE);
    memset(d->inner, 0, sizeof(real) * (size_t)map->inner * TILE);
}

// Starts the gradients of a chunk's keys and values with what reaches them from later chunks.
static void begin_key_gradients(Worker *worker, int count, int has_future) {
    const LinearMap *map = worker->map;
    real power[TILE];
    for (int row = 0; row < count; row += TILE) {
        KeyTile tile = linear_key_tile(worker, row / TILE);
        int rows = min_int(TILE, count - row), lanes = tile_lanes(rows), stride = worker->stride;
        clear_features(&tile.d, map);
        memset(tile.d_outer_rows, 0, sizeof(real) * (size_t)tile_stride(map->outer) * TILE);
        memset(tile.d_inner_rows, 0, sizeof(real) * (size_t)tile_stride(map->inner) * TILE);
        memset(tile.dv, 0, sizeof(real) * (size_t)TILE * stride);
        if (!has_future) continue;
        if (map->log_scaled)
            linear_set_relative_scale(worker, &tile.features, tile.features.log_scale, 1,
                                      -*worker->query_sums.log_scale, count - 1 - row, lanes);
        for (int i = rows; i < lanes; i++) memset(tile.v + (size_t)i * stride, 0, (size_t)stride * sizeof(real));
        tile_transpose(worker->x, TILE, tile.v, stride, lanes, worker->HS, 0);
        if (worker->fades) {
            linear_key_powers(power, worker, rows, count - row - rows);
            linear_fade_columns(worker->x, worker->x, power, worker->HS, lanes);
        }
        gradient_from_state(worker, &tile.d, worker->query_sums, &tile.features, worker->x,
                            worker->fades ? power : NULL, rows);
        if (learns_decay(worker))
            worker->d_log_decay += weighted_dots(&tile.d, &tile.features, map->outer, rows, count - 1 - row, -1);
        value_gradient_from_sums(worker, &tile, rows);
        if (worker->fades) linear_fade_rows(tile.dv, power, rows, stride);
    }
}

// For scores that are outer * inner * power: the gradients of outer, which replace d_scores, and of inner; and the
// scores. Returns the sum of distance * score * gradient. Inlined with constants for what a map has: `power` or NULL,
// `has_inner`.
static inline __attribute__((always_inline)) double share(Worker *worker, const real *power, int has_inner,
                                                          int key_rows, int lanes, int distance) {
    real sums[TILE] = {0}; // by query
    double sum = 0;
    for (int j = 0; j < key_rows; j++) {
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

static double share_faded(Worker *worker, int key_rows, int lanes, int distance) {
    if (!worker->fades) return share(worker, NULL, 1, key_rows, lanes, distance);
    const real *power = linear_pair_powers(worker, distance);
    if (worker->map->inner) return share(worker, power, 1, key_rows, lanes, distance);
    return share(worker, power, 0, key_rows, lanes, distance);
}

// d_scores[j][i] = <gamma_i, v_j> + beta_i, and from it what reaches each factor of the scores: d_inner_scores and, in
// place of d_scores, d_outer_scores; and the scores themselves.
static void pair_gradients(Worker *worker, const KeyTile *keys, int key_rows, int lanes, int distance) {
    int HS = worker->HS;
    for (int j = 0; j < key_rows; j++) memcpy(worker->d_scores + j * TILE, worker->beta, sizeof(real) * (size_t)lanes);
    tile_multiply(worker->d_scores, TILE, (TileLeft){keys->v, worker->stride, 1}, worker->gamma_features, TILE,
                  key_rows, lanes, HS, 1, distance ? TILE_FULL : TILE_C_UPPER);
    real *masked[] = {worker->scores, worker->d_scores, worker->map->inner ? worker->inner_scores : NULL};
    for (int m = 0; !distance && m < 3; m++)
        if (masked[m]) linear_mask_future(masked[m], key_rows, lanes, 0);
    if (worker->config->decay != DECAY_NONE)
        worker->d_log_decay += share_faded(worker, key_rows, lanes, distance);
    else if (worker->map->inner)
        for (int i = 0; i < key_rows * TILE; i++) {
            real d = worker->d_scores[i], outer = worker->scores[i], inner = worker->inner_scores[i];
            worker->d_scores[i] = d * inner;
            worker->d_inner_scores[i] = d * outer;
            worker->scores[i] = outer * inner;
        }
}

// One factor's share: dq (width, TILE) += k d_scores, dk (TILE, width) += d_scores q
static void factor_gradients(real *dq, real *dk_rows, const real *k, const real *q_rows, const real *d_scores,
                             int width, int key_rows, int rows, int diagonal) {
    tile_multiply(dq, TILE, (TileLeft){k, TILE, 1}, d_scores, TILE, width, tile_lanes(rows), key_rows, 1,
                  diagonal ? TILE_B_UPPER : TILE_FULL);
    tile_multiply(dk_rows, tile_stride(width), (TileLeft){d_scores, TILE, 1}, q_rows, tile_stride(width), key_rows,
                  tile_stride(width), rows, 1, diagonal ? TILE_A_UPPER : TILE_FULL);
}

static void add_pair_gradients(Worker *worker, const KeyTile *keys, int key_rows, int rows, int distance) {
    const LinearMap *map = worker->map;
    int lanes = tile_lanes(rows), stride = worker->stride, diagonal = distance == 0;
    linear_pair_scores(worker, &keys->features, key_rows, lanes, distance);
    pair_gradients(worker, keys, key_rows, lanes, distance);
    factor_gradients(worker->dq.outer, keys->d_outer_rows, keys->features.outer, worker->q_outer_rows, worker->d_scores,
                     map->outer, key_rows, rows, diagonal);
    if (map->inner && !map->fixed_inner)
        factor_gradients(worker->dq.inner, keys->d_inner_rows, keys->features.inner, worker->q_inner_rows,
                         worker->d_inner_scores, map->inner, key_rows, rows, diagonal);
    tile_multiply(keys->dv, stride, (TileLeft){worker->scores, TILE, 1}, worker->gamma, stride, key_rows, stride, rows,
                  1, diagonal ? TILE_A_UPPER : TILE_FULL);
}

// log_scaled maps: the largest scale that each query has seen, and the factor from there to `reference`, the largest
// `distance` rows earlier
static void load_query_scales(Worker *worker, HeadGradient gradient, int row, int rows, real reference, int distance) {
    int lanes = tile_lanes(rows);
    for (int i = 0; i < lanes; i++) worker->running_max[i] = gradient.running_max[row + min_int(i, rows - 1)];
    linear_set_relative_scale(worker, &worker->q, worker->running_max, -1, reference, distance, lanes);
}

// What a tile of queries gets from the state; `before` rows of the chunk precede it.
static void query_gradients_from_state(Worker *worker, int before, int rows) {
    int HS = worker->HS, lanes = tile_lanes(rows);
    real power[TILE], faded_beta[TILE], *gamma = worker->gamma_features, *beta = worker->beta;
    if (worker->fades) { // copies: the chunk's own pairs have powers of their own
        linear_query_powers(power, worker, before);
        linear_fade_columns(worker->x, gamma, power, HS, lanes);
        linear_fade_columns(faded_beta, beta, power, 1, lanes);
        gamma = worker->x, beta = faded_beta;
    }
    gradient_from_state(worker, &worker->dq, worker->state, &worker->q, gamma, beta, rows);
    if (learns_decay(worker))
        worker->d_log_decay += weighted_dots(&worker->dq, &worker->q, worker->map->outer, rows, before + 1, 1);
}

// U = factor * U + a tile of queries; `before` rows of the chunk precede it. Overwrites gamma and beta.
static void add_to_query_sums(Worker *worker, State sums, double factor, int before, int rows) {
    real power[TILE];
    if (worker->fades) {
        linear_query_powers(power, worker, before);
        linear_fade_rows(worker->gamma, power, rows, worker->stride);
        linear_fade_columns(worker->beta, worker->beta, power, 1, rows);
    }
    linear_add_to_state(worker, sums, factor, &worker->q, worker->gamma, worker->beta, rows);
}

// Gradients of the queries of tile `index` of a chunk, and what they give to the chunk's keys and values and to U.
static void backward_queries(Worker *worker, HeadInput input, HeadGradient gradient, int start, int index, int rows,
                             int has_history) {
    const LinearMap *map = worker->map;
    int row = start + index * TILE, lanes = tile_lanes(rows);
    LinearRows where = {row, rows};
    real *d_scale = map->log_scaled ? linear_key_tile(worker, index).d.log_scale : NULL;
    linear_load_queries(worker, input, row, where);
    load_output_gradient(worker, gradient, row, rows, d_scale);
    clear_features(&worker->dq, map);
    if (map->log_scaled) {
        for (int i = 0; i < lanes; i++) worker->dq.log_scale[i] = i < rows ? -d_scale[i] : 0;
        load_query_scales(worker, gradient, row, rows, has_history ? *worker->state.log_scale : 0, index * TILE + 1);
    }
    if (has_history) query_gradients_from_state(worker, index * TILE, rows);
    store_features(worker->q_outer_rows, tile_stride(map->outer), worker->q.outer, rows, map->outer);
    if (!map->fixed_inner)
        store_features(worker->q_inner_rows, tile_stride(map->inner), worker->q.inner, rows, map->inner);
    for (int j = 0; j <= index; j++) {
        KeyTile keys = linear_key_tile(worker, j);
        add_pair_gradients(worker, &keys, j < index ? TILE : rows, rows, (index - j) * TILE);
    }
    if (has_history) add_to_query_sums(worker, worker->query_sums, index ? 1 : worker->fading, index * TILE, rows);
    map->gradient(worker->x, worker->d_packed, &worker->dq, &worker->q, where, worker->packed, worker->config);
    store_features(gradient.dq + (size_t)row * gradient.d_stride, gradient.d_stride, worker->x, rows, worker->HS);
}

// Whether a row's own key has the largest log scale, now that all before it have faded.
static int raises_scale(const Worker *worker, const real *running_max, int row) {
    return row == 0 || running_max[row] > running_max[row - 1] + worker->log_decay;
}

// The largest log scale so far moves with the key that set it. Walking backwards, a key that raised the maximum takes
// what the rows since then have gathered in `pending`; every other row had it fade once more. On entry d.log_scale
// holds the rows' shares.
static void pass_scale_gradients(Worker *worker, const real *running_max, int start, int count, real *pending) {
    for (int row = count - 1; row >= 0; row--) {
        real *d_scale = linear_key_tile(worker, row / TILE).d.log_scale + row % TILE;
        *pending += *d_scale;
        int raised = raises_scale(worker, running_max, start + row);
        *d_scale = raised ? -*pending : 0;
        if (raised)
            *pending = 0;
        else
            worker->d_log_decay -= *pending;
    }
}

static void end_key_gradients(Worker *worker, HeadGradient gradient, int start, int count) {
    const LinearMap *map = worker->map;
    int HS = worker->HS;
    for (int row = 0; row < count; row += TILE) {
        KeyTile tile = linear_key_tile(worker, row / TILE);
        int rows = min_int(TILE, count - row);
        size_t at = (size_t)(start + row) * gradient.d_stride;
        tile_transpose(tile.d.outer, TILE, tile.d_outer_rows, tile_stride(map->outer), rows, map->outer, 1);
        if (!map->fixed_inner)
            tile_transpose(tile.d.inner, TILE, tile.d_inner_rows, tile_stride(map->inner), rows, map->inner, 1);
        map->gradient(worker->x, worker->d_packed, &tile.d, &tile.features, (LinearRows){start + row, rows},
                      worker->packed, worker->config);
        store_features(gradient.dk + at, gradient.d_stride, worker->x, rows, HS);
        for (int i = 0; i < rows; i++)
            memcpy(gradient.dv + at + (size_t)i * gradient.d_stride, tile.dv + (size_t)i * worker->stride,
                   (size_t)HS * sizeof(real));
    }
}

// One chunk of the reverse sweep: on entry U holds the queries after the chunk, on return also those of the chunk.
static void backward_chunk(Worker *worker, HeadInput input, HeadGradient gradient, int start, int count,
                           real *pending_scale) {
    const LinearMap *map = worker->map;
    int has_history = start > 0, has_future = start + count < worker->config->T;
    linear_load_keys(worker, input, start, count);
    begin_key_gradients(worker, count, has_future);
    if (has_history) // from here on log scales are relative to the largest before the chunk
        worker->fading = linear_fading(worker, worker->query_sums, count, -*worker->state.log_scale);
    if (has_history && has_future && learns_decay(worker))
        worker->d_log_decay += count * worker->fading * state_dot(worker->state, worker->query_sums, map, worker->HS);
    for (int row = 0; row < count; row += TILE)
        backward_queries(worker, input, gradient, start, row / TILE, min_int(TILE, count - row), has_history);
    if (map->log_scaled) pass_scale_gradients(worker, gradient.running_max, start, count, pending_scale);
    end_key_gradients(worker, gradient, start, count);
}

// Rows [start, end) of a head, from the last chunk to the first. `history` is the state before them, NULL if there is
// none; the worker's U holds the queries after them.
static void backward_rows(Worker *worker, HeadInput input, HeadGradient gradient, int start, int end,
                          const State *history, real pending_scale) {
    const LinearMap *map = worker->map;
    recompute_states(worker, input, start, end, history);
    for (int c = chunks_of(end - start, worker->chunk) - 1; c >= 0; c--) {
        int row = start + c * worker->chunk;
        real *before = worker->states + (size_t)c * linear_state_size(map, worker->HS);
        worker->state = linear_state_at(before, map, worker->HS);
        backward_chunk(worker, input, gradient, row, min_int(worker->chunk, end - row), &pending_scale);
    }
}

// ---- segments

// U of the queries [start, end) alone, relative to the largest scale before them.
static void sum_segment_queries(Worker *worker, State sums, HeadInput input, HeadGradient gradient, int start,
                                int end) {
    const LinearMap *map = worker->map;
    linear_clear_state(sums, map, worker->HS);
    if (map->log_scaled) *sums.log_scale = -gradient.running_max[start - 1];
    for (int row = start; row < end; row += TILE) {
        int rows = min_int(TILE, end - row);
        linear_load_queries(worker, input, row, (LinearRows){row, rows});
        load_output_gradient(worker, gradient, row, rows, NULL);
        if (map->log_scaled) load_query_scales(worker, gradient, row, rows, -*sums.log_scale, row - start + 1);
        add_to_query_sums(worker, sums, 1, row - start, rows);
    }
}

// What the rows from `end` on have gathered for the key that set the largest scale before them.
static real pending_at(const Worker *worker, HeadGradient gradient, int end) {
    real pending = 0;
    if (!worker->map->log_scaled) return 0;
    for (int row = end; row < worker->config->T && !raises_scale(worker, gradient.running_max, row); row++)
        pending += scale_gradient(worker, output_dot(gradient, row, worker->HS), gradient.denominator[row]);
    return pending;
}

typedef struct { // the arguments of linear_attention_backward, and what the heads' parameters receive
    real *dqkv;
    const real *dout, *qkv, *out, *saved;
    double *d_log_decay; // (B, NH, segments)
    real *d_packed;      // (B, NH, d_packed_size)
} Pass;

static HeadGradient head_gradient(const Pass *pass, int task, const AttentionConfig *config) {
    size_t T = (size_t)config->T, C = (size_t)config->C, NH = (size_t)config->NH;
    size_t rows = (size_t)task / NH * T, column = (size_t)task % NH * (size_t)config->HS;
    real *dq = pass->dqkv + rows * 3 * C + column;
    return (HeadGradient){.dout = pass->dout + rows * C + column,
                          .out = pass->out + rows * C + column,
                          .stride = config->C,
                          .denominator = pass->saved + (size_t)task * T,
                          .running_max = pass->saved + ((size_t)config->B * NH + (size_t)task) * T,
                          .dq = dq,
                          .dk = dq + C,
                          .dv = dq + 2 * C,
                          .d_stride = 3 * config->C};
}

// Fills in U after each segment but the last. All threads call it together.
static void sum_queries(Worker *worker, real *boundaries, Segments segments, const Pass *pass) {
    const AttentionConfig *config = worker->config;
    int heads = config->B * config->NH, inside = segments.count - 1;
#pragma omp for schedule(dynamic)
    for (int i = 0; i < heads * inside; i++) {
        int task = i / inside, segment = i % inside, start = (segment + 1) * segments.rows;
        linear_pack(worker, task);
        sum_segment_queries(worker, linear_boundary(boundaries, task, segment, segments, worker),
                            linear_head_input(pass->qkv, task, config), head_gradient(pass, task, config), start,
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

// One segment of one head; the boundaries are read only when there are several segments.
static void backward_segment(Worker *worker, int task, int segment, Segments segments, real *key_boundaries,
                             real *query_boundaries, const Pass *pass) {
    const AttentionConfig *config = worker->config;
    const LinearMap *map = worker->map;
    HeadGradient gradient = head_gradient(pass, task, config);
    int start = segment * segments.rows, end = min_int(start + segments.rows, config->T);
    State history = {0}, own_sums = worker->query_sums;
    linear_pack(worker, task);
    worker->d_packed = pass->d_packed + (size_t)task * map->d_packed_size;
    memset(worker->d_packed, 0, map->d_packed_size * sizeof(real));
    worker->d_log_decay = 0;
    if (start) history = linear_boundary(key_boundaries, task, segment, segments, worker);
    if (end < config->T)
        worker->query_sums = linear_boundary(query_boundaries, task, segment, segments, worker);
    else {
        linear_clear_state(worker->query_sums, map, worker->HS);
        if (map->log_scaled) *worker->query_sums.log_scale = -gradient.running_max[end - 1];
    }
    backward_rows(worker, linear_head_input(pass->qkv, task, config), gradient, start, end, start ? &history : NULL,
                  end < config->T ? pending_at(worker, gradient, end) : 0);
    worker->query_sums = own_sums;
    if (learns_decay(worker)) pass->d_log_decay[task * segments.count + segment] = worker->d_log_decay;
}

// What the heads have gathered for the layer's parameters, in an order that does not depend on threads.
static void add_parameter_gradients(real *dparameters, const Pass *pass, const LinearMap *map, Segments segments,
                                    const real *parameters, const AttentionConfig *config) {
    for (int task = 0; task < config->B * config->NH; task++) {
        double sum = 0;
        for (int i = 0; config->decay == DECAY_LEARNED && i < segments.count; i++)
            sum += pass->d_log_decay[task * segments.count + i];
        attention_decay_gradient(dparameters, parameters, task % config->NH, (real)sum, config);
        if (map->d_packed_size)
            map->unpack(dparameters, pass->d_packed + (size_t)task * map->d_packed_size, task % config->NH, config);
    }
}

void linear_attention_backward(const LinearMap *map, real *dqkv, real *dparameters, const real *dout, const real *qkv,
                               const real *out, const real *saved, const real *constants, const real *parameters,
                               real *work, const AttentionConfig *config) {
    int chunk = linear_chunk_rows(map, config->T, config);
    Segments segments = linear_segments(map, chunk, config);
    int share = linear_is_worth_threads(map, config->B * config->T, chunk, config);
    Pass pass = {dqkv, dout, qkv, out, saved, (double *)work, work + linear_decay_size(segments, config)};
    work = pass.d_packed + linear_packed_gradient_size(map, config);
#pragma omp parallel if (share)
    {
        Worker worker;
        size_t size = linear_lay_out(&worker, NULL, map, segments.rows, chunk, 1, config);
        real *key_boundaries = work + size * (size_t)omp_get_num_threads();
        real *query_boundaries = key_boundaries + linear_boundary_size(map, segments, config);
        linear_lay_out(&worker, work + size * (size_t)omp_get_thread_num(), map, segments.rows, chunk, 1, config);
        worker.constants = constants, worker.parameters = parameters;
        if (segments.count > 1) {
            linear_sum_keys(&worker, key_boundaries, segments, qkv);
            sum_queries(&worker, query_boundaries, segments, &pass);
        }
#pragma omp for schedule(dynamic)
        for (int i = 0; i < config->B * config->NH * segments.count; i++)
            backward_segment(&worker, i / segments.count, i % segments.count, segments, key_boundaries,
                             query_boundaries, &pass);
    }
    add_parameter_gradients(dparameters, &pass, map, segments, parameters, config);
}
