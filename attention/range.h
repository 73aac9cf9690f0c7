// The range of what comes in, the same for every attention on both devices: no finite input, however huge, gives
// anything that is not finite, and what went wrong before attention still shows after it.
#ifndef ATTENTION_RANGE_H
#define ATTENTION_RANGE_H

#include "core/base/real.h"

#define LARGEST_INPUT ((real)1e15) // numbers beyond count as that; no model comes near

// x, brought into -limit .. limit; NaN stays NaN.
static inline real limited(real x, real limit) {
    real below = x > limit ? limit : x;
    return below < -limit ? -limit : below;
}

// A number as it takes part: in range; infinity and NaN become one NaN, always the same bits.
static inline real limited_input(real x) {
    return x - x == 0 ? limited(x, LARGEST_INPUT) : (real)NAN;
}

#endif
