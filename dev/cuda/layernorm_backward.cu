/*
LayerNorm backward, from a thread per row to the trainer's kernel. build/.../layernorm_backward [N C]

dinp is easy: every row has its own. dweight and dbias are sums over all rows, which someone has to own.

  1  a thread per row for dinp; for dweight and dbias a thread per column, which goes down all rows by itself
  2  a warp per row for dinp: neighbouring lanes read neighbouring numbers; the columns as before
  3  a block has 32 rows and does both: it reads them a second time while the caches hold them, and leaves its share of
     dweight and dbias for a sum over all blocks: many owners, and always the same order
  4  shipped: the same with packs of four numbers
*/
#include "layer_case.h"

typedef struct {
    floatX *dinp;
    float *dweight, *dbias;
    const floatX *dout, *inp, *weight;
    const float *mean, *rstd;
    int N, C;
} Gradient;

// `lanes` threads share a row: one, or a warp.
__global__ void rows_of_dinp(Gradient g, int lanes) {
    int thread = blockIdx.x * BLOCK + threadIdx.x, n = thread / lanes, lane = thread % lanes, C = g.C;
    if (n >= g.N) return;
    size_t row = (size_t)n * C;
    float sum = 0, product = 0, m = g.mean[n], s = g.rstd[n];
    for (int c = lane; c < C; c += lanes) {
        float dnorm = to_float(g.dout[row + c]) * to_float(g.weight[c]);
        sum += dnorm;
        product += dnorm * ((to_float(g.inp[row + c]) - m) * s);
    }
    if (lanes > 1) sum = warp_sum(sum), product = warp_sum(product);
    for (int c = lane; c < C; c += lanes) {
        float norm = (to_float(g.inp[row + c]) - m) * s, dnorm = to_float(g.dout[row + c]) * to_float(g.weight[c]);
        float dx = s * (dnorm - sum / C - norm * (product / C));
        g.dinp[row + c] = from_float<floatX>(to_float(g.dinp[row + c]) + dx);
    }
}

__global__ void columns_of_sums(Gradient g) {
    int c = blockIdx.x * BLOCK + threadIdx.x;
    if (c >= g.C) return;
    float dweight = 0, dbias = 0;
    for (int n = 0; n < g.N; n++) {
        size_t i = (size_t)n * g.C + c;
        float dy = to_float(g.dout[i]);
        dweight += dy * ((to_float(g.inp[i]) - g.mean[n]) * g.rstd[n]);
        dbias += dy;
    }
    g.dweight[c] = dweight, g.dbias[c] = dbias;
}

static void run_version(int number, const Gradient &g, float *work) {
    int lanes = number == 1 ? 1 : WARP, blocks = (g.N + ROW_BLOCK - 1) / ROW_BLOCK;
    if (number < 3) {
        rows_of_dinp<<<blocks_for((size_t)g.N * lanes, BLOCK), BLOCK, 0, stream>>>(g, lanes);
        launch_check();
        columns_of_sums<<<blocks_for((size_t)g.C, BLOCK), BLOCK, 0, stream>>>(g);
    } else if (number == 3) {
        layernorm_backward_kernel<1>
            <<<(unsigned)blocks, BLOCK, 0, stream>>>(g.dinp, work, g.dout, g.inp, g.mean, g.rstd, g.weight, g.N, g.C);
        launch_check();
        float *sums = work + (size_t)blocks * 2 * g.C;
        sum_rows(g.dweight, work, 2 * (size_t)g.C, blocks, g.C, 0, sums, stream);
        sum_rows(g.dbias, work + g.C, 2 * (size_t)g.C, blocks, g.C, 0, sums, stream);
    } else {
        layernorm_backward(g.dinp, g.dweight, g.dbias, g.dout, g.inp, g.mean, g.rstd, g.weight, g.N, g.C, 0, work,
                           stream);
    }
    launch_check();
}

int main(int argc, char **argv) {
    int N = argument(argc, argv, 1, 83), C = argument(argc, argv, 2, 160);
    size_t count = (size_t)N * C;
    cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    Activation inp(count, 1), dout(count, 1), weight((size_t)C, 1), bias((size_t)C, 1), dinp(count, 1), out(count);
    Sum mean((size_t)N), rstd((size_t)N), dweight((size_t)C), dbias((size_t)C), work(layernorm_work(N, C));
    twin_layernorm_forward(out.data(), mean.data(), rstd.data(), inp.data(), weight.data(), bias.data(), N, C);
    mean.send(), rstd.send();
    const std::vector<float> before = dinp.host;
    twin_layernorm_backward(dinp.data(), dweight.data(), dbias.data(), dout.data(), inp.data(), mean.data(),
                            rstd.data(), weight.data(), N, C, 0);
    const std::vector<float> after = dinp.host;
    Gradient gradient = {dinp.device,   dweight.device, dbias.device, dout.device, inp.device,
                         weight.device, mean.device,    rstd.device,  N,           C};
    static const char *const names[] = {"a thread per row, a thread per column", "a warp per row, a thread per column",
                                        "a block per 32 rows, and a sum over blocks", "shipped: packs of four numbers"};
    for (int number = 1; number <= 4; number++) {
        dinp.host = before, dinp.send();
        run_version(number, gradient, work.device);
        dinp.host = after;
        double worst = fmax(worst_of(dinp), fmax(worst_of(dweight), worst_of(dbias)));
        report(number, names[number - 1], worst, BOUND, 4.0 * count * sizeof(floatX),
               [&] { run_version(number, gradient, work.device); });
    }
    return test_summary();
}
