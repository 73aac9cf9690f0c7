#include "quadratic_tile.h"
#include "core/base/numbers.h"

void tile_scores(real *scores, const real *rows, const real *panels, const Tile *tile) {
    size_t width = tile->width;
    for (int i = 0; i < tile->queries; i += BLOCK_ROWS) {
        int n = min_int(BLOCK_ROWS, tile->queries - i), visible = tile_visible(tile, i + n - 1);
        for (int j = tile_hidden(tile, i) / PANEL * PANEL; j < visible; j += PANEL) {
            Block block = {.c = scores + i * tile->stride + j,
                           .a = rows + i * width,
                           .b = panels + j * width,
                           .c_row = tile->stride,
                           .a_row = width,
                           .a_column = 1,
                           .b_row = PANEL,
                           .depth = (int)width};
            // Half a panel will do where it still has enough sums that do not wait for each other.
            if (BLOCK_ROWS >= 12 && visible - j <= LANES)
                multiply_rows(block, n, 1, SUM_OVERWRITES);
            else
                multiply_rows(block, n, BLOCK_VECTORS, SUM_OVERWRITES);
        }
    }
}

// c += a b for n rows and `width` columns. A single row, as in decoding, takes a good part of each row of b at a time,
// so that a head's values are read in one stream.
static void add_product(Block block, int n, size_t width) {
    enum { LONG = 8 }; // vectors
    size_t d = 0;
    for (; n == 1 && d + LONG * LANES <= width; d += LONG * LANES, block.c += LONG * LANES, block.b += LONG * LANES)
        multiply_block(block, 1, LONG, SUM_CONTINUES);
    for (; d < width; d += PANEL, block.c += PANEL, block.b += PANEL)
        multiply_rows(block, n, BLOCK_VECTORS, SUM_CONTINUES);
}

void tile_gather(real *out, const real *weights, const real *rows, const Tile *tile) {
    size_t width = tile->width;
    for (int i = 0; i < tile->queries; i += BLOCK_ROWS) {
        int n = min_int(BLOCK_ROWS, tile->queries - i), hidden = tile_hidden(tile, i);
        Block block = {.c = out + i * width,
                       .a = weights + i * tile->stride + hidden,
                       .b = rows + hidden * width,
                       .c_row = width,
                       .a_row = tile->stride,
                       .a_column = 1,
                       .b_row = width,
                       .depth = tile_visible(tile, i + n - 1) - hidden};
        add_product(block, n, width);
    }
}

void tile_scatter(real *out, const real *weights, const real *rows, const Tile *tile) {
    size_t width = tile->width;
    for (int j = 0; j < tile->keys; j += BLOCK_ROWS) {
        int n = min_int(BLOCK_ROWS, tile->keys - j), first = tile_first_query(tile, j);
        Block block = {.c = out + j * width,
                       .a = weights + first * tile->stride + j,
                       .b = rows + first * width,
                       .c_row = width,
                       .a_row = 1,
                       .a_column = tile->stride,
                       .b_row = width,
                       .depth = tile_last_query(tile, j + n - 1) - first};
        add_product(block, n, width);
    }
}
