// The linear attentions as they ship, in single precision: fixtures, causality to the bit, threads, extremes, decoding,
// constants and the refusal of bad configurations. Gradients and twins are in test_linear_gradient.c.
#include "linear.h"
#include "omega.h"
#include "quadrature.h"
#include "test_linear_cases.h"
#include "test_linear_fixture.h"

#include <omp.h>

// ---- fixtures

static void check_fixture(const Safetensors *file, const char *group) {
    const char *name = fixture_attention(file, group);
    Variant variant = {.label = group, .name = name, .options = ""};
    Case c = make_case(&variant, 1, FIXTURE_T, 2, 12);
    c.config = fixture_config(file, group);
    uint64_t wide[] = {1, 23, 72}, narrow[] = {1, 23, 24};
    real *expected = test_buffer(3 * c.numbers);
    free(c.saved);
    free(c.constants);
    c.saved = test_buffer(c.attention->saved_size(&c.config));
    c.constant_count = attention_constant_count(c.attention, &c.config);
    c.constants = test_buffer(c.constant_count);
    read_tensor(c.qkv, file, "in", "qkv", 3, wide);
    read_tensor(c.dout, file, group, "dout", 3, narrow); // 0 in rows whose sums are too small to compare
    read_constants(c.constants, file, group, c.attention, &c.config);
    double tolerance = metadata_number(file, group, "signed") ? 1e-4 : 1e-5;
    run_backward(&c);
    for (size_t i = 0; i < c.numbers; i++) // outputs of those rows are not compared either
        if (c.dout[i] == 0) c.out[i] = 0;
    read_tensor(expected, file, group, "out", 3, narrow);
    CHECK_VARIANT(&variant, difference(c.out, expected, c.numbers) < tolerance);
    read_tensor(expected, file, group, "dqkv", 3, wide);
    for (int part = 0; part < 3; part++)
        for (size_t row = 0; row < 23; row++) { // q, k and v each against their own maximum
            memcpy(c.out + row * 24, c.dqkv + row * 72 + part * 24, 24 * sizeof(real));
            memcpy(c.dout + row * 24, expected + row * 72 + part * 24, 24 * sizeof(real));
            if (row == 22) CHECK_VARIANT(&variant, difference(c.out, c.dout, c.numbers) < tolerance);
        }
    free(expected);
    free_case(&c);
}

static void test_fixtures(void) {
    Safetensors file;
    if (open_fixture(&file)) return;
    char group[64];
    for (int i = 0; fixture_group(group, sizeof group, &file, &i); i++) check_fixture(&file, group);
    safetensors_close(&file);
}

// ---- the same numbers whichever way they are computed

static void test_every_chunk_size_gives_the_same(void) {
    static const int chunks[] = {1, 3, 64, 150};
    for (int v = 0; v < VARIANTS; v++) {
        if (variants[v].is_signed) continue; // near-zero sums: compared in double precision instead
        Case c = make_case(&variants[v], 2, 150, 2, 16);
        run_backward(&c);
        real *out = copy_of(c.out, c.numbers), *gradient = copy_of(c.dqkv, 3 * c.numbers);
        real *of_parameters = copy_of(c.dparameters, c.parameter_count);
        for (int i = 0; i < 4; i++) {
            c.config.chunk = chunks[i];
            run_backward(&c);
            CHECK_VARIANT(c.variant, difference(c.dparameters, of_parameters, c.parameter_count) < 1e-4);
            CHECK_VARIANT(c.variant, difference(c.out, out, c.numbers) < 1e-5);
            CHECK_VARIANT(c.variant, difference(c.dqkv, gradient, 3 * c.numbers) < 1e-4);
        }
        free(out), free(gradient), free(of_parameters);
        free_case(&c);
    }
}

