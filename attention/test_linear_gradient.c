// The linear attentions in double precision: forward against the naive twins, backward against finite differences,
// chunks and decoding against the whole.
#include "test_linear_cases.h"

// The output of the naive twin for the whole case, (B,T,C).
static void naive_forward(real *out, const Case *c) {
    const AttentionConfig *config = &c->config;
    NaiveAttention *naive = naive_twin(naive_linear_twins, c->attention);
    int T = config->T, HS = config->HS, C = config->C;
    double *rows[4]; // q, k, v, o of one head
    for (int i = 0; i < 4; i++) rows[i] = memory_allocate((size_t)T * HS, sizeof(double), "a head");
    for (int task = 0; task < config->B * config->NH; task++) {
        size_t first = (size_t)(task / config->NH) * T;
        int head = task % config->NH;
        for (int which = 0; which < 3; which++)
            for (int i = 0; i < T * HS; i++)
                rows[which][i] = c->qkv[(first + i / HS) * 3 * C + (size_t)which * C + head * HS + i % HS];
        naive(rows[3], rows[0], rows[1], rows[2], c->constants, c->parameters, head, T, config);
        for (int i = 0; i < T * HS; i++) out[(first + i / HS) * C + head * HS + i % HS] = rows[3][i];
    }
    for (int i = 0; i < 4; i++) free(rows[i]);
}

static void test_forward_equals_naive_twin(void) {
    static const int shapes[][4] = {{1, 1, 1, 8}, {2, 37, 2, 16}, {1, 130, 3, 12}, {1, 67, 1, 7}};
    for (int v = 0; v < VARIANTS; v++)
        for (int s = 0; s < 4; s++)
            for (int chunk = 0; chunk <= 64; chunk += 32) {
                Case c = make_case(&variants[v], shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][3]);
                real *expected = test_buffer(c.numbers);
                c.config.chunk = chunk;
                run_forward(&c);
                naive_forward(expected, &c);
                CHECK_VARIANT(c.variant,
                              difference(c.out, expected, c.numbers) < (c.variant->is_signed ? 1e-7 : 1e-11));
                free(expected);
                free_case(&c);
            }
}

static double loss(Case *c) {
    double sum = 0;
    run_forward(c);
    for (size_t i = 0; i < c->numbers; i++) sum += (double)c->out[i] * c->dout[i];
    return sum;
}

// Fourth-order central differences. Signed variants are checked only in rows whose sums are not near zero.
static double finite_difference(Case *c, real *number) {
    const double h = 1e-4;
    double kept = *number, value[4];
    static const double steps[4] = {-2, -1, 1, 2};
    for (int s = 0; s < 4; s++) {
        *number = kept + steps[s] * h;
        value[s] = loss(c);
    }
    *number = kept;
    return (value[0] - 8 * value[1] + 8 * value[2] - value[3]) / (12 * h);
}

// Rows of signed variants with a denominator near zero have gradients that no finite difference follows.
static void silence_small_denominators(Case *c) {
    const AttentionConfig *config = &c->config;
    run_forward(c);
    for (int b = 0; b < config->B; b++)
        for (int t = 0; t < config->T; t++)
            for (int i = 0; i < config->C; i++) {
                size_t row = (size_t)(b * config->NH + i / config->HS) * config->T + t;
                if (fabs(c->saved[row]) < 0.1) c->dout[((size_t)b * config->T + t) * config->C + i] = 0;
            }
}

// Every `stride`-th of n numbers that the loss depends on, and the gradient found for them.
static void check_differences(Case *c, real *numbers, const real *gradient, size_t n, size_t stride, const char *what) {
    real *found = copy_of(gradient, n);
    double largest = 0;
    for (size_t i = 0; i < n; i++) largest = fmax(largest, fabs(found[i]));
    for (size_t i = 0; i < n; i += stride) {
        double expected = finite_difference(c, numbers + i), error = fabs(found[i] - expected);
        double bound = 3e-7 * largest + 1e-7 * fabs(expected) + 1e-10; // the last for the rounding of the differences
        CHECK_VARIANT(c->variant, error <= bound);
        if (!(error <= bound))
            printf("    T %d chunk %d, %s %zu: %.9g, by differences %.9g\n", c->config.T, c->config.chunk, what, i,
                   found[i], expected);
    }
    free(found);
}

static void check_gradient(const Variant *variant, int T, int chunk, int HS) {
    Case c = make_case(variant, 1, T, 2, HS);
    c.config.chunk = chunk;
    if (variant->is_signed) silence_small_denominators(&c);
    run_backward(&c);
    check_differences(&c, c.qkv, c.dqkv, 3 * c.numbers, 7, "input");
    check_differences(&c, c.parameters, c.dparameters, c.parameter_count, 1, "parameter");
    free_case(&c);
}

