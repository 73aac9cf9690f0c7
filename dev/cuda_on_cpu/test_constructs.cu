// Every construct of CUDA that the runtime supports, checked against what it must compute.
#include "../../core/gpu/cuda_common.h"
#include "../../core/base/test.h"

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cublasLt.h>
#include <cuda_fp16.h>
#include <mma.h>
#include <nvtx3/nvToolsExt.h>
#include <vector>

namespace cg = cooperative_groups;
using namespace nvcuda;

// ---- helpers: a vector on the device and back
template <typename Number> static Number *to_device(const std::vector<Number> &values) {
    Number *device;
    cuda_check(cudaMalloc(&device, values.size() * sizeof(Number)));
    cuda_check(cudaMemcpy(device, values.data(), values.size() * sizeof(Number), cudaMemcpyHostToDevice));
    return device;
}
template <typename Number> static std::vector<Number> from_device(const Number *device, size_t count) {
    std::vector<Number> values(count);
    cuda_check(cudaMemcpy(values.data(), device, count * sizeof(Number), cudaMemcpyDeviceToHost));
    return values;
}
template <typename Number> static Number *zeros(size_t count) {
    Number *device;
    cuda_check(cudaMalloc(&device, count * sizeof(Number)));
    cuda_check(cudaMemset(device, 0, count * sizeof(Number)));
    return device;
}
static std::vector<float> pattern(size_t count) { // small numbers that bfloat16 holds exactly
    std::vector<float> values(count);
    for (size_t i = 0; i < count; i++) values[i] = (float)((int)(i * 7 % 13) - 6) / 8;
    return values;
}

// ---- indices, launches, templates
__global__ void record_indices(int *out) {
    int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    int size = blockDim.x * blockDim.y * blockDim.z;
    out[block * size + thread] = block * 1000 + thread;
}
static void test_indices() {
    int *out = zeros<int>(24 * 60);
    record_indices<<<dim3(2, 3, 4), dim3(5, 4, 3)>>>(out);
    launch_check();
    std::vector<int> found = from_device(out, 24 * 60);
    for (int i = 0; i < 24 * 60; i++) CHECK(found[(size_t)i] == i / 60 * 1000 + i % 60);
    cuda_check(cudaFree(out));
}

template <typename Number, int Factor> __global__ void scale(Number *values, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) values[i] = values[i] * (Number)Factor;
}
template <typename Number> __global__ void add_constant(Number *values, Number constant, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) values[i] += constant;
}
static void test_templates_and_pointers_to_kernels() {
    float *values = to_device(std::vector<float>(100, 1.5f));
    scale<float, 4><<<4, 32>>>(values, 100);
    add_constant<<<1, 32>>>(values, 0.5f, 100); // the argument's type is deduced
    void (*chosen)(float *, int) = scale<float, 2>;
    chosen<<<(100 + 31) / 32, 32, 0, 0>>>(values, 100);
    launch_check();
    std::vector<float> found = from_device(values, 100);
    CHECK(found[0] == 13 && found[99] == 13);
    cuda_check(cudaFree(values));
}

// ---- shared memory
template <int Tile> __global__ void transpose(float *out, const float *in, int n) {
    __shared__ float tile[Tile][Tile + 1], column_sums[Tile];
    int x = blockIdx.x * Tile + threadIdx.x, y = blockIdx.y * Tile + threadIdx.y;
    if (x < n && y < n) tile[threadIdx.y][threadIdx.x] = in[y * n + x];
    if (threadIdx.y == 0) column_sums[threadIdx.x] = 0;
    __syncthreads();
    x = blockIdx.y * Tile + threadIdx.x, y = blockIdx.x * Tile + threadIdx.y;
    if (x < n && y < n) out[y * n + x] = tile[threadIdx.x][threadIdx.y] + column_sums[threadIdx.x];
}
static void test_static_shared() {
    int n = 37;
    std::vector<float> values((size_t)(n * n));
    for (int i = 0; i < n * n; i++) values[(size_t)i] = (float)i;
    float *in = to_device(values), *out = zeros<float>(values.size());
    transpose<16><<<dim3(3, 3), dim3(16, 16)>>>(out, in, n);
    launch_check();
    std::vector<float> found = from_device(out, values.size());
    for (int i = 0; i < n * n; i++) CHECK(found[(size_t)i] == (float)(i % n * n + i / n));
    cuda_check(cudaFree(in));
    cuda_check(cudaFree(out));
}

