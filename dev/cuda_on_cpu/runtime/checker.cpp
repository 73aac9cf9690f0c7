// Bounds, initialisation and races of individual accesses.
//
// For every two bytes of device and shared memory there is a state (unallocated, allocated, initialised) and a cell
// with the last write and the last two reads by different threads. Two accesses of which one writes are ordered when
//   - they are of one thread, or of different launches;
//   - they are of one block, with a __syncthreads between;
//   - they are of one warp, with a __syncwarp between that both threads took part in (vector clocks);
//   - they are of different blocks, and the earlier block released its writes (a __threadfence, then an atomic) before
//     the later one acquired them (an atomic).
// Shuffles and votes order nothing: CUDA promises it only for __syncwarp.
#include "checker.h"
#include "scheduler.h"

#include <algorithm>
#include <dlfcn.h>
#include <sys/mman.h>
#include <vector>

namespace cuda_on_cpu {

namespace {

constexpr size_t granule = 2; // bytes that share a cell: neighbouring bfloat16 numbers may belong to different threads
enum State : uint8_t { unallocated, allocated, initialised };

struct Access {
    uint64_t segment : 32, clock : 21, thread : 10, atomic : 1;
};
struct Cell {
    Access write, read, earlier_read;
    uint32_t write_place, read_place, earlier_read_place; // offsets in the program
};

struct Shadow {
    State *states = nullptr;
    Cell *cells = nullptr;
    void reserve(size_t bytes) {
        states = (State *)map(bytes / granule * sizeof(State));
        cells = (Cell *)map(bytes / granule * sizeof(Cell));
    }
    static void *map(size_t bytes) {
        void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) fault("runtime", nowhere, "cannot reserve %zu bytes of shadow memory", bytes);
        return memory;
    }
};
Shadow device_shadow, shared_shadow;

struct Location { // of an address: its shadow and index there; no shadow when it is neither device nor shared memory
    Shadow *shadow;
    size_t index;
};
Location locate(const void *address) {
    const char *byte = (const char *)address;
    if (is_device_memory(address)) {
        if (!device_shadow.states) device_shadow.reserve(device_arena_bytes);
        return {&device_shadow, (size_t)(byte - device_arena) / granule};
    }
    if (is_shared_memory(address)) {
        if (!shared_shadow.states) shared_shadow.reserve(shared_arena_bytes);
        return {&shared_shadow, (size_t)(byte - shared_arena) / granule};
    }
    return {nullptr, 0};
}

size_t granules(const void *address, size_t bytes) {
    return ((uintptr_t)address % granule + bytes + granule - 1) / granule;
}

void set_states(const void *address, size_t bytes, State state) {
    Location where = locate(address);
    if (where.shadow && bytes) memset(where.shadow->states + where.index, state, granules(address, bytes));
}

// The whole pages of the cells of these bytes become zeros: cells that have seen no access.
void release_cells(const void *address, size_t bytes) {
    constexpr uintptr_t page = 4096;
    Location where = locate(address);
    uintptr_t first = (uintptr_t)(where.shadow->cells + where.index);
    uintptr_t last = (uintptr_t)(where.shadow->cells + where.index + granules(address, bytes)) / page * page;
    first = (first + page - 1) / page * page;
    if (first < last) madvise((void *)first, last - first, MADV_DONTNEED);
}

// ---- time: a segment is what lies between two barriers of one block; segments are numbered through the whole run
uint32_t segment = 1, launch_segment = 1, block_segment = 1;

// Within a segment, the lanes of a warp have vector clocks. They hold for clock_segment; in a newer one they are fresh.
struct WarpClocks {
    uint32_t clock_segment;
    uint32_t own[32], seen[32][32];
};
WarpClocks clocks[max_warps];

uint32_t own_clock(int thread) {
    const WarpClocks &warp = clocks[thread / 32];
    return warp.clock_segment == segment ? warp.own[thread % 32] : 1;
}

// ---- blocks of this launch: what each has released to the others. By thread, 0 for never:
struct BlockHistory {
    uint32_t first_segment;
    uint3 index;
    uint32_t release_segment, releasers_fence; // of the block's last atomic after a fence of the same thread
    std::vector<uint32_t> fences, releases;    // segment of the thread's last fence, of its last atomic after that
};
std::vector<BlockHistory> &blocks = *new std::vector<BlockHistory>; // never destroyed: work may still run at exit
bool block_has_acquired;

const BlockHistory &block_of(uint32_t of_segment) {
    auto later =
        std::upper_bound(blocks.begin(), blocks.end(), of_segment,
                         [](uint32_t value, const BlockHistory &history) { return value < history.first_segment; });
    return *(later - 1);
}
// A fence covers what its own thread did, and what was ordered before it by a barrier; the atomic that follows, by the
// same thread or after a barrier, publishes it.
bool released_to_others(const Access &access) {
    const BlockHistory &history = block_of(access.segment);
    if (!history.release_segment) return false;
    bool thread_fenced = history.fences[access.thread] >= access.segment;
    return access.segment < history.releasers_fence || (thread_fenced && access.segment < history.release_segment) ||
           (thread_fenced && history.releases[access.thread] >= access.segment);
}

bool ordered_before_now(const Access &earlier, int thread, bool is_shared) {
    if (earlier.segment < launch_segment) return true;
    if (earlier.segment < block_segment) return is_shared || (block_has_acquired && released_to_others(earlier));
    if (earlier.segment < segment || (int)earlier.thread == thread) return true;
    if ((int)earlier.thread / 32 != thread / 32) return false;
    const WarpClocks &warp = clocks[thread / 32];
    return warp.clock_segment == segment && earlier.clock <= warp.seen[thread % 32][earlier.thread % 32];
}

// ---- reports
uintptr_t program_start() {
    static uintptr_t start = [] {
        Dl_info module;
        return dladdr((void *)&program_start, &module) ? (uintptr_t)module.dli_fbase : 0;
    }();
    return start;
}
const char *name_of(AccessKind kind) {
    return kind == AccessKind::read ? "read" : kind == AccessKind::write ? "write" : "atomic update";
}
const char *space_of(const void *address) {
    return is_shared_memory(address) ? "shared" : "device";
}
[[noreturn]] void report(const char *what, const void *address, size_t bytes, AccessKind kind, const void *place) {
    fault(what, nowhere, "%s of %zu bytes of %s memory (%p) at %s", name_of(kind), bytes, space_of(address), address,
          source_line((uintptr_t)place).c_str());
}
[[noreturn]] void report_race(const void *address, size_t bytes, AccessKind kind, const void *place,
                              const Access &other, uint32_t other_place, const char *other_name) {
    uint3 thread = threads[other.thread].index, of_block = block_of(other.segment).index;
    fault("data race", nowhere,
          "%s of %zu bytes of %s memory at %s, unordered with the %s by thread (%u,%u,%u) of block (%u,%u,%u) at %s",
          name_of(kind), bytes, space_of(address), source_line((uintptr_t)place).c_str(), other_name, thread.x,
          thread.y, thread.z, of_block.x, of_block.y, of_block.z, source_line(program_start() + other_place).c_str());
}

// ---- one access
// Lanes of a warp that store to one address with one instruction: CUDA promises that one of them wins, not which one.
// So they have to store the same. An access is announced before it happens: what an earlier lane has stored is kept,
// and compared when the next access is announced.
struct SecondStore {
    const void *address, *place;
    size_t bytes; // 0: none
    unsigned char first[16];
    uint3 thread, block;
} second_store;

void note_second_store(const void *address, size_t bytes, const void *place) {
    second_store = {address, place, bytes, {}, threadIdx, blockIdx};
    const volatile unsigned char *byte = (const volatile unsigned char *)address; // memcpy would be announced itself
    for (size_t i = 0; i < bytes; i++) second_store.first[i] = byte[i];
}

void judge_second_store() {
    if (!second_store.bytes) return;
    SecondStore second = second_store;
    second_store.bytes = 0;
    if (!memcmp(second.address, second.first, second.bytes)) return;
    threadIdx = second.thread, blockIdx = second.block; // whose store it was, for the report
    fault("data race", nowhere,
          "write of %zu bytes of %s memory at %s, where another lane of the warp writes otherwise", second.bytes,
          space_of(second.address), source_line((uintptr_t)second.place).c_str());
}

bool is_same_store(const Access &write, uint32_t write_place, AccessKind kind, uint32_t place, int thread) {
    return kind == AccessKind::write && write_place == place && write.segment >= block_segment &&
           (int)write.thread / 32 == thread / 32;
}

void judge_races(const Cell &cell, const void *address, size_t bytes, AccessKind kind, const void *place,
                 uint32_t offset) {
    int me = block.current;
    bool is_shared = is_shared_memory(address), atomic = kind == AccessKind::atomic;
    bool both_atomic = atomic && cell.write.atomic;
    if (!both_atomic && !ordered_before_now(cell.write, me, is_shared)) {
        if (!is_same_store(cell.write, cell.write_place, kind, offset, me))
            report_race(address, bytes, kind, place, cell.write, cell.write_place,
                        cell.write.atomic ? "atomic update" : "write");
        note_second_store(address, bytes, place);
    }
    if (kind == AccessKind::read) return;
    if (!ordered_before_now(cell.read, me, is_shared))
        report_race(address, bytes, kind, place, cell.read, cell.read_place, "read");
    if (!ordered_before_now(cell.earlier_read, me, is_shared))
        report_race(address, bytes, kind, place, cell.earlier_read, cell.earlier_read_place, "read");
}

void remember(Cell &cell, const Access &now, AccessKind kind, uint32_t offset) {
    if (kind != AccessKind::read) {
        cell.write = now;
        cell.write_place = offset;
        return;
    }
    if (cell.read.thread != now.thread || cell.read.segment < block_segment) {
        cell.earlier_read = cell.read;
        cell.earlier_read_place = cell.read_place;
    }
    cell.read = now;
    cell.read_place = offset;
}

void note_atomic(int thread) {
    block_has_acquired = true;
    BlockHistory &history = blocks.back();
    if (history.fences.empty() || !history.fences[(size_t)thread]) return;
    history.release_segment = segment;
    history.releasers_fence = std::max(history.releasers_fence, history.fences[(size_t)thread]);
    history.releases[(size_t)thread] = segment;
}

} // namespace

