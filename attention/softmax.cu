// Softmax attention on the GPU: the score is the dot product.
#include "quadratic.cuh"

extern "C" {
extern const Attention attention_softmax;
}

extern const AttentionGPU attention_gpu_softmax = {
    &attention_softmax,
    quadratic_gpu_saved_size,
    quadratic_gpu_work_size,
    quadratic_gpu_cache_size,
    quadratic_gpu_forward<SoftmaxScore>,
    quadratic_gpu_backward<SoftmaxScore>,
    quadratic_gpu_step<SoftmaxScore>,
    quadratic_gpu_check,
};
