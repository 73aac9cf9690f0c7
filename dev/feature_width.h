// The feature width F of a linear attention, per head: what stands beside every latency.
#ifndef DEV_FEATURE_WIDTH_H
#define DEV_FEATURE_WIDTH_H

#include "attention/slay_features.h"

#include <string.h>

// 0 for quadratic attentions. slay with the exact polynomial has d (d + 1) / 2 features where others have P.
static inline int feature_width(const Attention *attention, const AttentionConfig *config) {
    const char *name = attention->name;
    if (!strcmp(name, "slay")) {
        LinearMap map = slay_map(config);
        if (slay_polynomial(config) == POLY_EXACT) return map.outer * config->HS * (config->HS + 1) / 2;
        return map.outer * (map.inner ? map.inner : 1);
    }
    if (!strcmp(name, "uniform")) return 1;
    if (!strcmp(name, "elu")) return config->HS;
    if (!strcmp(name, "cosformer")) return 2 * config->HS;
    return !strcmp(name, "favor") || !strcmp(name, "rff") ? config->M : 0;
}

#endif
