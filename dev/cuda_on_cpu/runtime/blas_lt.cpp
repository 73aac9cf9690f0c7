// cuBLASLt: matrix products with an epilogue (bias, GELU, their gradients).
#include "matrix.h"

#include <algorithm>
#include <cmath>
#include <cublasLt.h>

using namespace cuda_on_cpu;

namespace {

struct Layout {
    cudaDataType type;
    uint64_t rows, columns;
    int64_t leading;
    int32_t batch;
    int64_t stride;
};
constexpr int32_t same_as_output = -1;
struct Description {
    cublasComputeType_t compute;
    cudaDataType scale_type;
    int32_t transpose_a, transpose_b; // cublasOperation_t
    uint32_t epilogue;
    void *bias, *aux;
    int64_t aux_leading;
    int32_t bias_type, aux_type; // cudaDataType or same_as_output
    int32_t pointer_mode;
};
struct Preference {
    uint64_t workspace_bytes;
    uint32_t alignment[4]; // of A, B, C and D in bytes
};

// The handles point to memory that cublasLtMatmulDescInit and its kin may also be given by the caller: ours must fit.
static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "a layout fits its opaque type");
static_assert(sizeof(Description) <= sizeof(cublasLtMatmulDescOpaque_t), "a description fits its opaque type");
static_assert(sizeof(Preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t), "a preference fits its opaque type");

// ---- what an epilogue does
struct Epilogue {
    bool known, adds_bias, gelu, saves_gelu_input, gelu_gradient, bias_gradient;
};
Epilogue epilogue_of(uint32_t number) {
    switch (number) {
    case CUBLASLT_EPILOGUE_DEFAULT:
        return {true, false, false, false, false, false};
    case CUBLASLT_EPILOGUE_BIAS:
        return {true, true, false, false, false, false};
    case CUBLASLT_EPILOGUE_GELU:
        return {true, false, true, false, false, false};
    case CUBLASLT_EPILOGUE_GELU_BIAS:
        return {true, true, true, false, false, false};
    case CUBLASLT_EPILOGUE_GELU_AUX:
        return {true, false, true, true, false, false};
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
        return {true, true, true, true, false, false};
    case CUBLASLT_EPILOGUE_DGELU:
        return {true, false, false, false, true, false};
    case CUBLASLT_EPILOGUE_DGELU_BGRAD:
        return {true, false, false, false, true, true};
    case CUBLASLT_EPILOGUE_BGRADA:
    case CUBLASLT_EPILOGUE_BGRADB:
        return {true, false, false, false, false, true};
    default:
        return {false, false, false, false, false, false};
    }
}

