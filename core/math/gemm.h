// Our own matrix product, for processors with AVX2 and fused multiply-add but no AVX-512. It exists for two reasons:
// on most products of a training step it is 4 to 20 % faster than OpenBLAS (dev/bench/bench_gemm.c), and every number
// is summed in one order, whatever the number of threads. Elsewhere core/math/matmul.c calls BLAS.
#ifndef CORE_GEMM_H
#define CORE_GEMM_H

#include "core/base/real.h"

#include <stddef.h>

#if defined(__AVX2__) && defined(__FMA__) && !defined(__AVX512F__) && !defined(MATMUL_BY_BLAS)
#define HAVE_OWN_GEMM 1
#else
#define HAVE_OWN_GEMM 0
#endif

typedef struct { // a matrix: number (i,j) is at[i * row + j * column]; either `row` or `column` is 1
    const real *at;
    ptrdiff_t row, column;
} Strided;

// c (m,n), whose rows are c_row apart, = a (m,k) b (k,n); added to what is there when `accumulate`.
void gemm(real *c, ptrdiff_t c_row, Strided a, Strided b, int m, int n, int k, int accumulate);

#endif
