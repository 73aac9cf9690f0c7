// Gradients and weights of a model on a GPU, between ranks that have a GPU each: NCCL, on a stream of its own, while
// backward goes on. core/ranks/parallel.h brings NCCL's id to all ranks and does everything that is small.
//
// How the GPU's trainer uses it, with more than one rank (parallel_ranks() > 1):
//   parallel_choose_device()                 before the first call of CUDA
//   exchange_gpu_create()                    with its flat arrays
//   exchange_gpu_ready(stretch)              in backward, whenever a stretch of the gradients is the step's final one
//   exchange_gpu_finish()                    before the norm
//   exchange_gpu_sum()                       the loss, with ZeRO also the squares in the middle of the norm: on the
//                                            device
//   exchange_gpu_gradients()                 within Muon's step, with ZeRO
//   exchange_gpu_values()                    after AdamW, with ZeRO
//   exchange_gpu_wait()                      where the host waits for the device
#ifndef CORE_PARALLEL_NCCL_H
#define CORE_PARALLEL_NCCL_H

#include "core/gpu/cuda_common.h"

extern "C" {
#include "parallel.h"
}

typedef struct ExchangeGPU ExchangeGPU;

// Whether this build has NCCL; without it there is no exchange and only one rank can train.
int exchange_gpu_exists(void);

// Ranks of one machine take its devices in turn, or each the only one that it sees; two ranks on one device are
// refused.
void parallel_choose_device(void);

// `values`, the weights as the layers read them, and `gradients` are flat arrays of the same layout; `compute` is the
// stream that makes them. With `zero` only a rank's own parts of the gradients get summed, and exchange_gpu_values
// completes the weights.
ExchangeGPU *exchange_gpu_create(floatX *values, float *gradients, int zero, cudaStream_t compute);
void exchange_gpu_free(ExchangeGPU *exchange);

typedef struct { // of the flat arrays
    size_t start, count;
    int whole; // with ZeRO, too, every rank updates all of it
} Stretch;
// The gradients of the stretch are final, once `compute` has done what it has been given so far. All ranks call it with
// the same stretches in the same order.
void exchange_gpu_ready(ExchangeGPU *exchange, Stretch stretch);
// Whatever `compute` is given from now on sees the sums.
void exchange_gpu_finish(ExchangeGPU *exchange);

// ZeRO: what this rank updates of a stretch. A stretch is cut into equal shards, one per rank; the few numbers that are
// left over at its end, or all of a whole one, belong to all ranks, and each of them updates them alike.
typedef struct {
    Range shard, rest; // `start` counts from the arrays' beginning
} OwnParts;
OwnParts exchange_gpu_own(Stretch stretch, int rank, int ranks);
// After the update: every rank gets the weights of the stretch. Ordered with `compute`.
void exchange_gpu_values(ExchangeGPU *exchange, Stretch stretch);

// The same for what a rank has made of its own shard of the gradients.
void exchange_gpu_gradients(ExchangeGPU *exchange, Stretch stretch);

// numbers (count) on the device, summed over ranks; ordered with `compute`.
void exchange_gpu_sum(ExchangeGPU *exchange, double *numbers, size_t count);

// Waits until `compute` and the transfers have done all that they were given, with an eye on the other ranks: when NCCL
// reports an error, or this rank has waited parallel_timeout() for them, the program ends with a message. The host
// calls it before it waits for `compute` in any other way. Does nothing without an exchange (NULL), or when nothing was
// sent.
void exchange_gpu_wait(ExchangeGPU *exchange);
// The stream that gradients travel on.
cudaStream_t exchange_gpu_transfer(const ExchangeGPU *exchange);

#endif