// With up to two threads for each head, forward and backward, every bit is that of one thread; with more, each head's
// rows are cut into segments, and the bits are the same every time.
static void check_threads(const Variant *variant, int heads, int T) {
    Case c = make_case(variant, 1, T, heads, 8);
    c.config.chunk = 64;
    omp_set_num_threads(1);
    run_backward(&c);
    size_t kept = c.attention->saved_size(&c.config);
    real *out = copy_of(c.out, c.numbers), *gradient = copy_of(c.dqkv, 3 * c.numbers), *saved = copy_of(c.saved, kept);
    real *of_parameters = copy_of(c.dparameters, c.parameter_count);
    for (int threads = 2; threads <= 2 * heads; threads++) {
        omp_set_num_threads(threads);
        memset(c.out, 0, c.numbers * sizeof(real)), memset(c.saved, 0, kept * sizeof(real));
        run_backward(&c);
        CHECK_VARIANT(c.variant, memcmp(c.out, out, c.numbers * sizeof(real)) == 0);
        CHECK_VARIANT(c.variant, memcmp(c.saved, saved, kept * sizeof(real)) == 0);
        CHECK_VARIANT(c.variant, memcmp(c.dqkv, gradient, 3 * c.numbers * sizeof(real)) == 0);
        CHECK_VARIANT(c.variant, memcmp(c.dparameters, of_parameters, c.parameter_count * sizeof(real)) == 0);
    }
    omp_set_num_threads(4 * heads + 3);
    run_backward(&c);
    if (!c.variant->is_signed) {
        CHECK_VARIANT(c.variant, difference(c.out, out, c.numbers) < 1e-5);
        CHECK_VARIANT(c.variant, difference(c.dqkv, gradient, 3 * c.numbers) < 1e-4);
        CHECK_VARIANT(c.variant, difference(c.dparameters, of_parameters, c.parameter_count) < 1e-4);
    }
    memcpy(gradient, c.dqkv, 3 * c.numbers * sizeof(real));
    memcpy(of_parameters, c.dparameters, c.parameter_count * sizeof(real));
    run_backward(&c);
    CHECK_VARIANT(c.variant, memcmp(c.dqkv, gradient, 3 * c.numbers * sizeof(real)) == 0);
    CHECK_VARIANT(c.variant, memcmp(c.dparameters, of_parameters, c.parameter_count * sizeof(real)) == 0);
    free(out), free(gradient), free(saved), free(of_parameters);
    free_case(&c);
}

static void test_threads(void) {
    int before = omp_get_max_threads();
    for (int v = 0; v < VARIANTS; v++) {
        check_threads(&variants[v], 2, 200);
        check_threads(&variants[v], 1, 128); // two chunks
        check_threads(&variants[v], 1, 330);
    }
    omp_set_num_threads(before);
}

static void test_forward_without_saved(void) {
    for (int v = 0; v < VARIANTS; v++) {
        Case c = make_case(&variants[v], 1, 70, 2, 8);
        run_forward(&c);
        real *out = copy_of(c.out, c.numbers);
        c.attention->forward(c.out, NULL, c.qkv, c.constants, c.parameters, c.work, &c.config);
        CHECK_VARIANT(c.variant, memcmp(c.out, out, c.numbers * sizeof(real)) == 0);
        free(out);
        free_case(&c);
    }
}

// Prefill, then one position at a time, as a sampler does.
static void test_decoding_equals_forward(void) {
    static const int prefills[] = {0, 1, 63, 64, 65};
    for (int v = 0; v < VARIANTS; v++)
        for (int p = 0; p < 5; p++) {
            Case c = make_case(&variants[v], 1, 100, 2, 16);
            int C = c.config.C, done = prefills[p];
            real *cache = test_buffer(c.attention->cache_size(&c.config)), *out = test_buffer(c.numbers);
            run_forward(&c);
            if (done) run_step(&c, out, cache, 0, done, c.qkv);
            for (int t = done; t < c.config.T; t++)
                run_step(&c, out + (size_t)t * C, cache, t, 1, c.qkv + (size_t)t * 3 * C);
            if (!c.variant->is_signed) CHECK_VARIANT(c.variant, difference(out, c.out, c.numbers) < 1e-5);
            free(cache);
            free(out);
            free_case(&c);
        }
}

