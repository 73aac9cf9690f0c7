// What the tests put every mechanism through, on the CPU and on the GPU: mechanisms and options. In C and C++.
#ifndef ATTENTION_TEST_VARIANTS_H
#define ATTENTION_TEST_VARIANTS_H

#include "attention.h"
#include "core/base/error.h"

#include <string.h>

typedef struct {
    const char *label; // for messages; of a quadratic one also its group in dev/fixtures/quadratic.safetensors
    const char *name;
    int is_signed;       // scores may be negative
    const char *options; // as on the command line; the rest are the mechanism's defaults
    float delta;         // 0: the mechanism's; for those outside the option's range
    int unit_length;     // quadratic ones: q and k are brought to length 1
} Variant;

#define FIXED   "--decay fixed --decay-shortest 1.5 --decay-longest 60 "
#define LEARNED "--decay learned --decay-shortest 1.5 --decay-longest 60 "

static const Variant linear_variants[] = {
    {"uniform", "uniform", 0, "", 0, 0},
    {"elu", "elu", 0, "", 0, 0},
    {"elu, clamp", "elu", 0, "--denominator clamp", 0, 0},
    {"cosformer", "cosformer", 0, "", 0, 0},
    {"favor relu", "favor", 0, "--M 40", 0, 0},
    {"favor exp", "favor", 0, "--M 33 --features exp --omega gaussian", 0, 0},
    {"favor exp, orthogonal, big delta", "favor", 0, "--M 33 --features exp --delta 0.01", 0, 0},
    {"rff", "rff", 1, "--M 24 --delta 0.001", 0, 0},
    {"slay", "slay", 0, "", 0, 0},
    {"slay, published scaling", "slay", 0, "--R 2 --scale-features 0", 0, 0},
    {"slay, orthogonal", "slay", 0, "--R 2 --M 20 --P 5 --omega orthogonal", 0, 0},
    {"slay, wide", "slay", 0, "--R 1 --M 8 --P 128", 0, 0},
    {"slay exact", "slay", 0, "--M 8 --poly exact", 0, 0},
    {"slay exact, clamp", "slay", 0, "--M 8 --poly exact --denominator clamp --delta 0.05", 0, 0},
    {"slay none", "slay", 0, "--R 1 --M 7 --poly none", 0, 0}, // a number of projections that fills no block
    {"slay hadamard", "slay", 0, "--M 8 --fusion hadamard --denominator clamp", 0, 0},
    {"slay nystrom", "slay", 1, "--R 2 --M 8 --P 16 --poly nystrom", 0, 0},
    {"slay tensorsketch", "slay", 1, "--R 2 --M 8 --P 36 --poly tensorsketch", 0, 0},
    {"slay maclaurin", "slay", 1, "--R 2 --M 8 --P 32 --poly maclaurin", 0, 0},
    {"slay rademacher", "slay", 1, "--R 2 --M 8 --P 32 --poly rademacher", 0, 0},
    {"slay flat", "slay", 0, "--M 40 --fusion flat", 0, 0},
    {"slay flat, orthogonal", "slay", 0, "--M 23 --fusion flat --omega orthogonal --scale-features 0", 0, 0},
    {"slay, learned", "slay", 0, "--R 2 --M 3 --P 4 --learn both", 0, 0},
    {"slay flat, learned, learned decay", "slay", 0, LEARNED "--M 7 --fusion flat --learn both", 0, 0},
    {"slay flat, learned anchors", "slay", 0, "--M 17 --fusion flat --learn anchors", 0, 0},
    {"slay hadamard, learned omega", "slay", 0, "--R 2 --M 3 --fusion hadamard --learn omega", 0, 0},
    {"slay exact, learned omega", "slay", 0, "--R 1 --M 5 --poly exact --learn omega", 0, 0},
    {"uniform, fixed decay", "uniform", 0, FIXED, 0, 0},
    {"uniform, learned decay", "uniform", 0, LEARNED, 0, 0},
    {"elu, fixed decay", "elu", 0, FIXED, 0, 0},
    {"elu, learned decay", "elu", 0, LEARNED, 0, 0},
    {"elu, clamp, learned decay", "elu", 0, LEARNED "--denominator clamp", 0, 0},
    {"elu, big delta, learned decay", "elu", 0, LEARNED "--delta 0.1", 0, 0},
    {"cosformer, fixed decay", "cosformer", 0, FIXED, 0, 0},
    {"cosformer, learned decay", "cosformer", 0, LEARNED, 0, 0},
    {"favor relu, fixed decay", "favor", 0, FIXED "--M 40", 0, 0},
    {"favor relu, learned decay", "favor", 0, LEARNED "--M 40", 0, 0},
    {"favor exp, fixed decay", "favor", 0, FIXED "--M 33 --features exp", 0, 0},
    {"favor exp, learned decay", "favor", 0, LEARNED "--M 33 --features exp", 0, 0},
    {"favor exp, big delta, learned decay", "favor", 0, LEARNED "--M 33 --features exp --delta 0.01", 0, 0},
    {"rff, fixed decay", "rff", 1, FIXED "--M 24 --delta 0.001", 0, 0},
    {"rff, learned decay", "rff", 1, LEARNED "--M 24 --delta 0.001", 0, 0},
    {"slay, fixed decay", "slay", 0, FIXED, 0, 0},
    {"slay, learned decay", "slay", 0, LEARNED, 0, 0},
    {"slay, wide, learned decay", "slay", 0, LEARNED "--R 1 --M 8 --P 128", 0, 0},
    {"slay exact, learned decay", "slay", 0, LEARNED "--M 8 --poly exact", 0, 0},
    {"slay none, fixed decay", "slay", 0, FIXED "--R 1 --M 7 --poly none", 0, 0},
    {"slay hadamard, learned decay", "slay", 0, LEARNED "--M 8 --fusion hadamard --denominator clamp", 0, 0},
    {"slay maclaurin, learned decay", "slay", 1, LEARNED "--R 2 --M 8 --P 32 --poly maclaurin", 0, 0},
};
enum { LINEAR_VARIANTS = sizeof linear_variants / sizeof linear_variants[0] };

