// Count mode: how many bytes every kernel and every library call moves. Nothing is checked.
//
// Two figures bracket what a GPU's memory sees. Requested: the bytes that threads ask for, as if there were no caches.
// Moved: every sector of 32 bytes once per launch, as if the caches were perfect within a launch and empty at its
// start; what a launch reads after writing it does not count. A library call moves its operands once, and the
// operations of its matrix products are counted by the arithmetic they are done in. The table is written at the end:
//   name, launches, bytes moved (read, written), bytes requested (read, written), operations of products
// with lines "cublasGemmEx, bf16" for products.
#include "checker.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sys/mman.h>

namespace cuda_on_cpu {

namespace {

constexpr size_t sector = 32;

struct Traffic {
    uint64_t launches, moved_read, moved_written, requested_read, requested_written, operations;
};

void write_table();

std::map<std::string, Traffic> &table() {
    static std::map<std::string, Traffic> *the_table = [] {
        atexit(write_table);
        return new std::map<std::string, Traffic>;
    }();
    return *the_table;
}

void write_table() {
    const char *path = getenv("CUDA_ON_CPU_TRAFFIC");
    FILE *out = path && *path ? fopen(path, "w") : stderr;
    if (!out) fault("runtime", nowhere, "CUDA_ON_CPU_TRAFFIC=%s cannot be written", path);
    for (const auto &[name, t] : table())
        fprintf(out, "%s\t%zu\t%zu\t%zu\t%zu\t%zu\t%zu\n", name.c_str(), (size_t)t.launches, (size_t)t.moved_read,
                (size_t)t.moved_written, (size_t)t.requested_read, (size_t)t.requested_written, (size_t)t.operations);
    if (out != stderr) fclose(out);
}

uint32_t this_launch; // number of the one that runs
Traffic *of_kernel, *of_library;
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

void count(const void *address, size_t bytes, bool writes) {
    if (!in_kernel() || !of_kernel || !bytes || !is_device_memory(address)) return;
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
void check_access(const void *address, size_t bytes, AccessKind kind, const void *) {
    count(address, bytes, kind == AccessKind::write);
}
void check_range(const void *address, size_t bytes, AccessKind kind, const void *) {
    count(address, bytes, kind == AccessKind::write);
}
void check_alignment(const void *, size_t, AccessKind, const void *) {}
void check_atomic(const void *address, size_t bytes) {
    count(address, bytes, false);
    count(address, bytes, true);
}

// ---- operands of libraries, named "call, operand"
void checker_multiplies(const char *call, const char *how, double operations) {
    multiplying = call, arithmetic = how;
    table()[multiplying + ", " + arithmetic].operations += (uint64_t)operations;
}
void count_tensor_operation(const char *how, double operations) {
    table()[std::string(running.kernel) + ", " + how].operations += (uint64_t)operations;
}
void checker_read(const void *, size_t bytes, const char *reader) {
    std::string call(reader, strcspn(reader, ","));
    of_library = &table()[call == multiplying ? call + ", " + arithmetic : call];
    of_library->moved_read += bytes, of_library->requested_read += bytes;
}
void checker_written(const void *, size_t bytes) {
    if (of_library) of_library->moved_written += bytes, of_library->requested_written += bytes;
}
void checker_launch() {
    this_launch++;
    of_library = nullptr;
    of_kernel = &table()[running.kernel];
    of_kernel->launches++;
}
void checker_copied(void *, const void *, size_t) {
    of_library = nullptr;
}

void memory_fence() {}
void checker_allocated(const void *, size_t) {}
void checker_freed(const void *, size_t) {}
void checker_block() {}
void checker_block_ended() {}
void checker_barrier() {}
void checker_warp_sync(int, unsigned) {}

} // namespace cuda_on_cpu
