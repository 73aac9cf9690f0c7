/*
The gradient of the token embedding: rows of dout added up by their token. build/.../embedding_backward [B T C V]

  1  a thread per number, atomicAdd: the order of additions, and with it the last bits, change from run to run
  2  a thread per column, through all rows: the same bits every time, but hardly any threads
  3  shipped: a block per token, its rows listed by a sort on the host; the same bits every time
*/
#include "layer_case.h"

__global__ void with_atomics(float *dwte, const floatX *dout, const int *tokens, size_t count, int C) {
    size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i < count) atomicAdd(&dwte[(size_t)tokens[i / C] * C + i % C], to_float(dout[i]));
}

__global__ void thread_per_column(float *dwte, const floatX *dout, const int *tokens, int N, int C) {
    int c = blockIdx.x * BLOCK + threadIdx.x;
    for (int n = 0; c < C && n < N; n++) dwte[(size_t)tokens[n] * C + c] += to_float(dout[(size_t)n * C + c]);
}

int main(int argc, char **argv) {
    int B = argument(argc, argv, 1, 3), T = argument(argc, argv, 2, 41);
    int C = argument(argc, argv, 3, 148), V = argument(argc, argv, 4, 29), N = B * T;
    size_t count = (size_t)N * C;
    cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    std::vector<int> tokens = random_tokens((size_t)N, V);
    Activation dout(count, 1);
    Sum dwte((size_t)V * C, 1), dwpe((size_t)T * C, 1);
    const std::vector<float> before = dwte.host;
    BatchGPU batch = {};
    MicroBatch micro = {};
    micro.inputs = micro.targets = tokens.data(), micro.B = B, micro.T = T;
    batch_gpu_create(&batch, (size_t)N, V, 1);
    batch_gpu_upload(&batch, &micro, 1, 1, stream);
    const int *inputs = batch.device.inputs;
    twin_embedding_backward(dwte.data(), dwpe.data(), dout.data(), tokens.data(), NULL, N, T, C);
    const std::vector<float> after = dwte.host;
    auto version = [&](int number) {
        if (number == 1)
            with_atomics<<<blocks_for(count, BLOCK), BLOCK, 0, stream>>>(dwte.device, dout.device, inputs, count, C);
        if (number == 2)
            thread_per_column<<<blocks_for((size_t)C, BLOCK), BLOCK, 0, stream>>>(dwte.device, dout.device, inputs, N,
                                                                                  C);
        if (number == 3)
            embedding_backward(dwte.device, dwpe.device, dout.device, inputs, batch.device.positions, N, T, C, V,
                               batch.device.by_token, batch.device.by_position, stream);
        launch_check();
    };
    static const char *const names[] = {"atomics", "a thread per column", "shipped: a block per token"};
    for (int number = 1; number <= 3; number++) {
        dwte.host = before, dwte.send();
        version(number);
        dwte.host = after;
        report(number, names[number - 1], worst_of(dwte), 1e-5, (double)count * sizeof(floatX) + 8.0 * V * C,
               [&] { version(number); });
    }
    cuda_check(cudaStreamSynchronize(stream));
    batch_gpu_free(&batch);
    return test_summary();
}
