// Products of a packed matrix and a vector against plain loops in double, for every kind, at odd sizes.
#include "matvec.h"
#include "core/base/memory.h"
#include "core/base/random.h"
#include "core/base/test.h"

#include <omp.h>
#include <stdint.h>
#include <stdlib.h>

static const int sizes[][2] = {{1, 1}, {3, 5}, {4, 16}, {5, 17}, {7, 15}, {8, 64}, {33, 100}, {130, 1030}, {9, 2049}};
enum { SIZES = sizeof sizes / sizeof *sizes };

typedef struct { // a random problem and its answer
    int rows, columns;
    real *source, *transposed; // (rows, columns), (columns, rows)
    real *x, *bias, *residual;
    char *memory;
    WeightKind kind;
    PackedMatrix matrix;
} Problem;

static real *random_numbers(size_t count, uint64_t stream) {
    real *x = memory_allocate(count, sizeof *x, "test numbers");
    random_fill_normal(x, count, random_key(7, "matvec", stream), 1);
    return x;
}

static Problem problem_of(WeightKind kind, int rows, int columns, SourceOrder order) {
    Problem p = {.rows = rows, .columns = columns, .kind = kind};
    p.source = random_numbers((size_t)rows * (size_t)columns, 1);
    p.transposed = random_numbers((size_t)rows * (size_t)columns, 2);
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) p.transposed[(size_t)c * rows + r] = p.source[(size_t)r * columns + c];
    p.x = random_numbers((size_t)columns, 3);
    p.bias = random_numbers((size_t)rows, 4);
    p.residual = random_numbers((size_t)rows, 5);
    size_t bytes = packed_bytes(kind, rows, columns);
    CHECK(bytes % 64 == 0);
    p.memory = memory_allocate(bytes, 1, "a packed matrix");
    memset(p.memory, 0xFF, bytes); // NaN wherever packing leaves a hole
    p.matrix = packed_create(kind, rows, columns, p.memory, order == SOURCE_ROWS ? p.source : p.transposed, order);
    return p;
}

static void problem_free(Problem *p) {
    packed_free(&p->matrix);
    free(p->source), free(p->transposed), free(p->x), free(p->bias), free(p->residual), free(p->memory);
}

static void multiply(real *out, const Problem *p, const real *bias, const real *residual, int threads) {
    int taken = 0;
    omp_set_num_threads(threads);
#pragma omp parallel
    {
        MatvecInput input = matvec_input_create(p->columns);
        p->matrix.format->set_input(&input, p->x, p->columns);
        SharedRows rows = {&p->matrix, omp_get_thread_num(), omp_get_num_threads(), &taken, 0};
        for (RowRange range; shared_rows_next(&rows, &range);) matvec(out, &p->matrix, &input, bias, residual, range);
        matvec_input_free(&input);
    }
}

// How far a weight may be from what it was: half a step of the kind. bf16's steps get no finer below 2^-14 of the
// largest.
static double weight_error(WeightKind kind, double weight, double largest) {
    double bf16 = fmax(fabs(weight) / 256, ldexp(largest, -22));
    return kind == WEIGHTS_FP32 ? 0 : kind == WEIGHTS_BF16 ? bf16 : largest / 254;
}

static double row_largest(const Problem *p, int r) {
    double largest = 0;
    for (int c = 0; c < p->columns; c++) largest = fmax(largest, fabs((double)p->source[(size_t)r * p->columns + c]));
    return largest;
}

// The expanded weights are the source's within half a step, and rows expand alone as they do together.
static void check_expanded(const Problem *p, const real *expanded) {
    real *row = memory_allocate((size_t)p->columns, sizeof *row, "a row");
    for (int r = 0; r < p->rows; r++) {
        double largest = row_largest(p, r);
        const real *together = expanded + (size_t)r * p->columns;
        packed_expand(row, &p->matrix, r, 1);
        CHECK(memcmp(row, together, (size_t)p->columns * sizeof *row) == 0);
        for (int c = 0; c < p->columns; c++) {
            double weight = p->source[(size_t)r * p->columns + c];
            CHECK_CLOSE(together[c], weight, 1.0001 * weight_error(p->kind, weight, largest));
        }
    }
    free(row);
}

// The product is the plain one of the expanded weights: up to the rounding of sums and, for int8, of the vector.
static void check_product(const Problem *p, const real *expanded, const real *out) {
    double largest_x = 0;
    for (int c = 0; c < p->columns; c++) largest_x = fmax(largest_x, fabs((double)p->x[c]));
    for (int r = 0; r < p->rows; r++) {
        double sum = (double)p->bias[r] + (double)p->residual[r], magnitude = fabs(sum), weights = 0;
        for (int c = 0; c < p->columns; c++) {
            double weight = expanded[(size_t)r * p->columns + c], product = weight * (double)p->x[c];
            sum += product, magnitude += fabs(product), weights += fabs(weight);
        }
        double tolerance = 1e-6 * magnitude;
        if (p->kind == WEIGHTS_INT8) tolerance += weights * largest_x / 32766;
        CHECK_CLOSE(out[r], sum, tolerance);
    }
}

