#include "quadratic_core.h"
#include "core/base/vector_math.h"

#include <string.h>

typedef struct {                             // what backward needs of one head
    real *queries, *keys, *douts, *dqueries; // (rows, width)
    real *key_panels, *value_panels;         // (rows / PANEL, width, PANEL)
    real *query_features, *key_features;     // (rows, feature_width)
    real *dquery_features, *feature_panels;  // the same, (rows / PANEL, feature_width, PANEL)
    real *query_norms, *key_norms;           // (rows) squared
    real *query_factors, *key_factors;       // (rows) what q and k were multiplied by
    real *output_dots;                       // (rows) <dout, out>
    real *query_pulls;                       // (rows) sums of a query's pulls
    const real *levels, *inverses;           // (rows) kept by forward: softmax's maximum, 1 / what to divide by
    double *dlog_decays;                     // (tiles of keys) what reaches log_decay from each; NULL: not wanted
    const real *q;                           // its first row in qkv
} Head;

size_t quadratic_head_numbers(const Core *core, size_t rows) {
    return round_up(rows, PANEL) * (6 * core->width + 4 * core->feature_width + 6);
}

static Head head_at(const Core *core, real *base, const real *saved) {
    Head head = {.levels = saved, .inverses = saved + core->config->T};
    size_t rows = round_up(core->rows, PANEL);
    real **wide[] = {&head.queries, &head.keys, &head.douts, &head.dqueries, &head.key_panels, &head.value_panels};
    real **narrow[] = {&head.query_norms, &head.key_norms,   &head.query_factors,
                       &head.key_factors, &head.output_dots, &head.query_pulls};
    real **features[] = {&head.query_features, &head.key_features, &head.dquery_features, &head.feature_panels};
    for (int i = 0; i < 6; i++, base += rows * core->width) *wide[i] = base;
    for (int i = 0; i < 4; i++, base += rows * core->feature_width) *features[i] = base;
    for (int i = 0; i < 6; i++, base += rows) *narrow[i] = base;
    return head;
}

// ---- rows in and out

// The gradient of a row of q or k as it came in, from `gradient`, that of the packed row. Where the norm was too small
// to divide by, the gradient is 0.
static void unpack_gradient(const Core *core, real *to, real *gradient, const real *row, real pull, real factor) {
    for (size_t d = 0; d < core->width; d++) gradient[d] -= pull * row[d];
    if (core->kernel->unit_length) {
        real along = dot(row, gradient, core->width);
        for (size_t d = 0; d < core->width; d++) gradient[d] -= along * row[d];
        if (factor >= 1 / LEAST_NORM) factor = 0;
    }
    for (int d = 0; d < core->config->HS; d++) to[d] = factor * gradient[d];
}

// The gradients of n rows of q or k, which are at `from`, from those of their two parts.
static void unmap_gradients(const Core *core, Scratch *s, real *to, const real *units, const real *features,
                            const real *from, size_t n) {
    size_t width = core->width, feature_width = core->feature_width, stride = 3 * (size_t)core->config->C;
    for (size_t t = 0; t < n; t += TILE) {
        LinearRows rows = quadratic_map_tile(core, s, from + t * stride, min_size(TILE, n - t));
        tile_transpose(s->dmapped.inner, TILE, units + t * width, (int)width, rows.count, core->map->inner, 0);
        tile_transpose(s->dmapped.outer, TILE, features + t * feature_width, (int)feature_width, rows.count,
                       core->map->outer, 0);
        core->map->gradient(s->x, core->d_packed, &s->dmapped, &s->mapped, rows, core->packed, core->config);
        tile_transpose(to + t * stride, (int)stride, s->x, TILE, core->config->HS, rows.count, 0);
    }
}

// <dout,out> of up to PANEL rows, as the diagonal of a tile of scores. The sums run as those of <dout,v> do, so that
// where a query sees one key only, and out = v, the gradient of its score is their difference 0, and not a rounding
// error for a steep kernel to magnify.
static void dot_outputs(const Core *core, Head *head, size_t first, size_t n, const real *out, Scratch *s) {
    size_t C = core->config->C;
    for (size_t i = 0; i < n; i++) {
        quadratic_pack_row(core, s->queries, out + (first + i) * C, C);
        put_in_panel(s->sums, i, s->queries, core->width);
    }
    Tile tile = tile_of(core, n, n, 0, n); // all see all
    tile.window = UNLIMITED;
    tile_scores(s->dots, head->douts + first * core->width, s->sums, &tile);
    for (size_t i = 0; i < n; i++) head->output_dots[first + i] = s->dots[i * tile.stride + i];
}

