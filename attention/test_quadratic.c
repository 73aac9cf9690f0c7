// The quadratic attentions as they ship, in float: fixture data, tile sizes, decoding, causality, extremes, threads.
#include "quadratic.h"
#include "naive.h"
#include "test_variants.h"
#include "core/base/memory.h"
#include "core/base/random.h"
#include "core/model/safetensors.h"
#include "core/base/test.h"

#include <float.h>
#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { VARIANTS = QUADRATIC_CPU_VARIANTS };
#define variant_at quadratic_cpu_variant

typedef struct {
    const Attention *attention;
    AttentionConfig config;
    size_t numbers; // of out; qkv has three times as many
    real *qkv, *dqkv, *out, *dout, *saved, *work, *cache;
    size_t parameter_count;
    real *parameters, *dparameters;
} Case;

static real *allocate(size_t n) {
    return memory_allocate_zeroed(n, sizeof(real), "test buffer");
}

static Case make_case(const Variant *variant, int B, int T, int NH, int HS, int tile) {
    Case c = {.attention = attention_find(variant->name),
              .config = {.B = B, .T = T, .C = NH * HS, .NH = NH, .max_T = T}};
    variant_configure(&c.config, variant);
    c.config.chunk = tile;
    c.numbers = (size_t)B * T * NH * HS;
    c.qkv = allocate(3 * c.numbers);
    c.dqkv = allocate(3 * c.numbers);
    c.out = allocate(c.numbers);
    c.dout = allocate(c.numbers);
    c.saved = allocate(c.attention->saved_size(&c.config));
    c.work = allocate(c.attention->work_size(&c.config));
    c.cache = allocate(c.attention->cache_size(&c.config));
    AttentionTensor list[ATTENTION_TENSORS_MAX];
    attention_parameters(c.attention, &c.config, list, &c.parameter_count);
    c.parameters = allocate(c.parameter_count + 1);
    c.dparameters = allocate(c.parameter_count + 1);
    attention_draw(c.attention, NULL, c.parameters, 0, &c.config);
    for (size_t i = 0; i < 3 * c.numbers; i++) c.qkv[i] = (real)random_normal(1, i);
    for (size_t i = 0; i < c.numbers; i++) c.dout[i] = (real)random_normal(2, i);
    return c;
}

static void free_case(Case *c) {
    real *all[] = {c->qkv, c->dqkv, c->out, c->dout, c->saved, c->work, c->cache, c->parameters, c->dparameters};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

static void forward(Case *c) {
    c->attention->forward(c->out, c->saved, c->qkv, NULL, c->parameters, c->work, &c->config);
}

static void forward_and_backward(Case *c) {
    forward(c);
    c->attention->backward(c->dqkv, c->dparameters, c->dout, c->qkv, c->out, c->saved, NULL, c->parameters, c->work,
                           &c->config);
}

// Positions pos .. pos + n - 1 of a case with one sequence.
static void step(Case *c, real *out, int pos, int n) {
    size_t C = c->config.C;
    c->attention->step(out + pos * C, c->cache, pos, n, c->qkv + pos * 3 * C, NULL, c->parameters, c->work, &c->config);
}

// The largest difference, relative to the largest number expected.
static double difference(const real *found, const real *expected, size_t n) {
    double worst = 0, largest = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)found[i] - expected[i]);
        if (!(d <= worst)) worst = d;
        largest = fmax(largest, fabs(expected[i]));
    }
    return largest > 0 ? worst / largest : worst;
}

static int all_finite(const real *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) return 0;
    }
    return 1;
}

