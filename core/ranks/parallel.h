// Training on many processes (ranks): MPI, or sockets with --rendezvous, carry small messages; MPI the gradients of the
// CPU's trainer, NCCL those of the GPU's (core/ranks/parallel_nccl.h). When nobody started the program as one of many
// there is one rank, and every function here returns at once.
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

// Joins the other processes when mpirun, srun or the like started this one, or when the options --ranks, --rank and
// --rendezvous are among its words. From here on only rank 0 prints on standard output, messages on standard error name
// their rank, and the end of one rank, by an error or by a signal from outside, ends all. Call first in main.
void parallel_start(int argc, char **argv);
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

// ---- ranks that do not come

// How many seconds a rank waits for the others (--rank-timeout); 0: for ever.
double parallel_timeout(void);
void parallel_set_timeout(double seconds);
// For who ends the program because of the other ranks: a message, unless another rank has already told the same. `what`
// is what this rank waits for.
void parallel_tell_of_wait(const char *what, double seconds);
// This rank waits for the others, and will do nothing else until it no longer does: what tells it from one that hangs.
void parallel_wait(int begins);
void parallel_tell(const char *format, ...) PRINTF_LIKE(1, 2);

// ---- gradients and weights of a model in host memory

typedef struct Exchange Exchange;

// Whether gradients in host memory can travel: they do so by MPI alone.
int exchange_exists(void);
// `values` and `gradients` are blocks of partition->size numbers. With `whole` every rank gets all summed gradients,
// else only those of its own shards. Ends the program where there is no exchange.
Exchange *exchange_create(const Partition *partition, real *values, real *gradients, int whole);
void exchange_free(Exchange *exchange);
// The gradients from number `from` of the block to its end are final: their buckets begin to travel, and those under
// way move on. Backward calls it between layers, with falling `from`.
void exchange_ready(Exchange *exchange, size_t from);
// Waits until all gradients are summed.
void exchange_finish(Exchange *exchange);
// After each rank has updated the weights of its own shards: every rank gets all of them.
void exchange_values(Exchange *exchange);
// The same for what a rank has made of its own shards of the gradients.
void exchange_gradients(Exchange *exchange);

#endif
