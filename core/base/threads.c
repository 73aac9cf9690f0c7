#define _GNU_SOURCE
#include "threads.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

// By the user, or by this program before it started itself again.
static int is_chosen(void) {
    return getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT") || getenv("KMP_BLOCKTIME");
}

// Starts the program once more with the settings in its environment.
static void start_again(char **argv, const char *const settings[][2]) {
    for (int i = 0; settings[i][0]; i++) setenv(settings[i][0], settings[i][1], 1);
    execv("/proc/self/exe", argv); // where that fails the program just goes on, spinning
}

// How many threads of other processes want a core at this moment; 0 where the system does not tell.
static int others_running_now(void) {
    int running = 1; // this one
    FILE *file = fopen("/proc/loadavg", "r");
    if (!file) return 0;
    if (fscanf(file, "%*f %*f %*f %d", &running) != 1) running = 1;
    fclose(file);
    return running - 1;
}

// The lowest of a few readings: a program that only wakes up now and then takes nothing away.
static int others_running(void) {
    enum { LOOKS = 5, MICROSECONDS = 1000 };
    int least = others_running_now();
    for (int look = 1; look < LOOKS && least > 0; look++) {
        usleep(MICROSECONDS);
        int running = others_running_now();
        if (running < least) least = running;
    }
    return least;
}

// GNU's runtime counts turns of about 20 ns, LLVM's milliseconds.
void threads_restart_with_wait_policy(char **argv) {
    static const char *const sleep_at_once[][2] = {{"OMP_WAIT_POLICY", "passive"}, {NULL, NULL}};
    static const char *const spin_first[][2] = {{"GOMP_SPINCOUNT", "2000"}, {"KMP_BLOCKTIME", "1"}, {NULL, NULL}};
    if (is_chosen()) return;
    int has_room = others_running() + omp_get_max_threads() <= omp_get_num_procs();
    start_again(argv, has_room ? spin_first : sleep_at_once);
}

int threads_use(int count) {
    if (count > 0) omp_set_num_threads(count);
    return omp_get_max_threads();
}
