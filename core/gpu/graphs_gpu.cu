#include "graphs_gpu.h"

// Finds the captured micro-batch of this shape; where there is none, notes the shape, to be captured the next time.
static GraphUse choose_use(GraphsGPU *graphs, int B, int T, int beta) {
    std::vector<CapturedBatch> &captured = graphs->captured;
    for (size_t i = 0; i < captured.size(); i++) {
        if (captured[i].B != B || captured[i].T != T || captured[i].beta != beta) continue;
        graphs->captures = i;
        return captured[i].graph ? GRAPH_REPLAYS : GRAPH_CAPTURES;
    }
    captured.push_back({B, T, beta, NULL});
    return GRAPH_NONE;
}

GraphUse graphs_gpu_begin(GraphsGPU *graphs, int wanted, int B, int T, int beta, cudaStream_t stream) {
    graphs->use = wanted ? choose_use(graphs, B, T, beta) : GRAPH_NONE;
    if (graphs->use == GRAPH_CAPTURES) cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    return graphs->use;
}

void graphs_gpu_end(GraphsGPU *graphs, cudaStream_t stream) {
    if (graphs->use == GRAPH_NONE) return;
    cudaGraphExec_t *launched = &graphs->captured[graphs->captures].graph;
    if (graphs->use == GRAPH_CAPTURES) {
        cudaGraph_t graph;
        cuda_check(cudaStreamEndCapture(stream, &graph));
        cuda_check(cudaGraphInstantiate(launched, graph, 0));
        cuda_check(cudaGraphDestroy(graph));
    }
    cuda_check(cudaGraphLaunch(*launched, stream));
}

void graphs_gpu_free(GraphsGPU *graphs) {
    for (CapturedBatch &captured : graphs->captured)
        if (captured.graph) cuda_check(cudaGraphExecDestroy(captured.graph));
}