// Changing position t leaves every output before it as it was, to the bit.
static void test_causality(void) {
    static const int positions[] = {1, 40, 63, 64, 100, 129};
    for (int v = 0; v < VARIANTS; v++)
        for (int chunk = 0; chunk <= 96; chunk += 32) {
            Case c = make_case(&variants[v], 1, 130, 2, 16);
            int C = c.config.C;
            c.config.chunk = chunk;
            run_forward(&c);
            real *out = copy_of(c.out, c.numbers);
            for (int p = 0; p < 6; p++) {
                int t = positions[p];
                for (int i = 0; i < 3 * C; i++) c.qkv[(size_t)t * 3 * C + i] = (real)(40 * random_normal(9, (size_t)i));
                run_forward(&c);
                CHECK_VARIANT(c.variant, memcmp(c.out, out, (size_t)t * C * sizeof(real)) == 0);
                CHECK_VARIANT(c.variant, t == 1 || memcmp(c.out + (size_t)t * C, out + (size_t)t * C,
                                                          (size_t)C * sizeof(real)) != 0);
                fill_inputs(&c);
            }
            free(out);
            free_case(&c);
        }
}

// ---- extremes

static int all_finite(const real *numbers, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!isfinite(numbers[i])) return 0;
    return 1;
}

// Multiplies q, k and v by the given numbers (0 as well), or makes k equal to q.
static void distort(Case *c, double q, double k, double v, int equal) {
    size_t C = (size_t)c->config.C;
    fill_inputs(c);
    for (size_t i = 0; i < 3 * c->numbers; i++) {
        size_t column = i % (3 * C);
        double factor = column < C ? q : column < 2 * C ? k : v;
        double value = c->qkv[i] * factor;
        c->qkv[i] = (real)fmax(-3e38, fmin(3e38, value));
        if (equal && column >= C && column < 2 * C) c->qkv[i] = c->qkv[i - C];
    }
}

static void test_no_nan_from_finite_input(void) {
    static const double factors[][3] = {{0, 1, 1},     {1, 0, 1},         {0, 0, 0},        {1e-20, 1e-20, 1},
                                        {1e-38, 1, 1}, {1e5, 1e5, 1},     {1e5, 1e-5, 1e5}, {1e18, 1, 1},
                                        {1, 1e18, 1},  {1e18, 1e18, 1e9}, {3e38, 3e38, 1},  {1, 1, 1e12},
                                        {30, 30, 1}};
    for (int v = 0; v < VARIANTS; v++)
        for (size_t f = 0; f < sizeof factors / sizeof factors[0]; f++)
            for (int equal = 0; equal < 2; equal++)
                for (int T = 1; T <= 80; T += 79) {
                    Case c = make_case(&variants[v], 1, T, 1, 16);
                    c.config.chunk = 32;
                    distort(&c, factors[f][0], factors[f][1], factors[f][2], equal);
                    run_backward(&c);
                    CHECK_VARIANT(c.variant, all_finite(c.out, c.numbers));
                    CHECK_VARIANT(c.variant, all_finite(c.dqkv, 3 * c.numbers));
                    CHECK_VARIANT(c.variant, all_finite(c.dparameters, c.parameter_count));
                    if (!all_finite(c.dqkv, 3 * c.numbers) || !all_finite(c.out, c.numbers))
                        printf("    factors %g %g %g, equal %d, T %d\n", factors[f][0], factors[f][1], factors[f][2],
                               equal, T);
                    free_case(&c);
                }
}