static double naive_difference(Case *c, int bh) {
    NaiveAttention *naive = naive_twin(naive_quadratic_twins, c->attention);
    int T = c->config.T, C = c->config.C, HS = c->config.HS, NH = c->config.NH, n = T * HS;
    double *q = memory_allocate(4 * (size_t)n, sizeof *q, "a head"), *k = q + n, *v = k + n, *o = v + n;
    double parameters[16] = {0};
    for (size_t i = 0; i < c->parameter_count; i++) parameters[i] = c->parameters[i];
    real *found = allocate(n), *expected = allocate(n);
    size_t row = (size_t)(bh / NH) * T, column = (size_t)(bh % NH) * HS;
    for (int i = 0; i < n; i++) {
        const real *from = c->qkv + (row + i / HS) * 3 * C + column + i % HS;
        q[i] = from[0], k[i] = from[C], v[i] = from[2 * C];
        found[i] = c->out[(row + i / HS) * C + column + i % HS];
    }
    naive(o, q, k, v, NULL, parameters, bh % NH, T, &c->config);
    for (int i = 0; i < n; i++) expected[i] = (real)o[i];
    double d = difference(found, expected, n);
    free(q), free(found), free(expected);
    return d;
}

// ---- the checks

static void forward_matches_the_naive_twins_at_odd_sizes(void) {
    static const int lengths[] = {1, 63, 65, 200}, head_sizes[] = {8, 16, 32, 64, 80, 128, 5};
    for (int v = 0; v < VARIANTS; v++) {
        for (int i = 0; i < 28; i += v < QUADRATIC_VARIANTS ? 1 : 3) {
            Case c = make_case(variant_at(v), 1, lengths[i % 4], 3, head_sizes[i / 4], 0);
            forward(&c);
            for (int h = 0; h < 3; h++) CHECK(naive_difference(&c, h) < 1e-5);
            free_case(&c);
        }
    }
}

// (B,H,T,d) of the fixture to columns column.. of (B,T,stride), B = 1
static void read_heads(real *to, const Safetensors *file, const char *name, size_t stride, size_t column) {
    uint64_t shape[4] = {1, 2, 53, 8};
    float heads[2 * 53 * 8];
    Error error = {""};
    CHECK(safetensors_read(heads, file, name, 4, shape, &error) == 0);
    for (size_t i = 0; i < 2 * 53 * 8; i++) to[i / 8 % 53 * stride + column + i / (53 * 8) * 8 + i % 8] = heads[i];
}

static void check_fixture(const Safetensors *file, const Variant *variant, int tile) {
    static const char *const names[] = {"dq", "dk", "dv"};
    Case c = make_case(variant, 1, 53, 2, 8, tile);
    real *out = allocate(c.numbers), *dqkv = allocate(3 * c.numbers);
    char name[64];
    read_heads(c.qkv, file, "q", 48, 0), read_heads(c.qkv, file, "k", 48, 16), read_heads(c.qkv, file, "v", 48, 32);
    read_heads(c.dout, file, "dout", 16, 0);
    snprintf(name, sizeof name, "%s/o", variant->label);
    read_heads(out, file, name, 16, 0);
    forward_and_backward(&c);
    CHECK(difference(c.out, out, c.numbers) < 1e-5);
    for (int i = 0; i < 3; i++) { // one at a time: the others are 0 in both
        memset(dqkv, 0, 3 * c.numbers * sizeof(real));
        snprintf(name, sizeof name, "%s/%s", variant->label, names[i]);
        read_heads(dqkv, file, name, 48, 16 * i);
        for (size_t row = 0; row < 53; row++) {
            for (size_t d = 0; d < 48; d++) {
                if (d / 16 != (size_t)i) dqkv[row * 48 + d] = c.dqkv[row * 48 + d] = 0;
            }
        }
        CHECK(difference(c.dqkv, dqkv, 3 * c.numbers) < 1e-5);
        forward_and_backward(&c);
    }
    free(out), free(dqkv);
    free_case(&c);
}

static void fixture_data(void) {
    Safetensors file;
    Error error;
    int status = safetensors_open(&file, "dev/fixtures/quadratic.safetensors", &error);
    CHECK(status == 0); // run from the project's root
    if (status) return;
    for (int v = 0; v < QUADRATIC_VARIANTS; v++) {
        check_fixture(&file, &quadratic_variants[v], 0);
        check_fixture(&file, &quadratic_variants[v], 16);
    }
    safetensors_close(&file);
}

