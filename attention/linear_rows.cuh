// What the cores of maps (linear.cu, pairs.cu) share: which rows they have at hand, rows in and out, denominators, and
// the incoming gradient. A warp works on one row.
#ifndef ATTENTION_LINEAR_ROWS_CUH
#define ATTENTION_LINEAR_ROWS_CUH

#include "linear_denominators.cuh"
#include "linear_gpu.h"

// ---- which rows

typedef struct { // the rows of a segment, ordered by (head, sequence, chunk, row of the chunk)
    int heads, sequences, first_head, first_sequence;
    int chunk, chunks; // rows of a chunk, chunks of each sequence
    int start;         // the segment's first row in its sequence
    int position;      // of row 0 of a sequence: when decoding, what came before
    int T;             // rows of a sequence
    int NH, HS;
    int columns; // of an extended value (v, 1): HS + 1, padded with zeros to a multiple of 8
} Segment;

typedef struct { // one row of a segment
    int head, sequence;
    size_t task; // one head of one sequence: sequence * NH + head
    int t;       // in its sequence; at T or above there is no such row
} Place;

__device__ static inline Place place_of(Segment segment, size_t row) {
    size_t length = (size_t)segment.chunk * segment.chunks, local_task = row / length;
    Place place;
    place.head = segment.first_head + (int)(local_task / segment.sequences);
    place.sequence = segment.first_sequence + (int)(local_task % segment.sequences);
    place.task = (size_t)place.sequence * segment.NH + place.head;
    place.t = segment.start + (int)(row % length);
    return place;
}

__host__ __device__ static inline size_t segment_rows(Segment segment) {
    return (size_t)segment.heads * segment.sequences * segment.chunks * segment.chunk;
}

static inline LinearRowsGPU map_rows(const Segment *segment) {
    LinearRowsGPU rows = {segment->heads, segment->sequences, segment->chunk * segment->chunks, segment->first_head,
                          segment->position + segment->start};
    return rows;
}

// The heads and sequences from the given ones on, as many as go together in `largest`.
static inline Segment group_at(const Segment *largest, int first_head, int first_sequence, int B) {
    Segment segment = *largest;
    segment.first_head = first_head;
    segment.first_sequence = first_sequence;
    segment.heads = min_int(largest->heads, segment.NH - first_head);
    segment.sequences = min_int(largest->sequences, B - first_sequence);
    return segment;
}

static inline int value_columns(int HS) {
    return (HS + 1 + 7) / 8 * 8;
}

// Where the head of a row begins in a tensor (sequence, t, parts * C): q, k, v are parts 0, 1, 2 of qkv.
__device__ static inline size_t head_at(Segment segment, Place place, int part, int parts) {
    size_t C = (size_t)segment.NH * segment.HS, row = (size_t)place.sequence * segment.T + place.t;
    return (row * parts + part) * C + (size_t)place.head * segment.HS;
}

// ---- scratch

typedef struct { // hands out pieces of a block; without a block it only counts
    float *base;
    size_t used;
} Arena;

static inline float *take(Arena *arena, size_t count) {
    float *piece = arena->base ? arena->base + arena->used : NULL;
    arena->used += (count + 31) / 32 * 32;
    return piece;
}

static inline LinearFeaturesGPU take_features(Arena *arena, const LinearMapGPU *map, size_t rows, int HS, float *tape) {
    LinearFeaturesGPU features;
    features.x = take(arena, rows * HS);
    features.outer = take(arena, rows * map->outer);
    features.inner = take(arena, rows * map->inner);
    features.log_scale = take(arena, map->log_scaled ? rows : 0);
    features.tape = tape;
    return features;
}

// ---- rows in and out