static void test_nan_in_the_input_is_not_hidden(void) {
    for (int v = 0; v < VARIANTS; v++) {
        Case c = make_case(&variants[v], 1, 20, 1, 16);
        for (int i = 0; i < 3 * c.config.C; i++) c.qkv[(size_t)5 * 3 * c.config.C + i] = NAN;
        run_forward(&c);
        CHECK_VARIANT(c.variant, isnan(c.out[19 * c.config.C]));
        free_case(&c);
    }
}

// One bad number shows in every row that sees it (and perhaps in a few before, since 0 times NaN is NaN): by chunks,
// pair by pair, when decoding, and in the gradients of its own row.
static void check_bad_number(Case *c, size_t row, size_t part, real bad) {
    size_t C = (size_t)c->config.C, T = (size_t)c->config.T,
           last = part ? T : row + 1; // a query matters only to its own row
    real *cache = test_buffer(c->attention->cache_size(&c->config)), *stepped = test_buffer(c->numbers);
    fill_inputs(c);
    c->qkv[row * 3 * C + part * C + 3] = bad;
    run_backward(c);
    run_step(c, stepped, cache, 0, 70, c->qkv);
    for (size_t t = 70; t < T; t++) run_step(c, stepped + t * C, cache, (int)t, 1, c->qkv + t * 3 * C);
    for (size_t t = row; t < last; t++)
        CHECK_VARIANT(c->variant, !all_finite(c->out + t * C, C) && !all_finite(stepped + t * C, C));
    CHECK_VARIANT(c->variant, !all_finite(c->dqkv + row * 3 * C, 3 * C));
    size_t clean = c->config.poly == POLY_EXACT ? 48 : 64; // the few are a block of queries, or a tile
    CHECK_VARIANT(c->variant, all_finite(c->out, clean * C) && all_finite(stepped, clean * C));
    free(cache);
    free(stepped);
}

static void test_bad_input_is_seen(void) {
    static const real bad[] = {NAN, INFINITY, -INFINITY};
    for (int v = 0; v < VARIANTS; v++)
        for (int chunk = 64; chunk <= 150; chunk += 86)
            for (size_t i = 0; i < 9; i++) {
                Case c = make_case(&variants[v], 1, 150, 1, 16);
                c.config.chunk = chunk;
                check_bad_number(&c, i % 2 ? 66 : 80, i / 3, bad[i % 3]);
                free_case(&c);
            }
}

// A long sequence: sums of sums keep their digits.
static void test_long_sequences_keep_their_digits(void) {
    Case c = make_case(&variants[1], 1, 20000, 1, 8);
    for (size_t row = 0; row < 20000; row++)
        for (int i = 0; i < 8; i++) c.qkv[row * 24 + 16 + (size_t)i] = 1;
    run_forward(&c);
    for (size_t i = 0; i < c.numbers; i++) CHECK_CLOSE(c.out[i], 1, 1e-5);
    free_case(&c);
}

// Sums that are negative and smaller than delta become -delta; positive ones have delta added.
static void test_floored_rows_are_counted(void) {
    Variant variant = {"maclaurin", "slay", 1, "--poly maclaurin --P 1", 1e6f, 0};
    Case c = make_case(&variant, 1, 200, 1, 16);
    uint64_t before = linear_floored_rows(), negative = 0;
    run_forward(&c);
    for (int t = 0; t < 200; t++) {
        negative += c.saved[t] == -1e6f;
        CHECK(c.saved[t] == -1e6f || c.saved[t] >= 1e6f);
    }
    CHECK(negative > 0 && negative < 200);
    CHECK(linear_floored_rows() == before + negative);
    free_case(&c);
}

