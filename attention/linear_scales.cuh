// The small kernels between the walks of the linear core on the GPU: the scan over segments, and what maps with log
// scales and decays need beside it.
#ifndef ATTENTION_LINEAR_SCALES_CUH
#define ATTENTION_LINEAR_SCALES_CUH

#include "linear_chunk.cuh"

enum { SCALE_THREADS = 256 };

static inline unsigned scale_blocks(size_t threads) {
    return (unsigned)((threads + SCALE_THREADS - 1) / SCALE_THREADS);
}

// ---- log_scaled maps: the largest log scale of any key so far, faded like the key that has it

// The log scales of all keys (B * NH, T). A block for every segment of every head of every sequence, as in
// walk_kernel.
template <typename Map, int WIDTH>
__global__ static void __launch_bounds__(LinearWalk<Map, WIDTH>::Tile::THREADS, 1)
    measure_keys_kernel(float *log_scale, Map map, WalkPass pass) {
    extern __shared__ float4 walk_shared[];
    typedef Walker<Map, WIDTH, SUM_KEYS> Keys;
    Keys keys(map, pass, (char *)walk_shared);
    int from = (int)blockIdx.x * pass.segment_rows, to = min(from + pass.segment_rows, pass.T);
    for (int first = from; first < to; first += Keys::ROWS) {
        keys.first = first, keys.present = min(Keys::ROWS, to - first);
        keys.begin_x(THE_OTHERS, first);
        copies_commit();
        copies_wait<0>();
        __syncthreads();
        keys.finish_x(THE_OTHERS);
        __syncthreads();
        keys.make_features(THE_OTHERS);
        __syncthreads();
        for (int i = threadIdx.x; i < keys.present; i += Keys::Tile::THREADS)
            log_scale[(size_t)keys.task * pass.T + first + i] = keys.factors[THE_OTHERS].log_scale[i];
    }
}

// Log scales become the running maximum, after `before` (NH) unless that is NULL; it begins anew with every document. A
// block has one task; each thread a run of rows.
__global__ static void running_max_kernel(float *log_scale, const float *before, WalkPass pass) {
    __shared__ float largest[SCALE_THREADS];
    int thread = (int)threadIdx.x, head = (int)blockIdx.x % pass.NH, sequence = (int)blockIdx.x / pass.NH;
    int run = (pass.T + SCALE_THREADS - 1) / SCALE_THREADS, from = min(thread * run, pass.T),
        to = min(from + run, pass.T);
    float *at = log_scale + (size_t)blockIdx.x * pass.T, decay = log_decay_of(pass.decay, head), maximum = -INFINITY;
    auto faded = [&](float x, int first, int end) { // by the rows [first, end)
        bool is_gone = first < end && begins_after(pass, sequence, first, end - 1);
        return is_gone ? -INFINITY : x + decay * (float)(end - first);
    };
    for (int i = from; i < to; i++) maximum = fmaxf(faded(maximum, i, i + 1), at[i]);
    largest[thread] = maximum;
    __syncthreads();
    maximum = before ? before[head] : -INFINITY;
    for (int i = 0; i < thread; i++)
        maximum = fmaxf(faded(maximum, min(i * run, pass.T), min((i + 1) * run, pass.T)), largest[i]);
    for (int i = from; i < to; i++) at[i] = maximum = fmaxf(faded(maximum, i, i + 1), at[i]);
}

// (B * NH, T): the gradient of the log scale that all scores of a row share; 0 except for what delta brings in. A warp
// per row.
__global__ static void scale_shares_kernel(float *shares, WalkPass pass, size_t rows) {
    size_t row = ((size_t)blockIdx.x * SCALE_THREADS + threadIdx.x) / 32, task = row / pass.T;
    if (row >= rows) return;
    size_t C = (size_t)pass.NH * pass.HS;
    size_t at = (task / pass.NH * pass.T + row % pass.T) * C + task % pass.NH * pass.HS;
    float dot = 0, g = pass.denominators[row], added = pass.rule.clamp ? 0.0f : pass.rule.delta;
    for (int c = tile_lane(); c < pass.HS; c += 32) dot += to_float(pass.dout[at + c]) * to_float(pass.out[at + c]);
    for (int offset = 16; offset; offset /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, offset);
    if (tile_lane() == 0) shares[row] = dot + sum_gradient(dot, g, pass.rule) * (g - added);
}

// Whether a row's own key has the largest log scale, now that all before it have faded.
__device__ static inline bool raises_scale(const WalkPass &pass, size_t task, int t, float decay) {
    const float *running_max = pass.running_max + task * pass.T;
    if (t == 0 || begins_after(pass, (int)(task / pass.NH), t, t)) return true;
    return running_max[t] > running_max[t - 1] + decay;
}