static void tile_sizes_agree(void) {
    int tiles[] = {1, 3, 64, 200};
    for (int v = 0; v < VARIANTS; v++) {
        Case expected = make_case(variant_at(v), 1, 200, 2, 16, 0);
        forward_and_backward(&expected);
        for (int t = 0; t < 4; t++) {
            Case c = make_case(variant_at(v), 1, 200, 2, 16, tiles[t]);
            forward_and_backward(&c);
            CHECK(difference(c.out, expected.out, c.numbers) < 2e-6);
            CHECK(difference(c.dqkv, expected.dqkv, 3 * c.numbers) < 1e-5);
            free_case(&c);
        }
        free_case(&expected);
    }
}

// The cache starts with what another sequence left behind.
static void decoding_equals_forward(void) {
    static const int prefills[] = {0, 1, 63, 64, 65};
    for (int v = 0; v < VARIANTS; v++) {
        Case c = make_case(variant_at(v), 1, 130, 3, 20, 0);
        real *out = allocate(c.numbers);
        forward(&c);
        for (size_t i = 0; i < c.attention->cache_size(&c.config); i++) c.cache[i] = NAN;
        for (int p = 0; p < 5; p++) {
            for (int pos = 0, n; pos < 130; pos += n) {
                n = pos == 0 && prefills[p] ? prefills[p] : 1;
                step(&c, out, pos, n);
            }
            CHECK(difference(out, c.out, c.numbers) < 2e-6);
        }
        free(out);
        free_case(&c);
    }
}

// A second piece of several positions, not at position 0: what a prompt in chunks gives.
static void prefill_in_pieces_equals_forward(void) {
    for (int v = 0; v < VARIANTS; v++) {
        Case c = make_case(variant_at(v), 1, 130, 3, 20, 0);
        real *out = allocate(c.numbers);
        forward(&c);
        for (int pos = 0, n; pos < 130; pos += n) {
            n = pos == 0 ? 50 : pos == 50 ? 37 : 43;
            step(&c, out, pos, n);
        }
        CHECK(difference(out, c.out, c.numbers) < 2e-6);
        free(out);
        free_case(&c);
    }
}

// Changing token t, even to numbers of another magnitude, changes no bit before it; nor does a longer sequence.
static void causality_is_exact(void) {
    static const int changed[] = {1, 50, 95, 96, 97, 129};
    for (int v = 0; v < VARIANTS; v++) {
        Case c = make_case(variant_at(v), 1, 130, 2, 16, 0), longer = make_case(variant_at(v), 1, 199, 2, 16, 0);
        size_t C = c.config.C;
        real *before = allocate(c.numbers);
        forward(&c);
        forward(&longer);
        CHECK(memcmp(c.out, longer.out, c.numbers * sizeof(real)) == 0);
        memcpy(before, c.out, c.numbers * sizeof(real));
        for (int i = 0; i < 6; i++) {
            real row[3 * 32];
            memcpy(row, c.qkv + changed[i] * 3 * C, sizeof row);
            for (size_t d = 0; d < 3 * C; d++) c.qkv[changed[i] * 3 * C + d] *= 1e6f;
            forward(&c);
            CHECK(memcmp(c.out, before, changed[i] * C * sizeof(real)) == 0);
            CHECK(memcmp(c.out + changed[i] * C, before + changed[i] * C, C * sizeof(real)) != 0);
            memcpy(c.qkv + changed[i] * 3 * C, row, sizeof row);
        }
        free(before);
        free_case(&c), free_case(&longer);
    }
}

static void same_bits_from_any_number_of_threads(void) {
#ifdef _OPENMP
    static const int threads[] = {1, 2, 7};
    int usual = omp_get_max_threads();
    for (int v = 0; v < VARIANTS; v++) {
        for (int heads = 1; heads <= 5; heads += 4) { // 1: all threads share the head
            real *out = allocate((size_t)200 * heads * 16), *dqkv = allocate((size_t)3 * 200 * heads * 16);
            real dparameters[5];
            for (int t = 0; t < 3; t++) {
                omp_set_num_threads(threads[t]);
                Case c = make_case(variant_at(v), 1, 200, heads, 16, 13);
                forward_and_backward(&c);
                if (t == 0) memcpy(out, c.out, c.numbers * sizeof(real));
                if (t == 0) memcpy(dqkv, c.dqkv, 3 * c.numbers * sizeof(real));
                if (t == 0) memcpy(dparameters, c.dparameters, c.parameter_count * sizeof(real));
                CHECK(memcmp(dparameters, c.dparameters, c.parameter_count * sizeof(real)) == 0);
                CHECK(memcmp(out, c.out, c.numbers * sizeof(real)) == 0);
                CHECK(memcmp(dqkv, c.dqkv, 3 * c.numbers * sizeof(real)) == 0);
                free_case(&c);
            }
            free(out), free(dqkv);
        }
    }
    omp_set_num_threads(usual);
#endif
}

