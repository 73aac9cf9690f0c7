// The inner loop of every matrix product here: a block of c stays in registers while a column of a and a row of b are
// multiplied at a time. BLOCK_ROWS rows of BLOCK_VECTORS vectors are 12 sums, which with 2 vectors of b and 1 number of
// a fill the 16 registers of AVX2; AVX-512 has 32.
//
// Whatever the shape of its block, a number of c is summed in one order, that of the depth.
#ifndef CORE_MICROKERNEL_H
#define CORE_MICROKERNEL_H

#include "vectors.h"

#include <stddef.h>

#if VECTOR_BYTES == 64
#define BLOCK_ROWS 12
#else
#define BLOCK_ROWS 6
#endif
enum { BLOCK_VECTORS = 2, BLOCK_COLUMNS = BLOCK_VECTORS * LANES };

typedef enum {
    SUM_OVERWRITES, // c = a b
    SUM_CONTINUES,  // c is what the sum begins with
    SUM_IS_ADDED    // c + a b: a sum of sums, which keeps its digits over long sequences
} SumMode;

typedef struct { // a block of c and what it is made of: a (rows, depth), b (depth, columns)
    real *c;
    const real *a, *b;
    ptrdiff_t c_row, a_row, a_column, b_row; // strides
    int depth;
} Block;

// `rows` and `vectors` have to be constants where this is called, for the loops to unroll and the sums to stay in
// registers.
static inline __attribute__((always_inline)) void multiply_block(Block block, int rows, int vectors, SumMode mode) {
    Vector sum[BLOCK_ROWS * BLOCK_VECTORS];
    const real *b = block.b, *a[(BLOCK_ROWS + 3) / 4]; // of every fourth row: more strides take too many registers
#pragma GCC unroll 3
    for (int i = 0; i < rows; i += 4) a[i / 4] = block.a + i * block.a_row;
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            sum[i * vectors + v] = mode == SUM_CONTINUES ? ((Vector *)(block.c + i * block.c_row))[v] : (Vector){0};
    for (int k = 0; k < block.depth; k++, b += block.b_row) {
#pragma GCC unroll 12
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++)
                sum[i * vectors + v] += a[i / 4][i % 4 * block.a_row] * ((const Vector *)b)[v];
#pragma GCC unroll 3
        for (int i = 0; i < rows; i += 4) a[i / 4] += block.a_column;
    }
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) {
            Vector *place = (Vector *)(block.c + i * block.c_row) + v;
            if (mode == SUM_IS_ADDED) sum[i * vectors + v] += *place;
            *place = sum[i * vectors + v];
        }
}

// Any number of rows up to BLOCK_ROWS: one copy of the loop for each.
static inline __attribute__((always_inline)) void multiply_rows(Block block, int rows, int vectors, SumMode mode) {
#define ROWS(n)                                                                                                        \
    case n:                                                                                                            \
        multiply_block(block, n, vectors, mode);                                                                       \
        break;
    switch (rows) {
        ROWS(1)
        ROWS(2)
        ROWS(3)
        ROWS(4)
        ROWS(5)
        ROWS(6)
#if BLOCK_ROWS > 6
        ROWS(7)
        ROWS(8)
        ROWS(9)
        ROWS(10)
        ROWS(11)
        ROWS(12)
#endif
    }
#undef ROWS
}

#endif