static void products_of(WeightKind kind) {
    for (int i = 0; i < 2 * SIZES; i++) {
        Problem p = problem_of(kind, sizes[i / 2][0], sizes[i / 2][1], i % 2 ? SOURCE_COLUMNS : SOURCE_ROWS);
        real *expanded = memory_allocate((size_t)p.rows * (size_t)p.columns, sizeof *expanded, "weights");
        real *out = memory_allocate((size_t)p.rows, sizeof *out, "the product");
        packed_expand(expanded, &p.matrix, 0, p.rows);
        multiply(out, &p, p.bias, p.residual, 2);
        check_expanded(&p, expanded);
        check_product(&p, expanded, out);
        free(expanded), free(out);
        problem_free(&p);
    }
}

static void fp32_products(void) {
    products_of(WEIGHTS_FP32);
}

static void bf16_products(void) {
    products_of(WEIGHTS_BF16);
}

static void int8_products(void) {
    products_of(WEIGHTS_INT8);
}

// Weights from the largest to below the smallest normal float, side by side in a row: fp32 gives every bit back, and
// the product is the plain one's.
static void fp32_keeps_every_bit(void) {
    enum { ROWS = 40, COLUMNS = 150 };
    Problem p = problem_of(WEIGHTS_FP32, ROWS, COLUMNS, SOURCE_ROWS);
    real expanded[ROWS * COLUMNS], out[ROWS];
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        int spread = i / COLUMNS * 6, shift = (int)(random_word(9, (uint64_t)i) % (unsigned)(spread + 1)) - spread / 2;
        p.source[i] = (real)ldexp(p.source[i], shift);
    }
    packed_free(&p.matrix);
    p.matrix = packed_create(WEIGHTS_FP32, ROWS, COLUMNS, p.memory, p.source, SOURCE_ROWS);
    packed_expand(expanded, &p.matrix, 0, ROWS);
    CHECK(memcmp(expanded, p.source, sizeof expanded) == 0);
    CHECK(p.matrix.first_rest != NULL && p.matrix.first_rest[ROWS] > ROWS);
    multiply(out, &p, p.bias, p.residual, 2);
    check_product(&p, expanded, out);
    problem_free(&p);
}

// Vectors of any magnitude: no product is lost for being too small or too large.
static void vectors_of_any_size(void) {
    for (int kind = 0; kind < WEIGHT_KINDS; kind++)
        for (int exponent = -110; exponent <= 110; exponent += 20) {
            Problem p = problem_of((WeightKind)kind, 6, 130, SOURCE_ROWS);
            real plain[6], out[6];
            multiply(plain, &p, NULL, NULL, 1);
            for (int c = 0; c < 130; c++) p.x[c] = (real)ldexp(p.x[c], exponent);
            multiply(out, &p, NULL, NULL, 1);
            for (int r = 0; r < 6; r++) CHECK_CLOSE(ldexp(out[r], -exponent), plain[r], 1e-6 * fabs((double)plain[r]));
            problem_free(&p);
        }
}

// A weight that is not finite makes its output NaN, and no other.
static void weights_that_are_not_finite(void) {
    const real bad[] = {(real)NAN, (real)INFINITY, -(real)INFINITY};
    for (int i = 0; i < 3 * WEIGHT_KINDS; i++) {
        Problem p = problem_of((WeightKind)(i / 3), 6, 40, SOURCE_ROWS);
        real out[6];
        p.source[2 * 40 + 17] = bad[i % 3];
        packed_free(&p.matrix);
        p.matrix = packed_create((WeightKind)(i / 3), 6, 40, p.memory, p.source, SOURCE_ROWS);
        multiply(out, &p, NULL, NULL, 2);
        for (int r = 0; r < 6; r++) CHECK(r == 2 ? isnan(out[r]) : isfinite(out[r]));
        problem_free(&p);
    }
}

// 1, 2 and 7 threads give the same bits; so do both orders of the source, and a residual that is the output.
static void same_bits_with_any_threads(void) {
    for (int i = 0; i < SIZES * WEIGHT_KINDS; i++) {
        WeightKind kind = (WeightKind)(i % WEIGHT_KINDS);
        int rows = sizes[i / WEIGHT_KINDS][0], columns = sizes[i / WEIGHT_KINDS][1];
        size_t bytes = (size_t)rows * sizeof(real);
        real *expected = memory_allocate(bytes, 1, "a product"), *found = memory_allocate(bytes, 1, "a product");
        omp_set_num_threads(1);
        Problem p = problem_of(kind, rows, columns, SOURCE_ROWS);
        multiply(expected, &p, NULL, p.residual, 1);
        for (int threads = 1; threads <= 7; threads += threads == 1 ? 1 : 5) {
            omp_set_num_threads(threads);
            Problem q = problem_of(kind, rows, columns, SOURCE_COLUMNS);
            memcpy(found, q.residual, bytes);
            multiply(found, &q, NULL, found, threads);
            CHECK(memcmp(found, expected, bytes) == 0);
            problem_free(&q);
        }
        problem_free(&p);
        free(expected), free(found);
    }
}

