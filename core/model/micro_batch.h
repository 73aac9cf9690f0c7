// The rows that go through a model at once, and where dropout's masks come from.
#ifndef CORE_MICRO_BATCH_H
#define CORE_MICRO_BATCH_H

#include "core/base/random.h"

#include <stdint.h>

typedef struct {        // rows that go through the model at once
    const int *inputs;  // (B,T)
    const int *targets; // (B,T); below 0: no target
    int B, T;
    int64_t step;      // of the optimiser, from 0
    int64_t first_row; // of these rows within the step's whole batch
    int is_first;      // of the step on this rank: gradients are overwritten, else added to
    int is_last;       // of the step on this rank: a layer's gradients may go to the other ranks once they are made
    double scale;      // the gradients are those of scale * (sum of the losses)
} MicroBatch;

// The key of a dropout mask. Site 0: the embeddings; l + 1: layer l's attention output.
static inline uint64_t dropout_key(uint64_t seed, int64_t step, int site, int L) {
    return random_key(seed, "dropout", (uint64_t)step * (uint64_t)(L + 1) + (uint64_t)site);
}

#endif
