// Newton and Schulz's iteration against a plain twin in double, which follows the formula as it is written; the
// singular values that come out; zeros, any scale, any number of threads.
#include "newton_schulz.h"
#include "core/base/memory.h"
#include "gemm.h"
#include "core/base/random.h"
#include "core/base/test.h"

#include <omp.h>

static const int sizes[][2] = {{1, 1}, {1, 7}, {7, 1}, {5, 5}, {16, 48}, {48, 16}, {33, 132}, {132, 33}, {96, 96}};
enum { SIZES = sizeof sizes / sizeof *sizes };

static real *random_matrix(int rows, int columns, double scale) {
    size_t count = (size_t)rows * (size_t)columns;
    real *x = memory_allocate(count, sizeof *x, "a matrix");
    random_fill_normal(x, count, random_key(3, "newton-schulz", count), scale);
    return x;
}

// X <- a X + (b A + c A A) X with A = X X^T, loop by loop
static void naive_newton_schulz(double *x, int rows, int columns) {
    size_t R = (size_t)rows, C = (size_t)columns;
    double *A = memory_allocate(R * R, sizeof *A, "A"), *B = memory_allocate(R * R, sizeof *B, "B");
    double *y = memory_allocate(R * C, sizeof *y, "y"), squares = 0;
    for (size_t i = 0; i < R * C; i++) squares += x[i] * x[i];
    for (size_t i = 0; i < R * C; i++) x[i] /= sqrt(squares) + 1e-7;
    for (int step = 0; step < 5; step++) {
        for (size_t i = 0; i < R; i++)
            for (size_t j = 0; j < R; j++) {
                A[i * R + j] = 0;
                for (size_t k = 0; k < C; k++) A[i * R + j] += x[i * C + k] * x[j * C + k];
            }
        for (size_t i = 0; i < R; i++)
            for (size_t j = 0; j < R; j++) {
                B[i * R + j] = -4.7750 * A[i * R + j];
                for (size_t k = 0; k < R; k++) B[i * R + j] += 2.0315 * A[i * R + k] * A[k * R + j];
            }
        for (size_t i = 0; i < R; i++)
            for (size_t j = 0; j < C; j++) {
                y[i * C + j] = 3.4445 * x[i * C + j];
                for (size_t k = 0; k < R; k++) y[i * C + j] += B[i * R + k] * x[k * C + j];
            }
        memcpy(x, y, R * C * sizeof *x);
    }
    free(A), free(B), free(y);
}

static void run(real *x, int rows, int columns) {
    real *work = memory_allocate(newton_schulz_work(rows, columns), sizeof *work, "scratch");
    newton_schulz(x, rows, columns, work);
    free(work);
}

static void twin(void) {
    for (int s = 0; s < SIZES; s++) {
        int rows = sizes[s][0], columns = sizes[s][1];
        size_t count = (size_t)rows * (size_t)columns;
        real *x = random_matrix(rows, columns, 1);
        double *expected = memory_allocate(count, sizeof *expected, "a matrix");
        for (size_t i = 0; i < count; i++) expected[i] = x[i];
        naive_newton_schulz(expected, rows, columns);
        run(x, rows, columns);
        for (size_t i = 0; i < count; i++) CHECK_CLOSE(x[i], expected[i], sizeof(real) == 4 ? 2e-5 : 1e-12);
        free(x), free(expected);
    }
}

// |v^T X| of a direction v lies between the smallest and the largest singular value.
static void singular_values(void) {
    int rows = 24, columns = 64;
    real *x = random_matrix(rows, columns, 0.3), *v = random_matrix(rows, 1, 1);
    run(x, rows, columns);
    for (int trial = 0; trial < 50; trial++) {
        double squares = 0, norm = 0;
        random_fill_normal(v, (size_t)rows, random_key(4, "direction", (uint64_t)trial), 1);
        for (int r = 0; r < rows; r++) norm += (double)v[r] * (double)v[r];
        for (int c = 0; c < columns; c++) {
            double sum = 0;
            for (int r = 0; r < rows; r++) sum += (double)v[r] * (double)x[r * columns + c];
            squares += sum * sum;
        }
        CHECK(squares / norm > 0.6 * 0.6 && squares / norm < 1.25 * 1.25);
    }
    free(x), free(v);
}

static void zeros_and_scales(void) {
    real zeros[12] = {0}, *small = random_matrix(6, 9, 1e-3), *large = random_matrix(6, 9, 1e3);
    run(zeros, 3, 4);
    for (int i = 0; i < 12; i++) CHECK(zeros[i] == 0);
    run(small, 6, 9), run(large, 6, 9);
    for (int i = 0; i < 54; i++) CHECK_CLOSE(small[i], large[i], 2e-4); // but for the epsilon
    free(small), free(large);
}

static void threads(void) {
    if (!HAVE_OWN_GEMM) SKIP("products are BLAS's here, which promises no such thing");
    real *one = random_matrix(64, 192, 1), *several = random_matrix(64, 192, 1);
    int before = omp_get_max_threads();
    omp_set_num_threads(1);
    run(one, 64, 192);
    omp_set_num_threads(3);
    run(several, 64, 192);
    omp_set_num_threads(before);
    CHECK(!memcmp(one, several, 64 * 192 * sizeof(real)));
    free(one), free(several);
}

int main(void) {
    RUN(twin);
    RUN(singular_values);
    RUN(zeros_and_scales);
    RUN(threads);
    return test_summary();
}
