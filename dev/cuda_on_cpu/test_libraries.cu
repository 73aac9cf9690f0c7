// cuBLAS and cuBLASLt against plain loops, and what they refuse.
#include "../../core/gpu/cuda_common.h"
#include "../../core/base/test.h"

#include <cublasLt.h>
#include <vector>

#ifdef PRECISION_BF16
static const cudaDataType number_type = CUDA_R_16BF;
static const double tolerance = 2e-2;
#else
static const cudaDataType number_type = CUDA_R_32F;
static const double tolerance = 1e-5;
#endif
static const cublasOperation_t N = CUBLAS_OP_N, T = CUBLAS_OP_T;

static std::vector<float> pattern(size_t count, int step) {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; i++) values[i] = (float)((int)((i * step + step) % 17) - 8) / 16;
    return values;
}
static floatX *to_device(const std::vector<float> &values) {
    std::vector<floatX> numbers;
    for (float value : values) numbers.push_back(from_float<floatX>(value));
    floatX *device;
    cuda_check(cudaMalloc(&device, numbers.size() * sizeof(floatX)));
    cuda_check(cudaMemcpy(device, numbers.data(), numbers.size() * sizeof(floatX), cudaMemcpyHostToDevice));
    return device;
}
static std::vector<float> from_device(const floatX *device, size_t count) {
    std::vector<floatX> numbers(count);
    cuda_check(cudaMemcpy(numbers.data(), device, count * sizeof(floatX), cudaMemcpyDeviceToHost));
    std::vector<float> values;
    for (floatX number : numbers) values.push_back(to_float(number));
    return values;
}

struct Shape {
    int m, n, k, lda, ldb, ldc;
    bool ta, tb;
};
// Element (i, j) of alpha op(a) op(b) + beta c, column-major.
static float expected(const Shape &s, const float *a, const float *b, const float *c, float alpha, float beta, int i,
                      int j) {
    float sum = 0;
    for (int k = 0; k < s.k; k++)
        sum += (s.ta ? a[i * s.lda + k] : a[k * s.lda + i]) * (s.tb ? b[k * s.ldb + j] : b[j * s.ldb + k]);
    return alpha * sum + beta * c[j * s.ldc + i];
}

