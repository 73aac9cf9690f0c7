// find_gpu: the GPUs that a CUDA program sees here, a line for each; where there is none, one line that says so and
// exit code 1. `make test-gpu` asks it before it builds for minutes what could not run.
#include "core/gpu/cuda_common.h"

int main(void) {
    int devices;
    cudaDeviceProp properties;
    cuda_check(cudaGetDeviceCount(&devices));
    for (int i = 0; i < devices; i++) {
        cuda_check(cudaGetDeviceProperties(&properties, i));
        printf("GPU %d: %s, %.0f GB\n", i, properties.name, (double)properties.totalGlobalMem / 1e9);
    }
    return 0;
}
