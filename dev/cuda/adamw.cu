/*
AdamW's step over all parameters. build/.../adamw [COUNT]

  1  a thread per number; norm and clip factor are fetched to the host first
  2  the same with packs of four numbers
  3  shipped: the clip factor, and whether to step at all, come from the device; in bf16 the same pass writes the
     rounded weights
*/
#include "layer_case.h"

template <int WIDTH>
__global__ void host_decides(float *value, float *m, float *v, const float *gradient, AdamW adamw, float scale,
                             size_t count) {
    size_t i = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * WIDTH;
    if (i >= count) return;
    Floats<WIDTH> x = load<WIDTH>(value + i), g = load<WIDTH>(gradient + i), a = load<WIDTH>(m + i),
                  b = load<WIDTH>(v + i);
    for (int k = 0; k < WIDTH; k++) {
        float scaled = g.at[k] * scale;
        a.at[k] = adamw.beta1 * a.at[k] + (1 - adamw.beta1) * scaled;
        b.at[k] = adamw.beta2 * b.at[k] + (1 - adamw.beta2) * scaled * scaled;
        x.at[k] = x.at[k] * adamw.keep - adamw.step_size * a.at[k] / (sqrtf(b.at[k] * adamw.v_scale) + adamw.eps);
    }
    store(value + i, x), store(m + i, a), store(v + i, b);
}

int main(int argc, char **argv) {
    size_t count = (size_t)argument(argc, argv, 1, 5000) / PACK * PACK;
    cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    Settings settings = settings_default();
    double rate = 1e-3, norm = 7, clip = 1 / norm;
    int64_t step = 4;
    AdamW adamw = {settings.beta1, settings.beta2, settings.adam_eps, 0, 0, 0};
    adamw.step_size = (float)(rate / (1 - pow(settings.beta1, (double)step + 1)));
    adamw.v_scale = (float)(1 / (1 - pow(settings.beta2, (double)step + 1)));
    adamw.keep = (float)(1 - rate * settings.weight_decay);
    StepState *state = device_copy(std::vector<StepState>{{1, norm, (float)clip, 1}});
    Sum value(count, 1), gradient(count, 1), m(count, 0.1), v(count, 0.1);
    Activation rounded(count);
    for (float &x : v.host) x = fabsf(x);
    const std::vector<float> value0 = value.host, m0 = m.host, v0 = v.host;
    Parameter parameter = {};
    parameter.rank = 2, parameter.decays = 1, parameter.count = count;
    parameter.value = value.data(), parameter.gradient = gradient.data(), parameter.m = m.data(),
    parameter.v = v.data();
    twin_adamw(&parameter, &settings, step, rate, clip);
    const std::vector<float> value1 = value.host, m1 = m.host, v1 = v.host;
    auto version = [&](int number) {
        if (number == 1)
            host_decides<1><<<blocks_for(count, BLOCK), BLOCK, 0, stream>>>(value.device, m.device, v.device,
                                                                            gradient.device, adamw, (float)clip, count);
        if (number == 2)
            host_decides<PACK><<<blocks_for(count, BLOCK * PACK), BLOCK, 0, stream>>>(
                value.device, m.device, v.device, gradient.device, adamw, (float)clip, count);
        if (number == 3)
            adamw_kernel<PACK><<<blocks_walking(count), BLOCK, 0, stream>>>(value.device, rounded.device, m.device,
                                                                            v.device, gradient.device, state, adamw,
                                                                            (uint64_t)1, (size_t)0, count);
        launch_check();
    };
    static const char *const names[] = {"a thread per number", "packs of four numbers",
                                        "shipped: the device decides, rounded weights with it"};
    for (int number = 1; number <= 3; number++) {
        value.host = value0, m.host = m0, v.host = v0;
        value.send(), m.send(), v.send();
        version(number);
        value.host = value1, m.host = m1, v.host = v1;
        double worst = fmax(worst_of(value), fmax(worst_of(m), worst_of(v)));
        report(number, names[number - 1], worst, 1e-6, 28.0 * count, [&] { version(number); });
    }
    cuda_check(cudaFree(state));
    return test_summary();
}
