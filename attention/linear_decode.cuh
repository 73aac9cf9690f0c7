// Decoding on the GPU, row by row: a sequence's cache has the state of every head over its whole tiles of PENDING_KEYS
// keys, and the features and values of the keys after them, one by one. A query meets the state and the pending keys;
// when a tile is full, its keys enter the state together. Summing them one at a time would lose the digits of a long
// sum.
//
// The position of the first row may be in device memory, so that a captured graph serves every position.
#ifndef ATTENTION_LINEAR_DECODE_CUH
#define ATTENTION_LINEAR_DECODE_CUH

#include "linear_scales.cuh"

enum { PENDING_KEYS = 64, DECODE_WARPS = 16, DECODE_THREADS = 32 * DECODE_WARPS };

typedef struct {
    int outers, inners; // outers: 0 if the map is no product
    int NH, HS, width;  // columns of a state: width + 8
    int is_log_scaled;
    LinearSlice slice; // the first; the states of all heads for one slice after the other
    int slices, across;
    size_t state_size;                         // of one head and slice, the last ones may be smaller
    float *states, *scales;                    // (slices, NH, state), (NH) log_scaled maps: see WalkPass' max_before
    float *outer, *inner, *values, *log_scale; // (NH, PENDING_KEYS, outers), ... inners, HS; (NH, PENDING_KEYS)
    const int *position;                       // of the first row, in device memory; NULL: it is `first`
    int first;
    LinearDecay decay;
    DenominatorRule rule;
} DecodeCache;

__device__ static inline int position_of(const DecodeCache &cache, int row) {
    return (cache.position ? *cache.position : cache.first) + row;
}

// ---- features

template <typename Map, int WIDTH> struct DecodeTile {
    typedef LinearTile<WIDTH, float, Map::IS_NARROW> Tile; // 16 rows
    static __host__ __device__ int inner_stride(LinearSlice slice) { return slice.inners + 4 - slice.inners % 2; }
    static size_t shared_bytes(LinearSlice slice, int scratch) {
        return sizeof(float) * ((size_t)Tile::ROWS * (Tile::X_STRIDE + inner_stride(slice) + 1 + scratch) +
                                (size_t)slice.outers * Tile::OUTER_STRIDE);
    }
};

typedef struct { // queries (NH, rows, outers), (NH, rows, inners)
    float *outer, *inner;
} DecodeQueries;

// The features of `rows` rows: those of the keys go to the cache with the values, those of the queries to q. A block
// has 16 rows of one head.
template <typename Map, int WIDTH>
__global__ static void __launch_bounds__(DecodeTile<Map, WIDTH>::Tile::THREADS, 1)
    remember_kernel(DecodeQueries q, DecodeCache cache, Map map, const floatX *qkv, int rows) {
    typedef typename DecodeTile<Map, WIDTH>::Tile Tile;
    extern __shared__ float4 decode_shared[];
    int head = (int)blockIdx.x, first = (int)blockIdx.y * Tile::ROWS, present = min(Tile::ROWS, rows - first);
    int C = cache.NH * cache.HS, HS = cache.HS, stride = DecodeTile<Map, WIDTH>::inner_stride(cache.slice);
    int position = position_of(cache, first);
    floatX *x = (floatX *)decode_shared;
    float *at = (float *)decode_shared + Tile::ROWS * Tile::X_STRIDE;
    LinearFactors<Tile> factors = {at + Tile::ROWS * stride, at,
                                   at + Tile::ROWS * stride + cache.slice.outers * Tile::OUTER_STRIDE, stride};
    const floatX *from = qkv + (size_t)first * 3 * C + (size_t)head * HS;
    LinearPlace place = {};
    place.head = head, place.position = position, place.present = present;
    place.scratch = factors.log_scale + Tile::ROWS;
    size_t key = (size_t)head * PENDING_KEYS + position % PENDING_KEYS, query = (size_t)head * rows + first;
    for (int part = 0; part < 2; part++) {
        __syncthreads();
        for (int i = threadIdx.x; i < Tile::ROWS * WIDTH; i += Tile::THREADS) {
            int row = i / WIDTH, c = i % WIDTH;
            bool is_there = row < present && c < HS;
            x[row * Tile::X_STRIDE + c] =
                from_float<floatX>(is_there ? as_input(from[row * 3 * C + part * C + c]) : 0.0f);
            if (part && is_there) cache.values[(key + row) * HS + c] = as_input(from[row * 3 * C + 2 * C + c]);
        }
        size_t to = part ? key : query;
        float *outer = (part ? cache.outer : q.outer) + to * cache.outers,
              *inner = (part ? cache.inner : q.inner) + to * cache.inners;
        for (int slice = 0; slice < cache.slices; slice++) {
            place.first_outer = slice / cache.across * cache.slice.outers;
            place.first_inner = slice % cache.across * cache.slice.inners;
            place.outers = min(cache.slice.outers, max(cache.outers, 1) - place.first_outer);
            place.inners = min(cache.slice.inners, cache.inners - place.first_inner);
            __syncthreads();
            map.template features<Tile>(factors, x, place);
            __syncthreads();
            for (int i = threadIdx.x; cache.outers && i < present * place.outers; i += Tile::THREADS) {
                int row = i / place.outers, e = i % place.outers;
                outer[(size_t)row * cache.outers + place.first_outer + e] = factors.outer_at(row, e);
            }
            for (int i = threadIdx.x; i < present * place.inners; i += Tile::THREADS) {
                int row = i / place.inners, p = i % place.inners;
                inner[(size_t)row * cache.inners + place.first_inner + p] = factors.inner_at(row, p);
            }
        }
        for (int i = threadIdx.x; Map::LOG_SCALED && part && i < present; i += Tile::THREADS)
            cache.log_scale[key + i] = factors.log_scale[i];
    }
}

