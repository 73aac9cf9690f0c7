// The quadratic attentions on the GPU against their C twins: forward, backward, decoding, the fixture, causality,
// extremes, windows, decay, the same bits from run to run. Bounds are relative to the largest number of the tensor.
#include "quadratic.cuh"
#include "core/base/test.h"

extern "C" {
#include "naive.h"
#include "quadratic.h"
#include "test_layouts.h"
#include "test_variants.h"
#include "core/base/memory.h"
#include "core/base/random.h"
#include "core/model/safetensors.h"
}

#include <float.h>
#include <vector>

extern const AttentionGPU attention_gpu_softmax_tiled;

// In bf16 the results are rounded (2^-9 of each number), and so are the weights and slopes inside. Steep kernels
// magnify what the rounding of `out` does to <dout, v> - <dout, out>. The gradient of a decay is a sum over all pairs,
// most of which cancel.
#ifdef PRECISION_BF16
static const double FORWARD_BOUND = 6e-3, BACKWARD_BOUND = 2e-2, STEP_BOUND = 6e-3, SAVED_BOUND = 1e-5,
                    STEEP_BOUND = 6e-2, DECODE_BOUND = 8e-3, DECAY_BOUND = 6e-2;
#else
// In fp32 products of tiles are those of floats split in two, decoding's are not.
static const double FORWARD_BOUND = 1e-5, BACKWARD_BOUND = 1e-5, STEP_BOUND = 4e-6, SAVED_BOUND = 1e-5,
                    STEEP_BOUND = 1e-5, DECODE_BOUND = 1e-5, DECAY_BOUND = 3e-5;
#endif

typedef std::vector<float> Numbers;

// ---- device memory

template <class Number> struct Device { // freed at the end of its scope
    Number *data;
    size_t count;
    explicit Device(size_t n) : data(NULL), count(n) {
        cuda_check(cudaMalloc((void **)&data, (n ? n : 1) * sizeof(Number)));
    }
    Device(const Device &) = delete;
    ~Device() { cuda_check(cudaFree(data)); }

    void put(const Numbers &from) {
        std::vector<Number> converted(count);
        for (size_t i = 0; i < count; i++) converted[i] = from_float<Number>(from[i]);
        cuda_check(cudaMemcpy(data, converted.data(), count * sizeof(Number), cudaMemcpyHostToDevice));
    }
    Numbers get() const {
        std::vector<Number> found(count);
        cuda_check(cudaMemcpy(found.data(), data, count * sizeof(Number), cudaMemcpyDeviceToHost));
        Numbers numbers(count);
        for (size_t i = 0; i < count; i++) numbers[i] = to_float(found[i]);
        return numbers;
    }
    void fill(int byte) { cuda_check(cudaMemset(data, byte, count * sizeof(Number))); }
};

// Rounds the numbers to floatX, so that both sides get the same.
static void round_inputs(Numbers &numbers) {
    for (float &x : numbers) x = to_float(from_float<floatX>(x));
}

// ---- one case on both sides

#define variants quadratic_variants

// The kernels of this project, even where softmax as it ships is cuDNN's.
static const AttentionGPU *tiled_kernels(const Variant &variant) {
    const AttentionGPU *gpu = attention_gpu_find(variant.name);
    return gpu->cpu == attention_gpu_softmax_tiled.cpu ? &attention_gpu_softmax_tiled : gpu;
}

static AttentionConfig config_of(const Variant &variant, int B, int T, int NH, int HS) {
    AttentionConfig config = {};
    config.B = B, config.T = config.max_T = T, config.NH = NH, config.C = NH * HS;
    variant_configure(&config, &variant);
    return config;
}

struct Case {
    const AttentionGPU *gpu;
    AttentionConfig config;
    size_t numbers; // of out; qkv has three times as many
    Numbers qkv, dout, out, dqkv, saved, parameters, dparameters;
    std::vector<int> positions; // (B,T) of tokens in their documents; empty: rows are documents

    Case(const Variant &variant, int B, int T, int NH, int HS)
        : gpu(tiled_kernels(variant)), config(config_of(variant, B, T, NH, HS)), numbers((size_t)B * T * NH * HS),
          qkv(3 * numbers), dout(numbers), parameters(attention_parameter_count(gpu->cpu, &config)) {
        attention_draw(gpu->cpu, NULL, parameters.data(), 0, &config);
        for (size_t i = 0; i < 3 * numbers; i++) qkv[i] = (float)random_normal(1, i);
        for (size_t i = 0; i < numbers; i++) dout[i] = (float)random_normal(2, i);
        for (int b = 0; b < B; b++) draw_near(b * T);
        round_inputs(qkv), round_inputs(dout);
    }

    // Of a row that sees its own key only: so that the sum is more than rounding errors.
    void draw_near(int row) {
        float *q = &qkv[(size_t)row * 3 * config.C];
        for (int d = 0; d < config.C; d++) q[config.C + d] += q[d];
    }

    void run_cpu(bool backward = true) {
        Numbers work(gpu->cpu->work_size(&config));
        config.positions = positions.empty() ? NULL : positions.data();
        out.resize(numbers), dqkv.resize(3 * numbers), saved.resize(gpu->cpu->saved_size(&config));
        dparameters.assign(parameters.size(), 1); // gradients are added
        gpu->cpu->forward(out.data(), saved.data(), qkv.data(), NULL, parameters.data(), work.data(), &config);
        if (!backward) return;
        gpu->cpu->backward(dqkv.data(), dparameters.data(), dout.data(), qkv.data(), out.data(), saved.data(), NULL,
                           parameters.data(), work.data(), &config);
    }

