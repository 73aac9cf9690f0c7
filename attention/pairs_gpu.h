// The quadratic core of maps on the GPU: attention with the scores
//     <outer(q), outer(k)> <u_q, u_k>^2
// of rows that have two parts, the features of a map and the vector u that the map leaves in x. The equivalent linear
// attention would have a state of HS^2 / 2 columns for each feature.
//
// Rows of the features' width, thousands of numbers, do not fit into the shared memory of quadratic.cuh's tiles, and
// neither do their gradients into registers. Here cuBLAS multiplies blocks of queries with all keys that they see, and
// a kernel turns the two dot products of a pair into its score. Memory: O(T).
#ifndef ATTENTION_PAIRS_GPU_H
#define ATTENTION_PAIRS_GPU_H

#include "linear_gpu.h"

// The map has no inner features; its `gradient` finds in d->x what reaches u, and adds to it.
size_t pairs_gpu_saved_size(const LinearMapGPU *map, const AttentionConfig *config);
size_t pairs_gpu_work_size(const LinearMapGPU *map, const AttentionConfig *config);
size_t pairs_gpu_cache_size(const LinearMapGPU *map, const AttentionConfig *config);
void pairs_gpu_forward(const LinearMapGPU *map, floatX *out, float *saved, const floatX *qkv, const float *constants,
                       const float *parameters, float *work, const AttentionConfig *config, cudaStream_t stream);
void pairs_gpu_backward(const LinearMapGPU *map, floatX *dqkv, float *dparameters, const floatX *dout,
                        const floatX *qkv, const floatX *out, const float *saved, const float *constants,
                        const float *parameters, float *work, const AttentionConfig *config, cudaStream_t stream);
void pairs_gpu_step(const LinearMapGPU *map, floatX *out, float *cache, int pos, int n, const floatX *qkv,
                    const float *constants, const float *parameters, float *work, const AttentionConfig *config,
                    cudaStream_t stream);

#endif
