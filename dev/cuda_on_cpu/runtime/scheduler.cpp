// Runs grids: blocks one after the other, the threads of a block as fibers that run until they must wait.
//
// A thread that ends hands its stack to the next one that has not started, so a kernel without barriers costs no switch
// at all: it is a loop over threads.
#include "scheduler.h"

#include <algorithm>
#include <cstdio>
#include <unistd.h>
#include <vector>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace cuda_on_cpu {

Thread threads[max_threads];
Warp warps[max_warps];
Block block;
GridInProgress running;
uint64_t block_serial;

static ThreadBody thread_body;
static const void *thread_closure;

int thread_in_block() {
    return block.current;
}
int lane() {
    return block.current & 31;
}
unsigned active_lanes() {
    return warps[block.current / 32].alive;
}

// ---- choosing who runs next
static int nth_bit(uint32_t bits, int n) {
    while (n--) bits &= bits - 1;
    return __builtin_ctz(bits);
}
static int choose(uint32_t candidates, int preferred) {
    switch (options().order) {
    case Order::random:
        return nth_bit(candidates, (int)random_below((uint32_t)__builtin_popcount(candidates)));
    case Order::reverse:
        return preferred >= 0 ? preferred : 31 - __builtin_clz(candidates);
    default:
        return preferred >= 0 ? preferred : __builtin_ctz(candidates);
    }
}
// A runnable thread, or -1. Stays in the current warp while it can, unless the order is random.
static int next_thread() {
    if (!block.ready_warps) return -1;
    int here = block.current / 32;
    bool stay = block.current >= 0 && (block.ready_warps >> here & 1);
    int w = choose(block.ready_warps, stay ? here : -1);
    int l = choose(warps[w].ready, -1);
    warps[w].ready &= ~(1u << l);
    if (!warps[w].ready) block.ready_warps &= ~(1u << w);
    return w * 32 + l;
}

static void become(int thread) {
    block.current = thread;
    threadIdx = threads[thread].index;
    threads[thread].state = ThreadState::running;
}

[[noreturn]] static void report_deadlock() {
    for (int t = 0; t < block.threads; t++)
        if (threads[t].state == ThreadState::at_warp_operation) report_divergence(t);
    fault("barrier", block.barrier_place, "deadlock: %d of %d threads wait at __syncthreads", block.arrived,
          block.alive);
}

void wait_for_others() {
    require_no_valgrind_reports();
    int me = block.current, next = next_thread();
    if (next < 0) report_deadlock();
    if (next != me) {
        if (threads[next].state == ThreadState::not_started) threads[next].fiber = fiber_take(fiber_main);
        block.current = next;
        fiber_switch(threads[next].fiber);
    }
    become(me);
}

// ---- __syncthreads
static void release_barrier() {
    block.vote_result = block.predicates;
    if (block.vote == BarrierVote::all) block.vote_result = block.predicates == block.arrived;
    if (block.vote == BarrierVote::any) block.vote_result = block.predicates > 0;
    block.arrived = block.predicates = 0;
    for (int t = 0; t < block.threads; t++)
        if (threads[t].state == ThreadState::at_barrier) make_ready(t);
    checker_barrier();
}

int block_barrier(BarrierVote vote, bool predicate, Place place) {
    if (!in_kernel()) fault("barrier", place, "__syncthreads called by the host");
    if (block.arrived == 0) {
        block.barrier_place = place;
        block.vote = vote;
    } else if (!same_place(block.barrier_place, place)) {
        fault("barrier", place, "the block's threads wait at different __syncthreads, %s:%d and %s:%d",
              block.barrier_place.file, block.barrier_place.line, place.file, place.line);
    }
    if (block.alive != block.threads)
        fault("barrier", place, "__syncthreads after %d of the block's %d threads have returned",
              block.threads - block.alive, block.threads);
    block.arrived++;
    block.predicates += predicate;
    Thread &me = threads[block.current];
    if (block.arrived == block.alive) {
        release_barrier();
        return block.vote_result;
    }
    me.place = place;
    me.state = ThreadState::at_barrier;
    wait_for_others();
    return block.vote_result;
}

// ---- a thread's life
static void thread_returns() {
    require_no_valgrind_reports();
    int me = block.current;
    threads[me].state = ThreadState::exited;
    block.alive--;
    warps[me / 32].alive &= ~(1u << (me % 32));
    if (warps[me / 32].waiting) check_exit_of_lane(me);
    if (block.arrived)
        fault("barrier", block.barrier_place,
              "thread (%u,%u,%u) returned without reaching the __syncthreads at which %d threads of its block wait",
              threadIdx.x, threadIdx.y, threadIdx.z, block.arrived);
}

void fiber_main() {
    fiber_started();
    for (;;) {
        become(block.current);
        threads[block.current].fiber = current_fiber;
        thread_body(thread_closure);
        thread_returns();
        int next = next_thread();
        if (next >= 0 && threads[next].state == ThreadState::not_started) {
            block.current = next;
            continue; // on this same stack
        }
        if (next < 0 && block.alive) report_deadlock();
        fiber_give_back(current_fiber);
        block.current = next;
        fiber_switch(next < 0 ? &host_fiber : threads[next].fiber, true);
    }
}

