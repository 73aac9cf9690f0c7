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

// MPI's own waiting spins, which starves the others where ranks outnumber cores. After `tries` looks in vain: gives way,
// and sleeps when it has been long.
void mpi_pause(int tries);
void mpi_wait(MPI_Request *request);

#endif