static void check_batched(bool ta, bool tb) {
    Shape s = {5, 7, 9, 11, 12, 6, ta, tb};
    int count = 3;
    long long stride_a = s.lda * 9, stride_b = s.ldb * 9, stride_c = s.ldc * 7;
    std::vector<float> a = pattern((size_t)(stride_a * count), 3), b = pattern((size_t)(stride_b * count), 5),
                       c = pattern((size_t)(stride_c * count), 7);
    floatX *da = to_device(a), *db = to_device(b), *dc = to_device(c);
    float alpha = 0.5f, beta = 2;
    cublas_check(cublasGemmStridedBatchedEx(
        cublas_on(0), ta ? T : N, tb ? T : N, s.m, s.n, s.k, &alpha, da, number_type, s.lda, stride_a, db, number_type,
        s.ldb, stride_b, &beta, dc, number_type, s.ldc, stride_c, count, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    std::vector<float> found = from_device(dc, c.size());
    for (int batch = 0; batch < count; batch++)
        for (int j = 0; j < s.n; j++) {
            const float *c_of = c.data() + batch * stride_c;
            for (int i = 0; i < s.m; i++)
                CHECK_CLOSE(
                    found[(size_t)(batch * stride_c + j * s.ldc + i)],
                    expected(s, a.data() + batch * stride_a, b.data() + batch * stride_b, c_of, alpha, beta, i, j),
                    tolerance);
            CHECK(found[(size_t)(batch * stride_c + j * s.ldc + s.m)] == c_of[j * s.ldc + s.m]); // the gap stays
        }
    for (floatX *p : {da, db, dc}) cuda_check(cudaFree(p));
}
static void test_batched_products() {
    for (int i = 0; i < 4; i++) check_batched(i & 1, i & 2);
}

static void test_refusals() {
    floatX *a = to_device(pattern(64, 3)), *b = to_device(pattern(64, 5)), *c = to_device(pattern(64, 7));
    float one = 1;
    auto status = [&](int m, int lda, int ldc, cudaDataType type_c, cublasComputeType_t compute) {
        return cublasGemmEx(cublas_on(0), N, N, m, 4, 4, &one, a, number_type, lda, b, number_type, 4, &one, c, type_c,
                            ldc, compute, CUBLAS_GEMM_DEFAULT);
    };
    CHECK(status(4, 4, 4, number_type, CUBLAS_COMPUTE_32F) == CUBLAS_STATUS_SUCCESS);
    CHECK(status(0, 4, 4, number_type, CUBLAS_COMPUTE_32F) == CUBLAS_STATUS_SUCCESS);
    CHECK(status(-1, 4, 4, number_type, CUBLAS_COMPUTE_32F) == CUBLAS_STATUS_INVALID_VALUE);
    CHECK(status(4, 3, 4, number_type, CUBLAS_COMPUTE_32F) == CUBLAS_STATUS_INVALID_VALUE);
    CHECK(status(4, 4, 3, number_type, CUBLAS_COMPUTE_32F) == CUBLAS_STATUS_INVALID_VALUE);
    CHECK(status(4, 4, 4, CUDA_R_16F, CUBLAS_COMPUTE_32F) == CUBLAS_STATUS_NOT_SUPPORTED);
    CHECK(status(4, 4, 4, number_type, CUBLAS_COMPUTE_16F) == CUBLAS_STATUS_NOT_SUPPORTED);
    CHECK(cublasGemmEx(NULL, N, N, 4, 4, 4, &one, a, number_type, 4, b, number_type, 4, &one, c, number_type, 4,
                       CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_NOT_INITIALIZED);
    for (floatX *p : {a, b, c}) cuda_check(cudaFree(p));
}

// ---- cuBLASLt
struct Fused {
    cublasLtEpilogue_t epilogue;
    bool ta, tb;
    floatX *a, *b, *d, *bias, *aux;
    int m, n, k, aux_leading;
    cudaDataType bias_type;
    uint32_t alignment_of_a = 256; // what the heuristic is told
};
template <typename Value>
static void set(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute, Value value) {
    cublas_check(cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof value));
}
static cublasStatus_t run(const Fused &f) {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t description;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t heuristic;
    float one = 1, zero = 0;
    int found = 0;
    void *workspace;
    uint64_t workspace_bytes = 1024;
    cuda_check(cudaMalloc(&workspace, workspace_bytes));
    cublas_check(cublasLtCreate(&handle));
    cublas_check(cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(description, CUBLASLT_MATMUL_DESC_TRANSA, f.ta ? T : N);
    set(description, CUBLASLT_MATMUL_DESC_TRANSB, f.tb ? T : N);
    set(description, CUBLASLT_MATMUL_DESC_EPILOGUE, f.epilogue);
    set(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, f.bias);
    set(description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, f.bias_type);
    set(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, f.aux);
    set(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, (int64_t)f.aux_leading);
    cublas_check(cublasLtMatrixLayoutCreate(&a, number_type, f.ta ? f.k : f.m, f.ta ? f.m : f.k, f.ta ? f.k : f.m));
    cublas_check(cublasLtMatrixLayoutCreate(&b, number_type, f.tb ? f.n : f.k, f.tb ? f.k : f.n, f.tb ? f.n : f.k));
    cublas_check(cublasLtMatrixLayoutCreate(&d, number_type, f.m, f.n, f.m));
    cublas_check(cublasLtMatmulPreferenceCreate(&preference));
    cublas_check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                      &workspace_bytes, sizeof workspace_bytes));
    if (f.alignment_of_a != 256)
        cublas_check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                                                          &f.alignment_of_a, sizeof f.alignment_of_a));
    cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, description, a, b, d, d, preference, 1, &heuristic, &found);
    CHECK(found == (status == CUBLAS_STATUS_SUCCESS));
    status = cublasLtMatmul(handle, description, &one, f.a, a, f.b, b, &zero, f.d, d, f.d, d, &heuristic.algo,
                            workspace, workspace_bytes, 0);
    cublas_check(cublasLtMatmulPreferenceDestroy(preference));
    for (cublasLtMatrixLayout_t layout : {a, b, d}) cublas_check(cublasLtMatrixLayoutDestroy(layout));
    cublas_check(cublasLtMatmulDescDestroy(description));
    cublas_check(cublasLtDestroy(handle));
    cuda_check(cudaFree(workspace));
    return status;
}

