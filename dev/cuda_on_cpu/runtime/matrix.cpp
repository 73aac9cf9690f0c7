// Matrix products on OpenBLAS, with operands of any of cuBLAS's number types.
#include "matrix.h"
#include "device_math.h"

#include <cblas.h>
#include <cuda_fp16.h>

namespace cuda_on_cpu {

size_t element_bytes(cudaDataType type) {
    switch (type) {
    case CUDA_R_32F:
        return 4;
    case CUDA_R_16BF:
    case CUDA_R_16F:
        return 2;
    default:
        return 0;
    }
}

static float from_bfloat16(uint16_t bits) {
    return same_bits<float>((uint32_t)bits << 16);
}
static uint16_t to_bfloat16(float value) { // nearest, ties to even
    uint32_t bits = same_bits<uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
// TF32 keeps ten bits of the fraction. NVIDIA does not say whether a library rounds what it gives to the tensor cores,
// which themselves ignore the other bits: a number becomes the nearest one then, or the next one towards zero.
static float to_tf32(float value, bool truncates) {
    uint32_t bits = same_bits<uint32_t>(value);
    if ((bits & 0x7f800000u) == 0x7f800000u) return value;
    if (!truncates) bits += 0x0fff + (bits >> 13 & 1);
    return same_bits<float>(bits & ~0x1fffu);
}

float load_number(const void *start, cudaDataType type, size_t index) {
    if (type == CUDA_R_32F) return ((const float *)start)[index];
    if (type == CUDA_R_16BF) return from_bfloat16(((const uint16_t *)start)[index]);
    return __half2float(((const __half *)start)[index]);
}
void store_number(void *start, cudaDataType type, size_t index, float value) {
    if (type == CUDA_R_32F)
        ((float *)start)[index] = value;
    else if (type == CUDA_R_16BF)
        ((uint16_t *)start)[index] = to_bfloat16(value);
    else
        ((__half *)start)[index] = __float2half_rn(value);
}

Matrix Matrix::offset_by(int64_t elements) const {
    Matrix moved = *this;
    moved.start = (const char *)start + elements * (int64_t)element_bytes(type);
    return moved;
}

static size_t span_bytes(const Matrix &matrix) {
    if (!matrix.rows || !matrix.columns) return 0;
    return (size_t)((matrix.columns - 1) * matrix.leading + matrix.rows) * element_bytes(matrix.type);
}

void Matrix::require_writable(const char *what) const {
    if ((uintptr_t)start % element_bytes(type))
        fault("misaligned access", nowhere, "%s: %p is not aligned to its %zu-byte numbers", what, start,
              element_bytes(type));
    require_device_range(start, span_bytes(*this), what);
}
void Matrix::require_readable(const char *what) const {
    require_writable(what);
    for (int64_t column = 0; column < columns; column++)
        checker_read(offset_by(column * leading).start, (size_t)rows * element_bytes(type), what);
}
void Matrix::mark_written() const {
    for (int64_t column = 0; column < columns; column++)
        checker_written(offset_by(column * leading).start, (size_t)rows * element_bytes(type));
}

std::vector<float> Matrix::packed(bool as_tf32) const {
    std::vector<float> numbers((size_t)(rows * columns));
    bool truncates = tf32_truncates();
    for (int64_t j = 0; j < columns; j++)
        for (int64_t i = 0; i < rows; i++) {
            float value = load_number(start, type, (size_t)(j * leading + i));
            numbers[(size_t)(j * rows + i)] = as_tf32 ? to_tf32(value, truncates) : value;
        }
    return numbers;
}

static const char *arithmetic_of(const Product &product) {
    if (product.a.type == CUDA_R_16BF) return "bf16";
    if (product.a.type == CUDA_R_16F) return "fp16";
    return product.as_tf32 ? "tf32" : "fp32";
}

void require_operands(const Product &product) {
    std::string what = product.what;
    checker_multiplies(product.what, arithmetic_of(product), 2.0 * product.m * product.n * product.k);
    product.a.require_readable((what + ", operand A").c_str());
    product.b.require_readable((what + ", operand B").c_str());
    if (product.beta != 0) product.c.require_readable((what + ", operand C").c_str());
}

std::vector<float> multiply(const Product &p) {
    std::vector<float> result;
    if (p.beta != 0)
        result = p.c.packed(false);
    else
        result.assign((size_t)(p.m * p.n), 0.0f);
    if (!p.m || !p.n) return result;
    if (!p.k) {
        for (float &value : result) value *= p.beta;
        return result;
    }
    std::vector<float> a = p.a.packed(p.as_tf32), b = p.b.packed(p.as_tf32);
    cblas_sgemm(CblasColMajor, p.transpose_a ? CblasTrans : CblasNoTrans, p.transpose_b ? CblasTrans : CblasNoTrans,
                (blasint)p.m, (blasint)p.n, (blasint)p.k, p.alpha, a.data(), (blasint)p.a.rows, b.data(),
                (blasint)p.b.rows, p.beta, result.data(), (blasint)p.m);
    return result;
}

} // namespace cuda_on_cpu
