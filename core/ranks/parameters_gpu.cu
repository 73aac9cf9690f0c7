#include "parameters_gpu.h"

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
        if (list[i].rank == 2 && !list[i].of_attention) offsets[i] = place(&next, list[i].count);
    offsets[0] = place(&next, wte_numbers);
    parameters->matrix_end = offsets[0] + list[0].count;
    parameters->vector_start = next;
    for (int i = 1; i < parameters->count; i++)
        if (list[i].rank == 1 && !list[i].of_attention) offsets[i] = place(&next, list[i].count);
    parameters->attention_start = next;
    size_t block = next;
    for (int i = 1; i < parameters->count; i++) {
        if (list[i].block_count) block = place(&next, list[i].block_count); // the layer's first tensor
        if (list[i].of_attention) offsets[i] = block + list[i].block_place;
    }
    parameters->numbers = next;
}

Stretch parameters_gpu_stretch(const ParametersGPU *parameters, int stretch) {
    const size_t *offsets = parameters->offsets;
    int L = parameters->L;
    auto layer = [&](int l) { return offsets[l < L ? gpt2_layer_start(parameters->list, l) + QKV_WEIGHT : 0]; };
    size_t start = 0, end = layer(0); // wpe, if there is one
    if (stretch < L) start = layer(stretch), end = layer(stretch + 1);
    if (stretch == STRETCH_WTE(L)) start = offsets[0], end = parameters->vector_start;
    if (stretch == STRETCH_VECTORS(L)) start = parameters->vector_start, end = parameters->attention_start;
    if (stretch == STRETCH_ATTENTION(L)) start = parameters->attention_start, end = parameters->numbers;
    return {start, end - start, stretch == STRETCH_ATTENTION(L)};
}

// ---- what this rank updates

static void add_updated(ParametersGPU *parameters, Range range, int decays, int counts) {
    if (!range.count) return;
    parameters->updated[parameters->updated_count++] = {range, parameters->own_numbers, decays, counts};
    parameters->own_numbers += range.count;
}

// The attention's tensors decay or not, each for itself: those that follow one another and do alike are one part, with
// the gaps after them.
static void add_attention(ParametersGPU *parameters, int counts) {
    size_t start = parameters->attention_start;
    int decays = -1;
    for (int i = 0; i < parameters->count; i++) {
        const Parameter *p = &parameters->list[i];
        if (!p->of_attention || p->decays == decays) continue;
        if (decays >= 0) add_updated(parameters, {start, parameters->offsets[i] - start}, decays, counts);
        start = parameters->offsets[i], decays = p->decays;
    }
    add_updated(parameters, {start, parameters->numbers - start}, decays, counts);
}

// Everything, or with ZeRO its own parts of each stretch.
static void list_updated(ParametersGPU *parameters) {
    int stretches = STRETCHES(parameters->L), attention = STRETCH_ATTENTION(parameters->L);
    size_t most = 2 * (size_t)stretches + (size_t)parameters->count, vectors = parameters->vector_start;
    parameters->updated = (UpdatedPart *)memory_allocate(most, sizeof(UpdatedPart), "the list of what is updated");
    if (!parameters->shares) {
        add_updated(parameters, {0, parameters->matrix_end}, 1, 1);
        parameters->own_numbers = vectors; // the zeros after wte have a place, too
        add_updated(parameters, {vectors, parameters->attention_start - vectors}, 0, 1);
        add_attention(parameters, 1);
        return;
    }
    for (int s = 0; s < attention; s++) {
        Stretch stretch = parameters_gpu_stretch(parameters, s);
        OwnParts own = exchange_gpu_own(stretch, parallel_rank(), parallel_ranks());
        add_updated(parameters, own.shard, stretch.start < vectors, 1);
        add_updated(parameters, own.rest, stretch.start < vectors, parallel_rank() == 0);
    }
    add_attention(parameters, parallel_rank() == 0);
}

// ---- memory

