#include "newton_schulz.h"
#include "matmul.h"

#include <math.h>
#include <string.h>

static size_t side_of(int rows, int columns) {
    return (size_t)(rows < columns ? rows : columns);
}

size_t newton_schulz_work(int rows, int columns) {
    size_t side = side_of(rows, columns);
    return 2 * side * side + (size_t)rows * (size_t)columns;
}

// x (count) / (its norm + epsilon). The sum is in the order of the numbers, whatever the threads.
static void normalize(real *x, size_t count) {
    enum { BLOCK = 4096 };
    double squares = 0;
    for (size_t first = 0; first < count; first += BLOCK) {
        size_t end = first + BLOCK < count ? first + BLOCK : count;
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (size_t i = first; i < end; i++) sum += (double)x[i] * (double)x[i];
        squares += sum;
    }
    real scale = (real)(1 / (sqrt(squares) + NEWTON_SCHULZ_EPSILON));
#pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < count; i++) x[i] *= scale;
}

// poly (n,n), which holds gram gram, becomes a + b gram + c gram gram.
static void polynomial(real *poly, const real *gram, size_t n) {
    const real a = (real)NEWTON_SCHULZ_A, b = (real)NEWTON_SCHULZ_B, c = (real)NEWTON_SCHULZ_C;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < n; j++) poly[i * n + j] = b * gram[i * n + j] + c * poly[i * n + j];
        poly[i * n + i] += a;
    }
}

void newton_schulz(real *x, int rows, int columns, real *work) {
    size_t side = side_of(rows, columns), count = (size_t)rows * (size_t)columns;
    int n = (int)side, is_wide = rows <= columns;
    real *gram = work, *poly = gram + side * side, *now = x, *next = poly + side * side;
    normalize(x, count);
    for (int step = 0; step < NEWTON_SCHULZ_STEPS; step++) {
        if (is_wide)
            matmul_nt(gram, now, now, n, n, columns, 0);
        else
            matmul_tn(gram, now, now, n, n, rows, 0);
        matmul(poly, gram, gram, n, n, n, 0);
        polynomial(poly, gram, side);
        if (is_wide)
            matmul(next, poly, now, rows, columns, n, 0);
        else
            matmul(next, now, poly, rows, columns, n, 0);
        real *before = now;
        now = next, next = before;
    }
    if (now != x) memcpy(x, now, count * sizeof *x);
}