// One row of q or k is special; the outputs stay averages of v, so none exceeds the largest v.
static void check_extreme(Case *c, double q_scale, double k_scale, int equal) {
    size_t C = c->config.C, rows = c->numbers / C;
    double largest = 0;
    for (size_t i = 0; i < 3 * c->numbers; i++) c->qkv[i] = (real)random_normal(3, i);
    for (size_t t = 0; t < rows; t += 3) {
        real *q = c->qkv + t * 3 * C, *k = q + C;
        for (size_t d = 0; d < C; d++) q[d] *= (real)q_scale, k[d] = equal ? q[d] : k[d] * (real)k_scale;
    }
    for (size_t i = 0; i < 3 * c->numbers; i++) largest = fmax(largest, i % (3 * C) >= 2 * C ? fabs(c->qkv[i]) : 0);
    forward_and_backward(c);
    CHECK(all_finite(c->dqkv, 3 * c->numbers));
    CHECK(all_finite(c->dparameters, c->parameter_count));
    for (size_t i = 0; i < c->numbers; i++) CHECK(fabs(c->out[i]) <= largest * 1.00001);
}

static void extremes(void) {
    for (int v = 0; v < VARIANTS; v++) {
        for (int T = 1; T <= 101; T += 100) {
            Case c = make_case(variant_at(v), 1, T, 2, 16, 0);
            check_extreme(&c, 1, 0, 0);
            check_extreme(&c, 0, 1, 0);
            check_extreme(&c, 0, 0, 0);
            check_extreme(&c, 1, 1, 1);
            check_extreme(&c, 100, 1, 1);
            check_extreme(&c, 1e15, 1e15, 0);
            check_extreme(&c, 1e15, 1e15, 1);
            check_extreme(&c, 1e-20, 1e20, 0);
            check_extreme(&c, 1e-30, 1e-30, 1);
            free_case(&c);
        }
    }
}

// ---- pairs so near that |q|^2 + |k|^2 - 2<q,k> is nothing but rounding errors

static double naive_loss(const Case *c, NaiveAttention *naive, const double *inputs) {
    int T = c->config.T, HS = c->config.HS;
    size_t n = c->numbers;
    double *q = memory_allocate(4 * n, sizeof *q, "a head"), *o = q + 3 * n, sum = 0;
    for (size_t i = 0; i < 3 * n; i++) q[i / HS % 3 * n + i / (3 * HS) * HS + i % HS] = inputs[i];
    naive(o, q, q + n, q + 2 * n, NULL, NULL, 0, T, &c->config);
    for (size_t i = 0; i < n; i++) sum += o[i] * c->dout[i];
    free(q);
    return sum;
}

// One head of yat: the last query and two keys within 1e-3 of each other, of length 30.
static void near_pairs_keep_their_digits(void) {
    Case c = make_case(&quadratic_variants[1], 1, 6, 1, 8, 0);
    double inputs[6 * 24], largest = 0, worst = 0;
    for (int d = 0; d < 8; d++) {
        c.qkv[5 * 24 + d] *= 10;
        for (int t = 2; t < 4; t++) c.qkv[t * 24 + 8 + d] = c.qkv[5 * 24 + d] + 1e-3f * c.qkv[t * 24 + 8 + d];
    }
    for (int i = 0; i < 6 * 24; i++) inputs[i] = c.qkv[i];
    forward_and_backward(&c);
    CHECK(naive_difference(&c, 0) < 1e-5);
    for (int i = 0; i < 6 * 24; i++) {
        double h = 1e-5, before = inputs[i], up, down;
        inputs[i] = before + h, up = naive_loss(&c, naive_yat, inputs);
        inputs[i] = before - h, down = naive_loss(&c, naive_yat, inputs);
        inputs[i] = before;
        worst = fmax(worst, fabs(c.dqkv[i] - (up - down) / (2 * h)));
        largest = fmax(largest, fabs(c.dqkv[i]));
    }
    CHECK(worst < 2e-5 * largest);
    free_case(&c);
}

