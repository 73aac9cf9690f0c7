// The rate of multiplications and additions alone, without any memory: what no product can exceed.
#ifndef DEV_BENCH_PEAK_H
#define DEV_BENCH_PEAK_H

#include "core/base/progress.h"
#include "core/math/vectors.h"

#include <omp.h>

enum { SUMS = 12 }; // side by side: enough to hide the time that one of them takes

static inline void multiply_and_add(real *out, real factor, real summand, int rounds) {
    Vector sums[SUMS];
    for (int i = 0; i < SUMS; i++) sums[i] = (Vector){0} + (real)i; // different: equal ones would be computed once
    for (int round = 0; round < rounds; round++)
#pragma GCC unroll 12
        for (int i = 0; i < SUMS; i++) sums[i] = sums[i] * factor + summand;
    for (int i = 0; i < SUMS; i++) *out += sums[i][0];
}

// Operations per second, the best of a few runs of some hundredths of a second.
static inline double measure_multiplying(void) {
    enum { ROUNDS = 2000000, OPERATIONS = 2 * SUMS * LANES };
    volatile real factor = (real)0.5, summand = 1, used;
    real sum = 0;
    double best = 1e30;
    for (int run = 0; run < 5; run++) {
        double start = clock_seconds();
#pragma omp parallel reduction(+ : sum)
        multiply_and_add(&sum, factor, summand, ROUNDS);
        double seconds = clock_seconds() - start;
        if (seconds < best) best = seconds;
    }
    used = sum; // or nothing would be multiplied at all
    (void)used;
    return (double)OPERATIONS * ROUNDS * omp_get_max_threads() / best;
}

#endif
