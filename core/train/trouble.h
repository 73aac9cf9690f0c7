// Where numbers went bad in a step, in words: the trainers look through the same tensors and number them alike.
#ifndef CORE_TROUBLE_H
#define CORE_TROUBLE_H

#include "training.h"

// The tensors of a layer's forward pass that are looked through, in its order: the inputs and outputs of its products.
enum { PLACE_QKV, PLACE_ATTENTION, PLACE_PROJECTION, PLACE_MLP, PLACE_OUTPUT, LAYER_PLACES };
extern const size_t trouble_widths[LAYER_PLACES]; // their columns, in multiples of C

// `place`: the first tensor of the forward pass that is not finite: 0 the embeddings, 1 + l * LAYER_PLACES + i tensor i
// of layer l, and beyond the last layer's: none. Then it was the gradient `bad_gradient` or, where that is NULL, the
// head.
void trouble_describe(StepOutcome *outcome, int place, int L, const char *bad_gradient);

#endif
