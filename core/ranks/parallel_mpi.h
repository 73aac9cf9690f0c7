// What the two files that speak MPI share.
#ifndef CORE_PARALLEL_MPI_H
#define CORE_PARALLEL_MPI_H

#include "parallel.h"

#include <mpi.h>

#ifdef REAL_IS_DOUBLE
#define MPI_REAL_NUMBER MPI_DOUBLE
#else
#define MPI_REAL_NUMBER MPI_FLOAT
#endif

// On a communicator all ranks must start collective calls in the same order: the two kinds of an exchange, which may
// overtake each other, have one each.
extern MPI_Comm mpi_comm_spreading, mpi_comm_gathering;

// Whether MPI carries this run's messages.
int mpi_carries(void);
// MPI's own waiting spins, which starves the others where ranks outnumber cores. After `tries` looks in vain it yields,
// after many it sleeps, and after parallel_timeout() it ends the program, which has waited for `what`.
void mpi_pause(int tries, const char *what);
void mpi_wait(MPI_Request *request);

#endif