// Negative sums are counted even where no floor replaced them.
static void test_negative_sums_are_counted(void) {
    Variant variant = {"rff", "rff", 1, "--M 4 --delta 1e-30", 0, 0};
    for (int denominator = DENOMINATOR_ADD; denominator <= DENOMINATOR_CLAMP; denominator++) {
        Case c = make_case(&variant, 1, 200, 1, 16);
        c.config.denominator = denominator;
        uint64_t before = linear_floored_rows(), negative = 0;
        run_forward(&c);
        for (int t = 0; t < 200; t++)
            negative += denominator == DENOMINATOR_ADD ? c.saved[t] < 0 : c.saved[t] <= 1e-30f;
        CHECK(negative > 0 && negative < 200);
        CHECK(linear_floored_rows() == before + negative);
        free_case(&c);
    }
}

// ---- constants

static void test_quadrature(void) {
    double t[QUADRATURE_NODES_MAX], w[QUADRATURE_NODES_MAX];
    quadrature_laguerre(t, w, 1);
    CHECK_CLOSE(t[0], 1, 1e-15);
    CHECK_CLOSE(w[0], 1, 1e-15);
    quadrature_laguerre(t, w, 2);
    CHECK_CLOSE(t[0], 2 - sqrt(2), 1e-15);
    CHECK_CLOSE(w[1], (2 - sqrt(2)) / 4, 1e-15);
    quadrature_laguerre(t, w, 3);
    CHECK_CLOSE(t[2], 6.289945082937479, 1e-14);
    CHECK_CLOSE(w[2], 0.010389256501586136, 1e-16);
    for (int n = 1; n <= 64; n++) { // exact for polynomials: the integral of t^k exp(-t) is k!
        double factorial = 1;
        quadrature_laguerre(t, w, n);
        for (int k = 0; k < 2 * n && k <= 30; k++) {
            double sum = 0;
            for (int r = 0; r < n; r++) sum += w[r] * pow(t[r], k);
            CHECK_CLOSE(sum / factorial, 1, 1e-11);
            factorial *= k + 1;
        }
        for (int r = 0; r < n; r++) CHECK(w[r] > 0 && (r == 0 || t[r] > t[r - 1]));
    }
    quadrature_laguerre(t, w, 16); // the smallest weight is right to all its digits
    CHECK_CLOSE(w[15] / 4.16146237037285519043e-22, 1, 1e-11);
}

// Whether a layer's tensors, drawn anew, are the ones of the first case.
static int draws_the_same(Case *c, int layer, const Case *first) {
    attention_draw(c->attention, c->constants, c->parameters, layer, &c->config);
    return memcmp(first->constants, c->constants, c->constant_count * sizeof(real)) == 0 &&
           memcmp(first->parameters, c->parameters, c->parameter_count * sizeof(real)) == 0;
}

static void test_constants_depend_on_seed_and_layer_alone(void) {
    for (int v = 0; v < VARIANTS; v++) {
        Case c = make_case(&variants[v], 1, 8, 2, 16), first = make_case(&variants[v], 1, 8, 2, 16);
        if (!c.attention->draw) {
            CHECK(c.constant_count == 0);
        } else {
            c.config.T = 99; // shapes of the batch do not matter
            CHECK_VARIANT(c.variant, draws_the_same(&c, 0, &first));
            CHECK_VARIANT(c.variant, !draws_the_same(&c, 1, &first));
            c.config.seed = 8;
            CHECK_VARIANT(c.variant, !draws_the_same(&c, 0, &first));
        }
        free_case(&first);
        free_case(&c);
    }
}

// Columns within a block of d are orthogonal and as long as Gaussian ones are on average.
static void test_orthogonal_omega(void) {
    enum { D = 16, M = 40, GROUPS = 50 };
    AttentionConfig config = {.omega = OMEGA_ORTHOGONAL};
    real *omega = test_buffer((size_t)GROUPS * D * M);
    double squares = 0;
    omega_draw(omega, GROUPS, D, M, 5, &config);
    for (int g = 0; g < GROUPS; g++)
        for (int a = 0; a < M; a++)
            for (int b = a; b < M; b++) {
                double dot = 0;
                for (int c = 0; c < D; c++) dot += (double)omega[(g * D + c) * M + a] * omega[(g * D + c) * M + b];
                if (a == b)
                    squares += dot;
                else if (a / D == b / D)
                    CHECK_CLOSE(dot, 0, 1e-5);
            }
    CHECK_CLOSE(squares / (GROUPS * M), D, 0.5);
    free(omega);
}

