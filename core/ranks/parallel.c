#define _GNU_SOURCE
#include "parallel.h"
#include "core/base/json.h"
#include "core/base/memory.h"
#include "parallel_transport.h"

#include <omp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static Place place = {.ranks = 1, .local_ranks = 1, .sharers = 1};
static const Transport *transport = &transport_mpi;
static double timeout = RANK_TIMEOUT;

// ---- the ranks

// Starting MPI takes part of a second and opens sockets: a program that nobody launched does without.
static int was_launched(void) {
    static const char *const signs[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE"};
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if (getenv(signs[i])) return 1;
    return 0;
}

void parallel_start(int argc, char **argv) {
    Launch launch;
    Error error;
    die_if(launch_from_words(&launch, argc, argv, &error), &error);
    if (!launch.rendezvous && !was_launched()) return;
    if (launch.rendezvous) transport = &transport_tcp, timeout = launch.timeout;
    place = transport->start(&launch);
    if (place.ranks == 1) return;
    error_set_rank(place.rank);
    if (place.rank > 0 && !freopen("/dev/null", "w", stdout)) die("cannot open /dev/null");
    int threads = parallel_threads() * place.local_ranks, cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (place.sharers < place.local_ranks && 2 * threads <= cores && !getenv("OMP_NUM_THREADS"))
        warn("the launcher lets %d ranks use %d of %d cores; start with scripts/train_mpi.sh, or mpirun --bind-to none",
             place.local_ranks, threads, cores);
}

void parallel_end(void) {
    if (place.ranks > 1) transport->end();
    place = (Place){.ranks = 1, .local_ranks = 1, .sharers = 1};
}

int parallel_rank(void) {
    return place.rank;
}

int parallel_ranks(void) {
    return place.ranks;
}

int parallel_local_rank(void) {
    return place.local_rank;
}

int parallel_local_ranks(void) {
    return place.local_ranks;
}

int parallel_threads(void) {
    if (getenv("OMP_NUM_THREADS")) return omp_get_max_threads();
    int threads = omp_get_num_procs() / place.sharers;
    return threads > 1 ? threads : 1;
}

// ---- small messages

void parallel_sum(double *values, int count) {
    if (place.ranks == 1) return;
    size_t n = (size_t)count;
    double *all = memory_allocate((size_t)place.ranks * n, sizeof *all, "the ranks' numbers");
    transport->gather(all, values, n * sizeof *all);
    for (size_t i = 0; i < n; i++) {
        double sum = all[i];
        for (size_t r = 1; r < (size_t)place.ranks; r++) sum += all[r * n + i];
        values[i] = sum;
    }
    free(all);
}

void parallel_broadcast(void *data, size_t bytes) {
    if (place.ranks > 1) transport->broadcast(data, bytes, 0);
}

int parallel_agree(int status, Error *error) {
    if (place.ranks == 1) return status;
    int failed = status != 0, first = -1, count = 0;
    int *all = memory_allocate((size_t)place.ranks, sizeof *all, "the ranks' verdicts");
    transport->gather(all, &failed, sizeof failed);
    for (int r = place.ranks - 1; r >= 0; r--)
        if (all[r]) first = r, count++;
    free(all);
    if (count == 0) return 0;
    transport->broadcast(error, sizeof *error, first);
    char prefix[32];
    snprintf(prefix, sizeof prefix, "rank %d", first);
    if (count < place.ranks) error_prefix(error, prefix);
    return -1;
}

// Rank 0's text on every rank; free() it.
static char *text_of_rank_0(const char *mine) {
    uint64_t size = strlen(mine) + 1;
    parallel_broadcast(&size, sizeof size);
    char *text = memory_resize(NULL, size, 1, "rank 0's settings");
    if (place.rank == 0) memcpy(text, mine, size);
    parallel_broadcast(text, size);
    return text;
}

static int compare_values(const json_t *mine, const json_t *theirs, const char *kind, Error *error) {
    const char *name;
    const json_t *value;
    json_object_foreach((json_t *)mine, name, value) {
        const json_t *other = json_object_get(theirs, name);
        if (other && json_equal(value, other)) continue;
        char *here = json_print(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
        char *there = other ? json_print(other, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9)) : NULL;
        error_set(error, "%s%s differs between ranks: rank 0 has %.300s, this one has %.300s; all must have the same",
                  kind, name, there ? there : "none", here);
        free(here), free(there);
        return -1;
    }
    return 0;
}

int parallel_compare(const json_t *mine, const char *kind, Error *error) {
    if (place.ranks == 1) return 0;
    char *text = json_print(mine, JSON_REAL_PRECISION(17)), *first = text_of_rank_0(text);
    json_t *theirs = json_made(json_loads(first, 0, NULL), "what rank 0 sent");
    json_t *ours = json_made(json_loads(text, 0, NULL), "what is compared with rank 0");
    int status = compare_values(ours, theirs, kind, error);
    json_decref(theirs), json_decref(ours);
    free(text), free(first);
    return parallel_agree(status, error);
}

void parallel_collect(real *values, size_t count, int from) {
    transport->collect(values, count * sizeof *values, from);
}

// ---- ranks that do not come

double parallel_timeout(void) {
    return timeout;
}

void parallel_set_timeout(double seconds) {
    timeout = seconds;
}

void parallel_tell(const char *format, ...) {
    if (!transport->speaks()) return;
    Error error;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error.text, sizeof error.text, format, arguments);
    va_end(arguments);
    error_print(&error);
}

void parallel_wait(int begins) {
    if (transport->wait) transport->wait(begins);
}

void parallel_tell_of_wait(const char *what, double seconds) {
    char missing[256] = "";
    if (transport->find_missing) transport->find_missing(missing, sizeof missing);
    parallel_tell("waited %.0f s for %s (%s): %s dead or hangs, and all end; the last checkpoint is intact; "
                  "--rank-timeout sets how long a rank waits",
                  seconds, missing[0] ? missing : "the other ranks", what, missing[0] ? "it is" : "one of them is");
}