__global__ void reverse(int *values, int n) {
    extern __shared__ __align__(16) int buffer[];
    __shared__ struct {
        int length;
        float unused;
    } facts;
    if (threadIdx.x == 0) facts.length = n;
    for (int i = threadIdx.x; i < n; i += blockDim.x) buffer[i] = values[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) values[i] = buffer[facts.length - 1 - i];
}
static void test_dynamic_shared() {
    int n = 40000; // 160 KB, which the attribute must allow
    std::vector<int> values((size_t)n);
    for (int i = 0; i < n; i++) values[(size_t)i] = i;
    int *device = to_device(values);
    reverse<<<1, 96, n * sizeof(int)>>>(device, n);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue);
    cuda_check(cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize, n * (int)sizeof(int)));
    reverse<<<1, 96, n * sizeof(int)>>>(device, n);
    launch_check();
    std::vector<int> found = from_device(device, values.size());
    for (int i = 0; i < n; i++) CHECK(found[(size_t)i] == n - 1 - i);
    CHECK(cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize, 228 * 1024) ==
          cudaErrorInvalidValue);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue);
    cuda_check(cudaFree(device));
}

// ---- barriers with votes
__global__ void vote_at_barrier(int *out) {
    int count = __syncthreads_count(threadIdx.x % 3 == 0), all = __syncthreads_and(threadIdx.x < 100),
        any = __syncthreads_or(threadIdx.x == 7);
    int none = __syncthreads_or(0);
    if (threadIdx.x == 99) out[0] = count, out[1] = all, out[2] = any, out[3] = none;
}
static void test_barrier_votes() {
    int *out = zeros<int>(4);
    vote_at_barrier<<<1, 100>>>(out);
    launch_check();
    std::vector<int> found = from_device(out, 4);
    CHECK(found[0] == 34 && found[1] && found[2] && !found[3]);
    cuda_check(cudaFree(out));
}

