#include "quadratic_core.h"

#include <string.h>

enum { DEFAULT_TILE = 96, FETCH_AHEAD = 8 };

Core quadratic_core_of(const QuadraticKernel *kernel, const AttentionConfig *config) {
    Core core = {.kernel = kernel, .config = config, .width = round_up(config->HS, PANEL)};
    if (kernel) core.map = kernel->map;
    if (core.map) core.feature_width = round_up(core.map->outer, PANEL);
    core.query_tile = config->chunk > 0 ? config->chunk : DEFAULT_TILE;
    core.key_tile = round_up(core.query_tile, PANEL);
    core.window = config->window > 0 ? (size_t)config->window : UNLIMITED;
    return core;
}

static size_t fade_numbers(const Core *core) {
    return core->config->decay ? 2 * core->key_tile : 0;
}

static size_t table_numbers(const Core *core) {
    return fade_numbers(core) + (core->map ? core->map->packed_size : 0);
}

Core quadratic_core_of_head(const Core *call, real *fades, size_t rows, const real *parameters, size_t head) {
    Core core = *call;
    real *packed = fades + fade_numbers(call);
    if (core.map) core.map->pack(packed, core.kernel->constants, parameters, (int)head, core.config);
    core.packed = packed;
    if (core.config->decay == DECAY_NONE) return core;
    core.log_decay = limited(attention_log_decay(parameters, (int)head, core.config), LARGEST_SLOPE);
    double reach = log(LEAST_FADE) / -fabs(core.log_decay), factor = 1, per_token = exp(core.log_decay);
    if (reach < core.window) core.window = 1 + (size_t)reach;
    core.fades = fades;
    if (is_softmax(&core)) return core;
    size_t farthest = core.key_tile + core.query_tile - 2, known = core.key_tile + min_size(rows, core.query_tile) - 1;
    for (size_t d = 0; d < known; d++, factor *= per_token) fades[farthest - d] = (real)factor;
    return core;
}

// ---- scratch

static int single_rows(const Core *core) {
    return 5 + (core->config->decay != DECAY_NONE);
}

static size_t scratch_numbers(const Core *core) {
    const LinearMap *map = core->map;
    size_t numbers = core->key_tile * (4 * core->query_tile + 4 * core->width + single_rows(core));
    if (!map) return numbers;
    return numbers + core->key_tile * (core->query_tile + 2 * core->feature_width) +
           TILE * ((size_t)core->config->HS + 2 * map->outer + 2 * map->inner + map->tape);
}

static void place_features(const Core *core, Scratch *s, real *base) {
    const LinearMap *map = core->map;
    real **rows[] = {&s->query_features, &s->dkey_features};
    real **columns[] = {&s->x,           &s->mapped.outer,  &s->mapped.inner,
                        &s->mapped.tape, &s->dmapped.outer, &s->dmapped.inner};
    size_t widths[] = {core->config->HS, map->outer, map->inner, map->tape, map->outer, map->inner};
    s->feature_slopes = base, base += core->key_tile * core->query_tile;
    for (int i = 0; i < 2; i++, base += core->key_tile * core->feature_width) *rows[i] = base;
    for (int i = 0; i < 6; base += TILE * widths[i++]) *columns[i] = base;
}

static Scratch scratch_at(const Core *core, real *base) {
    Scratch s = {0};
    real **tiles[] = {&s.dots, &s.distances, &s.slopes, &s.scores};
    real **rows[] = {&s.queries, &s.sums, &s.dkeys, &s.dvalues};
    real **numbers[] = {&s.norms, &s.levels, &s.totals, &s.pulls, &s.key_pulls, &s.decay_slopes};
    for (int i = 0; i < 4; i++, base += core->key_tile * core->query_tile) *tiles[i] = base;
    for (int i = 0; i < 4; i++, base += core->key_tile * core->width) *rows[i] = base;
    for (int i = 0; i < single_rows(core); i++, base += core->key_tile) *numbers[i] = base;
    if (core->map) place_features(core, &s, base);
    if (!core->kernel->scores) s.scores = s.dots;
    return s;
}

