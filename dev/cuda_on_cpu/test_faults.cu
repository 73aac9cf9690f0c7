// One planted bug per name: test_faults NAME. test_harness.sh runs each and looks for the report, which must name the
// kernel, block, thread and the line that carries the comment `bug: NAME`.
#include "core/gpu/tile_gpu.h"

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <math.h>
#include <mma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREAD ((int)(blockIdx.x * blockDim.x + threadIdx.x))

// ---- bounds
__global__ void write_past_end(float *out, int n) {
    if (THREAD <= n) out[THREAD] = 1; // bug: write_past_end
}
__global__ void read_before_start(float *out, const float *in) {
    out[THREAD] = in[THREAD - 1]; // bug: read_before_start
}
__global__ void read_past_shared(float *out) {
    __shared__ float first[32], second[32];
    first[threadIdx.x] = 1, second[threadIdx.x] = 2;
    __syncthreads();
    out[THREAD] = first[threadIdx.x + 1] + second[0]; // bug: read_past_shared
}
__global__ void write_past_dynamic(float *out) {
    extern __shared__ float buffer[];
    buffer[threadIdx.x + 1] = 1; // bug: write_past_dynamic
    out[THREAD] = 0;
}
__global__ void use_freed(float *out) {
    out[THREAD] = 1; // bug: use_freed
}
__global__ void read_host_memory(float *out, const float *in) {
    out[THREAD] = in[THREAD]; // bug: read_host_memory
}
// ---- initialisation
__global__ void read_uninitialised(float *out, const float *in) {
    out[THREAD] = in[THREAD] * 2; // bug: read_uninitialised
}
__global__ void branch_on_uninitialised(float *out, const float *in) {
    if (in[THREAD] > 0) out[THREAD] = 1; // bug: branch_on_uninitialised
}
__global__ void read_uninitialised_shared(float *out) {
    __shared__ float values[32];
    if (threadIdx.x < 31) values[threadIdx.x] = 1;
    __syncthreads();
    out[THREAD] = values[threadIdx.x]; // bug: read_uninitialised_shared
}
// ---- races
__global__ void no_barrier(float *out) {
    __shared__ float values[64];
    values[threadIdx.x] = 0;
    __syncthreads();
    values[threadIdx.x] = 1;
    out[THREAD] = values[63 - threadIdx.x]; // bug: no_barrier
}
__global__ void no_barrier_before_reuse(float *out) {
    __shared__ float value;
    for (int round = 0; round < 2; round++) {
        if (threadIdx.x == 0) value = (float)round; // bug: no_barrier_before_reuse
        __syncthreads();
        out[THREAD] = value;
    }
}
__global__ void no_syncwarp(float *out) {
    __shared__ float values[32];
    values[threadIdx.x] = 1;
    __shfl_sync(0xffffffffu, 1, 0);         // all have written, but a shuffle orders nothing
    out[THREAD] = values[31 - threadIdx.x]; // bug: no_syncwarp
}
__global__ void in_order_only(float *out) {         // right as long as threads happen to run one after the other
    out[THREAD] = THREAD ? out[THREAD - 1] + 1 : 0; // bug: in_order_only
}
__global__ void lanes_disagree(float *out) {
    out[0] = (float)threadIdx.x; // bug: lanes_disagree
}
__global__ void lanes_agree(float *out) { // no bug
    out[blockIdx.x] = (float)blockIdx.x;
}
__global__ void no_atomic(float *out) {
    out[0] += 1; // bug: no_atomic
}
__global__ void no_fence(unsigned *counter, float *partial, float *out) {
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = 1;
        if (atomicAdd(counter, 1u) == gridDim.x - 1)
            for (unsigned b = 0; b < gridDim.x; b++) out[0] += partial[b]; // bug: no_fence
    }
}
// ---- barriers and warps
__global__ void different_barriers(float *out) {
    if (threadIdx.x < 16)
        __syncthreads();
    else
        __syncthreads(); // bug: different_barriers
    out[THREAD] = 1;
}
__global__ void barrier_after_return(float *out, int n) {
    if ((int)threadIdx.x >= n) return;
    out[THREAD] = 1;
    __syncthreads(); // bug: barrier_after_return
}
__global__ void shuffle_after_return(float *out, int n) {
    if ((int)threadIdx.x >= n) return;
    out[THREAD] = __shfl_down_sync(0xffffffffu, 1.0f, 1); // bug: shuffle_after_return
}
__global__ void shuffle_in_branches(float *out) {
    float value = 1;
    if (threadIdx.x % 2)
        value = __shfl_xor_sync(0xffffffffu, value, 1);
    else
        value = __shfl_xor_sync(0xffffffffu, value, 2); // bug: shuffle_in_branches
    out[THREAD] = value;
}
__global__ void shuffle_from_outside_mask(float *out) {
    if (threadIdx.x < 16) out[THREAD] = __shfl_sync(0x0000ffffu, 1.0f, 20); // bug: shuffle_from_outside_mask
}
__global__ void caller_not_in_mask(float *out) {
    out[THREAD] = (float)__ballot_sync(0x0000ffffu, 1); // bug: caller_not_in_mask
}
__global__ void warp_waits_at_barrier(float *out) {
    if (threadIdx.x < 8) __syncwarp(); // bug: warp_waits_at_barrier
    __syncthreads();
    out[THREAD] = 1;
}
__global__ void warp_beyond_block(float *out) {
    out[THREAD] = (float)__any_sync(0xffffffffu, 1); // bug: warp_beyond_block
}
// ---- alignment, stack
__global__ void misaligned_vector(float *out, const float *in) {
    float4 v = *(const float4 *)(in + 1 + THREAD); // bug: misaligned_vector
    out[THREAD] = v.x + v.w;
}
__global__ void misaligned_tile(float *out, const __nv_bfloat16 *in) {
    using namespace nvcuda;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> tile;
    wmma::load_matrix_sync(tile, in + 8, 16); // bug: misaligned_tile
    out[THREAD] = __bfloat162float(tile.x[0]);
}
// ---- register tiles
__global__ void misaligned_row(float *out) {
    __shared__ alignas(16) __nv_bfloat16 rows[9][8];
    uint32_t x[2];
    for (int i = (int)threadIdx.x; i < 72; i += 32) rows[i / 8][i % 8] = __float2bfloat16(1.0f);
    __syncwarp();
    load_matrices<false>(x, rows[threadIdx.x % 8] + 1); // bug: misaligned_row
    out[THREAD] = (float)x[0];
}
__global__ void row_in_global_memory(float *out, const float *in) {
    uint32_t x[4];
    load_matrices<true>(x, in); // bug: row_in_global_memory
    out[THREAD] = (float)x[0];
}
__global__ void rows_without_syncwarp(float *out) {
    __shared__ alignas(16) __nv_bfloat16 rows[8][8];
    uint32_t x[2];
    for (int round = 0; round < 2; round++) {
        __syncwarp();
        for (int i = (int)threadIdx.x; i < 64; i += 32) rows[i % 8][i / 8] = __float2bfloat16((float)round);
    }
    load_matrices<false>(x, rows[threadIdx.x % 8]); // rows that other lanes have written
    out[THREAD] = (float)x[0];
}
__global__ void copies_not_waited_for(float *out, const float *in) {
    __shared__ alignas(16) float row[4 * 32];
    copy_async(row + 4 * threadIdx.x, in, 16);
    copies_commit();
    out[THREAD] = row[4 * threadIdx.x]; // bug: copies_not_waited_for
}
__global__ void deep_stack(float *out) {
    volatile char large[600 << 10];
    for (int i = 0; i < (int)sizeof large; i += 1024) large[sizeof large - 1 - i] = 1; // bug: deep_stack
    out[THREAD] = large[0];
}
__global__ void much_static_shared(float *out) {
    __shared__ float values[13 * 1024];
    values[threadIdx.x] = 1;
    out[THREAD] = values[threadIdx.x];
}
__global__ void much_shared_in_all(float *out) {
    extern __shared__ float buffer[];
    __shared__ float values[1024];
    values[threadIdx.x] = buffer[threadIdx.x] = 1;
    out[THREAD] = values[threadIdx.x];
}
__global__ void fill(float *out, float value) {
    out[THREAD] = value;
}

