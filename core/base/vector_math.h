// Lets the compiler call glibc's vector expf, tanhf, ... in vectorised loops (libmvec, within 4 units in the last
// place). glibc's own headers declare these only under -ffast-math, which this project never uses. clang takes the same
// functions through -fveclib=libmvec (see scripts/setup.sh).
#ifndef CORE_VECTOR_MATH_H
#define CORE_VECTOR_MATH_H

#include <math.h>

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

#endif
