// Naive twins: every mechanism once more, as a few obvious lines in double precision, O(T^2), one head at a time. They
// are the readable definitions; the tests compare the fast code with them.
#ifndef ATTENTION_NAIVE_H
#define ATTENTION_NAIVE_H

#include "attention.h"

// q, k, v, o: (T, HS) of one head. `constants` are the layer's, in double, laid out as attention_constants says; NULL
// for mechanisms without any. `head` chooses among those that differ by head.
typedef void NaiveAttention(double *o, const double *q, const double *k, const double *v, const double *constants,
                            int head, int T, const AttentionConfig *config);

// attention/naive_quadratic.c
NaiveAttention naive_softmax, naive_yat, naive_yat_spherical;
// attention/naive_linear.c
NaiveAttention naive_uniform, naive_elu, naive_cosformer, naive_favor, naive_rff, naive_slay;
// The features of one vector x (HS) whose products are slay's scores: phi (R, M, P), with fusion tensor and any polynomial
// that has features.
void naive_slay_features(double *phi, const double *x, const double *constants, int head,
                         const AttentionConfig *config);

#endif
