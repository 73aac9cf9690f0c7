#include "quadratic.h"
#include "quadratic_tile.h"
#include "core/base/numbers.h"
#include "exponential.h"

#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void) {
    return 0;
}
static int omp_get_max_threads(void) {
    return 1;
}
#endif

enum { DEFAULT_TILE = 96, FETCH_AHEAD = 8 };
#define UNLIMITED ((size_t)PTRDIFF_MAX / 2) // a window that hides nothing

// ---- how a head is laid out in memory

typedef struct { // what every function here needs to know
    const QuadraticKernel *kernel;
    const AttentionConfig *config;
    const LinearMap *map;        // of rows that have two parts, else NULL
    size_t width, feature_width; // numbers per row: HS in whole panels; features in whole panels, 0 without
    size_t query_tile, key_tile; // rows per tile; key_tile in whole panels, at least query_tile
    // What differs from head to head:
    const real *packed; // the map's constants
    real *d_packed;     // and their gradient
    size_t window;     // keys that a query sees, its own included
    real log_decay;    // what a token of distance adds to the logarithm of a weight
    const real *fades; // of kernels: the factors of distances up to two tiles, the farthest first
} Core;

static Core core_of(const QuadraticKernel *kernel, const AttentionConfig *config) {
    Core core = {.kernel = kernel, .config = config, .width = round_up(config->HS, PANEL)};
    if (kernel) core.map = kernel->map;
    if (core.map) core.feature_width = round_up(core.map->outer, PANEL);
    core.query_tile = config->chunk > 0 ? config->chunk : DEFAULT_TILE;
    core.key_tile = round_up(core.query_tile, PANEL);
    core.window = config->window > 0 ? (size_t)config->window : UNLIMITED;
    return core;
}

static int is_softmax(const Core *core) {
    return core->kernel->normalizer == NORMALIZER_SOFTMAX;
}

static size_t fade_numbers(const Core *core) {
    return core->config->decay ? 2 * core->key_tile : 0;
}

static size_t table_numbers(const Core *core) {
    return fade_numbers(core) + (core->map ? core->map->packed_size : 0);
}

