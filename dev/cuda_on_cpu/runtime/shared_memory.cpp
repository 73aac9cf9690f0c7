// Shared memory of the running block: one arena, laid out anew for each block, with gaps that no kernel may touch.
#include "runtime.h"

#include <algorithm>
#include <map>
#include <sys/mman.h>

#ifdef CUDA_ON_CPU_ASAN
#include <sanitizer/asan_interface.h>
#endif
#ifdef CUDA_ON_CPU_VALGRIND
#include <valgrind/memcheck.h>
#endif

namespace cuda_on_cpu {

static constexpr size_t gap = 128;
const size_t shared_arena_bytes = 1 << 20;
static char *map_arena() {
    void *memory = mmap(nullptr, shared_arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? nullptr : (char *)memory;
}
char *const shared_arena = map_arena();
static size_t used = shared_arena_bytes, static_bytes, dynamic_bytes, allowed_in_all;
static char *dynamic_start;

bool is_shared_memory(const void *address) {
    return (const char *)address >= shared_arena && (const char *)address < shared_arena + shared_arena_bytes;
}

static void forbid(char *start, size_t bytes) {
    checker_freed(start, bytes);
#ifdef CUDA_ON_CPU_ASAN
    ASAN_POISON_MEMORY_REGION(start, bytes);
#endif
#ifdef CUDA_ON_CPU_VALGRIND
    VALGRIND_MAKE_MEM_NOACCESS(start, bytes);
#endif
}

static char *carve(size_t bytes, size_t alignment) {
    size_t start = (used + gap + alignment - 1) / alignment * alignment;
    if (start + bytes + gap > shared_arena_bytes)
        fault("shared memory", nowhere, "more than %zu bytes in one block", shared_arena_bytes);
    used = start + bytes;
    char *place = shared_arena + start;
#ifdef CUDA_ON_CPU_ASAN
    ASAN_UNPOISON_MEMORY_REGION(place, bytes);
#endif
#ifdef CUDA_ON_CPU_VALGRIND
    VALGRIND_MAKE_MEM_UNDEFINED(place, bytes);
#endif
    poison(place, bytes);
    checker_allocated(place, bytes);
    return place;
}

void shared_memory_begin_grid(const void *kernel) {
    allowed_in_all = dynamic_shared_allowed(kernel) > static_shared_limit ? dynamic_shared_limit : static_shared_limit;
}

void shared_memory_begin_block(size_t bytes) {
    forbid(shared_arena, std::min(used + gap, shared_arena_bytes));
    used = static_bytes = 0;
    dynamic_bytes = bytes;
    dynamic_start = bytes ? carve(bytes, 128) : nullptr;
}

void *dynamic_shared() {
    if (!dynamic_start)
        fault("shared memory", nowhere, "extern __shared__ is used, but the launch gives 0 bytes of it");
    return dynamic_start;
}

void *place_shared(size_t bytes, size_t alignment, const char *name) {
    static_bytes += bytes;
    if (static_bytes > static_shared_limit)
        fault("shared memory", nowhere, "static shared memory of %zu bytes with `%s`; the limit is %zu", static_bytes,
              name, static_shared_limit);
    if (static_bytes + dynamic_bytes > allowed_in_all)
        fault("shared memory", nowhere, "%zu bytes static and %zu dynamic; at most %zu in all", static_bytes,
              dynamic_bytes, allowed_in_all);
    return carve(bytes, std::max<size_t>(alignment, 16));
}

// ---- the attribute that allows more than 48 KB of dynamic shared memory
static std::map<const void *, size_t> &raised_limits() {
    static auto &limits = *new std::map<const void *, size_t>;
    return limits;
}
size_t dynamic_shared_allowed(const void *kernel) {
    size_t most = static_shared_limit;
    for (auto &limit : raised_limits())
        if (!kernel || kernel == limit.first) most = std::max(most, limit.second);
    return most;
}
cudaError_t set_kernel_attribute(const void *kernel, cudaFuncAttribute attribute, int value) {
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) return cudaSuccess;
    bool refused =
        attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 || (size_t)value > dynamic_shared_limit;
    if (refused) return api_result(cudaErrorInvalidValue, "cudaFuncSetAttribute");
    raised_limits()[kernel] = (size_t)value;
    return cudaSuccess;
}

} // namespace cuda_on_cpu

extern "C" cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value) {
    return cuda_on_cpu::set_kernel_attribute(kernel, attribute, value);
}