// The gradients that reach the log scales. A query's own scale takes its row's share; the largest scale of the keys
// moves with the key that set it, which takes the shares of all rows until another key sets it; and these have it fade
// once more each: (B * NH, T) of that. A warp per row.
__global__ static void scale_gradient_kernel(float *dq_scale, float *dk_scale, float *faded, const float *shares,
                                             WalkPass pass, size_t rows) {
    size_t row = ((size_t)blockIdx.x * SCALE_THREADS + threadIdx.x) / 32, task = row / pass.T;
    if (row >= rows) return;
    int t = (int)(row % pass.T), lane = tile_lane();
    const float *share = shares + task * pass.T;
    float decay = log_decay_of(pass.decay, (int)(task % pass.NH)), taken = 0, times_faded = 0;
    if (raises_scale(pass, task, t, decay)) {
        for (int from = t; from < pass.T; from += 32) { // 32 rows at a time, until a key raises the maximum again
            int i = from + lane;
            bool ends = i >= pass.T || (i > t && raises_scale(pass, task, i, decay));
            unsigned ended = __ballot_sync(0xffffffffu, ends);
            if (!(ended & ((2u << lane) - 1))) taken += share[i], times_faded += (float)(i - t) * share[i];
            if (ended) break;
        }
        for (int offset = 16; offset; offset /= 2) {
            taken += __shfl_xor_sync(0xffffffffu, taken, offset);
            times_faded += __shfl_xor_sync(0xffffffffu, times_faded, offset);
        }
    }
    if (lane) return;
    dq_scale[row] = -share[t], dk_scale[row] = -taken;
    if (faded) faded[row] = -times_faded;
}

// The largest log scale of every head after T positions.
__global__ static void keep_scale_kernel(float *kept, WalkPass pass) {
    int head = blockIdx.x * blockDim.x + threadIdx.x;
    if (head < pass.NH) kept[head] = pass.running_max[(size_t)head * pass.T + pass.T - 1];
}

// ---- learned decays

// dparameters (NH) += what the chunks of all sequences give, and `faded` (B * NH, T), unless it is NULL. A block has
// one head, and each of its threads one sequence after the other; the rows of the chunks between a query's and a key's
// are counted chunk by chunk: what passes over one comes of later queries, but not of keys that are not before it.
__global__ static void decay_gradient_kernel(float *dparameters, const DecayShare *shares, const float *faded, int B,
                                             int rows, WalkPass pass) {
    __shared__ double sums[SCALE_THREADS];
    int head = (int)blockIdx.x, chunks = (pass.T + rows - 1) / rows;
    double sum = 0;
    for (int sequence = (int)threadIdx.x; sequence < B; sequence += SCALE_THREADS) {
        size_t task = (size_t)sequence * pass.NH + head;
        double passing = 0;
        for (int chunk = chunks - 1; chunk >= 0; chunk--) {
            DecayShare share = shares[task * chunks + chunk];
            int from = chunk * rows, last = min(from + rows, pass.T) - 1;
            double across = begins_after(pass, sequence, from, last) ? 0 : passing - share.to_keys;
            sum += share.near + share.from_keys + rows * across;
            passing = across + share.to_queries;
        }
        for (int t = 0; faded && t < pass.T; t++) sum += faded[task * pass.T + t];
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x) return;
    for (int i = 1; i < SCALE_THREADS; i++) sum += sums[i];
    dparameters[head] += (float)(sum / (1 + exp((double)pass.decay.parameters[head])));
}

// ---- trained projections

// sums (NH, size) of what the blocks of all sequences and segments have gathered, (B, NH, segments, size). A thread per
// number.
__global__ static void sum_projections_kernel(float *sums, const float *d_projections, size_t size, int B,
                                              WalkPass pass) {
    size_t i = (size_t)blockIdx.x * SCALE_THREADS + threadIdx.x, head = i / size;
    if (head >= (size_t)pass.NH) return;
    float sum = 0;
    for (int sequence = 0; sequence < B; sequence++)
        for (int segment = 0; segment < pass.segments; segment++)
            sum += d_projections[(((size_t)sequence * pass.NH + head) * pass.segments + segment) * size + i % size];
    sums[i] = sum;
}

// ---- the scan over segments

// What is left of a state after the rows [from, to) of a task.
__device__ static inline float segment_factor(const WalkPass &pass, int task, int from, int to) {
    int head = task % pass.NH;
    if (begins_after(pass, task / pass.NH, from, to - 1)) return 0;
    float difference = log_decay_of(pass.decay, head) * (float)(to - from);
    if (pass.running_max) {
        const float *maximum = pass.running_max + (size_t)task * pass.T;
        float before = from ? maximum[from - 1] : pass.max_before ? pass.max_before[head] : -INFINITY;
        difference += before - maximum[to - 1];
    }
    return scale_factor(difference);
}

// states (tasks, segments, size): every segment's own sum becomes the sum over the segments before it (`reverse`:
// after it), beginning with `initial` (tasks, size); the sum over all goes to `final`. Either may be NULL. A thread per
// number of a state.
__global__ static void scan_kernel(float *states, const float *initial, float *final, size_t size, int tasks,
                                   int reverse, WalkPass pass) {
    size_t i = (size_t)blockIdx.x * SCALE_THREADS + threadIdx.x, task = i / size;
    if (task >= (size_t)tasks) return;
    bool fades = pass.running_max || pass.decay.kind != DECAY_NONE || pass.positions;
    float *at = states + task * pass.segments * size + i % size, sum = initial ? initial[i] : 0.0f;
    for (int step = 0; step < pass.segments; step++) {
        int segment = reverse ? pass.segments - 1 - step : step, from = segment * pass.segment_rows;
        float own = at[(size_t)segment * size];
        at[(size_t)segment * size] = sum;
        if (fades) sum *= segment_factor(pass, (int)task, from, min(from + pass.segment_rows, pass.T));
        sum += own;
    }
    if (final) final[i] = sum;
}

#endif
