// Our matrix product against OpenBLAS's on the products of training steps, in turns, each time on operands that the
// caches have forgotten: GFLOP/s of both and their ratio. About a minute.
#include "core/base/memory.h"
#include "core/math/gemm.h"
#include "core/base/progress.h"
#include "core/base/threads.h"

#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 11 };

static const struct {
    const char *what;
    int m, n, k, a_transposed, b_transposed;
} cases[] = {{"124M, 256 rows: fc forward", 256, 3072, 768, 0, 0},
             {"124M, 256 rows: fc backward", 256, 768, 3072, 0, 1},
             {"124M, 256 rows: fc weights", 768, 3072, 256, 1, 0},
             {"124M, 1024 rows: fc forward", 1024, 3072, 768, 0, 0},
             {"124M, 1024 rows: fc backward", 1024, 768, 3072, 0, 1},
             {"124M, 1024 rows: fc weights", 768, 3072, 1024, 1, 0},
             {"124M, 384 rows: logits", 384, 50257, 768, 0, 1},
             {"124M, 384 rows: head backward", 384, 768, 50257, 0, 0},
             {"124M, 384 rows: head weights", 50257, 768, 384, 1, 0},
             {"6 x 256, 1024 rows: fc forward", 1024, 1024, 256, 0, 0},
             {"6 x 256, 1024 rows: fc backward", 1024, 256, 1024, 0, 1},
             {"6 x 256, 1024 rows: fc weights", 256, 1024, 1024, 1, 0}};

static real *numbers(size_t count) {
    real *x = memory_allocate(count, sizeof *x, "a matrix");
    for (size_t i = 0; i < count; i++) x[i] = (real)(i % 101) / 50 - 1;
    return x;
}

static void empty_caches(void) {
    enum { COUNT = 64 << 18 };
    static real *other;
    if (!other) other = numbers(COUNT);
#pragma omp parallel for
    for (int i = 0; i < COUNT; i += 16) other[i] += 1;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void run_case(int which) {
    int m = cases[which].m, n = cases[which].n, k = cases[which].k;
    int a_transposed = cases[which].a_transposed, b_transposed = cases[which].b_transposed, lda = a_transposed ? m : k,
        ldb = b_transposed ? k : n;
    real *a = numbers((size_t)m * (size_t)k), *b = numbers((size_t)k * (size_t)n), *c = numbers((size_t)m * (size_t)n);
    Strided left = {a, a_transposed ? 1 : lda, a_transposed ? lda : 1}, right = {b, b_transposed ? 1 : ldb, b_transposed ? ldb : 1};
    double blas[ROUNDS], ours[ROUNDS], ratios[ROUNDS], billions = 2e-9 * m * n * k;
    for (int round = 0; round < ROUNDS; round++) {
        empty_caches();
        double start = clock_seconds();
        real_gemm(CblasRowMajor, a_transposed ? CblasTrans : CblasNoTrans, b_transposed ? CblasTrans : CblasNoTrans, m, n, k, 1,
                  a, lda, b, ldb, 0, c, n);
        blas[round] = clock_seconds() - start;
        empty_caches();
        start = clock_seconds();
        gemm(c, n, left, right, m, n, k, 0);
        ours[round] = clock_seconds() - start;
        ratios[round] = blas[round] / ours[round];
    }
    qsort(blas, ROUNDS, sizeof *blas, by_size), qsort(ours, ROUNDS, sizeof *ours, by_size);
    qsort(ratios, ROUNDS, sizeof *ratios, by_size);
    printf("%-32s %8.0f %8.0f %8.2fx (%.2f .. %.2f)\n", cases[which].what, billions / ours[ROUNDS / 2],
           billions / blas[ROUNDS / 2], ratios[ROUNDS / 2], ratios[ROUNDS / 4], ratios[ROUNDS - 1 - ROUNDS / 4]);
    fflush(stdout);
    free(a), free(b), free(c);
}

int main(int argc, char **argv) {
    (void)argc;
    threads_restart_with_wait_policy(argv);
    printf("GFLOP/s, medians of %d rounds in turns%22s\n%-32s %8s %8s %9s (quartiles)\n", ROUNDS, "", "", "ours",
           "OpenBLAS", "ratio");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) run_case((int)i);
    return 0;
}
