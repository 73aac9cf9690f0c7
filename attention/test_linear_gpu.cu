// The linear attentions on the GPU against their C twins: every mechanism and variant, forward, backward and decoding,
// at sizes that fill no tile, with many chunks and many segments; causality, repeatability, extremes and memory.
#include "linear_denominators.cuh"
#include "pairs_gpu.h"

extern "C" {
#include "core/base/memory.h"
#include "core/base/random.h"
#include "core/base/test.h"
#include "test_layouts.h"
#include "test_linear_fixture.h"
#include "test_variants.h"
}

#include <algorithm>
#include <functional>
#include <vector>

// Of the largest number of the tensor.
typedef struct {
    double out, dq_dk, dv, dparameters;
} Bounds;

#ifdef PRECISION_BF16
// Inputs are rounded before either side sees them. Outputs and gradients are rounded once at the end, to 8 bits, and
// the backward pass starts from rounded outputs; products round their factors, features and states, to 8 bits,
// which shows most in dq and dk of short heads, where few features of slay's upper nodes dominate. A learned decay's
// gradient sums scores times their gradients, which cancel in every row, with the distances as weights.
static const Bounds twin_bounds = {8e-3, 8e-2, 8e-3, 0.12};
// Only one side rounds the inputs, which moves sums of signed scores most.
static const Bounds fixture_bounds = {1e-2, 2e-2, 1.2e-2, 2e-2}, signed_fixture_bounds = {4e-2, 6e-2, 4e-2, 6e-2};
#else
// A learned decay's gradient is a sum over all pairs, in which most cancels.
static const Bounds twin_bounds = {1e-5, 2e-5, 1e-5, 3e-5}, fixture_bounds = twin_bounds,
                    signed_fixture_bounds = twin_bounds;
#endif
// Rows of documents: what reaches a decay is a sum of pairs that cancel, each hundreds of times what is left. For such
// rows a plain sum in float, pair by pair, is off by up to 3.3e-5 of the result (of 200 draws; half are within 2e-7).
static const Bounds document_bounds = {twin_bounds.out, twin_bounds.dq_dk, twin_bounds.dv, 2 * twin_bounds.dparameters};

// ---- every mechanism and variant

// What most tests leave out, because few of the kernels' lines know of it.
static bool is_special(const Variant &variant) {
    for (const char *option : {"--fusion flat", "--learn", "--decay"})
        if (strstr(variant.options, option)) return true;
    return false;
}

// Those of the C twins, and two whose denominators are at their floor; then the special ones.
static const std::vector<Variant> all_variants() {
    std::vector<Variant> all;
    for (const Variant &variant : linear_variants)
        if (!is_special(variant)) all.push_back(variant);
    all.push_back({"elu, all sums floored", "elu", 0, "--denominator clamp", 1e6f, 0});
    all.push_back({"slay maclaurin, negative sums floored", "slay", 0, "--R 2 --M 8 --P 1 --poly maclaurin", 1e6f, 0});
    for (const Variant &variant : linear_variants)
        if (is_special(variant)) all.push_back(variant);
    return all;
}
static const std::vector<Variant> variants = all_variants();
static const int ALL_VARIANTS = (int)variants.size();
static const int VARIANTS = (int)std::count_if(variants.begin(), variants.end(), std::not_fn(is_special));

typedef struct {
    int B, T, NH, HS;
    int chunk;      // rows of a segment; 0: chosen by the core
    size_t numbers; // scratch of the exact polynomial's groups of heads; 0: the default
} Shape;

// ---- buffers

typedef struct {
    const Variant *variant;
    const Attention *cpu;
    const AttentionGPU *gpu;
    AttentionConfig config;
    size_t numbers, constant_count, parameter_count; // of out; qkv has three times as many
    float *qkv, *dout, *out, *dqkv, *saved;          // the C twin's
    float *constants, *parameters, *dparameters;
    int *positions, *gpu_positions;                  // (B, T) of tokens in their documents, on both sides, or NULL
    floatX *gpu_qkv, *gpu_dout, *gpu_out, *gpu_dqkv; // the same on the device
    float *gpu_saved, *gpu_constants, *gpu_parameters, *gpu_dparameters, *gpu_work, *gpu_cache; // constants are packed
} Case;

static float *host_buffer(size_t n) {
    return (float *)memory_allocate_zeroed(n + 1, sizeof(float), "test buffer");
}

template <typename Number> static Number *device_buffer(size_t n) {
    Number *buffer = NULL;
    if (n) cuda_check(cudaMalloc((void **)&buffer, n * sizeof(Number)));
    return buffer;
}

template <typename Number> static void to_device(Number *device, const float *host, size_t n) {
    if (!n) return;
    Number *numbers = (Number *)memory_allocate(n, sizeof(Number), "test buffer");
    for (size_t i = 0; i < n; i++) numbers[i] = from_float<Number>(host[i]);
    cuda_check(cudaMemcpy(device, numbers, n * sizeof(Number), cudaMemcpyHostToDevice));
    free(numbers);
}

