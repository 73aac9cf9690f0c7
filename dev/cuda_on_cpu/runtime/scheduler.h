// The threads of the running block, for scheduler.cpp and warps.cpp.
#ifndef CUDA_ON_CPU_SCHEDULER_H
#define CUDA_ON_CPU_SCHEDULER_H

#include "runtime.h"

namespace cuda_on_cpu {

enum class ThreadState { not_started, running, at_warp_operation, at_barrier, exited };

struct Thread {
    Fiber *fiber;
    uint3 index;
    ThreadState state;
    // while waiting:
    Place place;
    WarpOperation operation;
    unsigned mask;
    uint64_t value, result;
    int source_lane;
};

struct Warp {
    uint32_t ready, waiting, alive; // bits of lanes
};

struct Block {
    int threads, warps, alive;
    uint32_t ready_warps;
    int current; // thread number, -1 when none
    // __syncthreads:
    int arrived, predicates, vote_result;
    BarrierVote vote;
    Place barrier_place;
};

extern Thread threads[max_threads];
extern Warp warps[max_warps];
extern Block block;

void wait_for_others(); // the current thread cannot go on; returns when it can
inline void make_ready(int thread) {
    warps[thread / 32].ready |= 1u << (thread % 32);
    block.ready_warps |= 1u << (thread / 32);
}
inline bool same_place(Place a, Place b) {
    return a.line == b.line && (a.file == b.file || !strcmp(a.file, b.file));
}
void check_exit_of_lane(int thread); // a lane that others wait for may not end
[[noreturn]] void report_divergence(int thread);
void fiber_main(); // where every fiber begins

} // namespace cuda_on_cpu

#endif
