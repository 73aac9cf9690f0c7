// The quadratic core of slay's exact polynomial on the GPU: attention with the scores
//     <outer(q), outer(k)> <u_q, u_k>^2
// of rows that have two parts, random features and the unit vector u (slay_exact.cu). The equivalent linear attention
// would have a state of HS^2 / 2 columns for each feature.
//
// Rows of the features' width, thousands of numbers, do not fit into the shared memory of quadratic.cuh's tiles, and
// neither do their gradients into registers. Here cuBLAS multiplies blocks of queries with all keys that they see, and
// a kernel turns the two dot products of a pair into its score. Memory: O(T).
#ifndef ATTENTION_PAIRS_GPU_H
#define ATTENTION_PAIRS_GPU_H

#include "attention_gpu.h"

// The functions of struct AttentionGPU; `packed` is slay_pack's.
size_t pairs_gpu_saved_size(const AttentionConfig *config);
size_t pairs_gpu_work_size(const AttentionConfig *config);
size_t pairs_gpu_cache_size(const AttentionConfig *config);
void pairs_gpu_forward(floatX *out, float *saved, const floatX *qkv, const float *packed, const float *parameters,
                       float *work, const AttentionConfig *config, cudaStream_t stream);
void pairs_gpu_backward(floatX *dqkv, float *dparameters, const floatX *dout, const floatX *qkv, const floatX *out,
                        const float *saved, const float *packed, const float *parameters, float *work,
                        const AttentionConfig *config, cudaStream_t stream);
void pairs_gpu_step(floatX *out, float *cache, int pos, int n, const floatX *qkv, const float *packed,
                    const float *parameters, float *work, const AttentionConfig *config, cudaStream_t stream);
void pairs_gpu_decode(floatX *out, float *cache, const int *position, const floatX *qkv, const float *packed,
                      const float *parameters, float *work, const AttentionConfig *config, cudaStream_t stream);

// Numbers of scratch that the heads and sequences of one group may take, unless a single one takes more: 256 MB. Tests
// make it small, to have many groups.
enum { PAIRS_GROUP_NUMBERS = 1 << 26 };
extern size_t pairs_gpu_group_numbers;

#endif