    void run_gpu(bool backward = true) {
        Device<floatX> d_qkv(3 * numbers), d_dqkv(3 * numbers), d_out(numbers), d_dout(numbers);
        Device<float> d_saved(gpu->saved_size(&config)), d_work(gpu->work_size(&config));
        Device<float> d_parameters(parameters.size()), d_dparameters(parameters.size());
        d_qkv.put(qkv), d_dout.put(dout);
        d_parameters.put(parameters), d_dparameters.put(Numbers(parameters.size(), 1));
        Device<int> d_positions(positions.size());
        cuda_check(
            cudaMemcpy(d_positions.data, positions.data(), positions.size() * sizeof(int), cudaMemcpyHostToDevice));
        config.positions = positions.empty() ? NULL : d_positions.data;
        gpu->forward(d_out.data, backward ? d_saved.data : NULL, d_qkv.data, NULL, d_parameters.data, d_work.data,
                     &config, 0);
        out = d_out.get();
        if (!backward) return;
        gpu->backward(d_dqkv.data, d_dparameters.data, d_dout.data, d_qkv.data, d_out.data, d_saved.data, NULL,
                      d_parameters.data, d_work.data, &config, 0);
        saved = d_saved.get(), dqkv = d_dqkv.get(), dparameters = d_dparameters.get();
    }

    // q, k or v of dqkv
    Numbers gradient(int which) const {
        Numbers part(numbers);
        size_t C = config.C;
        for (size_t i = 0; i < numbers; i++) part[i] = dqkv[i / C * 3 * C + which * C + i % C];
        return part;
    }
};

// The largest difference, relative to the largest number expected.
static double difference(const Numbers &found, const Numbers &expected) {
    double worst = 0, largest = 0;
    for (size_t i = 0; i < expected.size(); i++) {
        double d = fabs((double)found[i] - expected[i]);
        if (!(d <= worst)) worst = d;
        largest = fmax(largest, fabs(expected[i]));
    }
    return largest > 0 ? worst / largest : worst;
}

static bool same_bits(const Numbers &a, const Numbers &b, size_t n) {
    return memcmp(a.data(), b.data(), n * sizeof(float)) == 0;
}

static bool all_finite(const Numbers &x) {
    for (float number : x) {
        if (!isfinite(number)) return false;
    }
    return true;
}

// The gradients of q, k and v, each by itself; where all but rounding errors cancel (T = 1), by the largest of the
// three.
static void check_gradients(const Case &found, const Case &expected, double bound) {
    if (expected.config.T > 1) {
        for (int i = 0; i < 3; i++) CHECK_CLOSE(difference(found.gradient(i), expected.gradient(i)), 0, bound);
    }
    CHECK_CLOSE(difference(found.dqkv, expected.dqkv), 0, bound);
}

// What the GPU saved, levels and inverses, as its twin would have: rows without gaps, levels to base e.
static Numbers saved_as_on_cpu(const Case &c) {
    const AttentionConfig &config = c.config;
    size_t T = config.T, stride = row_stride(config.T), lists = 2 * (size_t)config.B * config.NH;
    bool is_softmax = c.gpu->cpu->uses & USES_NORMALIZER ? config.normalizer == NORMALIZER_SOFTMAX
                                                         : !(c.gpu->cpu->uses & USES_DELTA); // which kernels' sums have
    Numbers saved(lists * T);
    for (size_t i = 0; i < saved.size(); i++) {
        size_t list = i / T;
        saved[i] = c.saved[list * stride + i % T] * (is_softmax && list % 2 == 0 ? (float)log(2.0) : 1.0f);
    }
    return saved;
}

// ---- the checks

static void compare_passes(Case &found, Case &expected) {
    found.run_gpu(), expected.run_cpu();
    CHECK_CLOSE(difference(found.out, expected.out), 0, FORWARD_BOUND);
    check_gradients(found, expected, BACKWARD_BOUND);
    CHECK_CLOSE(difference(found.dparameters, expected.dparameters), 0, DECAY_BOUND);
}

static void compare_with_cpu(const Variant &variant, int B, int T, int NH, int HS) {
    Case found(variant, B, T, NH, HS), expected(variant, B, T, NH, HS);
    compare_passes(found, expected);
    Numbers saved = saved_as_on_cpu(found);
    for (size_t i = 0; i < expected.saved.size(); i++) {
        CHECK_CLOSE(saved[i], expected.saved[i], SAVED_BOUND * (1 + fabs(expected.saved[i])));
    }
}

static void odd_sizes(int HS) {
    for (const Variant &variant : variants) {
        compare_with_cpu(variant, 2, 1, 3, HS);
        compare_with_cpu(variant, 3, 65, 1, HS);
        compare_with_cpu(variant, 1, 63, 5, HS);
        compare_with_cpu(variant, 1, 200, 3, HS);
    }
}

static void the_same_as_the_c_twins_with_narrow_heads(void) {
    odd_sizes(32);
}
static void the_same_as_the_c_twins_with_common_heads(void) {
    odd_sizes(64);
}
static void the_same_as_the_c_twins_with_wide_heads(void) {
    odd_sizes(128);
}

