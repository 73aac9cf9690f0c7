// Operations among the 32 lanes of a warp: each waits until every lane of its mask has come to the same one.
#include "scheduler.h"

#include <algorithm>

namespace cuda_on_cpu {

static uint64_t combine(WarpOperation operation, uint64_t a, uint64_t b) {
    switch (operation) {
    case WarpOperation::any:
    case WarpOperation::bit_or:
        return a | b;
    case WarpOperation::all:
    case WarpOperation::bit_and:
        return a & b;
    case WarpOperation::bit_xor:
        return a ^ b;
    case WarpOperation::add:
        return (uint32_t)(a + b);
    case WarpOperation::min_unsigned:
        return std::min((uint32_t)a, (uint32_t)b);
    case WarpOperation::max_unsigned:
        return std::max((uint32_t)a, (uint32_t)b);
    case WarpOperation::min_signed:
        return (uint32_t)std::min((int32_t)a, (int32_t)b);
    case WarpOperation::max_signed:
        return (uint32_t)std::max((int32_t)a, (int32_t)b);
    default:
        return a;
    }
}

static uint64_t reduce(const Thread *lanes, unsigned mask, WarpOperation operation) {
    uint64_t total = lanes[__builtin_ctz(mask)].value;
    for (unsigned rest = mask & (mask - 1); rest; rest &= rest - 1)
        total = combine(operation, total, lanes[__builtin_ctz(rest)].value);
    return total;
}
static unsigned lanes_with_value(const Thread *lanes, unsigned mask, uint64_t value) {
    unsigned equal = 0;
    for (unsigned rest = mask; rest; rest &= rest - 1) {
        int l = __builtin_ctz(rest);
        if (lanes[l].value == value) equal |= 1u << l;
    }
    return equal;
}
static uint64_t shuffled_value(const Thread *lanes, int l, unsigned mask) {
    int from = lanes[l].source_lane;
    if (!(mask >> from & 1))
        fault("warp operation", lanes[l].place, "lane %d reads the value of lane %d, which is not in the mask %08x", l,
              from, mask);
    return lanes[from].value;
}

static void give_results(Thread *lanes, unsigned mask, WarpOperation operation) {
    bool one_for_all = operation != WarpOperation::shuffle && operation != WarpOperation::match_any;
    uint64_t common = 0;
    if (operation == WarpOperation::ballot)
        common = lanes_with_value(lanes, mask, 1);
    else if (operation == WarpOperation::match_all)
        common = lanes_with_value(lanes, mask, lanes[__builtin_ctz(mask)].value) == mask ? mask : 0;
    else if (one_for_all)
        common = reduce(lanes, mask, operation);
    for (unsigned rest = mask; rest; rest &= rest - 1) {
        int l = __builtin_ctz(rest);
        if (operation == WarpOperation::shuffle)
            lanes[l].result = shuffled_value(lanes, l, mask);
        else if (operation == WarpOperation::match_any)
            lanes[l].result = lanes_with_value(lanes, mask, lanes[l].value);
        else
            lanes[l].result = common;
    }
}

// What the lane that arrives last is to do for all; set just before it arrives.
static void (*work_of_warp)(void *const *lanes);

static void work_together(const Thread *lanes) {
    void *brought[32];
    for (int l = 0; l < 32; l++) brought[l] = (void *)lanes[l].value;
    work_of_warp(brought);
}

static void check_mask(unsigned mask, Place place) {
    int w = block.current / 32, lanes = std::min(32, block.threads - w * 32);
    unsigned existing = lanes == 32 ? ~0u : (1u << lanes) - 1, alive = warps[w].alive;
    if (!(mask >> lane() & 1))
        fault("warp operation", place, "the calling lane %d is not in its mask %08x", lane(), mask);
    if (mask & ~existing)
        fault("warp operation", place,
              "the mask %08x names lanes that do not exist: the block's last warp has %d threads", mask, lanes);
    if (mask & ~alive)
        fault("warp operation", place, "the mask %08x names lanes %08x, which have returned", mask, mask & ~alive);
}

// Lanes of the mask may still wait at an operation that lies before this one; then all go on when those have come here.
static bool all_are_here(const Thread *lanes, unsigned mask, const Thread &me) {
    for (unsigned rest = mask; rest; rest &= rest - 1) {
        const Thread &other = lanes[__builtin_ctz(rest)];
        if (other.mask != mask || other.operation != me.operation || !same_place(other.place, me.place)) return false;
    }
    return true;
}

uint64_t warp_operation(WarpOperation operation, unsigned mask, uint64_t value, int source_lane, Place place) {
    if (!in_kernel()) fault("warp operation", place, "called by the host");
    check_mask(mask, place);
    int w = block.current / 32;
    unsigned bit = 1u << lane();
    Thread &me = threads[block.current];
    me.operation = operation;
    me.mask = mask;
    me.value = value;
    me.source_lane = source_lane;
    me.place = place;
    warps[w].waiting |= bit;
    Thread *lanes = threads + w * 32;
    if ((warps[w].waiting & mask) != mask || !all_are_here(lanes, mask, me)) {
        me.state = ThreadState::at_warp_operation;
        wait_for_others();
        return me.result;
    }
    if (operation == WarpOperation::together) work_together(lanes);
    give_results(lanes, mask, operation);
    if (operation == WarpOperation::sync) checker_warp_sync(w, mask);
    warps[w].waiting &= ~mask;
    warps[w].ready |= mask & ~bit;
    if (mask & ~bit) block.ready_warps |= 1u << w;
    return me.result;
}

void warp_together(void (*work)(void *const *lanes), void *mine, Place place) {
    work_of_warp = work;
    warp_operation(WarpOperation::together, 0xffffffffu, (uint64_t)mine, 0, place);
}

// No thread can go on, and this one waits in a warp: for whom, and where is that lane?
void report_divergence(int thread) {
    Thread &me = threads[thread];
    const Thread *lanes = threads + thread / 32 * 32;
    block.current = thread;
    threadIdx = me.index;
    for (unsigned rest = me.mask; rest; rest &= rest - 1) {
        const Thread &other = lanes[__builtin_ctz(rest)];
        if (other.state == ThreadState::at_barrier)
            fault("warp operation", me.place,
                  "lane %d waits for lane %d with mask %08x, which waits at __syncthreads, %s:%d", lane(),
                  __builtin_ctz(rest), me.mask, other.place.file, other.place.line);
        if (other.mask != me.mask || other.operation != me.operation || !same_place(other.place, me.place))
            fault("warp operation", me.place,
                  "lane %d waits for lane %d with mask %08x, which waits at %s:%d with mask %08x", lane(),
                  __builtin_ctz(rest), me.mask, other.place.file, other.place.line, other.mask);
    }
    fault("warp operation", me.place, "lane %d waits forever with mask %08x", lane(), me.mask);
}

void check_tile(const void *start, unsigned leading, size_t element_bytes, Place place) {
    if ((uintptr_t)start % 32)
        fault("misaligned access", place, "a tile at %p, which is not aligned to 32 bytes", start);
    if (leading * element_bytes % 16)
        fault("misaligned access", place, "a tile with leading dimension %u: not a multiple of 16 bytes", leading);
}

static void require_aligned(const void *address, size_t bytes, Place place) {
    if ((uintptr_t)address % bytes)
        fault("misaligned access", place, "%p, which is not aligned to %zu bytes", address, bytes);
}

void check_aligned(const void *address, size_t bytes, Place place) {
    checker_announced(bytes, __builtin_return_address(0));
    require_aligned(address, bytes, place);
}

void check_shared_row(const void *row, Place place) {
    if (!is_shared_memory(row)) fault("wrong memory", place, "%p is not in shared memory", row);
    require_aligned(row, 16, place);
}

void check_exit_of_lane(int thread) {
    int w = thread / 32, gone = thread % 32;
    for (unsigned rest = warps[w].waiting; rest; rest &= rest - 1) {
        const Thread &other = threads[w * 32 + __builtin_ctz(rest)];
        if (other.mask >> gone & 1)
            fault("warp operation", other.place, "lane %d returned while lane %d waits for it with mask %08x", gone,
                  __builtin_ctz(rest), other.mask);
    }
}

} // namespace cuda_on_cpu
