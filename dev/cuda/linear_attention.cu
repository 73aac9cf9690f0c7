// Causal linear attention, from the naive kernel to the one that ships, on the simplest feature map there is (elu).
//
//     linear_attention [VERSION [B T NH HS]]        all versions; sizes 1 200 3 32
//
//   1  one thread per query sums over all keys before it. Nothing is shared: T^2 / 2 scores, each from global memory.
//   2  a state per head: S = sum of phi(k) (v, 1)^T, so that every query reads S instead of all keys. Linear in T, but
//      a head is one block that goes through the sequence row by row: B * NH blocks, T barriers.
//   3  chunks: the sums of all chunks at once, a scan over them, then the outputs of all chunks at once. As many blocks
//      as there are chunks, and no row waits for the one before: within a chunk scores are computed pair by pair, in
//      shared memory.
//   4  the shipped one (attention/linear_chunk.cuh): a block walks over the chunks of one head with the state in its
//      registers, products on tensor cores, features and scores on chip only. Batch and heads fill the GPU; where they
//      do not, a sequence is cut into segments, whose states are summed and scanned first.
//
// Every version is compared with the C code (attention/elu.c). The times mean something only on a GPU.
#include "attention/attention_gpu.h"

extern "C" {
#include "core/base/random.h"
}

#include <math.h>
#include <string.h>

extern const AttentionGPU attention_gpu_elu;

typedef struct {
    int B, T, NH, HS;
    float delta;
} Size;

__device__ static inline float phi(floatX number) {
    float x = to_float(number);
    return x > 0 ? x + 1 : expf(x);
}

// Row t of a head in qkv (B, T, 3C): part 0 is q, 1 is k, 2 is v.
__device__ static inline size_t head_row(Size size, int task, int t, int part) {
    size_t C = (size_t)size.NH * size.HS, row = (size_t)(task / size.NH) * size.T + t;
    return (row * 3 + part) * C + (size_t)(task % size.NH) * size.HS;
}

__device__ static inline size_t output_row(Size size, int task, int t) {
    size_t row = (size_t)(task / size.NH) * size.T + t;
    return (row * size.NH + task % size.NH) * size.HS;
}

// ---- 1: one thread per query

enum { HEAD_MAX = 128 };

__global__ static void naive_kernel(floatX *out, const floatX *qkv, Size size) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, task = i / size.T, t = i % size.T;
    if (task >= size.B * size.NH) return;
    const floatX *q = qkv + head_row(size, task, t, 0);
    float numerator[HEAD_MAX], sum = 0;
    for (int c = 0; c < size.HS; c++) numerator[c] = 0;
    for (int j = 0; j <= t; j++) {
        const floatX *k = qkv + head_row(size, task, j, 1), *v = qkv + head_row(size, task, j, 2);
        float score = 0;
        for (int c = 0; c < size.HS; c++) score += phi(q[c]) * phi(k[c]);
        for (int c = 0; c < size.HS; c++) numerator[c] += score * to_float(v[c]);
        sum += score;
    }
    for (int c = 0; c < size.HS; c++)
        out[output_row(size, task, t) + c] = from_float<floatX>(numerator[c] / (sum + size.delta));
}

static void naive(floatX *out, const floatX *qkv, float *work, Size size) {
    (void)work;
    int queries = size.B * size.NH * size.T;
    naive_kernel<<<(queries + 127) / 128, 128>>>(out, qkv, size);
    launch_check();
}

// ---- 2: one block per head, which carries the state through the sequence; thread c has column c of it

