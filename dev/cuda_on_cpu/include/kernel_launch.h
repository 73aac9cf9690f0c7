// `kernel<<<grid, block, shared, stream>>>(arguments)` as rewrite_cuda.py writes it, and the host templates that
// cuda_runtime.h keeps for nvcc.
#ifndef CUDA_ON_CPU_KERNEL_LAUNCH_H
#define CUDA_ON_CPU_KERNEL_LAUNCH_H

#include <functional>

namespace cuda_on_cpu {

struct LaunchShape {
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
    LaunchShape(dim3 grid, dim3 block, size_t shared_bytes = 0, cudaStream_t stream = nullptr)
        : grid(grid), block(block), shared_bytes(shared_bytes), stream(stream) {}
};

typedef void (*ThreadBody)(const void *closure);

// False, with CUDA's error set, when the hardware would refuse the launch. `kernel` is the function's address, or NULL
// when the source leaves its template arguments to be deduced.
bool launch_is_possible(const char *name, const void *kernel, const LaunchShape &shape, Place place);
void run_grid(const char *name, const void *kernel, const LaunchShape &shape, Place place, ThreadBody body,
              const void *closure);
void enqueue(cudaStream_t stream, std::function<void()> work);
cudaError_t set_kernel_attribute(const void *kernel, cudaFuncAttribute attribute, int value);
cudaError_t copy_to_symbol(void *symbol, size_t symbol_bytes, const void *from, size_t bytes, size_t offset);
cudaError_t copy_from_symbol(void *to, const void *symbol, size_t symbol_bytes, size_t bytes, size_t offset);
cudaError_t copy_from_symbol_async(void *to, const void *symbol, size_t symbol_bytes, size_t bytes, size_t offset,
                                   cudaStream_t stream);

template <typename Thread>
void launch(const char *name, const void *kernel, const LaunchShape &shape, Place place, Thread thread) {
    if (!launch_is_possible(name, kernel, shape, place)) return;
    enqueue(shape.stream, [=] {
        run_grid(
            name, kernel, shape, place, [](const void *closure) { (*(const Thread *)closure)(); }, &thread);
    });
}

} // namespace cuda_on_cpu

template <typename Kernel>
inline cudaError_t cudaFuncSetAttribute(Kernel *kernel, cudaFuncAttribute attribute, int value) {
    return cuda_on_cpu::set_kernel_attribute((const void *)kernel, attribute, value);
}
template <typename Symbol>
inline cudaError_t cudaMemcpyToSymbol(Symbol &symbol, const void *from, size_t bytes, size_t offset = 0,
                                      cudaMemcpyKind = cudaMemcpyHostToDevice) {
    return cuda_on_cpu::copy_to_symbol((void *)&symbol, sizeof symbol, from, bytes, offset);
}
template <typename Symbol>
inline cudaError_t cudaMemcpyFromSymbol(void *to, const Symbol &symbol, size_t bytes, size_t offset = 0,
                                        cudaMemcpyKind = cudaMemcpyDeviceToHost) {
    return cuda_on_cpu::copy_from_symbol(to, (const void *)&symbol, sizeof symbol, bytes, offset);
}
template <typename Symbol>
inline cudaError_t cudaMemcpyFromSymbolAsync(void *to, const Symbol &symbol, size_t bytes, size_t offset,
                                             cudaMemcpyKind, cudaStream_t stream) {
    return cuda_on_cpu::copy_from_symbol_async(to, (const void *)&symbol, sizeof symbol, bytes, offset, stream);
}

#endif
