// The yat kernel <q,k>^2 / (|q-k|^2 + eps), for the exact mechanisms: on q and k as they are (yat) and on unit vectors
// (yat-spherical), where |q-k|^2 + eps = 2 + eps - 2<q,k>.
#ifndef ATTENTION_YAT_H
#define ATTENTION_YAT_H

#include "quadratic.h"

// As in QuadraticKernel.
void yat_scores(real *score, const real *dot, const real *distance, int n, const AttentionConfig *config);
void yat_slopes(real *slope, real *pull, const real *dot, const real *distance, int n, const AttentionConfig *config);

#endif
