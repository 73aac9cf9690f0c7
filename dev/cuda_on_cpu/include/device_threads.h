// What a CUDA thread sees of its block and warp: indices, barriers, shuffles, votes, shared memory.
//
// Every operation that waits for other threads takes the place of its call as default arguments, so that a thread that
// never arrives can be reported with the line where the others wait.
#ifndef CUDA_ON_CPU_DEVICE_THREADS_H
#define CUDA_ON_CPU_DEVICE_THREADS_H

#include <cstdint>
#include <cstring>

#define CUDA_ON_CPU_CALLER const char *file_ = __builtin_FILE(), int line_ = __builtin_LINE()
#define CUDA_ON_CPU_PLACE                                                                                              \
    cuda_on_cpu::Place {                                                                                               \
        file_, line_                                                                                                   \
    }

// Set by the scheduler whenever it switches to a thread.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace cuda_on_cpu {

struct Place {
    const char *file;
    int line;
};

enum class BarrierVote { none, count, all, any };
enum class WarpOperation {
    sync,
    shuffle,
    ballot,
    any,
    all,
    match_any,
    match_all,
    add,
    min_unsigned,
    max_unsigned,
    min_signed,
    max_signed,
    bit_and,
    bit_or,
    bit_xor,
    together
};

int thread_in_block(); // x fastest, then y, then z
int lane();            // thread_in_block() % 32
unsigned active_lanes();
int block_barrier(BarrierVote vote, bool predicate, Place place);
// Waits for every lane of `mask`; each brings a value and, for a shuffle, the lane it reads from.
uint64_t warp_operation(WarpOperation operation, unsigned mask, uint64_t value, int source_lane, Place place);
// Waits for all 32 lanes; the last to come does `work` with what each of them brought.
void warp_together(void (*work)(void *const *lanes), void *mine, Place place);
void memory_fence();
// A row of 16 bytes that an instruction reads from shared memory or writes there; an address and its alignment.
void check_shared_row(const void *row, Place place);
void check_aligned(const void *address, size_t bytes, Place place);
// Count mode: what a warp's tensor core instruction does, and in which arithmetic.
void count_tensor_operation(const char *arithmetic, double operations);
// Tiles of nvcuda::wmma begin at multiples of 32 bytes, their rows a multiple of 16 bytes apart.
void check_tile(const void *start, unsigned leading, size_t element_bytes, Place place);

// ---- shared memory
extern uint64_t block_serial; // counts the blocks that have run
void *dynamic_shared();
void *place_shared(size_t bytes, size_t alignment, const char *name);

// One per `__shared__` declaration (and template instance): the variable's address in the running block.
struct SharedVariable {
    uint64_t block;
    void *address;
    void *in_this_block(size_t bytes, size_t alignment, const char *name) {
        if (block != block_serial) {
            address = place_shared(bytes, alignment, name);
            block = block_serial;
        }
        return address;
    }
};

template <typename Value> inline uint64_t to_bits(const Value &value) {
    static_assert(sizeof(Value) <= 8, "a shuffle carries at most 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    return bits;
}
template <typename Value> inline Value shuffle(unsigned mask, const Value &value, int source_lane, Place place) {
    uint64_t bits = warp_operation(WarpOperation::shuffle, mask, to_bits(value), source_lane, place);
    Value result;
    memcpy(static_cast<void *>(&result), &bits, sizeof result);
    return result;
}
inline int first_lane(int width) {
    return lane() & ~(width - 1);
}
inline int last_lane(int width) {
    return lane() | (width - 1);
}

} // namespace cuda_on_cpu

// ---- barriers
inline void __syncthreads(CUDA_ON_CPU_CALLER) {
    cuda_on_cpu::block_barrier(cuda_on_cpu::BarrierVote::none, false, CUDA_ON_CPU_PLACE);
}
inline int __syncthreads_count(int predicate, CUDA_ON_CPU_CALLER) {
    return cuda_on_cpu::block_barrier(cuda_on_cpu::BarrierVote::count, predicate, CUDA_ON_CPU_PLACE);
}
inline int __syncthreads_and(int predicate, CUDA_ON_CPU_CALLER) {
    return cuda_on_cpu::block_barrier(cuda_on_cpu::BarrierVote::all, predicate, CUDA_ON_CPU_PLACE);
}
inline int __syncthreads_or(int predicate, CUDA_ON_CPU_CALLER) {
    return cuda_on_cpu::block_barrier(cuda_on_cpu::BarrierVote::any, predicate, CUDA_ON_CPU_PLACE);
}
inline void __syncwarp(unsigned mask = 0xffffffffu, CUDA_ON_CPU_CALLER) {
    cuda_on_cpu::warp_operation(cuda_on_cpu::WarpOperation::sync, mask, 0, 0, CUDA_ON_CPU_PLACE);
}
inline void __threadfence() {
    cuda_on_cpu::memory_fence();
}
inline void __threadfence_block() {}
inline void __threadfence_system() {
    cuda_on_cpu::memory_fence();
}
inline unsigned __activemask() {
    return cuda_on_cpu::active_lanes();
}

