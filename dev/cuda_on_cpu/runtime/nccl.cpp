// NCCL among the processes of an MPI program: one process is one rank with one device.
//
// A rank can be made to fail at one of its collectives, and a collective whose peers do not come stops its stream
// after a while, so that what programs do about it can be tested: CUDA_ON_CPU_NCCL_FAULT and CUDA_ON_CPU_NCCL_PATIENCE.
#include "matrix.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <nccl.h>
#include <unistd.h>
#ifdef HAVE_MPI
#include <mpi.h>
#endif

using namespace cuda_on_cpu;

struct ncclComm {
    int ranks, rank;
    bool blocking = true;
    int answers_in_progress = 0; // not blocking: how often it will say that the last call is still in progress
    bool never_starts = false;
    ncclResult_t error = ncclSuccess; // the asynchronous one
#ifdef HAVE_MPI
    MPI_Comm mpi;
#endif
};

namespace {

int group_depth;
constexpr int everyone = -1;

size_t number_bytes(ncclDataType_t type) {
    switch (type) {
    case ncclInt8:
    case ncclUint8:
        return 1;
    case ncclFloat16:
    case ncclBfloat16:
        return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
        return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
        return 8;
    default:
        return 0;
    }
}

struct Collective {
    const void *send;
    void *receive;
    size_t send_count, receive_count;
    ncclDataType_t type;
    ncclRedOp_t reduction;
    int root; // of a broadcast, else everyone
    ncclComm_t communicator;
    const char *what;
    size_t send_bytes() const { return send_count * number_bytes(type); }
    size_t receive_bytes() const { return receive_count * number_bytes(type); }
};

ncclResult_t check(const Collective &c, cudaStream_t stream) {
    require_errors_seen(c.what);
    if (!c.communicator || !number_bytes(c.type) || c.root >= c.communicator->ranks) return ncclInvalidArgument;
    bool sends = c.root == everyone || c.root == c.communicator->rank;
    if ((sends && c.send_count && !c.send) || (c.receive_count && !c.receive)) return ncclInvalidArgument;
    if (c.reduction < ncclSum || c.reduction > ncclAvg || !stream_is_known(stream)) return ncclInvalidArgument;
    return ncclSuccess;
}

void require_buffers(const Collective &c, bool reads, bool writes) {
    size_t number = number_bytes(c.type);
    if ((uintptr_t)c.send % number || (uintptr_t)c.receive % number)
        fault("misaligned access", nowhere, "%s: a buffer is not aligned to its %zu-byte numbers", c.what, number);
    if (reads) {
        require_device_range(c.send, c.send_bytes(), c.what);
        checker_read(c.send, c.send_bytes(), c.what);
    }
    if (writes) require_device_range(c.receive, c.receive_bytes(), c.what);
}

// ---- numbers as doubles, in which MPI reduces them
double load(const Collective &c, size_t i) {
    switch (c.type) {
    case ncclFloat32:
        return ((const float *)c.send)[i];
    case ncclFloat64:
        return ((const double *)c.send)[i];
    case ncclBfloat16:
        return load_number(c.send, CUDA_R_16BF, i);
    case ncclFloat16:
        return load_number(c.send, CUDA_R_16F, i);
    case ncclInt32:
        return ((const int32_t *)c.send)[i];
    case ncclUint32:
        return ((const uint32_t *)c.send)[i];
    case ncclInt64:
        return (double)((const int64_t *)c.send)[i];
    case ncclUint64:
        return (double)((const uint64_t *)c.send)[i];
    case ncclInt8:
        return ((const int8_t *)c.send)[i];
    default:
        return ((const uint8_t *)c.send)[i];
    }
}
void store(const Collective &c, size_t i, double value) {
    switch (c.type) {
    case ncclFloat32:
        ((float *)c.receive)[i] = (float)value;
        break;
    case ncclFloat64:
        ((double *)c.receive)[i] = value;
        break;
    case ncclBfloat16:
        store_number(c.receive, CUDA_R_16BF, i, (float)value);
        break;
    case ncclFloat16:
        store_number(c.receive, CUDA_R_16F, i, (float)value);
        break;
    case ncclInt32:
        ((int32_t *)c.receive)[i] = (int32_t)value;
        break;
    case ncclUint32:
        ((uint32_t *)c.receive)[i] = (uint32_t)value;
        break;
    case ncclInt64:
        ((int64_t *)c.receive)[i] = (int64_t)value;
        break;
    case ncclUint64:
        ((uint64_t *)c.receive)[i] = (uint64_t)value;
        break;
    case ncclInt8:
        ((int8_t *)c.receive)[i] = (int8_t)value;
        break;
    default:
        ((uint8_t *)c.receive)[i] = (uint8_t)value;
        break;
    }
}
std::vector<double> numbers_to_send(const Collective &c) {
    std::vector<double> numbers(c.send_count);
    for (size_t i = 0; i < c.send_count; i++) numbers[i] = load(c, i);
    return numbers;
}
void store_reduced(const Collective &c, const double *numbers) {
    double scale = c.reduction == ncclAvg ? 1.0 / c.communicator->ranks : 1.0;
    for (size_t i = 0; i < c.receive_count; i++) store(c, i, numbers[i] * scale);
    checker_written(c.receive, c.receive_bytes());
}

// ---- peers that fail
// Rank RANK has a fault at call NUMBER; 0 is the making of its first communicator, then every collective counts.
// CUDA_ON_CPU_NCCL_FAULT=hang:RANK:NUMBER  the process hangs
//                        die:RANK:NUMBER   it is killed
//                        error:RANK:NUMBER it is told of an asynchronous error, and the collective never ends
void have_fault(ncclComm *communicator) {
    static int collectives = -1;
    collectives++;
    const char *setting = getenv("CUDA_ON_CPU_NCCL_FAULT");
    char kind[8];
    int rank, number;
    if (!setting || !*setting) return;
    if (sscanf(setting, "%7[a-z]:%d:%d", kind, &rank, &number) != 3)
        fault("setting", nowhere, "CUDA_ON_CPU_NCCL_FAULT=%s: expected hang, die or error:RANK:NUMBER", setting);
    if (rank != communicator->rank || number != collectives) return;
    while (!strcmp(kind, "hang")) pause();
    if (!strcmp(kind, "die")) kill(getpid(), SIGKILL);
    if (strcmp(kind, "error")) fault("setting", nowhere, "CUDA_ON_CPU_NCCL_FAULT: there is no fault \"%s\"", kind);
    communicator->error = ncclRemoteError;
}

// A communicator that does not block answers each call once with "in progress", whatever it will say in the end.
ncclResult_t answer(ncclComm *communicator, ncclResult_t status = ncclSuccess) {
    if (status != ncclSuccess || communicator->blocking) return status;
    communicator->answers_in_progress = 1;
    return ncclInProgress;
}

void require_no_progress(const ncclComm *communicator, const char *call) {
    if (communicator->answers_in_progress)
        fault("collective", nowhere, "%s: the call before it is still in progress; ask ncclCommGetAsyncError", call);
}

#ifdef HAVE_MPI
// Waits for the peers, for CUDA_ON_CPU_NCCL_PATIENCE milliseconds if that is given.
bool arrives(MPI_Request request) {
    double patience = 1e-3 * (double)number_setting("CUDA_ON_CPU_NCCL_PATIENCE", 0, 0, 3600000), began = seconds();
    for (int done = 0;;) {
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (done) return true;
        if (patience > 0 && seconds() - began > patience) return false;
        usleep(20);
    }
}

MPI_Op mpi_reduction(ncclRedOp_t reduction) {
    switch (reduction) {
    case ncclProd:
        return MPI_PROD;
    case ncclMax:
        return MPI_MAX;
    case ncclMin:
        return MPI_MIN;
    default:
        return MPI_SUM;
    }
}
// Ranks that call different collectives, or the same with other sizes, would hang or mix data on real devices. Returns
// whether all of them call at all. (Buffers are static: MPI may write into them after patience has ended.)
bool all_agree(const Collective &c) {
    static unsigned long all[8], highest[8]; // each number and its complement: one maximum gives both bounds
    unsigned long name = 0;
    for (const char *letter = c.what; *letter; letter++) name = name * 31 + (unsigned char)*letter;
    const unsigned long mine[4] = {c.send_count, (unsigned long)c.type, (unsigned long)c.reduction, name};
    MPI_Request request;
    for (int i = 0; i < 4; i++) all[i] = mine[i], all[4 + i] = ~mine[i];
    MPI_Iallreduce(all, highest, 8, MPI_UNSIGNED_LONG, MPI_MAX, c.communicator->mpi, &request);
    if (!arrives(request)) return false;
    for (int i = 0; i < 4; i++)
        if (highest[i] != ~highest[4 + i])
            fault("collective", nowhere, "%s: the ranks call with different %s", c.what,
                  i == 0   ? "counts"
                  : i == 1 ? "types"
                  : i == 2 ? "reductions"
                           : "functions");
    return true;
}
#endif

// What all ranks sent, reduced number by number; NULL when a rank does not come.
const double *reduced_numbers(const Collective &c) {
    static std::vector<double> numbers;
    numbers = numbers_to_send(c);
#ifdef HAVE_MPI
    MPI_Request request;
    if (c.communicator->ranks > 1) {
        if (!all_agree(c)) return nullptr;
        MPI_Iallreduce(MPI_IN_PLACE, numbers.data(), (int)numbers.size(), MPI_DOUBLE, mpi_reduction(c.reduction),
                       c.communicator->mpi, &request);
        if (!arrives(request)) return nullptr;
    }
#endif
    return numbers.data();
}

bool all_reduce(const Collective &c) {
    require_buffers(c, true, true);
    const double *numbers = reduced_numbers(c);
    if (numbers) store_reduced(c, numbers);
    return numbers;
}

bool reduce_scatter(const Collective &c) {
    require_buffers(c, true, true);
    const double *numbers = reduced_numbers(c);
    if (numbers) store_reduced(c, numbers + c.receive_count * (size_t)c.communicator->rank);
    return numbers;
}

bool all_gather(const Collective &c) {
    static std::vector<char> sent, received;
    require_buffers(c, true, true);
    sent.assign((const char *)c.send, (const char *)c.send + c.send_bytes());
    received = sent;
#ifdef HAVE_MPI
    MPI_Request request;
    if (c.communicator->ranks > 1) {
        received.resize(c.receive_bytes());
        if (!all_agree(c)) return false;
        MPI_Iallgather(sent.data(), (int)sent.size(), MPI_BYTE, received.data(), (int)sent.size(), MPI_BYTE,
                       c.communicator->mpi, &request);
        if (!arrives(request)) return false;
    }
#endif
    memcpy(c.receive, received.data(), received.size());
    checker_written(c.receive, received.size());
    return true;
}

bool broadcast(const Collective &c) {
    static std::vector<char> data;
    bool sends = c.communicator->rank == c.root;
    require_buffers(c, sends, true);
    data.resize(c.receive_bytes());
    if (sends) memcpy(data.data(), c.send, data.size());
#ifdef HAVE_MPI
    MPI_Request request;
    if (c.communicator->ranks > 1) {
        if (!all_agree(c)) return false;
        MPI_Ibcast(data.data(), (int)data.size(), MPI_BYTE, c.root, c.communicator->mpi, &request);
        if (!arrives(request)) return false;
    }
#endif
    memcpy(c.receive, data.data(), data.size());
    checker_written(c.receive, data.size());
    return true;
}

// `run` returns false when a peer did not come.
ncclResult_t enqueue_collective(const Collective &c, cudaStream_t stream, bool (*run)(const Collective &)) {
    ncclResult_t status = check(c, stream);
    if (status != ncclSuccess) return status;
    require_no_progress(c.communicator, c.what);
    have_fault(c.communicator);
    enqueue(stream, [=] {
        DeviceMemoryAccess access;
        if (c.communicator->error != ncclSuccess || !run(c)) stop_this_stream();
    });
    return answer(c.communicator);
}

} // namespace