// The same kernels, or cuDNN's where that is built in; what cuDNN saves is its own business.
static void softmax_as_it_ships(void) {
    const Variant &softmax = variants[0];
    for (Case found : {Case(softmax, 2, 65, 3, 64), Case(softmax, 1, 130, 2, 20)}) {
        Case expected = found;
        found.gpu = attention_gpu_find(softmax.name);
        compare_passes(found, expected);
    }
}

// One sequence of two heads, a few rows more than a tile has.
static void head_sizes(std::initializer_list<int> sizes) {
    for (const Variant &variant : variants) {
        for (int HS : sizes) compare_with_cpu(variant, 1, 70, 2, HS);
    }
}

static void heads_of_odd_size(void) { // rows that do not begin at multiples of 16 bytes
    head_sizes({3, 5});
}
static void heads_as_wide_as_the_tiles(void) {
    head_sizes({32});
}
static void heads_narrower_than_the_tiles(void) {
    head_sizes({20, 48});
}
static void heads_narrower_than_the_widest_tiles(void) {
    head_sizes({80, 100});
}

// ---- rows that hold several documents

static Case documents(const Variant &variant, const Layout &layout, int NH, int HS) {
    Case c(variant, layout.B, layout.T, NH, HS);
    c.positions.resize((size_t)layout.B * layout.T);
    layout_positions(c.positions.data(), &layout);
    for (int row = 0; row < layout.B * layout.T; row++)
        if (c.positions[row] == 0 && row % layout.T) c.draw_near(row);
    round_inputs(c.qkv);
    c.config.packed = 1;
    return c;
}

static void compare_documents(const Layout &layout, int HS) {
    for (int v = 0; v < QUADRATIC_CPU_VARIANTS; v++) {
        Case found = documents(*quadratic_cpu_variant(v), layout, 2, HS), expected = found;
        compare_passes(found, expected);
    }
}

static void documents_in_rows(void) {
    for (const Layout &layout : layouts) compare_documents(layout, 20);
}
static void documents_in_rows_with_common_heads(void) {
    compare_documents(layouts[1], 64), compare_documents(layouts[3], 64);
}
static void documents_in_rows_with_wide_heads(void) {
    compare_documents(layouts[2], 128);
}

// Whatever stands in the middle document, the others have the same bits.
static void nothing_crosses_a_boundary(void) {
    static const Layout three[] = {{1, 120, {40, 33, 47}, 0}, {1, 200, {64, 64, 72}, 0}, {1, 300, {129, 1, 170}, 0}};
    for (int v = 0; v < QUADRATIC_CPU_VARIANTS; v++)
        for (const Layout &layout : three) {
            Case before = documents(*quadratic_cpu_variant(v), layout, 2, 20), after = before;
            size_t C = before.config.C, from = layout.lengths[0] * C, to = from + layout.lengths[1] * C;
            for (size_t i = 3 * from; i < 3 * to; i++) after.qkv[i] *= 30;
            for (size_t i = from; i < to; i++) after.dout[i] *= -1000;
            before.run_gpu(), after.run_gpu();
            for (size_t i = from; i < to; i++) after.out[i] = before.out[i];
            for (size_t i = 3 * from; i < 3 * to; i++) after.dqkv[i] = before.dqkv[i];
            CHECK(same_bits(after.out, before.out, before.numbers));
            CHECK(same_bits(after.dqkv, before.dqkv, 3 * before.numbers));
        }
}

// (B,H,T,d) of the fixture to columns column.. of (B,T,stride), B = 1
static void read_heads(Numbers &to, const Safetensors *file, const char *variant, const char *tensor, size_t stride,
                       size_t column) {
    uint64_t shape[4] = {1, 2, 53, 8};
    float heads[2 * 53 * 8];
    char name[64];
    Error error = {""};
    snprintf(name, sizeof name, "%s%s%s", variant, *variant ? "/" : "", tensor);
    CHECK(safetensors_read(heads, file, name, 4, shape, &error) == 0);
    for (size_t i = 0; i < 2 * 53 * 8; i++) to[i / 8 % 53 * stride + column + i / (53 * 8) * 8 + i % 8] = heads[i];
}

// The fixture comes from float64. Rounding its inputs to bf16 moves the results of steep kernels.
static void fixture_data(void) {
    const double forward = sizeof(floatX) == 4 ? 1e-5 : 0.02, backward = sizeof(floatX) == 4 ? 1e-5 : 0.06;
    Safetensors file;
    Error error;
    int status = safetensors_open(&file, "dev/fixtures/quadratic.safetensors", &error);
    CHECK(status == 0); // run from the project's root
    if (status) return;
    for (const Variant &variant : variants) {
        Case found(variant, 1, 53, 2, 8), expected(variant, 1, 53, 2, 8);
        expected.out.resize(expected.numbers), expected.dqkv.resize(3 * expected.numbers);
        read_heads(found.qkv, &file, "", "q", 48, 0), read_heads(found.qkv, &file, "", "k", 48, 16);
        read_heads(found.qkv, &file, "", "v", 48, 32), read_heads(found.dout, &file, "", "dout", 16, 0);
        read_heads(expected.out, &file, variant.label, "o", 16, 0);
        read_heads(expected.dqkv, &file, variant.label, "dq", 48, 0);
        read_heads(expected.dqkv, &file, variant.label, "dk", 48, 16);
        read_heads(expected.dqkv, &file, variant.label, "dv", 48, 32);
        found.run_gpu();
        CHECK_CLOSE(difference(found.out, expected.out), 0, forward);
        check_gradients(found, expected, backward);
    }
    safetensors_close(&file);
}

