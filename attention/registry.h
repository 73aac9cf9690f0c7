// The registry: one line per mechanism, in the order of tables and messages. The tables of the CPU (attention.c), of
// the GPU (attention_gpu.cu) and of the naive twins (naive_*.c) are made from it, and the tests go through it.
// X(symbol): attention/symbol.c defines attention_symbol, attention/symbol.cu attention_gpu_symbol.
#ifndef ATTENTION_REGISTRY_H
#define ATTENTION_REGISTRY_H

// clang-format off
#define QUADRATIC_ATTENTIONS(X) \
    X(softmax) \
    X(yat) \
    X(yat_spherical)
#define LINEAR_ATTENTIONS(X) \
    X(uniform) \
    X(elu) \
    X(cosformer) \
    X(favor) \
    X(rff) \
    X(slay)
// clang-format on
#define ATTENTIONS(X) QUADRATIC_ATTENTIONS(X) LINEAR_ATTENTIONS(X)

#endif
