// An arena in device memory, planned like core/math/arena.h's: requests first, so that the memory plan is known before
// anything is allocated. Every tensor is an allocation of its own, so that a memory checker sees a kernel run past its
// end.
#ifndef CORE_ARENA_GPU_H
#define CORE_ARENA_GPU_H

#include <stddef.h>
#include <vector>

struct ArenaGPU {
    const char *what; // for the memory plan
    struct Request {
        void **slot;
        size_t bytes;
    };
    std::vector<Request> requests;
    std::vector<void *> blocks;
};

void arena_gpu_plan_bytes(ArenaGPU *arena, void **slot, size_t bytes);
// Plans `count` numbers; *slot points to them after arena_gpu_allocate (to nothing when count is 0).
template <typename Number> void arena_gpu_plan(ArenaGPU *arena, Number **slot, size_t count) {
    arena_gpu_plan_bytes(arena, (void **)slot, count * sizeof(Number));
}
void arena_gpu_allocate(ArenaGPU *arena);
void arena_gpu_free(ArenaGPU *arena);
size_t arena_gpu_bytes(const ArenaGPU *arena);

#endif