template <typename Number> static float *from_device(const Number *device, size_t n) {
    Number *numbers = (Number *)memory_allocate(n, sizeof(Number), "test buffer");
    float *host = host_buffer(n);
    cuda_check(cudaMemcpy(numbers, device, n * sizeof(Number), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < n; i++) host[i] = to_float(numbers[i]);
    free(numbers);
    return host;
}

static AttentionConfig configuration(const Variant *variant, Shape shape) {
    AttentionConfig config;
    memset(&config, 0, sizeof config);
    config.B = shape.B, config.T = shape.T, config.NH = shape.NH;
    config.C = shape.NH * shape.HS, config.max_T = shape.T + 30, config.seed = 7;
    variant_configure(&config, variant);
    config.chunk = shape.chunk;
    return config;
}

static float rounded(double x) {
    return to_float(from_float<floatX>((float)x));
}

// Every fourth key lies near its own query, as pairs do that a kernel has learnt to match. Rows for rff are of length 2
// whatever the head size, so that its kernel exp(-|q - k|^2 / 2) is not zero: with long rows all that is left of it is
// cosines of large angles, which cancel down to rounding errors.
static void fill_inputs(Case *c) {
    size_t C = (size_t)c->config.C;
    double length = strcmp(c->variant->name, "rff") ? 1 : 2 / sqrt(c->config.HS);
    for (size_t i = 0; i < 3 * c->numbers; i++)
        c->qkv[i] = rounded((i / C % 3 == 2 ? 1 : length) * random_normal(1, i));
    for (size_t i = 0; i < c->numbers; i++) c->dout[i] = rounded(random_normal(2, i));
    for (size_t row = 0; row < c->numbers / C; row += 4) {
        float *q = c->qkv + row * 3 * C, *k = q + C;
        for (size_t i = 0; i < C; i++) k[i] = rounded(0.9 * q[i] + 0.3 * k[i]);
    }
}

// The constants as the GPU's functions want them.
static void pack_constants(Case *c) {
    if (!c->gpu->pack) {
        to_device(c->gpu_constants, c->constants, c->constant_count);
        return;
    }
    float *constants = device_buffer<float>(c->constant_count);
    to_device(constants, c->constants, c->constant_count);
    c->gpu->pack(c->gpu_constants, constants, c->gpu_parameters, &c->config, 0);
    cuda_check(cudaDeviceSynchronize());
    if (constants) cuda_check(cudaFree(constants));
}

static Case make_case_of(const Variant *variant, const AttentionConfig *config) {
    Case c;
    memset(&c, 0, sizeof c);
    c.variant = variant;
    c.cpu = attention_find(variant->name);
    c.gpu = attention_gpu_find(variant->name);
    c.config = *config;
    c.numbers = (size_t)config->B * config->T * config->C;
    c.constant_count = attention_constant_count(c.cpu, &c.config);
    c.qkv = host_buffer(3 * c.numbers), c.dqkv = host_buffer(3 * c.numbers);
    c.out = host_buffer(c.numbers), c.dout = host_buffer(c.numbers);
    c.saved = host_buffer(c.cpu->saved_size(&c.config));
    c.parameter_count = attention_parameter_count(c.cpu, &c.config);
    c.constants = host_buffer(c.constant_count);
    c.parameters = host_buffer(c.parameter_count), c.dparameters = host_buffer(c.parameter_count);
    attention_draw(c.cpu, c.constants, c.parameters, 0, &c.config);
    fill_inputs(&c);
    c.gpu_qkv = device_buffer<floatX>(3 * c.numbers), c.gpu_dqkv = device_buffer<floatX>(3 * c.numbers);
    c.gpu_out = device_buffer<floatX>(c.numbers), c.gpu_dout = device_buffer<floatX>(c.numbers);
    c.gpu_saved = device_buffer<float>(c.gpu->saved_size(&c.config));
    c.gpu_constants = device_buffer<float>(c.gpu->pack ? c.gpu->packed_size(&c.config) : c.constant_count);
    c.gpu_cache = device_buffer<float>(c.gpu->cache_size(&c.config));
    c.gpu_parameters = device_buffer<float>(c.parameter_count);
    c.gpu_dparameters = device_buffer<float>(c.parameter_count);
    to_device(c.gpu_parameters, c.parameters, c.parameter_count);
    pack_constants(&c);
    return c;
}

static Case make_case(const Variant *variant, Shape shape) {
    pairs_gpu_group_numbers = shape.numbers ? shape.numbers : (size_t)PAIRS_GROUP_NUMBERS;
    AttentionConfig config = configuration(variant, shape);
    return make_case_of(variant, &config);
}

static void free_case(Case *c) {
    float *host[] = {c->qkv, c->dqkv, c->out, c->dout, c->saved, c->constants, c->parameters, c->dparameters};
    void *device[] = {c->gpu_qkv,       c->gpu_dqkv,       c->gpu_out,         c->gpu_dout, c->gpu_saved,
                      c->gpu_constants, c->gpu_parameters, c->gpu_dparameters, c->gpu_work, c->gpu_cache};
    for (size_t i = 0; i < sizeof host / sizeof host[0]; i++) free(host[i]);
    free(c->positions);
    if (c->gpu_positions) cuda_check(cudaFree(c->gpu_positions));
    for (size_t i = 0; i < sizeof device / sizeof device[0]; i++)
        if (device[i]) cuda_check(cudaFree(device[i]));
}

// ---- running both

// Gradients of parameters are added to what is there.
static const float first_gradient = 0.25f;

static void run_cpu(Case *c, int with_backward) {
    float *work = host_buffer(c->cpu->work_size(&c->config));
    c->config.positions = c->positions;
    c->cpu->forward(c->out, c->saved, c->qkv, c->constants, c->parameters, work, &c->config);
    for (size_t i = 0; i < c->parameter_count; i++) c->dparameters[i] = first_gradient;
    if (with_backward)
        c->cpu->backward(c->dqkv, c->dparameters, c->dout, c->qkv, c->out, c->saved, c->constants, c->parameters, work,
                         &c->config);
    free(work);
}

// The scratch is made anew each time, of just the size asked for and full of garbage.
static void renew_work(Case *c) {
    if (c->gpu_work) cuda_check(cudaFree(c->gpu_work));
    c->gpu_work = device_buffer<float>(c->gpu->work_size(&c->config));
}

static void run_gpu(Case *c, int with_backward) {
    to_device(c->gpu_qkv, c->qkv, 3 * c->numbers);
    to_device(c->gpu_dout, c->dout, c->numbers);
    std::vector<float> gradients(c->parameter_count, first_gradient);
    to_device(c->gpu_dparameters, gradients.data(), c->parameter_count);
    renew_work(c);
    c->config.positions = c->gpu_positions;
    c->gpu->forward(c->gpu_out, c->gpu_saved, c->gpu_qkv, c->gpu_constants, c->gpu_parameters, c->gpu_work, &c->config,
                    0);
    if (with_backward) {
        renew_work(c);
        c->gpu->backward(c->gpu_dqkv, c->gpu_dparameters, c->gpu_dout, c->gpu_qkv, c->gpu_out, c->gpu_saved,
                         c->gpu_constants, c->gpu_parameters, c->gpu_work, &c->config, 0);
    }
    cuda_check(cudaDeviceSynchronize());
}

// Largest difference between columns [from, from + count) of rows of `width` numbers; NaN anywhere gives NaN.
static double difference(const float *found, const float *expected, size_t rows, size_t width, size_t from,
                         size_t count) {
    double worst = 0;
    for (size_t row = 0; row < rows; row++)
        for (size_t i = row * width + from; i < row * width + from + count; i++) {
            double error = fabs((double)found[i] - expected[i]);
            if (isnan(error)) return NAN;
            worst = fmax(worst, error);
        }
    return worst;
}

static double largest(const float *numbers, size_t rows, size_t width, size_t from, size_t count) {
    double found = 1e-30;
    for (size_t row = 0; row < rows; row++)
        for (size_t i = row * width + from; i < row * width + from + count; i++) found = fmax(found, fabs(numbers[i]));
    return found;
}

// Rows whose sum of scores is small compared with the largest of their head are noise if digits cancel in it: a sum of
// signed scores can be anything, and the exact square of <u, w> has lost what cancelled there, which is all of it for a
// query that is orthogonal to its only key. They are left out, by a gradient of 0 and, in `out`, by the expected
// number.
static double least_share_of_sum(const Case *c) {
    return c->variant->is_signed ? 0.2 : c->config.poly == POLY_EXACT ? 1e-4 : 0;
}

// What the C twin divides a row by; its quadratic core has kept the inverse.
static double denominator(const Case *c, size_t task, size_t t) {
    size_t T = (size_t)c->config.T;
    return c->config.poly == POLY_EXACT ? 1 / c->saved[2 * task * T + T + t] : c->saved[task * T + t];
}

static int is_noise(const Case *c, size_t row, size_t head) {
    size_t T = (size_t)c->config.T, NH = (size_t)c->config.NH, task = row / T * NH + head;
    double most = 0, least_share = least_share_of_sum(c);
    for (size_t t = 0; least_share > 0 && t < T; t++) most = fmax(most, fabs(denominator(c, task, t)));
    return least_share > 0 && !(fabs(denominator(c, task, row % T)) >= least_share * most);
}

static void leave_noise_out(const Case *c, float *numbers, const float *instead) {
    size_t HS = (size_t)c->config.HS, heads = c->numbers / HS;
    for (size_t i = 0; i < heads; i++)
        for (size_t k = i * HS; is_noise(c, i / c->config.NH, i % c->config.NH) && k < (i + 1) * HS; k++)
            numbers[k] = instead ? instead[k] : 0;
}

static void check_bound(const Case *c, const char *what, double found, double bound) {
    int holds = found <= bound;
    CHECK(holds && "within its bound");
    if (!holds)
        printf("    %s: %s is %.2g off, %.2g allowed (B %d, T %d, NH %d, HS %d, chunk %d)\n", c->variant->label, what,
               found, bound, c->config.B, c->config.T, c->config.NH, c->config.HS, c->config.chunk);
}

// ---- the same numbers as the C twin's

static void check_gradients(const Case *c, const Bounds *bounds) {
    static const char *const parts[] = {"dq", "dk", "dv"};
    size_t rows = (size_t)c->config.B * c->config.T, C = (size_t)c->config.C;
    float *dqkv = from_device(c->gpu_dqkv, 3 * c->numbers);
    for (size_t part = 0; part < 3; part++) {
        double scale = largest(c->dqkv, rows, 3 * C, part * C, C);
        // the output of a single row is v whatever q and k are: their gradients are rounding
        if (c->config.T == 1) scale = largest(c->dqkv, rows, 3 * C, 0, 3 * C);
        check_bound(c, parts[part], difference(dqkv, c->dqkv, rows, 3 * C, part * C, C) / scale,
                    part == 2 ? bounds->dv : bounds->dq_dk);
    }
    free(dqkv);
    if (!c->parameter_count) return;
    float *dparameters = from_device(c->gpu_dparameters, c->parameter_count);
    double scale = largest(c->dparameters, 1, c->parameter_count, 0, c->parameter_count);
    if (c->config.T == 1)
        scale = fmax(scale, largest(c->dqkv, rows, 3 * C, 0, 3 * C) * (double)C); // the same, summed up
    check_bound(c, "dparameters",
                difference(dparameters, c->dparameters, 1, c->parameter_count, 0, c->parameter_count) / scale,
                bounds->dparameters);
    free(dparameters);
}

static void check_output(const Case *c, const float *expected, const char *what) {
    size_t rows = (size_t)c->config.B * c->config.T, C = (size_t)c->config.C;
    float *out = from_device(c->gpu_out, c->numbers);
    leave_noise_out(c, out, expected);
    check_bound(c, what, difference(out, expected, rows, C, 0, C) / largest(expected, rows, C, 0, C), twin_bounds.out);
    free(out);
}

static void check_passes(Case *c) {
    run_cpu(c, 1);
    run_gpu(c, 1);
    check_output(c, c->out, "out");
    check_gradients(c, c->positions ? &document_bounds : &twin_bounds);
}

// The same without the rows that are noise in both.
static void check_passes_but_noise(Case *c) {
    run_cpu(c, 0);
    leave_noise_out(c, c->dout, NULL);
    check_passes(c);
}

static void compare_with_twin(const Variant *variant, Shape shape) {
    Case c = make_case(variant, shape);
    check_passes_but_noise(&c);
    free_case(&c);
}

static void compare_all(Shape shape) {
    for (int v = 0; v < VARIANTS; v++) compare_with_twin(&variants[v], shape);
}

static void compare_special(Shape shape) {
    for (int v = VARIANTS; v < ALL_VARIANTS; v++) compare_with_twin(&variants[v], shape);
}

// The fixture comes from float64, and what bf16 makes of its inputs moves the results. Its dout is 0 in rows whose
// signed sums are too small to compare; so is its out there.
static void check_fixture(const Safetensors *file, const char *group) {
    Variant variant = {group, fixture_attention(file, group), metadata_number(file, group, "signed"), "", 0, 0};
    AttentionConfig config = fixture_config(file, group);
    const uint64_t wide[] = {1, FIXTURE_T, 3 * FIXTURE_C}, narrow[] = {1, FIXTURE_T, FIXTURE_C};
    const Bounds *bounds = variant.is_signed ? &signed_fixture_bounds : &fixture_bounds;
    Case c = make_case_of(&variant, &config);
    read_tensor(c.qkv, file, "in", "qkv", 3, wide), read_tensor(c.dout, file, group, "dout", 3, narrow);
    read_tensor(c.out, file, group, "out", 3, narrow), read_tensor(c.dqkv, file, group, "dqkv", 3, wide);
    read_constants(c.constants, file, group, c.cpu, &c.config);
    pack_constants(&c);
    run_gpu(&c, 1);
    float *out = from_device(c.gpu_out, c.numbers);
    for (size_t i = 0; i < c.numbers; i++) out[i] = c.dout[i] == 0 ? 0 : out[i];
    check_bound(&c, "out",
                difference(out, c.out, FIXTURE_T, FIXTURE_C, 0, FIXTURE_C) /
                    largest(c.out, FIXTURE_T, FIXTURE_C, 0, FIXTURE_C),
                bounds->out);
    check_gradients(&c, bounds);
    free(out);
    free_case(&c);
}

static void test_fixtures(void) {
    Safetensors file;
    if (open_fixture(&file)) return;
    pairs_gpu_group_numbers = PAIRS_GROUP_NUMBERS;
    char group[64];
    for (int i = 0; fixture_group(group, sizeof group, &file, &i); i++) check_fixture(&file, group);
    safetensors_close(&file);
}

static void test_one_row(void) {
    Shape shape = {1, 1, 3, 32, 0, 0};
    compare_all(shape);
}

static void test_part_of_a_chunk(void) {
    Shape shape = {1, 63, 3, 64, 0, 0};
    compare_all(shape);
}

static void test_one_row_more_than_a_chunk(void) {
    Shape shape = {2, 65, 1, 128, 64, 0};
    compare_all(shape);
}

static void test_many_chunks(void) {
    Shape shape = {1, 200, 2, 32, 48, 0};
    compare_all(shape);
}

// The lengths of the four tests above, with the head sizes that they lack.
static void test_narrow_heads(void) {
    compare_all({1, 63, 3, 32, 0, 0});
    compare_all({3, 65, 1, 32, 16, 0});
}

static void test_common_heads(void) {
    compare_all({1, 1, 3, 64, 0, 0});
    compare_all({3, 65, 1, 64, 0, 0});
    compare_all({1, 200, 1, 64, 0, 0});
}

static void test_wide_heads(void) {
    compare_all({1, 1, 3, 128, 0, 0});
    compare_all({1, 63, 1, 128, 0, 0});
    compare_all({1, 200, 1, 128, 0, 0});
}

// Decay, trained tensors, the flat fusion: one chunk, several with the last not full, many segments.
static void test_special_variants_of_one_row(void) {
    compare_special({1, 1, 3, 32, 0, 0});
}
static void test_special_variants(void) {
    compare_special({2, 65, 2, 20, 0, 0});
}
static void test_special_variants_of_many_segments(void) {
    compare_special({1, 150, 2, 12, 16, 40000});
}

static void test_odd_head_size(void) {
    Shape shape = {2, 65, 1, 21, 13, 0}; // chunks of an odd size too: no kernel's blocks are full
    compare_all(shape);
}

// One head of one sequence: reading one row too many would go past the end of the tensors.
static void compare_one_sequence_of_odd_chunks(int is_slay) {
    Shape shape = {1, 29, 1, 5, 13, 0};
    for (int v = 0; v < VARIANTS; v++)
        if ((strcmp(variants[v].name, "slay") == 0) == is_slay) compare_with_twin(&variants[v], shape);
}
static void test_one_sequence_of_odd_chunks(void) {
    compare_one_sequence_of_odd_chunks(0);
}
static void test_one_sequence_of_odd_chunks_of_slay(void) {
    compare_one_sequence_of_odd_chunks(1);
}

// More rows than running_max_kernel has threads, so that each has several; and many segments, whose keys the backward
// pass goes over twice.
static void test_long_running_maximum(void) {
    static const Shape shapes[] = {{1, 300, 1, 8, 32, 0}, {1, 45, 1, 8, 8, 4000}};
    for (Shape shape : shapes)
        for (int v = 0; v < VARIANTS; v++)
            if (configuration(&variants[v], shape).features == FEATURES_EXP) compare_with_twin(&variants[v], shape);
}

// So little scratch that heads, sequences and chunks all come in several groups.
static void test_many_segments(void) {
    Shape segments = {2, 65, 3, 12, 8, 40000};
    compare_all(segments);
}

static void test_groups_of_heads(void) {
    Shape heads = {3, 40, 3, 12, 16, 80000};
    compare_all(heads);
}

// ---- rows that hold several documents

static Case make_documents(const Variant *variant, const Layout *layout, int NH, int HS) {
    Case c = make_case(variant, {layout->B, layout->T, NH, HS, layout->chunk, 0});
    size_t rows = (size_t)layout->B * layout->T;
    c.config.packed = 1;
    c.positions = (int *)memory_allocate(rows, sizeof(int), "positions");
    c.gpu_positions = device_buffer<int>(rows);
    layout_positions(c.positions, layout);
    cuda_check(cudaMemcpy(c.gpu_positions, c.positions, rows * sizeof(int), cudaMemcpyHostToDevice));
    return c;
}

static void compare_documents(const Variant *variant, const Layout *layout, int NH, int HS) {
    Case c = make_documents(variant, layout, NH, HS);
    check_passes_but_noise(&c);
    free_case(&c);
}

static void test_documents(void) {
    for (size_t l = 0; l < LAYOUTS; l++)
        for (int v = 0; v < ALL_VARIANTS; v++)
            if (test_is_chosen(v, l)) compare_documents(&variants[v], &layouts[l], 2, 12);
}
static void test_documents_with_common_heads(void) {
    for (const Variant &variant : variants) compare_documents(&variant, &layouts[1], 2, 64);
}
static void test_documents_with_wide_heads(void) {
    for (const Variant &variant : variants) compare_documents(&variant, &layouts[2], 2, 128);
}

// Heads and sequences of the exact polynomial by groups of one.
static void test_documents_of_groups(void) {
    for (const Variant &variant : variants)
        if (strstr(variant.options, "exact")) {
            Case c = make_documents(&variant, &layouts[1], 3, 16);
            pairs_gpu_group_numbers = 1;
            check_passes_but_noise(&c);
            free_case(&c);
        }
}

// Whatever stands in the middle document, the others have the same bits; also across segments.
static void check_boundaries(const Variant *variant, const Layout *layout) {
    Case c = make_documents(variant, layout, 2, 12);
    size_t C = (size_t)c.config.C, from = layout->lengths[0] * C, to = from + layout->lengths[1] * C;
    run_gpu(&c, 1);
    float *out = from_device(c.gpu_out, c.numbers), *dqkv = from_device(c.gpu_dqkv, 3 * c.numbers);
    for (size_t i = 3 * from; i < 3 * to; i++) c.qkv[i] *= 30;
    for (size_t i = from; i < to; i++) c.dout[i] *= -1000;
    run_gpu(&c, 1);
    float *now = from_device(c.gpu_out, c.numbers), *dnow = from_device(c.gpu_dqkv, 3 * c.numbers);
    for (size_t i = 0; i < c.numbers; i++)
        if (i < from || i >= to) CHECK(!memcmp(out + i, now + i, sizeof(float)));
    for (size_t i = 0; i < 3 * c.numbers; i++)
        if (i < 3 * from || i >= 3 * to) CHECK(!memcmp(dqkv + i, dnow + i, sizeof(float)));
    CHECK(memcmp(out + from, now + from, (to - from) * sizeof(float)));
    free(out), free(dqkv), free(now), free(dnow);
    free_case(&c);
}

static void test_nothing_crosses_a_boundary(void) {
    static const Layout three[] = {{1, 120, {40, 33, 47}, 0}, {1, 120, {40, 33, 47}, 16}, {1, 200, {64, 64, 72}, 64}};
    for (int v = 0; v < ALL_VARIANTS; v++)
        for (size_t l = 0; l < 3; l++)
            if (test_is_chosen(v, l)) check_boundaries(&variants[v], &three[l]);
}

// ---- to the bit

static int same_bits(const floatX *device, const float *expected, size_t n) {
    float *found = from_device(device, n);
    int same = !memcmp(found, expected, n * sizeof(float));
    free(found);
    return same;
}

static void check_variant(const Case *c, int holds, const char *what) {
    CHECK(holds);
    if (!holds) printf("    %s: %s\n", c->variant->label, what);
}

// ---- decoding

typedef struct {
    int first, second; // rows given at once, twice
} Prefill;

// Prefill, then one position at a time, as a sampler does. The cache holds garbage at first.
static void decode(Case *c, Prefill prefill) {
    int C = c->config.C, ends[2] = {prefill.first, prefill.first + prefill.second}, pos = 0;
    renew_work(c);
    while (pos < c->config.T) {
        int n = pos < ends[0] ? ends[0] - pos : pos < ends[1] ? ends[1] - pos : 1;
        c->gpu->step(c->gpu_out + (size_t)pos * C, c->gpu_cache, pos, n, c->gpu_qkv + (size_t)pos * 3 * C,
                     c->gpu_constants, c->gpu_parameters, c->gpu_work, &c->config, 0);
        pos += n;
    }
    cuda_check(cudaDeviceSynchronize());
}

static void check_decoding_of(Case *c, Prefill prefill) {
    run_cpu(c, 0);
    to_device(c->gpu_qkv, c->qkv, 3 * c->numbers);
    decode(c, prefill);
    check_output(c, c->out, "decoding");
}

static void check_decoding(const Variant *variant, Shape shape, Prefill prefill) {
    Case c = make_case(variant, shape);
    check_decoding_of(&c, prefill);
    free_case(&c);
}

static void test_decoding_equals_forward(void) {
    static const Prefill prefills[] = {{0, 0}, {1, 0}, {63, 0}, {64, 0}, {65, 0}, {20, 33}, {68, 0}};
    Shape shape = {1, 68, 3, 20, 16, 0};
    for (int v = 0; v < VARIANTS; v++)
        for (size_t p = 0; p < sizeof prefills / sizeof prefills[0]; p++)
            if (test_is_chosen(v, p)) check_decoding(&variants[v], shape, prefills[p]);
}

// Single positions that are in device memory, as a captured graph has them: the same bits as `step` gives. The exact
// polynomial has other kernels for that, and the same numbers but for rounding.
static void test_decoding_from_a_position_on_the_device(void) {
    Shape shape = {1, 130, 1, 20, 0, 0};
    for (int v = 0; v < ALL_VARIANTS; v++) {
        Case c = make_case(&variants[v], shape);
        int *position = device_buffer<int>(1);
        to_device(c.gpu_qkv, c.qkv, 3 * c.numbers);
        decode(&c, {30, 0});
        float *expected = from_device(c.gpu_out, c.numbers);
        decode(&c, {30, 100}); // the cache is full of other numbers
        for (int pos = 0; pos < shape.T; pos++) {
            cuda_check(cudaMemcpy(position, &pos, sizeof pos, cudaMemcpyHostToDevice));
            size_t row = (size_t)pos * c.config.C;
            c.gpu->decode(c.gpu_out + row, c.gpu_cache, position, c.gpu_qkv + 3 * row, c.gpu_constants,
                          c.gpu_parameters, c.gpu_work, &c.config, 0);
        }
        cuda_check(cudaDeviceSynchronize());
        if (c.config.poly == POLY_EXACT) {
            run_cpu(&c, 0);
            check_output(&c, expected, "decoding from a position on the device");
        } else {
            check_variant(&c, same_bits(c.gpu_out, expected, c.numbers), "decode differs from step");
        }
        free(expected);
        cuda_check(cudaFree(position));
        free_case(&c);
    }
}

static void test_prefill_in_segments(void) {
    Shape shape = {1, 68, 3, 20, 8, 20000};
    Prefill prefill = {35, 31};
    for (int v = 0; v < ALL_VARIANTS; v++) check_decoding(&variants[v], shape, prefill);
}

// The cache has no room after the last position, and chunks are not full: one row too many would overwrite another
// head's.
static void test_decoding_fills_the_cache(void) {
    Shape shape = {1, 37, 3, 12, 8, 0};
    for (int v = 0; v < VARIANTS; v++) {
        AttentionConfig config = configuration(&variants[v], shape);
        config.max_T = shape.T;
        Case c = make_case_of(&variants[v], &config);
        check_decoding_of(&c, {10, 27});
        free_case(&c);
    }
}

// Columns of an extended value beyond one warp; with the exact polynomial also beyond the threads of any block.
static void test_decoding_of_wide_heads(void) {
    Shape shape = {1, 180, 1, 128, 64, 0};
    Prefill prefill = {150, 28};
    for (int v = 0; v < VARIANTS; v++) {
        check_decoding(&variants[v], shape, prefill);
        if (configuration(&variants[v], shape).poly == POLY_EXACT)
            check_decoding(&variants[v], {1, 20, 1, 1100, 8, 0}, {9, 8});
    }
}

// Thousands of rows: a state that many chunks have entered, a maximum that has been running for long, a position far
// along cosformer's quarter of a circle.
static void test_decoding_far_into_a_sequence(void) {
    static const char *const labels[] = {"cosformer", "favor exp", "slay"};
    for (int v = 0; v < VARIANTS; v++)
        for (const char *label : labels)
            if (!strcmp(variants[v].label, label)) check_decoding(&variants[v], {1, 4200, 1, 8, 0, 0}, {2000, 2190});
}

// A first key with so much weight that one more of the others is below the last digit of the sum: together they count.
static void test_decoding_keeps_the_digits_of_long_sums(void) {
    Variant elu = {"elu", "elu", 0, "", 0, 0};
    const int T = 700, HS = 8;
    Case c = make_case(&elu, {1, T, 1, HS, 0, 0});
    for (int i = 0; i < 3 * T * HS; i++) c.qkv[i] = i / HS % 3 == 2 ? 1 : 0;
    for (int i = 0; i < HS; i++) c.qkv[HS + i] = 1 << 20, c.qkv[2 * HS + i] = 16; // phi is a million here, 1 elsewhere
    to_device(c.gpu_qkv, c.qkv, 3 * c.numbers);
    decode(&c, {0, 0});
    float *out = from_device(c.gpu_out, c.numbers);
    double first = 1048577, rounding = sizeof(floatX) == 2 ? 4e-3 : 5e-6; // within the first tile they do not
    for (int t = 0; t < T; t++) CHECK_CLOSE(out[t * HS] * (first + t) / (16 * first + t), 1, rounding);
    free(out);
    free_case(&c);
}

// Positions given in pieces of any length; states are written once for each full tile of 64 keys, never otherwise.
static void test_decoding_in_pieces(void) {
    static const Prefill prefills[] = {{63, 2}, {1, 63}, {65, 63}, {20, 110}, {3, 190}, {64, 128}};
    for (int v = 0; v < VARIANTS; v++)
        for (size_t p = 0; p < sizeof prefills / sizeof prefills[0]; p++)
            if (test_is_chosen(v, p)) check_decoding(&variants[v], {1, 200, 2, 12, 24, 0}, prefills[p]);
    Case c = make_case(&variants[1], {1, 64, 2, 12, 0, 0}); // elu: F is 12, padded to 16, and its values are 32 wide
    size_t numbers = 2 * 16 * (32 + 8);
    float *before = host_buffer(numbers);
    for (size_t i = 0; i < numbers; i++) before[i] = (float)i;
    to_device(c.gpu_qkv, c.qkv, 3 * c.numbers), to_device(c.gpu_cache, before, numbers);
    c.config.T = 63;
    decode(&c, {20, 0});
    float *after = from_device(c.gpu_cache, numbers);
    CHECK(!memcmp(before, after, numbers * sizeof(float)));
    free(before), free(after);
    free_case(&c);
}

// Every length with every head size: all but the last two rows at once.
static void decode_odd_lengths(int HS) {
    static const int lengths[] = {1, 63, 65, 200};
    for (int T : lengths)
        for (int v = 0; v < VARIANTS; v++) check_decoding(&variants[v], {1, T, 3, HS, 0, 0}, {T < 3 ? 0 : T - 2, 0});
}

static void test_decoding_of_narrow_heads(void) {
    decode_odd_lengths(32);
}
static void test_decoding_of_common_heads(void) {
    decode_odd_lengths(64);
}
static void test_decoding_of_heads_of_128(void) {
    decode_odd_lengths(128);
}

// ---- what does not change

// Changing position t leaves every output before it as it was.
static void test_causality(void) {
    static const int positions[] = {1, 15, 16, 31, 40, 49};
    Shape shape = {1, 50, 2, 16, 16, 20000};
    for (int v = 0; v < VARIANTS; v++) {
        Case c = make_case(&variants[v], shape);
        size_t C = (size_t)c.config.C;
        run_gpu(&c, 0);
        float *before = from_device(c.gpu_out, c.numbers);
        for (size_t p = 0; p < sizeof positions / sizeof positions[0]; p++) {
            size_t t = (size_t)positions[p];
            for (size_t i = 0; i < 3 * C; i++) c.qkv[t * 3 * C + i] = rounded(40 * random_normal(9, i));
            run_gpu(&c, 0);
            check_variant(&c, same_bits(c.gpu_out, before, t * C), "the past has changed");
            check_variant(&c, !same_bits(c.gpu_out, before, (t + 1) * C), "the present has not changed");
            fill_inputs(&c);
        }
        free(before);
        free_case(&c);
    }
}

static void test_every_run_gives_the_same_bits(void) {
    Shape shape = {2, 37, 2, 12, 8, 15000};
    for (int v = 0; v < ALL_VARIANTS; v++) {
        Case c = make_case(&variants[v], shape);
        run_gpu(&c, 1);
        float *out = from_device(c.gpu_out, c.numbers), *dqkv = from_device(c.gpu_dqkv, 3 * c.numbers);
        run_gpu(&c, 1);
        check_variant(&c, same_bits(c.gpu_out, out, c.numbers), "out differs from run to run");
        check_variant(&c, same_bits(c.gpu_dqkv, dqkv, 3 * c.numbers), "dqkv differs from run to run");
        c.gpu->forward(c.gpu_out, NULL, c.gpu_qkv, c.gpu_constants, c.gpu_parameters, c.gpu_work, &c.config, 0);
        check_variant(&c, same_bits(c.gpu_out, out, c.numbers), "out differs when nothing is saved");
        free(out);
        free(dqkv);
        free_case(&c);
    }
}

// ---- extremes

static int all_finite(const floatX *device, size_t n) {
    float *numbers = from_device(device, n);
    int finite = 1;
    for (size_t i = 0; i < n; i++) finite &= isfinite(numbers[i]) != 0;
    free(numbers);
    return finite;
}

// Multiplies q, k and v by the given numbers (0 as well), or makes k equal to q.
static void distort(Case *c, const double factors[3], int equal) {
    size_t C = (size_t)c->config.C;
    for (size_t i = 0; i < 3 * c->numbers; i++) {
        size_t part = i / C % 3;
        c->qkv[i] = rounded(fmax(-3e38, fmin(3e38, c->qkv[i] * factors[part])));
        if (equal && part == 1) c->qkv[i] = c->qkv[i - C];
    }
}

static void test_no_nan_from_finite_input(void) {
    static const double factors[][3] = {{0, 1, 1},     {1, 0, 1},         {0, 0, 0},        {1e-20, 1e-20, 1},
                                        {1e-38, 1, 1}, {1e5, 1e5, 1},     {1e5, 1e-5, 1e5}, {1e18, 1, 1},
                                        {1, 1e18, 1},  {1e18, 1e18, 1e9}, {3e38, 3e38, 1},  {1, 1, 1e12},
                                        {30, 30, 1}};
    Shape shape = {1, 37, 1, 16, 16, 0};
    for (int v = 0; v < VARIANTS; v++)
        for (size_t f = 0; f < sizeof factors / sizeof factors[0]; f++) {
            if (!test_is_chosen(v, f)) continue;
            Case c = make_case(&variants[v], shape);
            distort(&c, factors[f], f % 2);
            run_gpu(&c, 1);
            int finite = all_finite(c.gpu_out, c.numbers) && all_finite(c.gpu_dqkv, 3 * c.numbers);
            check_variant(&c, finite, "not finite");
            if (!finite) printf("    factors %g %g %g\n", factors[f][0], factors[f][1], factors[f][2]);
            free_case(&c);
        }
}

// Numbers so large that features are cut off: at the same place as the C twin's.
static void test_features_are_cut_off_like_the_twins(void) {
    static const char *const names[] = {"elu", "cosformer", "favor relu"};
    static const double factors[3] = {1e7, 1e7, 1};
    Shape shape = {1, 37, 1, 16, 16, 0};
    for (int v = 0; v < VARIANTS; v++)
        for (const char *name : names) {
            if (strcmp(variants[v].label, name)) continue;
            Case c = make_case(&variants[v], shape);
            distort(&c, factors, 0);
            check_passes(&c);
            free_case(&c);
        }
}

// The constants whose name begins like this, on both sides: constant k becomes change(k, constant k).
static void change_constants(Case *c, const char *name, float (*change)(size_t, float)) {
    AttentionTensor list[ATTENTION_TENSORS_MAX];
    size_t total;
    int n = attention_constants(c->cpu, &c->config, list, &total);
    for (int i = 0; i < n; i++)
        for (size_t k = 0; !strncmp(list[i].name, name, strlen(name)) && k < list[i].count; k++)
            c->constants[list[i].offset + k] = change(k, c->constants[list[i].offset + k]);
    pack_constants(c);
}

static float column_outside(size_t k, float column) {
    static const float outside[] = {-3, 1e6f, NAN, 36};
    return k % 2 == 0 && k < 8 ? outside[k / 2] : column;
}

static float steeper(size_t, float omega) {
    return 21 * omega;
}

// Constants from a damaged file: columns of a sketch that it does not have are taken for column 0, as by the C twin.
// Steep projections: exponents are clipped like the twin's, and have no gradient there.
static void test_unusual_constants(void) {
    Shape shape = {1, 37, 1, 16, 16, 0};
    for (int v = 0; v < VARIANTS; v++) {
        int sketch = configuration(&variants[v], shape).poly == POLY_TENSORSKETCH;
        int plain = !strcmp(variants[v].label, "slay");
        if (!sketch && !plain) continue;
        Case c = make_case(&variants[v], shape);
        change_constants(&c, sketch ? "ts_hash" : "omega", sketch ? column_outside : steeper);
        check_passes_but_noise(&c);
        free_case(&c);
    }
}

static void test_nan_in_the_input_is_not_hidden(void) {
    Shape shape = {1, 20, 1, 16, 8, 0};
    for (int v = 0; v < VARIANTS; v++) {
        Case c = make_case(&variants[v], shape);
        for (int i = 0; i < 3 * c.config.C; i++) c.qkv[(size_t)5 * 3 * c.config.C + i] = NAN;
        run_gpu(&c, 0);
        float *out = from_device(c.gpu_out, c.numbers);
        check_variant(&c, isnan(out[19 * c.config.C]), "NaN has disappeared");
        free(out);
        free_case(&c);
    }
}

// One bad number shows in every row that sees it, by chunks and when decoding, and in the gradients of its own row.
static void check_bad_number(Case *c, size_t row, size_t part, float bad) {
    size_t C = (size_t)c->config.C, T = (size_t)c->config.T, last = part ? T : row + 1;
    c->qkv[row * 3 * C + part * C + 3] = bad;
    run_gpu(c, 1);
    check_variant(c, !all_finite(c->gpu_dqkv + row * 3 * C, 3 * C), "a bad number is not in the gradients");
    for (size_t t = row; t < last; t++)
        check_variant(c, !all_finite(c->gpu_out + t * C, C), "a bad number has disappeared");
    decode(c, {10, 0});
    for (size_t t = row; t < last; t++)
        check_variant(c, !all_finite(c->gpu_out + t * C, C), "a bad number has disappeared in decoding");
    check_variant(c, all_finite(c->gpu_out, 8 * C), "a bad number is in rows that do not see it");
}

static void test_bad_input_is_seen(void) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    Shape shape = {1, 20, 1, 16, 8, 0};
    for (int v = 0; v < VARIANTS; v++)
        for (size_t i = 0; i < 9; i++) {
            if (!test_is_chosen(v, i + i / 3)) continue; // of each variant another number in each part
            Case c = make_case(&variants[v], shape);
            check_bad_number(&c, i % 2 ? 9 : 15, i / 3, bad[i % 3]);
            free_case(&c);
        }
}

