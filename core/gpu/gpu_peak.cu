#include "gpu_peak.h"
#include "cuda_common.h"
#include "matmul_gpu.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

// Dense rates in TFLOP/s with fp32 sums, without sparsity, at the boost clock. The first name that occurs in the
// device's name as whole words counts, so longer names come before shorter ones.
static const struct {
    const char *name;
    float bf16, tf32, fp32;
} peaks[] = {
    {"GB200", 2500, 1250, 80},
    {"B200", 2250, 1100, 75},
    {"H200 NVL", 835.5f, 417.5f, 60},
    {"H200", 989.4f, 494.7f, 67},
    {"GH200", 989.4f, 494.7f, 67},
    {"H100 NVL", 835, 417.5f, 60},
    {"H100 PCIe", 756, 378, 51},
    {"H100", 989.4f, 494.7f, 67},
    {"A100", 312, 156, 19.5f},
    {"A800", 312, 156, 19.5f},
    {"A40", 149.7f, 74.8f, 37.4f},
    {"A30", 165, 82, 10.3f},
    {"A10", 125, 62.5f, 31.2f},
    {"L40S", 362, 183, 91.6f},
    {"L40", 181, 90.5f, 90.5f},
    {"L4", 121, 60, 30.3f},
    {"RTX 5090", 209.5f, 104.8f, 104.8f},
    {"RTX 4090", 165.2f, 82.6f, 82.6f},
    {"RTX 4080", 97.5f, 48.7f, 48.7f},
    {"RTX 3090", 71, 35.6f, 35.6f},
};
// Next to a name from the table, these mean another device, or a part of one, whose rate is not in the table.
static const char *const others[] = {"Laptop", "Max-Q", "MIG", "SUPER", "Ti", "D"};

static cudaDeviceProp device_properties(void) {
    cudaDeviceProp properties;
    int device;
    cuda_check(cudaGetDevice(&device));
    cuda_check(cudaGetDeviceProperties(&properties, device));
    return properties;
}

const char *gpu_device_name(void) {
    static char text[300];
    snprintf(text, sizeof text, "%s, " PRECISION_NAME, device_properties().name);
    return text;
}

// The best of a few products of two (size,size) matrices, in milliseconds.
static float product_milliseconds(int size) {
    size_t count = (size_t)size * (size_t)size;
    floatX *matrices;
    cudaEvent_t start, stop;
    MatmulShape shape = {};
    shape.m = shape.n = shape.k = size;
    float best = INFINITY;
    cuda_check(cudaMalloc((void **)&matrices, 3 * count * sizeof(floatX)));
    cuda_check(cudaMemset(matrices, 0, 3 * count * sizeof(floatX)));
    cuda_check(cudaEventCreate(&start)), cuda_check(cudaEventCreate(&stop));
    for (int run = 0; run < 5; run++) {
        float milliseconds;
        cuda_check(cudaEventRecord(start, 0));
        matmul_gpu(matrices + 2 * count, matrices, matrices + count, 0, &shape, NULL, 0);
        cuda_check(cudaEventRecord(stop, 0));
        cuda_check(cudaEventSynchronize(stop));
        cuda_check(cudaEventElapsedTime(&milliseconds, start, stop));
        if (milliseconds < best) best = milliseconds;
    }
    cuda_check(cudaEventDestroy(start)), cuda_check(cudaEventDestroy(stop));
    cuda_check(cudaFree(matrices));
    return best;
}

// Matrices grow until a product takes long enough to be the device's rate and not the launch's.
static double measure_gflops(void) {
    int size = 256;
    float milliseconds = product_milliseconds(size);
    while (milliseconds < 1 && size < 8192) milliseconds = product_milliseconds(size *= 2);
    return 2.0 * size * size * size / milliseconds / 1e6;
}

// Whether `words` stand in the text with no letter or digit on either side: an A10 is not an A100, and neither is an
// RTX A1000.
static bool has_words(const char *text, const char *words) {
    size_t length = strlen(words);
    for (const char *at = strstr(text, words); at; at = strstr(at + 1, words))
        if ((at == text || !isalnum((unsigned char)at[-1])) && !isalnum((unsigned char)at[length])) return true;
    return false;
}

double gpu_peak_by_name(const char *device) {
    for (const char *other : others)
        if (has_words(device, other)) return 0;
    for (size_t i = 0; i < sizeof peaks / sizeof *peaks; i++) {
        if (!has_words(device, peaks[i].name)) continue;
#if defined(PRECISION_BF16)
        return 1e3 * peaks[i].bf16;
#elif defined(ALLOW_TF32)
        return 1e3 * peaks[i].tf32;
#else
        return 1e3 * peaks[i].fp32;
#endif
    }
    return 0;
}

double gpu_peak_gflops(void) {
    double known = gpu_peak_by_name(device_properties().name);
    return known > 0 ? known : measure_gflops();
}