__global__ static void recurrent_kernel(floatX *out, float *states, const floatX *qkv, Size size) {
    __shared__ float phi_q[HEAD_MAX], phi_k[HEAD_MAX], sum;
    int task = blockIdx.x, c = threadIdx.x, HS = size.HS;
    float *column = states + (size_t)task * HS * (HS + 1) + c; // (HS, HS + 1)
    for (int f = 0; f < HS; f++) column[(size_t)f * (HS + 1)] = 0;
    for (int t = 0; t < size.T; t++) {
        if (c < HS) {
            phi_q[c] = phi(qkv[head_row(size, task, t, 0) + c]);
            phi_k[c] = phi(qkv[head_row(size, task, t, 1) + c]);
        }
        __syncthreads();
        float v = c < HS ? to_float(qkv[head_row(size, task, t, 2) + c]) : 1.0f, numerator = 0;
        for (int f = 0; f < HS; f++) {
            column[(size_t)f * (HS + 1)] += phi_k[f] * v;
            numerator += phi_q[f] * column[(size_t)f * (HS + 1)];
        }
        if (c == HS) sum = numerator;
        __syncthreads();
        if (c < HS) out[output_row(size, task, t) + c] = from_float<floatX>(numerator / (sum + size.delta));
    }
}

static void recurrent(floatX *out, const floatX *qkv, float *work, Size size) {
    recurrent_kernel<<<size.B * size.NH, size.HS + 1>>>(out, work, qkv, size);
    launch_check();
}

// ---- 3: chunks in parallel

enum { CHUNK = 32 };

__host__ __device__ static inline int chunks_of(Size size) {
    return (size.T + CHUNK - 1) / CHUNK;
}

// The rows of a chunk in shared memory: phi(k) (CHUNK, HS) and (v, 1) (CHUNK, HS + 1), zeros past the end.
__device__ static inline void load_chunk(float *phi_k, float *values, const floatX *qkv, int task, int start,
                                         Size size) {
    int HS = size.HS;
    for (int i = threadIdx.x; i < CHUNK * (HS + 1); i += blockDim.x) {
        int row = i / (HS + 1), c = i % (HS + 1), t = start + row, inside = t < size.T;
        values[i] = !inside ? 0.0f : c == HS ? 1.0f : to_float(qkv[head_row(size, task, t, 2) + c]);
        if (c < HS) phi_k[row * HS + c] = inside ? phi(qkv[head_row(size, task, t, 1) + c]) : 0.0f;
    }
}

// states (tasks, chunks, HS, HS + 1): every chunk's own sum
__global__ static void chunk_sum_kernel(float *states, const floatX *qkv, Size size) {
    extern __shared__ float shared[];
    int HS = size.HS, task = blockIdx.x / chunks_of(size), chunk = blockIdx.x % chunks_of(size);
    float *phi_k = shared, *values = shared + CHUNK * HS, *state = states + (size_t)blockIdx.x * HS * (HS + 1);
    load_chunk(phi_k, values, qkv, task, chunk * CHUNK, size);
    __syncthreads();
    for (int i = threadIdx.x; i < HS * (HS + 1); i += blockDim.x) {
        float sum = 0;
        for (int row = 0; row < CHUNK; row++)
            sum += phi_k[row * HS + i / (HS + 1)] * values[row * (HS + 1) + i % (HS + 1)];
        state[i] = sum;
    }
}

// ... becomes the sum over the chunks before
__global__ static void chunk_scan_kernel(float *states, Size size) {
    int numbers = size.HS * (size.HS + 1), i = blockIdx.x * blockDim.x + threadIdx.x, task = i / numbers;
    if (task >= size.B * size.NH) return;
    float *at = states + (size_t)task * chunks_of(size) * numbers + i % numbers, sum = 0;
    for (int chunk = 0; chunk < chunks_of(size); chunk++, at += numbers) {
        float own = *at;
        *at = sum;
        sum += own;
    }
}

