// Gauss-Laguerre quadrature: integral over t >= 0 of exp(-t) f(t) dt = sum over r of weight_r f(node_r), exact for
// polynomials up to degree 2n - 1.
#ifndef ATTENTION_QUADRATURE_H
#define ATTENTION_QUADRATURE_H

enum { QUADRATURE_NODES_MAX = 128 };

// nodes ascending, both (n), to double precision; 1 <= n <= QUADRATURE_NODES_MAX
void quadrature_laguerre(double *nodes, double *weights, int n);

#endif
