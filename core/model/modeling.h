// The model in PyTorch, for checkpoints that transformers does not know how to compute by itself.
#ifndef CORE_MODELING_H
#define CORE_MODELING_H

#include <stddef.h>

#define MODELING_FILE "modeling_slay.py" // its name in a checkpoint

extern const char modeling_begin[], modeling_end[];

static inline size_t modeling_bytes(void) {
    return (size_t)(modeling_end - modeling_begin);
}

#endif