void check_access(const void *address, size_t bytes, AccessKind kind, const void *place) {
    Location where = locate(address);
    if (!where.shadow) return; // a stack, a constant, the host's own memory
    if (!in_kernel()) {
        if (!host_may_touch_device_memory()) report("host access to device memory", address, bytes, kind, place);
        return;
    }
    judge_second_store();
    int me = block.current;
    uint32_t offset = (uint32_t)((uintptr_t)place - program_start());
    if (kind == AccessKind::atomic) note_atomic(me);
    Access now = {segment, std::min(own_clock(me), (1u << 21) - 1), (uint64_t)me, kind == AccessKind::atomic};
    size_t count = granules(address, bytes);
    for (size_t i = where.index; i < where.index + count; i++) {
        State &state = where.shadow->states[i];
        Cell &cell = where.shadow->cells[i];
        if (state == unallocated) report("out of bounds", address, bytes, kind, place);
        if (state == allocated && kind != AccessKind::write)
            report("uninitialised memory", address, bytes, kind, place);
        if (bytes >= granule) judge_races(cell, address, bytes, kind, place, offset);
        remember(cell, now, kind, offset);
        if (kind != AccessKind::read) state = initialised;
    }
}

void check_range(const void *address, size_t bytes, AccessKind kind, const void *place) {
    const char *byte = (const char *)address;
    if (!locate(address).shadow) return;
    while (bytes) {
        size_t step = (uintptr_t)byte % 2 || bytes == 1 ? 1 : (uintptr_t)byte % 4 || bytes < 4 ? 2 : 4;
        check_access(byte, step, kind, place);
        byte += step;
        bytes -= step;
    }
}

