// The compiler's own vectors, as wide as the machine's registers: one source serves AVX-512, AVX2, SSE and NEON,
// float and double.
#ifndef CORE_VECTORS_H
#define CORE_VECTORS_H

#include "core/base/real.h"

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
#ifdef REAL_IS_DOUBLE
#define LANES (VECTOR_BYTES / 8)
#else
#define LANES (VECTOR_BYTES / 4)
#endif

typedef real Vector __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(real)), may_alias));

// The halves of two vectors interleaved: a0 b0 a1 b1 ...
#if LANES == 2
#define ZIP_LOW(a, b)  __builtin_shufflevector(a, b, 0, 2)
#define ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 1, 3)
#elif LANES == 4
#define ZIP_LOW(a, b)  __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#elif LANES == 8
#define ZIP_LOW(a, b)  __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#else
#define ZIP_LOW(a, b)  __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#endif

// A square of LANES x LANES numbers, in registers. Interleaving the two halves of the rows rotates the bits of
// (row, column) by one, so that after as many rounds as a column has bits the two have changed places.
static inline __attribute__((always_inline)) void transpose_square(Vector rows[LANES]) {
    Vector next[LANES];
#pragma GCC unroll 4
    for (int round = 1; round < LANES; round *= 2) {
#pragma GCC unroll 8
        for (int i = 0; i < LANES / 2; i++) {
            next[2 * i] = ZIP_LOW(rows[i], rows[i + LANES / 2]);
            next[2 * i + 1] = ZIP_HIGH(rows[i], rows[i + LANES / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) rows[i] = next[i];
    }
}

#endif
