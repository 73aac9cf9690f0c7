#define _GNU_SOURCE
#include "threads.h"

#include <omp.h>
#include <stdlib.h>
#include <unistd.h>

void threads_wait_politely(char **argv) {
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT") || getenv("KMP_BLOCKTIME")) return;
    setenv("OMP_WAIT_POLICY", "passive", 1);
    execv("/proc/self/exe", argv); // where that fails the program just goes on, spinning
}

int threads_use(int count) {
    if (count > 0) omp_set_num_threads(count);
    return omp_get_max_threads();
}
