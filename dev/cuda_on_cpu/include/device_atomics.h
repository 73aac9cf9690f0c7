// Atomics. The threads of a grid are fibers of one operating-system thread and never interrupted between two
// statements, so a plain read and write is atomic; the checker is told that it is meant to be.
#ifndef CUDA_ON_CPU_DEVICE_ATOMICS_H
#define CUDA_ON_CPU_DEVICE_ATOMICS_H

#include <cstdint>
#include <cstring>

namespace cuda_on_cpu {

void check_atomic(const void *address, size_t bytes); // does nothing except in check mode

template <typename Number, typename Change>
__attribute__((no_sanitize("thread"), noinline)) Number atomic_update(Number *address, Change change) {
    check_atomic(address, sizeof(Number));
    Number old = *address;
    *address = change(old);
    return old;
}

} // namespace cuda_on_cpu

#define CUDA_ON_CPU_ATOMIC(name, expression)                                                                           \
    template <typename Number, typename Operand> inline Number name(Number *address, Operand operand) {                \
        Number value = (Number)operand;                                                                                \
        return cuda_on_cpu::atomic_update(address, [=](Number old) { return (Number)(expression); });                  \
    }
CUDA_ON_CPU_ATOMIC(atomicAdd, old + value)
CUDA_ON_CPU_ATOMIC(atomicSub, old - value)
CUDA_ON_CPU_ATOMIC(atomicMax, old < value ? value : old)
CUDA_ON_CPU_ATOMIC(atomicMin, value < old ? value : old)
CUDA_ON_CPU_ATOMIC(atomicExch, ((void)old, value))
CUDA_ON_CPU_ATOMIC(atomicAnd, old &value)
CUDA_ON_CPU_ATOMIC(atomicOr, old | value)
CUDA_ON_CPU_ATOMIC(atomicXor, old ^ value)
#undef CUDA_ON_CPU_ATOMIC

template <typename Number, typename Compared, typename Operand>
inline Number atomicCAS(Number *address, Compared compared, Operand operand) {
    Number expected = (Number)compared, value = (Number)operand;
    return cuda_on_cpu::atomic_update(address, [=](Number old) { return old == expected ? value : old; });
}
inline unsigned atomicInc(unsigned *address, unsigned limit) {
    return cuda_on_cpu::atomic_update(address, [=](unsigned old) { return old >= limit ? 0u : old + 1; });
}
inline unsigned atomicDec(unsigned *address, unsigned limit) {
    return cuda_on_cpu::atomic_update(address, [=](unsigned old) { return old == 0 || old > limit ? limit : old - 1; });
}

#endif
