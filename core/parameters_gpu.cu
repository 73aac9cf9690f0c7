#include "parameters_gpu.h"

extern "C" {
#include "memory.h"
}

#include <string.h>

enum { ALIGN_NUMBERS = 128 }; // 256 bytes in bf16, as cuBLASLt likes tensors to begin

static size_t place(size_t *next, size_t count) {
    size_t here = *next;
    *next = (here + count + ALIGN_NUMBERS - 1) / ALIGN_NUMBERS * ALIGN_NUMBERS;
    return here;
}

// Where each parameter lies in the flat arrays. Number 0 of the list is wte.
static void place_all(ParametersGPU *parameters, size_t wte_numbers) {
    size_t next = 0, *offsets = parameters->offsets;
    const Parameter *list = parameters->list;
    for (int i = 1; i < parameters->count; i++)
        if (list[i].rank == 2) offsets[i] = place(&next, list[i].count);
    offsets[0] = place(&next, wte_numbers);
    parameters->matrix_end = offsets[0] + list[0].count;
    parameters->vector_start = next;
    for (int i = 1; i < parameters->count; i++)
        if (list[i].rank == 1) offsets[i] = place(&next, list[i].count);
    parameters->numbers = next;
}

static void plan_all(ParametersGPU *parameters) {
    size_t numbers = parameters->numbers;
    arena_gpu_plan(&parameters->weight_arena, &parameters->master, numbers);
#ifdef PRECISION_BF16
    arena_gpu_plan(&parameters->weight_arena, &parameters->rounded, numbers);
#endif
    for (int i = 0; i < parameters->count; i++) {
        Parameter *p = &parameters->list[i];
        arena_plan(&parameters->host_weights, &p->value, p->count);
        if (!parameters->trains) continue;
        arena_plan(&parameters->host_moments, &p->m, p->count);
        arena_plan(&parameters->host_moments, &p->v, p->count);
    }
    for (int l = 0; l < parameters->L; l++) {
        arena_plan(&parameters->host_constant_arena, &parameters->host_constants[l], parameters->constant_count);
        arena_gpu_plan(&parameters->constant_arena, &parameters->constants[l], parameters->constant_count);
    }
    if (!parameters->trains) return;
    arena_gpu_plan(&parameters->gradient_arena, &parameters->gradients, numbers);
    arena_gpu_plan(&parameters->moment_arena, &parameters->m, numbers);
    arena_gpu_plan(&parameters->moment_arena, &parameters->v, numbers);
}

// What must not start as whatever the memory holds: moments, and the zeros in the gaps.
static void clear_all(ParametersGPU *parameters) {
    size_t bytes = parameters->numbers * sizeof(float);
    cuda_check(cudaMemset(parameters->master, 0, bytes));
#ifdef PRECISION_BF16
    cuda_check(cudaMemset(parameters->rounded, 0, parameters->numbers * sizeof(floatX)));
#else
    parameters->rounded = parameters->master;
#endif
    for (int i = 0; parameters->trains && i < parameters->count; i++) {
        Parameter *p = &parameters->list[i];
        memset(p->m, 0, p->count * sizeof(real)), memset(p->v, 0, p->count * sizeof(real));
    }
    if (parameters->trains) {
        cuda_check(cudaMemset(parameters->gradients, 0, bytes));
        cuda_check(cudaMemset(parameters->m, 0, bytes));
        cuda_check(cudaMemset(parameters->v, 0, bytes));
    }
    cuda_check(cudaDeviceSynchronize()); // the model's stream does not wait for this one
}

void parameters_gpu_create(ParametersGPU *parameters, const GPT2Config *config, const Attention *attention,
                           const AttentionConfig *attention_config, int padded_V, int trains) {
    AttentionConstant constants[ATTENTION_CONSTANTS_MAX];
    size_t L = (size_t)config->L;
    attention_constants(attention, attention_config, constants, &parameters->constant_count);
    parameters->trains = trains, parameters->L = config->L;
    parameters->host_weights.what = parameters->weight_arena.what = "weights";
    parameters->host_moments.what = parameters->moment_arena.what = "AdamW moments";
    parameters->host_constant_arena.what = parameters->constant_arena.what = "attention constants";
    parameters->gradient_arena.what = "gradients";
    parameters->list = gpt2_list_parameters(config, &parameters->count);
    parameters->offsets = (size_t *)memory_allocate((size_t)parameters->count, sizeof(size_t), "the list of offsets");
    parameters->host_constants = (real **)memory_allocate_zeroed(L, sizeof(real *), "the list of constants");
    parameters->constants = (float **)memory_allocate_zeroed(L, sizeof(float *), "the list of constants");
    place_all(parameters, (size_t)padded_V * (size_t)config->C);
    plan_all(parameters);
    arena_allocate(&parameters->host_weights), arena_allocate(&parameters->host_moments);
    arena_allocate(&parameters->host_constant_arena);
    arena_gpu_allocate(&parameters->weight_arena), arena_gpu_allocate(&parameters->gradient_arena);
    arena_gpu_allocate(&parameters->moment_arena), arena_gpu_allocate(&parameters->constant_arena);
    clear_all(parameters);
}

void parameters_gpu_free(ParametersGPU *parameters) {
    arena_gpu_free(&parameters->weight_arena), arena_gpu_free(&parameters->gradient_arena);
    arena_gpu_free(&parameters->moment_arena), arena_gpu_free(&parameters->constant_arena);
    arena_free(&parameters->host_weights), arena_free(&parameters->host_moments);
    arena_free(&parameters->host_constant_arena);
    free(parameters->list), free(parameters->offsets), free(parameters->host_constants), free(parameters->constants);
}

static void copy(float *to, const float *from, size_t count, cudaMemcpyKind kind, cudaStream_t stream) {
    if (count) cuda_check(cudaMemcpyAsync(to, from, count * sizeof(float), kind, stream));
}

void parameters_gpu_send(ParametersGPU *parameters, cudaStream_t stream) {
    for (int i = 0; i < parameters->count; i++) {
        const Parameter *p = &parameters->list[i];
        size_t offset = parameters->offsets[i];
        copy(parameters->master + offset, p->value, p->count, cudaMemcpyHostToDevice, stream);
        if (!parameters->trains) continue;
        copy(parameters->m + offset, p->m, p->count, cudaMemcpyHostToDevice, stream);
        copy(parameters->v + offset, p->v, p->count, cudaMemcpyHostToDevice, stream);
    }
    for (int l = 0; l < parameters->L; l++)
        copy(parameters->constants[l], parameters->host_constants[l], parameters->constant_count,
             cudaMemcpyHostToDevice, stream);
    cuda_check(cudaStreamSynchronize(stream));
}

void parameters_gpu_fetch(ParametersGPU *parameters, cudaStream_t stream) {
    for (int i = 0; i < parameters->count; i++) {
        const Parameter *p = &parameters->list[i];
        size_t offset = parameters->offsets[i];
        copy(p->value, parameters->master + offset, p->count, cudaMemcpyDeviceToHost, stream);
        if (!parameters->trains) continue;
        copy(p->m, parameters->m + offset, p->count, cudaMemcpyDeviceToHost, stream);
        copy(p->v, parameters->v + offset, p->count, cudaMemcpyDeviceToHost, stream);
    }
    cuda_check(cudaStreamSynchronize(stream));
}