extern "C" {

ncclResult_t ncclGetVersion(int *version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}
const char *ncclGetErrorString(ncclResult_t status) {
    switch (status) {
    case ncclSuccess:
        return "no error";
    case ncclInvalidArgument:
        return "invalid argument";
    case ncclInvalidUsage:
        return "invalid usage";
    case ncclSystemError:
        return "unhandled system error";
    case ncclInternalError:
        return "internal error";
    case ncclRemoteError:
        return "remote process exited or there was a network error";
    default:
        return "unhandled error";
    }
}
const char *ncclGetLastError(ncclComm_t) {
    return "";
}

// ---- communicators
ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    uint64_t time_and_counter = (uint64_t)(seconds() * 1e9);
    memset(id, 0, sizeof *id);
    memcpy(id->internal, &time_and_counter, sizeof time_and_counter);
    return ncclSuccess;
}

#ifdef HAVE_MPI
static bool was_aborted;
static void finish_mpi(int status, void *) {
    int finalised;
    MPI_Finalized(&finalised);
    if (!finalised && !status && !was_aborted) MPI_Finalize(); // else the others do not come to it; mpirun ends them
}
static void start_mpi() {
    int initialised;
    MPI_Initialized(&initialised);
    if (initialised) return;
    MPI_Init(nullptr, nullptr);
    on_exit(finish_mpi, nullptr);
}
static ncclResult_t join(ncclComm *communicator, const ncclUniqueId &id) {
    static ncclUniqueId of_first;
    int ranks, rank;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (ranks != communicator->ranks || rank != communicator->rank) return ncclInvalidArgument;
    MPI_Request request;
    MPI_Comm_idup(MPI_COMM_WORLD, &communicator->mpi, &request);
    communicator->never_starts = !arrives(request);
    if (communicator->never_starts) return ncclSuccess;
    of_first = id;
    MPI_Ibcast(&of_first, sizeof of_first, MPI_BYTE, 0, communicator->mpi, &request);
    communicator->never_starts = !arrives(request);
    if (!communicator->never_starts && memcmp(&of_first, &id, sizeof id))
        fault("collective", nowhere, "ncclCommInitRank: rank %d has another unique id than rank 0", rank);
    return ncclSuccess;
}
#else
static void start_mpi() {}
static ncclResult_t join(ncclComm *, const ncclUniqueId &) {
    return ncclSystemError;
}
#endif

