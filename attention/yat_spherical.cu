// Spherical yat on the GPU: the yat kernel of unit vectors.
#include "yat.cuh"

extern "C" {
extern const Attention attention_yat_spherical;
}

extern const AttentionGPU attention_gpu_yat_spherical =
    quadratic_gpu_attention<YatScore<NORMALIZER_KERNEL, true>>(&attention_yat_spherical);