// Runs the case's rows through `step`, in the pieces given and then one by one, up to position `end`.
static Numbers run_steps(const Case &c, const std::vector<int> &pieces, int end) {
    size_t C = c.config.C, piece = 0;
    Device<floatX> qkv(3 * c.numbers), out(c.numbers);
    Device<float> cache(c.gpu->cache_size(&c.config)), work(c.gpu->work_size(&c.config));
    Device<float> parameters(c.parameters.size());
    qkv.put(c.qkv), out.fill(0), parameters.put(c.parameters);
    cache.fill(0xff); // NaN: what another sequence may leave behind
    for (int pos = 0, n; pos < end; pos += n) {
        n = piece < pieces.size() ? pieces[piece++] : 1;
        c.gpu->step(out.data + pos * C, cache.data, pos, n, qkv.data + pos * 3 * C, NULL, parameters.data, work.data,
                    &c.config, 0);
    }
    Numbers rows = out.get();
    rows.resize(end * C);
    return rows;
}

static void steps_equal_forward(void) {
    static const std::vector<int> all_pieces[] = {{}, {1}, {63}, {64}, {65}, {50, 37, 43}, {70, 70}};
    for (const Variant &variant : variants) {
        Case whole(variant, 1, 140, 3, 20);
        whole.run_gpu(false);
        for (const std::vector<int> &pieces : all_pieces) {
            bool to_the_end = pieces.empty() || pieces[0] == 63 || pieces[0] == 70;
            int end = to_the_end ? 140 : pieces.size() > 1 ? 135 : 75;
            Numbers rows = run_steps(whole, pieces, end);
            whole.out.resize(whole.numbers);
            Numbers expected(whole.out.begin(), whole.out.begin() + rows.size());
            CHECK_CLOSE(difference(rows, expected), 0, STEP_BOUND);
        }
    }
}

// Every length with every head size beside the C twin: all but the last two rows at once, then these, which are
// compared by themselves: the more keys they see, the smaller their averages.
static void decode_odd_lengths(int HS) {
    for (const Variant &variant : variants) {
        for (int T : {1, 63, 65, 200}) {
            Case c(variant, 1, T, 3, HS);
            c.run_cpu(false);
            Numbers rows = run_steps(c, T < 3 ? std::vector<int>() : std::vector<int>{T - 2}, T);
            CHECK_CLOSE(difference(rows, c.out), 0, FORWARD_BOUND);
            size_t last = (size_t)(T < 3 ? 0 : T - 2) * c.config.C;
            Numbers found(rows.begin() + last, rows.end()), expected(c.out.begin() + last, c.out.end());
            CHECK_CLOSE(difference(found, expected), 0, DECODE_BOUND);
        }
    }
}

static void decoding_of_narrow_heads(void) {
    decode_odd_lengths(32);
}
static void decoding_of_common_heads(void) {
    decode_odd_lengths(64);
}
static void decoding_of_wide_heads(void) {
    decode_odd_lengths(128);
}

// Past the rows of so small a cache there is less than the width of a tile: a kernel that reads past a head leaves it.
static void steps_with_a_small_cache(void) {
    for (const Variant &variant : variants) {
        Case whole(variant, 1, 3, 1, 80);
        whole.run_gpu(false);
        CHECK_CLOSE(difference(run_steps(whole, {}, 3), whole.out), 0, STEP_BOUND);
    }
}

// All rows of a case with one head, from the naive twin.
static Numbers defined_rows(const Case &c) {
    size_t HS = c.config.HS;
    std::vector<double> q(c.numbers), k(c.numbers), v(c.numbers), o(c.numbers);
    for (size_t i = 0; i < c.numbers; i++) {
        const float *row = &c.qkv[i / HS * 3 * HS + i % HS];
        q[i] = row[0], k[i] = row[HS], v[i] = row[2 * HS];
    }
    NaiveAttention *naive = naive_twin(naive_quadratic_twins, c.gpu->cpu);
    naive(o.data(), q.data(), k.data(), v.data(), NULL, NULL, 0, c.config.T, &c.config);
    return Numbers(o.begin(), o.end());
}

// Decodes the given rows of a case with one head. The keys before them are put into the cache without their queries'
// attention, which would take long.
static std::vector<Numbers> decode_rows(const Case &c, int unit_length, const std::vector<int> &rows) {
    int HS = c.config.HS;
    Device<floatX> qkv(3 * c.numbers), out(HS);
    Device<float> cache(c.gpu->cache_size(&c.config)), scratch(c.gpu->work_size(&c.config));
    QuadraticWork work = quadratic_gpu_work(scratch.data, &c.config);
    Attend a = quadratic_gpu_attend_cache(out.data, cache.data, 0, NULL, c.config.T, qkv.data, &work, &c.config);
    Prepare prepare = quadratic_gpu_arrival(&a, cache.data);
    std::vector<Numbers> found;
    qkv.put(c.qkv);
    prepare.unit_length = unit_length;
    quadratic_gpu_prepare(&prepare, &c.config, 0);
    for (int row : rows) {
        c.gpu->step(out.data, cache.data, row, 1, qkv.data + (size_t)3 * HS * row, NULL, NULL, scratch.data, &c.config,
                    0);
        found.push_back(out.get());
    }
    return found;
}

