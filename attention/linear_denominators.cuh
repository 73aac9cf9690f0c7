// What both cores of maps on the GPU (linear_walk.cuh, pairs.cu) do with numbers that come in and with denominators.
#ifndef ATTENTION_LINEAR_DENOMINATORS_CUH
#define ATTENTION_LINEAR_DENOMINATORS_CUH

#include "core/gpu/cuda_common.h"

extern "C" {
#include "range.h"
}

// As range.h's `limited_input`.
template <typename Number> __device__ static inline float as_input(Number number) {
    const float most = LARGEST_INPUT, x = to_float(number), below = x > most ? most : x;
    return (below < -most ? -most : below) + (x - x);
}

// Whether all numbers of 16 bytes are as as_input would have them: no number's bits, without its sign, are above the
// limit's. Those of two bf16 numbers are compared at once.
template <typename Number> __device__ static inline bool are_inputs(uint4 numbers) {
    constexpr bool is_short = sizeof(Number) == 2;
    const uint32_t signs = is_short ? 0x80008000u : 0x80000000u;
    uint32_t most = __float_as_uint((float)LARGEST_INPUT), room = 0x7fffffffu - most;
    if (is_short) room = (room >> 16) * 0x00010001u;
    uint32_t x[4] = {numbers.x, numbers.y, numbers.z, numbers.w}, beyond = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) beyond |= (x[i] & ~signs) + room;
    return !(beyond & signs);
}

typedef struct {
    float delta;
    int clamp, is_signed;
} DenominatorRule;

// What the numerator is divided by: the sum plus delta; a negative sum is kept away from zero instead. NaN stays NaN.
__device__ static inline float stabilised(float z, DenominatorRule rule) {
    if (rule.clamp) return z < rule.delta ? rule.delta : z;
    if (rule.is_signed && z < 0) return z > -rule.delta ? -rule.delta : z;
    return z + rule.delta;
}

// Whether the floor has replaced a row's sum.
__device__ static inline int is_floored(float g, DenominatorRule rule) {
    return rule.clamp ? g <= rule.delta : rule.is_signed && g == -rule.delta;
}

// Rows of signed maps whose sum was negative or floored, since the program started; a whole number: the order in which
// threads add to it does not matter.
__device__ static unsigned long long floored_rows;

// The gradient of a row's sum.
__device__ static inline float sum_gradient(float dot, float g, DenominatorRule rule) {
    return is_floored(g, rule) ? 0.0f : -dot / g;
}

#endif
