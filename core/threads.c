#define _GNU_SOURCE
#include "threads.h"

#include <omp.h>
#include <stdlib.h>
#include <unistd.h>

// Starts the program once more with the settings in its environment, unless the user has chosen.
static void start_again(char **argv, const char *const settings[][2]) {
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT") || getenv("KMP_BLOCKTIME")) return;
    for (int i = 0; settings[i][0]; i++) setenv(settings[i][0], settings[i][1], 1);
    execv("/proc/self/exe", argv); // where that fails the program just goes on, spinning
}

void threads_wait_politely(char **argv) {
    static const char *const settings[][2] = {{"OMP_WAIT_POLICY", "passive"}, {NULL, NULL}};
    start_again(argv, settings);
}

void threads_wait_briefly(char **argv) {
    // GNU's runtime counts turns of about 20 ns, LLVM's milliseconds.
    static const char *const settings[][2] = {{"GOMP_SPINCOUNT", "20000"}, {"KMP_BLOCKTIME", "1"}, {NULL, NULL}};
    start_again(argv, settings);
}

int threads_use(int count) {
    if (count > 0) omp_set_num_threads(count);
    return omp_get_max_threads();
}
