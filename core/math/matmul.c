#include "matmul.h"
#include "core/base/error.h"
#include "core/base/memory.h"
#include "gemm.h"
#include "core/base/progress.h"

#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>

// op(a) (m,k) times op(b) (k,n), where `op` transposes what is stored the other way round; `lda` and `ldb` are the
// lengths of rows as they are stored.
static void multiply(real *out, int ldo, const real *a, int lda, int a_transposed, const real *b, int ldb,
                     int b_transposed, int m, int n, int k, real beta) {
#if HAVE_OWN_GEMM
    Strided left = {a, a_transposed ? 1 : lda, a_transposed ? lda : 1},
            right = {b, b_transposed ? 1 : ldb, b_transposed ? ldb : 1};
    gemm(out, ldo, left, right, m, n, k, beta != 0);
#else
    real_gemm(CblasRowMajor, a_transposed ? CblasTrans : CblasNoTrans, b_transposed ? CblasTrans : CblasNoTrans, m, n,
              k, 1, a, lda, b, ldb, beta, out, ldo);
#endif
}

// A single row (decoding) is a matrix-vector product, which BLAS reads at the memory's speed.
void matmul(real *out, const real *a, const real *b, int m, int n, int k, real beta) {
    if (m == 1)
        real_gemv(CblasRowMajor, CblasTrans, k, n, 1, b, n, a, 1, beta, out, 1);
    else
        multiply(out, n, a, k, 0, b, n, 0, m, n, k, beta);
}

void matmul_nt(real *out, const real *a, const real *b, int m, int n, int k, real beta) {
    if (m == 1)
        real_gemv(CblasRowMajor, CblasNoTrans, n, k, 1, b, k, a, 1, beta, out, 1);
    else
        multiply(out, n, a, k, 0, b, k, 1, m, n, k, beta);
}

void matmul_tn(real *out, const real *a, const real *b, int m, int n, int k, real beta) {
    multiply(out, n, a, m, 1, b, n, 0, m, n, k, beta);
}

void matmul_nt_strided(real *out, int stride, const real *a, const real *b, int m, int n, int k) {
    multiply(out, stride, a, k, 0, b, k, 1, m, n, k, 0);
}

void matmul_strided_n(real *out, const real *a, int stride, const real *b, int m, int n, int k) {
    multiply(out, n, a, stride, 0, b, n, 0, m, n, k, 0);
}

void matmul_strided_tn(real *out, const real *a, int stride, const real *b, int m, int n, int k, real beta) {
    multiply(out, n, a, stride, 1, b, n, 0, m, n, k, beta);
}

static void measured_by_blas(real *out, const real *a, const real *b, int size) {
    real_gemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, size, size, size, 1, a, size, b, size, 0, out, size);
}

static void measured_here(real *out, const real *a, const real *b, int size) {
    matmul(out, a, b, size, size, size, 0);
}

double matmul_measure_gflops(void) {
    enum { SIZE = 768, RUNS = 5 };
    void (*const ways[])(real *, const real *, const real *, int) = {measured_by_blas, measured_here};
    size_t count = (size_t)SIZE * SIZE;
    real *a = memory_allocate(3 * count, sizeof(real), "the sgemm measurement");
    for (size_t i = 0; i < 3 * count; i++) a[i] = (real)(i % 13) / 13;
    double best = 1e30;
    for (int run = 0; run <= RUNS; run++) // the best of a few: other processes may be running
        for (int way = 0; way < 1 + HAVE_OWN_GEMM; way++) {
            double start = clock_seconds();
            ways[way](a + 2 * count, a, a + count, SIZE);
            double seconds = clock_seconds() - start;
            if (run > 0 && seconds < best) best = seconds;
        }
    free(a);
    return 2.0 * SIZE * SIZE * SIZE / best / 1e9;
}

const char *matmul_library(void) {
    static char text[128];
    int threading = openblas_get_parallel();
    const char *kind = threading == 2 ? "openmp" : threading == 1 ? "pthreads" : "single-threaded";
    if (threading != 2)
        warn("this OpenBLAS is %s, which is slower beside OpenMP; install libopenblas-openmp-dev", kind);
    snprintf(text, sizeof text, "%sOpenBLAS (%.40s kernels, %s)", HAVE_OWN_GEMM ? "own products, " : "",
             openblas_get_corename(), kind);
    return text;
}
