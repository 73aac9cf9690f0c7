// Random numbers from counters: number i of stream `key` is a pure function of (key, i), so that any thread, rank or
// backend that asks for it gets the same one, and nothing has to be saved to continue a run exactly.
#ifndef CORE_RANDOM_H
#define CORE_RANDOM_H

#include "real.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint32_t word[4];
} RandomBlock;

// Philox4x32-10 (Salmon et al. 2011): four random words for block `counter` of stream `key`.
RandomBlock random_block(uint64_t key, uint64_t counter);

// The key of an independent stream, e.g. random_key(seed, "dropout", step * layers + layer).
uint64_t random_key(uint64_t seed, const char *purpose, uint64_t index);

// Number i of a stream.
uint32_t random_word(uint64_t key, uint64_t i);              // 32 random bits
double random_uniform(uint64_t key, uint64_t i);             // in [0, 1), 32 bits of it random
double random_normal(uint64_t key, uint64_t i);              // standard normal (Box-Muller, in double)
uint64_t random_below(uint64_t key, uint64_t i, uint64_t n); // in [0, n), with negligible bias (2^-64 n)

// out[i] = scale * random_normal(key, i) for i < count, with all threads; equal to the single numbers within rounding.
void random_fill_normal(real *out, size_t count, uint64_t key, double scale);

#endif