// What the state gives to the chunk's rows, and what their pairs do; column HS of the numerator is the row's sum.
__global__ static void chunk_output_kernel(floatX *out, const float *states, const floatX *qkv, Size size) {
    extern __shared__ float shared[];
    int HS = size.HS, task = blockIdx.x / chunks_of(size), start = (int)(blockIdx.x % chunks_of(size)) * CHUNK;
    float *phi_k = shared, *values = phi_k + CHUNK * HS, *phi_q = values + CHUNK * (HS + 1);
    float *scores = phi_q + CHUNK * HS, *numerator = scores + CHUNK * CHUNK; // (CHUNK, CHUNK), (CHUNK, HS + 1)
    const float *state = states + (size_t)blockIdx.x * HS * (HS + 1);
    load_chunk(phi_k, values, qkv, task, start, size);
    for (int i = threadIdx.x; i < CHUNK * HS; i += blockDim.x)
        phi_q[i] = start + i / HS < size.T ? phi(qkv[head_row(size, task, start + i / HS, 0) + i % HS]) : 0.0f;
    __syncthreads();
    for (int i = threadIdx.x; i < CHUNK * CHUNK; i += blockDim.x) {
        int row = i / CHUNK, key = i % CHUNK;
        float score = 0;
        for (int f = 0; f < HS; f++) score += phi_q[row * HS + f] * phi_k[key * HS + f];
        scores[i] = key <= row ? score : 0.0f;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < CHUNK * (HS + 1); i += blockDim.x) {
        int row = i / (HS + 1), c = i % (HS + 1);
        float sum = 0;
        for (int f = 0; f < HS; f++) sum += phi_q[row * HS + f] * state[f * (HS + 1) + c];
        for (int key = 0; key <= row; key++) sum += scores[row * CHUNK + key] * values[key * (HS + 1) + c];
        numerator[i] = sum;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < CHUNK * HS; i += blockDim.x) {
        int row = i / HS, c = i % HS;
        float sum = numerator[row * (HS + 1) + HS] + size.delta;
        if (start + row < size.T)
            out[output_row(size, task, start + row) + c] = from_float<floatX>(numerator[row * (HS + 1) + c] / sum);
    }
}

static void chunked(floatX *out, const floatX *qkv, float *work, Size size) {
    int HS = size.HS, blocks = size.B * size.NH * chunks_of(size), numbers = size.B * size.NH * HS * (HS + 1);
    size_t for_sums = sizeof(float) * CHUNK * (2 * HS + 1), for_outputs = sizeof(float) * CHUNK * (4 * HS + 2 + CHUNK);
    cuda_check(
        cudaFuncSetAttribute(chunk_output_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)for_outputs));
    chunk_sum_kernel<<<blocks, 256, for_sums>>>(work, qkv, size);
    launch_check();
    chunk_scan_kernel<<<(numbers + 255) / 256, 256>>>(work, size);
    launch_check();
    chunk_output_kernel<<<blocks, 256, for_outputs>>>(out, work, qkv, size);
    launch_check();
}

// ---- 4: the shipped one

static AttentionConfig configuration(Size size) {
    AttentionConfig config;
    memset(&config, 0, sizeof config);
    config.B = size.B, config.T = config.max_T = size.T, config.NH = size.NH, config.HS = size.HS;
    config.C = size.NH * size.HS, config.delta = size.delta;
    return config;
}

static void shipped(floatX *out, const floatX *qkv, float *work, Size size) {
    AttentionConfig config = configuration(size);
    attention_gpu_elu.forward(out, NULL, qkv, NULL, NULL, work, &config, 0);
}

// ---- comparison

typedef void Version(floatX *out, const floatX *qkv, float *work, Size size);
static Version *const versions[] = {naive, recurrent, chunked, shipped};
static const char *const names[] = {"naive", "one state per head", "chunks in parallel", "as shipped"};
enum { VERSIONS = sizeof versions / sizeof versions[0] };

static size_t work_numbers(Size size) {
    AttentionConfig config = configuration(size);
    size_t shipped_size = attention_gpu_elu.work_size(&config);
    size_t states = (size_t)size.B * size.NH * chunks_of(size) * size.HS * (size.HS + 1);
    return states > shipped_size ? states : shipped_size;
}

static float *reference(const float *qkv, Size size) {
    AttentionConfig config = configuration(size);
    const Attention *elu = attention_gpu_elu.cpu;
    float *out = (float *)calloc((size_t)size.B * size.T * config.C, sizeof(float));
    float *work = (float *)calloc(elu->work_size(&config) + 1, sizeof(float));
    elu->forward(out, NULL, qkv, NULL, NULL, work, &config);
    free(work);
    return out;
}