// ---- shuffles: a lane whose source lies outside its segment of `width` lanes keeps its own value
template <typename Value>
inline Value __shfl_sync(unsigned mask, Value value, int source, int width = 32, CUDA_ON_CPU_CALLER) {
    int from = cuda_on_cpu::first_lane(width) | (source & (width - 1));
    return cuda_on_cpu::shuffle(mask, value, from, CUDA_ON_CPU_PLACE);
}
template <typename Value>
inline Value __shfl_up_sync(unsigned mask, Value value, unsigned delta, int width = 32, CUDA_ON_CPU_CALLER) {
    int me = cuda_on_cpu::lane(), from = me - (int)delta;
    return cuda_on_cpu::shuffle(mask, value, from < cuda_on_cpu::first_lane(width) ? me : from, CUDA_ON_CPU_PLACE);
}
template <typename Value>
inline Value __shfl_down_sync(unsigned mask, Value value, unsigned delta, int width = 32, CUDA_ON_CPU_CALLER) {
    int me = cuda_on_cpu::lane(), from = me + (int)delta;
    return cuda_on_cpu::shuffle(mask, value, from > cuda_on_cpu::last_lane(width) ? me : from, CUDA_ON_CPU_PLACE);
}
template <typename Value>
inline Value __shfl_xor_sync(unsigned mask, Value value, int lane_mask, int width = 32, CUDA_ON_CPU_CALLER) {
    int me = cuda_on_cpu::lane(), from = me ^ lane_mask;
    return cuda_on_cpu::shuffle(mask, value, from > cuda_on_cpu::last_lane(width) ? me : from, CUDA_ON_CPU_PLACE);
}

// ---- votes, matches, reductions
inline unsigned __ballot_sync(unsigned mask, int predicate, CUDA_ON_CPU_CALLER) {
    return (unsigned)cuda_on_cpu::warp_operation(cuda_on_cpu::WarpOperation::ballot, mask, !!predicate, 0,
                                                 CUDA_ON_CPU_PLACE);
}
inline int __any_sync(unsigned mask, int predicate, CUDA_ON_CPU_CALLER) {
    return (int)cuda_on_cpu::warp_operation(cuda_on_cpu::WarpOperation::any, mask, !!predicate, 0, CUDA_ON_CPU_PLACE);
}
inline int __all_sync(unsigned mask, int predicate, CUDA_ON_CPU_CALLER) {
    return (int)cuda_on_cpu::warp_operation(cuda_on_cpu::WarpOperation::all, mask, !!predicate, 0, CUDA_ON_CPU_PLACE);
}
template <typename Value> inline unsigned __match_any_sync(unsigned mask, Value value, CUDA_ON_CPU_CALLER) {
    return (unsigned)cuda_on_cpu::warp_operation(cuda_on_cpu::WarpOperation::match_any, mask,
                                                 cuda_on_cpu::to_bits(value), 0, CUDA_ON_CPU_PLACE);
}
template <typename Value>
inline unsigned __match_all_sync(unsigned mask, Value value, int *all_equal, CUDA_ON_CPU_CALLER) {
    unsigned lanes = (unsigned)cuda_on_cpu::warp_operation(cuda_on_cpu::WarpOperation::match_all, mask,
                                                           cuda_on_cpu::to_bits(value), 0, CUDA_ON_CPU_PLACE);
    *all_equal = lanes != 0;
    return lanes;
}
#define CUDA_ON_CPU_REDUCE(name, type, operation)                                                                      \
    inline type name(unsigned mask, type value, CUDA_ON_CPU_CALLER) {                                                  \
        return (type)cuda_on_cpu::warp_operation(cuda_on_cpu::WarpOperation::operation, mask, (unsigned)value, 0,      \
                                                 CUDA_ON_CPU_PLACE);                                                   \
    }
CUDA_ON_CPU_REDUCE(__reduce_add_sync, unsigned, add)
CUDA_ON_CPU_REDUCE(__reduce_add_sync, int, add)
CUDA_ON_CPU_REDUCE(__reduce_min_sync, unsigned, min_unsigned)
CUDA_ON_CPU_REDUCE(__reduce_min_sync, int, min_signed)
CUDA_ON_CPU_REDUCE(__reduce_max_sync, unsigned, max_unsigned)
CUDA_ON_CPU_REDUCE(__reduce_max_sync, int, max_signed)
CUDA_ON_CPU_REDUCE(__reduce_and_sync, unsigned, bit_and)
CUDA_ON_CPU_REDUCE(__reduce_or_sync, unsigned, bit_or)
CUDA_ON_CPU_REDUCE(__reduce_xor_sync, unsigned, bit_xor)
#undef CUDA_ON_CPU_REDUCE

#endif
