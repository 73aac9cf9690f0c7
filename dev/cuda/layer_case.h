// What the progressions of the layers share: they include the trainer, whose kernels are their last versions, and check
// every version against the C code before they time it.
#ifndef DEV_CUDA_LAYER_CASE_H
#define DEV_CUDA_LAYER_CASE_H

#define GPT2_MODEL_ONLY
#include "train_gpt2.cu"
#include "core/gpu/test_gpu.h"

extern "C" {
#include "gpt2_twin.h"
}

#ifdef PRECISION_BF16
static const double BOUND = 1e-2;
#else
static const double BOUND = 1e-5;
#endif

// A whole number from the command line, or a default that the harness on the CPU can afford.
static int argument(int argc, char **argv, int place, int otherwise) {
    return argc > place ? atoi(argv[place]) : otherwise;
}

// The best of five runs in milliseconds, after one that does not count.
template <typename Launch> static float best_milliseconds(Launch launch) {
    cudaEvent_t start, stop;
    float best = INFINITY;
    cuda_check(cudaEventCreate(&start)), cuda_check(cudaEventCreate(&stop));
    for (int run = 0; run < 6; run++) {
        float milliseconds;
        cuda_check(cudaEventRecord(start, stream));
        launch();
        cuda_check(cudaEventRecord(stop, stream));
        cuda_check(cudaEventSynchronize(stop));
        cuda_check(cudaEventElapsedTime(&milliseconds, start, stop));
        if (run > 0 && milliseconds < best) best = milliseconds;
    }
    cuda_check(cudaEventDestroy(start)), cuda_check(cudaEventDestroy(stop));
    return best;
}

// One line of a progression's table. `worst`: the largest difference from the C code, as a share of the largest number;
// `bytes`: the least that the version has to move.
template <typename Launch>
static void report(int version, const char *what, double worst, double bound, double bytes, Launch launch) {
    float milliseconds = best_milliseconds(launch);
    bool right = worst <= bound;
    right ? test_passed++ : test_failed++;
    printf("%d  %-58s %8.4f ms %8.1f GB/s  off by %.1e  %s\n", version, what, milliseconds, bytes / milliseconds / 1e6,
           worst, right ? "ok" : "WRONG");
}

template <typename Number> static double worst_of(const Tensors<Number> &tensors) {
    std::vector<float> found = tensors.fetch();
    return worst_difference(found.data(), tensors.host.data(), found.size());
}

#endif