// ---- windows and decay

// With heads of every width, and tiles outside the window at either end.
static void windows_and_decay(void) {
    for (const Variant &variant : quadratic_distance_variants) {
        compare_with_cpu(variant, 2, 65, 3, 32);
        compare_with_cpu(variant, 1, 300, 2, 20);
    }
}
static void windows_and_decay_of_wide_heads(void) {
    for (const Variant &variant : quadratic_distance_variants) {
        compare_with_cpu(variant, 1, 150, 2, 64);
        compare_with_cpu(variant, 1, 130, 1, 101);
    }
}

// Steps of at most 40 rows: the cache of a window has fewer rows than the sequence, and goes round several times.
static void steps_go_round_the_window(void) {
    for (const Variant &variant : quadratic_distance_variants) {
        Case c(variant, 1, 300, 2, 20);
        c.run_cpu(false);
        c.config.T = 40;
        if (c.config.window) CHECK(c.gpu->cache_size(&c.config) < 3 * (size_t)c.config.C * 300);
        CHECK_CLOSE(difference(run_steps(c, {40, 1, 40, 17, 40, 40, 40, 39}, 300), c.out), 0, FORWARD_BOUND);
    }
}

// ---- decoding from a position in device memory

// One graph for every position, captured before the first: the same bits as steps.
static void a_captured_decode_serves_every_position(void) {
    const int T = 200, prompt = 3;
    for (int v = 0; v < QUADRATIC_CPU_VARIANTS; v++) {
        Case c(*quadratic_cpu_variant(v), 1, T, 3, 16);
        c.config.T = 8;
        size_t C = c.config.C;
        Device<floatX> qkv(3 * c.numbers), row(3 * C), out(c.numbers), found(C);
        Device<float> cache(c.gpu->cache_size(&c.config)), work(c.gpu->work_size(&c.config));
        Device<float> parameters(c.parameters.size());
        Device<int> position(1);
        cudaStream_t stream;
        cudaGraph_t graph;
        cudaGraphExec_t decode;
        qkv.put(c.qkv), parameters.put(c.parameters), cache.fill(0xff);
        cuda_check(cudaStreamCreate(&stream));
        c.gpu->step(out.data, cache.data, 0, prompt, qkv.data, NULL, parameters.data, work.data, &c.config, stream);
        cuda_check(cudaStreamSynchronize(stream));
        cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        c.gpu->decode(found.data, cache.data, position.data, row.data, NULL, parameters.data, work.data, &c.config,
                      stream);
        cuda_check(cudaStreamEndCapture(stream, &graph));
        cuda_check(cudaGraphInstantiate(&decode, graph, 0));
        Numbers expected = run_steps(c, {prompt}, T);
        for (int pos = prompt; pos < T; pos++) {
            cuda_check(cudaMemcpy(position.data, &pos, sizeof pos, cudaMemcpyHostToDevice));
            cuda_check(cudaMemcpy(row.data, qkv.data + pos * 3 * C, 3 * C * sizeof(floatX), cudaMemcpyDeviceToDevice));
            cuda_check(cudaGraphLaunch(decode, stream));
            cuda_check(cudaStreamSynchronize(stream));
            CHECK(memcmp(found.get().data(), &expected[pos * C], C * sizeof(float)) == 0);
        }
        cuda_check(cudaGraphExecDestroy(decode)), cuda_check(cudaGraphDestroy(graph));
        cuda_check(cudaStreamDestroy(stream));
    }
}

// ---- numbers out of range

// A number beyond the range in q, k, v or dout counts as the largest in range, whatever tile it is in; a head that has
// none keeps its bits.
static void numbers_out_of_range_are_limited(void) {
    enum { T = 90, HS = 24, C = 2 * HS };
    for (const Variant &variant : variants) {
        Case tame(variant, 1, T, 2, HS);
        tame.run_gpu();
        for (int part = 0; part < 4; part++) {
            Case found = tame;
            int row = 20 * part + 5;
            (part < 3 ? found.qkv[row * 3 * C + part * C + 7] : found.dout[row * C + 7]) = part % 2 ? 1e20f : -1e20f;
            round_inputs(found.qkv), round_inputs(found.dout);
            Case expected = found;
            found.run_gpu(), expected.run_cpu();
            CHECK_CLOSE(difference(found.out, expected.out), 0, FORWARD_BOUND);
            for (int i = 0; i < 3; i++)
                CHECK_CLOSE(difference(found.gradient(i), expected.gradient(i)), 0, STEEP_BOUND);
            for (int t = 0; t < T; t++) {
                CHECK(memcmp(&found.out[t * C + HS], &tame.out[t * C + HS], HS * sizeof(float)) == 0);
                for (int i = 0; i < 3; i++)
                    CHECK(memcmp(&found.dqkv[(3 * t + i) * C + HS], &tame.dqkv[(3 * t + i) * C + HS],
                                 HS * sizeof(float)) == 0);
            }
        }
    }
}

