#include "muon_gpu.h"

#include <math.h>

void muon_gpu_plan(MuonGPU *muon, ArenaGPU *arena, int C) {
    size_t side = (size_t)C, largest = 4 * side * side; // (C,4C) and (4C,C)
    arena_gpu_plan(arena, &muon->matrix, largest);
    newton_schulz_gpu_plan(&muon->newton_schulz, arena, largest, side);
}

// The layers' matrices are one stretch after the other.
Range muon_gpu_share(const ParametersGPU *parameters, Range range) {
    size_t end = range.start + range.count, from = end, to = end;
    if (parameters->by_muon) from = parameters_gpu_stretch(parameters, 0).start, to = parameters->offsets[0];
    if (from < range.start) from = range.start;
    if (from > end) from = end;
    if (to > end) to = end;
    if (to < from) to = from;
    return {from, to - from};
}

// ---- kernels; `count` numbers of one part

// The gradients go into the momentum, and become the directions.
__global__ void directions_kernel(float *m, float *gradients, const StepState *state, float momentum, size_t count) {
    for (size_t j = (size_t)blockIdx.x * BLOCK + threadIdx.x; j < count; j += (size_t)gridDim.x * BLOCK) {
        float g = gradients[j] * state->gradient_scale, m_new = momentum * m[j] + (1 - momentum) * g;
        gradients[j] = momentum * m_new + (1 - momentum) * g;
        if (state->taken) m[j] = m_new;
    }
}

// Weights along the directions; rounded again in any case, for the next step.
template <int WIDTH>
__global__ void apply_kernel(float *master, floatX *rounded, const float *directions, MuonStepGPU step, size_t first,
                             size_t count) {
    size_t stride = (size_t)gridDim.x * BLOCK * WIDTH;
    for (size_t j = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * WIDTH; j < count; j += stride) {
        Floats<WIDTH> value = load<WIDTH>(master + j), direction = load<WIDTH>(directions + j);
        if (step.state->taken) {
            for (int k = 0; k < WIDTH; k++) value.at[k] = value.at[k] * step.keep - step.rate * direction.at[k];
            store(master + j, value);
        }
        store_weights<WIDTH>(rounded + j, value, step.key, first + j);
    }
}

// matrix (rows,columns), numbers (rows,columns) whose rows are `stride` apart: into the scratch, and back
__global__ void take_kernel(floatX *matrix, const float *numbers, size_t rows, size_t columns, size_t stride) {
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < rows * columns; i += (size_t)gridDim.x * BLOCK)
        matrix[i] = from_float<floatX>(numbers[i / columns * stride + i % columns]);
}

__global__ void put_kernel(float *numbers, const floatX *matrix, size_t rows, size_t columns, size_t stride,
                           float scale) {
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < rows * columns; i += (size_t)gridDim.x * BLOCK)
        numbers[i / columns * stride + i % columns] = scale * to_float(matrix[i]);
}

// ---- the step

static void orthogonalize(const MuonGPU *muon, const ParametersGPU *parameters, int tensor, cudaStream_t stream) {
    const Parameter *p = &parameters->list[tensor];
    size_t rows = p->shape[0], stride = p->shape[1], columns = stride / (size_t)p->muon_blocks;
    float scale = columns > rows ? sqrtf((float)columns / (float)rows) : 1;
    for (int b = 0; b < p->muon_blocks; b++) {
        float *numbers = parameters->gradients + parameters->offsets[tensor] + (size_t)b * columns;
        unsigned blocks = blocks_walking(rows * columns);
        take_kernel<<<blocks, BLOCK, 0, stream>>>(muon->matrix, numbers, rows, columns, stride);
        launch_check();
        newton_schulz_gpu(muon->matrix, (int)rows, (int)columns, &muon->newton_schulz, stream);
        put_kernel<<<blocks, BLOCK, 0, stream>>>(numbers, muon->matrix, rows, columns, stride, scale);
        launch_check();
    }
}

// Whether this rank updates some part of the tensor.
static bool is_needed(const ParametersGPU *parameters, int tensor) {
    size_t start = parameters->offsets[tensor], end = start + parameters->list[tensor].count;
    for (int k = 0; k < parameters->updated_count; k++) {
        Range range = parameters->updated[k].range;
        if (range.start < end && start < range.start + range.count) return true;
    }
    return false;
}

// visit(where the part begins in the flat arrays, and in master and m, how many), for Muon's share of what is updated.
template <typename Visit> static void for_updated(const ParametersGPU *parameters, Visit visit) {
    for (int k = 0; k < parameters->updated_count; k++) {
        const UpdatedPart *part = &parameters->updated[k];
        Range share = muon_gpu_share(parameters, part->range);
        if (share.count) visit(share.start, part->own + (share.start - part->range.start), share.count);
    }
}

void muon_gpu_step(const MuonGPU *muon, const ParametersGPU *parameters, ExchangeGPU *exchange, const MuonStepGPU *step,
                   cudaStream_t stream) {
    for_updated(parameters, [&](size_t start, size_t own, size_t count) {
        directions_kernel<<<blocks_walking(count), BLOCK, 0, stream>>>(
            parameters->m + own, parameters->gradients + start, step->state, step->momentum, count);
        launch_check();
    });
    for (int l = 0; parameters->shares && l < parameters->L; l++)
        exchange_gpu_gradients(exchange, parameters_gpu_stretch(parameters, l));
    for (int i = 0; i < parameters->count; i++)
        if (parameters->list[i].muon_blocks && is_needed(parameters, i)) orthogonalize(muon, parameters, i, stream);
    for_updated(parameters, [&](size_t start, size_t own, size_t count) {
        LAUNCH(apply_kernel, start | own | count, blocks_walking(count), BLOCK, stream, parameters->master + own,
               parameters->rounded + start, parameters->gradients + start, *step, start, count);
    });
}
