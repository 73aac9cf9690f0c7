// Column-major matrices in device memory, as cuBLAS sees them, and their product.
#ifndef CUDA_ON_CPU_MATRIX_H
#define CUDA_ON_CPU_MATRIX_H

#include "runtime.h"

#include <vector>

namespace cuda_on_cpu {

size_t element_bytes(cudaDataType type); // 0 for a type this runtime does not know
float load_number(const void *start, cudaDataType type, size_t index);
void store_number(void *start, cudaDataType type, size_t index, float value);

struct Matrix {
    const void *start;
    cudaDataType type;
    int64_t rows, columns, leading; // element (i, j) is number i + j * leading

    Matrix offset_by(int64_t elements) const;
    void require_readable(const char *what) const; // in one live allocation, aligned, initialised
    void require_writable(const char *what) const;
    void mark_written() const;
    std::vector<float> packed(bool as_tf32) const; // rows x columns, without gaps
};

struct Product { // alpha * op(a) * op(b) + beta * c
    bool transpose_a, transpose_b;
    float alpha, beta;
    Matrix a, b, c;
    int64_t m, n, k;
    bool as_tf32;
    const char *what; // the library's call, for messages
};
void require_operands(const Product &product);
// The m x n result as floats, column after column. Operands have been checked.
std::vector<float> multiply(const Product &product);

} // namespace cuda_on_cpu

#endif