// So many keys that each warp of each split has two rounds: levels rise from one to the next; or the first round has a
// score so high that exp overflows if the second lowers the level. Rows where all splits are full, and where the last
// has a single key.
static void decoding_far_into_a_sequence(void) {
    enum { T = 4200, HS = 40, FULL = DECODE_SPLITS * DECODE_KEYS };
    static const std::vector<int> rows = {1000, FULL - 1, FULL, T - 1};
    for (const Variant &variant : variants) {
        for (int round = 0; round < 2; round++) {
            Case c(variant, 1, T, 1, HS);
            const float *q = &c.qkv[(size_t)(T - 1) * 3 * HS];
            float length = &variant == &variants[0] ? 50 : 1; // Yat's score is largest at the query
            for (int d = 0; round && d < HS; d++) c.qkv[5 * 3 * HS + HS + d] = length * q[d];
            round_inputs(c.qkv);
            std::vector<Numbers> found = decode_rows(c, variant.unit_length, rows);
            Numbers defined = defined_rows(c);
            for (size_t i = 0; i < rows.size(); i++) {
                auto row = defined.begin() + (size_t)rows[i] * HS;
                CHECK_CLOSE(difference(found[i], Numbers(row, row + HS)), 0, FORWARD_BOUND);
            }
        }
    }
}

// The kernel normaliser's level rises above 1 only after weights of up to 1e10 have been summed, which must not be
// lost: two keys a little off the queries have scores of 3e9, then one in a later tile equals them and has 1.4e10.
static void levels_rise_with_weights_behind_them(void) {
    enum { T = 150, HS = 20 };
    Case found(variants[1], 1, T, 1, HS);
    for (int t = 0; t < T; t++) {
        float *q = &found.qkv[(size_t)t * 3 * HS], *k = q + HS;
        for (int d = 0; d < HS; d++) {
            if (t >= 80) q[d] = 13.75f;
            if (t == 3 || t == 40 || t == 100) k[d] = d || t == 100 ? 13.75f : 13.8125f; // both are exact in bf16
        }
    }
    Case expected = found;
    found.run_gpu(), expected.run_cpu();
    CHECK_CLOSE(difference(found.out, expected.out), 0, FORWARD_BOUND);
    check_gradients(found, expected, STEEP_BOUND);
    CHECK_CLOSE(difference(run_steps(found, {90}, T), expected.out), 0, FORWARD_BOUND);
}

// Scores so far apart that exp overflows unless every level is the largest score of all splits of the keys, wherever
// that is: in the first split, in one between, in the last.
static void decoding_with_scores_far_apart(void) {
    enum { T = 300, HS = 20 };
    static const int places[] = {5, 150, T - 3};
    for (int v = 0; v < 3; v += 2) { // with softmax as normaliser
        for (int place : places) {
            Case c(variants[v], 1, T, 2, HS);
            size_t row = 3 * (size_t)c.config.C;
            float length = v == 0 ? 50 : 1; // Yat's score is largest where key and query are the same
            for (int t = T - 2; t < T; t++) {
                for (int d = 0; d < c.config.C; d++) c.qkv[t * row + d] = c.qkv[(T - 2) * row + d];
            }
            for (int d = 0; d < c.config.C; d++)
                c.qkv[place * row + c.config.C + d] = length * c.qkv[(T - 2) * row + d];
            round_inputs(c.qkv);
            Numbers rows = run_steps(c, {T - 2}, T);
            c.run_cpu();
            CHECK_CLOSE(difference(rows, c.out), 0, FORWARD_BOUND);
        }
    }
}

// Changing token t, even to numbers of another magnitude, changes no bit before it; nor does a longer sequence.
static void causality_is_exact(void) {
    static const int changed[] = {1, 50, 64, 129};
    for (const Variant &variant : variants) {
        Case c(variant, 1, 130, 2, 16), longer(variant, 1, 199, 2, 16);
        c.run_gpu(false), longer.run_gpu(false);
        CHECK(same_bits(c.out, longer.out, c.numbers));
        Numbers before = c.out, inputs = c.qkv;
        size_t C = c.config.C;
        for (int t : changed) {
            for (size_t d = 0; d < 3 * C; d++) c.qkv[t * 3 * C + d] *= 1e6f;
            c.run_gpu(false);
            CHECK(same_bits(c.out, before, t * C));
            CHECK(memcmp(&c.out[t * C], &before[t * C], C * sizeof(float)) != 0);
            c.qkv = inputs;
        }
    }
}

// Also with other numbers in the scratch memory.
static void same_bits_from_run_to_run(void) {
    for (const Variant &variant : variants) {
        Case first(variant, 2, 130, 3, 48), second(variant, 2, 130, 3, 48);
        Case(variants[3], 2, 130, 3, 48).run_gpu();
        first.run_gpu(), second.run_gpu();
        CHECK(same_bits(first.out, second.out, first.numbers));
        CHECK(same_bits(first.saved, second.saved, first.saved.size()));
        CHECK(same_bits(first.dqkv, second.dqkv, 3 * first.numbers));
    }
}

// Every third row of q or k is special; the outputs stay averages of v, so none exceeds the largest v.
static void check_extreme(const Variant &variant, int T, double q_scale, double k_scale, bool equal) {
    Case c(variant, 1, T, 2, 16);
    size_t C = c.config.C;
    double largest = 0;
    for (int t = 0; t < T; t += 3) {
        float *q = &c.qkv[t * 3 * C], *k = q + C;
        for (size_t d = 0; d < C; d++) q[d] *= (float)q_scale, k[d] = equal ? q[d] : k[d] * (float)k_scale;
    }
    round_inputs(c.qkv);
    for (size_t i = 0; i < 3 * c.numbers; i++) largest = fmax(largest, i % (3 * C) >= 2 * C ? fabs(c.qkv[i]) : 0);
    c.run_gpu();
    CHECK(all_finite(c.dqkv));
    for (size_t i = 0; i < c.numbers; i++) CHECK(fabs(c.out[i]) <= largest * (1 + FORWARD_BOUND));
}

