// A build without MPI: one rank, and nothing to exchange.
#ifndef HAVE_MPI
#include "parallel.h"
#include "parallel_transport.h"

#include <stdlib.h>

Place transport_start(void) {
    const char *ranks = getenv("OMPI_COMM_WORLD_SIZE");
    if (!ranks) ranks = getenv("PMI_SIZE");
    if (!ranks) ranks = getenv("SLURM_NTASKS");
    if (ranks && atoi(ranks) > 1)
        die("started as one of %d processes, but built without MPI; install libopenmpi-dev, then make again",
            atoi(ranks));
    return (Place){.ranks = 1, .local_ranks = 1, .sharers = 1};
}

void transport_end(void) {}

void transport_gather(void *all, const void *mine, size_t bytes) {
    (void)all, (void)mine, (void)bytes;
}

void transport_broadcast(void *data, size_t bytes, int from) {
    (void)data, (void)bytes, (void)from;
}

void parallel_collect(real *values, size_t count, int from) {
    (void)values, (void)count, (void)from;
}

Exchange *exchange_create(const Partition *partition, real *values, real *gradients, int whole) {
    (void)partition, (void)values, (void)gradients, (void)whole;
    return NULL;
}

void exchange_free(Exchange *exchange) {
    (void)exchange;
}

void exchange_ready(Exchange *exchange, size_t from) {
    (void)exchange, (void)from;
}

void exchange_finish(Exchange *exchange) {
    (void)exchange;
}

void exchange_values(Exchange *exchange) {
    (void)exchange;
}
#endif