// ---- warps
__global__ void warp_operations(int *out) {
    int lane = threadIdx.x % 32, all_equal;
    unsigned whole = 0xffffffffu, half = lane < 16 ? 0x0000ffffu : 0xffff0000u;
    int *mine = out + threadIdx.x * 20;
    mine[0] = __shfl_sync(whole, lane * 10, 5);
    mine[1] = __shfl_up_sync(whole, lane, 3);
    mine[2] = __shfl_down_sync(whole, lane, 3, 8);
    mine[3] = __shfl_xor_sync(half, lane, 1);
    mine[4] = (int)__ballot_sync(whole, lane % 2);
    mine[5] = __any_sync(half, lane == 20);
    mine[6] = __all_sync(half, lane < 16);
    mine[7] = (int)__match_any_sync(whole, lane / 8);
    mine[8] = (int)__match_all_sync(half, lane / 16, &all_equal) + all_equal;
    mine[9] = (int)__reduce_add_sync(half, (unsigned)lane);
    mine[10] = __reduce_min_sync(whole, lane - 40);
    mine[11] = (int)__reduce_max_sync(half, (unsigned)lane);
    mine[12] = (int)__reduce_xor_sync(whole, 1u << lane);
    mine[13] = (int)__shfl_sync(whole, (double)lane / 2, 9);
    mine[14] = (int)__bfloat162float(__shfl_xor_sync(whole, __float2bfloat16((float)lane), 2));
    mine[19] = (int)__activemask();
    __syncwarp();
    if (lane % 2) mine[15] = __shfl_sync(0xaaaaaaaau, lane, 31); // only odd lanes
    mine[16] = (int)__reduce_or_sync(half, (unsigned)lane);
    mine[17] = (int)__reduce_and_sync(half, (unsigned)lane | 64);
    mine[18] = __reduce_max_sync(whole, lane - 40);
}
static void test_warp_operations() {
    int *out = zeros<int>(64 * 20);
    warp_operations<<<1, 64>>>(out);
    launch_check();
    std::vector<int> found = from_device(out, 64 * 20);
    for (int t = 0; t < 64; t++) {
        int lane = t % 32, upper = lane >= 16, *mine = &found[(size_t)t * 20];
        CHECK(mine[0] == 50 && mine[1] == (lane < 3 ? lane : lane - 3) && mine[2] == (lane % 8 < 5 ? lane + 3 : lane));
        CHECK(mine[3] == (lane ^ 1) && mine[4] == (int)0xaaaaaaaau && mine[5] == upper && mine[6] == !upper);
        CHECK(mine[7] == (int)(0xffu << lane / 8 * 8) && mine[8] == (int)((upper ? 0xffff0000u : 0xffffu) + 1));
        CHECK(mine[9] == (upper ? 376 : 120) && mine[10] == -40 && mine[11] == (upper ? 31 : 15) && mine[12] == -1);
        CHECK(mine[13] == 4 && mine[14] == (lane ^ 2) && mine[15] == (lane % 2 ? 31 : 0));
        CHECK(mine[16] == (upper ? 31 : 15) && mine[17] == (upper ? 80 : 64) && mine[18] == -9 && mine[19] == -1);
    }
    cuda_check(cudaFree(out));
}

// ---- cooperative groups
__global__ void group_sums(float *out, const float *in) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    cg::thread_block_tile<8> eight = cg::tiled_partition<8>(block);
    float value = in[block.thread_rank()];
    float sum = cg::reduce(warp, value, cg::plus<float>{}), largest = cg::reduce(eight, value, cg::greater<float>{});
    block.sync();
    if (eight.thread_rank() == 0) out[eight.meta_group_rank()] = sum + largest;
}
static void test_cooperative_groups() {
    std::vector<float> values = pattern(64);
    float *in = to_device(values), *out = zeros<float>(8);
    group_sums<<<1, 64>>>(out, in);
    launch_check();
    std::vector<float> found = from_device(out, 8);
    for (size_t g = 0; g < 8; g++) {
        float sum = 0, largest = values[g * 8];
        for (size_t i = g / 4 * 32; i < g / 4 * 32 + 32; i++) sum += values[i];
        for (size_t i = g * 8; i < g * 8 + 8; i++) largest = values[i] > largest ? values[i] : largest;
        CHECK_CLOSE(found[g], sum + largest, 1e-6);
    }
    cuda_check(cudaFree(in));
    cuda_check(cudaFree(out));
}

