// The kernels between the matrix products of attention/linear.cu. Except where it is said, a warp works on one row.
#ifndef ATTENTION_LINEAR_KERNELS_CUH
#define ATTENTION_LINEAR_KERNELS_CUH

#include "linear_gpu.h"

#include <math.h>

// ---- which rows

typedef struct { // the rows of a segment, ordered by (head, sequence, chunk, row of the chunk)
    int heads, sequences, first_head, first_sequence;
    int chunk, chunks; // rows of a chunk, chunks of each sequence
    int start;         // the segment's first row in its sequence
    int position;      // of row 0 of a sequence: when decoding, what came before
    int T;             // rows of a sequence
    int NH, HS;
    int columns; // of an extended value (v, 1): HS + 1 filled up with zeros to a multiple of 8
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

// Where the head of a row begins in a tensor (sequence, t, parts * C): q, k, v are parts 0, 1, 2 of qkv.
__device__ static inline size_t head_at(Segment segment, Place place, int part, int parts) {
    size_t C = (size_t)segment.NH * segment.HS, row = (size_t)place.sequence * segment.T + place.t;
    return (row * parts + part) * C + (size_t)place.head * segment.HS;
}

// ---- scales of log_scaled maps

typedef struct {
    const float *running_max; // (B * NH, T) the largest log scale among the keys up to each row; NULL: no such map
    const float *before;      // (NH) the largest before row 0, NULL if row 0 is the first
} Scales;

// The largest log scale among the keys before row `row` of a task.
__device__ static inline float scale_before(Scales scales, Segment segment, size_t task, int row) {
    row = min(row, segment.T);
    if (row > 0) return scales.running_max[task * segment.T + row - 1];
    return scales.before ? scales.before[task % segment.NH] : -INFINITY;
}

// exp(difference) for differences that are above 0 only where the result does not matter. NaN stays NaN.
__device__ static inline float scale_factor(float difference) {
    return expf(difference > 0 ? 0.0f : difference);
}

// ---- rows in and out

// As range.h's `limited_input`.
__device__ static inline float as_input(floatX number) {
    const float most = LARGEST_INPUT, x = to_float(number), below = x > most ? most : x;
    return (below < -most ? -most : below) + (x - x);
}

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

// Whether the floor has taken the place of a row's sum.
__device__ static inline int is_floored(float g, DenominatorRule rule) {
    return rule.clamp ? g <= rule.delta : rule.is_signed && g == -rule.delta;
}

// Rows of signed maps whose sum was negative or floored, since the program started; a whole number: the order in which
// threads add to it does not matter.
__device__ static unsigned long long floored_rows;

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

// The gradient of a row's sum.
__device__ static inline float sum_gradient(float dot, float g, DenominatorRule rule) {
    return is_floored(g, rule) ? 0.0f : -dot / g;
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

// ---- log_scaled maps

// running_max (B * NH, T) from the keys' log scales (rows). A block works on one task: each thread on a run of rows.
enum { RUNNING_MAX_THREADS = 256 };
__global__ static void running_max_kernel(float *running_max, const float *log_scale, const float *before,
                                          Segment segment) {
    __shared__ float largest[RUNNING_MAX_THREADS];
    int length = segment.chunk * segment.chunks, run = (length + RUNNING_MAX_THREADS - 1) / RUNNING_MAX_THREADS;
    size_t first = (size_t)blockIdx.x * length;
    Place place = place_of(segment, first);
    int thread = threadIdx.x, from = thread * run, to = min(min(from + run, length), segment.T - segment.start);
    float maximum = -INFINITY;
    for (int i = from; i < to; i++) maximum = fmaxf(maximum, log_scale[first + i]);
    largest[thread] = maximum;
    __syncthreads();
    Scales scales = {running_max, before};
    maximum = scale_before(scales, segment, place.task, segment.start);
    for (int i = 0; i < thread; i++) maximum = fmaxf(maximum, largest[i]);
    for (int i = from; i < to; i++) {
        maximum = fmaxf(maximum, log_scale[first + i]);
        running_max[place.task * segment.T + segment.start + i] = maximum;
    }
}

// The factors between rows and states, never above 1: a key's to the largest scale up to the end of its chunk, a
// query's from the largest before its chunk. One thread per row. q_factor may be NULL.
__global__ static void relative_scale_kernel(float *q_factor, float *k_factor, const float *log_scale, Scales scales,
                                             Segment segment) {
    size_t row = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= segment_rows(segment)) return;
    Place place = place_of(segment, row);
    int chunk_start = place.t - (place.t - segment.start) % segment.chunk;
    float before = scale_before(scales, segment, place.task, chunk_start);
    float after = scale_before(scales, segment, place.task, chunk_start + segment.chunk);
    float here = scale_before(scales, segment, place.task, place.t + 1);
    k_factor[row] = scale_factor(log_scale[row] - after);
    if (q_factor) q_factor[row] = scale_factor(before - here);
}

// (B * NH, T): the gradient of the common logarithm of all scores of a row; 0 but for delta.
__global__ static void scale_shares_kernel(float *shares, OutputGradient gradient, Segment segment) {
    size_t row = linear_row();
    if (row >= segment_rows(segment)) return;
    Place place = place_of(segment, row);
    if (place.t >= segment.T) return;
    size_t at = place.task * segment.T + place.t;
    float g = gradient.denominators[at], dot = output_dot(gradient, segment, place);
    float added = gradient.rule.clamp ? 0.0f : gradient.rule.delta;
    if (threadIdx.x == 0) shares[at] = dot + sum_gradient(dot, g, gradient.rule) * (g - added);
}

// The gradients that reach the log scales. A query's own scale takes its row's share; the largest scale of the keys
// moves with the key that set it, which takes the shares of all rows until another key sets it.
__global__ static void scale_gradient_kernel(float *dq_scale, float *dk_scale, const float *shares,
                                             const float *running_max, Segment segment) {
    size_t row = linear_row();
    if (row >= segment_rows(segment)) return;
    Place place = place_of(segment, row);
    const float *maximum = running_max + place.task * segment.T;
    int t = place.t, inside = t < segment.T;
    float taken = 0, share = inside ? shares[place.task * segment.T + t] : 0.0f;
    if (inside && (t == 0 || maximum[t] > maximum[t - 1])) {
        for (int i = t + threadIdx.x; i < segment.T && maximum[i] == maximum[t]; i += LINEAR_LANES)
            taken += shares[place.task * segment.T + i];
        taken = linear_warp_sum(taken);
    }
    if (threadIdx.x == 0) {
        dq_scale[row] = -share;
        dk_scale[row] = -taken;
    }
}

// ---- phi = outer (x) inner

__global__ static void expand_kernel(float *phi, const float *outer, const float *inner, int outers, int inners,
                                     size_t rows) {
    size_t row = linear_row();
    if (row >= rows) return;
    int width = outers * inners;
    for (int f = threadIdx.x; f < width; f += LINEAR_LANES)
        phi[row * width + f] = outer[row * outers + f / inners] * inner[row * inners + f % inners];
}

// Gradients of both factors from that of the product; d_inner may be NULL.
__global__ static void contract_kernel(float *d_outer, float *d_inner, const float *d_phi, const float *outer,
                                       const float *inner, int outers, int inners, size_t rows) {
    size_t row = linear_row();
    if (row >= rows) return;
    d_phi += row * outers * inners;
    outer += row * outers;
    inner += row * inners;
    for (int e = threadIdx.x; e < outers; e += LINEAR_LANES) {
        float sum = 0;
        for (int p = 0; p < inners; p++) sum += d_phi[(size_t)e * inners + p] * inner[p];
        d_outer[row * outers + e] = sum;
    }
    if (!d_inner) return;
    for (int p = threadIdx.x; p < inners; p += LINEAR_LANES) {
        float sum = 0;
        for (int e = 0; e < outers; e++) sum += d_phi[(size_t)e * inners + p] * outer[e];
        d_inner[row * inners + p] = sum;
    }
}

// ---- states

// states (heads * sequences, chunks, size): every chunk's own sum becomes the sum over the chunks before it (with
// `reverse`: after it), beginning with `carry_in`; the sum over all goes to `carry_out`. Either may be NULL. One thread
// per number of a state.
__global__ static void scan_kernel(float *states, const float *carry_in, float *carry_out, size_t size, int reverse,
                                   Scales scales, Segment segment) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, local_task = i / size;
    if (local_task >= (size_t)segment.heads * segment.sequences) return;
    int chunks = segment.chunks;
    float *at = states + local_task * chunks * size + i % size, sum = carry_in ? carry_in[i] : 0.0f;
    size_t task = place_of(segment, local_task * chunks * segment.chunk).task;
    for (int step = 0; step < chunks; step++) {
        int c = reverse ? chunks - 1 - step : step, row = segment.start + c * segment.chunk;
        float own = at[(size_t)c * size];
        at[(size_t)c * size] = sum;
        if (scales.running_max)
            sum *= scale_factor(scale_before(scales, segment, task, row) -
                                scale_before(scales, segment, task, row + segment.chunk));
        sum += own;
    }
    if (carry_out) carry_out[i] = sum;
}