// A row too short to be brought to unit length takes part as it is, and gets no gradient.
static void no_gradient_below_the_least_norm(void) {
    Case c = make_case(&quadratic_variants[3], 1, 9, 1, 16, 0);
    for (int d = 0; d < 16; d++) c.qkv[5 * 48 + d] *= 1e-14f, c.qkv[3 * 48 + 16 + d] *= 1e-14f;
    forward_and_backward(&c);
    for (int d = 0; d < 16; d++) CHECK(c.dqkv[5 * 48 + d] == 0 && c.dqkv[3 * 48 + 16 + d] == 0);
    CHECK(c.dqkv[5 * 48 + 16] != 0);
    CHECK(naive_difference(&c, 0) < 1e-5);
    free_case(&c);
}

// A number of any magnitude that a float can have, either sign, sometimes 0.
static real any_finite(uint64_t key, uint64_t i) {
    double exponent = -45 + 83.5 * random_uniform(key, 3 * i), sign = random_uniform(key, 3 * i + 1) < 0.5 ? -1 : 1;
    double x = random_uniform(key, 3 * i + 2) < 0.1 ? 0 : sign * pow(10, exponent);
    return (real)fmax(-FLT_MAX, fmin(FLT_MAX, x));
}

static void no_nan_from_finite_input(void) {
    for (int v = 0; v < VARIANTS; v++) {
        for (uint64_t round = 0; round < 20; round++) {
            Case c = make_case(variant_at(v), 1, 70, 1, 16, 16);
            real *stepped = allocate(c.numbers);
            for (size_t i = 0; i < 3 * c.numbers; i++) c.qkv[i] = any_finite(100 + round, i);
            for (size_t i = 0; i < c.numbers; i++) c.dout[i] = round % 2 ? any_finite(200 + round, i) : c.dout[i];
            forward_and_backward(&c);
            step(&c, stepped, 0, 70);
            CHECK(all_finite(c.out, c.numbers));
            CHECK(all_finite(c.dqkv, 3 * c.numbers));
            CHECK(all_finite(stepped, c.numbers));
            CHECK(all_finite(c.dparameters, c.parameter_count));
            free(stepped);
            free_case(&c);
        }
    }
}

// NaN and infinity are not papered over: they reach the rows that see them (and may reach a few before, since 0 times
// NaN is NaN).
static void bad_input_is_seen(void) {
    const real bad[] = {NAN, INFINITY, -INFINITY, nanf("1")}; // the last one has other bits than the first
    for (int v = 0; v < VARIANTS; v++) {
        for (int i = 0; i < 12; i++) {
            Case c = make_case(variant_at(v), 1, 40, 1, 16, 0);
            c.qkv[20 * 48 + i / 4 * 16 + 3] = bad[i % 4];
            forward_and_backward(&c);
            CHECK(!all_finite(c.dqkv + 20 * 48, 48));
            int window = c.config.window, end = window && window < 20 ? 20 + window : 40;
            for (int t = i < 4 ? end : 20; t < end; t++) CHECK(!all_finite(c.out + t * 16, 16));
            CHECK(all_finite(c.out, 8 * 16));
            CHECK(!all_finite(c.out + 20 * 16, 16));
            free_case(&c);
        }
    }
}

static void memory_is_linear_in_T(void) {
    for (int v = 0; v < QUADRATIC_VARIANTS; v++) {
        const Attention *a = attention_find(quadratic_variants[v].name);
        AttentionConfig small = {.B = 1, .T = 16384, .C = 768, .NH = 12, .HS = 64, .max_T = 16384}, large = small;
        large.T = large.max_T = 4 * small.T;
        CHECK(a->work_size(&large) <= 4 * a->work_size(&small));
        CHECK(a->saved_size(&large) == 4 * a->saved_size(&small));
        CHECK(a->cache_size(&large) == 4 * a->cache_size(&small));
    }
}

