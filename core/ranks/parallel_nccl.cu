#include "parallel_nccl.h"

extern "C" {
#include "core/base/memory.h"
#include "core/base/progress.h"
}

#include <signal.h>
#include <string.h>
#include <unistd.h>
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

typedef enum { GRADIENTS, SUMS, DIRECTIONS, WEIGHTS, SECTIONS } Section;
static const char *const section_names[SECTIONS] = {"the gradients' sums", "the sums of losses and norms",
                                                    "Muon's directions", "the updated weights"};

struct ExchangeGPU {
    floatX *values;
    float *gradients;
    int zero, rank, ranks;
    ncclComm_t communicator;
    cudaStream_t compute, transfer;
    cudaEvent_t made;            // the gradients that travel last
    cudaEvent_t moved[SECTIONS]; // what was on its way has arrived
    int under_way;               // the host has not waited for what was sent
};

// ---- peers that fail
//
// A dead or hanging peer leaves a collective's kernel spinning for ever, and a call that has to reach the peer first
// hangs in the host. So the communicator does not block: calls that are in progress are asked about, as streams are,
// until they are done, NCCL knows of an error, or the time is up.

static void leave(int) {
    _exit(1);
}

// After the message: ends what hangs on the device, for this rank and, as far as NCCL can, for its peers. That may hang
// in its turn, and so may the end of a program whose device hangs.
[[noreturn]] static void give_up(ExchangeGPU *exchange) {
    signal(SIGALRM, leave);
    alarm(10);
    if (exchange->communicator) (void)ncclCommAbort(exchange->communicator);
    exit(1);
}

// The first of the sections that has not arrived.
static const char *section_now(const ExchangeGPU *exchange) {
    for (int s = 0; s < SECTIONS; s++)
        if (cudaEventQuery(exchange->moved[s]) == cudaErrorNotReady) return section_names[s];
    return section_names[SECTIONS - 1];
}

// `what` this rank waits for; NULL: for the sections.
static void check_peers(ExchangeGPU *exchange, ncclResult_t status, const char *what, double began) {
    double waited = clock_seconds() - began;
    int failed = status != ncclSuccess && status != ncclInProgress;
    if (!failed && (parallel_timeout() == 0 || waited <= parallel_timeout())) return;
    if (!what) what = section_now(exchange);
    if (failed)
        parallel_tell("NCCL: %s (after %.0f s of waiting for %s); all ranks end, the last checkpoint is intact; "
                      "NCCL_DEBUG=INFO tells more",
                      ncclGetErrorString(status), waited, what);
    else
        parallel_tell_of_wait(what, waited);
    give_up(exchange);
}

static ncclResult_t state_of(ExchangeGPU *exchange) {
    ncclResult_t state = ncclSuccess, status = ncclCommGetAsyncError(exchange->communicator, &state);
    return status != ncclSuccess ? status : state;
}

// A call of NCCL has returned `status`.
static void finish_call(ExchangeGPU *exchange, ncclResult_t status, const char *what) {
    double began = clock_seconds();
    check_peers(exchange, status, what, began);
    parallel_wait(1);
    for (int tries = 0; status == ncclInProgress; tries++) {
        if (tries > 100) usleep(100); // most calls are done at once
        status = state_of(exchange);
        check_peers(exchange, status, what, began);
    }
    parallel_wait(0);
}

// The time that counts is that after this rank's own gradients were made.
void exchange_gpu_wait(ExchangeGPU *exchange) {
    if (!exchange || !exchange->under_way) return;
    double began = clock_seconds();
    cudaError_t status;
    while ((status = cudaStreamQuery(exchange->transfer)) == cudaErrorNotReady ||
           (status == cudaSuccess && (status = cudaStreamQuery(exchange->compute)) == cudaErrorNotReady)) {
        int is_busy = cudaEventQuery(exchange->made) == cudaErrorNotReady;
        if (is_busy) began = clock_seconds();
        parallel_wait(!is_busy);
        check_peers(exchange, state_of(exchange), NULL, began);
        usleep(20);
    }
    parallel_wait(0);
    cuda_check(status);
    (void)cudaGetLastError(); // CUDA remembers "not ready" like an error
    exchange->under_way = 0;
}

// ---- the exchange

static void nccl_start(ExchangeGPU *exchange) {
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (exchange->rank == 0) {
        ncclResult_t status = ncclGetUniqueId(&id);
        if (status != ncclSuccess) die("NCCL: %s; NCCL_DEBUG=INFO tells more", ncclGetErrorString(status));
    }
    parallel_broadcast(&id, sizeof id);
    finish_call(exchange, ncclCommInitRankConfig(&exchange->communicator, exchange->ranks, id, exchange->rank, &config),
                "the start of NCCL");
}