static void extremes(void) {
    for (const Variant &variant : variants) {
        for (int T = 1; T <= 101; T += 100) {
            check_extreme(variant, T, 1, 0, false);
            check_extreme(variant, T, 0, 1, false);
            check_extreme(variant, T, 0, 0, false);
            check_extreme(variant, T, 1, 1, true);
            check_extreme(variant, T, 100, 1, true);
            check_extreme(variant, T, 1e15, 1e15, false);
            check_extreme(variant, T, 1e15, 1e15, true);
            check_extreme(variant, T, 1e-20, 1e20, false);
            check_extreme(variant, T, 1e-30, 1e-30, true);
        }
    }
}

// Values and gradients in range, but so large that slopes would be a thousand times their limit, where they stop, as on
// the CPU. Some are on the other side of zero in bf16, which rounds the output.
static void huge_slopes(void) {
    const float values[] = {1e15f, 1e4f}, gradients[] = {1e6f, 1e15f};
    for (const Variant &variant : variants) {
        for (int which = 0; which < 2; which++) {
            Case found(variant, 1, 150, 1, 48);
            for (size_t i = 0; i < found.qkv.size(); i++) found.qkv[i] *= i % 144 < 96 ? 1 : values[which] / 8;
            for (float &number : found.dout) number *= gradients[which] / 8;
            round_inputs(found.qkv), round_inputs(found.dout);
            Case expected = found;
            found.run_gpu(), expected.run_cpu();
            check_gradients(found, expected, sizeof(floatX) == 4 ? 0.3 : 10);
        }
    }
}

// Queries near keys, in every tile: |q|^2 + |k|^2 - 2<q,k> is nothing but rounding errors there.
static void near_pairs_keep_their_digits(void) {
    for (int v = 1; v < 4; v++) {
        Case found(variants[v], 1, 150, 1, 48);
        for (int t = 0; t < 150; t += 7) {
            float *k = &found.qkv[t * 144 + 48], *q = &found.qkv[t / 2 * 2 * 144];
            for (int d = 0; d < 48; d++) k[d] = q[d] + 3e-2f * k[d];
        }
        round_inputs(found.qkv);
        Case expected = found;
        found.run_gpu(), expected.run_cpu();
        CHECK_CLOSE(difference(found.out, expected.out), 0, FORWARD_BOUND);
        check_gradients(found, expected, STEEP_BOUND);
        CHECK_CLOSE(difference(run_steps(found, {140}, 150), expected.out), 0, FORWARD_BOUND);
    }
}

// Some keys equal to the queries and huge: scores beyond what the kernel's weights may be, so that rows get levels.
static void huge_scores(void) {
    for (const Variant &variant : variants) {
        Case found(variant, 1, 70, 1, 20);
        for (int t = 2; t < 70; t += 9) {
            for (int d = 0; d < 20; d++) found.qkv[t * 60 + 20 + d] = found.qkv[t * 60 + d] *= 1e7f;
        }
        round_inputs(found.qkv);
        Case expected = found;
        found.run_gpu(), expected.run_cpu();
        CHECK_CLOSE(difference(found.out, expected.out), 0, FORWARD_BOUND);
        check_gradients(found, expected, STEEP_BOUND);
        Numbers saved = saved_as_on_cpu(found);
        for (size_t i = 0; i < expected.saved.size(); i++) {
            CHECK_CLOSE(saved[i], expected.saved[i], SAVED_BOUND * fabs(expected.saved[i]));
        }
        CHECK_CLOSE(difference(run_steps(found, {60}, 70), expected.out), 0, FORWARD_BOUND);
    }
}

// A row too short to be brought to unit length takes part as it is, and gets no gradient.
static void no_gradient_below_the_least_norm(void) {
    Case found(variants[3], 1, 9, 1, 16);
    for (int d = 0; d < 16; d++) found.qkv[5 * 48 + d] *= 1e-14f, found.qkv[3 * 48 + 16 + d] *= 1e-14f;
    round_inputs(found.qkv);
    Case expected = found;
    found.run_gpu(), expected.run_cpu();
    for (int d = 0; d < 16; d++) CHECK(found.dqkv[5 * 48 + d] == 0 && found.dqkv[3 * 48 + 16 + d] == 0);
    CHECK(found.dqkv[5 * 48 + 16] != 0);
    CHECK_CLOSE(difference(found.out, expected.out), 0, FORWARD_BOUND);
    check_gradients(found, expected, STEEP_BOUND);
}

// A number of any magnitude that a float can have, either sign, sometimes 0; none that bf16 would make infinite.
static float any_finite(uint64_t key, uint64_t i) {
    double exponent = -45 + 83.5 * random_uniform(key, 3 * i), sign = random_uniform(key, 3 * i + 1) < 0.5 ? -1 : 1;
    double x = random_uniform(key, 3 * i + 2) < 0.1 ? 0 : sign * pow(10, exponent);
    return (float)fmax(-3.3e38, fmin(3.3e38, x));
}

