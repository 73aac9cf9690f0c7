#include "batch_gpu.h"

extern "C" {
#include "core/base/memory.h"
#include "core/base/random.h"
}

#include <string.h>

// The parts in a block, the wide numbers first; returns the block's size.
static size_t lay_out(BatchData *data, char *block, size_t N, size_t L) {
    size_t next = 0;
    data->dropout_keys = (uint64_t *)(block + next), next += (L + 1) * sizeof(uint64_t);
    data->first_token = (int64_t *)(block + next), next += sizeof(int64_t);
    data->scale = (float *)(block + next), next += sizeof(float);
    data->inputs = (int *)(block + next), next += N * sizeof(int);
    data->targets = (int *)(block + next), next += N * sizeof(int);
    data->positions = (int *)(block + next), next += N * sizeof(int);
    for (RowLists *lists : {&data->by_token, &data->by_position}) {
        lists->rows = (int *)(block + next), next += N * sizeof(int);
        lists->starts = (int *)(block + next), next += (N + 1) * sizeof(int);
        lists->count = (int *)(block + next), next += sizeof(int);
    }
    return next;
}

size_t batch_gpu_bytes(size_t N, int L) {
    return ((size_t)L + 2) * sizeof(uint64_t) + sizeof(float) + (7 * N + 4) * sizeof(int);
}

void batch_gpu_create(BatchGPU *batch, size_t N, int V, int L) {
    batch->L = L;
    batch->bytes = batch_gpu_bytes(N, L);
    cuda_check(cudaMalloc((void **)&batch->device_block, batch->bytes));
    cuda_check(cudaMallocHost((void **)&batch->host_block, batch->bytes));
    lay_out(&batch->device, batch->device_block, N, (size_t)L);
    lay_out(&batch->host, batch->host_block, N, (size_t)L);
    memset(batch->host_block, 0, batch->bytes);
    batch->seen = (int *)memory_allocate_zeroed((size_t)V > N ? (size_t)V : N, sizeof(int), "the tokens seen");
    cuda_check(cudaEventCreateWithFlags(&batch->uploaded, cudaEventDisableTiming));
}

void batch_gpu_free(BatchGPU *batch) {
    if (!batch->device_block) return;
    cuda_check(cudaEventDestroy(batch->uploaded));
    cuda_check(cudaFree(batch->device_block));
    cuda_check(cudaFreeHost(batch->host_block));
    free(batch->seen);
}

// A counting sort, on the host while the device is still at work on what came before; by tokens, or by positions. seen:
// zeros for each, and zeros again after; in between a token's count, then -1 - (where its next row goes).
static void sort_rows(RowLists *lists, const int *tokens, int N, int *seen) {
    int count = 0, next = 0;
    for (int n = 0; n < N; n++) seen[tokens[n]]++;
    for (int n = 0; n < N; n++) { // lists in the order of their first rows
        int length = seen[tokens[n]];
        if (length < 0) continue;
        lists->starts[count++] = next;
        seen[tokens[n]] = -1 - next;
        next += length;
    }
    lists->starts[count] = N;
    *lists->count = count;
    for (int n = 0; n < N; n++) lists->rows[-1 - seen[tokens[n]]--] = n;
    for (int n = 0; n < N; n++) seen[tokens[n]] = 0;
}

void batch_gpu_upload(BatchGPU *batch, const MicroBatch *from, int training, uint64_t seed, cudaStream_t stream) {
    BatchData *data = &batch->host;
    size_t N = (size_t)from->B * (size_t)from->T;
    cuda_check(cudaEventSynchronize(batch->uploaded));
    memcpy(data->inputs, from->inputs, N * sizeof(int));
    memcpy(data->targets, from->targets, N * sizeof(int));
    *data->first_token = from->first_row * from->T;
    *data->scale = (float)from->scale;
    for (int site = 0; training && site <= batch->L; site++)
        data->dropout_keys[site] = dropout_key(seed, from->step, site, batch->L);
    for (size_t n = 0; n < N; n++) data->positions[n] = from->positions ? from->positions[n] : (int)n % from->T;
    if (training) sort_rows(&data->by_token, data->inputs, (int)N, batch->seen);
    if (training) sort_rows(&data->by_position, data->positions, (int)N, batch->seen);
    cuda_check(cudaMemcpyAsync(batch->device_block, batch->host_block, batch->bytes, cudaMemcpyHostToDevice, stream));
    cuda_check(cudaEventRecord(batch->uploaded, stream));
}