// ---- rows whose denominator was floored

static uint64_t floored_on_cpu(Case *c) {
    uint64_t before = c->cpu->floored_rows();
    run_cpu(c, 0);
    return c->cpu->floored_rows() - before;
}

static uint64_t floored_on_gpu(const Case *c) {
    c->gpu->collect_floored_rows(0);
    return c->cpu->floored_rows();
}

// As many as the C twin counts, in whole passes and when decoding; of unsigned maps none. Every negative sum is floored
// in the variant with signed scores.
static void test_floored_rows_are_counted(void) {
    Shape shape = {2, 65, 3, 12, 8, 40000};
    for (int v = 0; v < VARIANTS; v++) {
        if (!strstr(variants[v].label, "floored")) continue;
        Case c = make_case(&variants[v], shape);
        uint64_t expected = floored_on_cpu(&c), start = floored_on_gpu(&c);
        run_gpu(&c, 1);
        check_variant(&c, floored_on_gpu(&c) - start == expected, "floored rows of a pass");
        check_variant(&c, (expected > 0) == !strcmp(variants[v].name, "slay"), "none of an unsigned map");
        free_case(&c);
    }
    Shape one = {1, 30, 3, 12, 8, 0};
    Case c = make_case(&variants[VARIANTS - 1], one);
    uint64_t expected = floored_on_cpu(&c), start = floored_on_gpu(&c);
    to_device(c.gpu_qkv, c.qkv, 3 * c.numbers);
    decode(&c, {17, 5});
    check_variant(&c, expected > 0 && floored_on_gpu(&c) - start == expected, "floored rows of decoding");
    free_case(&c);
}

