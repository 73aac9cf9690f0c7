// The quadratic attentions in double precision: backward against finite differences, forward against the naive twins.
#include "attention.h"
#include "naive.h"
#include "test_variants.h"
#include "core/base/memory.h"
#include "core/base/random.h"
#include "core/base/test.h"

#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#endif

// Less steep kernels, where finite differences see more of the slopes.
static const Variant smoother[] = {
    {"yat, eps 0.1", "yat", 0, "--eps 0.1", 0, 0},
    {"yat_spherical, eps 0.01", "yat-spherical", 0, "--eps 0.01", 0, 0},
};
enum { VARIANTS = QUADRATIC_CPU_VARIANTS + sizeof smoother / sizeof smoother[0] };

static const Variant *variant_at(int v) {
    return v < QUADRATIC_CPU_VARIANTS ? quadratic_cpu_variant(v) : &smoother[v - QUADRATIC_CPU_VARIANTS];
}

typedef struct {
    const Attention *attention;
    AttentionConfig config;
    size_t numbers; // of out; qkv has three times as many
    real *qkv, *dqkv, *out, *dout, *saved, *work;
    size_t parameter_count;
    real *parameters, *dparameters;
} Case;

static real *allocate(size_t n) {
    return memory_allocate_zeroed(n, sizeof(real), "test buffer");
}

// Every fourth key lies near its own query, as pairs do that a kernel has learnt to match.
static void fill_inputs(Case *c) {
    size_t C = c->config.C;
    for (size_t i = 0; i < 3 * c->numbers; i++) c->qkv[i] = random_normal(1, i);
    for (size_t i = 0; i < c->numbers; i++) c->dout[i] = random_normal(2, i);
    for (size_t row = 0; row < c->numbers / C; row += 4) {
        real *q = c->qkv + row * 3 * C, *k = q + C;
        for (size_t d = 0; d < C; d++) k[d] = 0.9 * q[d] + 0.2 * k[d];
    }
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
    AttentionTensor list[ATTENTION_TENSORS_MAX];
    attention_parameters(c.attention, &c.config, list, &c.parameter_count);
    c.parameters = allocate(c.parameter_count + 1);
    c.dparameters = allocate(c.parameter_count + 1);
    attention_draw(c.attention, NULL, c.parameters, 0, &c.config);
    fill_inputs(&c);
    return c;
}

static void free_case(Case *c) {
    real *all[] = {c->qkv, c->dqkv, c->out, c->dout, c->saved, c->work, c->parameters, c->dparameters};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

static void forward_and_backward(Case *c) {
    c->attention->forward(c->out, c->saved, c->qkv, NULL, c->parameters, c->work, &c->config);
    c->attention->backward(c->dqkv, c->dparameters, c->dout, c->qkv, c->out, c->saved, NULL, c->parameters, c->work,
                           &c->config);
}

static double loss(Case *c) {
    double sum = 0;
    c->attention->forward(c->out, NULL, c->qkv, NULL, c->parameters, c->work, &c->config);
    for (size_t i = 0; i < c->numbers; i++) sum += c->out[i] * c->dout[i];
    return sum;
}

static double loss_moved(Case *c, real *x, double by) {
    real old = *x;
    *x = old + by;
    double moved = loss(c);
    *x = old;
    return moved;
}

// Fourth-order central differences.
static void check_derivative(Case *c, real found, real *x) {
    double h = 1e-4, near = loss_moved(c, x, h) - loss_moved(c, x, -h);
    double far = loss_moved(c, x, 2 * h) - loss_moved(c, x, -2 * h), expected = (8 * near - far) / (12 * h);
    CHECK_CLOSE(found, expected, 1e-7 * fmax(1, fabs(expected)));
}

// At every `every`-th input and at every parameter.
static void check_gradient(Case *c, size_t every) {
    // Backward overwrites the one and adds to the other.
    for (size_t i = 0; i < 3 * c->numbers; i++) c->dqkv[i] = 12345;
    for (size_t i = 0; i < c->parameter_count; i++) c->dparameters[i] = 1 + i;
    forward_and_backward(c);
    for (size_t i = 0; i < 3 * c->numbers; i += every) check_derivative(c, c->dqkv[i], &c->qkv[i]);
    for (size_t i = 0; i < c->parameter_count; i++) check_derivative(c, c->dparameters[i] - (1 + i), &c->parameters[i]);
}

static void gradients_match_finite_differences(void) {
    static const int sizes[][5] = {// B, T, NH, HS, tile
                                   {2, 17, 3, 8, 0},
                                   {1, 1, 1, 16, 0},
                                   {1, 40, 1, 5, 7},
                                   {1, 65, 2, 32, 16}};
    for (int v = 0; v < VARIANTS; v++) {
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            Case c = make_case(variant_at(v), sizes[s][0], sizes[s][1], sizes[s][2], sizes[s][3], sizes[s][4]);
            check_gradient(&c, s < 2 ? 3 : 37);
            free_case(&c);
        }
    }
}