__global__ void reverse(float *out) { // no bug: shared memory as it should be used
    extern __shared__ float buffer[];
    __shared__ float values[32];
    values[threadIdx.x] = buffer[threadIdx.x] = (float)threadIdx.x;
    __syncthreads();
    out[THREAD] = values[31 - threadIdx.x] + buffer[31 - threadIdx.x];
}

static float *out, *in;
static float host[4096];
static cublasHandle_t blas;

static int stale_pinned() { // read before the stream is done
    cudaStream_t stream;
    float *pinned;
    cudaStreamCreate(&stream);
    cudaMallocHost(&pinned, 128);
    memset(pinned, 0, 128);
    fill<<<1, 32, 0, stream>>>(out, 7);
    cudaMemcpyAsync(pinned, out, 128, cudaMemcpyDeviceToHost, stream);
    int stale = pinned[0] != 7;
    cudaStreamSynchronize(stream);
    return stale;
}
static int no_event() { // a consumer in another stream
    cudaStream_t producer, consumer;
    cudaStreamCreateWithFlags(&producer, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&consumer, cudaStreamNonBlocking);
    cudaDeviceSynchronize();
    fill<<<1, 32, 0, producer>>>(out, 7);
    cudaMemcpyAsync(in, out, 128, cudaMemcpyDeviceToDevice, consumer);
    cudaStreamSynchronize(consumer);
    cudaDeviceSynchronize();
    cudaMemcpy(host, in, 128, cudaMemcpyDeviceToHost);
    return host[0] != 7;
}
static int late_upload() { // from pageable memory, for a stream that does not wait for the default one
    cudaStream_t stream;
    float result[32];
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaDeviceSynchronize();
    for (int i = 0; i < 32; i++) host[i] = 7;
    cudaMemcpy(in, host, 128, cudaMemcpyHostToDevice);
    cudaMemcpyAsync(out, in, 128, cudaMemcpyDeviceToDevice, stream);
    cudaMemcpyAsync(result, out, 128, cudaMemcpyDeviceToHost, stream);
    return result[0] != 7;
}
static int depends_on_order() {
    in_order_only<<<2, 64>>>(out);
    cudaMemcpy(host, out, 128 * sizeof(float), cudaMemcpyDeviceToHost);
    return host[127] != 127;
}
// Memory that nobody wrote: a signalling NaN as it lies there, both as float and as bfloat16, and a NaN in every
// result.
static int is_poisoned(const float *uninitialised) {
    unsigned bits;
    cudaMemcpy(&bits, uninitialised, sizeof bits, cudaMemcpyDeviceToHost);
    bool signals = (bits & 0x7fc00000) == 0x7f800000 && bits & 0x3fffff && (bits & 0x7fc0) == 0x7f80 && bits & 0x3f;
    read_uninitialised<<<1, 32>>>(out, uninitialised);
    read_uninitialised_shared<<<1, 32>>>(out + 32);
    cudaMemcpy(host, out, 64 * sizeof(float), cudaMemcpyDeviceToHost);
    return signals && isnan(host[0]) && host[62] == 1 && isnan(host[63]);
}
static cublasStatus_t multiply(int n, int lda, const float *a, float *c) {
    float one = 1, zero = 0;
    return cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, a, lda, in, n, &zero, c, n);
}