// ---- atomics, fences: the last block adds up what all blocks wrote
__global__ void count_and_sum(unsigned *counters, float *partial, float *total, const float *in) {
    __shared__ int is_last;
    atomicAdd(&counters[1], 2u);
    atomicMax((int *)&counters[2], (int)(blockIdx.x * blockDim.x + threadIdx.x));
    atomicMin(&counters[3], 1000u - threadIdx.x);
    atomicOr(&counters[4], 1u << threadIdx.x % 32);
    atomicCAS(&counters[5], 0u, 7u);
    atomicExch(&counters[6], 9u);
    atomicAdd(&total[1], 0.5f);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = in[blockIdx.x];
        __threadfence();
        is_last = atomicInc(&counters[0], gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (is_last && threadIdx.x == 0) {
        float sum = 0;
        for (unsigned b = 0; b < gridDim.x; b++) sum += partial[b];
        total[0] = sum;
    }
}
static void test_atomics_and_fences() {
    std::vector<unsigned> start = {0, 0, 0, 5000, 0, 0, 0};
    unsigned *counters = to_device(start);
    float *partial = zeros<float>(20), *total = zeros<float>(2), *in = to_device(std::vector<float>(20, 0.25f));
    count_and_sum<<<20, 48>>>(counters, partial, total, in);
    launch_check();
    std::vector<unsigned> found = from_device(counters, 7);
    std::vector<float> sums = from_device(total, 2);
    CHECK(found[0] == 0 && found[1] == 1920 && found[2] == 959 && found[3] == 953 && found[4] == 0xffffffffu &&
          found[5] == 7 && found[6] == 9);
    CHECK(sums[0] == 5 && sums[1] == 480);
    for (void *p : {(void *)counters, (void *)partial, (void *)total, (void *)in}) cuda_check(cudaFree(p));
}

// ---- vectors, cached loads, number types, constants
__constant__ float table[4];
__device__ int launches_seen;
__global__ void four_at_once(float4 *out, const float4 *in, __nv_bfloat16 *rounded, __half *halves, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) launches_seen++;
    if (i >= n) return;
    float4 v = __ldcs(in + i);
    v.x *= table[0], v.y *= table[1], v.z *= table[2], v.w *= table[3];
    __stcs(out + i, v);
    rounded[i] = __float2bfloat16(v.x);
    halves[i] = __float2half(v.y);
}
static void test_vectors_and_types() {
    std::vector<float> values = pattern(80);
    float factors[4] = {1, 2, 3, 4};
    int seen = 0;
    cuda_check(cudaMemcpyToSymbol(table, factors, sizeof factors));
    cuda_check(cudaMemcpyToSymbol(launches_seen, &seen, sizeof seen));
    float *in = to_device(values), *out = zeros<float>(80);
    __nv_bfloat16 *rounded = zeros<__nv_bfloat16>(20);
    __half *halves = zeros<__half>(20);
    four_at_once<<<2, 16>>>((float4 *)out, (const float4 *)in, rounded, halves, 20);
    launch_check();
    std::vector<float> found = from_device(out, 80);
    std::vector<__nv_bfloat16> found_rounded = from_device(rounded, 20);
    std::vector<__half> found_halves = from_device(halves, 20);
    cuda_check(cudaMemcpyFromSymbol(&seen, launches_seen, sizeof seen));
    CHECK(seen == 1);
    seen = 0;
    cuda_check(cudaMemcpyFromSymbolAsync(&seen, launches_seen, sizeof seen, 0, cudaMemcpyDeviceToHost, 0));
    cuda_check(cudaStreamSynchronize(0));
    CHECK(seen == 1);
    for (size_t i = 0; i < 80; i++) CHECK(found[i] == values[i] * factors[i % 4]);
    for (size_t i = 0; i < 20; i++) {
        CHECK(__bfloat162float(found_rounded[i]) == found[i * 4]);
        CHECK(__half2float(found_halves[i]) == found[i * 4 + 1]);
    }
    for (void *p : {(void *)in, (void *)out, (void *)rounded, (void *)halves}) cuda_check(cudaFree(p));
}

