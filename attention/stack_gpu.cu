#include "stack_gpu.h"

extern "C" {
#include "core/base/memory.h"
}

LayerAttention *attention_gpu_layers(const AttentionStack *stack, int L) {
    LayerAttention *layers =
        (LayerAttention *)memory_allocate_zeroed((size_t)L, sizeof(LayerAttention), "the list of attentions");
    for (int l = 0; l < L; l++) {
        char why[300];
        layers[l].gpu = attention_gpu_of(attention_stack_layer(stack, l), why, sizeof why);
        if (!layers[l].gpu) die("%s", why);
    }
    return layers;
}

size_t attention_gpu_work_size(const AttentionStack *stack) {
    size_t most = 0;
    for (int i = 0; i < stack->count; i++) {
        const StackEntry *entry = &stack->entries[i];
        size_t size = attention_gpu_find(entry->attention->name)->work_size(&entry->config);
        if (size > most) most = size;
    }
    return most;
}

size_t attention_gpu_packed_size(const LayerAttention *layer, const AttentionConfig *config) {
    return layer->gpu->pack ? layer->gpu->packed_size(config) : 0;
}

void attention_gpu_pack(const LayerAttention *layers, const AttentionStack *stack, int L, int only_trained,
                        cudaStream_t stream) {
    for (int l = 0; l < L; l++) {
        const LayerAttention *layer = &layers[l];
        if (!layer->packed || (only_trained && !layer->parameters)) continue;
        layer->gpu->pack(layer->packed, layer->drawn, layer->parameters, &attention_stack_layer(stack, l)->config,
                         stream);
    }
}

void attention_gpu_collect_floored_rows(const AttentionStack *stack, cudaStream_t stream) {
    for (int i = 0; i < stack->count; i++) {
        const AttentionGPU *gpu = attention_gpu_find(stack->entries[i].attention->name);
        if (gpu->collect_floored_rows) gpu->collect_floored_rows(stream);
    }
}

void attention_gpu_describe(const AttentionStack *stack, char *text, size_t size) {
    text[0] = 0;
    for (int i = 0; i < stack->count && !text[0]; i++) {
        const AttentionGPU *gpu = attention_gpu_find(stack->entries[i].attention->name);
        if (gpu->describe) gpu->describe(&stack->entries[i].config, text, size);
    }
}
