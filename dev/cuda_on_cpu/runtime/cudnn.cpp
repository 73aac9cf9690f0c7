// cuDNN, as much of it as include/cudnn_frontend.h declares: fused attention, forward and backward, in bfloat16.
//
// It refuses what cuDNN refuses on any of the GPUs that we build for, so that what runs here runs on all of them, and
// it fills its workspace with garbage, so that nobody keeps numbers there.
#include "runtime.h"

#include "../include/cudnn_frontend.h"

#include <cmath>
#include <cuda_bf16.h>
#include <set>

using namespace cuda_on_cpu;
using namespace cudnn_frontend;
using cudnn_frontend::graph::Graph;
using cudnn_frontend::graph::Tensor;
using cudnn_frontend::graph::Tensor_attributes;
using Status = cudnn_frontend::error_t;

struct cudnnContext {
    cudaStream_t stream;
};

extern "C" {

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
    require_errors_seen("cudnnCreate");
    if (!handle) return CUDNN_STATUS_BAD_PARAM;
    *handle = new cudnnContext{nullptr};
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    delete handle;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    if (!handle || !stream_is_known(stream)) return CUDNN_STATUS_BAD_PARAM;
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}
// CUDA_ON_CPU_CUDNN: another version
size_t cudnnGetVersion(void) {
    return (size_t)number_setting("CUDA_ON_CPU_CUDNN", 91900, 90000, 99999);
}
const char *cudnnGetErrorString(cudnnStatus_t status) {
    return status == CUDNN_STATUS_SUCCESS ? "CUDNN_STATUS_SUCCESS" : "CUDNN_STATUS_BAD_PARAM";
}

} // extern "C"

// ---- what a graph may be

namespace {

const char *const names[] = {"Q", "K", "V", "O", "Stats", "dO", "dQ", "dK", "dV"};

Status refused(const std::string &why) {
    return Status("[cudnn_frontend] " + why);
}

std::string attribute_error(const Tensor_attributes &tensor, DataType_t expected, DataType_t otherwise) {
    DataType_t type = tensor.get_data_type() == DataType_t::NOT_SET ? otherwise : tensor.get_data_type();
    std::vector<int64_t> dim = tensor.get_dim(), stride = tensor.get_stride();
    size_t bytes = expected == DataType_t::FLOAT ? 4 : 2;
    if (!tensor.get_uid()) return "has no uid";
    if (dim.size() != 4 || stride.size() != 4) return "does not have four dimensions and strides";
    if (type != expected) return "has the wrong data type";
    for (int64_t size : dim)
        if (size < 1) return "has an empty dimension";
    if (stride[3] != 1) return "does not have its last dimension contiguous";
    for (int i = 0; bytes == 2 && i < 3; i++)
        if (stride[(size_t)i] * (int64_t)bytes % 16) return "has a stride that is no multiple of 16 bytes";
    return "";
}

} // namespace

Status Graph::validate_tensor(int place, bool is_result) const {
    const Tensor &tensor = tensors[(size_t)place], &q = tensors[Q];
    if (!tensor) return refused(std::string(names[place]) + " is missing");
    bool is_stats = place == STATS;
    std::string wrong = attribute_error(*tensor, is_stats ? DataType_t::FLOAT : DataType_t::BFLOAT16, io);
    if (!wrong.empty()) return refused(std::string(names[place]) + " " + wrong);
    std::vector<int64_t> expected = q->get_dim();
    if (is_stats) expected[3] = 1;
    if (tensor->get_dim() != expected)
        return refused(std::string(names[place]) + " has other dimensions than Q asks for");
    if (tensor->get_output() != is_result)
        return refused(std::string(names[place]) + (is_result ? " is not marked as output" : " is marked as output"));
    bool is_known = false;
    for (const Tensor &input : inputs) is_known |= input == tensor;
    return is_known != is_result ? Status() : refused(std::string(names[place]) + " is not a tensor of this graph");
}

Status Graph::validate() const {
    std::set<int64_t> uids;
    if (operations != 1) return refused("expected one operation");
    if (io != DataType_t::BFLOAT16 || intermediate != DataType_t::FLOAT || compute != DataType_t::FLOAT)
        return refused("expected io in bfloat16, intermediates and computation in float");
    for (int place = Q; place < TENSORS; place++) {
        bool is_result = is_backward ? place >= DQ : place == OUT || place == STATS;
        if (place > STATS && !is_backward) break;
        if (place == STATS && !is_backward && !generates_stats) continue;
        Status status = validate_tensor(place, is_result);
        if (status.is_bad()) return status;
        if (!uids.insert(tensors[(size_t)place]->get_uid()).second) return refused("two tensors have the same uid");
    }
    std::vector<int64_t> dim = tensors[Q]->get_dim();
    if (dim[3] > 128 || dim[3] % 8) return refused("hidden_dim should be at most 128 and a multiple of 8");
    if (is_deterministic && cudnnGetVersion() < 91801)
        return refused("deterministic backward is not supported on Blackwell before 9.18.1");
    if (dim[2] == 1) return refused("decode only mode, i.e. s_q == 1, is not supported with masking");
    return is_causal ? Status() : refused("only causal attention is stood in for");
}

