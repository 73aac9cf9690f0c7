// Softmax attention on the GPU: the score is the dot product.
#include "quadratic.cuh"

extern "C" {
extern const Attention attention_softmax;
}

static constexpr AttentionGPU tiled = {
    &attention_softmax,
    quadratic_gpu_saved_size,
    quadratic_gpu_work_size,
    quadratic_gpu_cache_size,
    quadratic_gpu_forward<SoftmaxScore>,
    quadratic_gpu_backward<SoftmaxScore>,
    quadratic_gpu_step<SoftmaxScore>,
    quadratic_gpu_check,
};

extern const AttentionGPU attention_gpu_softmax_tiled = tiled;

// With cuDNN, training in bf16 goes through softmax_cudnn.cu instead.
#if !defined(USE_CUDNN) || !defined(PRECISION_BF16)
extern const AttentionGPU attention_gpu_softmax = tiled;
#endif
