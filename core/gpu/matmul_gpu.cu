#include "matmul_gpu.h"

#include <cublasLt.h>
#include <string.h>
#include <vector>

#ifdef PRECISION_BF16
static const cudaDataType_t NUMBER_TYPE = CUDA_R_16BF;
#else
static const cudaDataType_t NUMBER_TYPE = CUDA_R_32F;
#endif
#ifdef ALLOW_TF32
static const cublasComputeType_t COMPUTE_TYPE = CUBLAS_COMPUTE_32F_FAST_TF32;
#else
static const cublasComputeType_t COMPUTE_TYPE = CUBLAS_COMPUTE_32F;
#endif

// cuBLASLt's matrices are column-major, and a row-major matrix read as a column-major one is its transpose. So
// out^T (n,m) = b^T (n,k) a^T (k,m) is computed: the library's A is our b, its B our a, and nothing is ever transposed.
typedef struct {
    MatmulShape shape;
    bool exists;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t A, B, D;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace_bytes; // what the algorithm needs
} Plan;

static cublasLtHandle_t library_handle(void) {
    static cublasLtHandle_t handle;
    if (!handle) cublas_check(cublasLtCreate(&handle));
    return handle;
}

// The product as a user would name it, for messages.
static void check_product(cublasStatus_t status, const MatmulShape *shape) {
    static const char *const epilogues[] = {"none", "bias", "bias and GELU", "GELU's slope", "column sums"};
    char what[200];
    if (status == CUBLAS_STATUS_SUCCESS) return;
    snprintf(what, sizeof what, "product of (%d,%d)%s and (%d,%d)%s, " PRECISION_NAME " into %s, epilogue: %s",
             shape->m, shape->k, shape->a_is_transposed ? " transposed" : "", shape->k, shape->n,
             shape->b_is_transposed ? " transposed" : "", shape->out_is_float ? "fp32" : PRECISION_NAME,
             epilogues[shape->fusion]);
    cublas_check_at(status, what, __FILE__, __LINE__);
}

template <typename Value>
static void set_attribute(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute, Value value) {
    cublas_check(cublasLtMatmulDescSetAttribute(product, attribute, &value, sizeof value));
}

static cublasLtEpilogue_t epilogue_of(MatmulFusion fusion) {
    switch (fusion) {
    case MATMUL_BIAS:
        return CUBLASLT_EPILOGUE_BIAS;
    case MATMUL_BIAS_GELU:
        return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case MATMUL_GELU_BACKWARD:
        return CUBLASLT_EPILOGUE_DGELU;
    case MATMUL_COLUMN_SUMS:
        return CUBLASLT_EPILOGUE_BGRADA;
    default:
        return CUBLASLT_EPILOGUE_DEFAULT;
    }
}

static void set_pointers(const Plan *plan, const MatmulExtra *extra) {
    MatmulFusion fusion = plan->shape.fusion;
    if (fusion == MATMUL_BIAS || fusion == MATMUL_BIAS_GELU)
        set_attribute(plan->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, (const void *)extra->bias);
    if (fusion == MATMUL_COLUMN_SUMS)
        set_attribute(plan->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, (void *)extra->column_sums);
    if (fusion == MATMUL_BIAS_GELU || fusion == MATMUL_GELU_BACKWARD)
        set_attribute(plan->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, (void *)extra->gelu_inp);
}