// Both parts of a head's rows first .. last - 1 of q and k, and room for the gradients of the queries' features.
static void map_head(const Core *core, Head *head, size_t first, size_t last, const real *q, Scratch *s) {
    size_t C = core->config->C, width = core->width, feature_width = core->feature_width, n = last - first;
    const real *from = q + first * 3 * C;
    quadratic_map_rows(core, s, head->queries + first * width, head->query_features + first * feature_width, from, n);
    quadratic_map_rows(core, s, head->keys + first * width, head->key_features + first * feature_width, from + C, n);
    memset(head->dquery_features + first * feature_width, 0, n * feature_width * sizeof *head->dquery_features);
}

// Packs rows first .. last - 1 of a head; q, out and dout point to its row 0.
static void pack_head(const Core *core, Head *head, size_t first, size_t last, const real *q, const real *out,
                      const real *dout, Scratch *s) {
    size_t C = core->config->C, width = core->width, feature_width = core->feature_width;
    if (core->map) map_head(core, head, first, last, q, s);
    for (size_t t = first; t < last; t++) {
        const real *k = q + t * 3 * C + C, *v = k + C;
        real *key = head->keys + t * width;
        if (!core->map) {
            head->query_factors[t] =
                quadratic_pack_scaled(core, head->queries + t * width, &head->query_norms[t], k - C, 1);
            head->key_factors[t] = quadratic_pack_scaled(core, key, &head->key_norms[t], k, 0);
        } else
            put_in_panel(head->feature_panels, t, head->key_features + t * feature_width, feature_width);
        put_in_panel(head->key_panels, t, key, width);
        quadratic_pack_row(core, s->queries, v, 3 * C);
        put_in_panel(head->value_panels, t, s->queries, width);
        quadratic_pack_row(core, head->douts + t * width, dout + t * C, C);
        head->query_pulls[t] = 0;
    }
    memset(head->dqueries + first * width, 0, (last - first) * width * sizeof *head->dqueries);
    for (size_t t = first; t < last; t += PANEL) dot_outputs(core, head, t, min_size(PANEL, last - t), out, s);
    if (core->config->denominator != DENOMINATOR_CLAMP) return;
    for (size_t t = first; t < last; t++) // the floor of a row's sum does not move with its scores
        if (head->inverses[t] >= 1 / (real)core->config->delta) head->output_dots[t] = 0;
}

// ---- tiles

// Turns a row's scores into weights and its `slopes`, the gradients of the weights, into gradients of the scores.
static void differentiate_row(const Core *core, real *scores, real *slopes, int n, real level, real inverse,
                              real output_dot) {
    if (is_softmax(core)) {
#pragma omp simd
        for (int j = 0; j < n; j++) {
            scores[j] = exponential(scores[j] - level) * inverse;
            slopes[j] = limited(scores[j] * (slopes[j] - output_dot), LARGEST_SLOPE);
        }
    } else {
        for (int j = 0; j < n; j++) {
            scores[j] *= inverse;
            slopes[j] = limited((slopes[j] - output_dot) * inverse, LARGEST_SLOPE);
        }
    }
}

// The same with decay. Adds what reaches log_decay: distance times the gradient of the weight's logarithm, which for
// softmax is the slope itself.
static void differentiate_faded_row(const Core *core, real *scores, real *slopes, real *decay_slopes, int n, real level,
                                    real inverse, real output_dot, Fade fade) {
    if (is_softmax(core)) {
#pragma omp simd
        for (int j = 0; j < n; j++) {
            real distance = (real)(fade.distance - j);
            scores[j] = exponential(scores[j] + distance * fade.log_decay - level) * inverse;
            slopes[j] = limited(scores[j] * (slopes[j] - output_dot), LARGEST_SLOPE);
            decay_slopes[j] += distance * slopes[j];
        }
    } else {
#pragma omp simd
        for (int j = 0; j < n; j++) {
            real distance = (real)(fade.distance - j), factor = fade.factors[j] * fade.shared;
            real slope = slopes[j] - output_dot;
            scores[j] *= factor * inverse;
            slopes[j] = limited(slope * inverse, LARGEST_SLOPE) * factor;
            decay_slopes[j] += distance * limited(scores[j] * slope, LARGEST_SLOPE);
        }
    }
}

