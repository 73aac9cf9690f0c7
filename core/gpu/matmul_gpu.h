// Matrix products on the device by cuBLASLt, with bias and GELU fused where the library can. All matrices are
// row-major, as in core/math/matmul.h. The choice of a kernel is asked for once per shape and kept.
//
// Products of floatX are summed in fp32. The fp32 build computes them in full fp32, or in TF32 when built with
// -DALLOW_TF32.
#ifndef CORE_MATMUL_GPU_H
#define CORE_MATMUL_GPU_H

#include "cuda_common.h"

typedef enum {
    MATMUL_PLAIN,
    MATMUL_BIAS,          // + bias (n)
    MATMUL_BIAS_GELU,     // gelu(product + bias); what went into the GELU goes to gelu_inp (m,n)
    MATMUL_GELU_BACKWARD, // product * gelu'(gelu_inp (m,n))
    MATMUL_COLUMN_SUMS,   // along with the product: column_sums (n) = the sum of b's k rows
} MatmulFusion;

typedef struct {
    int m, n, k;                          // out (m,n) = beta * out + a (m,k) b (k,n)
    int a_is_transposed, b_is_transposed; // stored as (k,m), (n,k)
    int out_is_float;                     // out is float, else floatX
    int out_stride, a_stride, b_stride;   // numbers between rows in memory; 0: rows follow each other
    MatmulFusion fusion;
} MatmulShape;

static inline MatmulShape matmul_shape(int m, int n, int k, MatmulFusion fusion) {
    return {m, n, k, 0, 0, 0, 0, 0, 0, fusion};
}

typedef struct { // what the fusion at hand needs
    const floatX *bias;
    floatX *gelu_inp;
    float *column_sums;
} MatmulExtra;

// Whether a product with a GELU is one kernel here. Below sm_90 cuBLASLt offers it in bf16 too, but runs a second
// kernel for it that is slower than one of ours.
bool matmul_gpu_fuses_gelu(void);
// Whether this GPU and library have the product with its fusion; where not, the caller uses a kernel of its own.
bool matmul_gpu_has(const MatmulShape *shape);
void matmul_gpu(void *out, const floatX *a, const floatX *b, float beta, const MatmulShape *shape,
                const MatmulExtra *extra, cudaStream_t stream);

#endif
