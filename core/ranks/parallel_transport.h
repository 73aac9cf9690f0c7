// What core/ranks/parallel.c needs from a message-passing library: parallel_mpi.c has it with MPI, parallel_alone.c is
// for a build without.
#ifndef CORE_PARALLEL_TRANSPORT_H
#define CORE_PARALLEL_TRANSPORT_H

#include <stddef.h>

typedef struct {
    int rank, ranks;
    int local_rank, local_ranks; // among those on this machine
    int sharers;                 // ranks on this machine that may use exactly the cores this one may use
} Place;

// Only called when a launcher started the process.
Place transport_start(void);
void transport_end(void);
// `all` receives `bytes` from each rank, in the order of ranks.
void transport_gather(void *all, const void *mine, size_t bytes);
void transport_broadcast(void *data, size_t bytes, int from);

#endif
