#include "cuda_common.h"

#include <errno.h> // program_invocation_short_name
#include <vector>

static const char *cuda_hint(cudaError_t status) {
    switch (status) {
    case cudaErrorMemoryAllocation:
        return "use a smaller --micro-batch or --sequence, or --recompute";
    case cudaErrorInsufficientDriver:
        return "the driver is older than the CUDA toolkit this was built with";
    case cudaErrorNoKernelImageForDevice:
        return "build for this GPU: make cuda CUDA_ARCH=...";
    default:
        return "CUDA_LAUNCH_BLOCKING=1 and compute-sanitizer name the kernel at fault";
    }
}

// Why there is no GPU at all, or NULL. Without a driver CUDA calls it too old; its version is then 0.
static const char *why_no_gpu(cudaError_t status) {
    int driver = 0;
    if (status == cudaErrorNoDevice) return "the driver shows none: look at nvidia-smi and CUDA_VISIBLE_DEVICES";
    if (status != cudaErrorInsufficientDriver || cudaDriverGetVersion(&driver) != cudaSuccess || driver > 0)
        return NULL;
    return "NVIDIA's driver (libcuda.so.1) is not there: install it";
}

void cuda_check_at(cudaError_t status, const char *call, const char *file, int line) {
    if (status == cudaSuccess) return;
    const char *why = why_no_gpu(status);
    if (why)
        fprintf(stderr, "%s: no GPU found: %s, or use the program for the CPU\n", program_invocation_short_name, why);
    else
        fprintf(stderr, "%s:%d: %s: %s (%s)\n", file, line, call, cudaGetErrorString(status), cuda_hint(status));
    exit(1);
}

static const char *cublas_hint(cublasStatus_t status) {
    switch (status) {
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "no working GPU and driver: look at nvidia-smi";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "use a smaller --micro-batch or --sequence, or --recompute";
    case CUBLAS_STATUS_ARCH_MISMATCH:
        return "the GPU is older than Ampere";
    case CUBLAS_STATUS_INVALID_VALUE:
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "this cuBLAS and this GPU cannot do it: try a newer toolkit (CUDA_HOME), or other sizes";
    default:
        return "a kernel before it may be at fault: CUDA_LAUNCH_BLOCKING=1 and compute-sanitizer name it";
    }
}

void cublas_check_at(cublasStatus_t status, const char *call, const char *file, int line) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    fprintf(stderr, "%s:%d: %s: cuBLAS says %s (%s)\n", file, line, call, cublasGetStatusString(status),
            cublas_hint(status));
    exit(1);
}

void *cublas_workspace(void) {
    static void *memory;
    if (!memory) cuda_check(cudaMalloc(&memory, CUBLAS_WORKSPACE_BYTES));
    return memory;
}

cublasHandle_t cublas_on(cudaStream_t stream) {
    static cublasHandle_t handle;
    if (!handle) cublas_check(cublasCreate(&handle));
    cublas_check(cublasSetStream(handle, stream)); // which puts the library's own workspace back
    cublas_check(cublasSetWorkspace(handle, cublas_workspace(), CUBLAS_WORKSPACE_BYTES));
    return handle;
}

void fetch_floats(float *to, const floatX *from, size_t count, cudaStream_t stream) {
    std::vector<floatX> numbers(count);
    cuda_check(cudaMemcpyAsync(numbers.data(), from, count * sizeof(floatX), cudaMemcpyDeviceToHost, stream));
    cuda_check(cudaStreamSynchronize(stream));
    for (size_t i = 0; i < count; i++) to[i] = to_float(numbers[i]);
}
