// Rows that hold several documents: every attention gives each of them the bits that it gets alone, forward and
// backward, with any number of threads, and nothing of one document reaches another.
#include "test_layouts.h"
#include "test_linear_cases.h"

#include <omp.h>

enum { ALL_VARIANTS = LINEAR_VARIANTS + QUADRATIC_CPU_VARIANTS, NH = 2, HS = 12 };

static const Variant *variant_at(int v) {
    return v < LINEAR_VARIANTS ? &linear_variants[v] : quadratic_cpu_variant(v - LINEAR_VARIANTS);
}

static Case make_documents(const Variant *variant, const Layout *layout) {
    int n = layout->B * layout->T, *positions = memory_allocate((size_t)n, sizeof(int), "positions");
    Case c = make_case(variant, layout->B, layout->T, NH, HS);
    layout_positions(positions, layout);
    c.config.positions = positions;
    c.config.packed = 1;
    c.config.chunk = layout->chunk;
    return c;
}

static void free_documents(Case *c) {
    free((int *)c->config.positions);
    free_case(c);
}

// The document at rows [first, first + length) as a batch of its own; shares the constants and parameters.
static Case document_alone(const Case *packed, int first, int length) {
    size_t C = (size_t)packed->config.C;
    Case c = make_case(packed->variant, 1, length, NH, HS);
    c.config = packed->config;
    c.config.B = 1, c.config.T = length, c.config.packed = 0, c.config.positions = NULL;
    memcpy(c.constants, packed->constants, c.constant_count * sizeof(real));
    memcpy(c.parameters, packed->parameters, c.parameter_count * sizeof(real));
    memcpy(c.qkv, packed->qkv + first * 3 * C, 3 * c.numbers * sizeof(real));
    memcpy(c.dout, packed->dout + first * C, c.numbers * sizeof(real));
    return c;
}

static int same_bits(const real *a, const real *b, size_t n) {
    return memcmp(a, b, n * sizeof(real)) == 0;
}

// The bits of each document, and the sum of what they give to the parameters.
static void check_against_documents_alone(Case *packed, const Layout *layout) {
    size_t C = (size_t)packed->config.C;
    real *dparameters = test_buffer(packed->parameter_count);
    run_backward(packed);
    for (int i = 0, first = 0; first < layout->B * layout->T; first += layout->lengths[i++]) {
        Case alone = document_alone(packed, first, layout->lengths[i]);
        run_backward(&alone);
        CHECK_VARIANT(packed->variant, same_bits(packed->out + first * C, alone.out, alone.numbers));
        CHECK_VARIANT(packed->variant, same_bits(packed->dqkv + first * 3 * C, alone.dqkv, 3 * alone.numbers));
        for (size_t k = 0; k < alone.parameter_count; k++) dparameters[k] += alone.dparameters[k];
        free_case(&alone);
    }
    CHECK_VARIANT(packed->variant, difference(packed->dparameters, dparameters, packed->parameter_count) < 2e-5);
    free(dparameters);
}

static void test_documents_equal_documents_alone(void) {
    for (int v = 0; v < ALL_VARIANTS; v++)
        for (int l = 0; l < LAYOUTS; l++) {
            Case c = make_documents(variant_at(v), &layouts[l]);
            check_against_documents_alone(&c, &layouts[l]);
            free_documents(&c);
        }
}

// Also where there are fewer heads than threads, and each takes a part of a row.
static void test_documents_do_not_depend_on_threads(void) {
    static const int threads[] = {1, 2, 7};
    for (int v = 0; v < ALL_VARIANTS; v++)
        for (int l = 0; l < LAYOUTS; l++) {
            Case c = make_documents(variant_at(v), &layouts[l]);
            run_backward(&c);
            real *out = copy_of(c.out, c.numbers), *dqkv = copy_of(c.dqkv, 3 * c.numbers);
            real *dparameters = copy_of(c.dparameters, c.parameter_count);
            for (int i = 0; i < 3; i++) {
                omp_set_num_threads(threads[i]);
                memset(c.out, 0, c.numbers * sizeof(real)), memset(c.dqkv, 0, 3 * c.numbers * sizeof(real));
                run_backward(&c);
                CHECK_VARIANT(c.variant, same_bits(c.out, out, c.numbers));
                CHECK_VARIANT(c.variant, same_bits(c.dqkv, dqkv, 3 * c.numbers));
                CHECK_VARIANT(c.variant, same_bits(c.dparameters, dparameters, c.parameter_count));
            }
            omp_set_num_threads(1);
            free(out), free(dqkv), free(dparameters);
            free_documents(&c);
        }
}

