#include "attention_gpu.h"

#include <string.h>

extern const AttentionGPU attention_gpu_softmax, attention_gpu_yat, attention_gpu_yat_spherical, attention_gpu_uniform,
    attention_gpu_elu, attention_gpu_cosformer, attention_gpu_favor, attention_gpu_rff, attention_gpu_slay;

const AttentionGPU *const attention_gpu_registry[] = {
    &attention_gpu_softmax, &attention_gpu_yat,   &attention_gpu_yat_spherical, &attention_gpu_uniform,
    &attention_gpu_elu,     &attention_gpu_cosformer, &attention_gpu_favor,     &attention_gpu_rff,
    &attention_gpu_slay,    NULL};

const AttentionGPU *attention_gpu_find(const char *name) {
    for (int i = 0; attention_gpu_registry[i]; i++)
        if (!strcmp(attention_gpu_registry[i]->cpu->name, name)) return attention_gpu_registry[i];
    return NULL;
}
