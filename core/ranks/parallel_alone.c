// A build without MPI: the CPU's trainer has nobody to exchange gradients with.
#ifndef HAVE_MPI
#include "parallel.h"
#include "parallel_transport.h"

#include <stdlib.h>

static Place start(const Launch *launch) {
    (void)launch;
    const char *ranks = getenv("OMPI_COMM_WORLD_SIZE");
    if (!ranks) ranks = getenv("PMI_SIZE");
    if (!ranks) ranks = getenv("SLURM_NTASKS");
    if (ranks && atoi(ranks) > 1)
        die("started as one of %d processes, but built without MPI; install libopenmpi-dev, then make again",
            atoi(ranks));
    return (Place){.ranks = 1, .local_ranks = 1, .sharers = 1};
}

static int speaks(void) {
    return 1;
}

const Transport transport_mpi = {.start = start, .speaks = speaks}; // one rank sends nothing

int exchange_exists(void) {
    return 0;
}

Exchange *exchange_create(const Partition *partition, real *values, real *gradients, int whole) {
    (void)partition, (void)values, (void)gradients, (void)whole;
    parallel_tell("on the CPU gradients travel by MPI, and this program was built without; install libopenmpi-dev, "
                  "make again and start with scripts/train_mpi.sh instead of --rendezvous");
    exit(1);
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

void exchange_gradients(Exchange *exchange) {
    (void)exchange;
}
#endif