// ---- tensor cores: c (M,N) = a (M,K) b (N,K)^T / 2, a warp per 16 x 16 tile
__global__ void tile_product(float *c, const __nv_bfloat16 *a, const __nv_bfloat16 *b, int M, int N, int K) {
    int row = blockIdx.y * 16, column = (blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * 16;
    if (row >= M || column >= N) return;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> tile_a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::col_major> tile_b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> tile_c;
    wmma::fill_fragment(tile_c, 0.0f);
    for (int k = 0; k < K; k += 16) {
        wmma::load_matrix_sync(tile_a, a + row * K + k, K);
        wmma::load_matrix_sync(tile_b, b + column * K + k, K);
        wmma::mma_sync(tile_c, tile_a, tile_b, tile_c);
    }
    for (int i = 0; i < tile_c.num_elements; i++) tile_c.x[i] *= 0.5f;
    wmma::store_matrix_sync(c + row * N + column, tile_c, N, wmma::mem_row_major);
}
static void test_tensor_cores() {
    int M = 32, N = 48, K = 64;
    std::vector<float> a = pattern((size_t)(M * K)), b = pattern((size_t)(N * K + 5));
    std::vector<__nv_bfloat16> half_a, half_b;
    for (float x : a) half_a.push_back(__float2bfloat16(x));
    for (float x : b) half_b.push_back(__float2bfloat16(x));
    __nv_bfloat16 *device_a = to_device(half_a), *device_b = to_device(half_b);
    float *c = zeros<float>((size_t)(M * N));
    tile_product<<<dim3(2, 2), 64>>>(c, device_a, device_b, M, N, K);
    launch_check();
    std::vector<float> found = from_device(c, (size_t)(M * N));
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int k = 0; k < K; k++) sum += a[(size_t)(i * K + k)] * b[(size_t)(j * K + k)];
            CHECK_CLOSE(found[(size_t)(i * N + j)], sum / 2, 1e-5);
        }
    for (void *p : {(void *)c, (void *)device_a, (void *)device_b}) cuda_check(cudaFree(p));
}

// ---- streams, events, pinned memory, allocation in stream order
__global__ void fill(float *out, float value, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = value;
}
static void test_streams_and_events() {
    cudaStream_t producer, consumer;
    cudaEvent_t start, produced, end;
    float *device, *copy, *pinned, milliseconds = -1;
    cuda_check(cudaStreamCreateWithFlags(&producer, cudaStreamNonBlocking));
    cuda_check(cudaStreamCreate(&consumer));
    cuda_check(cudaEventCreate(&start));
    cuda_check(cudaEventCreateWithFlags(&produced, cudaEventDisableTiming));
    cuda_check(cudaEventCreate(&end));
    cuda_check(cudaMallocAsync(&device, 100 * sizeof(float), producer));
    cuda_check(cudaMalloc(&copy, 100 * sizeof(float)));
    cuda_check(cudaMallocHost(&pinned, 100 * sizeof(float)));
    cuda_check(cudaEventRecord(start, producer));
    fill<<<1, 32, 0, producer>>>(device, 3, 100);
    launch_check();
    cuda_check(cudaEventRecord(produced, producer));
    cuda_check(cudaStreamWaitEvent(consumer, produced, 0));
    cuda_check(cudaMemcpyAsync(copy, device, 100 * sizeof(float), cudaMemcpyDeviceToDevice, consumer));
    cuda_check(cudaMemcpyAsync(pinned, copy, 100 * sizeof(float), cudaMemcpyDeviceToHost, consumer));
    cuda_check(cudaStreamSynchronize(consumer));
    CHECK(pinned[0] == 3 && pinned[99] == 3);
    cuda_check(cudaEventRecord(end, producer));
    cuda_check(cudaEventSynchronize(end));
    cuda_check(cudaEventElapsedTime(&milliseconds, start, end));
    CHECK(milliseconds >= 0);
    cuda_check(cudaFreeAsync(device, producer));
    cuda_check(cudaStreamSynchronize(producer));
    cuda_check(cudaFree(copy));
    cuda_check(cudaFreeHost(pinned));
    for (cudaEvent_t event : {start, produced, end}) cuda_check(cudaEventDestroy(event));
    cuda_check(cudaStreamDestroy(producer));
    cuda_check(cudaStreamDestroy(consumer));
}

