// Quadratic attention of one query, its keys split over blocks. Launches are the same for every position.
#ifndef ATTENTION_QUADRATIC_DECODE_CUH
#define ATTENTION_QUADRATIC_DECODE_CUH

#include "quadratic_tiles.cuh"

enum { DECODE_CHUNK = 16 / sizeof(floatX) }; // numbers of one 16-byte access

__device__ static inline float warp_highest(float x) {
    for (int apart = 16; apart; apart /= 2) {
        float other = __shfl_xor_sync(ALL_LANES, x, apart);
        x = other > x ? other : x;
    }
    return x;
}

// <query, key> for a key in global memory.
template <int WIDTH> __device__ float dot_with_query(const floatX *query, const floatX *key, int HS) {
    float sum = 0;
    for (int d = 0; d < WIDTH; d += DECODE_CHUNK) {
        floatX chunk[DECODE_CHUNK];
        if (!stages_async<floatX>(HS)) {
#pragma unroll
            for (int i = 0; i < DECODE_CHUNK; i++) chunk[i] = d + i < HS ? key[d + i] : from_float<floatX>(0.0f);
        } else {
            uint4 bits = {0, 0, 0, 0};
            if (d < HS) bits = *reinterpret_cast<const uint4 *>(key + d);
            memcpy((void *)chunk, &bits, sizeof bits);
        }
#pragma unroll
        for (int i = 0; i < DECODE_CHUNK; i++) sum = fmaf(to_float(query[d + i]), to_float(chunk[i]), sum);
    }
    return sum;
}

// The score of the query, in shared memory, with a key in the cache, `apart` tokens before it.
template <class Score, int WIDTH>
__device__ float decode_score(const floatX *query, float query_measure, const floatX *key, float key_measure,
                              float log2_decay, int apart, const Common &c) {
    float dot =
        dot_of<Score>(dot_with_query<WIDTH>(query, key, c.HS), query_measure, key_measure, product_scale<Score>(c));
    float spread = 0;
    if (Score::uses_distance) {
        float norms = norms_of<Score>(query_measure, key_measure), distance = distance_of(dot, norms);
        if (nearness<Score>(distance, norms) < near_limit<Score>) {
            distance = 0;
            for (int d = 0; d < c.HS; d++) { // products rounded by themselves: equal rows have the distance 0
                float difference = __fmul_rn(to_float(query[d]), factor_of<Score>(query_measure)) -
                                   __fmul_rn(to_float(key[d]), factor_of<Score>(key_measure));
                distance = fmaf(difference, difference, distance);
            }
        }
        spread = distance + c.eps;
    }
    float score = score_of<Score, true>(dot, spread);
    return log2_decay != 0 ? faded<Score>(score, log2_decay, apart) : score;
}

typedef struct { // of one warp's keys
    float level, total;
} DecodeState;

// The keys first .. end - 1, every fourth group of 32, one per lane: raises the level and adds to the total and to the
// lane's columns of the sum.
template <class Score, int WIDTH>
__device__ DecodeState decode_keys(float (&sum)[WIDTH / 32], const floatX *query, float query_measure, int first,
                                   int end, int position, float log2_decay, const Attend &a) {
    constexpr int normalizer = Score::normalizer;
    const Common &c = a.common;
    int lane = tile_lane(), head = (int)blockIdx.x;
    size_t column = (size_t)head * c.HS;
    float level = first_level<normalizer>(), total = 0;
    for (int group = first + (int)threadIdx.x / 32 * 32; group < end; group += DECODE_THREADS) {
        int key = group + lane, seen = min(32, end - group);
        float score = hidden_score<normalizer>();
        if (key < end) {
            float measure = 0;
            if (Score::uses_distance)
                measure = a.key_measures.numbers[(size_t)head * a.key_measures.stride + key % a.ring];
            score = decode_score<Score, WIDTH>(query, query_measure, a.k + key % a.ring * a.key_stride + column,
                                               measure, log2_decay, position - key, c);
        }
        float raised = raised_level<normalizer>(level, warp_highest(score));
        float base = raised == -INFINITY ? 0.0f : raised; // all scores are NaN
        float factor = raised == level ? 1.0f : relevel<normalizer>(level, raised);
        float weight = key < end ? weight_of<normalizer>(score, base) : 0.0f;
        level = raised;
        total = total * factor + warp_sum(weight);
        for (int i = 0; i < WIDTH / 32; i++) sum[i] *= factor;
        for (int j = 0; j < seen; j++) {
            float w = __shfl_sync(ALL_LANES, weight, j);
            const floatX *value = a.v + (group + j) % a.ring * a.key_stride + column;
#pragma unroll
            for (int i = 0; i < WIDTH / 32; i++) {
                int d = lane + 32 * i;
                if (d < c.HS) sum[i] = fmaf(w, to_float(value[d]), sum[i]);
            }
        }
    }
    return {level, total};
}