// ---- decay

// All keys alike: a weight is the power of gamma alone, and out is the share of the positions whose value is 1. The
// cache is filled with a gamma that hides everything but the query's own key, since there gamma leaves no trace.
static void check_far_decoding(const Variant *variant) {
    enum { LAST = 131071, BLOCK = 4096, HS = 8 };
    static const double logits[] = {-7, 0, 3, 8, 20, 80};
    AttentionConfig config = {.B = 1, .T = BLOCK, .C = HS, .NH = 1, .max_T = LAST + 1};
    variant_configure(&config, variant);
    const Attention *a = attention_find(variant->name);
    real *qkv = allocate(3 * BLOCK * HS), *out = allocate(BLOCK * HS), *work = allocate(a->work_size(&config));
    real *cache = allocate(a->cache_size(&config)), parameter = -100;
    for (int i = 0; i < 3 * BLOCK * HS; i++) qkv[i] = i % (3 * HS) < 2 * HS ? 0.1f : (i / (3 * HS)) % 3 == 0;
    for (int pos = 0; pos <= LAST; pos += BLOCK) a->step(out, cache, pos, BLOCK, qkv, NULL, &parameter, work, &config);
    for (int g = 0; g < 6; g++) {
        double gamma = 1 / (1 + exp(-logits[g])), ones = 0, all = 0;
        for (int j = 0; j <= LAST; j++) {
            double weight = pow(gamma, LAST - j);
            all += weight;
            if (j % BLOCK % 3 == 0) ones += weight;
        }
        parameter = (real)logits[g];
        const real *last = qkv + (size_t)(BLOCK - 1) * 3 * HS;
        a->step(out, cache, LAST, 1, last, NULL, &parameter, work, &config);
        CHECK_CLOSE(out[HS - 1], ones / all, 1e-3); // as far as a float sum of 131072 weights goes
    }
    free(qkv), free(out), free(work), free(cache);
}

static void decay_reaches_131072_tokens(void) {
    for (int v = 0; v < VARIANTS; v++) {
        const Variant *variant = variant_at(v);
        if (strstr(variant->options, "learned") && !strstr(variant->options, "window")) check_far_decoding(variant);
    }
}

static void any_learned_decay_is_finite(void) {
    static const real values[] = {-FLT_MAX, -1e30f, -100, -7, 0, 17, 100, 1e30f, FLT_MAX};
    for (int v = 0; v < VARIANTS; v++) {
        for (int i = 0; i < 9; i++) {
            Case c = make_case(variant_at(v), 1, 300, 1, 8, 0);
            real *out = allocate(c.numbers);
            c.parameters[0] = values[i];
            forward_and_backward(&c);
            step(&c, out, 0, 300);
            CHECK(all_finite(c.out, c.numbers) && all_finite(out, c.numbers));
            CHECK(all_finite(c.dqkv, 3 * c.numbers) && all_finite(c.dparameters, c.parameter_count));
            free(out);
            free_case(&c);
        }
    }
}

// A parameter that is not a number is seen.
static void bad_decay_is_seen(void) {
    for (int v = 0; v < VARIANTS; v++) {
        Case c = make_case(variant_at(v), 1, 40, 1, 8, 0);
        c.parameters[0] = NAN;
        forward_and_backward(&c);
        if (c.parameter_count) CHECK(!all_finite(c.out + 8, 8) && !all_finite(c.dparameters, 1));
        free_case(&c);
    }
}

// ---- the window