static void test_graphs() {
    cudaStream_t stream, side;
    cudaEvent_t fork, join;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    float *values = to_device(std::vector<float>(64, 1.0f)), *others = to_device(std::vector<float>(64, 1.0f));
    cuda_check(cudaStreamCreate(&stream));
    cuda_check(cudaStreamCreate(&side));
    cuda_check(cudaEventCreate(&fork));
    cuda_check(cudaEventCreate(&join));
    cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    scale<float, 2><<<2, 32, 0, stream>>>(values, 64);
    launch_check();
    cuda_check(cudaEventRecord(fork, stream));
    cuda_check(cudaStreamWaitEvent(side, fork, 0));
    scale<float, 3><<<2, 32, 0, side>>>(others, 64);
    launch_check();
    cuda_check(cudaEventRecord(join, side));
    cuda_check(cudaStreamWaitEvent(stream, join, 0));
    float *refused;
    CHECK(cudaMalloc(&refused, 4) == cudaErrorStreamCaptureUnsupported &&
          cudaGetLastError() == cudaErrorStreamCaptureUnsupported);
    cuda_check(cudaStreamEndCapture(stream, &graph));
    CHECK(from_device(values, 64)[0] == 1); // nothing has run yet
    cuda_check(cudaGraphInstantiate(&executable, graph, 0));
    for (int i = 0; i < 3; i++) cuda_check(cudaGraphLaunch(executable, stream));
    cuda_check(cudaStreamSynchronize(stream));
    CHECK(from_device(values, 64)[63] == 8 && from_device(others, 64)[63] == 27);
    cuda_check(cudaGraphExecDestroy(executable));
    cuda_check(cudaGraphDestroy(graph));
    cuda_check(cudaFree(values));
    cuda_check(cudaFree(others));
}

// ---- memory of both sides
static void test_managed_memory() {
    float *both;
    cuda_check(cudaMallocManaged(&both, 100 * sizeof(float), cudaMemAttachGlobal));
    for (int i = 0; i < 100; i++) both[i] = (float)i;
    scale<float, 3><<<4, 32>>>(both, 100);
    launch_check();
    cuda_check(cudaDeviceSynchronize());
    for (int i = 0; i < 100; i++) CHECK(both[i] == (float)(3 * i));
    cuda_check(cudaFree(both));
}

// ---- errors and facts
static void test_refused_launches_and_facts() {
    float *values = zeros<float>(4);
    fill<<<1, 1025>>>(values, 1, 4);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration && cudaGetLastError() == cudaSuccess);
    fill<<<dim3(1, 65536), 1>>>(values, 1, 4);
    CHECK(cudaPeekAtLastError() == cudaErrorInvalidConfiguration &&
          cudaGetLastError() == cudaErrorInvalidConfiguration);
    fill<<<dim3(1, 1, 65536), 1>>>(values, 1, 4);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
    fill<<<0, 32>>>(values, 1, 4);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
    fill<<<1, dim3(1, 1, 65)>>>(values, 1, 4);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
    fill<<<1, 32, 48 * 1024 + 4>>>(values, 1, 4);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue);
    size_t available, total;
    cuda_check(cudaMemGetInfo(&available, &total));
    float *too_much;
    CHECK(cudaMalloc(&too_much, total) == cudaErrorMemoryAllocation && cudaGetLastError() == cudaErrorMemoryAllocation);
    cudaDeviceProp properties;
    cuda_check(cudaGetDeviceProperties(&properties, 0));
    CHECK(properties.warpSize == 32 && properties.totalGlobalMem == total && available < total);
    nvtxRangePushA("a range");
    nvtxRangePop();
    cuda_check(cudaFree(values));
}

int main() {
    RUN(test_indices);
    RUN(test_templates_and_pointers_to_kernels);
    RUN(test_static_shared);
    RUN(test_dynamic_shared);
    RUN(test_barrier_votes);
    RUN(test_warp_operations);
    RUN(test_cooperative_groups);
    RUN(test_atomics_and_fences);
    RUN(test_vectors_and_types);
    RUN(test_tensor_cores);
    RUN(test_streams_and_events);
    RUN(test_graphs);
    RUN(test_managed_memory);
    RUN(test_refused_launches_and_facts);
    return test_summary();
}
