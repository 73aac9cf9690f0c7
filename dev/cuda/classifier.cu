/*
Cross-entropy's loss and its gradient with respect to the logits. build/.../classifier [N V]

  1  a thread per row: largest, sum, gradient, one after the other
  2  a block per row, three passes: the largest, the sum, the gradient
  3  a block per row; largest and sum in one pass, which costs two exponentials per logit
  4  shipped: the same by packs of four numbers, whose largest comes first: one exponential per logit
*/
#include "layer_case.h"

__global__ void thread_per_row(float *losses, floatX *logits, const int *targets, float scale, int N, int V,
                               int stride) {
    int n = blockIdx.x * BLOCK + threadIdx.x;
    if (n >= N) return;
    floatX *row = logits + (size_t)n * stride;
    float largest = -FLT_MAX, sum = 0;
    for (int v = 0; v < V; v++) largest = fmaxf(largest, to_float(row[v]));
    for (int v = 0; v < V; v++) sum += expf(to_float(row[v]) - largest);
    losses[n] = logf(sum) - (to_float(row[targets[n]]) - largest);
    for (int v = 0; v < stride; v++)
        row[v] = from_float<floatX>(v < V ? scale * (expf(to_float(row[v]) - largest) / sum - (v == targets[n])) : 0);
}

__global__ void block_per_row(float *losses, floatX *logits, const int *targets, float scale, int V, int stride) {
    floatX *row = logits + (size_t)blockIdx.x * stride;
    int target = targets[blockIdx.x];
    float largest = -FLT_MAX, sum = 0;
    for (int v = threadIdx.x; v < V; v += BLOCK) largest = fmaxf(largest, to_float(row[v]));
    largest = block_max(largest);
    for (int v = threadIdx.x; v < V; v += BLOCK) sum += expf(to_float(row[v]) - largest);
    sum = block_sum(sum);
    if (threadIdx.x == 0) losses[blockIdx.x] = logf(sum) - (to_float(row[target]) - largest);
    __syncthreads();
    for (int v = threadIdx.x; v < stride; v += BLOCK)
        row[v] = from_float<floatX>(v < V ? scale * (expf(to_float(row[v]) - largest) / sum - (v == target)) : 0);
}

__global__ void sum_with_largest(float *losses, floatX *logits, const int *targets, float scale, int V, int stride) {
    floatX *row = logits + (size_t)blockIdx.x * stride;
    int target = targets[blockIdx.x];
    float largest = -FLT_MAX, sum = 0;
    for (int v = threadIdx.x; v < V; v += BLOCK) {
        float before = largest, x = to_float(row[v]);
        largest = fmaxf(largest, x);
        sum = sum * expf(before - largest) + expf(x - largest);
    }
    float of_row = block_max(largest);
    sum = block_sum(sum * expf(largest - of_row));
    if (threadIdx.x == 0) losses[blockIdx.x] = logf(sum) - (to_float(row[target]) - of_row);
    __syncthreads();
    for (int v = threadIdx.x; v < stride; v += BLOCK)
        row[v] = from_float<floatX>(v < V ? scale * (expf(to_float(row[v]) - of_row) / sum - (v == target)) : 0);
}

int main(int argc, char **argv) {
    int N = argument(argc, argv, 1, 19), V = argument(argc, argv, 2, 1301), stride = padded_vocabulary(V);
    size_t count = (size_t)N * stride;
    float scale = 0.25f;
    cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    Activation drawn(count, 2), logits(count);
    Sum losses((size_t)N);
    std::vector<int> targets = random_tokens((size_t)N, V);
    int *device_targets = device_copy(targets);
    float *device_scale = device_copy(std::vector<float>{scale});
    logits.host = drawn.host;
    for (int n = 0; n < N; n++) {
        float *row = &logits.host[(size_t)n * stride];
        losses.host[(size_t)n] = (float)twin_cross_entropy_row(row, targets[(size_t)n], scale, V);
        std::fill(row + V, row + stride, 0.0f);
    }
    auto version = [&](int number) {
        cuda_check(
            cudaMemcpyAsync(logits.device, drawn.device, count * sizeof(floatX), cudaMemcpyDeviceToDevice, stream));
        if (number == 1)
            thread_per_row<<<blocks_for((size_t)N, BLOCK), BLOCK, 0, stream>>>(losses.device, logits.device,
                                                                               device_targets, scale, N, V, stride);
        if (number == 2)
            block_per_row<<<(unsigned)N, BLOCK, 0, stream>>>(losses.device, logits.device, device_targets, scale, V,
                                                             stride);
        if (number == 3)
            sum_with_largest<<<(unsigned)N, BLOCK, 0, stream>>>(losses.device, logits.device, device_targets, scale, V,
                                                                stride);
        if (number == 4)
            classifier_kernel<<<(unsigned)N, BLOCK, 0, stream>>>(losses.device, logits.device, device_targets,
                                                                 device_scale, V, stride);
        launch_check();
    };
    static const char *const names[] = {"a thread per row", "a block per row, three passes",
                                        "largest and sum in one pass", "shipped: one exponential per logit"};
    for (int number = 1; number <= 4; number++) { // the time includes the copy of the logits
        version(number);
        report(number, names[number - 1], fmax(worst_of(losses), worst_of(logits)), BOUND, 4.0 * count * sizeof(floatX),
               [&] { version(number); });
    }
    cuda_check(cudaFree(device_targets)), cuda_check(cudaFree(device_scale));
    return test_summary();
}
