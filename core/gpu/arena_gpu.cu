#include "arena_gpu.h"
#include "cuda_common.h"

void arena_gpu_plan_bytes(ArenaGPU *arena, void **slot, size_t bytes) {
    arena->requests.push_back({slot, bytes});
}

void arena_gpu_allocate(ArenaGPU *arena) {
    for (const ArenaGPU::Request &request : arena->requests) {
        *request.slot = NULL;
        if (request.bytes == 0) continue;
        cuda_check(cudaMalloc(request.slot, request.bytes));
        arena->blocks.push_back(*request.slot);
    }
}

void arena_gpu_free(ArenaGPU *arena) {
    for (void *block : arena->blocks) cuda_check(cudaFree(block));
    arena->blocks.clear();
    arena->requests.clear();
}

size_t arena_gpu_bytes(const ArenaGPU *arena) {
    size_t total = 0;
    for (const ArenaGPU::Request &request : arena->requests) total += request.bytes;
    return total;
}