static void test_gradient_equals_finite_differences(void) {
    for (int v = 0; v < VARIANTS; v++) {
        check_gradient(&variants[v], 1, 0, 8);
        check_gradient(&variants[v], 21, 0, 8);
        check_gradient(&variants[v], 21, 4, 6);
    }
}

// Through documents of 1, 9, 1 and 10 rows that share a row.
static void test_gradient_of_documents(void) {
    int positions[21];
    for (int t = 0; t < 21; t++) positions[t] = t < 1 ? t : t < 10 ? t - 1 : t < 11 ? 0 : t - 11;
    for (int v = 0; v < VARIANTS; v++)
        for (int chunk = 0; chunk <= 4; chunk += 4) {
            Case c = make_case(&variants[v], 1, 21, 2, 6);
            c.config.chunk = chunk, c.config.packed = 1, c.config.positions = positions;
            if (c.variant->is_signed) silence_small_denominators(&c);
            run_backward(&c);
            check_differences(&c, c.qkv, c.dqkv, 3 * c.numbers, 7, "input");
            check_differences(&c, c.parameters, c.dparameters, c.parameter_count, 1, "parameter");
            free_case(&c);
        }
}

// Whole tiles and several per chunk, where finite differences would take too long: against one chunk for all.
static void test_every_chunk_size_gives_the_same(void) {
    static const int chunks[] = {1, 3, 64, 65, 128, 200, 0};
    for (int v = 0; v < VARIANTS; v++) {
        Case c = make_case(&variants[v], 1, 200, 2, 12);
        c.config.chunk = c.config.T;
        run_backward(&c);
        real *out = copy_of(c.out, c.numbers), *gradient = copy_of(c.dqkv, 3 * c.numbers);
        real *of_parameters = copy_of(c.dparameters, c.parameter_count);
        double tolerance = c.variant->is_signed ? 1e-6 : 1e-10;
        for (int i = 0; i < 7; i++) {
            c.config.chunk = chunks[i];
            run_backward(&c);
            CHECK_VARIANT(c.variant, difference(c.out, out, c.numbers) < tolerance);
            CHECK_VARIANT(c.variant, difference(c.dqkv, gradient, 3 * c.numbers) < tolerance);
            CHECK_VARIANT(c.variant, difference(c.dparameters, of_parameters, c.parameter_count) < tolerance);
        }
        free(out), free(gradient), free(of_parameters);
        free_case(&c);
    }
}

// ---- where exponents are large

static int has_log_scales(const Variant *variant) {
    return strstr(variant->options, "--features exp") != NULL;
}

// Keys that are short for a while, then long, then short again, so that their scales, exp(-|k|^2 / 2), jump by hundreds
// within a chunk, at its border and several chunks apart; the first rows see nothing but long ones.
static void make_scales_jump(Case *c, double factor) {
    size_t C = (size_t)c->config.C;
    for (int t = 0; t < c->config.T; t++) {
        int is_long = t < 20 || (t >= 32 && t < 37) || t == 63 || (t >= 70 && t % 3 == 0);
        for (size_t i = 0; is_long && i < C; i++) c->qkv[((size_t)t * 3 + 1) * C + i] *= (real)factor;
    }
}

// With chunks of 16, of 64 and in one, and decoding: the naive twin's output, for which doubles are wide enough without
// scales; and the gradient of one chunk.
static void test_scales_that_jump_far(void) {
    for (int v = 0; v < VARIANTS; v++) {
        if (!has_log_scales(&variants[v])) continue;
        Case c = make_case(&variants[v], 1, 100, 2, 12);
        int C = c.config.C;
        make_scales_jump(&c, 8);
        for (c.config.delta = 0; c.config.delta <= 1e-3f; c.config.delta += 1e-3f) { // 0: nothing hides a small sum
            real *expected = test_buffer(c.numbers), *cache = test_buffer(c.attention->cache_size(&c.config));
            real *out = test_buffer(c.numbers);
            naive_forward(expected, &c);
            c.config.chunk = c.config.T;
            run_backward(&c);
            real *gradient = copy_of(c.dqkv, 3 * c.numbers);
            for (c.config.chunk = 16; c.config.chunk <= 100; c.config.chunk += 48) {
                run_backward(&c);
                CHECK_VARIANT(c.variant, difference(c.out, expected, c.numbers) < 1e-9);
                CHECK_VARIANT(c.variant, difference(c.dqkv, gradient, 3 * c.numbers) < 1e-8);
            }
            for (int t = 0; t < c.config.T; t++)
                run_step(&c, out + (size_t)t * C, cache, t, 1, c.qkv + (size_t)t * 3 * C);
            CHECK_VARIANT(c.variant, difference(out, expected, c.numbers) < 1e-9);
            free(expected), free(cache), free(out), free(gradient);
        }
        free_case(&c);
    }
}