static const Variant quadratic_variants[] = {
    {"softmax", "softmax", 0, "", 0, 0},
    {"yat", "yat", 0, "", 0, 0},
    {"yat_softmax", "yat", 0, "--normalizer softmax", 0, 0},
    {"yat_spherical", "yat-spherical", 0, "", 0, 1},
};
enum { QUADRATIC_VARIANTS = sizeof quadratic_variants / sizeof quadratic_variants[0] };

// Decay and window.
static const Variant quadratic_distance_variants[] = {
    {"softmax, fixed decay", "softmax", 0, FIXED, 0, 0},
    {"softmax, learned decay", "softmax", 0, LEARNED, 0, 0},
    {"softmax, window", "softmax", 0, "--window 21", 0, 0},
    {"softmax, learned decay, window", "softmax", 0, LEARNED "--window 100", 0, 0},
    {"yat, fixed decay", "yat", 0, FIXED, 0, 0},
    {"yat, learned decay", "yat", 0, LEARNED, 0, 0},
    {"yat, window", "yat", 0, "--window 100", 0, 0},
    {"yat, learned decay, window", "yat", 0, LEARNED "--window 21", 0, 0},
    {"yat_softmax, fixed decay", "yat", 0, "--normalizer softmax " FIXED, 0, 0},
    {"yat_softmax, learned decay", "yat", 0, "--normalizer softmax " LEARNED, 0, 0},
    {"yat_softmax, window", "yat", 0, "--normalizer softmax --window 1", 0, 0},
    {"yat_softmax, learned decay, window", "yat", 0, "--normalizer softmax --window 37 " LEARNED, 0, 0},
    {"yat_spherical, fixed decay", "yat-spherical", 0, FIXED, 0, 1},
    {"yat_spherical, learned decay", "yat-spherical", 0, LEARNED, 0, 1},
    {"yat_spherical, window", "yat-spherical", 0, "--window 21", 0, 1},
    {"yat_spherical, learned decay, window", "yat-spherical", 0, LEARNED "--window 100", 0, 1},
};
#undef FIXED
#undef LEARNED
enum { QUADRATIC_DISTANCE_VARIANTS = sizeof quadratic_distance_variants / sizeof quadratic_distance_variants[0] };
enum { QUADRATIC_CPU_VARIANTS = QUADRATIC_VARIANTS + QUADRATIC_DISTANCE_VARIANTS };

static inline const Variant *quadratic_cpu_variant(int v) {
    return v < QUADRATIC_VARIANTS ? &quadratic_variants[v] : &quadratic_distance_variants[v - QUADRATIC_VARIANTS];
}

// Sets the variant's options in a configuration that has the sizes and the seed already.
static inline void variant_configure(AttentionConfig *config, const Variant *variant) {
    static Options options;
    char text[200], *words[20] = {(char *)"test"};
    int count = 1;
    Error error;
    memset(&options, 0, sizeof options);
    snprintf(text, sizeof text, "%s", variant->options);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) words[count++] = word;
    attention_add_options(&options, config);
    die_if(options_parse(&options, count, words, NULL, 0, NULL, &error), &error);
    die_if(attention_configure(attention_find(variant->name), config, &options, &error), &error);
    if (variant->delta > 0) config->delta = variant->delta;
}

#endif
