/*
out = GELU(inp weight + bias), what went into the GELU kept for backward. build/.../linear_gelu [N C OC]

  1  a thread per output number, everything from global memory
  2  tiles of inp and weight in shared memory
  3  cuBLASLt for the product and the bias, a kernel for the GELU
  4  shipped: in bf16 from sm_90 on one call of cuBLASLt, GELU and bias in its epilogue, where the library has it; else
     version 3, because below sm_90 the library computes the GELU in a second, slower kernel
*/
#include "layer_case.h"

enum { TILE_SIDE = 16 };

__global__ void from_global(floatX *out, floatX *gelu_inp, const floatX *inp, const floatX *weight, const floatX *bias,
                            int N, int C, int OC) {
    int o = blockIdx.x * TILE_SIDE + threadIdx.x, n = blockIdx.y * TILE_SIDE + threadIdx.y;
    if (n >= N || o >= OC) return;
    float sum = to_float(bias[o]);
    for (int c = 0; c < C; c++) sum += to_float(inp[(size_t)n * C + c]) * to_float(weight[(size_t)c * OC + o]);
    gelu_inp[(size_t)n * OC + o] = from_float<floatX>(sum);
    out[(size_t)n * OC + o] = from_float<floatX>(gelu(to_float(gelu_inp[(size_t)n * OC + o])));
}

__global__ void from_shared(floatX *out, floatX *gelu_inp, const floatX *inp, const floatX *weight, const floatX *bias,
                            int N, int C, int OC) {
    __shared__ float inp_tile[TILE_SIDE][TILE_SIDE], weight_tile[TILE_SIDE][TILE_SIDE + 1];
    int o = blockIdx.x * TILE_SIDE + threadIdx.x, n = blockIdx.y * TILE_SIDE + threadIdx.y;
    float sum = o < OC ? to_float(bias[o]) : 0;
    for (int start = 0; start < C; start += TILE_SIDE) {
        int inp_c = start + (int)threadIdx.x, weight_c = start + (int)threadIdx.y;
        inp_tile[threadIdx.y][threadIdx.x] = n < N && inp_c < C ? to_float(inp[(size_t)n * C + inp_c]) : 0;
        weight_tile[threadIdx.y][threadIdx.x] =
            o < OC && weight_c < C ? to_float(weight[(size_t)weight_c * OC + o]) : 0;
        __syncthreads();
        for (int c = 0; c < TILE_SIDE; c++) sum += inp_tile[threadIdx.y][c] * weight_tile[c][threadIdx.x];
        __syncthreads();
    }
    if (n < N && o < OC) {
        floatX rounded = from_float<floatX>(sum);
        gelu_inp[(size_t)n * OC + o] = rounded;
        out[(size_t)n * OC + o] = from_float<floatX>(gelu(to_float(rounded)));
    }
}

int main(int argc, char **argv) {
    int N = argument(argc, argv, 1, 37), C = argument(argc, argv, 2, 48), OC = argument(argc, argv, 3, 72);
    size_t count = (size_t)N * OC;
    cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    Activation inp((size_t)N * C, 1), weight((size_t)C * OC, 0.3), bias((size_t)OC, 1), gelu_inp(count), out(count);
    twin_linear_forward(gelu_inp.data(), inp.data(), weight.data(), bias.data(), N, C, OC);
    twin_gelu_forward(out.data(), gelu_inp.data(), count);
    dim3 grid(blocks_for((size_t)OC, TILE_SIDE), blocks_for((size_t)N, TILE_SIDE)), block(TILE_SIDE, TILE_SIDE);
    auto version = [&](int number) {
        if (number == 1)
            from_global<<<grid, block, 0, stream>>>(out.device, gelu_inp.device, inp.device, weight.device, bias.device,
                                                    N, C, OC);
        if (number == 2)
            from_shared<<<grid, block, 0, stream>>>(out.device, gelu_inp.device, inp.device, weight.device, bias.device,
                                                    N, C, OC);
        if (number == 3) {
            linear_forward(gelu_inp.device, inp.device, weight.device, bias.device, N, C, OC, stream);
            gelu_forward(out.device, gelu_inp.device, count, stream);
        }
        if (number == 4)
            linear_gelu_forward(out.device, gelu_inp.device, inp.device, weight.device, bias.device, N, C, OC,
                                gelu_is_fused(FUSE_GELU_AUTO), stream);
        launch_check();
    };
    static const char *const names[] = {"from global memory", "tiles in shared memory", "cuBLASLt, then a GELU kernel",
                                        "shipped: GELU and bias in cuBLASLt's epilogue"};
    double bytes = ((double)N * C + (double)C * OC + 2.0 * count) * sizeof(floatX);
    for (int number = 1; number <= 4; number++) {
        version(number);
        report(number, names[number - 1], fmax(worst_of(gelu_inp), worst_of(out)), BOUND, bytes,
               [&] { version(number); });
    }
    return test_summary();
}
