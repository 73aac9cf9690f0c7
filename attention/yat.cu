// Exact yat on the GPU, with either normaliser.
#include "yat.cuh"

extern "C" {
extern const Attention attention_yat;
}

// The same mechanism with either normaliser; sizes are the same for both.
static constexpr AttentionGPU by_sum = quadratic_gpu_attention<YatScore<NORMALIZER_KERNEL, false>>(&attention_yat),
                              by_softmax = quadratic_gpu_attention<YatScore<NORMALIZER_SOFTMAX, false>>(&attention_yat);

static const AttentionGPU *chosen(const AttentionConfig *config) {
    return config->normalizer == NORMALIZER_SOFTMAX ? &by_softmax : &by_sum;
}

static void forward(floatX *out, float *saved, const floatX *qkv, const float *constants, const float *parameters,
                    float *work, const AttentionConfig *config, cudaStream_t stream) {
    chosen(config)->forward(out, saved, qkv, constants, parameters, work, config, stream);
}

static void backward(floatX *dqkv, float *dparameters, const floatX *dout, const floatX *qkv, const floatX *out,
                     const float *saved, const float *constants, const float *parameters, float *work,
                     const AttentionConfig *config, cudaStream_t stream) {
    chosen(config)->backward(dqkv, dparameters, dout, qkv, out, saved, constants, parameters, work, config, stream);
}

static void step(floatX *out, float *cache, int pos, int n, const floatX *qkv, const float *constants,
                 const float *parameters, float *work, const AttentionConfig *config, cudaStream_t stream) {
    chosen(config)->step(out, cache, pos, n, qkv, constants, parameters, work, config, stream);
}

static void decode(floatX *out, float *cache, const int *position, const floatX *qkv, const float *constants,
                   const float *parameters, float *work, const AttentionConfig *config, cudaStream_t stream) {
    chosen(config)->decode(out, cache, position, qkv, constants, parameters, work, config, stream);
}

static constexpr AttentionGPU either(void) {
    AttentionGPU gpu = by_sum;
    gpu.forward = forward, gpu.backward = backward, gpu.step = step, gpu.decode = decode;
    return gpu;
}
extern const AttentionGPU attention_gpu_yat = either();
