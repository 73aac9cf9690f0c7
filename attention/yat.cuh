// The yat kernel on the GPU, the twin of yat_scores and yat_slopes in yat.c.
#ifndef ATTENTION_YAT_CUH
#define ATTENTION_YAT_CUH

#include "quadratic.cuh"

template <int NORMALIZER, bool UNIT_LENGTH> struct YatScore {
    static constexpr int normalizer = NORMALIZER;
    static constexpr bool scaled = false, unit_length = UNIT_LENGTH, uses_distance = true;

    // dot * (dot / n) and not dot^2 / n: the square of a large dot product overflows where the quotient does not.
    static __device__ float score(float dot, float distance, float eps) {
        return dot * (dot * reciprocal_approximately(distance + eps));
    }

    // With r = dot / (distance + eps): d score / d dot = 2 r, d score / d distance = -r^2.
    static __device__ float slopes(float &slope, float dot, float distance, float eps) {
        float r = limit(dot * reciprocal_approximately(distance + eps), LARGEST_SLOPE), by_dot = 2 * slope * r;
        slope = limit(by_dot, LARGEST_SLOPE);
        return limit(by_dot * r, LARGEST_SLOPE);
    }
};

#endif
