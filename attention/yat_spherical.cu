// Spherical yat on the GPU: the yat kernel of unit vectors.
#include "yat.cuh"

extern "C" {
extern const Attention attention_yat_spherical;
}

typedef YatScore<NORMALIZER_KERNEL, true> SphericalScore;

extern const AttentionGPU attention_gpu_yat_spherical = {
    &attention_yat_spherical,
    quadratic_gpu_saved_size,
    quadratic_gpu_work_size,
    quadratic_gpu_cache_size,
    quadratic_gpu_forward<SphericalScore>,
    quadratic_gpu_backward<SphericalScore>,
    quadratic_gpu_step<SphericalScore>,
    quadratic_gpu_check,
};
