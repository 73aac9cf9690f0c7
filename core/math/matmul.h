// Matrix products, row-major: core/math/gemm.c's where that is faster, else BLAS's. `beta` is 0 to overwrite
// `out` and 1 to add to it; the gradient products use it to accumulate in place. Every leading dimension is the row
// length unless a function takes one.
#ifndef CORE_MATMUL_H
#define CORE_MATMUL_H

#include "core/base/real.h"

#include <stddef.h>

void matmul(real *out, const real *a, const real *b, int m, int n, int k, real beta);    // (m,n) = (m,k) (k,n)
void matmul_nt(real *out, const real *a, const real *b, int m, int n, int k, real beta); // (m,n) = (m,k) (n,k)^T
void matmul_tn(real *out, const real *a, const real *b, int m, int n, int k, real beta); // (m,n) = (k,m)^T (k,n)

// The three products around a wide matrix whose rows are `stride` apart (the logits of a row block).
void matmul_nt_strided(real *out, int stride, const real *a, const real *b, int m, int n, int k);
void matmul_strided_n(real *out, const real *a, int stride, const real *b, int m, int n, int k);
void matmul_strided_tn(real *out, const real *a, int stride, const real *b, int m, int n, int k, real beta);

// The machine's own rate on a large product, by BLAS or by us, whichever is faster, in GFLOP/s, with all threads: the
// yardstick for the trainer's.
double matmul_measure_gflops(void);
// "own products, OpenBLAS (Zen kernels, openmp)"; warns when the library's threads are not OpenMP's.
const char *matmul_library(void);

#endif
