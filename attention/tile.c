#include "tile.h"

// A block of the product, ROWS x PANEL, stays in registers: 12 sums, 2 vectors of b and 1 of a fill the 16 registers of
// AVX2; AVX-512 has 32.
#if defined(__AVX512F__)
enum { ROWS = 12 };
#else
enum { ROWS = 6 };
#endif

typedef struct { // c (rows, PANEL) (+)= a (rows, inner) . b (inner, PANEL)
    real *c;
    const real *a, *b;
    size_t c_row, a_row, a_column, b_row; // strides
    int inner;
} Block;

static inline __attribute__((always_inline)) Vector load(const real *x) {
    return *(const Vector *)x;
}

static inline __attribute__((always_inline)) void multiply_rows(const Block *block, int rows, int accumulate) {
    Vector sum[ROWS][2];
    const real *a = block->a, *b = block->b;
    for (int r = 0; r < rows; r++) {
        const real *c = block->c + r * block->c_row;
        sum[r][0] = accumulate ? load(c) : (Vector){0};
        sum[r][1] = accumulate ? load(c + LANES) : (Vector){0};
    }
    for (int k = 0; k < block->inner; k++, a += block->a_column, b += block->b_row) {
        Vector b0 = load(b), b1 = load(b + LANES);
        for (int r = 0; r < rows; r++) {
            sum[r][0] += a[r * block->a_row] * b0;
            sum[r][1] += a[r * block->a_row] * b1;
        }
    }
    for (int r = 0; r < rows; r++) {
        *(Vector *)(block->c + r * block->c_row) = sum[r][0];
        *(Vector *)(block->c + r * block->c_row + LANES) = sum[r][1];
    }
}

// The number of rows has to be a constant for the sums to stay in registers: one copy of the loop for each.
static inline __attribute__((always_inline)) void multiply(const Block *block, int rows, int accumulate) {
    switch (rows) {
    case 1:
        multiply_rows(block, 1, accumulate);
        break;
    case 2:
        multiply_rows(block, 2, accumulate);
        break;
    case 3:
        multiply_rows(block, 3, accumulate);
        break;
    case 4:
        multiply_rows(block, 4, accumulate);
        break;
    case 5:
        multiply_rows(block, 5, accumulate);
        break;
#if defined(__AVX512F__)
    case 6:
        multiply_rows(block, 6, accumulate);
        break;
    case 7:
        multiply_rows(block, 7, accumulate);
        break;
    case 8:
        multiply_rows(block, 8, accumulate);
        break;
    case 9:
        multiply_rows(block, 9, accumulate);
        break;
    case 10:
        multiply_rows(block, 10, accumulate);
        break;
    case 11:
        multiply_rows(block, 11, accumulate);
        break;
#endif
    default:
        multiply_rows(block, ROWS, accumulate);
        break;
    }
}

static inline int least(int a, int b) {
    return a < b ? a : b;
}

void tile_scores(real *scores, const real *rows, const real *panels, const Tile *tile) {
    size_t width = tile->width;
    for (int i = 0; i < tile->queries; i += ROWS) {
        int n = least(ROWS, tile->queries - i), visible = tile_visible(tile, i + n - 1);
        for (int j = 0; j < visible; j += PANEL) {
            Block block = {scores + i * tile->stride + j,
                           rows + i * width,
                           panels + j * width,
                           tile->stride,
                           width,
                           1,
                           PANEL,
                           (int)width};
            multiply(&block, n, 0);
        }
    }
}

// One row, as in decoding: it takes the rows of b as they come, a good part of each at a time, so that a head's values are
// read in one stream. Returns how many columns are done. Each number is summed in the same order as in multiply_rows.
static size_t gather_one(real *out, const real *weights, const real *rows, size_t width, int keys) {
    enum { VECTORS = 8 };
    size_t d = 0;
    for (; d + VECTORS * LANES <= width; d += VECTORS * LANES) {
        Vector sum[VECTORS];
        for (int v = 0; v < VECTORS; v++) sum[v] = load(out + d + v * LANES);
        for (int k = 0; k < keys; k++) {
            const real *row = rows + k * width + d;
            for (int v = 0; v < VECTORS; v++) sum[v] += weights[k] * load(row + v * LANES);
        }
        for (int v = 0; v < VECTORS; v++) *(Vector *)(out + d + v * LANES) = sum[v];
    }
    return d;
}

void tile_gather(real *out, const real *weights, const real *rows, const Tile *tile) {
    size_t width = tile->width;
    for (int i = 0; i < tile->queries; i += ROWS) {
        int n = least(ROWS, tile->queries - i), visible = tile_visible(tile, i + n - 1);
        size_t done = n == 1 ? gather_one(out + i * width, weights + i * tile->stride, rows, width, visible) : 0;
        for (size_t d = done; visible > 0 && d < width; d += PANEL) {
            Block block = {
                out + i * width + d, weights + i * tile->stride, rows + d, width, tile->stride, 1, width, visible};
            multiply(&block, n, 1);
        }
    }
}

void tile_scatter(real *out, const real *weights, const real *rows, const Tile *tile) {
    size_t width = tile->width;
    for (int j = 0; j < tile->keys; j += ROWS) {
        int n = least(ROWS, tile->keys - j), first = tile_first_query(tile, j);
        for (size_t d = 0; first < tile->queries && d < width; d += PANEL) {
            Block block = {out + j * width + d,
                           weights + first * tile->stride + j,
                           rows + first * width + d,
                           width,
                           1,
                           tile->stride,
                           width,
                           tile->queries - first};
            multiply(&block, n, 1);
        }
    }
}
