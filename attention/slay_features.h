// SLAY's features. A vector is brought to unit length, projected once by everything the map needs, and what follows is
// pointwise in the projections:
//     outer: positive random features of sum_r w_r exp(2 s_r <u,v>), the quadrature of the kernel's 1 / (2 + eps - 2x)
//     inner: a polynomial map whose scores estimate x^2
// The flat fusion has both in its outer features, see flat_coefficient.
#ifndef ATTENTION_SLAY_FEATURES_H
#define ATTENTION_SLAY_FEATURES_H

#include "linear.h"

// The layer's constants, and those among them that are trained, in its parameters; those of other polynomials and
// fusions are NULL.
typedef struct {
    const real *omega;             // (R, NH, HS, M)
    const real *nodes, *weights;   // (R) s_r and w_r
    const real *scales;            // (NH, M) flat_scales: s_j
    const real *anchors;           // (P, HS) anchor_vectors or nystrom_anchors; (NH, M, HS) flat_anchors
    const real *whitening;         // (P, P) nystrom_W
    const real *factor1, *factor2; // (P, HS) rm_r1, rm_r2
    const real *hash1, *hash2;     // (HS) columns of a sketch
    const real *sign1, *sign2;     // (HS)
} SlayConstants;

int slay_tensors(const AttentionConfig *config, AttentionTensor list[ATTENTION_TENSORS_MAX]);
// Without constants or parameters (NULL) what would be there stays NULL.
SlayConstants slay_constants_at(const real *constants, const real *parameters, const AttentionConfig *config);
LinearMap slay_map(const AttentionConfig *config);

// The polynomial in use: none of its own for the hadamard fusion, whose square is that of the random projections, and
// for the flat one, where each feature has its own anchor. Rademacher's is Maclaurin's with other factors.
int slay_polynomial(const AttentionConfig *config);

#endif
