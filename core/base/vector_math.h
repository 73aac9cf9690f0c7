// Functions that the compiler vectorises in the loop around them. There are two exponentials:
//
//   real_exp      the C library's, for any x; what features, GELU, the loss and the sampler use
//   exponential   for x <= 0 only: the weights of softmax attention, one for every pair of positions, where the general
//                 one would take half as long again. The two differ in the last place.
#ifndef CORE_VECTOR_MATH_H
#define CORE_VECTOR_MATH_H

#include "real.h"

#include <stdint.h>
#include <string.h>

// Lets the compiler call glibc's vector expf, tanhf, ... in vectorised loops (libmvec, within 4 units in the last
// place). glibc's own headers declare these only under -ffast-math, which this project never uses. clang takes the same
// functions through -fveclib=libmvec (see scripts/setup.sh).
#if defined(HAVE_VECTOR_MATH) && !defined(__clang__)
#define VECTOR_MATH __attribute__((simd("notinbranch")))
VECTOR_MATH float expf(float);
VECTOR_MATH float tanhf(float);
VECTOR_MATH float logf(float);
VECTOR_MATH float sinf(float);
VECTOR_MATH float cosf(float);
VECTOR_MATH double exp(double);
VECTOR_MATH double tanh(double);
VECTOR_MATH double log(double);
VECTOR_MATH double sin(double);
VECTOR_MATH double cos(double);
#undef VECTOR_MATH
#endif

// exp(x) for x <= 0: a dozen operations, with no call and no special cases. About one unit in the last place off;
// exp(0) is 1. Below -87 it stays at exp(-87), 1.6e-38. NaN stays NaN.
#ifdef REAL_IS_DOUBLE
static inline real exponential(real x) {
    return exp(x);
}
#else
// exp(x) = 2^n exp(r) with n = round(x / ln 2), |r| <= ln 2 / 2. Adding 1.5 * 2^23 rounds to a whole number and leaves
// it in the lowest bits, from where it is shifted to the exponent. ln 2 is subtracted in two parts, for n ln 2 to be
// exact. The polynomial is the best of degree 6 with 1 + r at its start (3e-9 off).
static inline real exponential(real x) {
    const float to_whole = 12582912.0f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    x = x < -87.0f ? -87.0f : x;
    float shifted = x * 1.44269504f + to_whole, n = shifted - to_whole;
    float r = (x - n * ln2_high) - n * ln2_low;
    float p = 0.499999940f + r * (0.166665211f + r * (0.0416683890f + r * (0.00836874545f + r * 0.00138145394f)));
    p = 1 + (r + r * r * p);
    uint32_t bits, power;
    memcpy(&bits, &p, sizeof bits);
    memcpy(&power, &shifted, sizeof power);
    bits += power << 23;
    memcpy(&p, &bits, sizeof p);
    return p;
}
#endif

#endif