// The largest weights and inputs there are: whole-number sums must not overflow.
static void int8_extremes(void) {
    int columns = 3000;
    real *ones = memory_allocate((size_t)columns, sizeof *ones, "ones");
    for (int c = 0; c < columns; c++) ones[c] = c % 2 ? -1 : 1;
    Problem p = problem_of(WEIGHTS_INT8, 1, columns, SOURCE_ROWS);
    PackedMatrix matrix = packed_create(WEIGHTS_INT8, 1, columns, p.memory, ones, SOURCE_ROWS);
    p.matrix = matrix;
    memcpy(p.x, ones, (size_t)columns * sizeof *ones);
    real out;
    multiply(&out, &p, NULL, NULL, 1);
    CHECK_CLOSE(out, columns, 1e-3);
    free(ones);
    problem_free(&p);
}

// Zero rows and vectors give zeros; a number that is not finite in the vector gives NaN, never something plausible.
static void zeros_and_numbers_that_are_not_finite(void) {
    for (int kind = 0; kind < WEIGHT_KINDS; kind++) {
        Problem p = problem_of((WeightKind)kind, 6, 40, SOURCE_ROWS);
        real out[6], bad[] = {(real)NAN, (real)INFINITY, -(real)INFINITY};
        memset(p.x, 0, 40 * sizeof *p.x);
        multiply(out, &p, NULL, NULL, 2);
        for (int r = 0; r < 6; r++) CHECK(out[r] == 0);
        for (int i = 0; i < 3; i++) {
            p.x[17] = bad[i];
            multiply(out, &p, NULL, NULL, 2);
            for (int r = 0; r < 6; r++) CHECK(!isfinite(out[r]));
        }
        memset(p.source, 0, 40 * sizeof *p.source);
        packed_free(&p.matrix);
        p.matrix = packed_create((WeightKind)kind, 6, 40, p.memory, p.source, SOURCE_ROWS);
        p.x[17] = 3;
        multiply(out, &p, NULL, NULL, 2);
        CHECK(out[0] == 0 && out[1] != 0);
        problem_free(&p);
    }
}

static PackedMatrix matrix_of(int rows) { // without numbers
    return (PackedMatrix){.rows = rows, .columns = 1};
}

// The shares, in which threads pack, follow each other up to the last row.
static void shares_cover_the_rows(void) {
    for (int rows = 1; rows < 200; rows++) {
        PackedMatrix matrix = matrix_of(rows);
        for (int threads = 1; threads < 9; threads++) {
            int next = 0;
            for (int t = 0; t < threads; t++) {
                RowRange range = packed_share(&matrix, t, threads);
                CHECK(range.first == next || range.first >= range.last);
                if (range.last > range.first) next = range.last;
            }
            CHECK(next == rows);
        }
    }
}

// Counts how often each row is taken when thread `late` comes after all the others have finished.
static void take_rows(int *times, const PackedMatrix *matrix, int threads, int late) {
    int taken = 0;
    for (int i = 0; i < threads; i++) {
        SharedRows rows = {matrix, (late + 1 + i) % threads, threads, &taken, 0};
        for (RowRange range; shared_rows_next(&rows, &range);) {
            CHECK(range.first % 16 == 0 && range.first < range.last);
            CHECK(range.last % 16 == 0 || range.last == matrix->rows);
            for (int r = range.first; r < range.last; r++) times[r]++;
        }
    }
}

static void threads_take_every_row_once(void) {
    enum { MOST = 3072 };
    static int times[MOST];
    static const int sizes[] = {1, 4, 15, 16, 17, 63, 64, 200, 257, 768, 1000, MOST};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        PackedMatrix matrix = matrix_of(sizes[i]);
        for (int threads = 1; threads < 9; threads++)
            for (int late = 0; late < threads; late++) {
                memset(times, 0, sizeof times);
                take_rows(times, &matrix, threads, late);
                for (int r = 0; r < sizes[i]; r++) CHECK(times[r] == 1);
            }
    }
}

// A thread that comes late finds only its own part: the others have taken the pieces.
static void who_is_ready_takes_more(void) {
    PackedMatrix matrix = matrix_of(1024);
    int taken = 0, rows_of[2] = {0};
    for (int thread = 0; thread < 2; thread++) {
        SharedRows rows = {&matrix, thread, 2, &taken, 0};
        for (RowRange range; shared_rows_next(&rows, &range);) rows_of[thread] += range.last - range.first;
    }
    CHECK(rows_of[0] == 640 && rows_of[1] == 384);
}

int main(void) {
    omp_set_dynamic(0);
    RUN(fp32_products);
    RUN(bf16_products);
    RUN(int8_products);
    RUN(fp32_keeps_every_bit);
    RUN(vectors_of_any_size);
    RUN(weights_that_are_not_finite);
    RUN(same_bits_with_any_threads);
    RUN(int8_extremes);
    RUN(zeros_and_numbers_that_are_not_finite);
    RUN(shares_cover_the_rows);
    RUN(threads_take_every_row_once);
    RUN(who_is_ready_takes_more);
    return test_summary();
}
