// How ranks that no MPI brings together find each other: rank 0 listens, the others connect to it. They know where from
// --rendezvous: tcp:HOST:PORT says it outright; file:PATH names a file that all of them see, into which rank 0 writes
// where it listens, with a key that strangers and leftovers of earlier runs do not have.
#ifndef CORE_RENDEZVOUS_H
#define CORE_RENDEZVOUS_H

#include "core/base/error.h"

enum { RANK_TIMEOUT = 600, RANK_TIMEOUT_MAX = 1000000, RANKS_MAX = 65536 };

typedef struct {
    int ranks, rank;
    const char *rendezvous; // NULL: MPI brings the ranks together, or there is one
    float timeout;          // seconds, 0: none
} Launch;

// From the options --ranks, --rank, --rendezvous and --rank-timeout; others are not looked at.
int launch_from_words(Launch *launch, int argc, char **argv, Error *error);

// Of `sockets`, all -1, rank 0 gets one to each other rank, sockets[1] .. sockets[ranks - 1]; the others get
// sockets[0]. They do not block.
int rendezvous_join(int *sockets, const Launch *launch, Error *error);

// Sends or receives all of `bytes`, and waits as long as it takes while the other side goes on: 0; 1 when nothing has
// moved for `patience` seconds (0: any time is right); -1 when the connection is gone.
int socket_send(int socket, const void *data, size_t bytes, double patience);
int socket_receive(int socket, void *data, size_t bytes, double patience);

#endif