// Whether the layers' weights are an array of their own.
static bool rounds_apart(const ParametersGPU *parameters) {
    return sizeof(floatX) != sizeof(float) || parameters->shares;
}

static void plan_all(ParametersGPU *parameters) {
    size_t numbers = parameters->numbers;
    arena_gpu_plan(&parameters->weight_arena, &parameters->master, parameters->own_numbers);
    if (rounds_apart(parameters)) arena_gpu_plan(&parameters->weight_arena, &parameters->rounded, numbers);
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
    arena_gpu_plan(&parameters->moment_arena, &parameters->m, parameters->own_numbers);
    arena_gpu_plan(&parameters->moment_arena, &parameters->v, parameters->own_numbers);
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
    size_t own_bytes = parameters->own_numbers * sizeof(float);
    cuda_check(cudaMemset(parameters->master, 0, own_bytes));
    if (rounds_apart(parameters)) cuda_check(cudaMemset(parameters->rounded, 0, parameters->numbers * sizeof(floatX)));
    for (int i = 0; parameters->trains && i < parameters->count; i++) {
        Parameter *p = &parameters->list[i];
        memset(p->m, 0, p->count * sizeof(real)), memset(p->v, 0, p->count * sizeof(real));
    }
    if (parameters->trains) {
        cuda_check(cudaMemset(parameters->gradients, 0, parameters->numbers * sizeof(float)));
        cuda_check(cudaMemset(parameters->m, 0, own_bytes));
        cuda_check(cudaMemset(parameters->v, 0, own_bytes));
    }
    cuda_check(cudaDeviceSynchronize()); // the model's stream does not wait for this one
}

// What is one array and what another. In fp32 the layers read whole master weights where they are; with ZeRO, in bf16,
// the gradients' memory, which nobody needs until backward, holds them until they are rounded.
static void point_arrays(ParametersGPU *parameters) {
    size_t attention_numbers = parameters->numbers - parameters->attention_start;
    parameters->attention = parameters->master + (parameters->own_numbers - attention_numbers);
    parameters->whole = parameters->shares ? parameters->gradients : parameters->master;
#ifndef PRECISION_BF16
    if (!rounds_apart(parameters)) parameters->rounded = parameters->master;
    parameters->whole = parameters->rounded;
#endif
}

void parameters_gpu_plan(ParametersGPU *parameters, const GPT2Config *config, const AttentionStack *stack, int padded_V,
                         int trains) {
    size_t L = (size_t)config->L;
    parameters->trains = trains & ~BY_MUON, parameters->L = config->L;
    parameters->by_muon = trains & BY_MUON;
    parameters->shares = parameters->trains == TRAINS_SHARING_MOMENTS;
    parameters->host_weights.what = parameters->weight_arena.what = "weights";
    parameters->host_moments.what = parameters->moment_arena.what = trains & BY_MUON ? "moments" : "AdamW moments";
    parameters->host_constant_arena.what = parameters->constant_arena.what = "attention constants";
    parameters->gradient_arena.what = "gradients";
    parameters->list = gpt2_list_parameters(config, stack, &parameters->count);
    if (parameters->by_muon) gpt2_choose_muon(parameters->list, parameters->count);
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
    point_arrays(parameters);
}

void parameters_gpu_free(ParametersGPU *parameters) {
    arena_gpu_free(&parameters->weight_arena), arena_gpu_free(&parameters->gradient_arena);
    arena_gpu_free(&parameters->moment_arena), arena_gpu_free(&parameters->constant_arena);
    arena_free(&parameters->host_weights), arena_free(&parameters->host_moments);
    arena_free(&parameters->host_constant_arena);
    free(parameters->list), free(parameters->offsets), free(parameters->updated);
    free(parameters->host_constants), free(parameters->constants), free(parameters->constant_counts);
}

