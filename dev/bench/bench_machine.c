// What the machine can do at this moment with all threads, as one line of JSON: the rate of multiplications and
// additions alone, that of a large matrix product, and that of reading memory from end to end. The other benchmarks ask
// in every round, because on a shared machine all three change from second to second.
#include "core/math/matmul.h"
#include "core/base/memory.h"
#include "core/base/progress.h"
#include "core/base/threads.h"
#include "dev/bench/peak.h"

#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STREAMS = 4, RUNS = 5 };               // parts of its share that a thread reads side by side
static const size_t COUNT = (size_t)64 << 20; // words, 256 MB: beyond any cache

// The sum of `count` words, which is what reading them costs; adding is free in comparison.
static uint32_t sum_words(const uint32_t *words, size_t count) {
    uint32_t sums[STREAMS] = {0};
    size_t part = count / STREAMS;
#pragma omp simd reduction(+ : sums)
    for (size_t i = 0; i < part; i++)
        for (size_t s = 0; s < STREAMS; s++) sums[s] += words[s * part + i];
    return sums[0] + sums[1] + sums[2] + sums[3];
}

// Bytes per second, the best of a few runs.
static double measure_reading(void) {
    uint32_t *words = memory_allocate(COUNT, sizeof *words, "the memory to read"), sum = 0;
    double best = 1e30;
#pragma omp parallel
    {
        size_t share = COUNT / (size_t)omp_get_num_threads();
        memset(words + (size_t)omp_get_thread_num() * share, 1, share * sizeof *words);
    }
    for (int run = 0; run < RUNS; run++) {
        double start = clock_seconds();
#pragma omp parallel reduction(+ : sum)
        {
            size_t share = COUNT / (size_t)omp_get_num_threads();
            sum += sum_words(words + (size_t)omp_get_thread_num() * share, share);
        }
        double seconds = clock_seconds() - start;
        if (seconds < best) best = seconds;
    }
    volatile uint32_t used = sum; // or nothing would be read at all
    (void)used;
    free(words);
    return (double)(COUNT * sizeof *words) / best;
}

int main(int argc, char **argv) {
    threads_restart_with_wait_policy(argv);
    threads_use(argc > 1 ? atoi(argv[1]) : 0);
    double peak = measure_multiplying(), gflops = matmul_measure_gflops();
    printf("{\"peak_gflops\": %.1f, \"gflops\": %.1f, \"gigabytes_per_second\": %.1f}\n", peak / 1e9, gflops,
           measure_reading() / 1e9);
    return 0;
}
