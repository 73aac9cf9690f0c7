// The type of every number in the model. It is float; the gradient tests compile the very same sources with
// -DREAL_IS_DOUBLE, so that finite differences check the code that ships and not a copy of it.
#ifndef CORE_REAL_H
#define CORE_REAL_H

#include <math.h>

#ifdef REAL_IS_DOUBLE
typedef double real;
#define real_gemm cblas_dgemm
#define real_gemv cblas_dgemv
#define real_exp  exp
#define real_tanh tanh
#define real_sqrt sqrt
#define real_log  log
#define real_cos  cos
#define real_sin  sin
#define real_max  fmax
#define real_min  fmin
#define real_abs  fabs
#define real_rint rint
#else
typedef float real;
#define real_gemm cblas_sgemm
#define real_gemv cblas_sgemv
#define real_exp  expf
#define real_tanh tanhf
#define real_sqrt sqrtf
#define real_log  logf
#define real_cos  cosf
#define real_sin  sinf
#define real_max  fmaxf
#define real_min  fminf
#define real_abs  fabsf
#define real_rint rintf
#endif

#endif