// `to` += strength (toward - from)
static void pull_row(real *to, real strength, const real *toward, const real *from, size_t width) {
    for (size_t d = 0; d < width; d++) to[d] += strength * (toward[d] - from[d]);
}

typedef struct {       // one tile in backward: which rows, and where their gradients go
    size_t query, key; // the first of each
    Tile tile;
    int wants_queries, wants_keys;
} Pair;

// A pair's pull acts along k - q. Summed apart, pull k and pull q of near pairs would cancel; those use the
// difference itself. `i` is the query's row in the tile, which sees the n keys from number `from` on.
static void apply_pulls(const Core *core, Head *head, Scratch *s, const Pair *pair, int i, int from, int n) {
    size_t width = core->width, query = pair->query + i, at = i * pair->tile.stride + from;
    real *slopes = s->slopes + at, *distances = s->distances + at, *key_pulls = s->key_pulls + from, sum = 0;
    const real *key_norms = head->key_norms + pair->key + from;
    real norm = head->query_norms[query];
    for (int j = 0; j < n; j++) {
        if (distances[j] < NEAR * (norm + key_norms[j])) {
            const real *q = head->queries + query * width, *k = head->keys + (pair->key + from + j) * width;
            if (pair->wants_queries) pull_row(head->dqueries + query * width, s->pulls[j], k, q, width);
            if (pair->wants_keys) pull_row(s->dkeys + (from + j) * width, s->pulls[j], q, k, width);
            s->pulls[j] = 0;
        }
    }
#pragma omp simd reduction(+ : sum)
    for (int j = 0; j < n; j++) {
        slopes[j] += s->pulls[j];
        key_pulls[j] += s->pulls[j];
        sum += s->pulls[j];
    }
    if (pair->wants_queries) head->query_pulls[query] += sum;
}

// The weights of a tile to s->scores, the gradients of its dot products to s->slopes. What reaches log_decay is summed
// in float within the tile, in double beyond.
static void differentiate_tile(const Core *core, Head *head, Scratch *s, const Pair *pair) {
    const Tile *tile = &pair->tile;
    size_t width = core->width;
    quadratic_score_tile(core, s, tile,
                         (Side){head->queries + pair->query * width, head->query_norms + pair->query,
                                head->query_features + pair->query * core->feature_width},
                         (Side){head->key_panels + pair->key * width, head->key_norms + pair->key,
                                head->feature_panels + pair->key * core->feature_width});
    if (core->fades) memset(s->decay_slopes, 0, tile->keys * sizeof *s->decay_slopes);
    tile_scores(s->slopes, head->douts + pair->query * width, head->value_panels + pair->key * width, tile);
    for (int i = 0; i < tile->queries; i++) {
        int from = tile_hidden(tile, i), n = tile_visible(tile, i) - from;
        size_t at = i * tile->stride + from, query = pair->query + i;
        real *scores = s->scores + at, *slopes = s->slopes + at;
        real level = head->levels[query], inverse = head->inverses[query], output_dot = head->output_dots[query];
        if (core->fades)
            differentiate_faded_row(core, scores, slopes, s->decay_slopes + from, n, level, inverse, output_dot,
                                    fade_of_row(core, s, tile, i, from));
        else
            differentiate_row(core, scores, slopes, n, level, inverse, output_dot);
        if (core->kernel->slopes) {
            real *pulls = core->map ? s->feature_slopes + at : s->pulls;
            core->kernel->slopes(slopes, pulls, s->dots + at, s->distances + at, n, core->config);
            if (!core->map) apply_pulls(core, head, s, pair, i, from, n);
        }
        if (core->map) hide_keys(s->feature_slopes + at - from, tile, i);
        hide_keys(scores - from, tile, i);
        hide_keys(slopes - from, tile, i);
    }
    for (int j = 0; core->fades && j < tile->keys; j++) s->dlog_decay += s->decay_slopes[j];
}

// What reaches the features of both sides through their dot products.
static void backward_features(const Core *core, Head *head, Scratch *s, const Pair *pair) {
    size_t query = pair->query * core->feature_width, key = pair->key * core->feature_width;
    Tile wide = feature_tile(core, &pair->tile);
    if (pair->wants_queries) {
        tile_gather(head->dquery_features + query, s->feature_slopes, head->key_features + key, &wide);
    }
    if (pair->wants_keys) tile_scatter(s->dkey_features, s->feature_slopes, head->query_features + query, &wide);
}

