// Softmax attention on the GPU: the score is the dot product.
#include "quadratic.cuh"

extern "C" {
extern const Attention attention_softmax;
}

extern const AttentionGPU attention_gpu_softmax_tiled = quadratic_gpu_attention<SoftmaxScore>(&attention_softmax);

// With cuDNN, training in bf16 goes through softmax_cudnn.cu instead.
#if !defined(USE_CUDNN) || !defined(PRECISION_BF16)
extern const AttentionGPU attention_gpu_softmax = quadratic_gpu_attention<SoftmaxScore>(&attention_softmax);
#endif