// Negative sums that no floor replaced are counted like the C twin's.
static void test_negative_sums_are_counted(void) {
    Variant variant = {"rff", "rff", 1, "--M 4 --delta 1e-30", 0, 0};
    Case c = make_case(&variant, {2, 40, 3, 12, 8, 0});
    uint64_t expected = floored_on_cpu(&c), start = floored_on_gpu(&c);
    run_gpu(&c, 0);
    uint64_t found = floored_on_gpu(&c) - start;
    CHECK(expected > 10 && found + 2 >= expected && found <= expected + 2); // a sum near zero has a sign by rounding
    free_case(&c);
}

// ---- memory

// 131072 tokens at batch 1, embedding 256, 8 heads: within 600 MB with the tensors themselves, forward in both
// precisions and backward in bf16. In fp32 the eight tensors of backward alone take 1.07 GB.
static void test_long_sequences_need_little_memory(void) {
    Variant slay = {"slay", "slay", 0, "", 0, 0};
    const AttentionGPU *gpu = attention_gpu_find(slay.name);
    Shape shape = {1, 131072, 8, 32, 0, 0};
    AttentionConfig config = configuration(&slay, shape);
    pairs_gpu_group_numbers = PAIRS_GROUP_NUMBERS;
    double numbers = (double)gpu->work_size(&config) + (double)gpu->saved_size(&config);
    double tensors = (double)sizeof(floatX) * 131072 * (3 + 1) * 256; // qkv and out; their gradients are as large
    CHECK(numbers * sizeof(float) + (sizeof(floatX) == 2 ? 2 : 1) * tensors < 6e8);
    shape.NH = 12, shape.HS = 64; // a layer of the model with 124M parameters: its own numbers
    config = configuration(&slay, shape);
    CHECK((gpu->work_size(&config) + gpu->saved_size(&config)) * sizeof(float) < 1e8);
    config.T = 262144; // twice the length takes at most a little more
    CHECK(gpu->work_size(&config) * sizeof(float) < 1e9);
}

