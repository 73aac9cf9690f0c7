// Drawing a token from a model's logits.
#ifndef CORE_DRAWING_H
#define CORE_DRAWING_H

#include "core/base/real.h"

#include <stddef.h>

typedef struct {
    float temperature; // 0: always the likeliest token
    int top_k;         // among the k likeliest only; 0: all
    float top_p;       // among the likeliest that together have this probability
} DrawSettings;

typedef struct {
    float weight;
    int token;
} Candidate;

int logits_are_finite(const real *logits, size_t count);
// One token drawn from the logits (V); `uniform` is in [0,1). `candidates` is scratch of V. -1 when a logit is not
// finite.
int draw_token(const real *logits, int V, const DrawSettings *settings, double uniform, Candidate *candidates);

#endif
