// NCCL among the processes of an MPI program: one process is one rank with one device.
#include "matrix.h"

#include <cstdlib>
#include <nccl.h>
#ifdef HAVE_MPI
#include <mpi.h>
#endif

using namespace cuda_on_cpu;

struct ncclComm {
    int ranks, rank;
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

#ifdef HAVE_MPI
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
// Ranks that call different collectives, or the same with other sizes, would hang or mix data on real devices.
void require_agreement(const Collective &c) {
    unsigned long all[4] = {c.send_count, (unsigned long)c.type, (unsigned long)c.reduction, 0}, lowest[4], highest[4];
    for (const char *letter = c.what; *letter; letter++) all[3] = all[3] * 31 + (unsigned char)*letter;
    MPI_Allreduce(all, lowest, 4, MPI_UNSIGNED_LONG, MPI_MIN, c.communicator->mpi);
    MPI_Allreduce(all, highest, 4, MPI_UNSIGNED_LONG, MPI_MAX, c.communicator->mpi);
    for (int i = 0; i < 4; i++)
        if (lowest[i] != highest[i])
            fault("collective", nowhere, "%s: the ranks call with different %s", c.what,
                  i == 0   ? "counts"
                  : i == 1 ? "types"
                  : i == 2 ? "reductions"
                           : "functions");
}
#else
void require_agreement(const Collective &) {}
#endif

// What all ranks sent, reduced number by number.
std::vector<double> reduced_numbers(const Collective &c) {
    std::vector<double> numbers = numbers_to_send(c);
#ifdef HAVE_MPI
    if (c.communicator->ranks > 1) {
        require_agreement(c);
        MPI_Allreduce(MPI_IN_PLACE, numbers.data(), (int)numbers.size(), MPI_DOUBLE, mpi_reduction(c.reduction),
                      c.communicator->mpi);
    }
#endif
    return numbers;
}

void all_reduce(const Collective &c) {
    DeviceMemoryAccess access;
    require_buffers(c, true, true);
    store_reduced(c, reduced_numbers(c).data());
}

void reduce_scatter(const Collective &c) {
    DeviceMemoryAccess access;
    require_buffers(c, true, true);
    store_reduced(c, reduced_numbers(c).data() + c.receive_count * (size_t)c.communicator->rank);
}

void all_gather(const Collective &c) {
    DeviceMemoryAccess access;
    require_buffers(c, true, true);
    std::vector<char> sent((const char *)c.send, (const char *)c.send + c.send_bytes()), received(c.receive_bytes());
    if (c.communicator->ranks == 1) received = sent;
#ifdef HAVE_MPI
    if (c.communicator->ranks > 1) {
        require_agreement(c);
        MPI_Allgather(sent.data(), (int)sent.size(), MPI_BYTE, received.data(), (int)sent.size(), MPI_BYTE,
                      c.communicator->mpi);
    }
#endif
    memcpy(c.receive, received.data(), received.size());
    checker_written(c.receive, received.size());
}

void broadcast(const Collective &c) {
    DeviceMemoryAccess access;
    bool sends = c.communicator->rank == c.root;
    require_buffers(c, sends, true);
    std::vector<char> data(c.receive_bytes());
    if (sends) memcpy(data.data(), c.send, data.size());
#ifdef HAVE_MPI
    if (c.communicator->ranks > 1) {
        require_agreement(c);
        MPI_Bcast(data.data(), (int)data.size(), MPI_BYTE, c.root, c.communicator->mpi);
    }
#endif
    memcpy(c.receive, data.data(), data.size());
    checker_written(c.receive, data.size());
}

ncclResult_t enqueue_collective(const Collective &c, cudaStream_t stream, void (*run)(const Collective &)) {
    ncclResult_t status = check(c, stream);
    if (status == ncclSuccess) enqueue(stream, [=] { run(c); });
    return status;
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
static void finish_mpi() {
    int finalised;
    MPI_Finalized(&finalised);
    if (!finalised) MPI_Finalize();
}
static ncclResult_t join(ncclComm *communicator, const ncclUniqueId &id) {
    int initialised, ranks, rank;
    MPI_Initialized(&initialised);
    if (!initialised) {
        MPI_Init(nullptr, nullptr);
        atexit(finish_mpi);
    }
    MPI_Comm_dup(MPI_COMM_WORLD, &communicator->mpi);
    MPI_Comm_size(communicator->mpi, &ranks);
    MPI_Comm_rank(communicator->mpi, &rank);
    if (ranks != communicator->ranks || rank != communicator->rank) return ncclInvalidArgument;
    ncclUniqueId of_first = id;
    MPI_Bcast(&of_first, sizeof of_first, MPI_BYTE, 0, communicator->mpi);
    if (memcmp(&of_first, &id, sizeof id))
        fault("collective", nowhere, "ncclCommInitRank: rank %d has another unique id than rank 0", rank);
    return ncclSuccess;
}
#else
static ncclResult_t join(ncclComm *, const ncclUniqueId &) {
    return ncclSystemError;
}
#endif

ncclResult_t ncclCommInitRank(ncclComm_t *communicator, int ranks, ncclUniqueId id, int rank) {
    if (!communicator || ranks < 1 || rank < 0 || rank >= ranks) return ncclInvalidArgument;
    ncclComm *created = new ncclComm();
    created->ranks = ranks;
    created->rank = rank;
    *communicator = created;
    return ranks == 1 ? ncclSuccess : join(created, id);
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
ncclResult_t ncclCommAbort(ncclComm_t communicator) {
    return ncclCommDestroy(communicator);
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t *error) {
    if (!communicator || !error) return ncclInvalidArgument;
    *error = ncclSuccess;
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
