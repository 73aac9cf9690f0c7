// cuBLAS: handles and matrix products. Arguments that the real library refuses get the status it gives; pointers that
// would make it fault on the device end the program here.
#include "matrix.h"

#include <algorithm>
#include <cublas_v2.h>

using namespace cuda_on_cpu;

struct cublasContext {
    cudaStream_t stream = nullptr;
    cublasMath_t math = CUBLAS_DEFAULT_MATH;
    cublasPointerMode_t pointer_mode = CUBLAS_POINTER_MODE_HOST;
    void *workspace = nullptr; // the caller's; none: the library's own
    size_t workspace_bytes = 0;
};

namespace {

struct Operand {
    const void *start;
    cudaDataType type;
    int leading;
    long long stride;
};
struct BatchedProduct {
    cublasOperation_t op_a, op_b;
    int m, n, k, count;
    const void *alpha, *beta;
    Operand a, b, c;
    cublasComputeType_t compute;
    const char *what;
};

bool types_supported(const BatchedProduct &p) {
    bool compute = p.compute == CUBLAS_COMPUTE_32F || p.compute == CUBLAS_COMPUTE_32F_PEDANTIC ||
                   p.compute == CUBLAS_COMPUTE_32F_FAST_TF32 || p.compute == CUBLAS_COMPUTE_32F_FAST_16BF ||
                   p.compute == CUBLAS_COMPUTE_32F_FAST_16F;
    if (!compute || p.a.type != p.b.type || !element_bytes(p.a.type) || !element_bytes(p.c.type)) return false;
    bool fast = p.compute != CUBLAS_COMPUTE_32F && p.compute != CUBLAS_COMPUTE_32F_PEDANTIC;
    if (fast && p.a.type != CUDA_R_32F) return false;
    return p.c.type == p.a.type || p.c.type == CUDA_R_32F;
}

bool is_operation(cublasOperation_t op) {
    return op == CUBLAS_OP_N || op == CUBLAS_OP_T || op == CUBLAS_OP_C;
}

cublasStatus_t check_arguments(cublasHandle_t handle, const BatchedProduct &p) {
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!is_operation(p.op_a) || !is_operation(p.op_b)) return CUBLAS_STATUS_INVALID_VALUE;
    if (p.m < 0 || p.n < 0 || p.k < 0 || p.count < 0) return CUBLAS_STATUS_INVALID_VALUE;
    if (p.a.leading < std::max(1, p.op_a == CUBLAS_OP_N ? p.m : p.k)) return CUBLAS_STATUS_INVALID_VALUE;
    if (p.b.leading < std::max(1, p.op_b == CUBLAS_OP_N ? p.k : p.n)) return CUBLAS_STATUS_INVALID_VALUE;
    if (p.c.leading < std::max(1, p.m)) return CUBLAS_STATUS_INVALID_VALUE;
    if (!p.alpha || !p.beta) return CUBLAS_STATUS_INVALID_VALUE;
    return types_supported(p) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

void check_outputs_apart(const BatchedProduct &p) {
    bool writes = p.m && p.n;
    if (writes && p.count > 1 && p.c.stride < p.m && p.c.stride > -p.m)
        fault("race", nowhere, "%s: the outputs of a batch of %d overlap (stride %lld, %d rows)", p.what, p.count,
              p.c.stride, p.m);
    if (writes && p.k && (p.c.start == p.a.start || p.c.start == p.b.start))
        fault("race", nowhere, "%s: the output is also an operand", p.what);
}

Matrix matrix_of(const Operand &operand, bool transposed, int64_t rows, int64_t columns) {
    if (transposed) std::swap(rows, columns);
    return {operand.start, operand.type, rows, columns, operand.leading};
}

void run_product(const BatchedProduct &p, float alpha, float beta, bool as_tf32) {
    DeviceMemoryAccess access;
    checker_library_call(p.what);
    if (options().skip) return;
    bool ta = p.op_a != CUBLAS_OP_N, tb = p.op_b != CUBLAS_OP_N;
    Matrix a = matrix_of(p.a, ta, p.m, p.k), b = matrix_of(p.b, tb, p.k, p.n), c = matrix_of(p.c, false, p.m, p.n);
    for (int i = 0; i < p.count; i++) {
        Product one = {ta,
                       tb,
                       alpha,
                       beta,
                       a.offset_by(i * p.a.stride),
                       b.offset_by(i * p.b.stride),
                       c.offset_by(i * p.c.stride),
                       p.m,
                       p.n,
                       p.k,
                       as_tf32,
                       p.what};
        one.c.require_writable((std::string(p.what) + ", output").c_str());
        require_operands(one);
        std::vector<float> result = multiply(one);
        for (int64_t j = 0; j < p.n; j++)
            for (int64_t r = 0; r < p.m; r++)
                store_number(const_cast<void *>(one.c.start), one.c.type, (size_t)(j * one.c.leading + r),
                             result[(size_t)(j * p.m + r)]);
        one.c.mark_written();
    }
}

// The library may leave anything in its workspace. Its own would become a part of a graph that is captured.
void spoil_workspace(cublasHandle_t handle, const char *what) {
    if (any_capture_active() && !handle->workspace)
        fault("graph", nowhere, "%s is captured without cublasSetWorkspace after cublasSetStream", what);
    void *workspace = handle->workspace;
    size_t bytes = std::min(handle->workspace_bytes, (size_t)64 << 10);
    if (!workspace) return;
    enqueue(handle->stream, [=] {
        DeviceMemoryAccess access;
        require_device_range(workspace, bytes, "cuBLAS's workspace");
        poison(workspace, bytes);
        checker_allocated(workspace, bytes);
    });
}

cublasStatus_t batched_product(cublasHandle_t handle, const BatchedProduct &p) {
    require_errors_seen(p.what);
    cublasStatus_t status = check_arguments(handle, p);
    if (status != CUBLAS_STATUS_SUCCESS || !p.m || !p.n || !p.count) return status;
    check_outputs_apart(p);
    spoil_workspace(handle, p.what);
    bool as_tf32 = p.a.type == CUDA_R_32F &&
                   (p.compute == CUBLAS_COMPUTE_32F_FAST_TF32 || handle->math == CUBLAS_TF32_TENSOR_OP_MATH);
    BatchedProduct product = p;
    if (handle->pointer_mode == CUBLAS_POINTER_MODE_HOST) { // read now: the caller may change them afterwards
        float alpha = *(const float *)p.alpha, beta = *(const float *)p.beta;
        enqueue(handle->stream, [=] { run_product(product, alpha, beta, as_tf32); });
    } else {
        enqueue(handle->stream, [=] {
            DeviceMemoryAccess access;
            require_device_range(product.alpha, 4, product.what);
            require_device_range(product.beta, 4, product.what);
            run_product(product, *(const float *)product.alpha, *(const float *)product.beta, as_tf32);
        });
    }
    return CUBLAS_STATUS_SUCCESS;
}

} // namespace

