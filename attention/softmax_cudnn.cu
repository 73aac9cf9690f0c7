// Softmax attention through cuDNN: the bf16 build with USE_CUDNN. Training only: steps, and configurations that cuDNN
// does not take, go through our own kernels (softmax.cu). cuDNN does not limit what comes in as those do: numbers
// beyond 1e15 may give NaN.
//
// The fused attention is called through cuDNN's graph interface: a graph names the tensors with their shapes and
// strides and the one operation between them; cuDNN makes a plan of it, once for each shape. There is no
// device code in this file: nvcc's passes for the architectures skip it, because the header is large.
#if defined(USE_CUDNN) && defined(PRECISION_BF16) && !defined(__CUDA_ARCH__)
#include "quadratic.cuh"

#include <cudnn_frontend.h>
#include <map>
#include <memory>
#include <string>
#include <tuple>

extern "C" {
extern const Attention attention_softmax;
}
extern const AttentionGPU attention_gpu_softmax_tiled;

namespace fe = cudnn_frontend;
typedef std::shared_ptr<fe::graph::Tensor_attributes> Tensor;

enum Name { Q = 1, K, V, OUT, STATS, DOUT, DQ, DK, DV }; // of tensors, in graphs and when they are run

struct Plan {
    std::shared_ptr<fe::graph::Graph> graph;
    int64_t workspace; // bytes
};

struct Choice {          // made once for a configuration: forward and backward have to agree on what `saved` holds
    std::string refusal; // why it is our own kernels; empty: it is cuDNN
    Plan forward, backward;
};

static void check_at(bool good, const char *message, int line) {
    if (good) return;
    fprintf(stderr, "%s:%d: cuDNN says: %s; build without cuDNN (USE_CUDNN=0) to use our own kernels\n", __FILE__, line,
            message);
    exit(1);
}
#define cudnn_check(call)                                                                                              \
    do {                                                                                                               \
        cudnnStatus_t status_ = (call);                                                                                \
        check_at(status_ == CUDNN_STATUS_SUCCESS, cudnnGetErrorString(status_), __LINE__);                             \
    } while (0)
#define graph_check(call)                                                                                              \
    do {                                                                                                               \
        fe::error_t status_ = (call);                                                                                  \
        check_at(status_.is_good(), status_.get_message().c_str(), __LINE__);                                          \
    } while (0)

static cudnnHandle_t handle(void) { // NULL: cuDNN does not start
    static cudnnHandle_t one;
    if (!one && cudnnCreate(&one) != CUDNN_STATUS_SUCCESS) one = NULL;
    return one;
}

// ---- graphs

// (B, NH, T, HS) within rows of `row` numbers
static fe::graph::Tensor_attributes rows(Name name, const AttentionConfig *c, int64_t row) {
    return fe::graph::Tensor_attributes()
        .set_uid(name)
        .set_dim({c->B, c->NH, c->T, c->HS})
        .set_stride({c->T * row, c->HS, row, 1});
}

// (B, NH, T, 1)
static fe::graph::Tensor_attributes statistics(const AttentionConfig *c) {
    int64_t T = c->T;
    return fe::graph::Tensor_attributes()
        .set_uid(STATS)
        .set_dim({c->B, c->NH, T, 1})
        .set_stride({c->NH * T, T, 1, 1})
        .set_data_type(fe::DataType_t::FLOAT);
}

// Marks a result with its name and place.
static void give(const Tensor &tensor, const fe::graph::Tensor_attributes &as) {
    tensor->set_output(true).set_uid(as.get_uid()).set_dim(as.get_dim()).set_stride(as.get_stride());
}

static void add_forward(fe::graph::Graph &graph, const AttentionConfig *c) {
    auto options = fe::graph::SDPA_attributes().set_generate_stats(true).set_causal_mask(true).set_attn_scale(
        1 / sqrtf((float)c->HS));
    int64_t C = c->C;
    auto [out, stats] = graph.sdpa(graph.tensor(rows(Q, c, 3 * C)), graph.tensor(rows(K, c, 3 * C)),
                                   graph.tensor(rows(V, c, 3 * C)), options);
    give(out, rows(OUT, c, C));
    give(stats, statistics(c));
    stats->set_data_type(fe::DataType_t::FLOAT);
}