// ---- blocks and grids
static void begin_block(unsigned long number, const LaunchShape &shape) {
    blockIdx.x = (unsigned)(number % shape.grid.x);
    blockIdx.y = (unsigned)(number / shape.grid.x % shape.grid.y);
    blockIdx.z = (unsigned)(number / shape.grid.x / shape.grid.y);
    for (int t = 0; t < block.threads; t++) threads[t].state = ThreadState::not_started;
    for (int w = 0; w < block.warps; w++) {
        int lanes = std::min(32, block.threads - w * 32);
        warps[w].ready = warps[w].alive = lanes == 32 ? ~0u : (1u << lanes) - 1;
        warps[w].waiting = 0;
    }
    block.ready_warps = block.warps == 32 ? ~0u : (1u << block.warps) - 1;
    block.alive = block.threads;
    block.arrived = block.predicates = 0;
    block.current = -1;
    block_serial++;
    shared_memory_begin_block(shape.shared_bytes);
    checker_block();
}

static void run_block() {
    int first = next_thread();
    threads[first].fiber = fiber_take(fiber_main);
    block.current = first;
    fiber_switch(threads[first].fiber);
}

static void begin_grid(const void *kernel, const LaunchShape &shape) {
    gridDim = shape.grid;
    blockDim = shape.block;
    block.threads = (int)(shape.block.x * shape.block.y * shape.block.z);
    block.warps = (block.threads + 31) / 32;
    for (int t = 0; t < block.threads; t++) {
        threads[t].index.x = (unsigned)t % shape.block.x;
        threads[t].index.y = (unsigned)t / shape.block.x % shape.block.y;
        threads[t].index.z = (unsigned)t / (shape.block.x * shape.block.y);
    }
    shared_memory_begin_grid(kernel);
    checker_launch();
    note_valgrind_reports();
}

static std::vector<unsigned long> shuffled(unsigned long count) {
    std::vector<unsigned long> order(count);
    for (unsigned long i = 0; i < count; i++) order[i] = i;
    for (unsigned long i = count; i > 1; i--) std::swap(order[i - 1], order[random_below((uint32_t)i)]);
    return order;
}

void run_grid(const char *name, const void *kernel, const LaunchShape &shape, Place place, ThreadBody body,
              const void *closure) {
    double start = options().trace ? seconds() : 0;
    DeviceMemoryAccess access;
    running = {name, place, kernel, shape.shared_bytes};
    thread_body = body;
    thread_closure = closure;
    begin_grid(kernel, shape);
    unsigned long blocks = options().skip ? 0 : (unsigned long)shape.grid.x * shape.grid.y * shape.grid.z;
    std::vector<unsigned long> order;
    if (options().order == Order::random) order = shuffled(blocks);
    for (unsigned long i = 0; i < blocks; i++) {
        unsigned long number = options().order == Order::random    ? order[i]
                               : options().order == Order::reverse ? blocks - 1 - i
                                                                   : i;
        begin_block(number, shape);
        run_block();
        checker_block_ended();
    }
    running = {};
    if (options().trace)
        fprintf(stderr, "cuda_on_cpu: %s<<<(%u,%u,%u), (%u,%u,%u), %zu>>> %.3f ms\n", name, shape.grid.x, shape.grid.y,
                shape.grid.z, shape.block.x, shape.block.y, shape.block.z, shape.shared_bytes,
                1e3 * (seconds() - start));
}

// ---- what the hardware would refuse
static std::string why_refused(const void *kernel, const LaunchShape &s, cudaError_t *status) {
    char why[200] = "";
    *status = cudaErrorInvalidConfiguration;
    unsigned long count = (unsigned long)s.block.x * s.block.y * s.block.z;
    if (count == 0 || (unsigned long)s.grid.x * s.grid.y * s.grid.z == 0) {
        snprintf(why, sizeof why, "an empty grid or block");
    } else if (count > max_threads || s.block.x > 1024 || s.block.y > 1024 || s.block.z > 64) {
        snprintf(why, sizeof why, "a block of (%u,%u,%u) threads; at most (1024,1024,64) and 1024 in all", s.block.x,
                 s.block.y, s.block.z);
    } else if (s.grid.x > 2147483647u || s.grid.y > 65535 || s.grid.z > 65535) {
        snprintf(why, sizeof why, "a grid of (%u,%u,%u) blocks; at most (2147483647,65535,65535)", s.grid.x, s.grid.y,
                 s.grid.z);
    } else if (s.shared_bytes > dynamic_shared_allowed(kernel)) {
        *status = cudaErrorInvalidValue;
        snprintf(why, sizeof why,
                 "%zu bytes of dynamic shared memory; %zu allowed (cudaFuncSetAttribute raises it to %zu)",
                 s.shared_bytes, dynamic_shared_allowed(kernel), dynamic_shared_limit);
    } else if (!stream_is_known(s.stream)) {
        *status = cudaErrorInvalidResourceHandle;
        snprintf(why, sizeof why, "a stream that does not exist");
    }
    return why;
}

bool launch_is_possible(const char *name, const void *kernel, const LaunchShape &shape, Place place) {
    require_errors_seen(name);
    cudaError_t status;
    std::string why = why_refused(kernel, shape, &status);
    if (why.empty()) return true;
    launch_failed(status, name, place, why);
    return false;
}

} // namespace cuda_on_cpu
