/*
Every attention on a GPU: milliseconds of forward and of forward + backward, and device memory, over lengths; then
microseconds for one more token at several positions, and the memory of the cache. The sizes are the paper's (embed 256,
8 heads, batch 1). Prints tables in Markdown, ready to paste. `make bench-gpu` runs it.
  build/cuda/bf16/dev/bench/bench_gpu [C NH LONGEST [STEPS]]   LONGEST: 128 or more; STEPS: of decoding, timed together
*/
#include "attention/attention_gpu.h"
#include "core/gpu/gpu_peak.h"

#include <math.h>
#include <string.h>
#include <vector>

static const int parts[] = {128, 32, 8, 2, 1}; // of the longest sequence: 1024, 4096, 16384, 65536, 131072 tokens

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

static AttentionConfig configure(const AttentionGPU *attention, int C, int NH, int T, int max_T) {
    Error error;
    AttentionConfig config = {};
    config.B = 1, config.T = T, config.C = C, config.NH = NH, config.max_T = max_T, config.seed = 1;
    die_if(attention_configure(attention->cpu, &config, NULL, &error), &error);
    return config;
}

// Numbers of q, k and v that differ from one another.
static void fill(floatX *to, size_t count) {
    std::vector<floatX> numbers(count);
    for (size_t i = 0; i < count; i++) numbers[i] = from_float<floatX>(sinf((float)(i % 9973)) * 0.7f);
    cuda_check(cudaMemcpy(to, numbers.data(), count * sizeof(floatX), cudaMemcpyHostToDevice));
}

// One layer's constants as the passes read them; NULL when the memory is full.
static float *send_constants(Memory *memory, const AttentionGPU *attention, const AttentionConfig *config) {
    size_t count = attention_constant_count(attention->cpu, config);
    std::vector<float> drawn(count + 1);
    attention_draw(attention->cpu, drawn.data(), NULL, 0, config);
    float *constants = memory->get<float>(count);
    if (constants) cuda_check(cudaMemcpy(constants, drawn.data(), count * sizeof(float), cudaMemcpyHostToDevice));
    if (!attention->pack) return constants;
    float *packed = memory->get<float>(attention->packed_size(config));
    if (constants && packed) attention->pack(packed, constants, NULL, config, 0);
    return packed;
}

// Which implementation runs, where there are several.
static const char *done_by(const AttentionGPU *attention, const AttentionConfig *config, char *text, size_t size) {
    snprintf(text, size, "own kernels");
    if (attention->describe) attention->describe(config, text, size);
    return strncmp(text, "by ", 3) ? text : text + 3;
}

static void bench_passes(const AttentionGPU *attention, int C, int NH, int T) {
    char text[512];
    AttentionConfig config = configure(attention, C, NH, T, T);
    size_t count = (size_t)T * (size_t)C;
    Memory memory;
    floatX *qkv = memory.get<floatX>(3 * count), *out = memory.get<floatX>(count);
    floatX *dout = memory.get<floatX>(count), *dqkv = memory.get<floatX>(3 * count);
    float *saved = memory.get<float>(attention->saved_size(&config));
    float *work = memory.get<float>(attention->work_size(&config));
    float *constants = send_constants(&memory, attention, &config);
    printf("| %s | %d | ", attention->cpu->name, T);
    if (memory.full) {
        printf("out of memory | | | |\n");
        return;
    }
    fill(qkv, 3 * count), fill(dout, count);
    auto forward = [&] { attention->forward(out, saved, qkv, constants, NULL, work, &config, 0); };
    double alone = median_milliseconds(forward),
           both = median_milliseconds([&] {
               forward();
               attention->backward(dqkv, NULL, dout, qkv, out, saved, constants, NULL, work, &config, 0);
           });
    printf("%.3f | %.3f | %.0f | %s |\n", alone, both, (double)memory.bytes / 1e6,
           done_by(attention, &config, text, sizeof text));
    fflush(stdout);
}

// One more token after T - 1; what is in the cache does not change the time, so it is left unfilled. Many steps at a
// time, because one takes less than an event can measure.
static void bench_decode(const AttentionGPU *attention, int C, int NH, int T, int steps) {
    AttentionConfig config = configure(attention, C, NH, 1, T);
    size_t cache_size = attention->cache_size(&config);
    Memory memory;
    floatX *qkv = memory.get<floatX>(3 * (size_t)C), *out = memory.get<floatX>((size_t)C);
    float *work = memory.get<float>(attention->work_size(&config)), *cache = memory.get<float>(cache_size);
    float *constants = send_constants(&memory, attention, &config);
    printf("| %s | %d | ", attention->cpu->name, T);
    if (memory.full) {
        printf("out of memory | | |\n");
        return;
    }
    fill(qkv, 3 * (size_t)C);
    double milliseconds = median_milliseconds([&] {
        for (int i = 0; i < steps; i++) attention->step(out, cache, T - 1, 1, qkv, constants, NULL, work, &config, 0);
    });
    printf("%.1f | %.0f | %.2f |\n", 1e3 * milliseconds / steps, 1e3 * steps / milliseconds,
           (double)(cache_size * sizeof(float)) / 1e6);
    fflush(stdout);
}

int main(int argc, char **argv) {
    int C = argc > 1 ? atoi(argv[1]) : 256, NH = argc > 2 ? atoi(argv[2]) : 8,
        longest = argc > 3 ? atoi(argv[3]) : 131072, steps = argc > 4 ? atoi(argv[4]) : 100;
    error_set_program(argv[0]);
    printf("Attention alone on %s: width %d, %d heads, batch 1, causal; medians of five.\n\n", gpu_device_name(), C,
           NH);
    printf("| attention | T | forward, ms | forward + backward, ms | device memory, MB | done by |\n"
           "|---|---:|---:|---:|---:|---|\n");
    for (int i = 0; attention_gpu_registry[i]; i++)
        for (int part : parts) bench_passes(attention_gpu_registry[i], C, NH, longest / part);
    printf("\nOne more token after T - 1 others, one layer's attention alone; medians of five runs of %d steps.\n\n",
           steps);
    printf("| attention | T | us per token | tokens per second | cache, MB |\n|---|---:|---:|---:|---:|\n");
    for (int i = 0; attention_gpu_registry[i]; i++)
        for (int part : parts) bench_decode(attention_gpu_registry[i], C, NH, longest / part, steps);
    return 0;
}
