// cuDNN's stand-in: what it refuses. (What it computes: attention/test_softmax_gpu.cu.)
#include "../../core/gpu/cuda_common.h"
#include "../../core/base/test.h"

#include <cudnn_frontend.h>

namespace fe = cudnn_frontend;
typedef std::shared_ptr<fe::graph::Tensor_attributes> Tensor;

enum { Q = 1, K, V, OUT, STATS };

struct Sizes { // of a graph that is right unless a test changes something
    int64_t B = 2, NH = 2, T = 8, HS = 16, last_stride = 1, row = 16, stats_width = 1, k_uid = K;
    fe::DataType_t io = fe::DataType_t::BFLOAT16, stats = fe::DataType_t::FLOAT;
    bool causal = true, marks_output = true;
};

static cudnnHandle_t handle;

static fe::graph::Tensor_attributes tensor_of(const Sizes &s, int64_t uid) {
    return fe::graph::Tensor_attributes()
        .set_uid(uid)
        .set_dim({s.B, s.NH, s.T, s.HS})
        .set_stride({s.NH * s.T * s.row, s.T * s.row, s.row, s.last_stride});
}

static fe::error_t build(fe::graph::Graph &graph, const Sizes &s) {
    graph.set_io_data_type(s.io)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    auto options =
        fe::graph::SDPA_attributes().set_generate_stats(true).set_causal_mask(s.causal).set_attn_scale(0.25f);
    auto [out, stats] = graph.sdpa(graph.tensor(tensor_of(s, Q)), graph.tensor(tensor_of(s, s.k_uid)),
                                   graph.tensor(tensor_of(s, V)), options);
    auto as = tensor_of(s, OUT);
    out->set_output(s.marks_output).set_uid(OUT).set_dim(as.get_dim()).set_stride(as.get_stride());
    stats->set_output(true).set_uid(STATS).set_dim({s.B, s.NH, s.T, s.stats_width});
    stats->set_stride({s.NH * s.T, s.T, 1, 1}).set_data_type(s.stats);
    return graph.build(handle, {fe::HeurMode_t::A});
}

static std::string complaint(const Sizes &sizes) {
    fe::graph::Graph graph;
    return build(graph, sizes).get_message();
}

static bool says(const std::string &text, const char *part) {
    return text.find(part) != std::string::npos;
}

static void graphs_that_are_wrong(void) {
    Sizes right;
    CHECK(complaint(right).empty());
    Sizes s = right;
    s.HS = 20, s.row = 24;
    CHECK(says(complaint(s), "multiple of 8"));
    s = right, s.HS = 136, s.row = 136;
    CHECK(says(complaint(s), "at most 128"));
    s = right, s.T = 1;
    CHECK(says(complaint(s), "decode only"));
    s = right, s.row = 20;
    CHECK(says(complaint(s), "multiple of 16 bytes"));
    s = right, s.last_stride = 2;
    CHECK(says(complaint(s), "contiguous"));
    s = right, s.stats = fe::DataType_t::BFLOAT16;
    CHECK(says(complaint(s), "Stats has the wrong data type"));
    s = right, s.stats_width = 2;
    CHECK(says(complaint(s), "Stats has other dimensions"));
    s = right, s.k_uid = Q;
    CHECK(says(complaint(s), "same uid"));
    s = right, s.k_uid = 0;
    CHECK(says(complaint(s), "K has no uid"));
    s = right, s.marks_output = false;
    CHECK(says(complaint(s), "O is not marked as output"));
    s = right, s.io = fe::DataType_t::FLOAT;
    CHECK(says(complaint(s), "bfloat16"));
    s = right, s.causal = false;
    CHECK(says(complaint(s), "causal"));
}

static void executions_that_are_wrong(void) {
    Sizes sizes;
    fe::graph::Graph graph, unbuilt;
    int64_t bytes = 0;
    char *memory;
    cuda_check(cudaMalloc((void **)&memory, 1 << 16));
    std::unordered_map<int64_t, void *> pointers = {{Q, memory}, {K, memory}, {V, memory}, {OUT, memory + 4096}};
    CHECK(unbuilt.get_workspace_size(bytes).is_bad());
    CHECK(says(unbuilt.execute(handle, pointers, memory).get_message(), "before build"));
    CHECK(build(graph, sizes).is_good());
    CHECK(says(graph.execute(handle, pointers, memory + 32768).get_message(), "no pointer for Stats"));
    pointers[STATS] = memory + 8192;
    CHECK(says(graph.execute(handle, pointers, NULL).get_message(), "workspace"));
    CHECK(says(graph.execute(handle, pointers, memory + 32770).get_message(), "workspace"));
    CHECK(graph.execute(nullptr, pointers, memory).is_bad());
    CHECK(cudnnSetStream(handle, (cudaStream_t)memory) != CUDNN_STATUS_SUCCESS);
    cuda_check(cudaFree(memory));
}

int main(void) {
    CHECK(cudnnCreate(&handle) == CUDNN_STATUS_SUCCESS);
    RUN(graphs_that_are_wrong);
    RUN(executions_that_are_wrong);
    return test_summary();
}