static void add_backward(fe::graph::Graph &graph, const AttentionConfig *c) {
    auto options =
        fe::graph::SDPA_backward_attributes().set_causal_mask(true).set_deterministic_algorithm(true).set_attn_scale(
            1 / sqrtf((float)c->HS));
    int64_t C = c->C;
    auto [dq, dk, dv] = graph.sdpa_backward(graph.tensor(rows(Q, c, 3 * C)), graph.tensor(rows(K, c, 3 * C)),
                                            graph.tensor(rows(V, c, 3 * C)), graph.tensor(rows(OUT, c, C)),
                                            graph.tensor(rows(DOUT, c, C)), graph.tensor(statistics(c)), options);
    give(dq, rows(DQ, c, 3 * C));
    give(dk, rows(DK, c, 3 * C));
    give(dv, rows(DV, c, 3 * C));
}

// Returns why there is none; empty: there is.
static std::string make_plan(Plan &plan, const AttentionConfig *c, bool backward) {
    plan.graph = std::make_shared<fe::graph::Graph>();
    plan.graph->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    if (backward)
        add_backward(*plan.graph, c);
    else
        add_forward(*plan.graph, c);
    fe::error_t status = plan.graph->build(handle(), {fe::HeurMode_t::A});
    if (status.is_bad()) return std::string(backward ? "backward" : "forward") + ": " + status.get_message();
    graph_check(plan.graph->get_workspace_size(plan.workspace));
    return "";
}

// ---- the choice

// What is known before asking for plans.
static std::string known_refusal(const AttentionConfig *config) {
    if (config->HS > 128 || config->HS % 8) return "heads are not a multiple of 8, at most 128";
    if (config->T == 1) return "a single row is decoding to it, without a mask";
    // Its backward would read past the end of K and V when a CUDA graph is replayed, and whether there will be graphs
    // is not known here.
    if (cudnnGetVersion() < 91501 && config->T % 128) return "before 9.15.1 the sequence has to be a multiple of 128";
    if (!handle()) return "it does not start: its version has to match the driver and the CUDA toolkit";
    return "";
}

// Makes the plans for the configuration, which takes about a second. Backward is asked for in its deterministic form,
// which not every version has for every GPU. The largest batch is asked for first: what is refused there is refused for
// smaller ones too.
static const Choice &choice_for(const AttentionConfig *c) {
    static std::map<std::tuple<int, int, int, int>, Choice> choices;
    static std::map<std::tuple<int, int, int>, std::string> refusals; // whatever the batch
    auto [place, is_new] = choices.try_emplace({c->B, c->T, c->NH, c->HS});
    Choice &choice = place->second;
    if (!is_new) return choice;
    std::string &refusal = refusals[{c->T, c->NH, c->HS}];
    choice.refusal = refusal.empty() ? known_refusal(c) : refusal;
    if (choice.refusal.empty()) choice.refusal = make_plan(choice.forward, c, false);
    if (choice.refusal.empty()) choice.refusal = make_plan(choice.backward, c, true);
    refusal = choice.refusal;
    return choice;
}

// Before cuDNN's own scratch come the statistics of a forward pass that nobody keeps, in whole lines of memory.
static size_t statistics_floats(const AttentionConfig *config) {
    return ((size_t)config->B * config->NH * config->T + 63) / 64 * 64;
}

static size_t cudnn_floats(const AttentionConfig *config) {
    int64_t forward = choice_for(config).forward.workspace, backward = choice_for(config).backward.workspace;
    size_t bytes = (size_t)(forward > backward ? forward : backward);
    return statistics_floats(config) + (bytes + sizeof(float) - 1) / sizeof(float);
}

// The floats of scratch that there are for a T, NH and HS: what work_size said last, for the largest batch. A smaller
// batch has plans of its own, which may want more than that.
static size_t &granted_floats(const AttentionConfig *c) {
    static std::map<std::tuple<int, int, int>, size_t> granted;
    return granted[{c->T, c->NH, c->HS}];
}

static const char *const NOT_ASKED = "windows, decay and document masks are not asked of it";

static bool has_masks(const AttentionConfig *config) {
    return config->window || config->decay || config->packed;
}