constexpr float gelu_scale = 0.7978845608028654f, gelu_cube = 0.044715f;
float gelu(float x) {
    return 0.5f * x * (1 + tanhf(gelu_scale * (x + gelu_cube * x * x * x)));
}
float gelu_slope(float x) {
    float t = tanhf(gelu_scale * (x + gelu_cube * x * x * x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * gelu_scale * (1 + 3 * gelu_cube * x * x);
}

// ---- one product with its operands resolved
struct Matmul {
    Description description;
    Layout a, b, c, d;
    const void *start_a, *start_b, *start_c;
    void *start_d;
    int64_t m, n, k;
    float alpha, beta;
};

Matrix matrix_of(const Layout &layout, const void *start, int batch) {
    Matrix whole = {start, layout.type, (int64_t)layout.rows, (int64_t)layout.columns, layout.leading};
    return whole.offset_by(batch * layout.stride);
}

int64_t bias_length(const Matmul &p) {
    return p.description.epilogue == CUBLASLT_EPILOGUE_BGRADB ? p.n : p.m;
}

void add_bias(std::vector<float> &result, const Matmul &p) {
    const Description &with = p.description;
    checker_read(with.bias, (size_t)p.m * element_bytes((cudaDataType)with.bias_type), "cublasLtMatmul, bias");
    for (int64_t j = 0; j < p.n; j++)
        for (int64_t i = 0; i < p.m; i++)
            result[(size_t)(j * p.m + i)] += load_number(with.bias, (cudaDataType)with.bias_type, (size_t)i);
}

Matrix aux_matrix(const Matmul &p) {
    return {p.description.aux, (cudaDataType)p.description.aux_type, p.m, p.n, p.description.aux_leading};
}

// GELU sees its input as the auxiliary buffer keeps it, rounded to that type.
void apply_gelu(std::vector<float> &result, const Matmul &p, bool saves_input) {
    Matrix aux = aux_matrix(p);
    if (saves_input) aux.require_writable("cublasLtMatmul, auxiliary output");
    for (int64_t j = 0; j < p.n; j++)
        for (int64_t i = 0; i < p.m; i++) {
            float &x = result[(size_t)(j * p.m + i)];
            if (saves_input) {
                size_t at = (size_t)(j * aux.leading + i);
                store_number(p.description.aux, aux.type, at, x);
                x = load_number(aux.start, aux.type, at);
            }
            x = gelu(x);
        }
    if (saves_input) aux.mark_written();
}

void apply_gelu_gradient(std::vector<float> &result, const Matmul &p) {
    Matrix aux = aux_matrix(p);
    aux.require_readable("cublasLtMatmul, auxiliary input");
    for (int64_t j = 0; j < p.n; j++)
        for (int64_t i = 0; i < p.m; i++)
            result[(size_t)(j * p.m + i)] *=
                gelu_slope(load_number(aux.start, aux.type, (size_t)(j * aux.leading + i)));
}

// BGRADA sums op(A) over k, BGRADB op(B) over k, DGELU_BGRAD the output over its columns.
std::vector<float> bias_gradient(const std::vector<float> &result, const Matmul &p) {
    std::vector<double> sums((size_t)bias_length(p), 0.0);
    const Description &with = p.description;
    if (with.epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD) {
        for (int64_t j = 0; j < p.n; j++)
            for (int64_t i = 0; i < p.m; i++) sums[(size_t)i] += result[(size_t)(j * p.m + i)];
        return std::vector<float>(sums.begin(), sums.end());
    }
    bool of_a = with.epilogue == CUBLASLT_EPILOGUE_BGRADA;
    Matrix operand = of_a ? matrix_of(p.a, p.start_a, 0) : matrix_of(p.b, p.start_b, 0);
    // op(A) is m x k and op(B) is k x n; what is stored may be the transpose.
    bool entry_is_row = of_a ? with.transpose_a == CUBLAS_OP_N : with.transpose_b != CUBLAS_OP_N;
    for (int64_t j = 0; j < operand.columns; j++)
        for (int64_t i = 0; i < operand.rows; i++)
            sums[(size_t)(entry_is_row ? i : j)] +=
                load_number(operand.start, operand.type, (size_t)(j * operand.leading + i));
    return std::vector<float>(sums.begin(), sums.end());
}

void run_one(const Matmul &p, int batch) {
    bool as_tf32 = p.description.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    Product product = {p.description.transpose_a != CUBLAS_OP_N,
                       p.description.transpose_b != CUBLAS_OP_N,
                       p.alpha,
                       p.beta,
                       matrix_of(p.a, p.start_a, batch),
                       matrix_of(p.b, p.start_b, batch),
                       matrix_of(p.c, p.start_c, batch),
                       p.m,
                       p.n,
                       p.k,
                       as_tf32,
                       "cublasLtMatmul"};
    Matrix output = matrix_of(p.d, p.start_d, batch);
    output.require_writable("cublasLtMatmul, output D");
    require_operands(product);
    std::vector<float> result = multiply(product);
    Epilogue epilogue = epilogue_of(p.description.epilogue);
    if (epilogue.adds_bias) add_bias(result, p);
    if (epilogue.gelu) apply_gelu(result, p, epilogue.saves_gelu_input);
    if (epilogue.gelu_gradient) apply_gelu_gradient(result, p);
    for (int64_t j = 0; j < p.n; j++)
        for (int64_t i = 0; i < p.m; i++)
            store_number(const_cast<void *>(output.start), output.type, (size_t)(j * output.leading + i),
                         result[(size_t)(j * p.m + i)]);
    output.mark_written();
    if (!epilogue.bias_gradient) return;
    std::vector<float> gradient = bias_gradient(result, p);
    cudaDataType type = (cudaDataType)p.description.bias_type;
    for (size_t i = 0; i < gradient.size(); i++) store_number(p.description.bias, type, i, gradient[i]);
    checker_written(p.description.bias, gradient.size() * element_bytes(type));
}

void run_matmul(const Matmul &p, void *workspace, size_t workspace_bytes) {
    DeviceMemoryAccess access;
    checker_library_call("cublasLtMatmul");
    if (options().skip) return;
    Epilogue epilogue = epilogue_of(p.description.epilogue);
    if (epilogue.adds_bias || epilogue.bias_gradient)
        require_device_range(p.description.bias,
                             (size_t)bias_length(p) * element_bytes((cudaDataType)p.description.bias_type),
                             "cublasLtMatmul, bias");
    for (int batch = 0; batch < p.d.batch; batch++) run_one(p, batch);
    if (workspace_bytes) { // the library may leave anything there
        require_device_range(workspace, workspace_bytes, "cublasLtMatmul, workspace");
        poison(workspace, workspace_bytes);
        checker_allocated(workspace, workspace_bytes);
    }
}

// ---- what the library refuses
bool leading_covers_rows(const Layout &layout) {
    return layout.leading >= (int64_t)(layout.rows ? layout.rows : 1);
}
bool shapes_agree(const Matmul &p, int64_t k_of_b) {
    bool product = p.k == k_of_b && (int64_t)p.d.rows == p.m && (int64_t)p.d.columns == p.n && p.c.rows == p.d.rows &&
                   p.c.columns == p.d.columns;
    bool batches = p.a.batch == p.d.batch && p.b.batch == p.d.batch && p.c.batch == p.d.batch;
    return product && batches && leading_covers_rows(p.a) && leading_covers_rows(p.b) && leading_covers_rows(p.c) &&
           leading_covers_rows(p.d);
}
bool types_supported(const Matmul &p) {
    const Description &with = p.description;
    bool compute = with.compute == CUBLAS_COMPUTE_32F ||
                   ((with.compute == CUBLAS_COMPUTE_32F_FAST_TF32 || with.compute == CUBLAS_COMPUTE_32F_FAST_16BF) &&
                    p.a.type == CUDA_R_32F);
    if (!compute || with.scale_type != CUDA_R_32F || p.a.type != p.b.type || p.c.type != p.d.type) return false;
    return element_bytes(p.a.type) && (p.d.type == p.a.type || p.d.type == CUDA_R_32F);
}
bool is_aligned(const void *start) { // what tensor-core kernels need; every heuristic here assumes it
    return (uintptr_t)start % 16 == 0;
}
bool epilogue_possible(const Matmul &p) {
    const Description &with = p.description;
    Epilogue epilogue = epilogue_of(with.epilogue);
    if (!epilogue.known) return false;
    if (with.epilogue != CUBLASLT_EPILOGUE_DEFAULT && !number_setting("CUDA_ON_CPU_EPILOGUES", 1, 0, 1)) return false;
    bool uses_bias = epilogue.adds_bias || epilogue.bias_gradient,
         uses_aux = epilogue.saves_gelu_input || epilogue.gelu_gradient;
    if (uses_bias &&
        (!with.bias || !is_aligned(with.bias) || (with.bias_type != p.d.type && with.bias_type != CUDA_R_32F)))
        return false;
    if (uses_aux && (!with.aux || !is_aligned(with.aux) || with.aux_type != p.d.type)) return false;
    if (uses_aux && (with.aux_leading < p.m || with.aux_leading % 8 != 0)) return false;
    return p.d.batch == 1 || !(uses_bias || uses_aux);
}

cublasStatus_t resolve(Matmul *p) {
    Description &with = p->description;
    bool ta = with.transpose_a != CUBLAS_OP_N, tb = with.transpose_b != CUBLAS_OP_N;
    p->m = (int64_t)(ta ? p->a.columns : p->a.rows);
    p->k = (int64_t)(ta ? p->a.rows : p->a.columns);
    p->n = (int64_t)(tb ? p->b.rows : p->b.columns);
    if (!shapes_agree(*p, (int64_t)(tb ? p->b.columns : p->b.rows))) return CUBLAS_STATUS_INVALID_VALUE;
    if (with.bias_type == same_as_output) with.bias_type = p->d.type;
    if (with.aux_type == same_as_output) with.aux_type = p->d.type;
    if (!types_supported(*p)) return CUBLAS_STATUS_NOT_SUPPORTED;
    return epilogue_possible(*p) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

template <typename Field> cublasStatus_t set_field(Field *field, const void *value, size_t bytes) {
    if (!value || bytes != sizeof *field) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(field, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

} // namespace

extern "C" {

// ---- handles and descriptions
cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    static char the_handle;
    *handle = (cublasLtHandle_t)&the_handle;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) {
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *description, cublasComputeType_t compute,
                                        cudaDataType scale_type) {
    *description = new cublasLtMatmulDescOpaque_t();
    Description fresh = {compute, scale_type, CUBLAS_OP_N,    CUBLAS_OP_N,    CUBLASLT_EPILOGUE_DEFAULT, nullptr,
                         nullptr, 0,          same_as_output, same_as_output, CUBLASLT_POINTER_MODE_HOST};
    memcpy((void *)*description, &fresh, sizeof fresh);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
    delete description;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t opaque, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes) {
    if (!opaque) return CUBLAS_STATUS_INVALID_VALUE;
    Description *description = (Description *)opaque;
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return set_field(&description->transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return set_field(&description->transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return set_field(&description->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return set_field(&description->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return set_field(&description->bias_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return set_field(&description->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return set_field(&description->aux_leading, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
        return set_field(&description->aux_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
        return set_field((int32_t *)&description->scale_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
        return set_field(&description->pointer_mode, value, bytes);
    default:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading) {
    *layout = new cublasLtMatrixLayoutOpaque_t();
    Layout fresh = {type, rows, columns, leading, 1, 0};
    memcpy((void *)*layout, &fresh, sizeof fresh);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    delete layout;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t opaque,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void *value,
                                                size_t bytes) {
    if (!opaque) return CUBLAS_STATUS_INVALID_VALUE;
    Layout *layout = (Layout *)opaque;
    int32_t order;
    switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
        return set_field(&layout->batch, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
        return set_field(&layout->stride, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_LD:
        return set_field(&layout->leading, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
        return set_field(&layout->rows, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
        return set_field(&layout->columns, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
        if (set_field(&order, value, bytes) != CUBLAS_STATUS_SUCCESS) return CUBLAS_STATUS_INVALID_VALUE;
        return order == CUBLASLT_ORDER_COL ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
    default:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
    *preference = new cublasLtMatmulPreferenceOpaque_t();
    Preference fresh = {0, {256, 256, 256, 256}};
    memset((void *)*preference, 0, sizeof(cublasLtMatmulPreferenceOpaque_t));
    memcpy((void *)*preference, &fresh, sizeof fresh);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    delete preference;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t bytes) {
    if (!preference) return CUBLAS_STATUS_INVALID_VALUE;
    if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        return set_field(&((Preference *)preference)->workspace_bytes, value, bytes);
    int matrix = attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
    if (matrix >= 0 && matrix < 4) return set_field(&((Preference *)preference)->alignment[matrix], value, bytes);
    return CUBLAS_STATUS_SUCCESS; // hints on reductions
}

// ---- products
static Matmul matmul_of(cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                        cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
    Matmul p = {};
    p.description = *(const Description *)description;
    p.a = *(const Layout *)a;
    p.b = *(const Layout *)b;
    p.c = *(const Layout *)c;
    p.d = *(const Layout *)d;
    return p;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int *returned) {
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!description || !a || !b || !c || !d || !preference || !results || !returned || requested < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    *returned = 0;
    Matmul p = matmul_of(description, a, b, c, d);
    cublasStatus_t status = resolve(&p);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    memset(results, 0, sizeof results[0]);
    results[0].state = CUBLAS_STATUS_SUCCESS;
    for (int matrix = 0; matrix < 4; matrix++) // the algorithm may count on all that was promised
        results[0].algo.data[matrix] = ((Preference *)preference)->alignment[matrix];
    // Some of what is allowed, as real algorithms need; a caller that hands over all of it has all of it overwritten.
    results[0].workspaceSize = std::min(((Preference *)preference)->workspace_bytes, (size_t)64 << 10);
    *returned = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description, const void *alpha,
                              const void *start_a, cublasLtMatrixLayout_t a, const void *start_b,
                              cublasLtMatrixLayout_t b, const void *beta, const void *start_c, cublasLtMatrixLayout_t c,
                              void *start_d, cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algorithm,
                              void *workspace, size_t workspace_bytes, cudaStream_t stream) {
    require_errors_seen("cublasLtMatmul");
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!description || !a || !b || !c || !d || !alpha || !beta || !start_a || !start_b || !start_d)
        return CUBLAS_STATUS_INVALID_VALUE;
    Matmul p = matmul_of(description, a, b, c, d);
    p.start_a = start_a;
    p.start_b = start_b;
    p.start_c = start_c;
    p.start_d = start_d;
    cublasStatus_t status = resolve(&p);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (p.description.pointer_mode != CUBLASLT_POINTER_MODE_HOST) return CUBLAS_STATUS_NOT_SUPPORTED;
    p.alpha = *(const float *)alpha;
    p.beta = *(const float *)beta;
    if (p.beta != 0 && !start_c) return CUBLAS_STATUS_INVALID_VALUE;
    if (!is_aligned(start_a) || !is_aligned(start_b) || !is_aligned(start_d) || (p.beta != 0 && !is_aligned(start_c)) ||
        (workspace_bytes && !is_aligned(workspace)))
        return CUBLAS_STATUS_INVALID_VALUE;
    const void *starts[] = {start_a, start_b, p.beta != 0 ? start_c : nullptr, start_d};
    for (int matrix = 0; algorithm && matrix < 4; matrix++)
        if ((uintptr_t)starts[matrix] % algorithm->data[matrix]) return CUBLAS_STATUS_INVALID_VALUE;
    if (!stream_is_known(stream)) return CUBLAS_STATUS_INVALID_VALUE;
    enqueue(stream, [=] { run_matmul(p, workspace, workspace_bytes); });
    return CUBLAS_STATUS_SUCCESS;
}

} // extern "C"
