// The attention layer on the GPU. Names, options, constants and flop counts are the C twin's; what is here runs on the
// device. All pointers are device memory, the configuration's `positions` too; nothing synchronises, all work goes to
// `stream`; sizes are in floats.
// Results are the same from run to run, bit for bit: no float atomics.
#ifndef ATTENTION_ATTENTION_GPU_H
#define ATTENTION_ATTENTION_GPU_H

#include "core/gpu/cuda_common.h"

extern "C" {
#include "stack.h"
}

struct AttentionGPU {
    const Attention *cpu;                          // the C twin
    size_t (*saved_size)(const AttentionConfig *); // kept from forward to backward, per layer: O(T)
    size_t (*work_size)(const AttentionConfig *);  // scratch, one for all layers; covers forward, backward and step
    // Decode state per layer and sequence, for max_T positions; its address must be a multiple of 16 bytes, its size
    // need not be.
    size_t (*cache_size)(const AttentionConfig *);
    // qkv (B,T,3C) -> out (B,T,C); `saved` may be NULL when no backward will follow. constants: one layer's, as `pack`
    // made them; parameters: its trained numbers, in float whatever floatX is.
    void (*forward)(floatX *out, float *saved, const floatX *qkv, const float *constants, const float *parameters,
                    float *work, const AttentionConfig *, cudaStream_t stream);
    // Overwrites dqkv (B,T,3C), adds to dparameters.
    void (*backward)(floatX *dqkv, float *dparameters, const floatX *dout, const floatX *qkv, const floatX *out,
                     const float *saved, const float *constants, const float *parameters, float *work,
                     const AttentionConfig *, cudaStream_t stream);
    // One sequence: positions pos .. pos+n-1, qkv (n,3C) -> out (n,C), like the C twin's step.
    void (*step)(floatX *out, float *cache, int pos, int n, const floatX *qkv, const float *constants,
                 const float *parameters, float *work, const AttentionConfig *, cudaStream_t stream);
    // Refuses what the C twin can do and the device code cannot: 0, or -1 and why. NULL: nothing is refused.
    int (*check)(const AttentionConfig *, char *why, size_t size);
    // Where there are several implementations: which one trains this configuration, and why. NULL: there is only one.
    void (*describe)(const AttentionConfig *, char *text, size_t size) = NULL;
    // Adds the rows that the device has counted since the last call to the C twin's floored_rows; waits for the stream.
    // NULL: nothing is counted.
    void (*collect_floored_rows)(cudaStream_t stream) = NULL;
    // What the functions above read in place of the constants that the C twin's `draw` made: rearranged once, before
    // the first pass, and again whenever the parameters have changed. NULL: they read those as they are.
    size_t (*packed_size)(const AttentionConfig *) = NULL;
    void (*pack)(float *packed, const float *constants, const float *parameters, const AttentionConfig *,
                 cudaStream_t stream) = NULL;
    // `step` for one position that is in device memory, so that a captured graph serves every position. All launches
    // and their sizes are the same for every position.
    void (*decode)(floatX *out, float *cache, const int *position, const floatX *qkv, const float *constants,
                   const float *parameters, float *work, const AttentionConfig *, cudaStream_t stream) = NULL;
    // Which of USES_DECAY, USES_WINDOW, USES_LEARN, USES_DOCUMENTS the kernels have; USES_FUSION: fusion flat.
    unsigned supports = 0;
};

extern const AttentionGPU *const attention_gpu_registry[]; // ends with NULL
const AttentionGPU *attention_gpu_find(const char *name);  // NULL when there is none of that name
// The kernels of an attention; NULL and why when there are none for it.
const AttentionGPU *attention_gpu_of(const StackEntry *entry, char *why, size_t size);

#endif
