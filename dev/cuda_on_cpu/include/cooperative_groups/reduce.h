// cooperative_groups::reduce over a tile.
#ifndef CUDA_ON_CPU_COOPERATIVE_GROUPS_REDUCE_H
#define CUDA_ON_CPU_COOPERATIVE_GROUPS_REDUCE_H

#include "../cooperative_groups.h"

namespace cooperative_groups {

template <typename Value> struct plus {
    Value operator()(Value a, Value b) const { return a + b; }
};
template <typename Value> struct less { // the smaller one, as CUDA names it
    Value operator()(Value a, Value b) const { return b < a ? b : a; }
};
template <typename Value> struct greater {
    Value operator()(Value a, Value b) const { return a < b ? b : a; }
};
template <unsigned Size, typename Parent, typename Value, typename Operation>
inline Value reduce(const thread_block_tile<Size, Parent> &tile, Value value, Operation operation, CUDA_ON_CPU_CALLER) {
    for (unsigned distance = Size / 2; distance; distance /= 2)
        value = operation(value, tile.shfl_xor(value, (int)distance, file_, line_));
    return value;
}

} // namespace cooperative_groups

#endif
