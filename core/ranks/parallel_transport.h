// What core/ranks/parallel.c needs of whatever carries messages between ranks: parallel_mpi.c has it with MPI,
// parallel_tcp.c with sockets.
#ifndef CORE_PARALLEL_TRANSPORT_H
#define CORE_PARALLEL_TRANSPORT_H

#include "rendezvous.h"

typedef struct {
    int rank, ranks;
    int local_rank, local_ranks; // among those on this machine
    int sharers;                 // ranks on this machine that may use exactly the cores this one may use
} Place;

typedef struct {
    // Ends the program with a message where the ranks do not come together.
    Place (*start)(const Launch *launch);
    void (*end)(void);
    // `all` receives `bytes` from each rank, in the order of ranks.
    void (*gather)(void *all, const void *mine, size_t bytes);
    void (*broadcast)(void *data, size_t bytes, int from);
    // From rank `from` to rank 0; only these two call it.
    void (*collect)(void *data, size_t bytes, int from);
    // Whether this rank is to say why all of them end: one is enough, where they can agree on it.
    int (*speaks)(void);
    // NULL where ranks know nothing of each other while they wait. This rank waits, from now on or no longer.
    void (*wait)(int begins);
    // The ranks that the others wait for, as far as that can be known from here: "rank 1 (process 4711)"; "" if not.
    void (*find_missing)(char *text, size_t size);
} Transport;

extern const Transport transport_mpi, transport_tcp;

#endif
