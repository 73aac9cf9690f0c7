// Softmax attention: P = softmax over the keys j <= i of q k^T / sqrt(HS), o = P v.
#include "quadratic.h"

static const QuadraticKernel kernel = {.scaled = 1, .normalizer = NORMALIZER_SOFTMAX};

static void forward(real *out, real *saved, const real *qkv, const real *constants, real *work,
                    const AttentionConfig *config) {
    (void)constants;
    quadratic_forward(&kernel, out, saved, qkv, work, config);
}

static void backward(real *dqkv, const real *dout, const real *qkv, const real *out, const real *saved,
                     const real *constants, real *work, const AttentionConfig *config) {
    (void)constants;
    quadratic_backward(&kernel, dqkv, dout, qkv, out, saved, work, config);
}

static void step(real *out, real *cache, int pos, int n, const real *qkv, const real *constants, real *work,
                 const AttentionConfig *config) {
    (void)constants;
    quadratic_step(&kernel, out, cache, pos, n, qkv, work, config);
}

const Attention attention_softmax = {
    .name = "softmax",
    .summary = "softmax over scaled dot products, as in GPT-2",
    .saved_size = quadratic_saved_size,
    .work_size = quadratic_work_size,
    .cache_size = quadratic_cache_size,
    .forward = forward,
    .backward = backward,
    .step = step,
    .flops = quadratic_flops,
};