static void backward_pair(const Core *core, Head *head, Scratch *s, const Pair *pair) {
    size_t width = core->width;
    differentiate_tile(core, head, s, pair);
    if (core->map) backward_features(core, head, s, pair);
    if (pair->wants_queries) {
        tile_gather(head->dqueries + pair->query * width, s->slopes, head->keys + pair->key * width, &pair->tile);
    }
    if (pair->wants_keys) {
        tile_scatter(s->dkeys, s->slopes, head->queries + pair->query * width, &pair->tile);
        tile_scatter(s->dvalues, s->scores, head->douts + pair->query * width, &pair->tile);
    }
}

static Pair pair_of(const Core *core, size_t query, size_t key, int wants_queries, int wants_keys) {
    size_t T = core->rows, queries = min_size(core->query_tile, T - query);
    size_t keys = min_size(core->key_tile, query + queries - key); // no query of the tile sees more
    return (Pair){.query = query,
                  .key = key,
                  .tile = tile_of(core, query, queries, key, keys),
                  .wants_queries = wants_queries,
                  .wants_keys = wants_keys};
}

// The gradients of one tile of keys and values from all queries that see them; if wanted, the queries' too.
static void backward_keys(const Core *core, Head *head, Scratch *s, size_t key, int wants_queries, real *dq) {
    size_t T = core->rows, C = core->config->C, width = core->width, keys = min_size(core->key_tile, T - key);
    memset(s->dkeys, 0, keys * width * sizeof *s->dkeys);
    memset(s->dvalues, 0, keys * width * sizeof *s->dvalues);
    memset(s->key_pulls, 0, keys * sizeof *s->key_pulls);
    if (core->map) memset(s->dkey_features, 0, keys * core->feature_width * sizeof *s->dkey_features);
    s->dlog_decay = 0;
    size_t last = min_size(T, key + keys - 1 + core->window);
    for (size_t query = key / core->query_tile * core->query_tile; query < last; query += core->query_tile) {
        Pair pair = pair_of(core, query, key, wants_queries, 1);
        backward_pair(core, head, s, &pair);
    }
    if (head->dlog_decays) head->dlog_decays[key / core->key_tile] = s->dlog_decay;
    size_t first = key * 3 * C + C;
    if (core->map) unmap_gradients(core, s, dq + first, s->dkeys, s->dkey_features, head->q + first, keys);
    for (size_t j = 0; j < keys; j++) {
        real *dk = dq + (key + j) * 3 * C + C, *dv = dk + C;
        if (!core->map)
            unpack_gradient(core, dk, s->dkeys + j * width, head->keys + (key + j) * width, s->key_pulls[j],
                            head->key_factors[key + j]);
        memcpy(dv, s->dvalues + j * width, core->config->HS * sizeof *dv);
    }
}

// The gradients of one tile of queries from all keys that they see.
static void backward_queries(const Core *core, Head *head, Scratch *s, size_t query) {
    size_t last = min_size(core->rows, query + core->query_tile);
    for (size_t key = first_key_tile(core, query); key < last; key += core->key_tile) {
        Pair pair = pair_of(core, query, key, 1, 0);
        backward_pair(core, head, s, &pair);
    }
}

static void unpack_queries(const Core *core, Head *head, size_t first, size_t last, real *dq, Scratch s) {
    size_t width = core->width;
    if (core->map) {
        unmap_gradients(core, &s, dq, head->dqueries, head->dquery_features, head->q, last);
        return;
    }
    for (size_t t = first; t < last; t++) {
        unpack_gradient(core, dq + t * 3 * core->config->C, head->dqueries + t * width, head->queries + t * width,
                        head->query_pulls[t], head->query_factors[t]);
    }
}

// ---- heads