// ---- pairs of rows

typedef struct {      // scores (chunks of all heads, chunk, chunk) of queries with the keys `distance` chunks before
    float *outer;     // <outer, outer>
    float *inner;     // <inner, inner>, NULL if there is no inner factor
    float *d;         // the gradient of the scores; backward only
    int distance;     // 0, or anything for squared maps
    int squared;      // the inner factor is squared
    float *log_scale; // (rows) of the keys of a log_scaled map, or NULL
    Scales scales;
} PairScores;

__device__ static inline float pair_factor(PairScores pairs, size_t at, size_t key_row, float largest) {
    if (pairs.log_scale) return scale_factor(pairs.log_scale[key_row] - largest);
    if (!pairs.inner) return 1;
    return pairs.squared ? pairs.inner[at] * pairs.inner[at] : pairs.inner[at];
}

// Whether the query of a row may see key j of the chunk at `distance`. Pairs of two different tasks are computed too,
// as the price of one batch for all chunks, and are dropped here.
__device__ static inline int is_visible(PairScores pairs, Segment segment, size_t row, int j) {
    int t = (int)(row % ((size_t)segment.chunk * segment.chunks)), i = t % segment.chunk;
    return t / segment.chunk >= pairs.distance && (pairs.distance || j <= i);
}

// outer becomes the scores, 0 for keys that the query does not see.
__global__ static void score_kernel(PairScores pairs, Segment segment) {
    int chunk = segment.chunk;
    size_t row = linear_row() + (size_t)pairs.distance * chunk;
    if (row >= segment_rows(segment)) return;
    Place place = place_of(segment, row);
    size_t first_key = (row / chunk - pairs.distance) * chunk;
    float largest = pairs.log_scale ? scale_before(pairs.scales, segment, place.task, place.t + 1) : 0.0f;
    for (int j = threadIdx.x; j < chunk; j += LINEAR_LANES) {
        size_t at = row * chunk + j;
        float score = pairs.outer[at] * pair_factor(pairs, at, first_key + j, largest);
        pairs.outer[at] = is_visible(pairs, segment, row, j) ? score : 0.0f;
    }
}

