// GPT-2's parameters on the device, with copies of what goes into files in host memory (core/model/gpt2_parameters.h).
//
// The numbers stand in flat arrays with the same offsets in all of them, so that norm and AdamW are a launch or two
// over everything. Matrices come first, wte as the last of them with rows of zeros after its last token; then the
// vectors, which have no weight decay; then the attention's parameters, a layer's one after the other as its kernels
// read them. Gaps between tensors are zeros.
//
// With ZeRO a rank has master weights and moments only of what it updates, one part after the other; gradients and the
// weights that the layers read are whole on every rank. The attention's parameters, which its kernels read in fp32,
// every rank has and updates whole.
#ifndef CORE_PARAMETERS_GPU_H
#define CORE_PARAMETERS_GPU_H

#include "core/gpu/arena_gpu.h"
#include "core/gpu/cuda_common.h"
#include "parallel_nccl.h"

extern "C" {
#include "core/math/arena.h"
#include "core/model/gpt2_parameters.h"
}

typedef struct { // numbers that this rank updates
    Range range; // in the flat arrays
    size_t own;  // where they begin in master, m and v
    int decays;
    int counts; // in the norm on this rank; what all ranks update counts on rank 0 only
} UpdatedPart;

typedef struct {
    Parameter *list; // with host memory for value, m and v
    int count;
    size_t *offsets;   // (count): where each parameter begins
    size_t matrix_end; // of the last matrix's last number
    size_t vector_start, attention_start;
    size_t numbers; // of the flat arrays in all
    UpdatedPart *updated;
    int updated_count;
    size_t own_numbers; // of master, m and v: as many as there are, or with ZeRO those of this rank's parts
    float *master, *gradients, *m, *v;
    floatX *rounded;  // (numbers) the weights that the layers read; in fp32 the master weights themselves, if whole
    float *whole;     // (numbers) all master weights, as they were sent; with ZeRO only until the first gradients
    float *attention; // the attention's parameters among the master weights
    int shares;       // ZeRO: the master weights and moments are those of what this rank updates
    int trains;       // Trains: whether gradients and moments exist
    int by_muon;      // the matrices of the blocks are Muon's

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
#define STRETCH_WTE(L)       (L)
#define STRETCH_VECTORS(L)   ((L) + 1)
#define STRETCH_WPE(L)       ((L) + 2)
#define STRETCH_ATTENTION(L) ((L) + 3)
#define STRETCHES(L)         ((L) + 4)
Stretch parameters_gpu_stretch(const ParametersGPU *parameters, int stretch);
// The parameters of a layer's attention, one block, and their gradients (NULL when the model does not train); NULL when
// it has none.
const float *parameters_gpu_attention(const ParametersGPU *parameters, int layer);
float *parameters_gpu_attention_gradients(const ParametersGPU *parameters, int layer);
// The host's copies to the device, and back. The host has whole weights and moments: with ZeRO, after a fetch, which
// all ranks call, rank 0's are complete.
void parameters_gpu_send(ParametersGPU *parameters, cudaStream_t stream);
void parameters_gpu_fetch(ParametersGPU *parameters, cudaStream_t stream);
// ZeRO, after the update: every rank gets the weights that the others have updated, as the layers read them.
void parameters_gpu_gather(ParametersGPU *parameters, ExchangeGPU *exchange, cudaStream_t stream);

#endif
