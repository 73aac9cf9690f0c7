/*
The norm of all gradients, which clipping needs. build/.../gradient_norm [COUNT]

  1  one block: a single multiprocessor reads everything
  2  every block adds its sum to one number with an atomic: the whole GPU reads, but the order of the sum, and with it
     the last bits of every weight, changes from run to run; and the number must be set to 0 first
  3  shipped: a sum per block, each to a place of its own; one block adds them up in order and works out the clip
     factor, which stays on the device
*/
#include "layer_case.h"

__global__ void one_block(double *sum, const float *x, size_t count) {
    double squares = 0;
    for (size_t i = threadIdx.x; i < count; i += BLOCK) squares += (double)x[i] * (double)x[i];
    squares = block_sum(squares);
    if (threadIdx.x == 0) *sum = squares;
}

__global__ void atomic_blocks(double *sum, const float *x, size_t count) {
    double squares = 0;
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < count; i += (size_t)gridDim.x * BLOCK)
        squares += (double)x[i] * (double)x[i];
    squares = block_sum(squares);
    if (threadIdx.x == 0) atomicAdd(sum, squares);
}

static double fetch_norm(const StepState *state, const double *sum, bool is_shipped) {
    StepState found = {};
    double squares = 0;
    cuda_check(cudaStreamSynchronize(stream));
    cuda_check(cudaMemcpy(&squares, sum, sizeof squares, cudaMemcpyDeviceToHost));
    if (is_shipped) cuda_check(cudaMemcpy(&found, state, sizeof found, cudaMemcpyDeviceToHost));
    return is_shipped ? found.norm : sqrt(squares);
}

int main(int argc, char **argv) {
    size_t count = (size_t)argument(argc, argv, 1, 50000);
    cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    Sum gradients(count, 1);
    StepState *state = device_copy(std::vector<StepState>{{1, 0, 0, 0}});
    double *parts = device_copy(std::vector<double>((size_t)NORM_BLOCKS));
    double expected = twin_gradient_norm(gradients.data(), count);
    auto version = [&](int number) {
        unsigned blocks = norm_blocks(count);
        if (number == 1) one_block<<<1, BLOCK, 0, stream>>>(parts, gradients.device, count);
        if (number == 2) {
            cuda_check(cudaMemsetAsync(parts, 0, sizeof *parts, stream));
            atomic_blocks<<<blocks, BLOCK, 0, stream>>>(parts, gradients.device, count);
        }
        if (number == 3) {
            sum_squares_kernel<<<blocks, BLOCK, 0, stream>>>(parts, gradients.device, count);
            finish_norm_kernel<<<1, BLOCK, 0, stream>>>(state, parts, (int)blocks, 1.0f, INFINITY, INFINITY);
        }
        launch_check();
    };
    static const char *const names[] = {"one block", "an atomic for every block",
                                        "shipped: a part for every block, in order"};
    for (int number = 1; number <= 3; number++) {
        version(number);
        double off = fabs(fetch_norm(state, parts, number == 3) - expected) / expected;
        report(number, names[number - 1], off, 1e-12, 4.0 * count, [&] { version(number); });
    }
    cuda_check(cudaFree(state)), cuda_check(cudaFree(parts));
    return test_summary();
}
