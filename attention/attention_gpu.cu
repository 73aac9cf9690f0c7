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

// An option that is in use and that the C twin has, but not the kernels; NULL: there is none.
static const char *missing_option(const AttentionGPU *gpu, const AttentionConfig *config) {
    const struct {
        const char *name;
        int is_used;
        unsigned bit;
    } options[] = {{"decay", config->decay, USES_DECAY},
                   {"window", config->window, USES_WINDOW},
                   {"learn", config->learn, USES_LEARN},
                   {"document-mask", config->packed, USES_DOCUMENTS},
                   {"fusion flat", (gpu->cpu->uses & USES_FUSION) && config->fusion == FUSION_FLAT, USES_FUSION}};
    for (const auto &option : options)
        if (option.is_used && !(gpu->supports & option.bit)) return option.name;
    return NULL;
}

// Whether the mechanism trains tensors of its own, besides a decay, whose gradients the kernels do not have.
static bool misses_gradients(const AttentionGPU *gpu, AttentionConfig config) {
    config.decay = DECAY_NONE;
    return !(gpu->supports & USES_LEARN) && attention_parameter_count(gpu->cpu, &config) > 0;
}

const AttentionGPU *attention_gpu_of(const StackEntry *entry, char *why, size_t size) {
    const char *name = entry->attention->name;
    const AttentionGPU *found = attention_gpu_find(name);
    const char *option = found ? missing_option(found, &entry->config) : NULL;
    int length = snprintf(why, size, "attention %s on the GPU: ", name);
    if (!found)
        snprintf(why, size, "attention %s has no GPU kernels; use the program for the CPU", name);
    else if (option)
        snprintf(why, size, "attention %s on the GPU: no kernels for option %s yet; use the program for the CPU", name,
                 option);
    else if (misses_gradients(found, entry->config))
        snprintf(why, size, "attention %s on the GPU: no code for trained tensors yet; use the program for the CPU",
                 name);
    else if (!found->check || !found->check(&entry->config, why + length, size - (size_t)length))
        return found;
    return NULL;
}