// Far beyond max_T, in pieces of up to T: the cache is a ring.
static void a_window_streams(void) {
    for (int v = 0; v < VARIANTS; v++) {
        Case c = make_case(variant_at(v), 1, 1500, 2, 8, 0);
        if (c.config.window) {
            size_t cache_size = c.attention->cache_size(&c.config);
            real *out = allocate(c.numbers);
            forward(&c);
            c.config.T = 60, c.config.max_T = 64;
            CHECK(c.attention->cache_size(&c.config) < cache_size);
            for (size_t i = 0; i < cache_size; i++) c.cache[i] = NAN;
            for (int pos = 0, n; pos < 1500; pos += n) {
                n = pos % 7 ? 1 + pos % 60 : 1;
                if (n > 1500 - pos) n = 1500 - pos;
                step(&c, out, pos, n);
            }
            CHECK(difference(out, c.out, c.numbers) < 2e-6);
            free(out);
        }
        free_case(&c);
    }
}

static long rows_visited; // by tiles, each counted by itself

static void count_scores(real *score, const real *dot, const real *distance, int n, const AttentionConfig *config) {
    (void)distance, (void)config;
#pragma omp atomic
    rows_visited++;
    for (int j = 0; j < n; j++) score[j] = dot[j] * dot[j];
}

static void count_slopes(real *slope, real *pull, const real *dot, const real *distance, int n,
                         const AttentionConfig *config) {
    (void)distance, (void)config;
    for (int j = 0; j < n; j++) slope[j] *= 2 * dot[j], pull[j] = 0;
}

// Tiles that a query is in, per token, forward and backward.
static double tiles_per_token(int T, int window, int decay) {
    QuadraticKernel kernel = {.normalizer = NORMALIZER_KERNEL, .scores = count_scores, .slopes = count_slopes};
    Case c = make_case(&quadratic_variants[1], 1, T, 2, 8, 0);
    c.config.window = window;
    c.config.decay = decay, c.config.decay_shortest = c.config.decay_longest = 1.5f;
    real *work = allocate(quadratic_work_size(&c.config));
    rows_visited = 0;
    quadratic_forward(&kernel, c.out, c.saved, c.qkv, NULL, work, &c.config);
    quadratic_backward(&kernel, c.dqkv, NULL, c.dout, c.qkv, c.out, c.saved, NULL, work, &c.config);
    free(work);
    free_case(&c);
    return (double)rows_visited / T;
}

// The time per token does not grow with T, neither with a window nor with a decay that hides what is far.
static void what_nobody_sees_costs_nothing(void) {
    double near = tiles_per_token(1024, 64, DECAY_NONE), faded = tiles_per_token(1024, 0, DECAY_FIXED);
    CHECK(tiles_per_token(4096, 64, DECAY_NONE) < 1.1 * near);
    CHECK(tiles_per_token(4096, 0, DECAY_FIXED) < 1.1 * faded);
    CHECK(near < 0.4 * tiles_per_token(1024, 0, DECAY_NONE));
}

static void flops_count_the_keys_seen(void) {
    static const int windows[] = {0, 1, 7, 40, 41, 1000};
    for (int w = 0; w < 6; w++) {
        AttentionConfig config = {.T = 40, .C = 64, .NH = 2, .HS = 32, .window = windows[w]};
        double keys = 0;
        for (int i = 0; i < 40; i++) keys += windows[w] && windows[w] < i + 1 ? windows[w] : i + 1;
        CHECK_CLOSE(quadratic_flops(&config), keys / 40 * 4 * 64, 1e-9);
    }
}

int main(void) {
    RUN(forward_matches_the_naive_twins_at_odd_sizes);
    RUN(fixture_data);
    RUN(tile_sizes_agree);
    RUN(decoding_equals_forward);
    RUN(prefill_in_pieces_equals_forward);
    RUN(causality_is_exact);
    RUN(same_bits_from_any_number_of_threads);
    RUN(extremes);
    RUN(near_pairs_keep_their_digits);
    RUN(no_gradient_below_the_least_norm);
    RUN(no_nan_from_finite_input);
    RUN(bad_input_is_seen);
    RUN(memory_is_linear_in_T);
    RUN(decay_reaches_131072_tokens);
    RUN(any_learned_decay_is_finite);
    RUN(bad_decay_is_seen);
    RUN(a_window_streams);
    RUN(what_nobody_sees_costs_nothing);
    RUN(flops_count_the_keys_seen);
    return test_summary();
}