// One of DECODE_SPLITS parts of the keys that a head's query sees. Leaves the weighted sums of the values, the total
// and the level in `partials`. (The 1 in the launch bounds: as for `attend`.)
template <class Score, int WIDTH>
__global__ void __launch_bounds__(DECODE_THREADS, 1) decode(float *partials, Attend a) {
    constexpr int WARPS_HERE = DECODE_THREADS / 32;
    __shared__ floatX query[WIDTH];
    __shared__ float sums[WARPS_HERE][WIDTH], levels[WARPS_HERE], totals[WARPS_HERE];
    const Common &c = a.common;
    int lane = tile_lane(), warp = (int)threadIdx.x / 32, head = (int)blockIdx.x, split = (int)blockIdx.y;
    int position = a.position ? *a.position : a.first;
    Reach reach = reach_of(c, head);
    int oldest = max(position + 1 - reach.window, 0), groups = (position - oldest) / DECODE_KEYS + 1;
    int keys_per_split = (groups + DECODE_SPLITS - 1) / DECODE_SPLITS * DECODE_KEYS;
    int first = oldest + split * keys_per_split, end = min(position + 1, first + keys_per_split);
    for (int d = (int)threadIdx.x; d < WIDTH; d += DECODE_THREADS)
        query[d] = d < c.HS ? as_input(a.q[(size_t)head * c.HS + d]) : from_float<floatX>(0.0f);
    float measure = Score::uses_distance ? a.query_measures.numbers[(size_t)head * a.query_measures.stride] : 0;
    float sum[WIDTH / 32] = {};
    __syncthreads();
    DecodeState state = decode_keys<Score, WIDTH>(sum, query, measure, first, end, position, reach.log2_decay, a);
    for (int i = 0; i < WIDTH / 32; i++) sums[warp][lane + 32 * i] = sum[i];
    if (lane == 0) levels[warp] = state.level, totals[warp] = state.total;
    __syncthreads();

    float *partial = partials + ((size_t)head * DECODE_SPLITS + split) * (WIDTH + 2);
    float level = levels[0];
    for (int w = 1; w < WARPS_HERE; w++) level = levels[w] > level ? levels[w] : level;
    for (int d = (int)threadIdx.x; d < WIDTH + 1; d += DECODE_THREADS) { // one more than there are sums: the total
        float merged = 0;
        for (int w = 0; w < WARPS_HERE; w++)
            merged += (d < WIDTH ? sums[w][d] : totals[w]) * merge_factor<Score::normalizer>(levels[w], level);
        partial[d] = merged;
    }
    if (threadIdx.x == 0) partial[WIDTH + 1] = level;
}

template <class Score> void decode_any(float *partials, const Attend &a, int width, cudaStream_t stream) {
    dim3 grid(a.common.NH, DECODE_SPLITS);
    if (width == 32)
        decode<Score, 32><<<grid, DECODE_THREADS, 0, stream>>>(partials, a);
    else if (width == 64)
        decode<Score, 64><<<grid, DECODE_THREADS, 0, stream>>>(partials, a);
    else
        decode<Score, 128><<<grid, DECODE_THREADS, 0, stream>>>(partials, a);
    launch_check();
}

#endif