// ---- levels: what WalkPass' levels are, over the tile of pending keys

typedef struct { // a key's factor is exp(its level - query), the state's exp(state - query)
    float state, query, log_decay;
} DecodeLevels;

__device__ static inline float key_level(const DecodeCache &cache, float log_decay, int head, int key) {
    return (cache.is_log_scaled ? cache.log_scale[(size_t)head * PENDING_KEYS + key] : 0.0f) - log_decay * (float)key;
}

// Of the query that has the last of `keys` pending keys.
__device__ static inline DecodeLevels decode_levels(const DecodeCache &cache, int head, int keys, bool has_state) {
    DecodeLevels levels;
    levels.log_decay = log_decay_of(cache.decay, head);
    levels.state = levels.log_decay + (cache.is_log_scaled && has_state ? cache.scales[head] : 0.0f);
    levels.query = -levels.log_decay * (float)(keys - 1);
    if (!cache.is_log_scaled) return levels;
    levels.query = has_state ? levels.state : -INFINITY;
    for (int key = 0; key < keys; key++)
        levels.query = fmaxf(levels.query, key_level(cache, levels.log_decay, head, key));
    return levels;
}

// ---- a row

// <outer, outer> <inner, inner> of a query with a key, by a whole warp
__device__ static inline float decode_score(const DecodeCache &cache, DecodeQueries q, size_t query, size_t key) {
    const float *q_outer = q.outer + query * cache.outers, *q_inner = q.inner + query * cache.inners;
    float outer = 0, inner = 0;
    for (int e = tile_lane(); e < cache.outers; e += 32) outer += q_outer[e] * cache.outer[key * cache.outers + e];
    for (int p = tile_lane(); p < cache.inners; p += 32) inner += q_inner[p] * cache.inner[key * cache.inners + p];
    for (int offset = 16; offset; offset /= 2) {
        outer += __shfl_xor_sync(0xffffffffu, outer, offset);
        inner += __shfl_xor_sync(0xffffffffu, inner, offset);
    }
    return cache.outers ? outer * inner : inner;
}

typedef struct { // one slice of a head's state
    float *at;
    int first_outer, outers, first_inner, inners, inner_octets;
    int features; // with those that round them up
} DecodeState;

__device__ static inline DecodeState decode_state(const DecodeCache &cache, int head, int index, int step) {
    DecodeState state;
    state.first_outer = index / cache.across * cache.slice.outers;
    state.first_inner = index % cache.across * cache.slice.inners;
    state.outers = min(cache.slice.outers, max(cache.outers, 1) - state.first_outer);
    state.inners = min(cache.slice.inners, cache.inners - state.first_inner);
    int padded = round_up_to(state.inners, cache.outers == 0 ? 16 : state.inners <= 8 ? 8 : step);
    state.inner_octets = padded / 8;
    state.features = round_up_to(state.outers * state.inner_octets, 2) * 8;
    state.at =
        cache.states + (size_t)index * cache.NH * cache.state_size + (size_t)head * state.features * (cache.width + 8);
    return state;
}

// phi of row `row` of features laid out like the cache's
__device__ static inline float phi_at(const DecodeCache &cache, const DecodeState &state, const float *outer,
                                      const float *inner, size_t row, int e, int p) {
    float feature = inner[row * cache.inners + state.first_inner + p];
    return cache.outers ? outer[row * cache.outers + state.first_outer + e] * feature : feature;
}

// A number of an extended value of a pending key.
__device__ static inline float pending_value(const DecodeCache &cache, size_t key, int c) {
    return c < cache.HS ? cache.values[key * cache.HS + c] : c == cache.width ? 1.0f : 0.0f;
}