// Forward and backward of a batch agree: nobody asks for work_size in between.
static bool takes(const AttentionConfig *config) {
    return !has_masks(config) && choice_for(config).refusal.empty() && cudnn_floats(config) <= granted_floats(config);
}

static void describe(const AttentionConfig *config, char *text, size_t size) {
    size_t version = cudnnGetVersion();
    const std::string refusal = has_masks(config) ? NOT_ASKED : choice_for(config).refusal;
    snprintf(text, size, "%s %zu.%zu.%zu%s%s", refusal.empty() ? "by cuDNN" : "by our own kernels, not by cuDNN",
             version / 10000, version / 100 % 100, version % 100, refusal.empty() ? "" : ": ", refusal.c_str());
}

// ---- the layer

static size_t work_size(const AttentionConfig *config) {
    size_t own = quadratic_gpu_work_size(config), cudnn = choice_for(config).refusal.empty() ? cudnn_floats(config) : 0;
    return granted_floats(config) = own > cudnn ? own : cudnn;
}

static void run(const AttentionConfig *config, bool backward, std::unordered_map<int64_t, void *> &tensors, float *work,
                cudaStream_t stream) {
    const Choice &choice = choice_for(config);
    const Plan &plan = backward ? choice.backward : choice.forward;
    cudnn_check(cudnnSetStream(handle(), stream));
    graph_check(plan.graph->execute(handle(), tensors, work + statistics_floats(config)));
}

// `saved` holds one number per row, the log-sum-exp, in memory for two.
static void forward(floatX *out, float *saved, const floatX *qkv, const float *constants, const float *parameters,
                    float *work, const AttentionConfig *config, cudaStream_t stream) {
    if (!takes(config)) {
        attention_gpu_softmax_tiled.forward(out, saved, qkv, constants, parameters, work, config, stream);
        return;
    }
    floatX *q = const_cast<floatX *>(qkv); // cuDNN has one type for what it reads and what it writes
    std::unordered_map<int64_t, void *> tensors = {
        {Q, q}, {K, q + config->C}, {V, q + 2 * config->C}, {OUT, out}, {STATS, saved ? saved : work}};
    run(config, false, tensors, work, stream);
}

static void backward(floatX *dqkv, float *dparameters, const floatX *dout, const floatX *qkv, const floatX *out,
                     const float *saved, const float *constants, const float *parameters, float *work,
                     const AttentionConfig *config, cudaStream_t stream) {
    if (!takes(config)) {
        attention_gpu_softmax_tiled.backward(dqkv, dparameters, dout, qkv, out, saved, constants, parameters, work,
                                             config, stream);
        return;
    }
    int C = config->C;
    floatX *q = const_cast<floatX *>(qkv);
    std::unordered_map<int64_t, void *> tensors = {{Q, q}, {K, q + C}, {V, q + 2 * C}};
    tensors[OUT] = const_cast<floatX *>(out), tensors[DOUT] = const_cast<floatX *>(dout);
    tensors[STATS] = const_cast<float *>(saved);
    tensors[DQ] = dqkv, tensors[DK] = dqkv + C, tensors[DV] = dqkv + 2 * C;
    run(config, true, tensors, work, stream);
}

static void step(floatX *out, float *cache, int pos, int n, const floatX *qkv, const float *constants,
                 const float *parameters, float *work, const AttentionConfig *config, cudaStream_t stream) {
    attention_gpu_softmax_tiled.step(out, cache, pos, n, qkv, constants, parameters, work, config, stream);
}

static void decode(floatX *out, float *cache, const int *position, const floatX *qkv, const float *constants,
                   const float *parameters, float *work, const AttentionConfig *config, cudaStream_t stream) {
    attention_gpu_softmax_tiled.decode(out, cache, position, qkv, constants, parameters, work, config, stream);
}

extern const AttentionGPU attention_gpu_softmax = {
    &attention_softmax,
    quadratic_gpu_saved_size,
    work_size,
    quadratic_gpu_cache_size,
    forward,
    backward,
    step,
    quadratic_gpu_check,
    describe,
    NULL,
    NULL,
    NULL,
    decode,
    USES_DECAY | USES_WINDOW | USES_DOCUMENTS,
};
#endif