ncclResult_t ncclCommInitRankConfig(ncclComm_t *communicator, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
    if (!communicator || ranks < 1 || rank < 0 || rank >= ranks) return ncclInvalidArgument;
    ncclComm *created = new ncclComm();
    created->ranks = ranks;
    created->rank = rank;
    created->blocking = !config || config->blocking != 0;
    *communicator = created;
    if (ranks > 1) start_mpi();
    have_fault(created);
    return answer(created, ranks == 1 ? ncclSuccess : join(created, id));
}
ncclResult_t ncclCommInitRank(ncclComm_t *communicator, int ranks, ncclUniqueId id, int rank) {
    return ncclCommInitRankConfig(communicator, ranks, id, rank, nullptr);
}
ncclResult_t ncclCommFinalize(ncclComm_t communicator) {
    if (!communicator) return ncclInvalidArgument;
    require_no_progress(communicator, "ncclCommFinalize");
    finish_all_work();
    return answer(communicator);
}
ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
    if (!communicator) return ncclInvalidArgument;
    finish_all_work();
#ifdef HAVE_MPI
    int finalised = 1;
    if (communicator->ranks > 1) MPI_Finalized(&finalised);
    if (!finalised) MPI_Comm_free(&communicator->mpi);
#endif
    delete communicator;
    return ncclSuccess;
}
// What waits is given up, for the peers too.
ncclResult_t ncclCommAbort(ncclComm_t communicator) {
    if (!communicator) return ncclInvalidArgument;
    let_streams_go();
#ifdef HAVE_MPI
    was_aborted = true;
#endif
    delete communicator;
    return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t *error) {
    if (!communicator || !error) return ncclInvalidArgument;
    bool in_progress = communicator->never_starts || communicator->answers_in_progress > 0;
    if (communicator->answers_in_progress > 0) communicator->answers_in_progress--;
    *error = in_progress ? ncclInProgress : communicator->error;
    return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t communicator, int *count) {
    *count = communicator->ranks;
    return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t communicator, int *rank) {
    *rank = communicator->rank;
    return ncclSuccess;
}
ncclResult_t ncclGroupStart() {
    group_depth++;
    return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
    if (group_depth == 0) return ncclInvalidUsage;
    group_depth--;
    return ncclSuccess;
}