// The core of one head. `fades` has room for table_numbers; `rows` is how many queries there will be.
static Core core_of_head(const Core *call, real *fades, size_t rows, const real *parameters, size_t head) {
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

typedef struct {          // what queries need of one head's keys and values; a decoding cache holds one per head
    size_t rows;          // positions beyond take the places of the first ones
    real *key_panels;     // (rows / PANEL, width, PANEL)
    real *values;         // (rows, width)
    real *feature_panels; // (rows / PANEL, feature_width, PANEL)
    real *key_norms;      // (rows) squared
} Memory;

static size_t memory_numbers(const Core *core, size_t rows) {
    return round_up(rows, PANEL) * (2 * core->width + core->feature_width + 1);
}

static Memory memory_at(const Core *core, real *base, size_t rows) {
    size_t whole = round_up(rows, PANEL), n = whole * core->width;
    return (Memory){.rows = rows,
                    .key_panels = base,
                    .values = base + n,
                    .feature_panels = base + 2 * n,
                    .key_norms = base + 2 * n + whole * core->feature_width};
}

// A window needs its own keys and those that come in one call, in whole tiles.
static size_t cache_rows(const Core *core) {
    const AttentionConfig *config = core->config;
    if (config->window == 0) return config->max_T;
    return round_up((size_t)config->window + config->T, core->key_tile);
}

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

static size_t head_numbers(const Core *core, size_t rows) {
    return round_up(rows, PANEL) * (6 * core->width + 4 * core->feature_width + 6);
}

static Head head_at(const Core *core, real *base, size_t rows, const real *saved) {
    Head head = {.levels = saved, .inverses = saved + rows};
    real **wide[] = {&head.queries, &head.keys, &head.douts, &head.dqueries, &head.key_panels, &head.value_panels};
    real **narrow[] = {&head.query_norms, &head.key_norms,   &head.query_factors,
                       &head.key_factors, &head.output_dots, &head.query_pulls};
    real **features[] = {&head.query_features, &head.key_features, &head.dquery_features, &head.feature_panels};
    rows = round_up(rows, PANEL);
    for (int i = 0; i < 6; i++, base += rows * core->width) *wide[i] = base;
    for (int i = 0; i < 4; i++, base += rows * core->feature_width) *features[i] = base;
    for (int i = 0; i < 6; i++, base += rows) *narrow[i] = base;
    return head;
}

typedef struct {                              // what one thread needs for one tile
    real *dots, *distances, *scores, *slopes; // (query_tile, key_tile); scores become weights in place
    real *queries, *sums;                     // (query_tile, width)
    real *dkeys, *dvalues;                    // (key_tile, width)
    real *norms, *levels, *totals;            // (query_tile)
    real *pulls, *key_pulls;                  // (key_tile)
    real *feature_slopes;                     // (query_tile, key_tile)
    real *query_features, *dkey_features;     // (query_tile, feature_width), (key_tile, feature_width)
    real *x;                                  // (HS, TILE) rows as the map takes them, or their gradients
    LinearFeatures mapped, dmapped;           // of those
    real shared_fade;                         // of the tile at hand
    real *decay_slopes;                       // (key_tile) with decay: what reaches log_decay, by key
    double dlog_decay;                        // the same from a whole tile of keys
} Scratch;

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

size_t quadratic_saved_size(const AttentionConfig *config) {
    return 2 * (size_t)config->B * config->NH * config->T; // per head: the levels of its rows, the inverses of its rows
}

static size_t key_tiles(const Core *core) {
    return (core->config->T + core->key_tile - 1) / core->key_tile;
}

// For head->dlog_decays of all heads, which are doubles.
static size_t decay_gradient_numbers(const Core *core) {
    size_t heads = (size_t)core->config->B * core->config->NH;
    return core->config->decay == DECAY_LEARNED ? heads * key_tiles(core) * (sizeof(double) / sizeof(real)) : 0;
}

// For the gradients of what the map has packed, of all heads.
static size_t packed_gradient_numbers(const Core *core) {
    return core->map ? (size_t)core->config->B * core->config->NH * core->map->d_packed_size : 0;
}

size_t quadratic_work_size_of(const QuadraticKernel *kernel, const AttentionConfig *config) {
    Core core = core_of(kernel, config);
    size_t per_thread = scratch_numbers(&core) + head_numbers(&core, config->T) + round_up(table_numbers(&core), 2);
    return omp_get_max_threads() * per_thread + decay_gradient_numbers(&core) + packed_gradient_numbers(&core);
}

size_t quadratic_work_size(const AttentionConfig *config) {
    return quadratic_work_size_of(NULL, config);
}

size_t quadratic_cache_size_of(const QuadraticKernel *kernel, const AttentionConfig *config) {
    Core core = core_of(kernel, config);
    return config->NH * memory_numbers(&core, cache_rows(&core));
}

size_t quadratic_cache_size(const AttentionConfig *config) {
    return quadratic_cache_size_of(NULL, config);
}

double quadratic_flops(const AttentionConfig *config) {
    return 2 * (2.0 * config->HS) * quadratic_keys_per_query(config) * config->NH;
}

double quadratic_keys_per_query(const AttentionConfig *config) {
    double T = config->T, window = config->window > 0 && config->window < T ? config->window : T;
    return window * (T - (window - 1) / 2) / T;
}

// ---- rows in and out

static real dot(const real *a, const real *b, size_t n) {
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

// The rows of one head lie so far apart that the hardware does not look ahead: asks for the row FETCH_AHEAD rows on,
// even after the last one, where asking does no harm.
static void fetch_ahead(const real *row, size_t stride, size_t HS) {
    uintptr_t start = (uintptr_t)row + FETCH_AHEAD * stride * sizeof *row;
    for (size_t bytes = 0; bytes < HS * sizeof *row; bytes += 64) __builtin_prefetch((const void *)(start + bytes));
}

// Copies a row, brought into range; zeros up to the width.
static void pack_row(const Core *core, real *to, const real *from, size_t stride) {
    size_t HS = core->config->HS;
    fetch_ahead(from, stride, HS);
    for (size_t d = 0; d < HS; d++) to[d] = limited_input(from[d]);
    for (size_t d = HS; d < core->width; d++) to[d] = 0;
}

// Packs a row of q (is_query) or k and brings it to the length that the kernel wants. Returns what it was multiplied
// by; the squared norm that distances are formed with goes to *norm.
static real pack_scaled(const Core *core, real *to, real *norm, const real *from, int is_query) {
    pack_row(core, to, from, 3 * (size_t)core->config->C);
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

// The gradient of a row of q or k as it came in, from `gradient`, that of the row as it was packed. Where the norm was
// too small to divide by, the gradient is 0.
static void unpack_gradient(const Core *core, real *to, real *gradient, const real *row, real pull, real factor) {
    for (size_t d = 0; d < core->width; d++) gradient[d] -= pull * row[d];
    if (core->kernel->unit_length) {
        real along = dot(row, gradient, core->width);
        for (size_t d = 0; d < core->width; d++) gradient[d] -= along * row[d];
        if (factor >= 1 / LEAST_NORM) factor = 0;
    }
    for (int d = 0; d < core->config->HS; d++) to[d] = factor * gradient[d];
}

// Writes a row into panels as row number `position`.
static void put_in_panel(real *panels, size_t position, const real *row, size_t width) {
    real *column = panels + position / PANEL * PANEL * width + position % PANEL;
    for (size_t d = 0; d < width; d++) column[d * PANEL] = row[d];
}

// Up to TILE rows of q or k, at `from`, and what the map makes of them: s->x, s->mapped
static LinearRows map_tile(const Core *core, Scratch *s, const real *from, size_t n) {
    size_t HS = core->config->HS, stride = 3 * (size_t)core->config->C, lanes = tile_lanes((int)n);
    LinearRows rows = {.count = (int)n};
    for (size_t i = 0; i < lanes; i++)
        for (size_t d = 0; d < HS; d++) s->x[d * TILE + i] = i < n ? limited_input(from[i * stride + d]) : 0;
    core->map->features(&s->mapped, s->x, rows, core->packed, core->config);
    return rows;
}

// Both parts of n rows of q or k: units (n, width), features (n, feature_width)
static void map_rows(const Core *core, Scratch *s, real *units, real *features, const real *from, size_t n) {
    size_t width = core->width, feature_width = core->feature_width;
    memset(units, 0, n * width * sizeof *units);
    memset(features, 0, n * feature_width * sizeof *features);
    for (size_t t = 0; t < n; t += TILE) {
        int count = map_tile(core, s, from + t * 3 * core->config->C, min_size(TILE, n - t)).count;
        tile_transpose(units + t * width, (int)width, s->mapped.inner, TILE, core->map->inner, count, 0);
        tile_transpose(features + t * feature_width, (int)feature_width, s->mapped.outer, TILE, core->map->outer, count,
                       0);
    }
}

// The gradients of n rows of q or k, which are at `from`, from those of their two parts.
static void unmap_gradients(const Core *core, Scratch *s, real *to, const real *units, const real *features,
                            const real *from, size_t n) {
    size_t width = core->width, feature_width = core->feature_width, stride = 3 * (size_t)core->config->C;
    for (size_t t = 0; t < n; t += TILE) {
        LinearRows rows = map_tile(core, s, from + t * stride, min_size(TILE, n - t));
        tile_transpose(s->dmapped.inner, TILE, units + t * width, (int)width, rows.count, core->map->inner, 0);
        tile_transpose(s->dmapped.outer, TILE, features + t * feature_width, (int)feature_width, rows.count,
                       core->map->outer, 0);
        core->map->gradient(s->x, core->d_packed, &s->dmapped, &s->mapped, rows, core->packed, core->config);
        tile_transpose(to + t * stride, (int)stride, s->x, TILE, core->config->HS, rows.count, 0);
    }
}

// Fills in the memory's rows `first` to `last` (not included) from k and v; their row number `first` is at k and v.
static void pack_memory(const Core *core, Memory *memory, size_t first, size_t last, const real *k, const real *v,
                        size_t stride, Scratch *s) {
    real *row = s->queries;
    if (core->map) map_rows(core, s, s->queries, s->query_features, k, last - first);
    for (size_t t = first; t < last; t++, k += stride, v += stride) {
        size_t place = t % memory->rows;
        if (core->map) {
            row = s->queries + (t - first) * core->width;
            put_in_panel(memory->feature_panels, place, s->query_features + (t - first) * core->feature_width,
                         core->feature_width);
        } else
            pack_scaled(core, row, &memory->key_norms[place], k, 0);
        put_in_panel(memory->key_panels, place, row, core->width);
        pack_row(core, memory->values + place * core->width, v, stride);
    }
}

// ---- the scores of a tile

static Tile tile_of(const Core *core, size_t first_query, size_t queries, size_t first_key, size_t keys) {
    return (Tile){.queries = (int)queries,
                  .keys = (int)keys,
                  .lead = (ptrdiff_t)first_query - (ptrdiff_t)first_key,
                  .window = (ptrdiff_t)core->window,
                  .width = core->width,
                  .stride = core->key_tile};
}

// The first key that the query at this position may see, at the beginning of its tile.
static size_t first_key_tile(const Core *core, size_t query) {
    return query < core->window ? 0 : (query + 1 - core->window) / core->key_tile * core->key_tile;
}

typedef struct {         // how the scores of one row fade
    int distance;        // from the query to the first key
    real log_decay;      // softmax: times distance, this is added
    const real *factors; // kernels: what each score is multiplied by ...
    real shared;         // ... beyond a factor that the whole tile shares
} Fade;

// The part of a tile's distances that all its pairs share, where they are beyond the table of factors.
static ptrdiff_t shared_distance(const Core *core, const Tile *tile) {
    ptrdiff_t beyond = tile->lead - (ptrdiff_t)(core->key_tile - 1);
    return beyond > 0 ? beyond : 0;
}

// Of query i of a tile with the keys from number `key` on.
static Fade fade_of_row(const Core *core, const Scratch *s, const Tile *tile, int i, int key) {
    ptrdiff_t distance = tile->lead + i - key, farthest = (ptrdiff_t)(core->key_tile + core->query_tile) - 2;
    return (Fade){.distance = (int)distance,
                  .log_decay = core->log_decay,
                  .factors = core->fades + (farthest - (distance - shared_distance(core, tile))),
                  .shared = s->shared_fade};
}

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

typedef struct { // the rows of a tile's queries or the panels of its keys
    const real *rows, *norms, *features;
} Side;

static Tile feature_tile(const Core *core, const Tile *tile) {
    Tile wide = *tile;
    wide.width = core->feature_width;
    return wide;
}

// Fills in s->scores, not faded yet, and s->dots and s->distances where the score is more than the dot product; with a
// map the latter are the dot products of the features.
static void score_tile(const Core *core, Scratch *s, const Tile *tile, Side queries, Side keys) {
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

// Sets a row's weights of keys that it does not see to 0.
static void hide_keys(real *row, const Tile *tile, int i) {
    for (int j = tile_hidden(tile, i) - 1; j >= 0; j--) row[j] = 0;
    for (int j = tile_visible(tile, i); j < tile->keys; j++) row[j] = 0;
}

// ---- forward

// Returns the highest of n scores and of `highest`.
static real highest_score(const real *scores, int n, real highest) {
#pragma omp simd reduction(max : highest)
    for (int j = 0; j < n; j++) highest = scores[j] > highest ? scores[j] : highest;
    return highest;
}

// The same after fading them.
static real fade_scores(int normalizer, real *scores, int n, real highest, Fade fade) {
    if (normalizer == NORMALIZER_SOFTMAX) {
#pragma omp simd reduction(max : highest)
        for (int j = 0; j < n; j++) {
            real score = scores[j] += (real)(fade.distance - j) * fade.log_decay;
            highest = score > highest ? score : highest;
        }
    } else {
#pragma omp simd reduction(max : highest)
        for (int j = 0; j < n; j++) {
            real score = scores[j] *= fade.factors[j] * fade.shared;
            highest = score > highest ? score : highest;
        }
    }
    return highest;
}

// Turns the n scores of a row into weights relative to the row's level, which is the largest score so far (softmax), or
// 1 while no score is huge (kernel), and adds them to *total. `highest` is the highest of the scores and the level.
// Returns the factor that earlier weights have to be multiplied by because the level has risen.
static real fold_row(int normalizer, real *scores, int n, real highest, real *level, real *total) {
    real factor = 1, sum = 0;
    if (normalizer == NORMALIZER_SOFTMAX) {
        factor = exponential(*level - highest);
        *level = highest;
#pragma omp simd reduction(+ : sum)
        for (int j = 0; j < n; j++) sum += scores[j] = exponential(scores[j] - highest);
    } else {
        if (highest > LARGEST_WEIGHT * *level) {
            factor = *level / highest;
            *level = highest;
        }
        real to_level = 1 / *level;
#pragma omp simd reduction(+ : sum)
        for (int j = 0; j < n; j++) sum += scores[j] *= to_level;
    }
    *total = *total * factor + sum;
    return factor;
}

// Weighs the tile's scores and rescales the rows of s->sums whose level has risen.
static void weigh_tile(const Core *core, Scratch *s, const Tile *tile) {
    int normalizer = core->kernel->normalizer;
    for (int i = 0; i < tile->queries; i++) {
        real *scores = s->scores + i * tile->stride, *sums = s->sums + i * core->width;
        int from = tile_hidden(tile, i), n = tile_visible(tile, i) - from;
        real factor = 1, highest = s->levels[i];
        if (core->fades)
            highest = fade_scores(normalizer, scores + from, n, highest, fade_of_row(core, s, tile, i, from));
        else
            highest = highest_score(scores + from, n, highest);
        if (n) factor = fold_row(normalizer, scores + from, n, highest, &s->levels[i], &s->totals[i]);
        if (factor != 1) {
            for (size_t d = 0; d < core->width; d++) sums[d] *= factor;
        }
        hide_keys(scores, tile, i);
    }
}

// Divides a finished row and writes it out. Returns what backward multiplies the row's weights by; a kernel's weights
// are relative to its level here and absolute there.
static real finish_row(const Core *core, real *out, const real *sums, real level, real total) {
    real floor = core->config->delta / level, sum = total + floor;
    if (core->config->denominator == DENOMINATOR_CLAMP) sum = total < floor ? floor : total; // NaN stays NaN
    real inverse = 1 / (is_softmax(core) ? total : sum);
    for (int d = 0; d < core->config->HS; d++) out[d] = sums[d] * inverse;
    return is_softmax(core) ? inverse : inverse / level;
}

// Queries number first .. first + n - 1 of a head against its memory; q and out are at the first of them. What backward
// wants to know of them stays in s->levels and s->totals.
static void attend(const Core *core, real *out, const real *q, size_t first, size_t n, const Memory *memory,
                   Scratch *s) {
    size_t C = core->config->C;
    if (core->map) map_rows(core, s, s->queries, s->query_features, q, n);
    for (size_t i = 0; i < n; i++) {
        if (!core->map) pack_scaled(core, s->queries + i * core->width, &s->norms[i], q + i * 3 * C, 1);
        s->levels[i] = is_softmax(core) ? -(real)INFINITY : 1;
        s->totals[i] = 0;
    }
    memset(s->sums, 0, n * core->width * sizeof *s->sums);
    for (size_t key = first_key_tile(core, first); key < first + n; key += core->key_tile) {
        Tile tile = tile_of(core, first, n, key, min_size(core->key_tile, first + n - key));
        size_t place = key % memory->rows;
        score_tile(core, s, &tile, (Side){s->queries, s->norms, s->query_features},
                   (Side){memory->key_panels + place * core->width, memory->key_norms + place,
                          memory->feature_panels + place * core->feature_width});
        weigh_tile(core, s, &tile);
        tile_gather(s->sums, s->scores, memory->values + place * core->width, &tile);
    }
    for (size_t i = 0; i < n; i++) {
        s->totals[i] = finish_row(core, out + i * C, s->sums + i * core->width, s->levels[i], s->totals[i]);
    }
}

// ---- threads

typedef struct { // the scratch of all threads: a tile's for each, a head's for each, a head's tables for each
    real *tiles, *heads, *tables;
    size_t tile_numbers, head_numbers, table_numbers;
    double *dlog_decays; // (B, NH, tiles of keys)
    real *d_packed;      // (B, NH, the map's d_packed_size)
    // Threads take whole heads, or else work together on one head after the other. Together they share the load better
    // when heads are few; but that takes tiles enough, and backward forms its scores twice.
    int together;
} Work;

static Work work_of(const Core *core, real *base, size_t head_numbers, size_t heads, size_t rows) {
    size_t threads = omp_get_max_threads(), rounds = (heads + threads - 1) / threads;
    size_t tiles = (rows + core->query_tile - 1) / core->query_tile;
    Work work = {.tiles = base, .tile_numbers = scratch_numbers(core), .head_numbers = head_numbers};
    work.heads = base + threads * work.tile_numbers;
    work.table_numbers = round_up(table_numbers(core), 2);
    work.tables = work.heads + threads * head_numbers;
    work.dlog_decays = (double *)(work.tables + threads * work.table_numbers);
    work.d_packed = (real *)work.dlog_decays + decay_gradient_numbers(core);
    work.together = 4 * rounds * threads > 5 * heads && tiles >= 2 * threads;
    if (packed_gradient_numbers(core)) work.together = 0; // one d_packed for each head
    return work;
}

static Scratch scratch_of(const Core *core, const Work *work, int thread) {
    return scratch_at(core, work->tiles + thread * work->tile_numbers);
}

typedef struct { // one head's rows first .. first + n - 1, which join its memory and then look at it
    real *out, *saved;
    const real *q; // of the first row, in qkv
    size_t first, n;
    Memory *memory;
} HeadRows;

static void remember_tile(const Core *core, const HeadRows *rows, size_t t, Scratch s) {
    size_t C = core->config->C, tile = core->query_tile;
    const real *k = rows->q + t * tile * 3 * C + C;
    pack_memory(core, rows->memory, rows->first + t * tile, rows->first + min_size(rows->n, (t + 1) * tile), k, k + C,
                3 * C, &s);
}

static void attend_tile(const Core *core, const HeadRows *rows, size_t t, Scratch s) {
    size_t C = core->config->C, row = t * core->query_tile, count = min_size(core->query_tile, rows->n - row);
    attend(core, rows->out + row * C, rows->q + row * 3 * C, rows->first + row, count, rows->memory, &s);
    if (rows->saved) {
        memcpy(rows->saved + row, s.levels, count * sizeof *rows->saved);
        memcpy(rows->saved + rows->n + row, s.totals, count * sizeof *rows->saved);
    }
}

// `owner` is the thread that has the head, if they do not work together. A loop of one thread is written as such: a
// parallel region of one thread inside another allocates memory and calls the system, which takes longer than a head
// when a single row is decoded.
static void attend_head(const Core *core, const HeadRows *rows, const Work *work, int owner) {
    size_t tiles = (rows->n + core->query_tile - 1) / core->query_tile;
    if (!work->together) {
        Scratch s = scratch_of(core, work, owner);
        for (size_t t = 0; t < tiles; t++) remember_tile(core, rows, t, s);
        for (size_t t = 0; t < tiles; t++) attend_tile(core, rows, t, s);
        return;
    }
#pragma omp parallel for
    for (size_t t = 0; t < tiles; t++) remember_tile(core, rows, t, scratch_of(core, work, omp_get_thread_num()));
        // The last tile looks at most keys; started first, it does not keep the others waiting at the end.
#pragma omp parallel for schedule(dynamic)
    for (size_t r = 0; r < tiles; r++)
        attend_tile(core, rows, tiles - 1 - r, scratch_of(core, work, omp_get_thread_num()));
}

void quadratic_forward(const QuadraticKernel *kernel, real *out, real *saved, const real *qkv, const real *parameters,
                       real *base, const AttentionConfig *config) {
    Core call = core_of(kernel, config);
    size_t T = config->T, C = config->C, NH = config->NH, HS = config->HS, heads = config->B * NH;
    Work work = work_of(&call, base, memory_numbers(&call, T), heads, T);
#pragma omp parallel for schedule(dynamic) if (!work.together)
    for (size_t bh = 0; bh < heads; bh++) {
        size_t b = bh / NH, h = bh % NH;
        int owner = omp_get_thread_num();
        Core core = core_of_head(&call, work.tables + owner * work.table_numbers, T, parameters, h);
        Memory memory = memory_at(&core, work.heads + owner * work.head_numbers, T);
        HeadRows rows = {.out = out + b * T * C + h * HS,
                         .saved = saved ? saved + bh * 2 * T : NULL,
                         .q = qkv + b * T * 3 * C + h * HS,
                         .n = T,
                         .memory = &memory};
        attend_head(&core, &rows, &work, owner);
    }
}

void quadratic_step(const QuadraticKernel *kernel, real *out, real *cache, int pos, int n, const real *qkv,
                    const real *parameters, real *base, const AttentionConfig *config) {
    Core call = core_of(kernel, config);
    size_t heads = config->NH, HS = config->HS, rows_kept = cache_rows(&call);
    Work work = work_of(&call, base, 0, heads, n);
#pragma omp parallel for schedule(dynamic) if (!work.together)
    for (size_t h = 0; h < heads; h++) {
        int owner = omp_get_thread_num();
        Core core = core_of_head(&call, work.tables + owner * work.table_numbers, n, parameters, h);
        Memory memory = memory_at(&core, cache + h * memory_numbers(&core, rows_kept), rows_kept);
        HeadRows rows = {.out = out + h * HS, .q = qkv + h * HS, .first = pos, .n = n, .memory = &memory};
        attend_head(&core, &rows, &work, owner);
    }
}

// ---- backward

// <dout,out> of up to PANEL rows, as the diagonal of a tile of scores. The sums run as those of <dout,v> do, so that
// where a query sees one key only, and out = v, the gradient of its score is their difference 0, and not a rounding
// error for a steep kernel to magnify.
static void dot_outputs(const Core *core, Head *head, size_t first, size_t n, const real *out, Scratch *s) {
    size_t C = core->config->C;
    for (size_t i = 0; i < n; i++) {
        pack_row(core, s->queries, out + (first + i) * C, C);
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
    map_rows(core, s, head->queries + first * width, head->query_features + first * feature_width, from, n);
    map_rows(core, s, head->keys + first * width, head->key_features + first * feature_width, from + C, n);
    memset(head->dquery_features + first * feature_width, 0, n * feature_width * sizeof *head->dquery_features);
}

// Packs rows first .. last - 1 of a head: q is at row 0 of the head in qkv, out and dout at row 0 of the head in those.
static void pack_head(const Core *core, Head *head, size_t first, size_t last, const real *q, const real *out,
                      const real *dout, Scratch *s) {
    size_t C = core->config->C, width = core->width, feature_width = core->feature_width;
    if (core->map) map_head(core, head, first, last, q, s);
    for (size_t t = first; t < last; t++) {
        const real *k = q + t * 3 * C + C, *v = k + C;
        real *key = head->keys + t * width;
        if (!core->map) {
            head->query_factors[t] = pack_scaled(core, head->queries + t * width, &head->query_norms[t], k - C, 1);
            head->key_factors[t] = pack_scaled(core, key, &head->key_norms[t], k, 0);
        } else
            put_in_panel(head->feature_panels, t, head->key_features + t * feature_width, feature_width);
        put_in_panel(head->key_panels, t, key, width);
        pack_row(core, s->queries, v, 3 * C);
        put_in_panel(head->value_panels, t, s->queries, width);
        pack_row(core, head->douts + t * width, dout + t * C, C);
        head->query_pulls[t] = 0;
    }
    memset(head->dqueries + first * width, 0, (last - first) * width * sizeof *head->dqueries);
    for (size_t t = first; t < last; t += PANEL) dot_outputs(core, head, t, min_size(PANEL, last - t), out, s);
    if (core->config->denominator != DENOMINATOR_CLAMP) return;
    for (size_t t = first; t < last; t++) // the floor of a row's sum does not move with its scores
        if (head->inverses[t] >= 1 / (real)core->config->delta) head->output_dots[t] = 0;
}

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

// A pair's pull acts along k - q. Summed as pull k and pull q apart, near pairs would cancel; those get the difference
// itself. `i` is the query's row in the tile, which sees the n keys from number `from` on.
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
    score_tile(core, s, tile,
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

// What the features' dot products give to the features of both sides.
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
    size_t T = core->config->T, queries = min_size(core->query_tile, T - query);
    size_t keys = min_size(core->key_tile, query + queries - key); // no query of the tile sees more
    return (Pair){.query = query,
                  .key = key,
                  .tile = tile_of(core, query, queries, key, keys),
                  .wants_queries = wants_queries,
                  .wants_keys = wants_keys};
}

// The gradients of one tile of keys and values from all queries that see them; on the way, when wanted, the queries'.
static void backward_keys(const Core *core, Head *head, Scratch *s, size_t key, int wants_queries, real *dq) {
    size_t T = core->config->T, C = core->config->C, width = core->width, keys = min_size(core->key_tile, T - key);
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
    size_t last = min_size(core->config->T, query + core->query_tile);
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

// One head; q and dq are at its first row in qkv and dqkv, out and dout at its first row in those. `owner` is the
// thread that has the head: number 0 when all work on it together, and otherwise the loops here run on one thread,
// which OpenMP numbers 0.
static void backward_head(const Core *core, real *dq, const real *dout, const real *q, const real *out, Head *head,
                          const Work *work, int owner) {
    size_t T = core->config->T, tile = core->query_tile;
#pragma omp parallel for if (work->together)
    for (size_t t = 0; t < T; t += tile) {
        Scratch s = scratch_of(core, work, owner + omp_get_thread_num());
        pack_head(core, head, t, min_size(T, t + tile), q, out, dout, &s);
    }
    if (work->together) {
#pragma omp parallel for schedule(dynamic)
        for (size_t r = 0; r < (T + tile - 1) / tile; r++) {
            Scratch s = scratch_of(core, work, owner + omp_get_thread_num());
            backward_queries(core, head, &s, ((T - 1) / tile - r) * tile); // the last sees most keys and starts first
        }
    }
#pragma omp parallel for schedule(dynamic) if (work->together)
    for (size_t key = 0; key < T; key += core->key_tile) {
        Scratch s = scratch_of(core, work, owner + omp_get_thread_num());
        backward_keys(core, head, &s, key, !work->together, dq);
    }
    unpack_queries(core, head, 0, T, dq, scratch_of(core, work, owner));
}

// Sums what the batch and the tiles of keys have for each head, in one order. dlog_decays: (B, NH, tiles)
static void add_decay_gradients(real *dparameters, const real *parameters, const double *dlog_decays, size_t tiles,
                                const AttentionConfig *config) {
    for (int h = 0; h < config->NH; h++) {
        double sum = 0;
        for (int b = 0; b < config->B; b++)
            for (size_t t = 0; t < tiles; t++) sum += dlog_decays[((size_t)b * config->NH + h) * tiles + t];
        attention_decay_gradient(dparameters, parameters, h, (real)sum, config);
    }
}

void quadratic_backward(const QuadraticKernel *kernel, real *dqkv, real *dparameters, const real *dout, const real *qkv,
                        const real *out, const real *saved, const real *parameters, real *base,
                        const AttentionConfig *config) {
    Core call = core_of(kernel, config);
    size_t T = config->T, C = config->C, NH = config->NH, heads = config->B * NH, tiles = key_tiles(&call);
    Work work = work_of(&call, base, head_numbers(&call, T), heads, T);
#pragma omp parallel for schedule(dynamic) if (!work.together)
    for (size_t bh = 0; bh < heads; bh++) {
        size_t row = bh / NH * T, column = bh % NH * config->HS;
        int owner = omp_get_thread_num();
        Core core = core_of_head(&call, work.tables + owner * work.table_numbers, T, parameters, bh % NH);
        Head head = head_at(&core, work.heads + owner * work.head_numbers, T, saved + bh * 2 * T);
        if (config->decay == DECAY_LEARNED) head.dlog_decays = work.dlog_decays + bh * tiles;
        if (core.map) {
            head.q = qkv + row * 3 * C + column;
            core.d_packed = work.d_packed + bh * core.map->d_packed_size;
            memset(core.d_packed, 0, core.map->d_packed_size * sizeof *core.d_packed);
        }
        backward_head(&core, dqkv + row * 3 * C + column, dout + row * C + column, qkv + row * 3 * C + column,
                      out + row * C + column, &head, &work, owner);
    }
    if (config->decay == DECAY_LEARNED) add_decay_gradients(dparameters, parameters, work.dlog_decays, tiles, config);
    for (size_t bh = 0; packed_gradient_numbers(&call) && bh < heads; bh++)
        call.map->unpack(dparameters, work.d_packed + bh * call.map->d_packed_size, (int)(bh % NH), config);
}