int main(void) {
    RUN(test_fixtures);
    RUN(test_one_row);
    RUN(test_part_of_a_chunk);
    RUN(test_one_row_more_than_a_chunk);
    RUN(test_many_chunks);
    RUN(test_narrow_heads);
    RUN(test_common_heads);
    RUN(test_wide_heads);
    RUN(test_special_variants_of_one_row);
    RUN(test_special_variants);
    RUN(test_special_variants_of_many_segments);
    RUN(test_odd_head_size);
    RUN(test_one_sequence_of_odd_chunks);
    RUN(test_one_sequence_of_odd_chunks_of_slay);
    RUN(test_long_running_maximum);
    RUN(test_many_segments);
    RUN(test_groups_of_heads);
    RUN(test_documents);
    RUN(test_documents_with_common_heads);
    RUN(test_documents_with_wide_heads);
    RUN(test_documents_of_groups);
    RUN(test_nothing_crosses_a_boundary);
    RUN(test_decoding_equals_forward);
    RUN(test_decoding_from_a_position_on_the_device);
    RUN(test_prefill_in_segments);
    RUN(test_decoding_fills_the_cache);
    RUN(test_decoding_of_wide_heads);
    RUN(test_decoding_far_into_a_sequence);
    RUN(test_decoding_keeps_the_digits_of_long_sums);
    RUN(test_decoding_in_pieces);
    RUN(test_decoding_of_narrow_heads);
    RUN(test_decoding_of_common_heads);
    RUN(test_decoding_of_heads_of_128);
    RUN(test_causality);
    RUN(test_every_run_gives_the_same_bits);
    RUN(test_no_nan_from_finite_input);
    RUN(test_features_are_cut_off_like_the_twins);
    RUN(test_unusual_constants);
    RUN(test_nan_in_the_input_is_not_hidden);
    RUN(test_bad_input_is_seen);
    RUN(test_floored_rows_are_counted);
    RUN(test_negative_sums_are_counted);
    RUN(test_long_sequences_need_little_memory);
    return test_summary();
}
