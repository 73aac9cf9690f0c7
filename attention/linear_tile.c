#include "linear_tile.h"
#include "core/math/vectors.h"

#include <stddef.h>

enum { BLOCK_ROWS = 6, BLOCK_VECTORS = 2 };

typedef struct { // a block of c and what it is made of
    real *c;
    const real *a, *b;
    ptrdiff_t c_row, a_row, a_column, b_row; // strides
    int depth, accumulate;
} Block;

// `rows` by `vectors` vectors of c stay in registers over the whole depth: with 6 by 2 that is 12 sums, 2 vectors of b
// and 1 number of a, the 16 registers of AVX2. Both are constants where this is called, so that the loops unroll.
static inline __attribute__((always_inline)) void multiply_block(Block block, int rows, int vectors) {
    Vector sum[BLOCK_ROWS][BLOCK_VECTORS];
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) sum[i][v] = (Vector){0};
    const real *a = block.a, *b = block.b;
    for (int k = 0; k < block.depth; k++, a += block.a_column, b += block.b_row) {
#pragma GCC unroll 6
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) sum[i][v] += a[i * block.a_row] * ((const Vector *)b)[v];
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) {
            Vector *place = (Vector *)(block.c + i * block.c_row) + v;
            if (block.accumulate) sum[i][v] += *place; // a sum of sums: long sequences keep their digits
            *place = sum[i][v];
        }
}

static inline __attribute__((always_inline)) void multiply_rows(Block block, int rows, int vectors) {
    switch (rows) {
    case 1:
        multiply_block(block, 1, vectors);
        break;
    case 2:
        multiply_block(block, 2, vectors);
        break;
    case 3:
        multiply_block(block, 3, vectors);
        break;
    case 4:
        multiply_block(block, 4, vectors);
        break;
    case 5:
        multiply_block(block, 5, vectors);
        break;
    default:
        multiply_block(block, BLOCK_ROWS, vectors);
        break;
    }
}

// The last columns, fewer than a vector.
static void multiply_columns(Block block, int rows, int columns) {
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) {
            real sum = 0;
            for (int k = 0; k < block.depth; k++)
                sum += block.a[i * block.a_row + k * block.a_column] * block.b[k * block.b_row + j];
            block.c[i * block.c_row + j] = block.accumulate ? block.c[i * block.c_row + j] + sum : sum;
        }
}

static int smaller(int a, int b) {
    return a < b ? a : b;
}

void tile_multiply(real *c, int c_row, TileLeft a, const real *b, int b_row, int rows, int columns, int depth,
                   int accumulate, TileShape shape) {
    for (int j = 0, width; j < columns; j += width) {
        int left = columns - j;
        width = left >= BLOCK_VECTORS * LANES ? BLOCK_VECTORS * LANES : left >= LANES ? LANES : left;
        for (int i = 0; i < rows; i += BLOCK_ROWS) {
            int height = smaller(BLOCK_ROWS, rows - i), from = 0, to = depth;
            if (shape == TILE_C_UPPER && j + width <= i) continue;
            if (shape == TILE_A_LOWER) to = smaller(depth, i + height);
            if (shape == TILE_A_UPPER) from = smaller(depth, i);
            if (shape == TILE_B_UPPER) to = smaller(depth, j + width);
            Block block = {.c = c + (ptrdiff_t)i * c_row + j,
                           .a = a.at + (ptrdiff_t)i * a.row + (ptrdiff_t)from * a.column,
                           .b = b + (ptrdiff_t)from * b_row + j,
                           .c_row = c_row,
                           .a_row = a.row,
                           .a_column = a.column,
                           .b_row = b_row,
                           .depth = to - from,
                           .accumulate = accumulate};
            if (width == BLOCK_VECTORS * LANES)
                multiply_rows(block, height, BLOCK_VECTORS);
            else if (width == LANES)
                multiply_rows(block, height, 1);
            else
                multiply_columns(block, height, width);
        }
    }
}

// ---- transposing

static inline void copy_transposed(real *out, ptrdiff_t out_row, const real *in, ptrdiff_t in_row, int accumulate) {
    Vector rows[LANES];
#pragma GCC unroll 8
    for (int i = 0; i < LANES; i++) rows[i] = *(const Vector *)(in + i * in_row);
    transpose_square(rows);
#pragma GCC unroll 8
    for (int i = 0; i < LANES; i++) {
        Vector *place = (Vector *)(out + i * out_row);
        if (accumulate) rows[i] += *place;
        *place = rows[i];
    }
}

void tile_transpose(real *out, int out_row, const real *in, int in_row, int rows, int columns, int accumulate) {
    for (int i = 0; i < rows; i += LANES)
        for (int j = 0; j < columns; j += LANES) {
            int height = smaller(LANES, rows - i), width = smaller(LANES, columns - j);
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