// The same, and what reaches each factor: d becomes that of <outer, outer>, inner that of <inner, inner>.
__global__ static void score_gradient_kernel(PairScores pairs, Segment segment) {
    int chunk = segment.chunk;
    size_t row = linear_row() + (size_t)pairs.distance * chunk;
    if (row >= segment_rows(segment)) return;
    Place place = place_of(segment, row);
    size_t first_key = (row / chunk - pairs.distance) * chunk;
    float largest = pairs.log_scale ? scale_before(pairs.scales, segment, place.task, place.t + 1) : 0.0f;
    for (int j = threadIdx.x; j < chunk; j += LINEAR_LANES) {
        size_t at = row * chunk + j;
        int visible = is_visible(pairs, segment, row, j);
        float outer = pairs.outer[at], d = pairs.d[at], factor = pair_factor(pairs, at, first_key + j, largest);
        pairs.outer[at] = visible ? outer * factor : 0.0f;
        pairs.d[at] = visible ? d * factor : 0.0f;
        if (!pairs.inner) continue;
        float slope = pairs.squared ? 2 * pairs.inner[at] : 1.0f;
        pairs.inner[at] = visible ? d * outer * slope : 0.0f;
    }
}

// ---- decoding: a cache of features

typedef struct {
    float *outer, *inner, *values; // (NH, rows, ...)
    float *log_scale;              // (NH, rows) log_scaled maps, which have no inner features then
    int outers, inners, rows;
} FeatureCache;