Tensor Graph::tensor(Tensor_attributes const &attributes) {
    inputs.push_back(std::make_shared<Tensor_attributes>(attributes));
    return inputs.back();
}

std::array<Tensor, 2> Graph::sdpa(Tensor q, Tensor k, Tensor v, graph::SDPA_attributes options) {
    operations++;
    is_causal = options.is_causal, scale = options.scale, generates_stats = options.generates_stats;
    Tensor out = std::make_shared<Tensor_attributes>();
    Tensor stats = generates_stats ? std::make_shared<Tensor_attributes>() : nullptr;
    tensors = {q, k, v, out, stats};
    return {out, stats};
}

std::array<Tensor, 3> Graph::sdpa_backward(Tensor q, Tensor k, Tensor v, Tensor out, Tensor dout, Tensor stats,
                                           graph::SDPA_backward_attributes options) {
    operations++;
    is_backward = true, is_causal = options.is_causal, scale = options.scale;
    is_deterministic = options.is_deterministic;
    Tensor dq = std::make_shared<Tensor_attributes>(), dk = std::make_shared<Tensor_attributes>(),
           dv = std::make_shared<Tensor_attributes>();
    tensors = {q, k, v, out, stats, dout, dq, dk, dv};
    return {dq, dk, dv};
}

Status Graph::build(cudnnHandle_t handle, std::vector<HeurMode_t> const &modes) {
    if (!handle || modes.empty()) return refused("build needs a handle and a heuristic");
    Status status = validate();
    is_built = status.is_good();
    return status;
}

// As much as a backward pass needs if it gathers dQ in float. CUDA_ON_CPU_CUDNN_SPLITS=B: for batches smaller than B a
// plan divides the keys among blocks too, and wants eight times as much.
Status Graph::get_workspace_size(int64_t &bytes) const {
    if (!is_built) return refused("get_workspace_size before build");
    std::vector<int64_t> dim = tensors[Q]->get_dim();
    bytes = is_backward ? dim[0] * dim[1] * dim[2] * (dim[3] + 1) * 4 : 16;
    if (dim[0] < number_setting("CUDA_ON_CPU_CUDNN_SPLITS", 0, 0, 1 << 20)) bytes *= 8;
    return Status();
}

// ---- computing

namespace {

struct Rows { // of one tensor in device memory
    char *start;
    std::vector<int64_t> dim, stride;
    size_t number; // bytes
    char *row(int64_t b, int64_t h, int64_t t) const {
        return start + (size_t)(b * stride[0] + h * stride[1] + t * stride[2]) * number;
    }
    std::vector<float> read(int64_t b, int64_t h, const char *what) const {
        std::vector<float> numbers;
        for (int64_t t = 0; t < dim[2]; t++) {
            char *from = row(b, h, t);
            checker_read(from, (size_t)dim[3] * number, what);
            for (int64_t d = 0; d < dim[3]; d++)
                numbers.push_back(number == 4 ? ((float *)from)[d] : __bfloat162float(((__nv_bfloat16 *)from)[d]));
        }
        return numbers;
    }
    void write(int64_t b, int64_t h, const std::vector<float> &numbers) const {
        for (int64_t t = 0; t < dim[2]; t++) {
            char *to = row(b, h, t);
            for (int64_t d = 0; d < dim[3]; d++) {
                float x = numbers[(size_t)(t * dim[3] + d)];
                number == 4 ? (void)(((float *)to)[d] = x) : (void)(((__nv_bfloat16 *)to)[d] = __float2bfloat16(x));
            }
            checker_written(to, (size_t)dim[3] * number);
        }
    }
};

float rounded(float x) {
    return __bfloat162float(__float2bfloat16(x));
}

float dot(const std::vector<float> &a, size_t i, const std::vector<float> &b, size_t j, size_t HS) {
    float sum = 0;
    for (size_t d = 0; d < HS; d++) sum += a[i * HS + d] * b[j * HS + d];
    return sum;
}

void add(std::vector<float> &a, size_t i, float factor, const std::vector<float> &b, size_t j, size_t HS) {
    for (size_t d = 0; d < HS; d++) a[i * HS + d] += factor * b[j * HS + d];
}

struct Head { // of one sequence, (T, HS) each
    std::vector<float> q, k, v, out, stats, dout, dq, dk, dv;
    size_t T, HS;
    float scale;