// The place of a layer's attention in the flat arrays; numbers when it has no parameters.
static size_t attention_place(const ParametersGPU *parameters, int layer) {
    const Parameter *first = gpt2_attention_parameters(parameters->list, parameters->count, layer);
    return first ? parameters->offsets[first - parameters->list] : parameters->numbers;
}

const float *parameters_gpu_attention(const ParametersGPU *parameters, int layer) {
    size_t place = attention_place(parameters, layer);
    return place < parameters->numbers ? parameters->attention + (place - parameters->attention_start) : NULL;
}

float *parameters_gpu_attention_gradients(const ParametersGPU *parameters, int layer) {
    size_t place = attention_place(parameters, layer);
    return parameters->trains && place < parameters->numbers ? parameters->gradients + place : NULL;
}

// ---- between host and device

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

// Master weights and moments of what this rank updates.
static void copy_own(ParametersGPU *parameters, cudaMemcpyKind kind, cudaStream_t stream) {
    bool sends = kind == cudaMemcpyHostToDevice;
    for (int k = 0; k < parameters->updated_count; k++) {
        size_t own = parameters->updated[k].own;
        auto copy_piece = [&](const Parameter *p, size_t in_tensor, size_t in_range, size_t count) {
            float *hosts[3] = {p->value, p->m, p->v}, *devices[3] = {parameters->master, parameters->m, parameters->v};
            for (int i = 0; i < (parameters->trains ? 3 : 1); i++) {
                float *host = hosts[i] + in_tensor, *device = devices[i] + own + in_range;
                copy(sends ? device : host, sends ? host : device, count, kind, stream);
            }
        };
        for_pieces(parameters, parameters->updated[k].range, copy_piece);
    }
}

// The shards of rank `from`, fetched there, go to rank 0.
static void collect_shards(ParametersGPU *parameters, int from) {
    auto collect = [&](const Parameter *p, size_t start, size_t, size_t count) {
        parallel_collect(p->value + start, count, from);
        parallel_collect(p->m + start, count, from);
        parallel_collect(p->v + start, count, from);
    };
    for (int s = 0; s < STRETCHES(parameters->L); s++)
        for_pieces(parameters, exchange_gpu_own(parameters_gpu_stretch(parameters, s), from, parallel_ranks()).shard,
                   collect);
}

void parameters_gpu_send(ParametersGPU *parameters, cudaStream_t stream) {
    copy_own(parameters, cudaMemcpyHostToDevice, stream);
    for (int i = 0; parameters->shares && i < parameters->count; i++) {
        const Parameter *p = &parameters->list[i];
        copy(parameters->whole + parameters->offsets[i], p->value, p->count, cudaMemcpyHostToDevice, stream);
    }
    for (int l = 0; l < parameters->L; l++)
        copy(parameters->constants[l], parameters->host_constants[l], parameters->constant_counts[l],
             cudaMemcpyHostToDevice, stream);
    cuda_check(cudaStreamSynchronize(stream));
}

void parameters_gpu_fetch(ParametersGPU *parameters, cudaStream_t stream) {
    copy_own(parameters, cudaMemcpyDeviceToHost, stream);
    cuda_check(cudaStreamSynchronize(stream));
    for (int r = 1; parameters->shares && r < parallel_ranks(); r++)
        if (parallel_rank() == 0 || parallel_rank() == r) collect_shards(parameters, r);
}

void parameters_gpu_gather(ParametersGPU *parameters, ExchangeGPU *exchange, [[maybe_unused]] cudaStream_t stream) {
#ifndef PRECISION_BF16 // AdamW, which would have rounded this rank's, has nothing to round
    for (int k = 0; k < parameters->updated_count; k++) {
        const UpdatedPart *part = &parameters->updated[k];
        copy(parameters->rounded + part->range.start, parameters->master + part->own, part->range.count,
             cudaMemcpyDeviceToDevice, stream);
    }
#endif
    for (int s = 0; s < STRETCHES(parameters->L); s++)
        exchange_gpu_values(exchange, parameters_gpu_stretch(parameters, s));
}