// The features' products are unbiased: averaged over many draws they give the kernel they stand for.
static void test_random_features_estimate_their_kernels(void) {
    enum { D = 8, M = 4096 };
    AttentionConfig config = {.B = 1, .T = 2, .C = D, .NH = 1, .HS = D, .max_T = 2, .M = M, .delta = 1e-30f, .seed = 3};
    config.features = FEATURES_EXP;
    config.omega = OMEGA_ORTHOGONAL;
    const Attention *favor = attention_find("favor");
    Case c = {.attention = favor, .config = config, .numbers = 2 * D};
    c.qkv = test_buffer(6 * D), c.out = test_buffer(2 * D), c.constants = test_buffer((size_t)D * M);
    attention_draw(favor, c.constants, c.parameters, 0, &c.config);
    double dots[2] = {0, 0};
    for (int i = 0; i < 6 * D; i++) c.qkv[i] = (real)(0.4 * random_normal(4, (uint64_t)i));
    for (int i = 0; i < D; i++) { // v = 0 for the first key and 1 for the second: the output is the second's share
        c.qkv[2 * D + i] = 0, c.qkv[5 * D + i] = 1;
        dots[0] += c.qkv[3 * D + i] * c.qkv[D + i] / sqrt(D);
        dots[1] += c.qkv[3 * D + i] * c.qkv[4 * D + i] / sqrt(D);
    }
    run_forward(&c);
    CHECK_CLOSE(c.out[D], 1 / (1 + exp(dots[0] - dots[1])), 0.01);
    free_case(&c);
}

static real *tensor_named(const Case *c, const char *name) {
    AttentionTensor list[ATTENTION_TENSORS_MAX];
    size_t total;
    for (int i = attention_constants(c->attention, &c->config, list, &total) - 1; i >= 0; i--)
        if (!strcmp(list[i].name, name)) return c->constants + list[i].offset;
    for (int i = attention_parameters(c->attention, &c->config, list, &total) - 1; i >= 0; i--)
        if (!strcmp(list[i].name, name)) return c->parameters + list[i].offset;
    return NULL;
}

static void test_slay_tensors(void) {
    enum { NH = 2, HS = 16, M = 1000 };
    static const Variant flat = {"flat", "slay", 0, "--fusion flat --M 1000", 0, 0};
    static const Variant learned = {"learned", "slay", 0, "--fusion flat --M 1000 --learn both --decay learned", 0, 0};
    static const Variant signs = {"signs", "slay", 1, "--poly rademacher --P 1000", 0, 0};
    Case c = make_case(&flat, 1, 1, NH, HS), of_learned = make_case(&learned, 1, 1, NH, HS);
    Case of_signs = make_case(&signs, 1, 1, NH, HS);
    const real *scales = tensor_named(&c, "flat_scales"), *anchors = tensor_named(&c, "flat_anchors");
    const real *r1 = tensor_named(&of_signs, "rm_r1"), *r2 = tensor_named(&of_signs, "rm_r2");
    double mean = 0, squares = 0, positive = 0;
    for (int j = 0; j < NH * M; j++) {
        double length = 0;
        mean += scales[j] / (NH * M), squares += scales[j] * scales[j] / (NH * M);
        for (int e = 0; e < HS; e++) length += anchors[j * HS + e] * anchors[j * HS + e];
        CHECK_CLOSE(length, 1, 1e-6);
        CHECK(scales[j] >= 0);
    }
    CHECK_CLOSE(mean * 2.001, 1, 0.05);
    CHECK_CLOSE(squares * 2.001 * 2.001, 2, 0.2);
    // the parameters' first values are what would be drawn as constants
    CHECK(c.parameter_count == 0 && of_learned.parameter_count == NH + 2 * NH * M * HS);
    CHECK(!memcmp(tensor_named(&of_learned, "flat_anchors"), anchors, NH * M * HS * sizeof(real)));
    CHECK(!memcmp(tensor_named(&of_learned, "omega"), tensor_named(&c, "omega"), NH * M * HS * sizeof(real)));
    for (int i = 0; i < M * HS; i++) {
        CHECK(fabsf(r1[i]) == 0.25f && fabsf(r2[i]) == 0.25f);
        positive += (r1[i] > 0) / (double)(M * HS);
    }
    CHECK_CLOSE(positive, 0.5, 0.02);
    free_case(&c), free_case(&of_learned), free_case(&of_signs);
}