ExchangeGPU *exchange_gpu_create(floatX *values, float *gradients, int zero, cudaStream_t compute) {
    ExchangeGPU *exchange = (ExchangeGPU *)memory_allocate_zeroed(1, sizeof *exchange, "the exchange");
    int least, greatest;
    exchange->values = values, exchange->gradients = gradients, exchange->zero = zero;
    exchange->rank = parallel_rank(), exchange->ranks = parallel_ranks(), exchange->compute = compute;
    nccl_start(exchange);
    // Gradients that could leave do not wait behind kernels of backward, which has work enough.
    cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    cuda_check(cudaStreamCreateWithPriority(&exchange->transfer, cudaStreamNonBlocking, greatest));
    cuda_check(cudaEventCreateWithFlags(&exchange->made, cudaEventDisableTiming));
    for (cudaEvent_t &event : exchange->moved) cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return exchange;
}

cudaStream_t exchange_gpu_transfer(const ExchangeGPU *exchange) {
    return exchange->transfer;
}

void exchange_gpu_free(ExchangeGPU *exchange) {
    if (!exchange) return;
    exchange_gpu_wait(exchange);
    finish_call(exchange, ncclCommFinalize(exchange->communicator), "the end of NCCL");
    check_peers(exchange, ncclCommDestroy(exchange->communicator), "the end of NCCL", clock_seconds());
    cuda_check(cudaStreamDestroy(exchange->transfer));
    cuda_check(cudaEventDestroy(exchange->made));
    for (cudaEvent_t event : exchange->moved) cuda_check(cudaEventDestroy(event));
    free(exchange);
}

// A collective of the section has been called, with this result, on `stream`.
static void sent(ExchangeGPU *exchange, Section section, ncclResult_t status, cudaStream_t stream) {
    finish_call(exchange, status, section_names[section]);
    cuda_check(cudaEventRecord(exchange->moved[section], stream));
    exchange->under_way = 1;
}

static void all_reduce(ExchangeGPU *exchange, Range range) {
    float *numbers = exchange->gradients + range.start;
    if (range.count)
        sent(exchange, GRADIENTS,
             ncclAllReduce(numbers, numbers, range.count, ncclFloat, ncclSum, exchange->communicator,
                           exchange->transfer),
             exchange->transfer);
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
        sent(exchange, GRADIENTS,
             ncclReduceScatter(exchange->gradients + stretch.start, exchange->gradients + own.shard.start,
                               own.shard.count, ncclFloat, ncclSum, exchange->communicator, exchange->transfer),
             exchange->transfer);
    all_reduce(exchange, own.rest);
}

void exchange_gpu_finish(ExchangeGPU *exchange) {
    cuda_check(cudaStreamWaitEvent(exchange->compute, exchange->moved[GRADIENTS], 0));
}

void exchange_gpu_values(ExchangeGPU *exchange, Stretch stretch) {
    OwnParts own = exchange_gpu_own(stretch, exchange->rank, exchange->ranks);
    ncclDataType_t type = sizeof(floatX) == sizeof(float) ? ncclFloat : ncclBfloat16;
    if (own.shard.count)
        sent(exchange, WEIGHTS,
             ncclAllGather(exchange->values + own.shard.start, exchange->values + stretch.start, own.shard.count, type,
                           exchange->communicator, exchange->compute),
             exchange->compute);
}

void exchange_gpu_gradients(ExchangeGPU *exchange, Stretch stretch) {
    OwnParts own = exchange_gpu_own(stretch, exchange->rank, exchange->ranks);
    if (own.shard.count)
        sent(exchange, DIRECTIONS,
             ncclAllGather(exchange->gradients + own.shard.start, exchange->gradients + stretch.start, own.shard.count,
                           ncclFloat, exchange->communicator, exchange->compute),
             exchange->compute);
}

void exchange_gpu_sum(ExchangeGPU *exchange, double *numbers, size_t count) {
    sent(exchange, SUMS,
         ncclAllReduce(numbers, numbers, count, ncclDouble, ncclSum, exchange->communicator, exchange->compute),
         exchange->compute);
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
void exchange_gpu_gradients(ExchangeGPU *, Stretch) {}
void exchange_gpu_sum(ExchangeGPU *, double *, size_t) {}
void exchange_gpu_wait(ExchangeGPU *) {}
cudaStream_t exchange_gpu_transfer(const ExchangeGPU *) {
    return NULL;
}
#endif