// One head; q, dq, out and dout point to its first row. `owner` is the thread that has the head: number 0 when all work
// on it together; otherwise the loops here run on one thread, whose number in them is 0.
static void backward_head(const Core *core, real *dq, const real *dout, const real *q, const real *out, Head *head,
                          const Work *work, int owner) {
    size_t T = core->rows, tile = core->query_tile;
#pragma omp parallel for if (work->together)
    for (size_t t = 0; t < T; t += tile) {
        Scratch s = quadratic_scratch_of(core, work, owner + omp_get_thread_num());
        pack_head(core, head, t, min_size(T, t + tile), q, out, dout, &s);
    }
    if (work->together) {
#pragma omp parallel for schedule(dynamic)
        for (size_t r = 0; r < (T + tile - 1) / tile; r++) {
            Scratch s = quadratic_scratch_of(core, work, owner + omp_get_thread_num());
            backward_queries(core, head, &s, ((T - 1) / tile - r) * tile); // the last sees most keys: it starts first
        }
    }
#pragma omp parallel for schedule(dynamic) if (work->together)
    for (size_t key = 0; key < T; key += core->key_tile) {
        Scratch s = quadratic_scratch_of(core, work, owner + omp_get_thread_num());
        backward_keys(core, head, &s, key, !work->together, dq);
    }
    unpack_queries(core, head, 0, T, dq, quadratic_scratch_of(core, work, owner));
}

// One sequence of one head. `call` holds what follows from the head, and from its row's place in the batch, `bh`.
static void backward_span(const Core *call, real *dqkv, const real *dout, const real *qkv, const real *out,
                          const real *saved, Span span, size_t bh, const Work *work, int owner) {
    const AttentionConfig *config = call->config;
    size_t T = config->T, C = config->C, h = bh % config->NH, row = span.first, column = h * config->HS;
    Core core = *call;
    core.rows = span.count;
    Head head = head_at(&core, work->heads + owner * work->head_numbers,
                        saved + quadratic_saved_place(span, h, config));
    if (config->decay == DECAY_LEARNED) head.dlog_decays = work->dlog_decays + bh * decay_places(&core) + row % T;
    if (core.map) head.q = qkv + row * 3 * C + column;
    backward_head(&core, dqkv + row * 3 * C + column, dout + row * C + column, qkv + row * 3 * C + column,
                  out + row * C + column, &head, work, owner);
}

// Sums what each head has gathered over the batch and the tiles of keys, always in the same order.
// dlog_decays: (B, NH, places)
static void add_decay_gradients(real *dparameters, const real *parameters, const double *dlog_decays, size_t places,
                                const AttentionConfig *config) {
    for (int h = 0; h < config->NH; h++) {
        double sum = 0;
        for (int b = 0; b < config->B; b++)
            for (size_t t = 0; t < places; t++) sum += dlog_decays[((size_t)b * config->NH + h) * places + t];
        attention_decay_gradient(dparameters, parameters, h, (real)sum, config);
    }
}

// Where the heads gather what their parameters receive begins at 0.
static void clear_parameter_work(const Core *call, const Work *work, size_t heads) {
    if (call->config->decay == DECAY_LEARNED)
        memset(work->dlog_decays, 0, heads * decay_places(call) * sizeof *work->dlog_decays);
    if (call->map) memset(work->d_packed, 0, heads * call->map->d_packed_size * sizeof *work->d_packed);
}

void quadratic_backward(const QuadraticKernel *kernel, real *dqkv, real *dparameters, const real *dout, const real *qkv,
                        const real *out, const real *saved, const real *parameters, real *base,
                        const AttentionConfig *config) {
    Core call = quadratic_core_of(kernel, config);
    size_t T = config->T, NH = config->NH, heads = config->B * NH, longest = quadratic_longest_span(config);
    Work work = quadratic_work_of(&call, base, quadratic_head_numbers(&call, T), heads, longest);
    clear_parameter_work(&call, &work, heads);
#pragma omp parallel for schedule(dynamic) if (!work.together)
    for (size_t i = 0; i < heads * work.parts; i++) {
        size_t bh = i / work.parts, part = i % work.parts;
        int owner = omp_get_thread_num(), end = quadratic_part_start(&work, bh, part + 1, config);
        Core core = quadratic_core_of_head(&call, work.tables + owner * work.table_numbers, T, parameters, bh % NH);
        Span span = {.first = quadratic_part_start(&work, bh, part, config)};
        if (core.map) core.d_packed = work.d_packed + bh * core.map->d_packed_size;
        while (attention_next_span(&span, end, config))
            backward_span(&core, dqkv, dout, qkv, out, saved, span, bh, &work, owner);
    }
    if (config->decay == DECAY_LEARNED)
        add_decay_gradients(dparameters, parameters, work.dlog_decays, decay_places(&call), config);
    for (size_t bh = 0; call.map && call.map->d_packed_size && bh < heads; bh++)
        call.map->unpack(dparameters, work.d_packed + bh * call.map->d_packed_size, (int)(bh % NH), config);
}
