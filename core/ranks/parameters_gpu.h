// GPT-2's parameters on the device, with copies of what goes into files in host memory (core/model/gpt2_parameters.h).
//
// The numbers stand in flat arrays with the same offsets in all of them, so that norm and AdamW are a launch or two
// over everything. Matrices come first, wte as the last of them with rows of zeros after its last token; then what has
// no weight decay: vectors, and the attention's parameters, those of a layer as one block. Gaps between tensors are
// zeros.
#ifndef CORE_PARAMETERS_GPU_H
#define CORE_PARAMETERS_GPU_H

#include "core/gpu/arena_gpu.h"
#include "core/gpu/cuda_common.h"

extern "C" {
#include "core/math/arena.h"
#include "core/model/gpt2_parameters.h"
#include "partition.h"
}

typedef struct {   // numbers that this rank updates
    Range range;   // in the flat arrays
    size_t moment; // where their moments begin in m and v
    int decays;
    int counts; // in the norm on this rank; what all ranks update counts on rank 0 only
} UpdatedPart;

typedef struct {
    Parameter *list; // with host memory for value, m and v
    int count;
    size_t *offsets;              // (count): where each parameter begins
    size_t matrix_end;            // of the last matrix's last number
    size_t vector_start, numbers; // of the flat arrays in all
    UpdatedPart *updated;
    int updated_count;
    size_t moment_numbers; // of m and of v: as many as there are, or with ZeRO those of this rank's parts
    float *master, *gradients, *m, *v;
    floatX *rounded; // the weights that the layers read; in fp32 the master weights themselves
    int trains;      // Trains: whether gradients and moments exist; with ZeRO the moments of what this rank updates

    real **host_constants; // the attention's, per layer
    float **constants;
    int L;
    size_t *constant_counts; // (L)

    Arena host_weights, host_moments, host_constant_arena;
    ArenaGPU weight_arena, gradient_arena, moment_arena, constant_arena;
} ParametersGPU;

// What memory there is to be is known before any is allocated. padded_V: the rows of wte with those of zeros.
// `parameters` is a struct of zeros.
void parameters_gpu_plan(ParametersGPU *parameters, const GPT2Config *config, const AttentionStack *stack, int padded_V,
                         int trains);
void parameters_gpu_allocate(ParametersGPU *parameters);
void parameters_gpu_free(ParametersGPU *parameters);
// Backward completes the gradients in stretches: the matrices of layer 0 .. L-1, then these, up to STRETCHES(L) - 1.
#define STRETCH_WTE(L)     (L)
#define STRETCH_VECTORS(L) ((L) + 1)
#define STRETCH_WPE(L)     ((L) + 2)
#define STRETCHES(L)       ((L) + 3)
Range parameters_gpu_stretch(const ParametersGPU *parameters, int stretch);
// The host's copies to the device, and back. With ZeRO the host has whole moments: after a fetch, which all ranks call,
// rank 0's are complete.
void parameters_gpu_send(ParametersGPU *parameters, cudaStream_t stream);
void parameters_gpu_fetch(ParametersGPU *parameters, cudaStream_t stream);

#endif
