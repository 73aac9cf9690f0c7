// Softmax attention: P = softmax over the keys j <= i of q k^T / sqrt(HS), o = P v.
#include "quadratic.h"

static const QuadraticKernel kernel = {.scaled = 1, .normalizer = NORMALIZER_SOFTMAX};

static const QuadraticKernel *kernel_of(const AttentionConfig *config) {
    (void)config;
    return &kernel;
}

QUADRATIC_ATTENTION_FUNCTIONS(kernel_of)

const Attention attention_softmax = {
    .name = "softmax",
    .summary = "softmax over scaled dot products, as in GPT-2",
    .uses = USES_WINDOW,
    QUADRATIC_ATTENTION_FIELDS,
};
