#include "matmul.h"
#include "error.h"
#include "memory.h"
#include "progress.h"

#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>

static void gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, real *out, int ldo, const real *a, int lda, const real *b,
                 int ldb, int m, int n, int k, real beta) {
    real_gemm(CblasRowMajor, ta, tb, m, n, k, 1, a, lda, b, ldb, beta, out, ldo);
}

// A single row (decoding) is a matrix-vector product, which BLAS reads at the memory's speed.
void matmul(real *out, const real *a, const real *b, int m, int n, int k, real beta) {
    if (m == 1)
        real_gemv(CblasRowMajor, CblasTrans, k, n, 1, b, n, a, 1, beta, out, 1);
    else
        gemm(CblasNoTrans, CblasNoTrans, out, n, a, k, b, n, m, n, k, beta);
}

void matmul_nt(real *out, const real *a, const real *b, int m, int n, int k, real beta) {
    if (m == 1)
        real_gemv(CblasRowMajor, CblasNoTrans, n, k, 1, b, k, a, 1, beta, out, 1);
    else
        gemm(CblasNoTrans, CblasTrans, out, n, a, k, b, k, m, n, k, beta);
}

void matmul_tn(real *out, const real *a, const real *b, int m, int n, int k, real beta) {
    gemm(CblasTrans, CblasNoTrans, out, n, a, m, b, n, m, n, k, beta);
}

void matmul_nt_strided(real *out, int stride, const real *a, const real *b, int m, int n, int k) {
    gemm(CblasNoTrans, CblasTrans, out, stride, a, k, b, k, m, n, k, 0);
}

void matmul_strided_n(real *out, const real *a, int stride, const real *b, int m, int n, int k) {
    gemm(CblasNoTrans, CblasNoTrans, out, n, a, stride, b, n, m, n, k, 0);
}

void matmul_strided_tn(real *out, const real *a, int stride, const real *b, int m, int n, int k, real beta) {
    gemm(CblasTrans, CblasNoTrans, out, n, a, stride, b, n, m, n, k, beta);
}

double matmul_measure_gflops(void) {
    enum { SIZE = 768, RUNS = 5 };
    size_t count = (size_t)SIZE * SIZE;
    real *a = memory_allocate(3 * count, sizeof(real), "the sgemm measurement");
    for (size_t i = 0; i < 3 * count; i++) a[i] = (real)(i % 13) / 13;
    double best = 1e30;
    for (int run = 0; run <= RUNS; run++) { // the best of a few: others may use the machine meanwhile
        double start = clock_seconds();
        matmul(a + 2 * count, a, a + count, SIZE, SIZE, SIZE, 0);
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
    snprintf(text, sizeof text, "OpenBLAS (%.40s kernels, %s)", openblas_get_corename(), kind);
    return text;
}
