#include "attention_gpu.h"
#include "registry.h"

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