// The keys of rows 0 .. T-1 of the segment go to the cache's rows `first` .. of their head.
__global__ static void cache_keys_kernel(FeatureCache cache, LinearFeaturesGPU k, const float *values, int first,
                                         Segment segment) {
    size_t row = linear_row();
    if (row >= segment_rows(segment)) return;
    Place place = place_of(segment, row);
    if (place.t >= segment.T) return;
    size_t to = (size_t)place.head * cache.rows + first + place.t;
    for (int e = threadIdx.x; e < cache.outers; e += LINEAR_LANES)
        cache.outer[to * cache.outers + e] = k.outer[row * cache.outers + e];
    for (int p = threadIdx.x; p < cache.inners; p += LINEAR_LANES)
        cache.inner[to * cache.inners + p] = k.inner[row * cache.inners + p];
    for (int c = threadIdx.x; c < segment.columns; c += LINEAR_LANES)
        cache.values[to * segment.columns + c] = values[row * segment.columns + c];
    if (cache.log_scale && threadIdx.x == 0) cache.log_scale[to] = k.log_scale[row];
}

// ---- decoding with states: keys wait in a cache of PENDING_KEYS rows until they fill it, then enter the state
// together

enum { PENDING_KEYS = TILE };

typedef struct {
    float *states;        // (NH, F, columns) over the keys that have entered; NULL if none has
    const float *scales;  // (NH) their log scales, for log_scaled maps
    FeatureCache pending; // the keys after them
} DecodeCache;

// The largest log scale of a head's state and its first `keys` pending keys; 0 for maps without.
__device__ static inline float largest_scale(DecodeCache cache, int head, int keys) {
    if (!cache.pending.log_scale) return 0;
    float largest = cache.states ? cache.scales[head] : -INFINITY;
    for (int j = 0; j < keys; j++) largest = fmaxf(largest, cache.pending.log_scale[(size_t)head * PENDING_KEYS + j]);
    return largest;
}

// The factor from the log scale of a head's state to `largest`; 1 for maps without.
__device__ static inline float state_factor(DecodeCache cache, int head, float largest) {
    return cache.pending.log_scale ? scale_factor(cache.scales[head] - largest) : 1.0f;
}

__device__ static inline float key_factor(FeatureCache pending, size_t key, float largest) {
    return pending.log_scale ? scale_factor(pending.log_scale[key] - largest) : 1.0f;
}

// phi of row `row` of features laid out like the cache's
__device__ static inline float phi_at(const float *outer, const float *inner, size_t row, int f, FeatureCache cache) {
    int inners = max(cache.inners, 1);
    float factor = outer[row * cache.outers + f / inners];
    return cache.inners ? factor * inner[row * inners + f % inners] : factor;
}

// The score of a query with a key, by a whole warp.
__device__ static inline float pending_score(LinearFeaturesGPU q, size_t row, FeatureCache pending, size_t key) {
    float outer = 0, inner = 0;
    for (int e = threadIdx.x; e < pending.outers; e += LINEAR_LANES)
        outer += q.outer[row * pending.outers + e] * pending.outer[key * pending.outers + e];
    for (int p = threadIdx.x; p < pending.inners; p += LINEAR_LANES)
        inner += q.inner[row * pending.inners + p] * pending.inner[key * pending.inners + p];
    outer = linear_warp_sum(outer);
    return pending.inners ? outer * linear_warp_sum(inner) : outer;
}

// numerator (rows, columns) of queries whose keys are in the cache already, the first of them in its row `first`: what
// they find in the state and in the pending keys up to their own. A block has 32 columns of one row; its warps share
// out the features, and the keys.
__global__ static void decode_kernel(float *numerator, DecodeCache cache, LinearFeaturesGPU q, int first,
                                     Segment segment) {
    __shared__ float scores[PENDING_KEYS], sums[LINEAR_WARPS][LINEAR_LANES];
    FeatureCache pending = cache.pending;
    size_t row = blockIdx.x;
    Place place = place_of(segment, row);
    int c = blockIdx.y * LINEAR_LANES + threadIdx.x, columns = segment.columns, inside = c < columns;
    int keys = place.t < segment.T ? first + place.t + 1 : 0, width = pending.outers * max(pending.inners, 1);
    size_t first_key = (size_t)place.head * PENDING_KEYS;
    float largest = largest_scale(cache, place.head, keys), sum = 0;
    for (int j = threadIdx.y; j < keys; j += LINEAR_WARPS) {
        float score = pending_score(q, row, pending, first_key + j) * key_factor(pending, first_key + j, largest);
        if (threadIdx.x == 0) scores[j] = score;
    }
    __syncthreads();
    if (cache.states && inside) {
        const float *state = cache.states + (size_t)place.head * width * columns + c;
        for (int f = threadIdx.y; f < width; f += LINEAR_WARPS)
            sum += phi_at(q.outer, q.inner, row, f, pending) * state[(size_t)f * columns];
        sum *= state_factor(cache, place.head, largest);
    }
    for (int j = threadIdx.y; j < keys && inside; j += LINEAR_WARPS)
        sum += scores[j] * pending.values[(first_key + j) * columns + c];
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && inside) {
        for (int warp = 1; warp < LINEAR_WARPS; warp++) sum += sums[warp][threadIdx.x];
        numerator[row * columns + c] = sum;
    }
}

