// Vectors of the compiler's own, 32 bytes: it turns them into AVX, SSE, NEON or plain code, whatever the target has.
#ifndef CORE_VECTORS_H
#define CORE_VECTORS_H

#include "core/base/real.h"

typedef real Vector __attribute__((vector_size(32), aligned(sizeof(real)), may_alias));
enum { LANES = 32 / sizeof(real) };

// The halves of two vectors laid into each other: a0 b0 a1 b1 ...
#ifdef REAL_IS_DOUBLE
#define ZIP_LOW(a, b)  __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#else
#define ZIP_LOW(a, b)  __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#endif

// A square of LANES x LANES numbers, in registers. Laying the upper half of the rows into the lower rotates the bits of
// (row, column) by one, so that after as many rounds as a column has bits the two have changed places.
static inline __attribute__((always_inline)) void transpose_square(Vector rows[LANES]) {
    Vector next[LANES];
#pragma GCC unroll 3
    for (int round = 1; round < LANES; round *= 2) {
#pragma GCC unroll 4
        for (int i = 0; i < LANES / 2; i++) {
            next[2 * i] = ZIP_LOW(rows[i], rows[i + LANES / 2]);
            next[2 * i + 1] = ZIP_HIGH(rows[i], rows[i + LANES / 2]);
        }
#pragma GCC unroll 8
        for (int i = 0; i < LANES; i++) rows[i] = next[i];
    }
}

#endif
