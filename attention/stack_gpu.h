// The attentions of a model's layers on the GPU: of each its kernels, and what these read besides the activations.
#ifndef ATTENTION_STACK_GPU_H
#define ATTENTION_STACK_GPU_H

#include "attention_gpu.h"

typedef struct {
    const AttentionGPU *gpu;
    const float *drawn;      // constants as the C twin draws them
    float *packed;           // the same as `pack` arranges them; NULL: they are read as they are
    const float *parameters; // one block; NULL: nothing is trained
    float *dparameters;      // their gradients, where the model trains
} LayerAttention;

// Of layers 0 .. L-1; free() them. Ends the program when there are no kernels for one of them.
LayerAttention *attention_gpu_layers(const AttentionStack *stack, int L);
size_t attention_gpu_work_size(const AttentionStack *stack); // the largest of its entries
size_t attention_gpu_packed_size(const LayerAttention *layer, const AttentionConfig *config);
// Arranges the constants of all layers, or after an update those of layers whose parameters may have changed.
void attention_gpu_pack(const LayerAttention *layers, const AttentionStack *stack, int L, int only_trained,
                        cudaStream_t stream);
// The layer's constants for its functions.
static inline const float *attention_gpu_constants(const LayerAttention *layer) {
    return layer->packed ? layer->packed : layer->drawn;
}
// Adds the rows that the device has counted to the C twins' floored_rows; waits for the stream if there are such twins.
void attention_gpu_collect_floored_rows(const AttentionStack *stack, cudaStream_t stream);
// What the first of the attentions that has something to say of its implementation says; "" when none has.
void attention_gpu_describe(const AttentionStack *stack, char *text, size_t size);

#endif
