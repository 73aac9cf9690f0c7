// Matrix products in every orientation against plain loops in double, at sizes around every block and strip of
// core/math/gemm.c; the same bits for any number of threads; our own product beside BLAS's.
#include "matmul.h"
#include "core/base/memory.h"
#include "gemm.h"
#include "core/base/random.h"
#include "core/base/test.h"

#include <cblas.h>
#include <omp.h>

static const int sizes[][3] = {{2, 1, 1},    {2, 3, 5},     {6, 16, 8},     {7, 17, 9},     {5, 15, 257}, {13, 33, 256},
                               {97, 31, 64}, {96, 48, 255}, {100, 130, 70}, {101, 37, 515}, {8, 1553, 20}};
enum { SIZES = sizeof sizes / sizeof *sizes };

typedef enum { NN, NT, TN, ORIENTATIONS } Orientation;

typedef struct {
    int m, n, k;
    real *a, *b;      // (m,k), (k,n)
    real *a_t, *b_t;  // the same, transposed
    real *before;     // (m,n): what is in the result when it is added to
    double *expected; // (m,n): of the product alone
    double *bound;    // (m,n): what rounding may do to it
} Problem;

static real *random_numbers(size_t count, uint64_t stream) {
    real *x = memory_allocate(count, sizeof *x, "test numbers");
    random_fill_normal(x, count, random_key(7, "matmul", stream), 1);
    return x;
}

static real *transposed(const real *x, int rows, int columns) {
    real *out = memory_allocate((size_t)rows * (size_t)columns, sizeof *out, "test numbers");
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) out[j * rows + i] = x[i * columns + j];
    return out;
}

static Problem problem_of(int m, int n, int k) {
    Problem p = {
        .m = m, .n = n, .k = k, .a = random_numbers((size_t)(m * k), 1), .b = random_numbers((size_t)(k * n), 2)};
    p.a_t = transposed(p.a, m, k), p.b_t = transposed(p.b, k, n);
    p.before = random_numbers((size_t)(m * n), 3);
    p.expected = memory_allocate_zeroed((size_t)(m * n), sizeof(double), "test results");
    p.bound = memory_allocate_zeroed((size_t)(m * n), sizeof(double), "test bounds");
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++)
            for (int l = 0; l < k; l++) {
                double term = (double)p.a[i * k + l] * (double)p.b[l * n + j];
                p.expected[i * n + j] += term;
                p.bound[i * n + j] += 1e-6 * fabs(term);
            }
    return p;
}

static void problem_free(Problem *p) {
    free(p->a), free(p->b), free(p->a_t), free(p->b_t), free(p->before), free(p->expected), free(p->bound);
}

// out (m,n), of which only what the product writes changes.
static void multiply(real *out, const Problem *p, Orientation orientation, real beta) {
    if (orientation == NN) matmul(out, p->a, p->b, p->m, p->n, p->k, beta);
    if (orientation == NT) matmul_nt(out, p->a, p->b_t, p->m, p->n, p->k, beta);
    if (orientation == TN) matmul_tn(out, p->a_t, p->b, p->m, p->n, p->k, beta);
}

static real *product_of(const Problem *p, Orientation orientation, real beta) {
    size_t count = (size_t)(p->m * p->n);
    real *out = memory_allocate(count + 1, sizeof *out, "test results");
    for (size_t i = 0; i < count; i++) out[i] = beta == 0 ? (real)NAN : p->before[i];
    out[count] = 42; // after the end
    multiply(out, p, orientation, beta);
    CHECK(out[count] == 42);
    return out;
}

static void all_orientations_are_right(void) {
    for (int s = 0; s < SIZES; s++) {
        Problem p = problem_of(sizes[s][0], sizes[s][1], sizes[s][2]);
        for (int orientation = 0; orientation < ORIENTATIONS; orientation++)
            for (int beta = 0; beta <= 1; beta++) {
                real *out = product_of(&p, (Orientation)orientation, (real)beta);
                for (int i = 0; i < p.m * p.n; i++) {
                    double added = beta ? (double)p.before[i] : 0;
                    CHECK_CLOSE(out[i], added + p.expected[i], p.bound[i] + 1e-6 * fabs(added));
                }
                free(out);
            }
        problem_free(&p);
    }
}