static void test_gradient_where_scales_jump(void) {
    for (int v = 0; v < VARIANTS; v++) {
        if (!has_log_scales(&variants[v])) continue;
        Case c = make_case(&variants[v], 1, 24, 2, 6);
        c.config.chunk = 4;
        make_scales_jump(&c, 3);
        run_backward(&c);
        check_differences(&c, c.qkv, c.dqkv, 3 * c.numbers, 5, "input");
        free_case(&c);
    }
}

// slay's exponents are clipped to +-20; with omega eight times as long most of them are beyond, on both sides, where
// they have no gradient.
static void test_slay_beyond_the_clip(void) {
    for (int v = 0; v < VARIANTS; v++) {
        AttentionTensor list[ATTENTION_TENSORS_MAX];
        size_t total;
        if (strcmp(variants[v].name, "slay") || variants[v].is_signed || strstr(variants[v].options, "--learn"))
            continue;
        Case c = make_case(&variants[v], 1, 11, 2, 8);
        real *expected = test_buffer(c.numbers);
        int n = attention_constants(c.attention, &c.config, list, &total);
        for (int i = 0; i < n; i++) {
            size_t count = (i + 1 < n ? list[i + 1].offset : total) - list[i].offset;
            for (size_t j = 0; !strcmp(list[i].name, "omega") && j < count; j++) c.constants[list[i].offset + j] *= 8;
        }
        naive_forward(expected, &c);
        run_backward(&c);
        CHECK_VARIANT(c.variant, difference(c.out, expected, c.numbers) < 1e-11);
        check_differences(&c, c.qkv, c.dqkv, 3 * c.numbers, 3, "input");
        free(expected);
        free_case(&c);
    }
}

// A prefill, then one position at a time, against the forward pass.
static void test_decoding_equals_forward(void) {
    static const int prefills[] = {0, 1, 63, 64, 65, 130, 140};
    for (int v = 0; v < VARIANTS; v++)
        for (int p = 0; p < 7; p++) {
            Case c = make_case(&variants[v], 1, 140, 2, 12);
            int C = c.config.C, T = c.config.T;
            real *cache = test_buffer(c.attention->cache_size(&c.config)), *out = test_buffer(c.numbers);
            run_forward(&c);
            cache[0] = 3; // position 0 starts afresh whatever the cache holds
            if (prefills[p]) run_step(&c, out, cache, 0, prefills[p], c.qkv);
            for (int t = prefills[p]; t < T; t++)
                run_step(&c, out + (size_t)t * C, cache, t, 1, c.qkv + (size_t)t * 3 * C);
            CHECK_VARIANT(c.variant, difference(out, c.out, c.numbers) < (c.variant->is_signed ? 1e-7 : 1e-11));
            free(cache);
            free(out);
            free_case(&c);
        }
}

// Positions given in pieces of any length, which begin and end anywhere in the tiles of the cache; on the way the cache
// is copied away and put back, as a sampler does for several texts of one prompt.
static void test_decoding_in_pieces(void) {
    static const int pieces[][6] = {{1, 63, 64, 65, 7, 0}, {63, 2, 64, 1, 70, 0}, {20, 33, 30, 60, 57, 0},
                                    {64, 128, 8, 0, 0, 0}, {130, 1, 1, 60, 8, 0}, {3, 190, 7, 0, 0, 0}};
    for (int v = 0; v < VARIANTS; v++)
        for (size_t p = 0; p < sizeof pieces / sizeof pieces[0]; p++) {
            Case c = make_case(&variants[v], 1, 200, 2, 12);
            size_t size = c.attention->cache_size(&c.config), row = 3 * (size_t)c.config.C;
            real *cache = test_buffer(size), *kept = test_buffer(size), *out = test_buffer(c.numbers);
            run_forward(&c);
            for (int i = 0, t = 0; pieces[p][i]; t += pieces[p][i++]) {
                memcpy(kept, cache, size * sizeof(real));
                for (int other = 1; other >= 0; other--) { // first another text, of which nothing must remain
                    memcpy(cache, kept, size * sizeof(real));
                    run_step(&c, out + (size_t)t * row / 3, cache, t, pieces[p][i],
                             c.qkv + (size_t)(other ? 0 : t) * row);
                }
            }
            CHECK_VARIANT(c.variant, difference(out, c.out, c.numbers) < (c.variant->is_signed ? 1e-7 : 1e-11));
            free(cache), free(kept), free(out);
            free_case(&c);
        }
}

int main(void) {
    RUN(test_forward_equals_naive_twin);
    RUN(test_gradient_equals_finite_differences);
    RUN(test_gradient_of_documents);
    RUN(test_every_chunk_size_gives_the_same);
    RUN(test_scales_that_jump_far);
    RUN(test_gradient_where_scales_jump);
    RUN(test_slay_beyond_the_clip);
    RUN(test_decoding_equals_forward);
    RUN(test_decoding_in_pieces);
    return test_summary();
}
