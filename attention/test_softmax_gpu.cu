// Softmax attention as it ships, against the C twin: built for bf16 with cuDNN, through that; else through the tiled
// kernel. Bounds are shares of the largest number; in bf16 weights and results are rounded, 2^-9 of each.
#include "attention_gpu.h"
#include "core/gpu/test_gpu.h"

extern "C" {
#include "core/base/memory.h"
}

#include <math.h>
#include <string.h>

extern const AttentionGPU attention_gpu_softmax, attention_gpu_softmax_tiled;

static const double FORWARD_BOUND = sizeof(floatX) == 4 ? 1e-5 : 6e-3,
                    BACKWARD_BOUND = sizeof(floatX) == 4 ? 1e-5 : 2e-2;

static AttentionConfig config_of(int B, int T, int NH, int HS) {
    AttentionConfig config = {};
    config.B = B, config.T = config.max_T = T, config.NH = NH, config.HS = HS, config.C = NH * HS;
    return config;
}

static double worst(const std::vector<float> &found, const std::vector<float> &expected) {
    double largest = 1e-30, off = 0;
    for (size_t i = 0; i < expected.size(); i++) {
        double d = fabs((double)found[i] - expected[i]);
        if (!(d <= off)) off = d;
        largest = fmax(largest, fabs(expected[i]));
    }
    return off / largest;
}

struct Layer { // both sides
    AttentionConfig config;
    size_t numbers;
    Activation qkv, dout, out, dqkv;
    Sum saved, work;

    Layer(int B, int T, int NH, int HS)
        : config(config_of(B, T, NH, HS)), numbers((size_t)B * (size_t)T * (size_t)config.C), qkv(3 * numbers, 1),
          dout(numbers, 1), out(numbers), dqkv(3 * numbers), saved(attention_gpu_softmax.saved_size(&config)),
          work(attention_gpu_softmax.work_size(&config)) {}

    void run_cpu() {
        const Attention *cpu = attention_gpu_softmax.cpu;
        std::vector<float> scratch(cpu->work_size(&config) + 1), kept(cpu->saved_size(&config) + 1);
        cpu->forward(out.data(), kept.data(), qkv.data(), NULL, NULL, scratch.data(), &config);
        cpu->backward(dqkv.data(), NULL, dout.data(), qkv.data(), out.data(), kept.data(), NULL, NULL, scratch.data(),
                      &config);
    }
    void forward(bool keeps) {
        attention_gpu_softmax.forward(out.device, keeps ? saved.device : NULL, qkv.device, NULL, NULL, work.device,
                                      &config, stream);
    }
    void backward() {
        attention_gpu_softmax.backward(dqkv.device, NULL, dout.device, qkv.device, out.device, saved.device, NULL, NULL,
                                       work.device, &config, stream);
    }
};

// Forward without and with what backward needs, backward, and all of it again to the same bits.
static void beside_its_twin(int B, int T, int NH, int HS) {
    Layer layer(B, T, NH, HS);
    layer.run_cpu();
    layer.forward(false);
    std::vector<float> alone = layer.out.fetch();
    CHECK_CLOSE(worst(alone, layer.out.host), 0, FORWARD_BOUND);
    layer.forward(true), layer.backward();
    std::vector<float> out = layer.out.fetch(), dqkv = layer.dqkv.fetch();
    CHECK(out == alone);
    CHECK_CLOSE(worst(dqkv, layer.dqkv.host), 0, BACKWARD_BOUND);
    layer.forward(true), layer.backward();
    CHECK(layer.out.fetch() == out && layer.dqkv.fetch() == dqkv);
}

static void heads_that_cudnn_takes(void) {
    beside_its_twin(2, 65, 3, 64);
    beside_its_twin(1, 200, 1, 128);
    beside_its_twin(3, 63, 2, 32);
    beside_its_twin(1, 2, 5, 8);
    beside_its_twin(2, 65, 3, 64); // a shape that has its plan already
}

static void heads_that_it_does_not_take(void) {
    beside_its_twin(1, 70, 2, 20);
    beside_its_twin(2, 1, 3, 64);
}

// Steps read and write the tiled kernels' cache, whoever did the training.
static void decoding(void) {
    enum { T = 40, NH = 2, HS = 32, C = NH * HS, PROMPT = 23 };
    Layer layer(1, T, NH, HS);
    Sum cache(attention_gpu_softmax.cache_size(&layer.config));
    layer.run_cpu();
    for (int pos = 0, n; pos < T; pos += n) {
        n = pos == 0 ? (int)PROMPT : 1;
        attention_gpu_softmax.step(layer.out.device + pos * C, cache.device, pos, n, layer.qkv.device + pos * 3 * C,
                                   NULL, NULL, layer.work.device, &layer.config, stream);
    }
    CHECK_CLOSE(worst(layer.out.fetch(), layer.out.host), 0, FORWARD_BOUND);
}

