// Muon (Keller Jordan, 2024): the matrices of the blocks move by a rate along their momentum, made orthogonal, so that
// every direction in them learns at the same speed; embeddings, biases and LayerNorms are AdamW's.
//
//   m <- momentum m + (1 - momentum) g,  u = momentum m + (1 - momentum) g   (Nesterov)
//   W <- keep W - rate sqrt(max(1, out / in)) newton_schulz(u)
//
// Query, key and value are three matrices side by side, each made orthogonal for itself. The step has three parts. With
// ZeRO the first and the last are a rank's own; in between the ranks gather the directions u (exchange_gradients), and
// each makes orthogonal what it needs.
#ifndef CORE_MUON_H
#define CORE_MUON_H

#include "core/model/gpt2_parameters.h"

// The gradients, scaled, go into the momentum, and become the directions u. Parameters that are not Muon's are left
// alone, here and below.
void muon_directions(Parameter *updated, int count, real momentum, real gradient_scale);
// The directions of whole tensors become orthogonal, where a rank updates some part of them. work: muon_work(C)
// numbers.
void muon_orthogonalize(const Parameter *whole, int whole_count, const Parameter *updated, int count, real *work);
void muon_apply(Parameter *updated, int count, real rate, real keep);

size_t muon_work(int C);

#endif