// ---- collectives
ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t reduction,
                           ncclComm_t communicator, cudaStream_t stream) {
    return enqueue_collective({send, receive, count, count, type, reduction, everyone, communicator, "ncclAllReduce"},
                              stream, all_reduce);
}
ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count, ncclDataType_t type,
                               ncclRedOp_t reduction, ncclComm_t communicator, cudaStream_t stream) {
    size_t ranks = communicator ? (size_t)communicator->ranks : 0;
    return enqueue_collective(
        {send, receive, count * ranks, count, type, reduction, everyone, communicator, "ncclReduceScatter"}, stream,
        reduce_scatter);
}
ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t communicator,
                           cudaStream_t stream) {
    size_t ranks = communicator ? (size_t)communicator->ranks : 0;
    return enqueue_collective(
        {send, receive, count, count * ranks, type, ncclSum, everyone, communicator, "ncclAllGather"}, stream,
        all_gather);
}
ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t communicator, cudaStream_t stream) {
    if (root < 0) return ncclInvalidArgument;
    return enqueue_collective({send, receive, count, count, type, ncclSum, root, communicator, "ncclBroadcast"}, stream,
                              broadcast);
}
ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t communicator,
                       cudaStream_t stream) {
    return ncclBroadcast(buffer, buffer, count, type, root, communicator, stream);
}

} // extern "C"
