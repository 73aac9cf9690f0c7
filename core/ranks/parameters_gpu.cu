#include "parameters_gpu.h"
#include "parallel_nccl.h"

extern "C" {
#include "core/base/memory.h"
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
        if (list[i].decays) offsets[i] = place(&next, list[i].count);
    offsets[0] = place(&next, wte_numbers);
    parameters->matrix_end = offsets[0] + list[0].count;
    parameters->vector_start = next;
    size_t block = 0; // of a layer's attention
    for (int i = 1; i < parameters->count; i++) {
        if (list[i].block_count) block = place(&next, list[i].block_count);
        if (list[i].of_attention)
            offsets[i] = block + list[i].block_place;
        else if (!list[i].decays)
            offsets[i] = place(&next, list[i].count);
    }
    parameters->numbers = next;
}

Range parameters_gpu_stretch(const ParametersGPU *parameters, int stretch) {
    const size_t *offsets = parameters->offsets;
    int L = parameters->L;
    auto layer = [&](int l) {
        return l < L ? offsets[gpt2_layer_start(parameters->list, l) + QKV_WEIGHT] : offsets[0];
    };
    size_t start = 0, end = layer(0); // wpe, if there is one
    if (stretch < L) start = layer(stretch), end = layer(stretch + 1);
    if (stretch == STRETCH_WTE(L)) start = offsets[0], end = parameters->vector_start;
    if (stretch == STRETCH_VECTORS(L)) start = parameters->vector_start, end = parameters->numbers;
    return {start, end - start};
}

static void add_updated(ParametersGPU *parameters, Range range, size_t moment, int counts) {
    int decays = range.start < parameters->vector_start;
    if (range.count) parameters->updated[parameters->updated_count++] = {range, moment, decays, counts};
}

// What this rank updates: everything, in two parts, or with ZeRO its own parts of each stretch.
static void list_updated(ParametersGPU *parameters) {
    int stretches = STRETCHES(parameters->L);
    size_t next = 0;
    parameters->updated =
        (UpdatedPart *)memory_allocate((size_t)(2 * stretches), sizeof(UpdatedPart), "the list of what is updated");
    if (parameters->trains != TRAINS_SHARING_MOMENTS) {
        size_t vectors = parameters->vector_start;
        add_updated(parameters, {0, parameters->matrix_end}, 0, 1);
        add_updated(parameters, {vectors, parameters->numbers - vectors}, vectors, 1);
        next = parameters->numbers;
    }
    for (int s = 0; parameters->trains == TRAINS_SHARING_MOMENTS && s < stretches; s++) {
        Range stretch = parameters_gpu_stretch(parameters, s);
        OwnParts own = exchange_gpu_own(stretch.start, stretch.count, parallel_rank(), parallel_ranks());
        add_updated(parameters, own.shard, next, 1), next += own.shard.count;
        add_updated(parameters, own.rest, next, parallel_rank() == 0), next += own.rest.count;
    }
    parameters->moment_numbers = next;
}

static void plan_all(ParametersGPU *parameters) {
    size_t numbers = parameters->numbers;
    arena_gpu_plan(&parameters->weight_arena, &parameters->master, numbers);
#ifdef PRECISION_BF16
    arena_gpu_plan(&parameters->weight_arena, &parameters->rounded, numbers);
#endif
    for (int i = 0; i < parameters->count; i++) {
        Parameter *p = &parameters->list[i];
        // the values of an attention's parameters are drawn as one block: see place_in_blocks
        arena_plan(&parameters->host_weights, &p->value, p->of_attention ? p->block_count : p->count);
        if (!parameters->trains) continue;
        arena_plan(&parameters->host_moments, &p->m, p->count);
        arena_plan(&parameters->host_moments, &p->v, p->count);
    }
    for (int l = 0; l < parameters->L; l++) {
        arena_plan(&parameters->host_constant_arena, &parameters->host_constants[l], parameters->constant_counts[l]);
        arena_gpu_plan(&parameters->constant_arena, &parameters->constants[l], parameters->constant_counts[l]);
    }
    if (!parameters->trains) return;
    arena_gpu_plan(&parameters->gradient_arena, &parameters->gradients, numbers);
    arena_gpu_plan(&parameters->moment_arena, &parameters->m, parameters->moment_numbers);
    arena_gpu_plan(&parameters->moment_arena, &parameters->v, parameters->moment_numbers);
}

// The values in host memory of an attention's parameters after its first: their places are in the first one's block.
static void place_in_blocks(ParametersGPU *parameters) {
    const Parameter *first = NULL;
    for (int i = 0; i < parameters->count; i++) {
        Parameter *p = &parameters->list[i];
        if (p->block_count) first = p;
        if (p->of_attention) p->value = first->value + p->block_place;
    }
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
        cuda_check(cudaMemset(parameters->m, 0, parameters->moment_numbers * sizeof(float)));
        cuda_check(cudaMemset(parameters->v, 0, parameters->moment_numbers * sizeof(float)));
    }
    cuda_check(cudaDeviceSynchronize()); // the model's stream does not wait for this one
}