static cublasLtMatmulDesc_t describe_product(const MatmulShape *shape) {
    cublasLtMatmulDesc_t product;
    cublas_check(cublasLtMatmulDescCreate(&product, COMPUTE_TYPE, CUDA_R_32F));
    set_attribute(product, CUBLASLT_MATMUL_DESC_TRANSA, shape->b_is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set_attribute(product, CUBLASLT_MATMUL_DESC_TRANSB, shape->a_is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set_attribute(product, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(shape->fusion));
    if (shape->fusion == MATMUL_BIAS || shape->fusion == MATMUL_BIAS_GELU)
        set_attribute(product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, NUMBER_TYPE);
    if (shape->fusion == MATMUL_COLUMN_SUMS) set_attribute(product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F);
    if (shape->fusion == MATMUL_BIAS_GELU || shape->fusion == MATMUL_GELU_BACKWARD)
        set_attribute(product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, (int64_t)shape->n);
    return product;
}

// A row-major (rows,columns) matrix as the library sees it.
static cublasLtMatrixLayout_t describe_matrix(cudaDataType_t type, int rows, int columns, int stride) {
    cublasLtMatrixLayout_t layout;
    cublas_check(
        cublasLtMatrixLayoutCreate(&layout, type, (uint64_t)columns, (uint64_t)rows, stride ? stride : columns));
    return layout;
}

// Without being told, cuBLASLt may choose a kernel for pointers that are multiples of 256 bytes; blocks of the head's
// rows may begin anywhere.
static cublasLtMatmulPreference_t describe_memory(void) {
    const uint32_t alignment = 16;
    cublasLtMatmulPreference_t preference;
    cublas_check(cublasLtMatmulPreferenceCreate(&preference));
    cublas_check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                      &CUBLAS_WORKSPACE_BYTES, sizeof CUBLAS_WORKSPACE_BYTES));
    for (cublasLtMatmulPreferenceAttributes_t matrix :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
        cublas_check(cublasLtMatmulPreferenceSetAttribute(preference, matrix, &alignment, sizeof alignment));
    return preference;
}

// A product that the library does not have is not an error yet; any other failure is.
static void choose_algorithm(Plan *plan) {
    cublasLtMatmulPreference_t preference = describe_memory();
    cublasLtMatmulHeuristicResult_t best;
    int found = 0;
    memset(&best, 0, sizeof best);
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(library_handle(), plan->product, plan->A, plan->B, plan->D,
                                                           plan->D, preference, 1, &best, &found);
    cublas_check(cublasLtMatmulPreferenceDestroy(preference));
    plan->exists = status == CUBLAS_STATUS_SUCCESS && found > 0 && best.state == CUBLAS_STATUS_SUCCESS;
    if (status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE)
        check_product(status, &plan->shape);
    plan->algorithm = best.algo, plan->workspace_bytes = best.workspaceSize;
}

static Plan make_plan(const MatmulShape *shape) {
    Plan plan;
    memset(&plan, 0, sizeof plan);
    plan.shape = *shape;
    plan.product = describe_product(shape);
    int a_rows = shape->a_is_transposed ? shape->k : shape->m, a_columns = shape->m + shape->k - a_rows;
    int b_rows = shape->b_is_transposed ? shape->n : shape->k, b_columns = shape->n + shape->k - b_rows;
    plan.A = describe_matrix(NUMBER_TYPE, b_rows, b_columns, shape->b_stride);
    plan.B = describe_matrix(NUMBER_TYPE, a_rows, a_columns, shape->a_stride);
    plan.D = describe_matrix(shape->out_is_float ? CUDA_R_32F : NUMBER_TYPE, shape->m, shape->n, shape->out_stride);
    // The choice asks for aligned pointers; the real ones come with each product.
    MatmulExtra aligned = {(const floatX *)cublas_workspace(), (floatX *)cublas_workspace(),
                           (float *)cublas_workspace()};
    set_pointers(&plan, &aligned);
    choose_algorithm(&plan);
    return plan;
}

static const Plan *find_plan(const MatmulShape *shape) {
    static std::vector<Plan> plans;
    for (const Plan &plan : plans)
        if (!memcmp(&plan.shape, shape, sizeof *shape)) return &plan;
    plans.push_back(make_plan(shape));
    return &plans.back();
}

bool matmul_gpu_fuses_gelu(void) {
    int device, major;
    cuda_check(cudaGetDevice(&device));
    cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    return major >= 9;
}

bool matmul_gpu_has(const MatmulShape *shape) {
    return find_plan(shape)->exists;
}

void matmul_gpu(void *out, const floatX *a, const floatX *b, float beta, const MatmulShape *shape,
                const MatmulExtra *extra, cudaStream_t stream) {
    const Plan *plan = find_plan(shape);
    const float alpha = 1;
    if (!plan->exists) check_product(CUBLAS_STATUS_NOT_SUPPORTED, shape);
    if (extra) set_pointers(plan, extra);
    check_product(cublasLtMatmul(library_handle(), plan->product, &alpha, b, plan->A, a, plan->B, &beta, out, plan->D,
                                 out, plan->D, &plan->algorithm, cublas_workspace(), plan->workspace_bytes, stream),
                  shape);
}