// q and k (rows, HS), extended values (rows, columns). q may be NULL.
__global__ static void load_kernel(float *q, float *k, float *values, const floatX *qkv, Segment segment) {
    size_t row = linear_row();
    if (row >= segment_rows(segment)) return;
    Place place = place_of(segment, row);
    int HS = segment.HS, inside = place.t < segment.T;
    for (int c = threadIdx.x; c < HS; c += LINEAR_LANES) {
        if (q) q[row * HS + c] = inside ? as_input(qkv[head_at(segment, place, 0, 3) + c]) : 0.0f;
        k[row * HS + c] = inside ? as_input(qkv[head_at(segment, place, 1, 3) + c]) : 0.0f;
    }
    for (int c = threadIdx.x; c < segment.columns; c += LINEAR_LANES) {
        float value = c == HS ? 1.0f : 0.0f;
        if (c < HS && inside) value = as_input(qkv[head_at(segment, place, 2, 3) + c]);
        values[row * segment.columns + c] = inside ? value : 0.0f;
    }
}

__global__ static void store_gradient_kernel(floatX *dqkv, const float *dq, const float *dk, const float *d_values,
                                             Segment segment) {
    size_t row = linear_row();
    if (row >= segment_rows(segment)) return;
    Place place = place_of(segment, row);
    int HS = segment.HS;
    if (place.t >= segment.T) return;
    for (int c = threadIdx.x; c < HS; c += LINEAR_LANES) {
        dqkv[head_at(segment, place, 0, 3) + c] = from_float<floatX>(dq[row * HS + c]);
        dqkv[head_at(segment, place, 1, 3) + c] = from_float<floatX>(dk[row * HS + c]);
        dqkv[head_at(segment, place, 2, 3) + c] = from_float<floatX>(d_values[row * segment.columns + c]);
    }
}

// ---- denominators

static inline DenominatorRule denominator_rule(const LinearMapGPU *map, const AttentionConfig *config) {
    DenominatorRule rule = {config->delta, config->denominator == DENOMINATOR_CLAMP, map->is_signed};
    return rule;
}

// numerator (rows, columns), with the sum in column HS -> out; `denominators` (B * NH, T) may be NULL.
__global__ static void output_kernel(floatX *out, float *denominators, const float *numerator, DenominatorRule rule,
                                     Segment segment) {
    size_t row = linear_row();
    if (row >= segment_rows(segment)) return;
    Place place = place_of(segment, row);
    if (place.t >= segment.T) return;
    const float *sums = numerator + row * segment.columns;
    float g = stabilised(sums[segment.HS], rule);
    floatX *to = out + head_at(segment, place, 0, 1);
    for (int c = threadIdx.x; c < segment.HS; c += LINEAR_LANES) to[c] = from_float<floatX>(sums[c] / g);
    if (denominators && threadIdx.x == 0) denominators[place.task * segment.T + place.t] = g;
    int is_doubtful = rule.is_signed && (sums[segment.HS] < 0 || is_floored(g, rule));
    if (threadIdx.x == 0 && is_doubtful) atomicAdd(&floored_rows, 1ull);
}

// ---- the incoming gradient

typedef struct {
    const floatX *dout, *out;  // (B, T, C)
    const float *denominators; // (B * NH, T)
    DenominatorRule rule;
} OutputGradient;

// <dout, out> of one row, by a whole warp
__device__ static inline float output_dot(OutputGradient gradient, Segment segment, Place place) {
    size_t at = head_at(segment, place, 0, 1);
    float dot = 0;
    for (int c = threadIdx.x; c < segment.HS; c += LINEAR_LANES)
        dot += to_float(gradient.dout[at + c]) * to_float(gradient.out[at + c]);
    return linear_warp_sum(dot);
}

// gamma (rows, columns): the gradient of the numerator, and in column HS that of the sum.
__global__ static void load_output_gradient_kernel(float *gamma, OutputGradient gradient, Segment segment) {
    size_t row = linear_row();
    if (row >= segment_rows(segment)) return;
    Place place = place_of(segment, row);
    float *to = gamma + row * segment.columns, g = 1, beta = 0;
    int inside = place.t < segment.T;
    if (inside) {
        g = gradient.denominators[place.task * segment.T + place.t];
        beta = sum_gradient(output_dot(gradient, segment, place), g, gradient.rule);
    }
    for (int c = threadIdx.x; c < segment.columns; c += LINEAR_LANES) {
        float value = c == segment.HS ? beta : 0.0f;
        if (c < segment.HS && inside) value = to_float(gradient.dout[head_at(segment, place, 0, 1) + c]) / g;
        to[c] = value;
    }
}

#endif