    // What goes into a matrix product is bfloat16: weights too.
    void forward() {
        out.assign(T * HS, 0), stats.assign(T, 0);
        for (size_t i = 0; i < T; i++) {
            std::vector<float> scores;
            float largest = -INFINITY, sum = 0;
            for (size_t j = 0; j <= i; j++) scores.push_back(scale * dot(q, i, k, j, HS));
            for (float score : scores) largest = std::fmax(largest, score);
            for (float score : scores) sum += std::exp(score - largest);
            for (size_t j = 0; j <= i; j++) add(out, i, rounded(std::exp(scores[j] - largest)) / sum, v, j, HS);
            stats[i] = largest + std::log(sum);
        }
    }
    void backward() {
        dq.assign(T * HS, 0), dk.assign(T * HS, 0), dv.assign(T * HS, 0);
        for (size_t i = 0; i < T; i++) {
            float of_row = dot(dout, i, out, i, HS);
            for (size_t j = 0; j <= i; j++) {
                float weight = std::exp(scale * dot(q, i, k, j, HS) - stats[i]);
                float slope = rounded(weight * (dot(dout, i, v, j, HS) - of_row));
                add(dv, j, rounded(weight), dout, i, HS);
                add(dq, i, scale * slope, k, j, HS);
                add(dk, j, scale * slope, q, i, HS);
            }
        }
    }
};

void run_head(const std::vector<Rows> &rows, int64_t b, int64_t h, float scale, bool is_backward) {
    Head head;
    head.T = (size_t)rows[Graph::Q].dim[2], head.HS = (size_t)rows[Graph::Q].dim[3], head.scale = scale;
    auto read = [&](int place) {
        return rows[(size_t)place].read(b, h, (std::string("cuDNN, ") + names[place]).c_str());
    };
    head.q = read(Graph::Q), head.k = read(Graph::K), head.v = read(Graph::V);
    if (is_backward) {
        head.out = read(Graph::OUT), head.stats = read(Graph::STATS), head.dout = read(Graph::DOUT);
        head.backward();
        rows[Graph::DQ].write(b, h, head.dq), rows[Graph::DK].write(b, h, head.dk),
            rows[Graph::DV].write(b, h, head.dv);
    } else {
        head.forward();
        rows[Graph::OUT].write(b, h, head.out);
        if (rows.size() > Graph::STATS) rows[Graph::STATS].write(b, h, head.stats);
    }
}

// The tensor's place in memory, all of which has to be there.
Rows rows_of(const Tensor &tensor, void *start, int place) {
    Rows rows = {(char *)start, tensor->get_dim(), tensor->get_stride(), place == Graph::STATS ? 4u : 2u};
    size_t extent = 1;
    for (size_t i = 0; i < 4; i++) extent += (size_t)((rows.dim[i] - 1) * rows.stride[i]);
    std::string what = std::string("cuDNN, ") + names[place];
    if ((uintptr_t)start % 16) fault("misaligned access", nowhere, "%s is not aligned to 16 bytes", what.c_str());
    require_device_range(start, extent * rows.number, what.c_str());
    return rows;
}

void spoil(void *workspace, size_t bytes) {
    require_device_range(workspace, bytes, "cuDNN's workspace");
    memset(workspace, 0xff, bytes);
    checker_written(workspace, bytes);
}

} // namespace

Status Graph::execute(cudnnHandle_t handle, std::unordered_map<int64_t, void *> &pointers, void *workspace) const {
    require_errors_seen("cudnn_frontend::graph::Graph::execute");
    if (!handle || !is_built) return refused("execute before build, or without a handle");
    int64_t bytes = 0;
    if (get_workspace_size(bytes).is_bad() || !workspace || (uintptr_t)workspace % 16)
        return refused("the workspace is missing or not aligned to 16 bytes");
    int used = is_backward ? (int)TENSORS : generates_stats ? STATS + 1 : OUT + 1;
    std::vector<void *> starts;
    for (int place = 0; place < used; place++) {
        auto found = pointers.find(tensors[(size_t)place]->get_uid());
        if (found == pointers.end() || !found->second) return refused(std::string("no pointer for ") + names[place]);
        starts.push_back(found->second);
    }
    std::array<Tensor, TENSORS> of_graph = tensors;
    bool backward = is_backward;
    float factor = scale;
    enqueue(handle->stream, [=] {
        DeviceMemoryAccess access;
        std::vector<Rows> rows;
        for (int place = 0; place < used; place++)
            rows.push_back(rows_of(of_graph[(size_t)place], starts[(size_t)place], place));
        spoil(workspace, (size_t)bytes);
        for (int64_t b = 0; b < rows[Q].dim[0]; b++)
            for (int64_t h = 0; h < rows[Q].dim[1]; h++) run_head(rows, b, h, factor, backward);
    });
    return Status();
}
