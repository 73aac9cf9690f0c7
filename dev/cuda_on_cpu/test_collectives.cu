// NCCL's collectives among the ranks of an MPI program; with one rank where there is no MPI.
#include "../../core/gpu/cuda_common.h"
#include "../../core/base/test.h"

#include <nccl.h>
#include <vector>

static int rank, ranks;
static ncclComm_t communicator;
static cudaStream_t stream;
#define nccl_check(call) CHECK((call) == ncclSuccess)

static float *to_device(const std::vector<float> &values) {
    float *device;
    cuda_check(cudaMalloc(&device, values.size() * sizeof(float)));
    cuda_check(cudaMemcpy(device, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice));
    return device;
}
static std::vector<float> from_device(const float *device, size_t count) {
    std::vector<float> values(count);
    cuda_check(cudaStreamSynchronize(stream));
    cuda_check(cudaMemcpy(values.data(), device, count * sizeof(float), cudaMemcpyDeviceToHost));
    return values;
}
static std::vector<float> counted(size_t count, float start) {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; i++) values[i] = start + (float)i;
    return values;
}

static void test_all_reduce() {
    float *values = to_device(counted(10, (float)(rank * 100)));
    nccl_check(ncclGroupStart());
    nccl_check(ncclAllReduce(values, values, 10, ncclFloat, ncclSum, communicator, stream));
    nccl_check(ncclGroupEnd());
    for (int i = 0; i < 10; i++)
        CHECK(from_device(values, 10)[(size_t)i] == (float)(ranks * i + 100 * (ranks - 1) * ranks / 2));
    nccl_check(ncclAllReduce(values, values, 10, ncclFloat, ncclAvg, communicator, stream));
    CHECK(from_device(values, 10)[1] == (float)(ranks + 100 * (ranks - 1) * ranks / 2));
    cuda_check(cudaFree(values));
}
static void test_scatter_and_gather() {
    float *values = to_device(counted((size_t)(6 * ranks), (float)rank)), *part = to_device(counted(6, 0));
    nccl_check(ncclReduceScatter(values, part, 6, ncclFloat, ncclMax, communicator, stream));
    CHECK(from_device(part, 6)[5] == (float)(6 * rank + 5 + ranks - 1));
    nccl_check(ncclAllGather(part, values, 6, ncclFloat, communicator, stream));
    std::vector<float> found = from_device(values, (size_t)(6 * ranks));
    for (int i = 0; i < 6 * ranks; i++) CHECK(found[(size_t)i] == (float)(i + ranks - 1));
    cuda_check(cudaFree(values));
    cuda_check(cudaFree(part));
}
static void test_broadcast() {
    float *values = to_device(counted(5, (float)(rank * 10)));
    nccl_check(ncclBroadcast(values, values, 5, ncclFloat, ranks - 1, communicator, stream));
    CHECK(from_device(values, 5)[4] == (float)((ranks - 1) * 10 + 4));
    cuda_check(cudaFree(values));
}
static void test_refusals() {
    float *values = to_device(counted(5, 0));
    CHECK(ncclAllReduce(NULL, values, 5, ncclFloat, ncclSum, communicator, stream) == ncclInvalidArgument);
    CHECK(ncclBroadcast(values, values, 5, ncclFloat, ranks, communicator, stream) == ncclInvalidArgument);
    CHECK(ncclAllReduce(values, values, 5, ncclFloat, ncclSum, NULL, stream) == ncclInvalidArgument);
    CHECK(ncclGroupEnd() == ncclInvalidUsage);
    ncclResult_t error = ncclInternalError;
    nccl_check(ncclCommGetAsyncError(communicator, &error));
    CHECK(error == ncclSuccess);
    cuda_check(cudaFree(values));
}