// Statuses are not checked here: that the runtime notices by itself is what is tested.
int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    float *uninitialised, *freed;
    cudaMalloc(&out, 400 * sizeof(float));
    cudaMalloc(&in, 400 * sizeof(float));
    cudaMalloc(&uninitialised, 400 * sizeof(float));
    cudaMalloc(&freed, 400 * sizeof(float));
    cudaMemset(out, 0, 400 * sizeof(float));
    cudaMemset(in, 0, 400 * sizeof(float));
    cudaFree(freed);
    cublasCreate(&blas);
#define CASE(bug) else if (!strcmp(name, bug))
    if (!*name) return 2;
    CASE("none") fill<<<2, 64>>>(out, 1);
    CASE("shared_memory") reverse<<<2, 32, 32 * sizeof(float)>>>(out);
    CASE("write_past_end") write_past_end<<<13, 32>>>(out, 400);
    CASE("read_before_start") read_before_start<<<1, 32>>>(out, in);
    CASE("read_past_shared") read_past_shared<<<1, 32>>>(out);
    CASE("write_past_dynamic") write_past_dynamic<<<1, 32, 32 * sizeof(float)>>>(out);
    CASE("use_freed") use_freed<<<1, 32>>>(freed);
    CASE("read_host_memory") read_host_memory<<<1, 32>>>(out, (const float *)4096);
    CASE("read_uninitialised") {
        read_uninitialised<<<2, 32>>>(out, uninitialised);
        cudaMemcpy(host, out, 4, cudaMemcpyDeviceToHost);
        if (host[0] == 0) printf("zero\n");
    }
    CASE("branch_on_uninitialised") branch_on_uninitialised<<<1, 32>>>(out, uninitialised);
    CASE("poisoned") return is_poisoned(uninitialised) ? 99 : 0;
    CASE("read_uninitialised_shared") read_uninitialised_shared<<<1, 32>>>(out);
    CASE("no_barrier") no_barrier<<<2, 64>>>(out);
    CASE("no_barrier_before_reuse") no_barrier_before_reuse<<<1, 64>>>(out);
    CASE("no_syncwarp") no_syncwarp<<<1, 32>>>(out);
    CASE("in_order_only") return depends_on_order() ? 99 : 0;
    CASE("lanes_disagree") lanes_disagree<<<1, 2>>>(out);
    CASE("lanes_agree") lanes_agree<<<2, 32>>>(out);
    CASE("no_atomic") no_atomic<<<2, 32>>>(out);
    CASE("no_fence") no_fence<<<4, 32>>>((unsigned *)in, in + 8, out);
    CASE("different_barriers") different_barriers<<<1, 32>>>(out);
    CASE("barrier_after_return") barrier_after_return<<<1, 64>>>(out, 40);
    CASE("shuffle_after_return") shuffle_after_return<<<1, 32>>>(out, 20);
    CASE("shuffle_in_branches") shuffle_in_branches<<<1, 32>>>(out);
    CASE("shuffle_from_outside_mask") shuffle_from_outside_mask<<<1, 32>>>(out);
    CASE("caller_not_in_mask") caller_not_in_mask<<<1, 32>>>(out);
    CASE("warp_waits_at_barrier") warp_waits_at_barrier<<<1, 32>>>(out);
    CASE("warp_beyond_block") warp_beyond_block<<<1, 40>>>(out);
    CASE("misaligned_vector") misaligned_vector<<<1, 1>>>(out, in);
    CASE("misaligned_tile") misaligned_tile<<<1, 32>>>(out, (const __nv_bfloat16 *)in);
    CASE("misaligned_row") misaligned_row<<<1, 32>>>(out);
    CASE("row_in_global_memory") row_in_global_memory<<<1, 32>>>(out, in);
    CASE("rows_without_syncwarp") rows_without_syncwarp<<<1, 32>>>(out);
    CASE("copies_not_waited_for") copies_not_waited_for<<<1, 32>>>(out, in);
    CASE("deep_stack") deep_stack<<<1, 1>>>(out);
    CASE("much_static_shared") much_static_shared<<<1, 32>>>(out);
    CASE("much_shared_in_all") much_shared_in_all<<<1, 32, 46 << 10>>>(out);
    CASE("host_reads_device") printf("%g\n", in[3]); // bug: host_reads_device
    CASE("copy_wrong_way") cudaMemcpy(host, out, 64, cudaMemcpyHostToDevice);
    CASE("copy_too_much") cudaMemcpy(host, out, 1604, cudaMemcpyDeviceToHost);
    CASE("set_too_much") cudaMemset(out, 0, 1604);
    CASE("free_twice") cudaFree(freed);
    CASE("unchecked_launch") {
        fill<<<1, 1025>>>(out, 1); // bug: unchecked_launch
        cudaDeviceSynchronize();
    }
    CASE("unchecked_launch_at_exit") fill<<<1, 32, 64 << 10>>>(out, 1); // bug: unchecked_launch_at_exit
    CASE("stale_pinned") return stale_pinned() ? 99 : 0;
    CASE("no_event") return no_event() ? 99 : 0;
    CASE("late_upload") return late_upload() ? 99 : 0;
    CASE("second_device") cudaSetDevice(1);
    CASE("blas_out_of_bounds") multiply(21, 21, in, out);
    CASE("blas_host_pointer") multiply(4, 4, host, out);
    CASE("blas_uninitialised") multiply(4, 4, uninitialised, out);
    CASE("blas_in_place") multiply(4, 4, out, out);
    CASE("blas_leading_dimension") return multiply(4, 3, in, out) == CUBLAS_STATUS_INVALID_VALUE ? 99 : 0;
    else return 2;
    cudaDeviceSynchronize();
    return 0;
}