void check_alignment(const void *address, size_t bytes, AccessKind kind, const void *place) {
    if ((uintptr_t)address % bytes && in_kernel() && locate(address).shadow)
        report("misaligned access", address, bytes, kind, place);
}

void check_atomic(const void *address, size_t bytes) {
    check_alignment(address, bytes, AccessKind::atomic, __builtin_return_address(0));
    check_access(address, bytes, AccessKind::atomic, __builtin_return_address(0));
}

// ---- what the rest of the runtime tells
void checker_allocated(const void *address, size_t bytes) {
    set_states(address, bytes, allocated);
}
// Device memory is not used again before much later: its cells, eighteen times its size, go back to the system.
void checker_freed(const void *address, size_t bytes) {
    set_states(address, bytes, unallocated);
    if (is_device_memory(address)) release_cells(address, bytes);
}
void checker_written(const void *address, size_t bytes) {
    set_states(address, bytes, initialised);
}
void checker_library_call(const char *) {}
void checker_announced(size_t, const void *) {}
void checker_multiplies(const char *, const char *, double) {}
void count_tensor_operation(const char *, double) {}
void checker_copied(void *to, const void *from, size_t bytes) {
    Location target = locate(to), source = locate(from);
    memmove(target.shadow->states + target.index, source.shadow->states + source.index, granules(to, bytes));
}
void checker_read(const void *address, size_t bytes, const char *reader) {
    Location where = locate(address);
    if (!where.shadow || !bytes) return;
    const State *first = where.shadow->states + where.index;
    const void *hole = memchr(first, allocated, granules(address, bytes));
    if (hole)
        fault("uninitialised memory", nowhere, "%s reads device memory that nobody has written, %zu bytes after %p",
              reader, (size_t)((const State *)hole - first) * granule, address);
}

void checker_launch() {
    launch_segment = ++segment;
    blocks.clear();
}
void checker_block() {
    block_segment = ++segment;
    blocks.push_back({segment, blockIdx, 0, 0, {}, {}});
    block_has_acquired = false;
}
void checker_block_ended() {
    judge_second_store();
}
void checker_barrier() {
    ++segment;
}
void checker_warp_sync(int w, unsigned mask) {
    WarpClocks &warp = clocks[w];
    if (warp.clock_segment != segment) {
        memset(warp.seen, 0, sizeof warp.seen);
        std::fill(warp.own, warp.own + 32, 1u);
        warp.clock_segment = segment;
    }
    uint32_t joined[32] = {0};
    for (unsigned rest = mask; rest; rest &= rest - 1) {
        int l = __builtin_ctz(rest);
        for (int k = 0; k < 32; k++) joined[k] = std::max(joined[k], warp.seen[l][k]);
        joined[l] = std::max(joined[l], warp.own[l]);
    }
    for (unsigned rest = mask; rest; rest &= rest - 1) {
        int l = __builtin_ctz(rest);
        memcpy(warp.seen[l], joined, sizeof joined);
        warp.own[l]++;
    }
}
void memory_fence() {
    BlockHistory &history = blocks.back();
    if (history.fences.empty()) {
        history.fences.resize(max_threads);
        history.releases.resize(max_threads);
    }
    history.fences[(size_t)block.current] = segment;
}

} // namespace cuda_on_cpu
