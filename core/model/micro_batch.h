// The rows that go through a model at once, and where dropout's masks come from.
#ifndef CORE_MICRO_BATCH_H
#define CORE_MICRO_BATCH_H

#include "core/base/random.h"

#include <stdint.h>

typedef struct {        // rows that go through the model at once
    const int *inputs;  // (B,T)
    const int *targets; // (B,T); below 0: no target
    // (B,T) of each token in its document; NULL: in its row. Documents do not see each other: each gets the losses and
    // gradients that it would get as a row of its own.
    const int *positions;
    int B, T;
    int64_t step;      // of the optimiser, from 0
    int64_t first_row; // of these rows within the step's whole batch
    int is_first;      // of the step on this rank: gradients are overwritten, else added to
    int is_last;       // of the step on this rank: a layer's gradients may go to the other ranks once they are made
    double scale;      // the gradients are those of scale * (sum of the losses)
} MicroBatch;

// Fills in the positions (B,T) of tokens whose documents begin with `end_of_text`; a row's first one begins with the
// row. Returns whether any row holds more than one.
static inline int micro_batch_positions(int *positions, const int *tokens, int B, int T, int end_of_text) {
    int cuts = 0;
    for (int n = 0; n < B * T; n++) {
        int begins = n % T == 0 || tokens[n] == end_of_text;
        positions[n] = begins ? 0 : positions[n - 1] + 1;
        cuts += begins && n % T > 0;
    }
    return cuts > 0;
}

// The key of a dropout mask. Site 0: the embeddings; l + 1: layer l's attention output.
static inline uint64_t dropout_key(uint64_t seed, int64_t step, int site, int L) {
    return random_key(seed, "dropout", (uint64_t)step * (uint64_t)(L + 1) + (uint64_t)site);
}

#endif