// Through documents of 1, 17, 1 and 21 rows that share a row.
static void gradients_of_documents(void) {
    int positions[40];
    for (int t = 0; t < 40; t++) positions[t] = t < 1 ? t : t < 18 ? t - 1 : t < 19 ? 0 : t - 19;
    for (int v = 0; v < VARIANTS; v++)
        for (int tile = 0; tile <= 7; tile += 7) {
            Case c = make_case(variant_at(v), 1, 40, 2, 5, tile);
            c.config.packed = 1, c.config.positions = positions;
            free(c.work);
            c.work = allocate(c.attention->work_size(&c.config));
            check_gradient(&c, 11);
            free_case(&c);
        }
}

// A key equal to its query: the distance is 0, the score |q|^4 / eps.
static void gradients_where_q_equals_k(void) {
    for (int v = 0; v < VARIANTS; v++) {
        Case c = make_case(variant_at(v), 1, 6, 1, 8, 0);
        if (c.config.normalizer == NORMALIZER_KERNEL) {
            for (int d = 0; d < 8; d++) c.qkv[4 * 24 + 8 + d] = c.qkv[4 * 24 + d] = 0.3 * (d - 3);
        }
        double h = c.config.eps > 0 ? 1e-3 * sqrt(c.config.eps) : 1e-4;
        forward_and_backward(&c);
        for (size_t i = 4 * 24; i < 4 * 24 + 16; i++) {
            double expected = (loss_moved(&c, &c.qkv[i], h) - loss_moved(&c, &c.qkv[i], -h)) / (2 * h);
            CHECK_CLOSE(c.dqkv[i], expected, 2e-5 * fmax(1, fabs(expected)));
        }
        free_case(&c);
    }
}

// All threads on one head after the other (few heads, many tiles) and each thread on its own heads: the same bits.
static void gradients_do_not_depend_on_threads(void) {
#ifdef _OPENMP
    int threads[] = {1, 2, 7};
    for (int v = 0; v < VARIANTS; v++) {
        real *expected = allocate(3 * 3 * 200 * 8), decays[3] = {0};
        for (int t = 0; t < 3; t++) {
            omp_set_num_threads(threads[t]);
            Case c = make_case(variant_at(v), 1, 200, 3, 8, 9);
            forward_and_backward(&c);
            if (t == 0) memcpy(expected, c.dqkv, 3 * c.numbers * sizeof(real));
            if (t == 0) memcpy(decays, c.dparameters, c.parameter_count * sizeof(real));
            CHECK(memcmp(expected, c.dqkv, 3 * c.numbers * sizeof(real)) == 0);
            CHECK(memcmp(decays, c.dparameters, c.parameter_count * sizeof(real)) == 0);
            free_case(&c);
        }
        free(expected);
    }
    omp_set_num_threads(1);
#endif
}

static void copy_head(double *to, const real *from, int T, int stride, int HS) {
    for (int t = 0; t < T; t++) {
        for (int d = 0; d < HS; d++) to[t * HS + d] = from[t * stride + d];
    }
}

static void check_against_naive(Case *c) {
    NaiveAttention *naive = naive_twin(naive_quadratic_twins, c->attention);
    int T = c->config.T, C = c->config.C, HS = c->config.HS;
    size_t n = (size_t)T * HS;
    double *q = memory_allocate(4 * n, sizeof *q, "head"), *k = q + n, *v = k + n, *o = v + n;
    loss(c);
    for (int bh = 0; bh < c->config.B * c->config.NH; bh++) {
        int row = bh / c->config.NH * T, column = bh % c->config.NH * HS;
        const real *head = c->qkv + (size_t)row * 3 * C + column;
        copy_head(q, head, T, 3 * C, HS);
        copy_head(k, head + C, T, 3 * C, HS);
        copy_head(v, head + 2 * C, T, 3 * C, HS);
        naive(o, q, k, v, NULL, c->parameters, bh % c->config.NH, T, &c->config);
        for (size_t i = 0; i < n; i++) CHECK_CLOSE(c->out[(row + i / HS) * C + column + i % HS], o[i], 1e-11);
    }
    free(q);
}

static void forward_matches_the_naive_twins(void) {
    for (int v = 0; v < VARIANTS; v++) {
        Case small = make_case(variant_at(v), 2, 130, 3, 20, 0), one = make_case(variant_at(v), 3, 1, 1, 64, 0);
        check_against_naive(&small);
        check_against_naive(&one);
        free_case(&small);
        free_case(&one);
    }
}

int main(void) {
#ifdef _OPENMP
    omp_set_num_threads(1); // thousands of tiny calls; the number of threads has a test of its own
#endif
    RUN(gradients_match_finite_differences);
    RUN(gradients_of_documents);
    RUN(gradients_where_q_equals_k);
    RUN(gradients_do_not_depend_on_threads);
    RUN(forward_matches_the_naive_twins);
    return test_summary();
}
