/*
Every attention on a GPU: milliseconds of forward and of forward + backward, and device memory, over lengths. The sizes are
the paper's (embed 256, 8 heads, batch 1). Prints a table in Markdown, ready to paste. `make bench-gpu` runs it.
  build/cuda/bf16/bench_gpu [C NH]
*/
#include "../../attention/attention_gpu.h"
#include "../../core/gpu_peak.h"

#include <math.h>
#include <vector>

static const int lengths[] = {1024, 4096, 16384, 65536, 131072};

// Device memory that goes with a case; freed at its end.
struct Memory {
    std::vector<void *> blocks;
    size_t bytes = 0;
    bool full = false;

    template <typename Number> Number *get(size_t count) {
        void *block = NULL;
        size_t size = (count ? count : 1) * sizeof(Number);
        if (!full && cudaMalloc(&block, size) != cudaSuccess) cudaGetLastError(), full = true;
        if (full) return NULL;
        cuda_check(cudaMemset(block, 0, size));
        blocks.push_back(block), bytes += size;
        return (Number *)block;
    }
    ~Memory() {
        for (void *block : blocks) cuda_check(cudaFree(block));
    }
};

// The median of five, after one that does not count.
template <typename Launch> static double median_milliseconds(Launch launch) {
    std::vector<float> times;
    cudaEvent_t start, stop;
    cuda_check(cudaEventCreate(&start)), cuda_check(cudaEventCreate(&stop));
    for (int run = 0; run < 6; run++) {
        float milliseconds;
        cuda_check(cudaEventRecord(start, 0));
        launch();
        cuda_check(cudaEventRecord(stop, 0));
        cuda_check(cudaEventSynchronize(stop));
        cuda_check(cudaEventElapsedTime(&milliseconds, start, stop));
        size_t place = 0;
        while (place < times.size() && times[place] < milliseconds) place++;
        if (run > 0) times.insert(times.begin() + (long)place, milliseconds);
    }
    cuda_check(cudaEventDestroy(start)), cuda_check(cudaEventDestroy(stop));
    return times[times.size() / 2];
}

static void bench(const AttentionGPU *attention, int C, int NH, int T) {
    Error error;
    AttentionConfig config = {};
    config.B = 1, config.T = T, config.C = C, config.NH = NH, config.max_T = T, config.seed = 1;
    die_if(attention_configure(attention->cpu, &config, NULL, &error), &error);
    AttentionConstant list[ATTENTION_CONSTANTS_MAX];
    size_t constant_count, count = (size_t)T * (size_t)C;
    attention_constants(attention->cpu, &config, list, &constant_count);
    std::vector<float> drawn(constant_count + 1), numbers(3 * count);
    if (attention->cpu->draw) attention->cpu->draw(drawn.data(), 0, &config);
    std::vector<floatX> qkv_host(3 * count);
    for (size_t i = 0; i < 3 * count; i++) qkv_host[i] = from_float<floatX>(sinf((float)(i % 9973)) * 0.7f);
    Memory memory;
    floatX *qkv = memory.get<floatX>(3 * count), *out = memory.get<floatX>(count);
    floatX *dout = memory.get<floatX>(count), *dqkv = memory.get<floatX>(3 * count);
    float *saved = memory.get<float>(attention->saved_size(&config));
    float *work = memory.get<float>(attention->work_size(&config)), *constants = memory.get<float>(constant_count);
    printf("| %s | %d | ", attention->cpu->name, T);
    if (memory.full) {
        printf("out of memory | | |\n");
        return;
    }
    cuda_check(cudaMemcpy(qkv, qkv_host.data(), 3 * count * sizeof(floatX), cudaMemcpyHostToDevice));
    cuda_check(cudaMemcpy(dout, qkv_host.data(), count * sizeof(floatX), cudaMemcpyHostToDevice));
    cuda_check(cudaMemcpy(constants, drawn.data(), constant_count * sizeof(float), cudaMemcpyHostToDevice));
    auto forward = [&] { attention->forward(out, saved, qkv, constants, work, &config, 0); };
    double alone = median_milliseconds(forward),
           both = median_milliseconds([&] {
               forward();
               attention->backward(dqkv, dout, qkv, out, saved, constants, work, &config, 0);
           });
    printf("%.3f | %.3f | %.0f |\n", alone, both, (double)memory.bytes / 1e6);
    fflush(stdout);
}

int main(int argc, char **argv) {
    int C = argc > 1 ? atoi(argv[1]) : 256, NH = argc > 2 ? atoi(argv[2]) : 8;
    error_set_program(argv[0]);
    printf("Attention alone on %s: width %d, %d heads, batch 1, causal; medians of five.\n\n", gpu_device_name(), C,
           NH);
    printf("| attention | T | forward, ms | forward + backward, ms | device memory, MB |\n|---|---:|---:|---:|---:|\n");
    for (int i = 0; attention_gpu_registry[i]; i++)
        for (int T : lengths) bench(attention_gpu_registry[i], C, NH, T);
    return 0;
}