// out (rows, C) of queries whose keys are in the cache already. A block has one row of one head; its warps share the
// features, and the keys; a lane has every 32nd column.
template <int COLUMNS>
__global__ static void __launch_bounds__(DECODE_THREADS)
    decode_kernel(floatX *out, DecodeCache cache, DecodeQueries q, int rows, int step) {
    constexpr int OWN = (COLUMNS + 31) / 32;
    __shared__ float scores[PENDING_KEYS], sums[DECODE_WARPS][32 * OWN];
    int head = (int)blockIdx.x, row = (int)blockIdx.y, warp = linear_warp(), position = position_of(cache, row);
    int keys = position % PENDING_KEYS + 1;
    bool has_state = position >= PENDING_KEYS;
    size_t first_key = (size_t)head * PENDING_KEYS, query = (size_t)head * rows + row;
    DecodeLevels levels = decode_levels(cache, head, keys, has_state);
    float own[OWN] = {};
    for (int key = warp; key < keys; key += DECODE_WARPS) {
        float score = decode_score(cache, q, query, first_key + key);
        if (tile_lane() == 0)
            scores[key] = score * scale_factor(key_level(cache, levels.log_decay, head, key) - levels.query);
    }
    __syncthreads();
    for (int slice = 0; has_state && slice < cache.slices; slice++) {
        DecodeState state = decode_state(cache, head, slice, step);
        for (int f = warp; f < state.outers * state.inners; f += DECODE_WARPS) {
            int e = f / state.inners, p = f % state.inners;
            const float *from = state.at + (size_t)(e * state.inner_octets * 8 + p) * COLUMNS;
            float phi = phi_at(cache, state, q.outer, q.inner, query, e, p);
            for (int i = 0, c = tile_lane(); i < OWN; i++, c += 32)
                if (c < COLUMNS) own[i] += phi * from[c];
        }
    }
    float factor = has_state ? scale_factor(levels.state - levels.query) : 0.0f;
    for (int i = 0, c = tile_lane(); i < OWN; i++, c += 32) {
        float sum = has_state ? own[i] * factor : 0.0f;
        for (int key = warp; key < keys; key += DECODE_WARPS)
            sum += scores[key] * pending_value(cache, first_key + key, c);
        sums[warp][c] = sum;
    }
    __syncthreads();
    for (int c = threadIdx.x; c < COLUMNS; c += DECODE_THREADS)
        for (int other = 1; other < DECODE_WARPS; other++) sums[0][c] += sums[other][c];
    __syncthreads();
    float sum = sums[0][cache.width], g = stabilised(sum, cache.rule);
    floatX *to = out + (size_t)row * cache.NH * cache.HS + (size_t)head * cache.HS;
    for (int c = threadIdx.x; c < cache.HS; c += DECODE_THREADS) to[c] = from_float<floatX>(sums[0][c] / g);
    bool is_doubtful = cache.rule.is_signed && (sum < 0 || is_floored(g, cache.rule));
    if (threadIdx.x == 0 && is_doubtful) atomicAdd(&floored_rows, 1ull);
}

// ---- a tile of keys enters the state

// When row `rows` - 1 has filled it; else nothing happens. A block has 32 columns of one head, its warps share the
// features.
__global__ static void __launch_bounds__(DECODE_THREADS) fold_kernel(DecodeCache cache, int rows, int step) {
    __shared__ float values[PENDING_KEYS][32];
    int head = (int)blockIdx.x, c = (int)blockIdx.y * 32 + tile_lane(), last = position_of(cache, rows - 1);
    bool is_inside = c < cache.width + 8, has_state = last >= PENDING_KEYS;
    size_t first_key = (size_t)head * PENDING_KEYS;
    if (last % PENDING_KEYS != PENDING_KEYS - 1) return;
    DecodeLevels levels = decode_levels(cache, head, PENDING_KEYS, has_state);
    for (int key = linear_warp(); key < PENDING_KEYS; key += DECODE_WARPS)
        values[key][tile_lane()] = is_inside
                                       ? pending_value(cache, first_key + key, c) *
                                             scale_factor(key_level(cache, levels.log_decay, head, key) - levels.query)
                                       : 0.0f;
    __syncthreads();
    float factor = has_state ? scale_factor(levels.state - levels.query) : 0.0f;
    for (int slice = 0; slice < cache.slices; slice++) {
        DecodeState state = decode_state(cache, head, slice, step);
        for (int f = linear_warp(); is_inside && f < state.features; f += DECODE_WARPS) {
            float *to = state.at + (size_t)f * (cache.width + 8) + c, sum = 0;
            int e = f / (8 * state.inner_octets), p = f % (8 * state.inner_octets);
            for (int key = 0; e < state.outers && p < state.inners && key < PENDING_KEYS; key++)
                sum += phi_at(cache, state, cache.outer, cache.inner, first_key + key, e, p) * values[key][tile_lane()];
            *to = has_state ? *to * factor + sum : sum;
        }
    }
}

// The largest log scales after that. A thread per head.
__global__ static void fold_scale_kernel(DecodeCache cache, int rows) {
    int head = (int)(blockIdx.x * blockDim.x + threadIdx.x), last = position_of(cache, rows - 1);
    if (head >= cache.NH || last % PENDING_KEYS != PENDING_KEYS - 1) return;
    DecodeLevels levels = decode_levels(cache, head, PENDING_KEYS, last >= PENDING_KEYS);
    cache.scales[head] = levels.query + levels.log_decay * (float)(PENDING_KEYS - 1);
}

#endif
