#include "quadratic_core.h"
#include "core/base/vector_math.h"

#include <string.h>

// ---- sizes

size_t quadratic_saved_size(const AttentionConfig *config) {
    return 2 * (size_t)config->B * config->NH * config->T; // per head: the levels of its rows, the inverses of its rows
}

double quadratic_flops(const AttentionConfig *config) {
    return 2 * (2.0 * config->HS) * quadratic_keys_per_query(config) * config->NH;
}

double quadratic_keys_per_query(const AttentionConfig *config) {
    double T = config->T, window = config->window > 0 && config->window < T ? config->window : T;
    return window * (T - (window - 1) / 2) / T;
}

// ---- a head's keys and values

typedef struct {          // what queries need of one head's keys and values; a decoding cache holds one per head
    size_t rows;          // later positions take the places of the first ones
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

// A window needs room for its own keys and for those of one call, in whole tiles.
static size_t cache_rows(const Core *core) {
    const AttentionConfig *config = core->config;
    if (config->window == 0) return config->max_T;
    return round_up((size_t)config->window + config->T, core->key_tile);
}

size_t quadratic_cache_size_of(const QuadraticKernel *kernel, const AttentionConfig *config) {
    Core core = quadratic_core_of(kernel, config);
    return config->NH * memory_numbers(&core, cache_rows(&core));
}

size_t quadratic_cache_size(const AttentionConfig *config) {
    return quadratic_cache_size_of(NULL, config);
}

// Fills in the memory's rows first .. last - 1; k and v point to row `first`.
static void pack_memory(const Core *core, Memory *memory, size_t first, size_t last, const real *k, const real *v,
                        size_t stride, Scratch *s) {
    real *row = s->queries;
    if (core->map) quadratic_map_rows(core, s, s->queries, s->query_features, k, last - first);
    for (size_t t = first; t < last; t++, k += stride, v += stride) {
        size_t place = t % memory->rows;
        if (core->map) {
            row = s->queries + (t - first) * core->width;
            put_in_panel(memory->feature_panels, place, s->query_features + (t - first) * core->feature_width,
                         core->feature_width);
        } else
            quadratic_pack_scaled(core, row, &memory->key_norms[place], k, 0);
        put_in_panel(memory->key_panels, place, row, core->width);
        quadratic_pack_row(core, memory->values + place * core->width, v, stride);
    }
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

// Queries first .. first + n - 1 of a head against its memory; q and out point to the first of them. What backward
// needs to know about them stays in s->levels and s->totals.
static void attend(const Core *core, real *out, const real *q, size_t first, size_t n, const Memory *memory,
                   Scratch *s) {
    size_t C = core->config->C;
    if (core->map) quadratic_map_rows(core, s, s->queries, s->query_features, q, n);
    for (size_t i = 0; i < n; i++) {
        if (!core->map) quadratic_pack_scaled(core, s->queries + i * core->width, &s->norms[i], q + i * 3 * C, 1);
        s->levels[i] = is_softmax(core) ? -(real)INFINITY : 1;
        s->totals[i] = 0;
    }
    memset(s->sums, 0, n * core->width * sizeof *s->sums);
    for (size_t key = first_key_tile(core, first); key < first + n; key += core->key_tile) {
        Tile tile = tile_of(core, first, n, key, min_size(core->key_tile, first + n - key));
        size_t place = key % memory->rows;
        quadratic_score_tile(core, s, &tile, (Side){s->queries, s->norms, s->query_features},
                             (Side){memory->key_panels + place * core->width, memory->key_norms + place,
                                    memory->feature_panels + place * core->feature_width});
        weigh_tile(core, s, &tile);
        tile_gather(s->sums, s->scores, memory->values + place * core->width, &tile);
    }
    for (size_t i = 0; i < n; i++) {
        s->totals[i] = finish_row(core, out + i * C, s->sums + i * core->width, s->levels[i], s->totals[i]);
    }
}

// ---- heads and threads

typedef struct { // one head's rows first .. first + n - 1, which join its memory and then attend to it
    real *out;
    real *levels, *inverses; // kept for backward; NULL: not wanted
    const real *q;           // of the first row, in qkv
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
    if (rows->levels) {
        memcpy(rows->levels + row, s.levels, count * sizeof *rows->levels);
        memcpy(rows->inverses + row, s.totals, count * sizeof *rows->inverses);
    }
}

// `owner` is the thread that has the head, unless threads work together. The loops of one thread are plain ones: a
// parallel region of one thread inside another allocates memory and makes system calls, which takes longer than a head
// when a single row is decoded. Together, threads begin with the last tile: it sees the most keys and would keep the
// others waiting if it came last.
static void attend_head(const Core *core, const HeadRows *rows, const Work *work, int owner) {
    size_t tiles = (rows->n + core->query_tile - 1) / core->query_tile;
    if (!work->together) {
        Scratch s = quadratic_scratch_of(core, work, owner);
        for (size_t t = 0; t < tiles; t++) remember_tile(core, rows, t, s);
        for (size_t t = 0; t < tiles; t++) attend_tile(core, rows, t, s);
        return;
    }
#pragma omp parallel for
    for (size_t t = 0; t < tiles; t++)
        remember_tile(core, rows, t, quadratic_scratch_of(core, work, omp_get_thread_num()));
#pragma omp parallel for schedule(dynamic)
    for (size_t r = 0; r < tiles; r++)
        attend_tile(core, rows, tiles - 1 - r, quadratic_scratch_of(core, work, omp_get_thread_num()));
}

// One sequence of one head.
static void attend_span(const Core *core, real *out, real *saved, const real *qkv, Span span, size_t h,
                        const Work *work, int owner) {
    size_t T = core->config->T, C = core->config->C, column = h * core->config->HS;
    Memory memory = memory_at(core, work->heads + owner * work->head_numbers, span.count);
    HeadRows rows = {.out = out + span.first * C + column,
                     .q = qkv + span.first * 3 * C + column,
                     .n = span.count,
                     .memory = &memory};
    if (saved) rows.levels = saved + quadratic_saved_place(span, h, core->config), rows.inverses = rows.levels + T;
    attend_head(core, &rows, work, owner);
}

void quadratic_forward(const QuadraticKernel *kernel, real *out, real *saved, const real *qkv, const real *parameters,
                       real *base, const AttentionConfig *config) {
    Core call = quadratic_core_of(kernel, config);
    size_t T = config->T, NH = config->NH, heads = config->B * NH;
    Work work = quadratic_work_of(&call, base, memory_numbers(&call, T), heads, quadratic_longest_span(config));
#pragma omp parallel for schedule(dynamic) if (!work.together)
    for (size_t i = 0; i < heads * work.parts; i++) {
        size_t bh = i / work.parts, part = i % work.parts;
        int owner = omp_get_thread_num(), end = quadratic_part_start(&work, bh, part + 1, config);
        Core core = quadratic_core_of_head(&call, work.tables + owner * work.table_numbers, T, parameters, bh % NH);
        Span span = {.first = quadratic_part_start(&work, bh, part, config)};
        while (attention_next_span(&span, end, config))
            attend_span(&core, out, saved, qkv, span, bh % NH, &work, owner);
    }
}

void quadratic_step(const QuadraticKernel *kernel, real *out, real *cache, int pos, int n, const real *qkv,
                    const real *parameters, real *base, const AttentionConfig *config) {
    Core call = quadratic_core_of(kernel, config);
    size_t heads = config->NH, HS = config->HS, rows_kept = cache_rows(&call);
    Work work = quadratic_work_of(&call, base, 0, heads, n);
#pragma omp parallel for schedule(dynamic) if (!work.together)
    for (size_t h = 0; h < heads; h++) {
        int owner = omp_get_thread_num();
        Core core = quadratic_core_of_head(&call, work.tables + owner * work.table_numbers, n, parameters, h);
        Memory memory = memory_at(&core, cache + h * memory_numbers(&core, rows_kept), rows_kept);
        HeadRows rows = {.out = out + h * HS, .q = qkv + h * HS, .first = pos, .n = n, .memory = &memory};
        attend_head(&core, &rows, &work, owner);
    }
}
