// The insides of the quadratic core, shared by forward, backward and decoding; quadratic.h is what mechanisms see.
#ifndef ATTENTION_QUADRATIC_CORE_H
#define ATTENTION_QUADRATIC_CORE_H

#include "quadratic.h"
#include "quadratic_tile.h"
#include "core/base/numbers.h"

#include <omp.h>
#include <stdint.h>

#define UNLIMITED ((size_t)PTRDIFF_MAX / 2) // a window that hides nothing

typedef struct { // what every function here needs to know
    const QuadraticKernel *kernel;
    const AttentionConfig *config;
    const LinearMap *map;        // of rows that have two parts, else NULL
    size_t width, feature_width; // numbers per row: HS in whole panels; features in whole panels, 0 without
    size_t query_tile, key_tile; // rows per tile; key_tile in whole panels, at least query_tile
    size_t rows;                 // of the sequence at hand, in backward
    // What differs from head to head:
    const real *packed; // the map's constants
    real *d_packed;     // and their gradient
    size_t window;      // keys that a query sees, its own included
    real log_decay;     // what a token of distance adds to the logarithm of a weight
    const real *fades;  // of kernels: the factors of distances up to two tiles, the farthest first
} Core;

Core quadratic_core_of(const QuadraticKernel *kernel, const AttentionConfig *config);
// The core of one head. `fades` is the head's place in Work.tables, `rows` how many queries there will be.
Core quadratic_core_of_head(const Core *call, real *fades, size_t rows, const real *parameters, size_t head);

static inline int is_softmax(const Core *core) {
    return core->kernel->normalizer == NORMALIZER_SOFTMAX;
}

// Places for what the tiles of keys of one head's row give to its decay: a document's tiles have theirs from its first
// row on.
static inline size_t decay_places(const Core *core) {
    size_t T = core->config->T;
    return core->config->packed ? T : (T + core->key_tile - 1) / core->key_tile;
}

// ---- scratch

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

typedef struct { // the scratch of all threads: a tile's for each, a head's for each, a head's tables for each
    real *tiles, *heads, *tables;
    size_t tile_numbers, head_numbers, table_numbers;
    double *dlog_decays; // (B, NH, decay_places)
    real *d_packed;      // (B, NH, the map's d_packed_size)
    // Threads take whole heads, or work together on one head after another. Together they share the load better when
    // heads are few; but that takes enough tiles, and backward forms its scores twice. Of rows that are cut into
    // documents a thread takes, where heads are few, those that begin in one part of a row.
    int together;
    size_t parts;
} Work;

// `head_numbers` is what each thread needs for a head, `rows` how many queries the longest sequence has.
Work quadratic_work_of(const Core *core, real *base, size_t head_numbers, size_t heads, size_t rows);
size_t quadratic_longest_span(const AttentionConfig *config);
// Where a layer keeps the levels of a sequence's rows; T numbers on are the inverses.
static inline size_t quadratic_saved_place(Span span, size_t h, const AttentionConfig *config) {
    size_t T = config->T, row = span.first / T;
    return (row * config->NH + h) * 2 * T + span.first % T;
}
// The first token of part `part` of the row of head bh.
static inline int quadratic_part_start(const Work *work, size_t bh, size_t part, const AttentionConfig *config) {
    return (int)(bh / config->NH * config->T + part * config->T / work->parts);
}
Scratch quadratic_scratch_of(const Core *core, const Work *work, int thread);
size_t quadratic_head_numbers(const Core *core, size_t rows); // what backward needs, more than forward and decoding

// ---- rows

// Copies a row, brought into range; zeros up to the width.
void quadratic_pack_row(const Core *core, real *to, const real *from, size_t stride);
// Packs a row of q (is_query) or k and brings it to the length that the kernel wants. Returns what it was multiplied
// by; the squared norm that distances are formed with goes to *norm.
real quadratic_pack_scaled(const Core *core, real *to, real *norm, const real *from, int is_query);
// Up to TILE rows of q or k, at `from`, and what the map makes of them: s->x, s->mapped
LinearRows quadratic_map_tile(const Core *core, Scratch *s, const real *from, size_t n);
// Both parts of n rows of q or k: units (n, width), features (n, feature_width)
void quadratic_map_rows(const Core *core, Scratch *s, real *units, real *features, const real *from, size_t n);

static inline real dot(const real *a, const real *b, size_t n) {
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

// Writes a row into panels as row number `position`.
static inline void put_in_panel(real *panels, size_t position, const real *row, size_t width) {
    real *column = panels + position / PANEL * PANEL * width + position % PANEL;
    for (size_t d = 0; d < width; d++) column[d * PANEL] = row[d];
}

// ---- the scores of a tile

static inline Tile tile_of(const Core *core, size_t first_query, size_t queries, size_t first_key, size_t keys) {
    return (Tile){.queries = (int)queries,
                  .keys = (int)keys,
                  .lead = (ptrdiff_t)first_query - (ptrdiff_t)first_key,
                  .window = (ptrdiff_t)core->window,
                  .width = core->width,
                  .stride = core->key_tile};
}

// The first key that the query at this position may see, at the beginning of its tile.
static inline size_t first_key_tile(const Core *core, size_t query) {
    return query < core->window ? 0 : (query + 1 - core->window) / core->key_tile * core->key_tile;
}

static inline Tile feature_tile(const Core *core, const Tile *tile) {
    Tile wide = *tile;
    wide.width = core->feature_width;
    return wide;
}

typedef struct { // the rows of a tile's queries or the panels of its keys
    const real *rows, *norms, *features;
} Side;

// Fills in s->scores, not faded yet, and s->dots and s->distances where the score is more than the dot product; with a
// map the latter are the dot products of the features.
void quadratic_score_tile(const Core *core, Scratch *s, const Tile *tile, Side queries, Side keys);

// Sets a row's weights of keys that it does not see to 0.
static inline void hide_keys(real *row, const Tile *tile, int i) {
    for (int j = tile_hidden(tile, i) - 1; j >= 0; j--) row[j] = 0;
    for (int j = tile_visible(tile, i); j < tile->keys; j++) row[j] = 0;
}

typedef struct {         // how the scores of one row fade
    int distance;        // from the query to the first key
    real log_decay;      // softmax: times distance, this is added
    const real *factors; // kernels: what each score is multiplied by ...
    real shared;         // ... beyond a factor that the whole tile shares
} Fade;

// The part of a tile's distances that all its pairs share, where they are beyond the table of factors.
static inline ptrdiff_t shared_distance(const Core *core, const Tile *tile) {
    ptrdiff_t beyond = tile->lead - (ptrdiff_t)(core->key_tile - 1);
    return beyond > 0 ? beyond : 0;
}

// The fading of query i of a tile, for the keys from number `key` on.
static inline Fade fade_of_row(const Core *core, const Scratch *s, const Tile *tile, int i, int key) {
    ptrdiff_t distance = tile->lead + i - key, farthest = (ptrdiff_t)(core->key_tile + core->query_tile) - 2;
    return (Fade){.distance = (int)distance,
                  .log_decay = core->log_decay,
                  .factors = core->fades + (farthest - (distance - shared_distance(core, tile))),
                  .shared = s->shared_fade};
}

#endif
