// A model in host memory that all ranks train together: which parts of its tensors are this rank's, and the exchange of
// gradients and weights. With ZeRO stage 1 a rank has AdamW's moments of its own parts only and updates nothing else.
#ifndef CORE_SHARING_H
#define CORE_SHARING_H

#include "core/math/arena.h"
#include "core/model/gpt2_parameters.h"
#include "parallel.h"

typedef struct {
    Partition partition;
    Exchange *exchange;
    Parameter *parameters; // the model's
    size_t *offsets;       // (count) where each begins in the block of weights, and in that of gradients
    size_t *counts;        // (count)
    int count;
    Parameter *own; // this rank's parts, as tensors of their own
    int own_count;
    int zero;
    real *m, *v; // ZeRO: the moments of `own`, one after the other
} Sharing;

// The tensors' values and gradients have to lie in blocks of the same layout. ZeRO's moments, zeroed, come from
// `moments`.
Sharing *sharing_create(Parameter *parameters, int count, int zero, Arena *moments);
void sharing_free(Sharing *sharing);

// The gradients of tensor `first` and of all after it are final.
void sharing_ready(Sharing *sharing, int first);

// Files hold whole moments. ZeRO: gives the tensors whole ones, zeros at first; with `fill` rank 0's become those of
// all ranks. All ranks call it; without ZeRO it does nothing.
void sharing_join_moments(Sharing *sharing, int fill);
// Takes them away again; with `keep` each rank keeps its part of what is in them.
void sharing_split_moments(Sharing *sharing, int keep);

#endif
