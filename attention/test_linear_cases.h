// What the test programs of the linear attentions share: a set of buffers for a variant, and how to run it.
#ifndef ATTENTION_TEST_LINEAR_CASES_H
#define ATTENTION_TEST_LINEAR_CASES_H

#include "attention.h"
#include "naive.h"
#include "test_variants.h"
#include "core/base/memory.h"
#include "core/base/random.h"
#include "core/base/test.h"

#include <stdlib.h>

#define variants linear_variants
#define VARIANTS LINEAR_VARIANTS

typedef struct {
    const Variant *variant;
    const Attention *attention;
    AttentionConfig config;
    size_t numbers; // of out; qkv has three times as many
    real *qkv, *dqkv, *out, *dout, *saved, *work, *constants, *parameters, *dparameters;
    size_t constant_count, parameter_count;
} Case;

static inline real *test_buffer(size_t n) {
    return memory_allocate_zeroed(n + 1, sizeof(real), "test buffer");
}

static inline AttentionConfig variant_config(const Variant *variant, int B, int T, int NH, int HS) {
    AttentionConfig config = {.B = B, .T = T, .C = NH * HS, .NH = NH, .max_T = T + 30, .seed = 7};
    variant_configure(&config, variant);
    return config;
}

// Every fourth key lies near its own query, as pairs do that a kernel has learnt to match.
static inline void fill_inputs(Case *c) {
    size_t C = (size_t)c->config.C;
    for (size_t i = 0; i < 3 * c->numbers; i++) c->qkv[i] = (real)random_normal(1, i);
    for (size_t i = 0; i < c->numbers; i++) c->dout[i] = (real)random_normal(2, i);
    for (size_t row = 0; row < c->numbers / C; row += 4) {
        real *q = c->qkv + row * 3 * C, *k = q + C;
        for (size_t i = 0; i < C; i++) k[i] = (real)(0.9 * q[i] + 0.3 * k[i]);
    }
}

static inline Case make_case(const Variant *variant, int B, int T, int NH, int HS) {
    Case c = {.variant = variant,
              .attention = attention_find(variant->name),
              .config = variant_config(variant, B, T, NH, HS),
              .numbers = (size_t)B * T * NH * HS};
    c.constant_count = attention_constant_count(c.attention, &c.config);
    c.parameter_count = attention_parameter_count(c.attention, &c.config);
    c.qkv = test_buffer(3 * c.numbers);
    c.dqkv = test_buffer(3 * c.numbers);
    c.out = test_buffer(c.numbers);
    c.dout = test_buffer(c.numbers);
    c.saved = test_buffer(c.attention->saved_size(&c.config));
    c.constants = test_buffer(c.constant_count);
    c.parameters = test_buffer(c.parameter_count);
    c.dparameters = test_buffer(c.parameter_count);
    c.work = NULL;
    attention_draw(c.attention, c.constants, c.parameters, 0, &c.config);
    fill_inputs(&c);
    return c;
}

static inline void free_case(Case *c) {
    real *all[] = {c->qkv, c->dqkv, c->out, c->dout, c->saved, c->work, c->constants, c->parameters, c->dparameters};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

// The scratch is made anew each time, of just the size asked for: it depends on chunk and threads.
static inline void renew_work(Case *c) {
    free(c->work);
    c->work = memory_allocate(c->attention->work_size(&c->config) + 1, sizeof(real), "test scratch");
}

static inline void run_forward(Case *c) {
    renew_work(c);
    c->attention->forward(c->out, c->saved, c->qkv, c->constants, c->parameters, c->work, &c->config);
}

static inline void run_backward(Case *c) {
    run_forward(c);
    memset(c->dparameters, 0, c->parameter_count * sizeof(real));
    c->attention->backward(c->dqkv, c->dparameters, c->dout, c->qkv, c->out, c->saved, c->constants, c->parameters,
                           c->work, &c->config);
}

static inline void run_step(Case *c, real *out, real *cache, int pos, int n, const real *qkv) {
    c->attention->step(out, cache, pos, n, qkv, c->constants, c->parameters, c->work, &c->config);
}

// Largest difference relative to the largest expected number; NaN anywhere gives NaN.
static inline double difference(const real *found, const real *expected, size_t n) {
    double worst = 0, largest = 1e-30;
    for (size_t i = 0; i < n; i++) {
        double error = fabs((double)found[i] - (double)expected[i]);
        if (!(error <= worst)) worst = error;
        if (isnan(error)) return NAN;
        largest = fmax(largest, fabs((double)expected[i]));
    }
    return worst / largest;
}

static inline real *copy_of(const real *numbers, size_t n) {
    real *copy = test_buffer(n);
    memcpy(copy, numbers, n * sizeof(real));
    return copy;
}

// CHECK with the variant's name in the message.
#define CHECK_VARIANT(variant, condition)                                                                              \
    do {                                                                                                               \
        int holds_ = (condition);                                                                                      \
        CHECK(holds_ &&#condition);                                                                                    \
        if (!holds_) printf("    %s: %s\n", (variant)->label, #condition);                                             \
    } while (0)

#endif
