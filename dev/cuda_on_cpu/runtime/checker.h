// Check mode: every access of kernels to device and shared memory, judged by CUDA's rules.
#ifndef CUDA_ON_CPU_CHECKER_H
#define CUDA_ON_CPU_CHECKER_H

#include "runtime.h"

namespace cuda_on_cpu {

enum class AccessKind { read, write, atomic };
// `place` is the return address of the call that announces the access. Sizes up to 16 bytes.
void check_access(const void *address, size_t bytes, AccessKind kind, const void *place);
void check_range(const void *address, size_t bytes, AccessKind kind, const void *place); // any size and alignment
void check_alignment(const void *address, size_t bytes, AccessKind kind, const void *place);

} // namespace cuda_on_cpu

#endif