enum { COSINES = 5 };
static const double cosines[COSINES] = {-1, -0.7, -0.4, 0, 0.3};

// The mean scores of pairs of unit vectors with these cosines, over many draws of slay's tensors. In a sequence of one
// pair the denominator is the pair's score, apart from delta.
static void mean_scores(double mean[COSINES], const char *options, int draws) {
    enum { D = 8 };
    Variant variant = {options, "slay", 0, options, 0, 0};
    Case c = make_case(&variant, COSINES, 1, 1, D);
    for (int i = 0; i < COSINES; i++) {
        real *q = c.qkv + (size_t)i * 3 * D, *k = q + D;
        mean[i] = 0;
        for (int e = 0; e < 2 * D; e++) q[e] = 0;
        q[1] = 1, k[1] = (real)cosines[i], k[4] = (real)sqrt(1 - cosines[i] * cosines[i]);
    }
    for (int draw = 0; draw < draws; draw++) {
        attention_draw(c.attention, c.constants, c.parameters, draw, &c.config);
        run_forward(&c);
        for (int i = 0; i < COSINES; i++) mean[i] += ((double)c.saved[i] - c.config.delta) / draws;
    }
    free_case(&c);
}

// The flat fusion estimates the anchors' kernel with the whole integral over s, Rademacher's products x^2 times the
// quadrature, here with one node. Above x = -1/4 the flat features' products have no finite variance, and their mean is
// slow to settle.
static void test_slay_estimates_its_kernel(void) {
    static const double bounds[COSINES] = {0.005, 0.01, 0.02, 0.05, 0.2};
    double flat[COSINES], orthogonal[COSINES], rademacher[COSINES], s = 1 / 2.001;
    mean_scores(flat, "--fusion flat --M 4096", 40);
    mean_scores(orthogonal, "--fusion flat --M 4096 --omega orthogonal", 40);
    mean_scores(rademacher, "--R 1 --M 256 --P 1024 --poly rademacher", 50);
    for (int i = 0; i < COSINES; i++) {
        double x = cosines[i], kernel = (1 + 2 * x * x) / (2.001 - 2 * x);
        CHECK_CLOSE(flat[i] / kernel, 1, bounds[i]);
        CHECK_CLOSE(orthogonal[i] / kernel, 1, bounds[i]);
        CHECK_CLOSE(rademacher[i], x * x * s * exp(2 * s * x), 0.01);
    }
}

// ---- configurations

static void expect_refusal(const char *name, AttentionConfig config, const char *part) {
    char why[300] = "";
    config.B = config.T = config.NH = 1;
    config.C = config.HS = 8;
    CHECK(attention_find(name)->check(&config, why, sizeof why) == -1);
    CHECK_CONTAINS(why, part);
}