Scratch quadratic_scratch_of(const Core *core, const Work *work, int thread) {
    return scratch_at(core, work->tiles + thread * work->tile_numbers);
}

// For head->dlog_decays of all heads, which are doubles.
static size_t decay_gradient_numbers(const Core *core) {
    size_t heads = (size_t)core->config->B * core->config->NH;
    return core->config->decay == DECAY_LEARNED ? heads * decay_places(core) * (sizeof(double) / sizeof(real)) : 0;
}

// For the gradients of what the map has packed, of all heads.
static size_t packed_gradient_numbers(const Core *core) {
    return core->map ? (size_t)core->config->B * core->config->NH * core->map->d_packed_size : 0;
}

size_t quadratic_work_size_of(const QuadraticKernel *kernel, const AttentionConfig *config) {
    Core core = quadratic_core_of(kernel, config);
    size_t per_thread =
        scratch_numbers(&core) + quadratic_head_numbers(&core, config->T) + round_up(table_numbers(&core), 2);
    return omp_get_max_threads() * per_thread + decay_gradient_numbers(&core) + packed_gradient_numbers(&core);
}

size_t quadratic_work_size(const AttentionConfig *config) {
    return quadratic_work_size_of(NULL, config);
}

size_t quadratic_longest_span(const AttentionConfig *config) {
    int longest = config->positions ? 0 : config->T - 1;
    for (int n = 0; config->positions && n < config->B * config->T; n++)
        longest = config->positions[n] > longest ? config->positions[n] : longest;
    return (size_t)longest + 1;
}

Work quadratic_work_of(const Core *core, real *base, size_t head_numbers, size_t heads, size_t rows) {
    size_t threads = omp_get_max_threads(), rounds = (heads + threads - 1) / threads;
    size_t tiles = (rows + core->query_tile - 1) / core->query_tile;
    Work work = {.tiles = base, .tile_numbers = scratch_numbers(core), .head_numbers = head_numbers};
    work.heads = base + threads * work.tile_numbers;
    work.table_numbers = round_up(table_numbers(core), 2);
    work.tables = work.heads + threads * head_numbers;
    work.dlog_decays = (double *)(work.tables + threads * work.table_numbers);
    work.d_packed = (real *)work.dlog_decays + decay_gradient_numbers(core);
    work.together = 4 * rounds * threads > 5 * heads && tiles >= 2 * threads;
    work.parts = core->config->positions && !work.together ? (threads + heads - 1) / heads : 1;
    if (packed_gradient_numbers(core)) work.together = 0, work.parts = 1; // one d_packed for each head
    return work;
}

// ---- rows

// The rows of one head lie so far apart that the hardware does not look ahead: prefetches the row FETCH_AHEAD rows on,
// even past the last one, where that does no harm.
static void fetch_ahead(const real *row, size_t stride, size_t HS) {
    uintptr_t start = (uintptr_t)row + FETCH_AHEAD * stride * sizeof *row;
    for (size_t bytes = 0; bytes < HS * sizeof *row; bytes += 64) __builtin_prefetch((const void *)(start + bytes));
}

void quadratic_pack_row(const Core *core, real *to, const real *from, size_t stride) {
    size_t HS = core->config->HS;
    fetch_ahead(from, stride, HS);
    for (size_t d = 0; d < HS; d++) to[d] = limited_input(from[d]);
    for (size_t d = HS; d < core->width; d++) to[d] = 0;
}

real quadratic_pack_scaled(const Core *core, real *to, real *norm, const real *from, int is_query) {
    quadratic_pack_row(core, to, from, 3 * (size_t)core->config->C);
    real factor = 1, square = core->kernel->scores ? dot(to, to, core->width) : 0;
    if (core->kernel->scaled && is_query) factor = 1 / real_sqrt((real)core->config->HS);
    if (core->kernel->unit_length) {
        factor = 1 / real_max(real_sqrt(square), LEAST_NORM);
        square = 1; // a row too short for unit length has no dot product large enough for distances to matter
    }
    if (factor != 1) {
        for (size_t d = 0; d < core->width; d++) to[d] *= factor;
    }
    *norm = square;
    return factor;
}

