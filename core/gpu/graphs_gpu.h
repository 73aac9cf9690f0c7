// Micro-batches as CUDA graphs: forward and backward of one are launched as a whole, which spares the host hundreds of
// launches. What changes from micro-batch to micro-batch has to be in memory, so that a graph stays valid. The
// sampler's tokens go the same way, as micro-batches of one token without backward.
#ifndef CORE_GRAPHS_GPU_H
#define CORE_GRAPHS_GPU_H

#include "cuda_common.h"

#include <vector>

typedef struct { // a captured micro-batch
    int B, T, beta;
    cudaGraphExec_t graph;
} CapturedBatch;

// How the micro-batch at hand gets to the device: kernel by kernel; the same, and recorded; as a whole.
typedef enum { GRAPH_NONE, GRAPH_CAPTURES, GRAPH_REPLAYS } GraphUse;

typedef struct {
    std::vector<CapturedBatch> captured;
    GraphUse use;    // of the micro-batch at hand
    size_t captures; // the one it is captured in or replayed from
} GraphsGPU;

// Begins a micro-batch of this shape. Without `wanted` it stays out of graphs. Otherwise the first of a shape is
// launched as it is, so that cuBLASLt's choices are made; during the second everything launched is captured, and from
// the third on the caller launches nothing (GRAPH_REPLAYS).
GraphUse graphs_gpu_begin(GraphsGPU *graphs, int wanted, int B, int T, int beta, cudaStream_t stream);
// Ends it: what was captured, now or before, runs.
void graphs_gpu_end(GraphsGPU *graphs, cudaStream_t stream);
void graphs_gpu_free(GraphsGPU *graphs);

#endif
