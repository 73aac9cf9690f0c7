// Count mode: what every kernel and every library call moves and multiplies. Nothing is checked.
//
// Two figures bracket what a GPU's memory sees. Requested: the bytes that threads ask for, as if there were no caches.
// Moved: every sector of 32 bytes once per launch, as if the caches were perfect within a launch and empty at its
// start; what a launch reads after writing it does not count. A library call moves its operands once, and the
// operations of its matrix products are counted by the arithmetic they are done in, as are those that a kernel does by
// tensor cores. Bytes of shared memory are what threads ask for. The table is written at the end, a line for each
// kernel and size of launch:
//   name, offset of the kernel's function in the program (0: unknown), threads of a block, bytes of dynamic shared
//   memory, launches, blocks, bytes moved (read, written), requested (read, written), of shared memory (read, written),
//   operations of products in bf16 (and fp16), in TF32, in fp32
// with lines "cublasGemmEx, bf16" for products and "cublasGemmEx" for how often it was called. After a kernel's line
// come lines that begin with a tab: the offset of an instruction in the program, and the bytes that warps asked for
// there if every lane had asked for as much as the one that asked for most.
#include "checker.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <sys/mman.h>
#include <tuple>
#include <unordered_map>
#include <vector>

namespace cuda_on_cpu {

namespace {

constexpr size_t sector = 32;

struct Key {
    std::string name;
    const void *function;
    uint64_t threads, shared_bytes;
    bool operator<(const Key &other) const {
        return std::tie(name, function, threads, shared_bytes) <
               std::tie(other.name, other.function, other.threads, other.shared_bytes);
    }
};

// An instruction that reads or writes device or shared memory: bytes by thread of the running block, and the sum.
struct Access {
    uint64_t bytes;
    std::vector<uint32_t> of_thread;
};

enum { BF16, TF32, FP32, ARITHMETICS };
struct Traffic {
    uint64_t launches, blocks, moved_read, moved_written, requested_read, requested_written, shared_read,
        shared_written, operations[ARITHMETICS];
    std::unordered_map<const void *, Access> accesses; // by return address
};

void write_table();

std::map<Key, Traffic> &table() {
    static std::map<Key, Traffic> *the_table = [] {
        atexit(write_table);
        return new std::map<Key, Traffic>;
    }();
    return *the_table;
}

Traffic *library_line(const std::string &name) {
    return &table()[Key{name, nullptr, 0, 0}];
}

size_t offset_in_program(const void *function) {
    Dl_info found;
    return function && dladdr(function, &found) ? (size_t)((const char *)function - (const char *)found.dli_fbase) : 0;
}

void write_table() {
    const char *path = getenv("CUDA_ON_CPU_TRAFFIC");
    FILE *out = path && *path ? fopen(path, "w") : stderr;
    if (!out) fault("runtime", nowhere, "CUDA_ON_CPU_TRAFFIC=%s cannot be written", path);
    for (const auto &[key, t] : table()) {
        fprintf(out, "%s\t%zu", key.name.c_str(), offset_in_program(key.function));
        for (uint64_t number : {key.threads, key.shared_bytes, t.launches, t.blocks, t.moved_read, t.moved_written,
                                t.requested_read, t.requested_written, t.shared_read, t.shared_written,
                                t.operations[BF16], t.operations[TF32], t.operations[FP32]})
            fprintf(out, "\t%zu", (size_t)number);
        fprintf(out, "\n");
        for (const auto &[place, access] : t.accesses)
            fprintf(out, "\t%zu\t%zu\n", offset_in_program(place), (size_t)access.bytes);
    }
    if (out != stderr) fclose(out);
}

uint32_t this_launch; // number of the one that runs
Traffic *of_kernel, *of_library;
std::vector<Access *> of_block;      // those that the running block has come to
std::string multiplying, arithmetic; // the library call whose product runs, and how it multiplies

// By sector of device memory: the last launch that read, and that wrote it.
uint32_t *stamps(bool of_writes) {
    static uint32_t *arrays[2];
    if (!arrays[of_writes])
        arrays[of_writes] =
            (uint32_t *)mmap(nullptr, device_arena_bytes / sector * sizeof(uint32_t), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arrays[of_writes] == MAP_FAILED) fault("runtime", nowhere, "no memory for the count of sectors");
    return arrays[of_writes];
}

void count_access(const void *place, size_t bytes) {
    Access &access = of_kernel->accesses[place];
    if (access.of_thread.empty()) {
        access.of_thread.resize(blockDim.x * blockDim.y * blockDim.z);
        of_block.push_back(&access);
    }
    access.of_thread[(size_t)thread_in_block()] += (uint32_t)bytes;
}

void count(const void *address, size_t bytes, bool writes, const void *place) {
    if (!in_kernel() || !of_kernel || !bytes) return;
    if (place && (is_shared_memory(address) || is_device_memory(address))) count_access(place, bytes);
    if (is_shared_memory(address)) (writes ? of_kernel->shared_written : of_kernel->shared_read) += bytes;
    if (!is_device_memory(address)) return;
    size_t offset = (size_t)((const char *)address - device_arena);
    uint32_t *read = stamps(false), *written = stamps(true);
    (writes ? of_kernel->requested_written : of_kernel->requested_read) += bytes;
    for (size_t s = offset / sector; s <= (offset + bytes - 1) / sector; s++) {
        if (writes && written[s] != this_launch) of_kernel->moved_written += sector;
        if (!writes && read[s] != this_launch && written[s] != this_launch) of_kernel->moved_read += sector;
        (writes ? written : read)[s] = this_launch;
    }
}

} // namespace

// ---- accesses of kernels
void check_access(const void *address, size_t bytes, AccessKind kind, const void *place) {
    count(address, bytes, kind == AccessKind::write, place);
}
void check_range(const void *address, size_t bytes, AccessKind kind, const void *place) {
    count(address, bytes, kind == AccessKind::write, place);
}
void check_alignment(const void *, size_t, AccessKind, const void *) {}
void checker_announced(size_t bytes, const void *return_address) {
    if (of_kernel && in_kernel()) count_access(return_address, bytes);
}
void check_atomic(const void *address, size_t bytes) {
    count(address, bytes, false, nullptr);
    count(address, bytes, true, nullptr);
}

// ---- operands of libraries, named "call, operand"
void checker_library_call(const char *call) {
    library_line(call)->launches++;
}
static int kind_of(const char *arithmetic) {
    return !strcmp(arithmetic, "tf32") ? TF32 : !strcmp(arithmetic, "fp32") ? FP32 : BF16;
}
void checker_multiplies(const char *call, const char *how, double operations) {
    multiplying = call, arithmetic = how;
    library_line(multiplying + ", " + arithmetic)->operations[kind_of(how)] += (uint64_t)operations;
}
void count_tensor_operation(const char *how, double operations) {
    of_kernel->operations[kind_of(how)] += (uint64_t)operations;
}
void checker_read(const void *, size_t bytes, const char *reader) {
    std::string call(reader, strcspn(reader, ","));
    of_library = library_line(call == multiplying ? call + ", " + arithmetic : call);
    of_library->moved_read += bytes, of_library->requested_read += bytes;
}
void checker_written(const void *, size_t bytes) {
    if (of_library) of_library->moved_written += bytes, of_library->requested_written += bytes;
}
void checker_launch() {
    this_launch++;
    of_library = nullptr;
    uint64_t threads = (uint64_t)blockDim.x * blockDim.y * blockDim.z;
    of_kernel = &table()[Key{running.kernel, running.function, threads, running.shared_bytes}];
    of_kernel->launches++, of_kernel->blocks += (uint64_t)gridDim.x * gridDim.y * gridDim.z;
}
void checker_copied(void *, const void *, size_t) {
    of_library = nullptr;
}

void memory_fence() {}
void checker_allocated(const void *, size_t) {}
void checker_freed(const void *, size_t) {}
void checker_block() {}
void checker_block_ended() {
    for (Access *access : of_block) {
        for (size_t first = 0; first < access->of_thread.size(); first += 32) {
            auto lane = access->of_thread.begin() + (ptrdiff_t)first;
            access->bytes += 32 * (uint64_t)*std::max_element(lane, std::min(lane + 32, access->of_thread.end()));
        }
        access->of_thread.clear();
    }
    of_block.clear();
}
void checker_barrier() {}
void checker_warp_sync(int, unsigned) {}

} // namespace cuda_on_cpu