// The head's products: rows of the wide matrix are farther apart than they are long, and what lies between stays.
static void strided_rows(void) {
    Problem p = problem_of(37, 53, 65);
    int stride = 80;
    real *wide = memory_allocate((size_t)(p.m * stride), sizeof *wide, "test results");
    for (int i = 0; i < p.m * stride; i++) wide[i] = 42;
    matmul_nt_strided(wide, stride, p.a, p.b_t, p.m, p.n, p.k);
    for (int i = 0; i < p.m; i++)
        for (int j = 0; j < stride; j++) {
            if (j < p.n)
                CHECK_CLOSE(wide[i * stride + j], p.expected[i * p.n + j], p.bound[i * p.n + j]);
            else
                CHECK(wide[i * stride + j] == 42);
        }
    free(wide);
    // a as a wide matrix, and as one that is used transposed
    real *strided = memory_allocate((size_t)(p.m * stride), sizeof *strided, "test numbers");
    real *strided_t = memory_allocate((size_t)(p.k * stride), sizeof *strided_t, "test numbers");
    for (int i = 0; i < p.m; i++)
        for (int l = 0; l < p.k; l++) strided[i * stride + l] = strided_t[l * stride + i] = p.a[i * p.k + l];
    real *out = random_numbers((size_t)(p.m * p.n), 4), *out_t = random_numbers((size_t)(p.m * p.n), 5);
    matmul_strided_n(out, strided, stride, p.b, p.m, p.n, p.k);
    matmul_strided_tn(out_t, strided_t, stride, p.b, p.m, p.n, p.k, 0);
    for (int i = 0; i < p.m * p.n; i++) {
        CHECK_CLOSE(out[i], p.expected[i], p.bound[i]);
        CHECK_CLOSE(out_t[i], p.expected[i], p.bound[i]);
    }
    free(strided), free(strided_t), free(out), free(out_t), problem_free(&p);
}

// Large enough that several threads take part.
static void the_same_bits_with_any_number_of_threads(void) {
    if (!HAVE_OWN_GEMM) SKIP("products are BLAS's here, which promises no such thing");
    Problem p = problem_of(150, 210, 300);
    for (int orientation = 0; orientation < ORIENTATIONS; orientation++) {
        omp_set_num_threads(1);
        real *one = product_of(&p, (Orientation)orientation, 1);
        for (int threads = 2; threads <= 12; threads++) {
            omp_set_num_threads(threads);
            real *many = product_of(&p, (Orientation)orientation, 1);
            CHECK(memcmp(one, many, (size_t)(p.m * p.n) * sizeof *one) == 0);
            free(many);
        }
        free(one);
    }
    omp_set_num_threads(omp_get_num_procs());
    problem_free(&p);
}

static void the_same_as_blas(void) {
    Problem p = problem_of(130, 200, 700);
    real *ours = product_of(&p, NN, 0), *blas = random_numbers((size_t)(p.m * p.n), 6);
    real_gemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, p.m, p.n, p.k, 1, p.a, p.k, p.b, p.n, 0, blas, p.n);
    for (int i = 0; i < p.m * p.n; i++) CHECK_CLOSE(ours[i], blas[i], p.bound[i]);
    free(ours), free(blas), problem_free(&p);
}

// A number that is not finite reaches the results it takes part in, and no others, even where blocks are padded.
static void bad_numbers_stay_in_their_row(void) {
    Problem p = problem_of(20, 21, 22);
    p.a[3 * p.k + 21] = (real)NAN;
    real *out = product_of(&p, NN, 0);
    for (int i = 0; i < p.m; i++)
        for (int j = 0; j < p.n; j++) CHECK(isnan(out[i * p.n + j]) == (i == 3));
    free(out), problem_free(&p);
}

int main(void) {
    RUN(all_orientations_are_right);
    RUN(strided_rows);
    RUN(the_same_bits_with_any_number_of_threads);
    RUN(the_same_as_blas);
    RUN(bad_numbers_stay_in_their_row);
    return test_summary();
}