LinearRows quadratic_map_tile(const Core *core, Scratch *s, const real *from, size_t n) {
    size_t HS = core->config->HS, stride = 3 * (size_t)core->config->C, lanes = tile_lanes((int)n);
    LinearRows rows = {.count = (int)n};
    for (size_t i = 0; i < lanes; i++)
        for (size_t d = 0; d < HS; d++) s->x[d * TILE + i] = i < n ? limited_input(from[i * stride + d]) : 0;
    core->map->features(&s->mapped, s->x, rows, core->packed, core->config);
    return rows;
}

void quadratic_map_rows(const Core *core, Scratch *s, real *units, real *features, const real *from, size_t n) {
    size_t width = core->width, feature_width = core->feature_width;
    memset(units, 0, n * width * sizeof *units);
    memset(features, 0, n * feature_width * sizeof *features);
    for (size_t t = 0; t < n; t += TILE) {
        int count = quadratic_map_tile(core, s, from + t * 3 * core->config->C, min_size(TILE, n - t)).count;
        tile_transpose(units + t * width, (int)width, s->mapped.inner, TILE, core->map->inner, count, 0);
        tile_transpose(features + t * feature_width, (int)feature_width, s->mapped.outer, TILE, core->map->outer, count,
                       0);
    }
}

// ---- the scores of a tile

// Direct distances of a query to the LANES keys of a panel whose first number is at `panel`.
static void direct_distances(real distance[LANES], const real *query, const real *panel, size_t width) {
    Vector even = {0}, odd = {0};
    for (size_t d = 0; d < width; d += 2) {
        Vector a = query[d] - *(const Vector *)(panel + d * PANEL);
        Vector b = query[d + 1] - *(const Vector *)(panel + (d + 1) * PANEL);
        even += a * a;
        odd += b * b;
    }
    *(Vector *)distance = even + odd;
}

// Squared distances of a query to the first n keys of a tile, without cancellation.
static void distances_of_row(const Core *core, real *distance, const real *dots, int n, const real *query, real norm,
                             const real *panels, const real *key_norms) {
    int near = 0;
#pragma omp simd reduction(| : near)
    for (int j = 0; j < n; j++) {
        distance[j] = norm + key_norms[j] - 2 * dots[j];
        near |= distance[j] < NEAR * (norm + key_norms[j]);
    }
    for (int j = 0; near && j < n; j += LANES) {
        int lanes = n - j < LANES ? n - j : LANES, near_here = 0;
        for (int l = 0; l < lanes; l++) near_here |= distance[j + l] < NEAR * (norm + key_norms[j + l]);
        if (!near_here) continue;
        real direct[LANES];
        direct_distances(direct, query, panels + j / PANEL * PANEL * core->width + j % PANEL, core->width);
        for (int l = 0; l < lanes; l++) {
            if (distance[j + l] < NEAR * (norm + key_norms[j + l])) distance[j + l] = direct[l];
        }
    }
}

void quadratic_score_tile(const Core *core, Scratch *s, const Tile *tile, Side queries, Side keys) {
    tile_scores(s->dots, queries.rows, keys.rows, tile);
    if (core->map) {
        Tile wide = feature_tile(core, tile);
        tile_scores(s->distances, queries.features, keys.features, &wide);
    }
    for (int i = 0; core->kernel->scores && i < tile->queries; i++) {
        int from = tile_hidden(tile, i) / PANEL * PANEL, n = tile_visible(tile, i) - from;
        size_t at = i * tile->stride + from;
        if (!core->map)
            distances_of_row(core, s->distances + at, s->dots + at, n, queries.rows + i * core->width, queries.norms[i],
                             keys.rows + from * core->width, keys.norms + from);
        core->kernel->scores(s->scores + at, s->dots + at, s->distances + at, n, core->config);
    }
    s->shared_fade = core->fades ? real_exp(shared_distance(core, tile) * core->log_decay) : 1;
}