static double gelu(double x) {
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
static double gelu_slope(double x) {
    return (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5;
}

static void test_epilogues() {
    int m = 16, n = 7, k = 9, length = 16 * 9;
    std::vector<float> a = pattern((size_t)length, 3), b = pattern((size_t)length, 5), bias = pattern(16, 11),
                       aux = pattern((size_t)(m * n), 13);
    floatX *da = to_device(a), *db = to_device(b), *dd = to_device(aux), *dbias = to_device(bias),
           *daux = to_device(aux);
    Fused f = {CUBLASLT_EPILOGUE_DEFAULT, true, false, da, db, dd, dbias, daux, m, n, k, m, number_type};
    Shape s = {m, n, k, k, k, m, true, false};
    for (cublasLtEpilogue_t epilogue : {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS,
                                        CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU}) {
        f.epilogue = epilogue;
        cublas_check(run(f));
        std::vector<float> found = from_device(dd, (size_t)(m * n)), kept = from_device(daux, (size_t)(m * n));
        for (int j = 0; j < n; j++)
            for (int i = 0; i < m; i++) {
                double x = expected(s, a.data(), b.data(), aux.data(), 1, 0, i, j), with_bias = x + bias[(size_t)i];
                size_t at = (size_t)(j * m + i);
                if (epilogue == CUBLASLT_EPILOGUE_DEFAULT) CHECK_CLOSE(found[at], x, tolerance);
                if (epilogue == CUBLASLT_EPILOGUE_BIAS) CHECK_CLOSE(found[at], with_bias, tolerance);
                if (epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
                    CHECK_CLOSE(kept[at], with_bias, tolerance);
                    CHECK_CLOSE(found[at], gelu(kept[at]), tolerance);
                }
                if (epilogue == CUBLASLT_EPILOGUE_DGELU) CHECK_CLOSE(found[at], x * gelu_slope(kept[at]), tolerance);
            }
    }
    for (floatX *p : {da, db, dd, dbias, daux}) cuda_check(cudaFree(p));
}

// BGRADB: the gradient of a bias is the sum over k of op(B); here op(B) is B transposed, (k, n).
static void test_bias_gradient() {
    int m = 8, n = 16, k = 9;
    std::vector<float> a = pattern((size_t)(m * k), 3), b = pattern((size_t)(n * k), 5);
    floatX *da = to_device(a), *db = to_device(b), *dd = to_device(pattern((size_t)(m * n), 7)),
           *dbias = to_device(std::vector<float>(16, 9.0f));
    cublas_check(run({CUBLASLT_EPILOGUE_BGRADB, false, true, da, db, dd, dbias, NULL, m, n, k, 0, number_type}));
    std::vector<float> found = from_device(dbias, (size_t)n);
    for (int j = 0; j < n; j++) {
        float sum = 0;
        for (int i = 0; i < k; i++) sum += b[(size_t)(i * n + j)];
        CHECK_CLOSE(found[(size_t)j], sum, tolerance);
    }
    for (floatX *p : {da, db, dd, dbias}) cuda_check(cudaFree(p));
}

static void test_lt_refusals() {
    floatX *a = to_device(pattern(256, 3)), *b = to_device(pattern(256, 5)), *d = to_device(pattern(256, 7)),
           *bias = to_device(pattern(64, 9));
    Fused right = {CUBLASLT_EPILOGUE_GELU_AUX_BIAS, true, false, a, b, d, bias, a + 128, 8, 8, 8, 8, number_type};
    CHECK(run(right) == CUBLAS_STATUS_SUCCESS);
    Fused f = right;
    f.aux_leading = 12; // not a multiple of 8
    CHECK(run(f) == CUBLAS_STATUS_INVALID_VALUE);
    f = right, f.aux = NULL;
    CHECK(run(f) == CUBLAS_STATUS_INVALID_VALUE);
    f = right, f.bias = NULL;
    CHECK(run(f) == CUBLAS_STATUS_INVALID_VALUE);
    f = right, f.bias_type = CUDA_R_16F;
    CHECK(run(f) == CUBLAS_STATUS_INVALID_VALUE);
    f = right, f.a = a + 1; // not aligned to 16 bytes
    CHECK(run(f) == CUBLAS_STATUS_INVALID_VALUE);
    f = right, f.a = a + 16; // aligned to 16 bytes at least, but not to the 256 that are taken for granted
    CHECK(run(f) == CUBLAS_STATUS_INVALID_VALUE);
    f.alignment_of_a = 16;
    CHECK(run(f) == CUBLAS_STATUS_SUCCESS);
    f = right, f.epilogue = CUBLASLT_EPILOGUE_RELU;
    CHECK(run(f) == CUBLAS_STATUS_INVALID_VALUE);
    for (floatX *p : {a, b, d, bias}) cuda_check(cudaFree(p));
}

#ifndef PRECISION_BF16
// One product of two numbers, the second of them 1.
static float as_tf32(float number) {
    float one = 1, zero = 0, found;
    float *a = to_device({number}), *b = to_device({one}), *c = to_device({zero});
    cublas_check(cublasGemmEx(cublas_on(0), N, N, 1, 1, 1, &one, a, CUDA_R_32F, 1, b, CUDA_R_32F, 1, &zero, c,
                              CUDA_R_32F, 1, CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_GEMM_DEFAULT));
    found = from_device(c, 1)[0];
    for (float *p : {a, b, c}) cuda_check(cudaFree(p));
    return found;
}

// Ten bits of the fraction are left: 1 + 2^-10 is the next number after 1.
static void test_tf32() {
    const float step = 1.0f / 1024, numbers[] = {1 + 0.25f * step, 1 + 0.75f * step, -1 - 0.75f * step, 1 + step};
    const float nearest[] = {1, 1 + step, -1 - step, 1 + step}, towards_zero[] = {1, 1, -1, 1 + step};
    for (int i = 0; i < 4; i++) {
        CHECK(as_tf32(numbers[i]) == nearest[i]);
        setenv("CUDA_ON_CPU_TF32", "truncate", 1);
        CHECK(as_tf32(numbers[i]) == towards_zero[i]);
        CHECK(isnan(as_tf32(NAN)) && isinf(as_tf32(INFINITY)));
        setenv("CUDA_ON_CPU_TF32", "round", 1);
    }
    unsetenv("CUDA_ON_CPU_TF32");
}
#endif

int main() {
    RUN(test_batched_products);
    RUN(test_refusals);
    RUN(test_epilogues);
    RUN(test_bias_gradient);
    RUN(test_lt_refusals);
#ifndef PRECISION_BF16
    RUN(test_tf32);
#endif
    return test_summary();
}