static ncclComm_t communicator_that_does_not_block() {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    ncclComm_t created;
    memset(&id, 2, sizeof id);
    config.blocking = 0;
    CHECK(ncclCommInitRankConfig(&created, ranks, id, rank, &config) == ncclInProgress);
    return created;
}
static ncclResult_t outcome(ncclComm_t of) { // of its last call
    ncclResult_t state = ncclInProgress;
    for (int i = 0; i < 10 && state == ncclInProgress; i++) nccl_check(ncclCommGetAsyncError(of, &state));
    return state;
}
static void test_not_blocking() {
    ncclComm_t own = communicator_that_does_not_block();
    ncclResult_t state = ncclSuccess;
    nccl_check(ncclCommGetAsyncError(own, &state));
    CHECK(state == ncclInProgress);
    CHECK(outcome(own) == ncclSuccess);
    float *values = to_device(counted(4, 1));
    CHECK(ncclAllReduce(values, values, 4, ncclFloat, ncclSum, own, stream) == ncclInProgress);
    CHECK(outcome(own) == ncclSuccess);
    CHECK(from_device(values, 4)[1] == 2 * (float)ranks);
    CHECK(ncclCommFinalize(own) == ncclInProgress);
    CHECK(outcome(own) == ncclSuccess);
    nccl_check(ncclCommDestroy(own));
    cuda_check(cudaFree(values));
}
// A collective that never ends holds up its stream and what waits for it, nothing else, until it is aborted. (The
// program's first communicator and collective: they are call 0 and 1.)
static void test_stopped() {
    if (ranks > 1) SKIP("MPI would be left in the middle of something; one rank tests it");
    setenv("CUDA_ON_CPU_NCCL_FAULT", "error:0:1", 1);
    ncclComm_t own = communicator_that_does_not_block();
    float *values = to_device(counted(4, 1));
    cudaStream_t other;
    cudaEvent_t before, after;
    cuda_check(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    cuda_check(cudaEventCreate(&before));
    cuda_check(cudaEventCreate(&after));
    CHECK(outcome(own) == ncclSuccess);
    cuda_check(cudaEventRecord(before, stream));
    CHECK(ncclAllReduce(values, values, 4, ncclFloat, ncclSum, own, stream) == ncclInProgress);
    cuda_check(cudaEventRecord(after, stream));
    CHECK(outcome(own) == ncclRemoteError);
    for (int i = 0; i < 10; i++) CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
    for (int i = 0; i < 10; i++) CHECK(cudaEventQuery(after) == cudaErrorNotReady);
    CHECK(cudaEventQuery(before) == cudaSuccess);
    cuda_check(cudaMemsetAsync(values, 0, 4, other));
    cuda_check(cudaStreamSynchronize(other));
    cuda_check(cudaStreamWaitEvent(other, after, 0));
    for (int i = 0; i < 10; i++) CHECK(cudaStreamQuery(other) == cudaErrorNotReady);
    nccl_check(ncclCommAbort(own));
    cuda_check(cudaStreamSynchronize(stream));
    cuda_check(cudaStreamSynchronize(other));
    unsetenv("CUDA_ON_CPU_NCCL_FAULT");
    cuda_check(cudaFree(values));
    cuda_check(cudaStreamDestroy(other));
}
static void test_priorities() {
    cudaStream_t urgent;
    int least, greatest, priority;
    cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    cuda_check(cudaStreamCreateWithPriority(&urgent, cudaStreamNonBlocking, greatest - 100));
    cuda_check(cudaStreamGetPriority(urgent, &priority));
    CHECK(priority == greatest && greatest < least);
    cuda_check(cudaStreamGetPriority(stream, &priority));
    CHECK(priority == least);
    cuda_check(cudaStreamDestroy(urgent));
}

int main(int argc, char **argv) { // test_collectives RANKS; the unique id is the same by construction
    ranks = argc > 1 ? atoi(argv[1]) : 1;
    const char *of_mpi = getenv("OMPI_COMM_WORLD_RANK");
    rank = ranks > 1 && of_mpi ? atoi(of_mpi) : 0;
    ncclUniqueId id;
    memset(&id, 1, sizeof id);
    cuda_check(cudaStreamCreate(&stream));
    RUN(test_stopped);
    if (ncclCommInitRank(&communicator, ranks, id, rank) != ncclSuccess) return 1;
    RUN(test_all_reduce);
    RUN(test_scatter_and_gather);
    RUN(test_broadcast);
    RUN(test_refusals);
    RUN(test_not_blocking);
    RUN(test_priorities);
    nccl_check(ncclCommDestroy(communicator));
    return test_summary();
}
