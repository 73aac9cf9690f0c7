// The orthogonal matrix nearest to another one, roughly: what Muon makes of a matrix of momentum.
//
// Of X = U S V^T it leaves U V^T, with singular values near 1 (0.7 to 1.2) instead of S. Five steps of
//   X <- a X + (b A + c A A) X,  A = X X^T,  from X / |X|,
// whose odd polynomial a s + b s^3 + c s^5 draws every singular value s of (0,1] to that range; a, b and c are Keller
// Jordan's (2024), chosen for the steepest start. A is the smaller of X X^T and X^T X: the result is the same.
#ifndef CORE_NEWTON_SCHULZ_H
#define CORE_NEWTON_SCHULZ_H

#include "core/base/real.h"

#include <stddef.h>

enum { NEWTON_SCHULZ_STEPS = 5 };
#define NEWTON_SCHULZ_A       3.4445
#define NEWTON_SCHULZ_B       (-4.7750)
#define NEWTON_SCHULZ_C       2.0315
#define NEWTON_SCHULZ_EPSILON 1e-7 // added to the norm: zeros stay zeros

// x (rows,columns), in place. work: newton_schulz_work(rows, columns) numbers.
void newton_schulz(real *x, int rows, int columns, real *work);
size_t newton_schulz_work(int rows, int columns);

#endif
