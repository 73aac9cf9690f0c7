// Exact yat on the GPU, with either normaliser.
#include "yat.cuh"

extern "C" {
extern const Attention attention_yat;
}

typedef YatScore<NORMALIZER_KERNEL, false> KernelScore;
typedef YatScore<NORMALIZER_SOFTMAX, false> SoftmaxOfKernelScore;

static void forward(floatX *out, float *saved, const floatX *qkv, const float *constants, const float *parameters,
                    float *work, const AttentionConfig *config, cudaStream_t stream) {
    auto function = config->normalizer == NORMALIZER_SOFTMAX ? quadratic_gpu_forward<SoftmaxOfKernelScore>
                                                             : quadratic_gpu_forward<KernelScore>;
    function(out, saved, qkv, constants, parameters, work, config, stream);
}

static void backward(floatX *dqkv, float *dparameters, const floatX *dout, const floatX *qkv, const floatX *out,
                     const float *saved, const float *constants, const float *parameters, float *work,
                     const AttentionConfig *config, cudaStream_t stream) {
    auto function = config->normalizer == NORMALIZER_SOFTMAX ? quadratic_gpu_backward<SoftmaxOfKernelScore>
                                                             : quadratic_gpu_backward<KernelScore>;
    function(dqkv, dparameters, dout, qkv, out, saved, constants, parameters, work, config, stream);
}

static void step(floatX *out, float *cache, int pos, int n, const floatX *qkv, const float *constants,
                 const float *parameters, float *work, const AttentionConfig *config, cudaStream_t stream) {
    auto function = config->normalizer == NORMALIZER_SOFTMAX ? quadratic_gpu_step<SoftmaxOfKernelScore>
                                                             : quadratic_gpu_step<KernelScore>;
    function(out, cache, pos, n, qkv, constants, parameters, work, config, stream);
}

extern const AttentionGPU attention_gpu_yat = {
    &attention_yat, quadratic_gpu_saved_size, quadratic_gpu_work_size, quadratic_gpu_cache_size, forward, backward,
    step,           quadratic_gpu_check,
};
