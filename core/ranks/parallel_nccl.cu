#include "parallel_nccl.h"

extern "C" {
#include "core/base/memory.h"
}

#include <string.h>
#include <vector>

enum { SHARD_UNIT = 32 }; // shards begin at 128 bytes, for the kernels that read four numbers at once

OwnParts exchange_gpu_own(Stretch stretch, int rank, int ranks) {
    size_t width = stretch.whole ? 0 : stretch.count / (size_t)ranks / SHARD_UNIT * SHARD_UNIT;
    size_t shared = width * (size_t)ranks;
    OwnParts own = {{stretch.start + (size_t)rank * width, width}, {stretch.start + shared, stretch.count - shared}};
    return own;
}

// Compares the devices' identities, which are unique worldwide: without this, two ranks on one device would find out
// only from NCCL's log.
static void require_own_device(int device) {
    cudaDeviceProp properties;
    const size_t bytes = sizeof properties.uuid.bytes;
    int rank = parallel_rank(), ranks = parallel_ranks();
    std::vector<double> all((size_t)ranks * bytes); // parallel_sum carries them
    double *mine = all.data() + (size_t)rank * bytes;
    cuda_check(cudaGetDeviceProperties(&properties, device));
    for (size_t i = 0; i < bytes; i++) mine[i] = (unsigned char)properties.uuid.bytes[i];
    parallel_sum(all.data(), (int)all.size());
    for (int r = 0; r < ranks; r++)
        if (r != rank && !memcmp(all.data() + (size_t)r * bytes, mine, bytes * sizeof *mine))
            die("ranks %d and %d have the same GPU; start one rank per GPU", rank < r ? rank : r, rank < r ? r : rank);
}

// A launcher shows a rank all of its machine's devices, or one that is the rank's own (Slurm's --gpus-per-task).
void parallel_choose_device(void) {
    int devices = 0;
    cuda_check(cudaGetDeviceCount(&devices));
    if (parallel_ranks() == 1) return;
    if (devices > 1 && parallel_local_rank() >= devices)
        die("%d GPUs visible on this machine, but more ranks; start one rank per GPU", devices);
    int device = parallel_local_rank() % devices;
    cuda_check(cudaSetDevice(device));
    require_own_device(device);
}

// The header alone does not say that the library links: scripts/setup_cuda.sh tries, and defines HAVE_NCCL; so does the
// harness that runs .cu files on the CPU, where it brings NCCL's calls itself.
#ifdef HAVE_NCCL
#include <nccl.h>

int exchange_gpu_exists(void) {
    return 1;
}

struct ExchangeGPU {
    floatX *values;
    float *gradients;
    int zero, rank, ranks;
    ncclComm_t communicator;
    cudaStream_t compute, transfer;
    cudaEvent_t made, moved; // gradients are made; what was on its way has arrived
};

static void nccl_check_at(ncclResult_t status, const char *call, int line) {
    if (status != ncclSuccess)
        die("%s:%d: %s: %s; NCCL_DEBUG=INFO tells more", __FILE__, line, call, ncclGetErrorString(status));
}
#define nccl_check(call) nccl_check_at((call), #call, __LINE__)

ExchangeGPU *exchange_gpu_create(floatX *values, float *gradients, int zero, cudaStream_t compute) {
    ExchangeGPU *exchange = (ExchangeGPU *)memory_allocate_zeroed(1, sizeof *exchange, "the exchange");
    exchange->values = values, exchange->gradients = gradients, exchange->zero = zero;
    exchange->rank = parallel_rank(), exchange->ranks = parallel_ranks(), exchange->compute = compute;
    ncclUniqueId id;
    if (exchange->rank == 0) nccl_check(ncclGetUniqueId(&id));
    parallel_broadcast(&id, sizeof id);
    nccl_check(ncclCommInitRank(&exchange->communicator, exchange->ranks, id, exchange->rank));
    cuda_check(cudaStreamCreateWithFlags(&exchange->transfer, cudaStreamNonBlocking));
    cuda_check(cudaEventCreateWithFlags(&exchange->made, cudaEventDisableTiming));
    cuda_check(cudaEventCreateWithFlags(&exchange->moved, cudaEventDisableTiming));
    return exchange;
}

void exchange_gpu_free(ExchangeGPU *exchange) {
    if (!exchange) return;
    cuda_check(cudaStreamSynchronize(exchange->transfer));
    nccl_check(ncclCommDestroy(exchange->communicator));
    cuda_check(cudaStreamDestroy(exchange->transfer));
    cuda_check(cudaEventDestroy(exchange->made));
    cuda_check(cudaEventDestroy(exchange->moved));
    free(exchange);
}

static void all_reduce(ExchangeGPU *exchange, Range range) {
    float *numbers = exchange->gradients + range.start;
    if (range.count)
        nccl_check(ncclAllReduce(numbers, numbers, range.count, ncclFloat, ncclSum, exchange->communicator,
                                 exchange->transfer));
}

void exchange_gpu_ready(ExchangeGPU *exchange, Stretch stretch) {
    if (stretch.count == 0) return;
    cuda_check(cudaEventRecord(exchange->made, exchange->compute));
    cuda_check(cudaStreamWaitEvent(exchange->transfer, exchange->made, 0));
    if (!exchange->zero) {
        all_reduce(exchange, {stretch.start, stretch.count});
        return;
    }
    OwnParts own = exchange_gpu_own(stretch, exchange->rank, exchange->ranks);
    if (own.shard.count) // in place: a rank's shard stays where it is
        nccl_check(ncclReduceScatter(exchange->gradients + stretch.start, exchange->gradients + own.shard.start,
                                     own.shard.count, ncclFloat, ncclSum, exchange->communicator, exchange->transfer));
    all_reduce(exchange, own.rest);
}

void exchange_gpu_finish(ExchangeGPU *exchange) {
    cuda_check(cudaEventRecord(exchange->moved, exchange->transfer));
    cuda_check(cudaStreamWaitEvent(exchange->compute, exchange->moved, 0));
}

void exchange_gpu_values(ExchangeGPU *exchange, Stretch stretch) {
    OwnParts own = exchange_gpu_own(stretch, exchange->rank, exchange->ranks);
    ncclDataType_t type = sizeof(floatX) == sizeof(float) ? ncclFloat : ncclBfloat16;
    if (own.shard.count)
        nccl_check(ncclAllGather(exchange->values + own.shard.start, exchange->values + stretch.start, own.shard.count,
                                 type, exchange->communicator, exchange->compute));
}

void exchange_gpu_sum(ExchangeGPU *exchange, double *numbers, size_t count) {
    nccl_check(ncclAllReduce(numbers, numbers, count, ncclDouble, ncclSum, exchange->communicator, exchange->compute));
}

#else // a build without NCCL: one rank, which has nobody to exchange with

int exchange_gpu_exists(void) {
    return 0;
}
ExchangeGPU *exchange_gpu_create(floatX *, float *, int, cudaStream_t) {
    return NULL;
}
void exchange_gpu_free(ExchangeGPU *) {}
void exchange_gpu_ready(ExchangeGPU *, Stretch) {}
void exchange_gpu_finish(ExchangeGPU *) {}
void exchange_gpu_values(ExchangeGPU *, Stretch) {}
void exchange_gpu_sum(ExchangeGPU *, double *, size_t) {}
#endif
