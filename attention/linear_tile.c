#include "linear_tile.h"
#include "core/base/numbers.h"
#include "core/math/microkernel.h"

#include <string.h>

_Static_assert(TILE_LANES % LANES == 0, "lanes are whole vectors");

#define LONG_VECTORS 4 // of a single row: sums that do not wait for each other

// A function of its own: inlined into the loops around it, it would not keep the strides in registers.
static __attribute__((noinline)) void multiply_sized(const Block *block, int rows, int width, int accumulate) {
    SumMode mode = accumulate ? SUM_IS_ADDED : SUM_OVERWRITES;
    if (width == LONG_VECTORS * LANES)
        multiply_block(*block, 1, LONG_VECTORS, mode);
    else if (width == BLOCK_COLUMNS)
        multiply_rows(*block, rows, BLOCK_VECTORS, mode);
    else
        multiply_rows(*block, rows, 1, mode);
}

void tile_multiply(real *c, int c_row, TileLeft a, const real *b, int b_row, int rows, int columns, int depth,
                   int accumulate, TileShape shape) {
    // Narrow blocks follow a triangle more closely, where they still have enough sums that do not wait for each other.
    int most = shape >= TILE_B_UPPER && BLOCK_ROWS >= 12 ? LANES : BLOCK_COLUMNS;
    int wide = rows == 1 ? LONG_VECTORS * LANES : most;
    for (int j = 0, width; j < columns; j += width) {
        width = columns - j >= wide ? wide : min_int(most, columns - j);
        for (int i = 0; i < rows; i += BLOCK_ROWS) {
            int height = min_int(BLOCK_ROWS, rows - i), from = 0, to = depth;
            if (shape == TILE_C_UPPER && j + width <= i) continue;
            if (shape == TILE_C_LOWER && j >= i + height) continue;
            if (shape == TILE_A_LOWER) to = min_int(depth, i + height);
            if (shape == TILE_A_UPPER) from = min_int(depth, i);
            if (shape == TILE_B_UPPER) to = min_int(depth, j + width);
            if (shape == TILE_B_LOWER) from = min_int(depth, j);
            Block block = {.c = c + (ptrdiff_t)i * c_row + j,
                           .a = a.at + (ptrdiff_t)i * a.row + (ptrdiff_t)from * a.column,
                           .b = b + (ptrdiff_t)from * b_row + j,
                           .c_row = c_row,
                           .a_row = a.row,
                           .a_column = a.column,
                           .b_row = b_row,
                           .depth = to - from};
            multiply_sized(&block, height, width, accumulate);
        }
    }
}

// ---- dot products

// The sums of LANES vectors' numbers. Interleaving two vectors and adding the halves leaves both, with half as many
// numbers each; taken from vectors `half` apart they end up in order.
static inline __attribute__((always_inline)) Vector sum_vectors(Vector vectors[LANES]) {
#pragma GCC unroll 4
    for (int half = LANES / 2; half; half /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < half; i++)
            vectors[i] = ZIP_LOW(vectors[i], vectors[i + half]) + ZIP_HIGH(vectors[i], vectors[i + half]);
    return vectors[0];
}

static real dot(const real *x, const real *y, int n) {
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

void tile_add_dots(real *out, int out_row, const real *rows, int row_stride, int count, const real *x, int length) {
    int whole = length / LANES * LANES, i = 0;
    for (; i + LANES <= count; i += LANES) {
        Vector sums[LANES];
        for (int k = 0; k < LANES; k++) {
            const real *row = rows + (ptrdiff_t)(i + k) * row_stride;
            Vector sum = {0};
            for (int c = 0; c < whole; c += LANES) sum += *(const Vector *)(row + c) * *(const Vector *)(x + c);
            if (whole < length) sum[0] += dot(row + whole, x + whole, length - whole);
            sums[k] = sum;
        }
        Vector dots = sum_vectors(sums);
        for (int k = 0; k < LANES; k++) out[(ptrdiff_t)(i + k) * out_row] += dots[k];
    }
    for (; i < count; i++) out[(ptrdiff_t)i * out_row] += dot(rows + (ptrdiff_t)i * row_stride, x, length);
}

enum { LONGEST_ROW = 1024 }; // of a single projected row; longer ones are multiplied like many

void tile_project(real *y, const real *matrix, int count, const real *x, int width, int rows) {
    int lanes = tile_lanes(rows);
    if (rows > 1 || width > LONGEST_ROW) {
        tile_multiply(y, TILE, (TileLeft){matrix, width, 1}, x, TILE, count, lanes, width, 0, TILE_FULL);
        return;
    }
    real row[LONGEST_ROW];
    for (int c = 0; c < width; c++) row[c] = x[(ptrdiff_t)c * TILE];
    for (int e = 0; e < count; e++) memset(y + (ptrdiff_t)e * TILE, 0, TILE_LANES * sizeof(real));
    tile_add_dots(y, TILE, matrix, width, count, row, width);
}

// ---- transposing

static inline void copy_transposed(real *out, ptrdiff_t out_row, const real *in, ptrdiff_t in_row, int accumulate) {
    Vector rows[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) rows[i] = *(const Vector *)(in + i * in_row);
    transpose_square(rows);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) {
        Vector *place = (Vector *)(out + i * out_row);
        if (accumulate) rows[i] += *place;
        *place = rows[i];
    }
}

void tile_transpose(real *out, int out_row, const real *in, int in_row, int rows, int columns, int accumulate) {
    for (int i = 0; i < rows; i += LANES)
        for (int j = 0; j < columns; j += LANES) {
            int height = min_int(LANES, rows - i), width = min_int(LANES, columns - j);
            real *to = out + (ptrdiff_t)j * out_row + i;
            const real *from = in + (ptrdiff_t)i * in_row + j;
            if (height == LANES && width == LANES) {
                copy_transposed(to, out_row, from, in_row, accumulate);
                continue;
            }
            for (int c = 0; c < width; c++)
                for (int r = 0; r < height; r++) {
                    real before = accumulate ? to[(ptrdiff_t)c * out_row + r] : 0;
                    to[(ptrdiff_t)c * out_row + r] = before + from[(ptrdiff_t)r * in_row + c];
                }
        }
}