static void test_bad_configurations_are_refused(void) {
    AttentionConfig good = {.R = 3, .M = 16, .P = 8, .eps = 1e-3f, .delta = 1e-6f}, bad;
#define REFUSE(name, field, value, part) (bad = good, bad.field = value, expect_refusal(name, bad, part))
    REFUSE("slay", R, 0, "R");
    REFUSE("slay", R, 65, "64");
    REFUSE("slay", M, 0, "M");
    REFUSE("slay", P, -1, "P");
    REFUSE("slay", M, 65536, "features per head");
    REFUSE("slay", eps, 0, "eps");
    REFUSE("slay", delta, NAN, "delta");
    REFUSE("favor", M, 0, "M=0");
    REFUSE("rff", M, 1 << 20, "65536");
    good.poly = POLY_NYSTROM;
    REFUSE("slay", P, 513, "nystrom");
    REFUSE("slay", fusion, FUSION_HADAMARD, "hadamard");
    REFUSE("slay", fusion, FUSION_FLAT, "remove poly");
    REFUSE("slay", learn, LEARN_ANCHORS, "only the anchors of");
    REFUSE("slay", learn, LEARN_BOTH, "only the anchors of");
    good.poly = POLY_TENSORSKETCH;
    REFUSE("slay", P, 4097, "tensorsketch");
    good.poly = POLY_ANCHOR;
    REFUSE("slay", fusion, FUSION_FLAT, "remove R and P");
    good.fusion = FUSION_HADAMARD;
    REFUSE("slay", learn, LEARN_ANCHORS, "only the anchors of");
#undef REFUSE
}

static void test_sizes(void) {
    for (int v = 0; v < VARIANTS; v++) {
        AttentionConfig config = variant_config(&variants[v], 1, 1024, 4, 16), longer = config;
        const Attention *attention = attention_find(variants[v].name);
        longer.max_T = 1 << 20;
        int constant = config.poly != POLY_EXACT || config.fusion == FUSION_HADAMARD;
        CHECK_VARIANT(&variants[v], (attention->cache_size(&longer) == attention->cache_size(&config)) == constant);
        longer.T = 8192;
        CHECK_VARIANT(&variants[v], attention->saved_size(&longer) == 8 * attention->saved_size(&config));
        CHECK_VARIANT(&variants[v], attention->work_size(&longer) < 20 * attention->work_size(&config));
        CHECK_VARIANT(&variants[v], attention->flops(&config) > 0);
    }
}

// Scratch, the backward pass's too, does not grow with a long sequence, except for two numbers a chunk that a learned
// decay needs.
static void test_scratch_does_not_grow(void) {
    for (int v = 0; v < VARIANTS; v++) {
        AttentionConfig config = variant_config(&variants[v], 1, 1 << 14, 4, 16), longer = config;
        const Attention *attention = attention_find(variants[v].name);
        longer.T = 1 << 17;
        if (config.poly == POLY_EXACT && config.fusion != FUSION_HADAMARD) continue; // looks at every pair
        size_t sums = config.decay == DECAY_LEARNED ? 4 * 2 * sizeof(double) / sizeof(real) * (longer.T / 64) : 0;
        CHECK_VARIANT(&variants[v], attention->work_size(&longer) <= attention->work_size(&config) + sums);
    }
}

int main(void) {
    RUN(test_fixtures);
    RUN(test_every_chunk_size_gives_the_same);
    RUN(test_threads);
    RUN(test_forward_without_saved);
    RUN(test_decoding_equals_forward);
    RUN(test_causality);
    RUN(test_no_nan_from_finite_input);
    RUN(test_nan_in_the_input_is_not_hidden);
    RUN(test_bad_input_is_seen);
    RUN(test_long_sequences_keep_their_digits);
    RUN(test_floored_rows_are_counted);
    RUN(test_negative_sums_are_counted);
    RUN(test_quadrature);
    RUN(test_constants_depend_on_seed_and_layer_alone);
    RUN(test_orthogonal_omega);
    RUN(test_random_features_estimate_their_kernels);
    RUN(test_slay_tensors);
    RUN(test_slay_estimates_its_kernel);
    RUN(test_bad_configurations_are_refused);
    RUN(test_sizes);
    RUN(test_scratch_does_not_grow);
    return test_summary();
}
