#include "attention_gpu.h"
#include "registry.h"

#include <stdio.h>
#include <string.h>

#define DECLARE(symbol) extern const AttentionGPU attention_gpu_##symbol;
ATTENTIONS(DECLARE)
#define ADDRESS(symbol) &attention_gpu_##symbol,
const AttentionGPU *const attention_gpu_registry[] = {ATTENTIONS(ADDRESS) NULL};

const AttentionGPU *attention_gpu_find(const char *name) {
    for (int i = 0; attention_gpu_registry[i]; i++)
        if (!strcmp(attention_gpu_registry[i]->cpu->name, name)) return attention_gpu_registry[i];
    return NULL;
}

// What only the C twins can do.
static const char *missing_option(const AttentionConfig *config) {
    if (config->decay) return "decay";
    if (config->window) return "window";
    if (config->learn) return "learn";
    return config->fusion == FUSION_FLAT ? "fusion flat" : NULL;
}

const AttentionGPU *attention_gpu_of(const AttentionStack *stack, char *why, size_t size) {
    const char *name = stack->entries[0].attention->name;
    const AttentionConfig *config = &stack->entries[0].config;
    const AttentionGPU *found = attention_gpu_find(name);
    const char *option = missing_option(config);
    int length = snprintf(why, size, "attention %s on the GPU: ", name);
    if (stack->count > 1)
        snprintf(why, size, "a list of attentions has no GPU code yet; use the program for the CPU");
    else if (!found)
        snprintf(why, size, "attention %s has no GPU kernels; use the program for the CPU", name);
    else if (option)
        snprintf(why, size, "attention %s on the GPU: no kernels for option %s yet; use the program for the CPU", name,
                 option);
    else if (attention_parameter_count(found->cpu, config))
        snprintf(why, size, "attention %s on the GPU: no code for trained tensors yet; use the program for the CPU",
                 name);
    else if (!found->check || !found->check(config, why + length, size - (size_t)length))
        return found;
    return NULL;
}
