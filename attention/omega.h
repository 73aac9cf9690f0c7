// Random projections and other constants, each a pure function of (seed, layer, name of the tensor, index).
#ifndef ATTENTION_OMEGA_H
#define ATTENTION_OMEGA_H

#include "attention.h"

// The stream of random numbers for one tensor of one layer.
uint64_t omega_key(const char *tensor, int layer, const AttentionConfig *config);

// `groups` matrices (d, M) of M random vectors each, as columns, with standard normal entries: independent ones, or
// (config->omega) orthogonal within blocks of d, their lengths those of independent ones.
void omega_draw(real *omega, int groups, int d, int M, uint64_t key, const AttentionConfig *config);

// `count` independent normal numbers times `scale`.
void omega_draw_normal(real *out, size_t count, double scale, uint64_t key);

// `count` independent random signs times `scale`.
void omega_draw_signs(real *out, size_t count, double scale, uint64_t key);

// `count` independent numbers, exponentially distributed with the given mean.
void omega_draw_exponential(real *out, size_t count, double mean, uint64_t key);

// `count` random unit vectors (count, d).
void omega_draw_unit(real *out, int count, int d, uint64_t key);

#endif