// The largest difference between the device's output and the reference, relative to the largest number.
static double compare(const floatX *device, const float *expected, size_t n) {
    floatX *found = (floatX *)malloc(n * sizeof(floatX));
    double worst = 0, largest = 0;
    cuda_check(cudaMemcpy(found, device, n * sizeof(floatX), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < n; i++) {
        double error = fabs((double)to_float(found[i]) - expected[i]);
        if (!(error <= worst)) worst = error;
        largest = fmax(largest, fabs((double)expected[i]));
    }
    free(found);
    return worst / largest;
}

static float milliseconds(Version *version, floatX *out, const floatX *qkv, float *work, Size size) {
    const int rounds = 3;
    cudaEvent_t begin, end;
    float total = 0;
    cuda_check(cudaEventCreate(&begin));
    cuda_check(cudaEventCreate(&end));
    cuda_check(cudaEventRecord(begin));
    for (int i = 0; i < rounds; i++) version(out, qkv, work, size);
    cuda_check(cudaEventRecord(end));
    cuda_check(cudaEventSynchronize(end));
    cuda_check(cudaEventElapsedTime(&total, begin, end));
    cuda_check(cudaEventDestroy(begin));
    cuda_check(cudaEventDestroy(end));
    return total / rounds;
}

// 1 if the version's output is not the C code's.
static int run(int version, Size size) {
    size_t n = (size_t)size.B * size.T * size.NH * size.HS;
    const double allowed = sizeof(floatX) == 2 ? 5e-3 : 1e-5;
    float *qkv = (float *)malloc(3 * n * sizeof(float)), *work;
    floatX *numbers = (floatX *)malloc(3 * n * sizeof(floatX)), *device_qkv, *device_out;
    for (size_t i = 0; i < 3 * n; i++) {
        numbers[i] = from_float<floatX>((float)random_normal(1, i));
        qkv[i] = to_float(numbers[i]);
    }
    cuda_check(cudaMalloc((void **)&device_qkv, 3 * n * sizeof(floatX)));
    cuda_check(cudaMalloc((void **)&device_out, n * sizeof(floatX)));
    cuda_check(cudaMalloc((void **)&work, work_numbers(size) * sizeof(float)));
    cuda_check(cudaMemcpy(device_qkv, numbers, 3 * n * sizeof(floatX), cudaMemcpyHostToDevice));
    versions[version - 1](device_out, device_qkv, work, size);
    float *expected = reference(qkv, size);
    double found = compare(device_out, expected, n);
    float time = milliseconds(versions[version - 1], device_out, device_qkv, work, size);
    printf("%d  %-20s %9.3f ms  %.1e off, %.0e allowed: %s\n", version, names[version - 1], time, found, allowed,
           found <= allowed ? "ok" : "WRONG");
    cuda_check(cudaFree(device_qkv));
    cuda_check(cudaFree(device_out));
    cuda_check(cudaFree(work));
    free(qkv);
    free(numbers);
    free(expected);
    return !(found <= allowed);
}

int main(int argc, char **argv) {
    int version = argc > 1 ? atoi(argv[1]) : 0;
    Size size = {argc > 5 ? atoi(argv[2]) : 1, argc > 5 ? atoi(argv[3]) : 200, argc > 5 ? atoi(argv[4]) : 3,
                 argc > 5 ? atoi(argv[5]) : 32, 1e-6f};
    if (argc == 1) {
        int failed = 0;
        for (version = 1; version <= VERSIONS; version++) failed += run(version, size);
        printf("%d passed, %d failed\n", VERSIONS - failed, failed);
        return failed > 0;
    }
    if (version < 1 || version > VERSIONS || (argc != 2 && argc != 6) || size.B < 1 || size.T < 1 || size.NH < 1 ||
        size.HS < 1 || size.HS > HEAD_MAX) {
        fprintf(stderr, "usage: linear_attention [VERSION [B T NH HS]], VERSION from 1 to %d, HS at most %d\n",
                VERSIONS, HEAD_MAX);
        return 1;
    }
    return run(version, size);
}
