// A kernel with every kind of thing that mutants.py breaks, and its test; test_mutants.py breaks it. All mutants but
// one have to be noticed.
#include "../../core/gpu/cuda_common.h"
#include "../../core/base/test.h"

enum { BLOCK = 64, COUNT = 150 };

__device__ static float2 load(const float *from) {
    return *reinterpret_cast<const float2 *>(from);
}

// out (COUNT / 2): the sums of neighbours in in (COUNT), where 1 stands for what is not positive, those of a block
// reversed
__global__ void reversed_sums(float *out, const float *in, int count) {
    __shared__ float sums[BLOCK];
    int i = threadIdx.x, pairs = min((int)BLOCK, count / 2 - (int)blockIdx.x * BLOCK);
    if (i < pairs) {
        float2 two = load(in + 2 * (blockIdx.x * BLOCK + i));
        sums[i] = (two.x > 0 ? two.x : 1) + (two.y > 0 ? two.y : 1);
    }
    __syncthreads();
    if (i < pairs) out[blockIdx.x * BLOCK + i] = sums[pairs - 1 - i];
    __syncthreads(); // equivalent: nothing follows
}

static void sums_are_reversed(void) {
    float in[COUNT], found[COUNT / 2], *device_in, *device_out;
    for (int i = 0; i < COUNT; i++) in[i] = i % 3 ? (float)(i + 1) : -1;
    cuda_check(cudaMalloc((void **)&device_in, sizeof in));
    cuda_check(cudaMalloc((void **)&device_out, sizeof found));
    cuda_check(cudaMemcpy(device_in, in, sizeof in, cudaMemcpyHostToDevice));
    reversed_sums<<<(COUNT / 2 + BLOCK - 1) / BLOCK, BLOCK>>>(device_out, device_in, COUNT);
    launch_check();
    cuda_check(cudaMemcpy(found, device_out, sizeof found, cudaMemcpyDeviceToHost));
    for (int i = 0; i < COUNT / 2; i++) {
        int first = i / BLOCK * BLOCK, last = first + BLOCK < COUNT / 2 ? first + BLOCK : COUNT / 2;
        int from = first + last - 1 - i;
        float expected = (in[2 * from] > 0 ? in[2 * from] : 1) + (in[2 * from + 1] > 0 ? in[2 * from + 1] : 1);
        CHECK(found[i] == expected);
    }
    cuda_check(cudaFree(device_in));
    cuda_check(cudaFree(device_out));
}

static void nothing_is_launched(void) {
    CHECK(COUNT / 2 > BLOCK);
}

int main(void) {
    RUN(sums_are_reversed);
    RUN(nothing_is_launched);
    return test_summary();
}
