// Matrix products on tiles that live in the first two levels of cache. The linear attentions keep their features with
// the rows of the sequence along the fast axis (feature-major), so that every product has a right factor whose rows
// are contiguous: no operand is packed, and the triangles that causality cuts away are skipped. On tiles of this size
// that outruns a BLAS call.
#ifndef ATTENTION_LINEAR_TILE_H
#define ATTENTION_LINEAR_TILE_H

#include "core/base/numbers.h"
#include "core/base/real.h"

enum {
    TILE = 64,      // rows of a sequence in one tile
    TILE_LANES = 16 // partly filled tiles are computed up to a multiple of this many rows
};

// Which part of a product is known to be zero or is not wanted (the diagonal always belongs to the rest).
typedef enum {
    TILE_FULL,
    TILE_A_LOWER, // a(i,k) is zero for k > i
    TILE_A_UPPER, // a(i,k) is zero for k < i
    TILE_B_UPPER, // b(k,j) is zero for k > j
    TILE_B_LOWER, // b(k,j) is zero for k < j
    TILE_C_UPPER, // c(i,j) is not wanted for j < i
    TILE_C_LOWER  // c(i,j) is not wanted for j > i
} TileShape;

typedef struct { // the left factor: element (i,k) is at[i * row + k * column], so a transposed one costs nothing
    const real *at;
    int row, column;
} TileLeft;

// c (rows, columns, which are whole vectors; leading dimension c_row) = a (rows, depth) * b (depth, columns; leading
// dimension b_row), added to what is in c when `accumulate`.
void tile_multiply(real *c, int c_row, TileLeft a, const real *b, int b_row, int rows, int columns, int depth,
                   int accumulate, TileShape shape);

// out[i * out_row] += the product of row i of `rows` (count, length; leading dimension row_stride) and x (length)
void tile_add_dots(real *out, int out_row, const real *rows, int row_stride, int count, const real *x, int length);

// y (count, TILE) = matrix (count, width) x (width, TILE), for `rows` columns up to whole lanes; a single one takes
// dot products, the rest of its lanes is 0.
void tile_project(real *y, const real *matrix, int count, const real *x, int width, int rows);

// out (columns, rows; leading dimension out_row) = transposed in (rows, columns; leading dimension in_row), added to
// what is in out when `accumulate`.
void tile_transpose(real *out, int out_row, const real *in, int in_row, int rows, int columns, int accumulate);

// A number of rows rounded up to whole lanes.
static inline int tile_lanes(int rows) {
    return (int)round_up((size_t)rows, TILE_LANES);
}

#endif
