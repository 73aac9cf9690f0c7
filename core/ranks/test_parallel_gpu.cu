// Gradients between GPUs. Alone it tests one rank and the arithmetic; scripts/test_ranks_gpu.sh runs it under mpirun,
// where the CPU execution of the harness carries NCCL's calls over MPI.
#include "parallel_nccl.h"
#include "core/base/test.h"

#include <vector>

static int rank, ranks;
static cudaStream_t stream;

static float gradient_of(int r, size_t i) {
    return (float)(r + 1) + (float)(i % 97) / 128; // sums of a few are exact
}
static float summed(size_t i) {
    float sum = 0;
    for (int r = 0; r < ranks; r++) sum += gradient_of(r, i);
    return sum;
}

__global__ void make_gradients_kernel(float *gradients, size_t start, size_t count, int r) {
    size_t i = start + blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < start + count) gradients[i] = (float)(r + 1) + (float)(i % 97) / 128;
}
__global__ void update_kernel(floatX *values, const float *gradients, size_t start, size_t count) {
    size_t i = start + blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < start + count) values[i] = from_float<floatX>(2 * gradients[i]);
}
static unsigned blocks(size_t count) {
    return (unsigned)((count + 127) / 128);
}

static std::vector<floatX> from_device(const floatX *device, size_t count) {
    std::vector<floatX> values(count);
    cuda_check(cudaMemcpyAsync(values.data(), device, count * sizeof(floatX), cudaMemcpyDeviceToHost, stream));
    cuda_check(cudaStreamSynchronize(stream));
    return values;
}

// As backward would make them: from the end. One is updated by all ranks, one is nothing.
static const Stretch stretches[] = {{800, 201, 1}, {700, 100, 0}, {64, 636, 0}, {64, 0, 0}, {0, 64, 0}};

static void update(ExchangeGPU *exchange, floatX *values, const float *gradients, int zero) {
    for (Stretch stretch : stretches) {
        OwnParts own = exchange_gpu_own(stretch, rank, ranks);
        Range all = {stretch.start, stretch.count}, none = {0, 0},
              parts[2] = {zero ? own.shard : all, zero ? own.rest : none};
        for (Range part : parts)
            if (part.count)
                update_kernel<<<blocks(part.count), 128, 0, stream>>>(values, gradients, part.start, part.count);
        launch_check();
        if (zero) exchange_gpu_values(exchange, stretch);
    }
}

static void exchange_steps(int zero) {
    const size_t size = 1001;
    floatX *values;
    float *gradients;
    cuda_check(cudaMalloc(&values, size * sizeof(floatX)));
    cuda_check(cudaMalloc(&gradients, size * sizeof(float)));
    ExchangeGPU *exchange = exchange_gpu_create(values, gradients, zero, stream);
    for (int step = 0; step < 2; step++) {
        cuda_check(cudaMemsetAsync(values, 0, size * sizeof(floatX), stream));
        for (Stretch stretch : stretches) {
            if (stretch.count)
                make_gradients_kernel<<<blocks(stretch.count), 128, 0, stream>>>(gradients, stretch.start,
                                                                                 stretch.count, rank);
            launch_check();
            exchange_gpu_ready(exchange, stretch);
        }
        exchange_gpu_finish(exchange);
        update(exchange, values, gradients, zero);
        std::vector<floatX> found = from_device(values, size);
        for (size_t i = 0; i < size; i++) CHECK(to_float(found[i]) == to_float(from_float<floatX>(2 * summed(i))));
    }
    exchange_gpu_free(exchange);
    cuda_check(cudaFree(values));
    cuda_check(cudaFree(gradients));
}
#define SKIP_ALONE()                                                                                                   \
    if (ranks == 1) SKIP("one rank exchanges nothing; scripts/test_ranks_gpu.sh starts several")
static void all_gradients(void) {
    SKIP_ALONE();
    exchange_steps(0);
}
static void zero(void) {
    SKIP_ALONE();
    exchange_steps(1);
}

static void sums_on_the_device(void) {
    SKIP_ALONE();
    double *device, numbers[2] = {rank + 0.5, 1};
    cuda_check(cudaMalloc(&device, sizeof numbers));
    cuda_check(cudaMemcpyAsync(device, numbers, sizeof numbers, cudaMemcpyHostToDevice, stream));
    ExchangeGPU *exchange = exchange_gpu_create(NULL, NULL, 0, stream);
    exchange_gpu_sum(exchange, device, 2);
    cuda_check(cudaMemcpyAsync(numbers, device, sizeof numbers, cudaMemcpyDeviceToHost, stream));
    cuda_check(cudaStreamSynchronize(stream));
    CHECK(numbers[0] == ranks * (ranks - 1) / 2 + 0.5 * ranks && numbers[1] == ranks);
    exchange_gpu_free(exchange);
    cuda_check(cudaFree(device));
}

static void transfers_come_first(void) {
    SKIP_ALONE();
    int least, greatest, priority;
    ExchangeGPU *exchange = exchange_gpu_create(NULL, NULL, 0, stream);
    cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    cuda_check(cudaStreamGetPriority(exchange_gpu_transfer(exchange), &priority));
    CHECK(priority == greatest && greatest <= least);
    exchange_gpu_free(exchange);
}

// Every number of a stretch belongs to one rank, or, in the rest, to all.
static void shards_of_stretches(void) {
    for (size_t count = 1; count < 700; count += 13) {
        for (int of = 1; of <= 9; of++) {
            size_t next = 5;
            for (int r = 0; r < of; r++) {
                OwnParts own = exchange_gpu_own({5, count, 0}, r, of);
                CHECK(own.shard.start == next && own.rest.start + own.rest.count == 5 + count);
                CHECK(own.rest.count < 32 * (size_t)of);
                next += own.shard.count;
                if (r == of - 1) CHECK(own.rest.start == next);
                OwnParts whole = exchange_gpu_own({5, count, 1}, r, of);
                CHECK(whole.shard.count == 0 && whole.rest.start == 5 && whole.rest.count == count);
            }
        }
    }
}

int main(int argc, char **argv) {
    error_set_program(argv[0]);
    parallel_start(argc, argv);
    rank = parallel_rank(), ranks = parallel_ranks();
    parallel_choose_device();
    cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    RUN(shards_of_stretches);
    RUN(all_gradients);
    RUN(zero);
    RUN(sums_on_the_device);
    RUN(transfers_come_first);
    cuda_check(cudaStreamDestroy(stream));
    double failures = test_failed;
    parallel_sum(&failures, 1);
    test_failed = (int)failures;
    int result = test_summary();
    parallel_end();
    return result;
}
