// Device memory: one reserved arena in which every allocation has its own pages, never used twice, so that a stale or
// stray pointer finds nothing. Fresh memory holds signalling NaNs.
#include "runtime.h"

#include <algorithm>
#include <map>
#include <sys/mman.h>

#ifdef CUDA_ON_CPU_ASAN
#include <sanitizer/asan_interface.h>
#endif
#ifdef CUDA_ON_CPU_VALGRIND
#include <valgrind/memcheck.h>
static constexpr size_t arena_bytes = (size_t)8 << 30; // valgrind's address space is small
#elif defined(CUDA_ON_CPU_CHECK)
static constexpr size_t arena_bytes = (size_t)32 << 30; // its shadow takes twenty times as much address space
#else
static constexpr size_t arena_bytes = (size_t)256 << 30;
#endif

namespace cuda_on_cpu {

const size_t device_arena_bytes = arena_bytes;

static constexpr size_t page = 4096, alignment = 256; // cudaMalloc promises 256 bytes
char *device_arena;
static size_t arena_used, live_bytes;

static size_t round_up(size_t bytes, size_t multiple) {
    return (bytes + multiple - 1) / multiple * multiple;
}

static std::map<const char *, Allocation> &allocations() {        // by address
    static auto &table = *new std::map<const char *, Allocation>; // never destroyed: work may still run at exit
    return table;
}

// 7fbf7fbf is a signalling NaN as float, 7fbf as bfloat16; as an index it is out of every bound.
void poison(void *address, size_t bytes) {
    uint16_t *number = (uint16_t *)address; // both kinds of memory begin at even addresses
    for (size_t i = 0; i < bytes / 2; i++) number[i] = 0x7fbf;
    if (bytes % 2) ((unsigned char *)address)[bytes - 1] = 0xbf;
#ifdef CUDA_ON_CPU_VALGRIND
    VALGRIND_MAKE_MEM_UNDEFINED(address, bytes);
#endif
}

struct Pages {
    char *first;
    size_t bytes;
};
static Pages pages_of(const Allocation &allocation) {
    char *first = (char *)((uintptr_t)allocation.start / page * page);
    return {first, round_up((size_t)(allocation.start + allocation.bytes - first), page)};
}

// ---- keeping the host out
static int access_depth;
// What is alive, not the whole arena: guards and freed pages stay closed to kernels too, and the system need not walk
// through gigabytes that were freed, at every launch.
static void set_protection(int protection) {
    for (const auto &entry : allocations()) {
        Pages pages = pages_of(entry.second);
        if (entry.second.kind == MemoryKind::device) mprotect(pages.first, pages.bytes, protection);
    }
}
DeviceMemoryAccess::DeviceMemoryAccess() {
    if (access_depth++ == 0 && options().protect) set_protection(PROT_READ | PROT_WRITE);
}
DeviceMemoryAccess::~DeviceMemoryAccess() {
    if (--access_depth == 0 && options().protect) set_protection(PROT_NONE);
}
bool host_may_touch_device_memory() {
    return access_depth > 0;
}

// ---- allocating
static char *reserve_arena() {
    void *memory = mmap(nullptr, arena_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fault("runtime", nowhere, "cannot reserve %zu bytes of address space", arena_bytes);
    return (char *)memory;
}

// The buffer ends where its last page ends (but for alignment); the next page stays unmapped as a guard.
void *device_allocate(size_t bytes) {
    if (!device_arena) device_arena = reserve_arena();
    size_t pages = round_up(round_up(bytes, alignment), page);
    if (live_bytes == 0 && arena_used > arena_bytes / 2) arena_used = 0; // everything has been freed: begin again
    if (bytes > options().memory - live_bytes || arena_used + pages + page > arena_bytes) return nullptr;
    char *first_page = device_arena + arena_used;
    arena_used += pages + page;
    mprotect(first_page, pages, PROT_READ | PROT_WRITE);
    char *start = first_page + pages - round_up(bytes, alignment);
    if (!options().skip) poison(start, bytes);
#ifdef CUDA_ON_CPU_ASAN
    ASAN_POISON_MEMORY_REGION(first_page, pages + page);
    ASAN_UNPOISON_MEMORY_REGION(start, bytes);
#endif
    checker_allocated(start, bytes);
    allocations()[start] = {start, bytes, MemoryKind::device};
    live_bytes += bytes;
    if (options().protect && access_depth == 0) mprotect(first_page, pages, PROT_NONE);
    return start;
}

static void device_release(const Allocation &allocation) {
    Pages pages = pages_of(allocation);
    checker_freed(allocation.start, allocation.bytes);
#ifdef CUDA_ON_CPU_ASAN
    ASAN_POISON_MEMORY_REGION(pages.first, pages.bytes);
#endif
    mprotect(pages.first, pages.bytes, PROT_NONE);
    madvise(pages.first, pages.bytes, MADV_DONTNEED);
    live_bytes -= allocation.bytes;
}

static cudaError_t allocate_host(void **address, size_t bytes, MemoryKind kind, const char *call) {
    if (!address) return api_result(cudaErrorInvalidValue, call);
    char *start = (char *)aligned_alloc(page, round_up(std::max<size_t>(bytes, 1), page));
    if (!start) return api_result(cudaErrorMemoryAllocation, call);
    poison(start, bytes);
    allocations()[start] = {start, bytes, kind};
    *address = start;
    return cudaSuccess;
}

static cudaError_t release(void *address, bool pinned, const char *call) {
    if (!address) return cudaSuccess;
    auto found = allocations().find((const char *)address);
    if (found == allocations().end() || (found->second.kind == MemoryKind::pinned) != pinned)
        fault("memory", nowhere, "%s(%p): not the start of a live allocation of its kind (freed twice?)", call,
              address);
    if (found->second.kind == MemoryKind::device)
        device_release(found->second);
    else
        free(address);
    allocations().erase(found);
    return cudaSuccess;
}

// ---- looking up
bool is_device_memory(const void *address) {
    return device_arena && (const char *)address >= device_arena && (const char *)address < device_arena + arena_bytes;
}
const Allocation *find_allocation(const void *address) {
    auto next = allocations().upper_bound((const char *)address);
    if (next == allocations().begin()) return nullptr;
    const Allocation &candidate = (--next)->second;
    return (const char *)address < candidate.start + candidate.bytes ? &candidate : nullptr;
}
bool is_device_accessible(const void *address) {
    return find_allocation(address) != nullptr;
}
void require_device_range(const void *address, size_t bytes, const char *what) {
    if (!bytes) return;
    const Allocation *allocation = find_allocation(address);
    if (!allocation && is_device_memory(address))
        fault("out of bounds", nowhere, "%s: %p is in no live device allocation", what, address);
    if (!allocation) fault("wrong memory", nowhere, "%s: %p is not device memory", what, address);
    size_t available = (size_t)(allocation->start + allocation->bytes - (const char *)address);
    if (bytes > available)
        fault("out of bounds", nowhere, "%s: needs %zu bytes at %p, but its allocation of %zu bytes ends after %zu",
              what, bytes, address, allocation->bytes, available);
}

} // namespace cuda_on_cpu

using namespace cuda_on_cpu;

extern "C" {

cudaError_t cudaMalloc(void **address, size_t bytes) {
    require_errors_seen("cudaMalloc");
    if (missing_device() != cudaSuccess) return api_result(missing_device(), "cudaMalloc");
    if (!address) return api_result(cudaErrorInvalidValue, "cudaMalloc");
    if (any_capture_active()) return api_result(cudaErrorStreamCaptureUnsupported, "cudaMalloc");
    *address = bytes ? device_allocate(bytes) : nullptr;
    return api_result(bytes && !*address ? cudaErrorMemoryAllocation : cudaSuccess, "cudaMalloc");
}
cudaError_t cudaMallocAsync(void **address, size_t bytes, cudaStream_t stream) {
    require_errors_seen("cudaMallocAsync");
    if (!address || !stream_is_known(stream)) return api_result(cudaErrorInvalidValue, "cudaMallocAsync");
    *address = bytes ? device_allocate(bytes) : nullptr;
    return api_result(bytes && !*address ? cudaErrorMemoryAllocation : cudaSuccess, "cudaMallocAsync");
}
// There is one pool and nothing to tune.
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
    static char the_pool;
    if (device < 0 || device >= options().devices)
        return api_result(cudaErrorInvalidDevice, "cudaDeviceGetDefaultMemPool");
    *pool = (cudaMemPool_t)&the_pool;
    return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr, void *value) {
    return api_result(pool && value ? cudaSuccess : cudaErrorInvalidValue, "cudaMemPoolSetAttribute");
}
cudaError_t cudaMallocManaged(void **address, size_t bytes, unsigned) {
    require_errors_seen("cudaMallocManaged");
    return allocate_host(address, bytes, MemoryKind::managed, "cudaMallocManaged");
}
cudaError_t cudaHostAlloc(void **address, size_t bytes, unsigned) {
    require_errors_seen("cudaHostAlloc");
    return allocate_host(address, bytes, MemoryKind::pinned, "cudaHostAlloc");
}
cudaError_t cudaMallocHost(void **address, size_t bytes) {
    require_errors_seen("cudaMallocHost");
    return allocate_host(address, bytes, MemoryKind::pinned, "cudaMallocHost");
}
cudaError_t cudaFree(void *address) {
    require_errors_seen("cudaFree");
    if (any_capture_active()) return api_result(cudaErrorStreamCaptureUnsupported, "cudaFree");
    finish_all_work(); // as the real one does
    return release(address, false, "cudaFree");
}
cudaError_t cudaFreeAsync(void *address, cudaStream_t stream) {
    require_errors_seen("cudaFreeAsync");
    enqueue(stream, [=] { release(address, false, "cudaFreeAsync"); });
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void *address) {
    require_errors_seen("cudaFreeHost");
    finish_all_work();
    return release(address, true, "cudaFreeHost");
}
cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    *total = options().memory;
    *available = options().memory - live_bytes;
    return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *address) {
    const Allocation *found = find_allocation(address);
    *attributes = {};
    if (!found) return cudaSuccess; // cudaMemoryTypeUnregistered is 0
    attributes->type = found->kind == MemoryKind::device   ? cudaMemoryTypeDevice
                       : found->kind == MemoryKind::pinned ? cudaMemoryTypeHost
                                                           : cudaMemoryTypeManaged;
    attributes->devicePointer = const_cast<void *>(address);
    attributes->hostPointer = found->kind == MemoryKind::device ? nullptr : const_cast<void *>(address);
    return cudaSuccess;
}

} // extern "C"
