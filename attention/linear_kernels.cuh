// The kernels between the matrix products of attention/linear.cu. Unless stated otherwise, a warp works on one row.
#ifndef ATTENTION_LINEAR_KERNELS_CUH
#define ATTENTION_LINEAR_KERNELS_CUH

#include "linear_rows.cuh"

#include <math.h>

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

// (B * NH, T): the gradient of the log scale that all scores of a row share; 0 except for what delta brings in.
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

typedef struct {      // scores (chunks of all heads, chunk, chunk) of queries with the keys of their chunk
    float *outer;     // <outer, outer>
    float *inner;     // <inner, inner>, NULL if there is no inner factor
    float *d;         // the gradient of the scores; backward only
    float *log_scale; // (rows) of the keys of a log_scaled map, or NULL
    Scales scales;
} PairScores;

__device__ static inline float pair_factor(PairScores pairs, size_t at, size_t key_row, float largest) {
    if (pairs.log_scale) return scale_factor(pairs.log_scale[key_row] - largest);
    return pairs.inner ? pairs.inner[at] : 1.0f;
}

// outer becomes the scores, 0 for keys that the query does not see.
__global__ static void score_kernel(PairScores pairs, Segment segment) {
    size_t row = linear_row();
    if (row >= segment_rows(segment)) return;
    Place place = place_of(segment, row);
    int chunk = segment.chunk, own = (int)(row % chunk);
    float largest = pairs.log_scale ? scale_before(pairs.scales, segment, place.task, place.t + 1) : 0.0f;
    for (int j = threadIdx.x; j < chunk; j += LINEAR_LANES) {
        size_t at = row * chunk + j;
        float score = pairs.outer[at] * pair_factor(pairs, at, row - own + j, largest);
        pairs.outer[at] = j <= own ? score : 0.0f;
    }
}

// The same, and what reaches each factor: d becomes that of <outer, outer>, inner that of <inner, inner>.
__global__ static void score_gradient_kernel(PairScores pairs, Segment segment) {
    size_t row = linear_row();
    if (row >= segment_rows(segment)) return;
    Place place = place_of(segment, row);
    int chunk = segment.chunk, own = (int)(row % chunk);
    float largest = pairs.log_scale ? scale_before(pairs.scales, segment, place.task, place.t + 1) : 0.0f;
    for (int j = threadIdx.x; j < chunk; j += LINEAR_LANES) {
        size_t at = row * chunk + j;
        int visible = j <= own;
        float outer = pairs.outer[at], d = pairs.d[at], factor = pair_factor(pairs, at, row - own + j, largest);
        pairs.outer[at] = visible ? outer * factor : 0.0f;
        pairs.d[at] = visible ? d * factor : 0.0f;
        if (pairs.inner) pairs.inner[at] = visible ? d * outer : 0.0f;
    }
}

// ---- decoding: a cache of features

typedef struct {
    float *outer, *inner, *values; // (NH, rows, ...)
    float *log_scale;              // (NH, rows) of log_scaled maps, which have no inner features
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
// the features, and the keys.
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

// The pending keys, PENDING_KEYS of them, enter `states`, which are the cache's own; if it has none yet, they may hold
// anything. A block has 32 columns of one head; its warps share the features.
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

#endif