void parameters_gpu_plan(ParametersGPU *parameters, const GPT2Config *config, const AttentionStack *stack, int padded_V,
                         int trains) {
    size_t L = (size_t)config->L;
    parameters->trains = trains, parameters->L = config->L;
    parameters->host_weights.what = parameters->weight_arena.what = "weights";
    parameters->host_moments.what = parameters->moment_arena.what = "AdamW moments";
    parameters->host_constant_arena.what = parameters->constant_arena.what = "attention constants";
    parameters->gradient_arena.what = "gradients";
    parameters->list = gpt2_list_parameters(config, stack, &parameters->count);
    parameters->offsets = (size_t *)memory_allocate((size_t)parameters->count, sizeof(size_t), "the list of offsets");
    parameters->host_constants = (real **)memory_allocate_zeroed(L, sizeof(real *), "the list of constants");
    parameters->constants = (float **)memory_allocate_zeroed(L, sizeof(float *), "the list of constants");
    parameters->constant_counts = (size_t *)memory_allocate(L, sizeof(size_t), "the list of constants");
    for (int l = 0; l < config->L; l++) {
        const StackEntry *entry = attention_stack_layer(stack, l);
        parameters->constant_counts[l] = attention_constant_count(entry->attention, &entry->config);
    }
    place_all(parameters, (size_t)padded_V * (size_t)config->C);
    list_updated(parameters);
    plan_all(parameters);
}

void parameters_gpu_allocate(ParametersGPU *parameters) {
    arena_allocate(&parameters->host_weights), arena_allocate(&parameters->host_moments);
    arena_allocate(&parameters->host_constant_arena);
    place_in_blocks(parameters);
    arena_gpu_allocate(&parameters->weight_arena), arena_gpu_allocate(&parameters->gradient_arena);
    arena_gpu_allocate(&parameters->moment_arena), arena_gpu_allocate(&parameters->constant_arena);
    clear_all(parameters);
}

void parameters_gpu_free(ParametersGPU *parameters) {
    arena_gpu_free(&parameters->weight_arena), arena_gpu_free(&parameters->gradient_arena);
    arena_gpu_free(&parameters->moment_arena), arena_gpu_free(&parameters->constant_arena);
    arena_free(&parameters->host_weights), arena_free(&parameters->host_moments);
    arena_free(&parameters->host_constant_arena);
    free(parameters->list), free(parameters->offsets), free(parameters->updated);
    free(parameters->host_constants), free(parameters->constants), free(parameters->constant_counts);
}

static void copy(float *to, const float *from, size_t count, cudaMemcpyKind kind, cudaStream_t stream) {
    if (count) cuda_check(cudaMemcpyAsync(to, from, count * sizeof(float), kind, stream));
}

// For each tensor that a range of the flat arrays holds a piece of: visit(tensor, the piece's first number in the
// tensor, and in the range, how many).
template <typename Visit> static void for_pieces(const ParametersGPU *parameters, Range range, Visit visit) {
    for (int i = 0; i < parameters->count; i++) {
        const Parameter *p = &parameters->list[i];
        size_t offset = parameters->offsets[i], start = offset > range.start ? offset : range.start;
        size_t tensor_end = offset + p->count, range_end = range.start + range.count;
        size_t end = tensor_end < range_end ? tensor_end : range_end;
        if (start < end) visit(p, start - offset, start - range.start, end - start);
    }
}

static void send_moments(ParametersGPU *parameters, cudaStream_t stream) {
    for (int k = 0; k < parameters->updated_count; k++) {
        float *m = parameters->m + parameters->updated[k].moment, *v = parameters->v + parameters->updated[k].moment;
        auto send = [&](const Parameter *p, size_t from, size_t to, size_t count) {
            copy(m + to, p->m + from, count, cudaMemcpyHostToDevice, stream);
            copy(v + to, p->v + from, count, cudaMemcpyHostToDevice, stream);
        };
        for_pieces(parameters, parameters->updated[k].range, send);
    }
}

static void fetch_moments(ParametersGPU *parameters, cudaStream_t stream) {
    for (int k = 0; k < parameters->updated_count; k++) {
        float *m = parameters->m + parameters->updated[k].moment, *v = parameters->v + parameters->updated[k].moment;
        auto fetch = [&](const Parameter *p, size_t to, size_t from, size_t count) {
            copy(p->m + to, m + from, count, cudaMemcpyDeviceToHost, stream);
            copy(p->v + to, v + from, count, cudaMemcpyDeviceToHost, stream);
        };
        for_pieces(parameters, parameters->updated[k].range, fetch);
    }
}

// The shards of rank `from`, fetched there, go to rank 0.
static void collect_moments(ParametersGPU *parameters, int from) {
    auto collect = [&](const Parameter *p, size_t start, size_t, size_t count) {
        parallel_collect(p->m + start, count, from);
        parallel_collect(p->v + start, count, from);
    };
    for (int s = 0; s < STRETCHES(parameters->L); s++) {
        Range stretch = parameters_gpu_stretch(parameters, s);
        for_pieces(parameters, exchange_gpu_own(stretch.start, stretch.count, from, parallel_ranks()).shard, collect);
    }
}

void parameters_gpu_send(ParametersGPU *parameters, cudaStream_t stream) {
    for (int i = 0; i < parameters->count; i++) {
        const Parameter *p = &parameters->list[i];
        copy(parameters->master + parameters->offsets[i], p->value, p->count, cudaMemcpyHostToDevice, stream);
    }
    if (parameters->trains) send_moments(parameters, stream);
    for (int l = 0; l < parameters->L; l++)
        copy(parameters->constants[l], parameters->host_constants[l], parameters->constant_counts[l],
             cudaMemcpyHostToDevice, stream);
    cuda_check(cudaStreamSynchronize(stream));
}

void parameters_gpu_fetch(ParametersGPU *parameters, cudaStream_t stream) {
    for (int i = 0; i < parameters->count; i++) {
        const Parameter *p = &parameters->list[i];
        copy(p->value, parameters->master + parameters->offsets[i], p->count, cudaMemcpyDeviceToHost, stream);
    }
    if (parameters->trains) fetch_moments(parameters, stream);
    cuda_check(cudaStreamSynchronize(stream));
    if (parameters->trains != TRAINS_SHARING_MOMENTS) return;
    for (int r = 1; r < parallel_ranks(); r++)
        if (parallel_rank() == 0 || parallel_rank() == r) collect_moments(parameters, r);
}
