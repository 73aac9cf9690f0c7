// Training on many processes (ranks): MPI carries small messages for both trainers and the gradients of the CPU's, NCCL
// those of the GPU's (core/ranks/parallel_nccl.h). Without MPI, or when no launcher started the program, there is one
// rank and every function here returns at once.
//
// Sums are made in the order of ranks, so that the same run on the same number of ranks gives the same bits, with and
// without ZeRO.
#ifndef CORE_PARALLEL_H
#define CORE_PARALLEL_H

#include "core/base/error.h"
#include "partition.h"
#include "core/base/real.h"

#include <jansson.h>

// ---- the ranks

// Joins the other processes when mpirun, srun or the like started this one. From here on only rank 0 prints on standard
// output, messages on standard error name their rank, and the end of one rank, by an error or by a signal from outside,
// ends all. Call first in main.
void parallel_start(void);
// All ranks together; afterwards this process may end.
void parallel_end(void);

int parallel_rank(void);
int parallel_ranks(void);
int parallel_local_rank(void); // among the ranks on this machine
int parallel_local_ranks(void);
// CPU threads for this rank: the cores it may use, divided by the ranks that may use the same ones.
int parallel_threads(void);

// ---- small messages; every rank calls them in the same order

void parallel_sum(double *values, int count);      // over all ranks
void parallel_broadcast(void *data, size_t bytes); // from rank 0
// Whether a call failed on any rank: then -1 on every rank, with the text of the lowest one that failed, which names
// the rank unless all failed alike.
int parallel_agree(int status, Error *error);
// All ranks must have what rank 0 has. `mine` is an object of plain values; in the message a value is called
// `kind` + its name.
int parallel_compare(const json_t *mine, const char *kind, Error *error);
// Numbers of rank `from` go to rank 0: `values` are sent there, received here. Other ranks do not call it.
void parallel_collect(real *values, size_t count, int from);

// ---- gradients and weights of a model in host memory

typedef struct Exchange Exchange;

// `values` and `gradients` are blocks of partition->size numbers. With `whole` every rank gets all summed gradients,
// else only those of its own shards.
Exchange *exchange_create(const Partition *partition, real *values, real *gradients, int whole);
void exchange_free(Exchange *exchange);
// The gradients from number `from` of the block to its end are final: their buckets begin to travel, and those under
// way move on. Backward calls it between layers, with falling `from`.
void exchange_ready(Exchange *exchange, size_t from);
// Waits until all gradients are summed.
void exchange_finish(Exchange *exchange);
// After each rank has updated the weights of its own shards: every rank gets all of them.
void exchange_values(Exchange *exchange);

#endif