extern "C" {

// ---- handles
cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) {
    *handle = new cublasContext();
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!stream_is_known(stream)) return CUBLAS_STATUS_INVALID_VALUE;
    handle->stream = stream;
    handle->workspace = nullptr, handle->workspace_bytes = 0;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t *stream) {
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    *stream = handle->stream;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t math) {
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    handle->math = math;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    handle->pointer_mode = mode;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t bytes) {
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (bytes && (uintptr_t)workspace % 256) return CUBLAS_STATUS_INVALID_VALUE;
    if (bytes) require_device_range(workspace, bytes, "cublasSetWorkspace");
    handle->workspace = bytes ? workspace : nullptr, handle->workspace_bytes = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasGetStatusName(cublasStatus_t status) {
    switch (status) {
#define NAME(status)                                                                                                   \
    case status:                                                                                                       \
        return #status;
        NAME(CUBLAS_STATUS_SUCCESS)
        NAME(CUBLAS_STATUS_NOT_INITIALIZED)
        NAME(CUBLAS_STATUS_ALLOC_FAILED)
        NAME(CUBLAS_STATUS_INVALID_VALUE)
        NAME(CUBLAS_STATUS_ARCH_MISMATCH) NAME(CUBLAS_STATUS_MAPPING_ERROR) NAME(CUBLAS_STATUS_EXECUTION_FAILED)
            NAME(CUBLAS_STATUS_INTERNAL_ERROR) NAME(CUBLAS_STATUS_NOT_SUPPORTED) NAME(CUBLAS_STATUS_LICENSE_ERROR)
#undef NAME
    }
    return "unknown status";
}
const char *cublasGetStatusString(cublasStatus_t status) {
    return cublasGetStatusName(status);
}

// ---- products
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m,
                                          int n, int k, const void *alpha, const void *a, cudaDataType type_a, int lda,
                                          long long stride_a, const void *b, cudaDataType type_b, int ldb,
                                          long long stride_b, const void *beta, void *c, cudaDataType type_c, int ldc,
                                          long long stride_c, int count, cublasComputeType_t compute,
                                          cublasGemmAlgo_t) {
    return batched_product(handle, {op_a,
                                    op_b,
                                    m,
                                    n,
                                    k,
                                    count,
                                    alpha,
                                    beta,
                                    {a, type_a, lda, stride_a},
                                    {b, type_b, ldb, stride_b},
                                    {c, type_c, ldc, stride_c},
                                    compute,
                                    "cublasGemmStridedBatchedEx"});
}
cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                            const void *alpha, const void *a, cudaDataType type_a, int lda, const void *b,
                            cudaDataType type_b, int ldb, const void *beta, void *c, cudaDataType type_c, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t) {
    return batched_product(handle, {op_a,
                                    op_b,
                                    m,
                                    n,
                                    k,
                                    1,
                                    alpha,
                                    beta,
                                    {a, type_a, lda, 0},
                                    {b, type_b, ldb, 0},
                                    {c, type_c, ldc, 0},
                                    compute,
                                    "cublasGemmEx"});
}
cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m,
                                         int n, int k, const float *alpha, const float *a, int lda, long long stride_a,
                                         const float *b, int ldb, long long stride_b, const float *beta, float *c,
                                         int ldc, long long stride_c, int count) {
    return batched_product(handle, {op_a,
                                    op_b,
                                    m,
                                    n,
                                    k,
                                    count,
                                    alpha,
                                    beta,
                                    {a, CUDA_R_32F, lda, stride_a},
                                    {b, CUDA_R_32F, ldb, stride_b},
                                    {c, CUDA_R_32F, ldc, stride_c},
                                    CUBLAS_COMPUTE_32F,
                                    "cublasSgemmStridedBatched"});
}
cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n,
                              int k, const float *alpha, const float *a, int lda, const float *b, int ldb,
                              const float *beta, float *c, int ldc) {
    return batched_product(handle, {op_a,
                                    op_b,
                                    m,
                                    n,
                                    k,
                                    1,
                                    alpha,
                                    beta,
                                    {a, CUDA_R_32F, lda, 0},
                                    {b, CUDA_R_32F, ldb, 0},
                                    {c, CUDA_R_32F, ldc, 0},
                                    CUBLAS_COMPUTE_32F,
                                    "cublasSgemm"});
}

} // extern "C"