// Positions that cut nothing change nothing; nor does room for documents where there are none.
static void test_whole_rows_equal_rows_without_positions(void) {
    static const Layout whole = {2, 140, {140, 140}, 0};
    for (int v = 0; v < ALL_VARIANTS; v++) {
        Case c = make_documents(variant_at(v), &whole);
        run_backward(&c);
        real *out = copy_of(c.out, c.numbers), *dqkv = copy_of(c.dqkv, 3 * c.numbers);
        free((int *)c.config.positions);
        c.config.positions = NULL;
        for (; c.config.packed >= 0; c.config.packed--) {
            run_backward(&c);
            CHECK_VARIANT(c.variant, same_bits(c.out, out, c.numbers));
            CHECK_VARIANT(c.variant, same_bits(c.dqkv, dqkv, 3 * c.numbers));
        }
        free(out), free(dqkv);
        free_documents(&c);
    }
}

// Not a number in the middle document: the others never look at it.
static void test_nothing_crosses_a_boundary(void) {
    static const Layout three = {1, 120, {40, 33, 47}, 0};
    for (int v = 0; v < ALL_VARIANTS; v++) {
        Case c = make_documents(variant_at(v), &three);
        size_t C = (size_t)c.config.C, ends[] = {40 * C, 73 * C};
        run_backward(&c);
        real *out = copy_of(c.out, c.numbers), *dqkv = copy_of(c.dqkv, 3 * c.numbers);
        for (size_t i = 3 * ends[0]; i < 3 * ends[1]; i++) c.qkv[i] = NAN;
        run_backward(&c);
        CHECK_VARIANT(c.variant, isnan(c.out[ends[0]]) && isnan(c.out[ends[1] - 1]));
        CHECK_VARIANT(c.variant, same_bits(c.out, out, ends[0]));
        CHECK_VARIANT(c.variant, same_bits(c.out + ends[1], out + ends[1], c.numbers - ends[1]));
        CHECK_VARIANT(c.variant, same_bits(c.dqkv, dqkv, 3 * ends[0]));
        CHECK_VARIANT(c.variant, same_bits(c.dqkv + 3 * ends[1], dqkv + 3 * ends[1], 3 * (c.numbers - ends[1])));
        free(out), free(dqkv);
        free_documents(&c);
    }
}

static void test_spans_are_listed(void) {
    static const int positions[] = {0, 1, 0, 0, 1, 2, 0, 1, 2, 3, 4, 5};
    static const Span expected[] = {{0, 2}, {2, 1}, {3, 3}};
    AttentionConfig config = {.B = 2, .T = 6, .positions = positions};
    Span span = {0, 0};
    for (int i = 0; i < 3; i++) {
        CHECK(attention_next_span(&span, 6, &config));
        CHECK(span.first == expected[i].first && span.count == expected[i].count);
    }
    CHECK(!attention_next_span(&span, 6, &config));
    span = (Span){1, 0}; // in the middle of the first
    CHECK(attention_next_span(&span, 3, &config) && span.first == 2 && span.count == 1);
    CHECK(!attention_next_span(&span, 3, &config));
    span = (Span){6, 0};
    CHECK(attention_next_span(&span, 12, &config) && span.first == 6 && span.count == 6);
    config.positions = NULL;
    span = (Span){6, 0};
    CHECK(attention_next_span(&span, 12, &config) && span.first == 6 && span.count == 6);
    CHECK(!attention_next_span(&span, 12, &config));
}

int main(void) {
    omp_set_num_threads(1);
    RUN(test_spans_are_listed);
    RUN(test_documents_equal_documents_alone);
    RUN(test_documents_do_not_depend_on_threads);
    RUN(test_whole_rows_equal_rows_without_positions);
    RUN(test_nothing_crosses_a_boundary);
    return test_summary();
}
