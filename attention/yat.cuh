// The yat kernel on the GPU, the twin of yat_scores and yat_slopes in yat.c.
#ifndef ATTENTION_YAT_CUH
#define ATTENTION_YAT_CUH

#include "quadratic.cuh"

template <int NORMALIZER, bool UNIT_LENGTH> struct YatScore {
    static constexpr int normalizer = NORMALIZER;
    static constexpr bool scaled = false, unit_length = UNIT_LENGTH, uses_distance = true, has_quotient = true;

    // With r = dot / spread: d score / d dot = 2 r, d score / d distance = -r^2.
    static __device__ float quotient(float dot, float spread) { return dot * reciprocal_approximately(spread); }

    // dot * (dot / n) and not dot^2 / n: the square of a large dot product overflows where the quotient does not.
    static __device__ float score(float dot, float spread) { return dot * quotient(dot, spread); }

    static __device__ float slopes(float &slope, float dot, float spread) {
        float r = limit(quotient(dot, spread), LARGEST_SLOPE), by_dot = 2 * slope * r;
        slope = limit(by_dot, LARGEST_SLOPE);
        return limit(by_dot * r, LARGEST_SLOPE);
    }
};

#endif
