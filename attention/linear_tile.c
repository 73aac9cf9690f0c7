#include "linear_tile.h"
#include "core/base/numbers.h"
#include "core/math/microkernel.h"

_Static_assert(TILE_LANES % LANES == 0, "lanes are whole vectors");

// A function of its own: inlined into the loops around it, it would not keep the strides in registers.
static __attribute__((noinline)) void multiply_sized(const Block *block, int rows, int width, int accumulate) {
    SumMode mode = accumulate ? SUM_IS_ADDED : SUM_OVERWRITES;
    if (width == BLOCK_COLUMNS)
        multiply_rows(*block, rows, BLOCK_VECTORS, mode);
    else
        multiply_rows(*block, rows, 1, mode);
}

void tile_multiply(real *c, int c_row, TileLeft a, const real *b, int b_row, int rows, int columns, int depth,
                   int accumulate, TileShape shape) {
    for (int j = 0, width; j < columns; j += width) {
        width = min_int(BLOCK_COLUMNS, columns - j);
        for (int i = 0; i < rows; i += BLOCK_ROWS) {
            int height = min_int(BLOCK_ROWS, rows - i), from = 0, to = depth;
            if (shape == TILE_C_UPPER && j + width <= i) continue;
            if (shape == TILE_A_LOWER) to = min_int(depth, i + height);
            if (shape == TILE_A_UPPER) from = min_int(depth, i);
            if (shape == TILE_B_UPPER) to = min_int(depth, j + width);
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
