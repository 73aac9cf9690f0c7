// The three small matrix products that a tiled quadratic attention is made of, for one tile: some queries against some
// keys. On tiles of this size they outrun a BLAS call, whose packing costs as much as it saves.
//
// Causality cuts a tile along the diagonal, a window along another one below; the products skip the blocks that no
// query of theirs sees. What a query gets never depends on the keys outside, not even in rounding.
#ifndef ATTENTION_QUADRATIC_TILE_H
#define ATTENTION_QUADRATIC_TILE_H

#include "core/math/microkernel.h"

enum { PANEL = BLOCK_COLUMNS };

typedef struct {
    int queries, keys; // rows of the two sides
    ptrdiff_t lead;    // position of the first query minus that of the first key: query i sees the keys j <= lead + i
    ptrdiff_t window;  // and of those the last `window`: j > lead + i - window
    size_t width;      // numbers per row: the head size, rounded up to a multiple of PANEL
    size_t stride;     // from one query's row of scores to the next; a multiple of PANEL
} Tile;

static inline int tile_clamp(ptrdiff_t x, int most) {
    return x < 0 ? 0 : x > most ? most : (int)x;
}

// Query i sees the tile's keys from tile_hidden to tile_visible, the latter not included.
static inline int tile_hidden(const Tile *tile, int i) {
    return tile_clamp(tile->lead + i + 1 - tile->window, tile->keys);
}

static inline int tile_visible(const Tile *tile, int i) {
    return tile_clamp(tile->lead + i + 1, tile->keys);
}

// Key j is seen by the tile's queries from tile_first_query to tile_last_query, the latter not included.
static inline int tile_first_query(const Tile *tile, int j) {
    return tile_clamp(j - tile->lead, tile->queries);
}

static inline int tile_last_query(const Tile *tile, int j) {
    return tile_clamp(tile->window - tile->lead + j, tile->queries);
}

// Rows are (n, width). Panels are the same numbers transposed in groups of PANEL rows: (n / PANEL, width, PANEL), so
// that a product over `width` runs along vectors and needs no sum across one.

// scores (queries, keys) = rows (queries, width) . panels (keys)^T; entries that no query sees may stay as they were.
void tile_scores(real *scores, const real *rows, const real *panels, const Tile *tile);

// out (queries, width) += weights (queries, keys) . rows (keys, width); the weights of keys that a query does not see
// must be 0.
void tile_gather(real *out, const real *weights, const real *rows, const Tile *tile);

// out (keys, width) += weights (queries, keys)^T . rows (queries, width); likewise.
void tile_scatter(real *out, const real *weights, const real *rows, const Tile *tile);

#endif
