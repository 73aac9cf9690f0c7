// What every .cu file shares: the number type of activations and weights, and checked calls.
//
// floatX is float, or __nv_bfloat16 when built with -DPRECISION_BF16. Sums, statistics, states and master weights are
// always float.
#ifndef CORE_CUDA_COMMON_H
#define CORE_CUDA_COMMON_H

#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef PRECISION_BF16
typedef __nv_bfloat16 floatX;
#define PRECISION_NAME "bf16"
#else
typedef float floatX;
#define PRECISION_NAME "fp32"
#endif

__host__ __device__ static inline float to_float(float x) {
    return x;
}
__host__ __device__ static inline float to_float(__nv_bfloat16 x) {
    return __bfloat162float(x);
}
template <typename Number> __host__ __device__ static inline Number from_float(float x);
template <> __host__ __device__ inline float from_float<float>(float x) {
    return x;
}
template <> __host__ __device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
    return __float2bfloat16_rn(x);
}

// A CUDA or cuBLAS call that fails ends the program with the call's place, its error and a hint.
void cuda_check_at(cudaError_t status, const char *call, const char *file, int line);
void cublas_check_at(cublasStatus_t status, const char *call, const char *file, int line);
#define cuda_check(call)   cuda_check_at((call), #call, __FILE__, __LINE__)
#define cublas_check(call) cublas_check_at((call), #call, __FILE__, __LINE__)
// After a kernel launch: reports what the launch itself refused (sizes, shared memory).
#define launch_check() cuda_check(cudaGetLastError())

// `count` numbers from device memory, as float in host memory; waits for them.
void fetch_floats(float *to, const floatX *from, size_t count, cudaStream_t stream);

// Scratch memory of cuBLAS and cuBLASLt: one for both, because all their work goes to one stream. cuBLAS would allocate
// its own, and put the allocation into every CUDA graph that is captured.
void *cublas_workspace(void);
static const size_t CUBLAS_WORKSPACE_BYTES = (size_t)32 << 20; // what NVIDIA advises for its large GPUs

// The one cuBLAS handle, bound to `stream` for the calls that follow.
cublasHandle_t cublas_on(cudaStream_t stream);

#endif
