// Stands in for cuDNN's frontend, whose header would pull in all of cuDNN's backend: the classes and functions by which
// attention/softmax_cudnn.cu describes fused attention, with the frontend's names and its rules. runtime/cudnn.cpp
// computes.
#ifndef CUDA_ON_CPU_CUDNN_FRONTEND_H
#define CUDA_ON_CPU_CUDNN_FRONTEND_H

#include <cudnn_graph.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace cudnn_frontend {

enum class DataType_t { NOT_SET, FLOAT, HALF, BFLOAT16 };
enum class HeurMode_t { A, B, FALLBACK };

class [[nodiscard]] error_t {
    std::string message;

  public:
    error_t() {}
    explicit error_t(std::string why) : message(std::move(why)) {}
    bool is_good() const { return message.empty(); }
    bool is_bad() const { return !is_good(); }
    std::string get_message() const { return message; }
};

namespace graph {

class Tensor_attributes {
    int64_t uid = 0;
    std::vector<int64_t> dim, stride;
    DataType_t data_type = DataType_t::NOT_SET;
    bool is_output = false;

  public:
    Tensor_attributes &set_uid(int64_t value) { return uid = value, *this; }
    Tensor_attributes &set_dim(std::vector<int64_t> const &value) { return dim = value, *this; }
    Tensor_attributes &set_stride(std::vector<int64_t> const &value) { return stride = value, *this; }
    Tensor_attributes &set_data_type(DataType_t value) { return data_type = value, *this; }
    Tensor_attributes &set_output(bool value) { return is_output = value, *this; }
    int64_t get_uid() const { return uid; }
    std::vector<int64_t> get_dim() const { return dim; }
    std::vector<int64_t> get_stride() const { return stride; }
    DataType_t get_data_type() const { return data_type; }
    bool get_output() const { return is_output; }
};
typedef std::shared_ptr<Tensor_attributes> Tensor;

class SDPA_attributes {
  public:
    bool generates_stats = false, is_causal = false;
    float scale = 1;
    SDPA_attributes &set_generate_stats(bool value) { return generates_stats = value, *this; }
    SDPA_attributes &set_causal_mask(bool value) { return is_causal = value, *this; }
    SDPA_attributes &set_attn_scale(float value) { return scale = value, *this; }
};

class SDPA_backward_attributes {
  public:
    bool is_causal = false, is_deterministic = false;
    float scale = 1;
    SDPA_backward_attributes &set_causal_mask(bool value) { return is_causal = value, *this; }
    SDPA_backward_attributes &set_deterministic_algorithm(bool value) { return is_deterministic = value, *this; }
    SDPA_backward_attributes &set_attn_scale(float value) { return scale = value, *this; }
};

// One attention operation, forward or backward, between named tensors.
class Graph {
  public:
    // Places in `tensors`; backward has all, forward those up to STATS.
    enum { Q, K, V, OUT, STATS, DOUT, DQ, DK, DV, TENSORS };

  private:
    std::array<Tensor, TENSORS> tensors;
    std::vector<Tensor> inputs; // all that were made known by `tensor`
    DataType_t io = DataType_t::NOT_SET, intermediate = DataType_t::NOT_SET, compute = DataType_t::NOT_SET;
    int operations = 0;
    bool is_backward = false, is_causal = false, is_deterministic = false, generates_stats = false, is_built = false;
    float scale = 1;

    error_t validate() const;
    error_t validate_tensor(int place, bool is_result) const;

  public:
    Graph &set_io_data_type(DataType_t type) { return io = type, *this; }
    Graph &set_intermediate_data_type(DataType_t type) { return intermediate = type, *this; }
    Graph &set_compute_data_type(DataType_t type) { return compute = type, *this; }
    Tensor tensor(Tensor_attributes const &attributes);
    std::array<Tensor, 2> sdpa(Tensor q, Tensor k, Tensor v, SDPA_attributes options);
    std::array<Tensor, 3> sdpa_backward(Tensor q, Tensor k, Tensor v, Tensor out, Tensor dout, Tensor stats,
                                        SDPA_backward_attributes options);
    error_t build(cudnnHandle_t handle, std::vector<HeurMode_t> const &modes);
    error_t get_workspace_size(int64_t &bytes) const;
    error_t execute(cudnnHandle_t handle, std::unordered_map<int64_t, void *> &pointers, void *workspace) const;
};

} // namespace graph
} // namespace cudnn_frontend

#endif
