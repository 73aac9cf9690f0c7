// Attention with the scores <outer(q), outer(k)> <inner(q), inner(k)>^2 of a map whose inner features are unit vectors,
// by the quadratic core: the equivalent linear attention would have a state of inner^2 / 2 columns for each outer
// feature.
#ifndef ATTENTION_PAIRS_H
#define ATTENTION_PAIRS_H

#include "linear.h"

size_t pairs_saved_size(const LinearMap *map, const AttentionConfig *config);
size_t pairs_work_size(const LinearMap *map, const AttentionConfig *config);
size_t pairs_cache_size(const LinearMap *map, const AttentionConfig *config);
void pairs_attention_forward(const LinearMap *map, real *out, real *saved, const real *qkv, const real *constants,
                             const real *parameters, real *work, const AttentionConfig *config);
void pairs_attention_backward(const LinearMap *map, real *dqkv, real *dparameters, const real *dout, const real *qkv,
                              const real *out, const real *saved, const real *constants, const real *parameters,
                              real *work, const AttentionConfig *config);
void pairs_attention_step(const LinearMap *map, real *out, real *cache, int pos, int n, const real *qkv,
                          const real *constants, const real *parameters, real *work, const AttentionConfig *config);
double pairs_flops(const LinearMap *map, const AttentionConfig *config);

#endif