// The pending keys, PENDING_KEYS of them, enter `states`, the cache's own; they may hold anything where the cache has
// none. A block has 32 columns of one head; its warps share out the features.
__global__ static void fold_kernel(float *states, DecodeCache cache, int columns) {
    __shared__ float values[PENDING_KEYS][LINEAR_LANES];
    FeatureCache pending = cache.pending;
    int head = blockIdx.x, c = blockIdx.y * LINEAR_LANES + threadIdx.x, inside = c < columns;
    int width = pending.outers * max(pending.inners, 1);
    size_t first_key = (size_t)head * PENDING_KEYS;
    float largest = largest_scale(cache, head, PENDING_KEYS);
    for (int j = threadIdx.y; j < PENDING_KEYS; j += LINEAR_WARPS) {
        float value = inside ? pending.values[(first_key + j) * columns + c] : 0.0f;
        values[j][threadIdx.x] = value * key_factor(pending, first_key + j, largest);
    }
    __syncthreads();
    for (int f = threadIdx.y; f < width && inside; f += LINEAR_WARPS) {
        float *state = states + ((size_t)head * width + f) * columns + c, sum = 0;
        for (int j = 0; j < PENDING_KEYS; j++)
            sum += phi_at(pending.outer, pending.inner, first_key + j, f, pending) * values[j][threadIdx.x];
        *state = cache.states ? *state * state_factor(cache, head, largest) + sum : sum;
    }
}

// The log scales of states that their pending keys have entered. A thread per head.
__global__ static void fold_scale_kernel(float *scales, DecodeCache cache, int NH) {
    int head = blockIdx.x * blockDim.x + threadIdx.x;
    if (head < NH) scales[head] = largest_scale(cache, head, PENDING_KEYS);
}

// The largest log scale of every head after n positions.
__global__ static void keep_scale_kernel(float *kept, const float *running_max, int NH, int n) {
    int head = blockIdx.x * blockDim.x + threadIdx.x;
    if (head < NH) kept[head] = running_max[(size_t)head * n + n - 1];
}

// ---- decoding of squared maps: all keys stay in the cache

__device__ static inline float dot_product(const float *a, const float *b, int n) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

// numerator (rows, columns) of each query over the cached keys up to its own. A block per row, with a thread for each
// column at least: in turns its threads have a key each and a column each.
__global__ static void attend_cached_kernel(float *numerator, FeatureCache cache, LinearFeaturesGPU q, int pos,
                                            Segment segment) {
    extern __shared__ float scores[]; // (threads)
    int thread = threadIdx.x, threads = blockDim.x, columns = segment.columns;
    size_t row = blockIdx.x;
    Place place = place_of(segment, row);
    int keys = place.t < segment.T ? pos + place.t + 1 : 0;
    const float *q_outer = q.outer + row * cache.outers, *q_inner = q.inner + row * cache.inners;
    float sum = 0;
    for (int from = 0; from < keys; from += threads) {
        int count = min(threads, keys - from);
        size_t key = (size_t)place.head * cache.rows + from, own = key + thread;
        if (thread < count) {
            float inner = dot_product(q_inner, cache.inner + own * cache.inners, cache.inners);
            scores[thread] = inner * inner * dot_product(q_outer, cache.outer + own * cache.outers, cache.outers);
        }
        __syncthreads();
        for (int j = 0; j < count && thread < columns; j++)
            sum += scores[j] * cache.values[(key + j) * columns + thread];
        __syncthreads();
    }
    if (thread < columns) numerator[row * columns + thread] = sum;
}

#endif
