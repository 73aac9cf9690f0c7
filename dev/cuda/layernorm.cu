/*
Residual + LayerNorm forward, from a thread per row to the trainer's kernel. build/.../layernorm [N C]

  1  a thread per row: neighbouring threads read places a whole row apart
  2  a warp per row: neighbouring lanes read neighbouring numbers
  3  the same with packs of four numbers
  4  shipped: the sum with the residual in the same kernel saves a pass over memory
*/
#include "layer_case.h"

__global__ void add_kernel_of(floatX *sum, const floatX *inp, const floatX *branch, size_t count) {
    size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i < count) sum[i] = from_float<floatX>(to_float(inp[i]) + to_float(branch[i]));
}

__global__ void thread_per_row(floatX *out, float *mean, float *rstd, const floatX *inp, const floatX *weight,
                               const floatX *bias, int N, int C) {
    int n = blockIdx.x * BLOCK + threadIdx.x;
    if (n >= N) return;
    const floatX *x = inp + (size_t)n * C;
    float sum = 0, squares = 0;
    for (int c = 0; c < C; c++) sum += to_float(x[c]);
    float m = sum / C;
    for (int c = 0; c < C; c++) squares += (to_float(x[c]) - m) * (to_float(x[c]) - m);
    float s = 1 / sqrtf(squares / C + 1e-5f);
    for (int c = 0; c < C; c++)
        out[(size_t)n * C + c] = from_float<floatX>((to_float(x[c]) - m) * s * to_float(weight[c]) + to_float(bias[c]));
    mean[n] = m, rstd[n] = s;
}

int main(int argc, char **argv) {
    int N = argument(argc, argv, 1, 83), C = argument(argc, argv, 2, 160);
    size_t count = (size_t)N * C;
    cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    Activation inp(count, 1), branch(count, 1), weight((size_t)C, 1), bias((size_t)C, 1), sum(count), out(count);
    Sum mean((size_t)N), rstd((size_t)N);
    for (size_t i = 0; i < count; i++) sum.host[i] = to_float(from_float<floatX>(inp.host[i] + branch.host[i]));
    twin_layernorm_forward(out.data(), mean.data(), rstd.data(), sum.data(), weight.data(), bias.data(), N, C);
    auto add = [&] {
        add_kernel_of<<<blocks_for(count, BLOCK), BLOCK, 0, stream>>>(sum.device, inp.device, branch.device, count);
        launch_check();
    };
    auto version = [&](int number) {
        if (number < 4) add();
        if (number == 1)
            thread_per_row<<<blocks_for((size_t)N, BLOCK), BLOCK, 0, stream>>>(
                out.device, mean.device, rstd.device, sum.device, weight.device, bias.device, N, C);
        if (number == 2)
            layernorm_forward_kernel<1><<<blocks_for((size_t)N, WARPS), BLOCK, 0, stream>>>(
                out.device, mean.device, rstd.device, NULL, sum.device, NULL, dropout_of(0, NULL, NULL), weight.device,
                bias.device, N, C);
        if (number == 3)
            layernorm_forward(out.device, mean.device, rstd.device, sum.device, weight.device, bias.device, N, C,
                              stream);
        if (number == 4)
            residual_layernorm_forward(out.device, mean.device, rstd.device, sum.device, inp.device, branch.device,
                                       dropout_of(0, NULL, NULL), weight.device, bias.device, N, C, stream);
        launch_check();
    };
    static const char *const names[] = {"a thread per row", "a warp per row", "packs of four numbers",
                                        "shipped: with the residual's sum in it"};
    for (int number = 1; number <= 4; number++) {
        version(number);
        double worst = fmax(worst_of(out), fmax(worst_of(mean), worst_of(rstd)));
        report(number, names[number - 1], worst, BOUND, 4.0 * count * sizeof(floatX), [&] { version(number); });
    }
    return test_summary();
}
