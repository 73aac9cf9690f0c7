// The three small matrix products that a tiled quadratic attention is made of, for one tile: some queries against some
// keys. On tiles of this size they outrun a BLAS call, whose packing costs as much as it saves.
//
// Causality cuts a tile along the diagonal; the products skip the blocks that no query of theirs sees. What a query
// gets never depends on the keys after it, not even in rounding.
#ifndef ATTENTION_QUADRATIC_TILE_H
#define ATTENTION_QUADRATIC_TILE_H

#include "core/math/microkernel.h"

enum { PANEL = BLOCK_COLUMNS };

typedef struct {
    int queries, keys; // rows of the two sides
    ptrdiff_t lead;    // position of the first query minus that of the first key: query i sees the keys j <= lead + i
    size_t width;      // numbers per row: the head size, rounded up to a multiple of PANEL
    size_t stride;     // from one query's row of scores to the next; a multiple of PANEL
} Tile;

// How many of the tile's keys query i sees: they are the first ones.
static inline int tile_visible(const Tile *tile, int i) {
    ptrdiff_t n = tile->lead + i + 1;
    return n < 0 ? 0 : n > tile->keys ? tile->keys : (int)n;
}

// The first of the tile's queries that sees key j: so do all after it.
static inline int tile_first_query(const Tile *tile, int j) {
    ptrdiff_t i = j - tile->lead;
    return i < 0 ? 0 : i > tile->queries ? tile->queries : (int)i;
}

// Rows are (n, width). Panels are the same numbers transposed in groups of PANEL rows: (n / PANEL, width, PANEL), so
// that a product over `width` runs along vectors and needs no sum across one.

// scores (queries, keys) = rows (queries, width) . panels (keys)^T; entries that nobody sees may be left as they were.
void tile_scores(real *scores, const real *rows, const real *panels, const Tile *tile);

// out (queries, width) += weights (queries, keys) . rows (keys, width); weights past the diagonal must be 0.
void tile_gather(real *out, const real *weights, const real *rows, const Tile *tile);

// out (keys, width) += weights (queries, keys)^T . rows (queries, width); weights past the diagonal must be 0.
void tile_scatter(real *out, const real *weights, const real *rows, const Tile *tile);

#endif
