// What a micro-batch brings to the device: one block, filled in host memory and copied at once. Kernels read whatever
// changes from micro-batch to micro-batch from here, so that a captured CUDA graph of them stays valid.
#ifndef CORE_BATCH_GPU_H
#define CORE_BATCH_GPU_H

#include "core/gpu/cuda_common.h"

extern "C" {
#include "micro_batch.h"
}

// The rows of a micro-batch by their token, or by their position: list u has the rows rows[starts[u] .. starts[u+1]-1],
// which all hold the same. One list, one writer: no two blocks add to the same row of an embedding's gradient, and each
// adds in the same order every time.
typedef struct {
    int *rows;   // (N)
    int *starts; // (N+1)
    int *count;  // (1): lists in use
} RowLists;

typedef struct {
    uint64_t *dropout_keys; // (L+1): the embeddings', then each layer's
    int64_t *first_token;   // (1): of the micro-batch within the step's batch
    float *scale;           // (1): the gradients are those of scale * (sum of the losses)
    int *inputs, *targets;  // (N), (N)
    int *positions; // (N): of each token in its document; without documents in its row
    RowLists by_token, by_position;
} BatchData;

typedef struct {
    BatchData device, host;
    char *device_block, *host_block;
    size_t bytes; // of each block
    int L;
    int *seen;            // (V, or N if that is more) zeros
    cudaEvent_t uploaded; // the block in host memory may be written again
} BatchGPU;

size_t batch_gpu_bytes(size_t N, int L); // of the block on the device
// For micro-batches of up to N tokens below V, and L layers.
void batch_gpu_create(BatchGPU *batch, size_t N, int V, int L);
void batch_gpu_free(BatchGPU *batch);
// Sends a micro-batch ahead of its kernels. In training also the lists of rows, and the keys of
// dropout's masks.
void batch_gpu_upload(BatchGPU *batch, const MicroBatch *from, int training, uint64_t seed, cudaStream_t stream);

#endif