// The harness's cuDNN can pose as an old one, which lacks what we ask for: then the tiled kernel does everything, bit
// for bit. Each has a shape of its own, because choices are kept.
#if defined(USE_CUDNN) && defined(PRECISION_BF16) && defined(CUDA_ON_CPU_H)
static void with_version(const char *version, int T, const char *why, int packed = 0) {
    setenv("CUDA_ON_CPU_CUDNN", version, 1);
    Layer layer(2, T, 3, 24);
    layer.config.packed = packed;
    Activation out(layer.numbers), dqkv(3 * layer.numbers);
    const AttentionGPU *tiled = &attention_gpu_softmax_tiled;
    char text[400];
    attention_gpu_softmax.describe(&layer.config, text, sizeof text);
    CHECK(strstr(text, why) != NULL);
    layer.forward(true), layer.backward();
    unsetenv("CUDA_ON_CPU_CUDNN");
    tiled->forward(out.device, layer.saved.device, layer.qkv.device, NULL, NULL, layer.work.device, &layer.config,
                   stream);
    tiled->backward(dqkv.device, NULL, layer.dout.device, layer.qkv.device, out.device, layer.saved.device, NULL, NULL,
                    layer.work.device, &layer.config, stream);
    bool is_tiled = strstr(text, "our own") != NULL;
    CHECK((layer.dqkv.fetch() == dqkv.fetch()) == is_tiled);
    CHECK(!is_tiled || layer.out.fetch() == out.fetch());
}

static void versions_of_cudnn(void) {
    with_version("91800", 70, "by our own kernels, not by cuDNN 9.18.0: backward: ");
    with_version("91500", 72, "by our own kernels, not by cuDNN 9.15.0: before 9.15.1");
    with_version("91500", 128, "deterministic"); // the sequence is no reason
    with_version("91801", 74, "by cuDNN 9.18.1");
    with_version("91801", 76, "our own kernels, not by cuDNN 9.18.1: windows, decay and document masks", 1);
}

// Scratch is allocated for the largest batch. A smaller one whose plan wants more gets our own kernels: the harness
// would report a workspace that leaves its memory.
static void a_smaller_batch_that_wants_more(void) {
    setenv("CUDA_ON_CPU_CUDNN_SPLITS", "3", 1);
    Layer largest(4, 90, 2, 64), smaller(2, 90, 2, 64);
    largest.run_cpu(), smaller.run_cpu();
    size_t numbers = attention_gpu_softmax.work_size(&largest.config); // asked last, as a model does
    CHECK(numbers == largest.work.count() && numbers < smaller.work.count());
    for (Layer *layer : {&largest, &smaller}) {
        attention_gpu_softmax.forward(layer->out.device, layer->saved.device, layer->qkv.device, NULL, NULL,
                                      largest.work.device, &layer->config, stream);
        attention_gpu_softmax.backward(layer->dqkv.device, NULL, layer->dout.device, layer->qkv.device,
                                       layer->out.device, layer->saved.device, NULL, NULL, largest.work.device,
                                       &layer->config, stream);
        CHECK_CLOSE(worst(layer->out.fetch(), layer->out.host), 0, FORWARD_BOUND);
        CHECK_CLOSE(worst(layer->dqkv.fetch(), layer->dqkv.host), 0, BACKWARD_BOUND);
    }
    CHECK(attention_gpu_softmax.work_size(&smaller.config) ==
          smaller.work.count()); // with memory of its own it is cuDNN's again
    unsetenv("CUDA_ON_CPU_CUDNN_SPLITS");
}
#endif

static void which_one_it_is(void) {
    bool is_cudnn = attention_gpu_softmax.forward != attention_gpu_softmax_tiled.forward;
#if defined(USE_CUDNN) && defined(PRECISION_BF16)
    CHECK(is_cudnn);
#else
    CHECK(!is_cudnn);
#endif
}

int main(void) {
    cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    RUN(which_one_it_is);
    RUN(heads_that_cudnn_takes);
    RUN(heads_that_it_does_not_take);
    RUN(decoding);
#if defined(USE_CUDNN) && defined(PRECISION_BF16) && defined(CUDA_ON_CPU_H)
    RUN(versions_of_cudnn);
    RUN(a_smaller_batch_that_wants_more);
#endif
    return test_summary();
}
