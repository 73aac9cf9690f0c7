// AdamW's kernel, and what the device knows of the step that it belongs to.
#ifndef CORE_ADAMW_GPU_H
#define CORE_ADAMW_GPU_H

#include "kernel_gpu.h"
#include "rounding_gpu.h"

typedef struct {          // what a step comes to, worked out on the device
    double loss;          // the sum over the micro-batches so far
    double norm;          // of the gradients
    float gradient_scale; // the clip factor
    int taken;            // loss and norm are finite and not above their limits
} StepState;

typedef struct {
    float beta1, beta2, eps;
    float step_size, v_scale; // the learning rate and AdamW's corrections for the moments' start at 0
    float keep;               // 1 - rate * weight decay
} AdamW;

// AdamW in one pass over weight, gradient and moments, the clip factor folded in, and the layers' weights with it. When
// the step is not taken, weights and moments stay. `first`: where the `count` numbers begin in the flat arrays.
template <int WIDTH>
__global__ void adamw_kernel(float *master, floatX *rounded, float *m, float *v, const float *gradients,
                             const StepState *state, AdamW adamw, uint64_t key, size_t first, size_t count) {
    size_t stride = (size_t)gridDim.x * BLOCK * WIDTH;
    for (size_t j = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * WIDTH; j < count; j += stride) {
        Floats<WIDTH> value = load<WIDTH>(master + j);
        if (state->taken) {
            Floats<WIDTH> gradient = load<WIDTH>(gradients + j), m_new = load<WIDTH>(m + j), v_new = load<WIDTH>(v + j);
            for (int k = 0; k < WIDTH; k++) {
                float g = gradient.at[k] * state->gradient_scale;
                m_new.at[k] = adamw.beta1 * m_new.at[k] + (1 - adamw.beta1) * g;
                v_new.at[k] = adamw.beta2 * v_new.at[k] + (1 - adamw.beta2) * g * g;
                value.at[k] = value.at[k] * adamw.keep -
                              adamw.step_size * m_new.at[k] / (sqrtf(v_new.at[k] * adamw.v_scale) + adamw.eps);
            }
            store(m + j, m_new), store(v + j, v_new), store(master + j, value);
        }
        store_weights<WIDTH>(rounded + j, value, key, first + j);
    }
}

#endif