static void no_nan_from_finite_input(void) {
    for (const Variant &variant : variants) {
        for (uint64_t round = 0; round < 8; round++) {
            Case c(variant, 1, 70, 1, 16);
            for (size_t i = 0; i < 3 * c.numbers; i++) c.qkv[i] = any_finite(100 + round, i);
            for (size_t i = 0; i < c.numbers; i++) c.dout[i] = round % 2 ? any_finite(200 + round, i) : c.dout[i];
            c.run_gpu();
            CHECK(all_finite(c.out));
            CHECK(all_finite(c.dqkv));
            CHECK(all_finite(run_steps(c, {68}, 70)));
        }
    }
}

// NaN and infinity are not papered over: they reach the rows that see them (and may reach a few before, since 0 times
// NaN is NaN).
static void bad_input_is_seen(void) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (const Variant &variant : variants) {
        for (int i = 0; i < 9; i++) {
            Case c(variant, 1, 40, 1, 16);
            c.qkv[20 * 48 + i / 3 * 16 + 3] = bad[i % 3];
            c.run_gpu();
            CHECK(!all_finite(Numbers(c.dqkv.begin() + 20 * 48, c.dqkv.begin() + 21 * 48)));
            CHECK(all_finite(Numbers(c.out.begin(), c.out.begin() + 8 * 16)));
            CHECK(!all_finite(Numbers(c.out.begin() + 20 * 16, c.out.begin() + 21 * 16)));
            Numbers stepped = run_steps(c, {20}, 21);
            CHECK(!all_finite(Numbers(stepped.end() - 16, stepped.end())));
        }
    }
}

// A head's bad numbers do not reach other heads.
static void heads_do_not_touch_each_other(void) {
    for (const Variant &variant : variants) {
        Case c(variant, 1, 10, 2, 5);
        for (int t = 0; t < 10; t++) {
            for (int part = 0; part < 3; part++) c.qkv[t * 30 + part * 10 + 5] = NAN;
        }
        c.run_gpu();
        Numbers stepped = run_steps(c, {6}, 10);
        for (int t = 0; t < 10; t++) {
            CHECK(all_finite(Numbers(c.out.begin() + t * 10, c.out.begin() + t * 10 + 5)));
            CHECK(all_finite(Numbers(stepped.begin() + t * 10, stepped.begin() + t * 10 + 5)));
            for (int part = 0; part < 3; part++) {
                auto gradient = c.dqkv.begin() + t * 30 + part * 10;
                CHECK(all_finite(Numbers(gradient, gradient + 5)));
            }
        }
    }
}

static void memory_is_linear_in_T(void) {
    for (const Variant &variant : variants) {
        const AttentionGPU *gpu = tiled_kernels(variant);
        AttentionConfig small = config_of(variant, 1, 16384, 12, 64), large = config_of(variant, 1, 4 * 16384, 12, 64);
        CHECK(gpu->work_size(&large) <= 4 * gpu->work_size(&small));
        CHECK(gpu->saved_size(&large) == 4 * gpu->saved_size(&small));
        CHECK(gpu->cache_size(&large) == 4 * gpu->cache_size(&small));
    }
}

static void heads_too_large_are_refused(void) {
    char why[256] = "";
    for (const Variant &variant : variants) {
        const AttentionGPU *gpu = tiled_kernels(variant);
        AttentionConfig fits = config_of(variant, 1, 64, 2, 128), too_large = config_of(variant, 1, 64, 2, 129);
        CHECK(gpu->check(&fits, why, sizeof why) == 0);
        CHECK(gpu->check(&too_large, why, sizeof why) == -1);
        CHECK_CONTAINS(why, "129 channels");
    }
}

int main(void) {
    RUN(the_same_as_the_c_twins_with_narrow_heads);
    RUN(the_same_as_the_c_twins_with_common_heads);
    RUN(the_same_as_the_c_twins_with_wide_heads);
    RUN(softmax_as_it_ships);
    RUN(heads_of_odd_size);
    RUN(heads_as_wide_as_the_tiles);
    RUN(heads_narrower_than_the_tiles);
    RUN(heads_narrower_than_the_widest_tiles);
    RUN(huge_scores);
    RUN(huge_slopes);
    RUN(documents_in_rows);
    RUN(documents_in_rows_with_common_heads);
    RUN(documents_in_rows_with_wide_heads);
    RUN(nothing_crosses_a_boundary);
    RUN(fixture_data);
    RUN(steps_equal_forward);
    RUN(decoding_of_narrow_heads);
    RUN(decoding_of_common_heads);
    RUN(decoding_of_wide_heads);
    RUN(steps_with_a_small_cache);
    RUN(windows_and_decay);
    RUN(windows_and_decay_of_wide_heads);
    RUN(steps_go_round_the_window);
    RUN(a_captured_decode_serves_every_position);
    RUN(numbers_out_of_range_are_limited);
    RUN(decoding_far_into_a_sequence);
    RUN(decoding_with_scores_far_apart);
    RUN(levels_rise_with_weights_behind_them);
    RUN(causality_is_exact);
    RUN(same_bits_from_run_to_run);
    RUN(extremes);
    RUN(near_pairs_keep_their_digits);
    RUN(no_gradient_below_the_least_norm);
    RUN(no_nan_from_finite_input);
    RUN(bad_input_is_seen);
    RUN(heads_do_not_touch_each_other);
    RUN(memory_is_linear_in_T);
    RUN(heads_too_large_are_refused);
    return test_summary();
}
