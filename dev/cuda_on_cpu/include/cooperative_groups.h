// The part of cooperative_groups that kernels of blocks and warps use; NVIDIA's own header needs nvcc.
#ifndef CUDA_ON_CPU_COOPERATIVE_GROUPS_H
#define CUDA_ON_CPU_COOPERATIVE_GROUPS_H

#include "cuda_on_cpu.h"

namespace cooperative_groups {

struct thread_block {
    void sync(CUDA_ON_CPU_CALLER) const {
        cuda_on_cpu::block_barrier(cuda_on_cpu::BarrierVote::none, false, CUDA_ON_CPU_PLACE);
    }
    static unsigned thread_rank() { return (unsigned)cuda_on_cpu::thread_in_block(); }
    static unsigned size() { return blockDim.x * blockDim.y * blockDim.z; }
    static unsigned num_threads() { return size(); }
    static dim3 group_index() { return dim3(blockIdx.x, blockIdx.y, blockIdx.z); }
    static dim3 thread_index() { return dim3(threadIdx.x, threadIdx.y, threadIdx.z); }
};
inline thread_block this_thread_block() {
    return {};
}

// `Size` neighbouring lanes of a warp.
template <unsigned Size, typename Parent = void> struct thread_block_tile {
    static_assert(Size >= 1 && Size <= 32 && (Size & (Size - 1)) == 0, "a tile is a power of two up to a warp");
    thread_block_tile() = default;
    template <typename OtherParent> thread_block_tile(const thread_block_tile<Size, OtherParent> &) {}

    static unsigned mask() {
        return Size == 32 ? 0xffffffffu : ((1u << Size % 32) - 1) << cuda_on_cpu::first_lane(Size);
    }
    static unsigned thread_rank() { return (unsigned)cuda_on_cpu::lane() % Size; }
    static constexpr unsigned size() { return Size; }
    static constexpr unsigned num_threads() { return Size; }
    static unsigned meta_group_rank() { return thread_block::thread_rank() / Size; }
    static unsigned meta_group_size() { return (thread_block::size() + Size - 1) / Size; }

    void sync(CUDA_ON_CPU_CALLER) const { __syncwarp(mask(), file_, line_); }
    template <typename Value> Value shfl(Value value, int source, CUDA_ON_CPU_CALLER) const {
        return __shfl_sync(mask(), value, source, Size, file_, line_);
    }
    template <typename Value> Value shfl_up(Value value, unsigned delta, CUDA_ON_CPU_CALLER) const {
        return __shfl_up_sync(mask(), value, delta, Size, file_, line_);
    }
    template <typename Value> Value shfl_down(Value value, unsigned delta, CUDA_ON_CPU_CALLER) const {
        return __shfl_down_sync(mask(), value, delta, Size, file_, line_);
    }
    template <typename Value> Value shfl_xor(Value value, int lane_mask, CUDA_ON_CPU_CALLER) const {
        return __shfl_xor_sync(mask(), value, lane_mask, Size, file_, line_);
    }
    unsigned ballot(int predicate, CUDA_ON_CPU_CALLER) const {
        return __ballot_sync(mask(), predicate, file_, line_) >> cuda_on_cpu::first_lane(Size);
    }
    int any(int predicate, CUDA_ON_CPU_CALLER) const { return __any_sync(mask(), predicate, file_, line_); }
    int all(int predicate, CUDA_ON_CPU_CALLER) const { return __all_sync(mask(), predicate, file_, line_); }
};
template <unsigned Size, typename Parent> inline thread_block_tile<Size, Parent> tiled_partition(const Parent &) {
    return {};
}
template <typename Group> inline void sync(const Group &group, CUDA_ON_CPU_CALLER) {
    group.sync(file_, line_);
}

} // namespace cooperative_groups

#endif
