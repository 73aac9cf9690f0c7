// What the kernels of the quadratic attentions share: where their numbers are, the score of a pair, products of tiles
// whose sums stay in registers, pairs that are near, windows and decay. quadratic.cuh is what mechanisms see.
#ifndef ATTENTION_QUADRATIC_TILES_CUH
#define ATTENTION_QUADRATIC_TILES_CUH

#include "attention_gpu.h"
#include "core/gpu/kernel_gpu.h"
#include "core/gpu/tile_gpu.h"

extern "C" {
#include "quadratic.h"
}

// A mechanism is such a type; this is softmax attention's.
struct SoftmaxScore {
    static constexpr int normalizer = NORMALIZER_SOFTMAX; // Normalizer
    static constexpr bool scaled = true;                  // q is divided by sqrt(HS)
    static constexpr bool unit_length = false;            // q and k are divided by their norms
    static constexpr bool uses_distance = false;          // the score is more than the dot product
    // The score of a pair from dot = <q,k> and spread = |q-k|^2 + eps.
    static __device__ float score(float dot, float) { return dot; }
    // Turns dL/dscore into dL/ddot and returns -2 dL/ddistance, as QuadraticKernel's `slopes` does; from the same two.
    static __device__ float slopes(float &, float, float) { return 0; }
    // Whether the score is dot * r with r = quotient(dot, spread), `slopes` multiplies the slope by 2 r, and the pull
    // is r times what that gives: such pairs take fewer instructions.
    static constexpr bool has_quotient = false;
};

enum { WARP_ROWS = 16, LARGEST_HEAD = 128, DECODE_SPLITS = 32, DECODE_THREADS = 128, DECODE_KEYS = 128 };
enum { SEES_ALL = 1 << 30 }; // a window that hides nothing
constexpr unsigned ALL_LANES = 0xffffffff;
constexpr float LOG2_E = 1.44269504f;

// |q|^2 + |k|^2 - 2<q,k> loses digits when q is near k. Below this part of |q|^2 + |k|^2 the distance is summed
// directly, and the pair's pull goes along the difference itself: at 1/64 the slopes of bf16 still give the pull to
// 1 %, at 1/8 split floats give the distance to 2e-6.
constexpr float NEAR_PART = sizeof(floatX) == 2 ? 1.0f / 64 : 1.0f / 8;

// What has to be looked after in a warp's tile. PLAIN: all rows see all columns, there is no decay, no pair is near and
// the head is not wild. MASKED: the same, but not all pairs are seen.
typedef enum { PLAIN, MASKED, CAREFUL } Care;

// A head is wild if it has larger values, or numbers of dout that are larger after they were multiplied by their row's
// inverse. In others slopes need no limit: dL/dscore is at most 2 LARGEST_HEAD times the product of these, and where no
// pair is near, dot / |q-k|^2, of which the pull has the square, is at most 1 / (2 NEAR_PART).
constexpr float LARGEST_TAME_VALUE = 1e4f, LARGEST_TAME_GRADIENT = 1e6f;

// ---- where everything is

// One number for each row of q or k and head, (heads, stride): its squared norm, or for scores of unit vectors what the
// row is multiplied by. The stride is a multiple of 4, for copies of 16 bytes.
typedef struct {
    float *numbers;
    int stride;
} RowMeasures;

typedef struct {      // what a head sees
    float log2_decay; // what a token of distance adds to the logarithm of a weight, to base 2
    int window;       // keys that a query sees, its own included
} Reach;

typedef struct {          // what forward, backward and decoding have in common
    const int *wild;      // (heads) 1: numbers may be out of range, scores huge; NULL: no head is known to be tame
    const Reach *reaches; // (NH), or NULL: no decay, and the window below
    int window;
    const int *positions; // (B, T) of each token in its document, or NULL: rows are documents
    int C, NH, HS;
    float scale, eps, delta;
} Common;

typedef struct { // where everything of a launch is; rows of the heads of one sequence after the other
    Common common;
    floatX *out;  // (B, queries, C)
    float *saved; // (B * NH, 2, saved stride): the levels of a head's rows, then their inverses; NULL: not wanted
    const floatX *q, *k, *v;
    size_t query_stride, key_stride; // numbers from one row to the next
    RowMeasures query_measures, key_measures;
    int queries, first;  // rows, position of the first: query i sees the keys up to first + i
    const int *position; // where `first` is on the device; NULL: it is above
    int ring;            // rows of the cache, in which later positions take the places of the first ones; 0: no cache
} Attend;

typedef struct {
    Common common;
    floatX *dqkv;             // (B, T, 3C)
    const floatX *dout, *qkv; // (B, T, C), (B, T, 3C)
    const float *saved;       // as in Attend
    const float *output_dots; // (B * NH, saved stride) <dout, out>
    double *dlog_decays;      // (B * NH, tiles of keys) what reaches the logarithm of the decay; NULL: not wanted
    RowMeasures query_measures, key_measures;
    int T;
} Differentiate;

// Numbers from one head's levels to its inverses, or from one head's measures to the next one's.
__host__ __device__ static inline int row_stride(int rows) {
    return (rows + 3) / 4 * 4;
}

static inline int tiles_of(int n, int tile) {
    return (n + tile - 1) / tile;
}

__device__ static inline Reach reach_of(const Common &common, int head) {
    return common.reaches ? common.reaches[head % common.NH] : Reach{0, common.window};
}

// How far query number `query` of the batch sees: `window` keys, its own included, and none of another document.
__device__ static inline int sight_of(const Common &common, int query, int window) {
    return common.positions ? min(window, common.positions[query] + 1) : window;
}

__device__ static inline bool is_wild(const Common &common, int head) {
    return !common.wild || common.wild[head];
}

// ---- numbers as they take part

// As range.h's `limited`.
__device__ static inline float limit(float x, float largest) {
    return max_or_nan(min_or_nan(x, largest), -largest);
}

// In range; infinity and NaN become NaN.
__device__ static inline floatX as_input(floatX x) {
    float value = to_float(x);
    return from_float<floatX>(limit(value, LARGEST_INPUT) + (value - value));
}

// Rows (ROWS, WIDTH) of a tile, by all `threads` of the block.
template <int ROWS, int WIDTH> __device__ void clamp_rows(floatX *tile) {
    for (int i = (int)threadIdx.x; i < ROWS * WIDTH; i += (int)blockDim.x) {
        floatX *x = tile + i / WIDTH * tile_stride<floatX, WIDTH> + i % WIDTH;
        *x = as_input(*x);
    }
}

// Starts to bring rows to a tile, by all THREADS of the block.
template <int THREADS, int ROWS, int WIDTH>
__device__ void stage_rows(floatX *tile, const floatX *rows, size_t stride, int present, int HS) {
    if (stages_async<floatX>(HS))
        stage_async_by<THREADS, ROWS, WIDTH>(tile, rows, stride, present, HS, (int)threadIdx.x);
    else
        stage_plainly<ROWS, WIDTH>(tile, rows, stride, present, HS, (int)threadIdx.x, THREADS);
}

// The numbers of COUNT rows, zeros from `present` on; `from` is a multiple of 16 bytes.
template <int COUNT> __device__ void stage_numbers(float *to, const float *from, int present) {
    int i = 4 * (int)threadIdx.x;
    if (i < COUNT) copy_async(to + i, i < present ? from + i : from, min(max(present - i, 0), 4) * (int)sizeof(float));
}

// ---- products. A warp has 16 rows; its lanes have the sums of fragments of 8 columns.

// sums (16, 8 N) = rows (16, WIDTH) . columns (8 N, WIDTH)^T; left(a, k) loads columns 16 k .. of the rows. TRANSPOSED:
// with the bits that the product has when rows and columns change places.
template <int WIDTH, int N, bool TRANSPOSED = false, class Left>
__device__ void multiply_rows(SumFragment (&sums)[N], const floatX *columns, Left left) {
    constexpr int stride = tile_stride<floatX, WIDTH>;
#pragma unroll
    for (int j = 0; j < N; j++) sums[j] = {};
#pragma unroll
    for (int k = 0; k < WIDTH / 16; k++) {
        LeftFragment<floatX> a;
        left(a, k);
#pragma unroll
        for (int j = 0; j < N / 2; j++) {
            RightPair<floatX> b;
            load_right_transposed(b, columns + 16 * j * stride + 16 * k, stride);
            multiply_add<TRANSPOSED>(sums[2 * j], a, b.half[0]);
            multiply_add<TRANSPOSED>(sums[2 * j + 1], a, b.half[1]);
        }
    }
}

// sums (16, WIDTH) += weights (16, 8 N) . rows (8 N, WIDTH). Unless ALL, only the rows from `from` to `to`, in steps of
// 16: what a weight of 0 multiplies may be NaN.
template <bool ALL, int WIDTH, int N>
__device__ void add_rows(SumFragment (&sums)[WIDTH / 8], const SumFragment (&weights)[N], const floatX *rows, int from,
                         int to) {
    constexpr int stride = tile_stride<floatX, WIDTH>;
#pragma unroll
    for (int k = 0; k < N / 2; k++) {
        if (!ALL && (16 * k + 16 <= from || 16 * k >= to)) continue;
        LeftFragment<floatX> a;
        to_left(a, weights[2 * k], weights[2 * k + 1]);
#pragma unroll
        for (int j = 0; j < WIDTH / 16; j++) {
            RightPair<floatX> b;
            load_right(b, rows + 16 * k * stride + 16 * j, stride);
            multiply_add(sums[2 * j], a, b.half[0]);
            multiply_add(sums[2 * j + 1], a, b.half[1]);
        }
    }
}

// ---- which pairs there are

// A warp's 16 rows against a tile's columns. OWNS_KEYS: the rows are keys and the columns queries.
template <bool OWNS_KEYS> struct View {
    int lead;              // position of row 0 minus that of column 0
    int window;            // keys that a query sees
    int end;               // columns that there are
    const Common &common;  // of the launch
    int query, last_query; // the first of the rows or columns, and the sequence's last, as numbers in the batch

    __device__ int distance(int row, int column) const { return OWNS_KEYS ? column - lead - row : lead + row - column; }
    // Of rows that there are not: that of the last one.
    __device__ int sight(int i) const {
        return sight_of(common, OWNS_KEYS ? query + i : min(query + i, last_query), window);
    }
    __device__ bool sees(int row, int column) const {
        int apart = distance(row, column);
        return column < end && apart >= 0 && apart < sight(OWNS_KEYS ? column : row);
    }
    // The columns that some row sees are from `first` to `last`, the latter not included. No query's document begins
    // before that of the query before it.
    __device__ int first() const { return max(OWNS_KEYS ? lead : lead - sight(0) + 1, 0); }
    __device__ int last() const {
        if (OWNS_KEYS && common.positions && distance(WARP_ROWS - 1, 0) > common.positions[query]) return 0;
        int last = OWNS_KEYS ? lead + WARP_ROWS - 1 + min(window, SEES_ALL / 2) : lead + WARP_ROWS;
        return min(last, end);
    }
    // Whether all rows see all columns.
    __device__ bool is_full(int columns) const {
        int nearest = OWNS_KEYS ? distance(WARP_ROWS - 1, 0) : distance(0, columns - 1);
        int farthest = OWNS_KEYS ? distance(0, columns - 1) : distance(WARP_ROWS - 1, 0);
        return nearest >= 0 && end >= columns && farthest < sight(OWNS_KEYS ? columns - 1 : WARP_ROWS - 1);
    }
};

// ---- the score of a pair

template <class Score> __device__ float dot_of(float product, float row, float column, float scale) {
    if (!Score::uses_distance) return product * scale;
    return Score::unit_length ? product * (row * column) : product;
}

// |q|^2 + |k|^2
template <class Score> __device__ float norms_of(float row, float column) {
    return Score::unit_length ? 2.0f : row + column;
}

// |q-k|^2, but for the digits of pairs that are near.
__device__ static inline float distance_of(float dot, float norms) {
    return fmaf(-2.0f, dot, norms);
}

// A pair is near if this is below near_limit.
template <class Score> __device__ float nearness(float distance, float norms) {
    return Score::unit_length ? distance : fmaf(-NEAR_PART, norms, distance);
}
template <class Score> constexpr float near_limit = Score::unit_length ? 2 * NEAR_PART : 0;

// What the numbers of a row with this measure are multiplied by, before a scale.
template <class Score> __device__ float factor_of(float measure) {
    return Score::unit_length ? measure : 1.0f;
}

// What softmax's exponentials, which are powers of 2, are taken of; or the kernel's score. LIMITED: it may be huge.
template <class Score, bool LIMITED> __device__ float score_of(float dot, float spread) {
    float score = Score::score(dot, spread);
    if (LIMITED && Score::uses_distance) score = limit(score, LARGEST_SCORE);
    return Score::normalizer == NORMALIZER_SOFTMAX && Score::uses_distance ? score * LOG2_E : score;
}

// The scale of products: softmax attention's scores are to base 2 from the start.
template <class Score> __device__ float product_scale(const Common &common) {
    return Score::uses_distance ? 1.0f : common.scale * LOG2_E;
}

// A score as a token `apart` tokens away has it.
template <class Score> __device__ float faded(float score, float log2_decay, int apart) {
    float exponent = log2_decay * (float)apart;
    return Score::normalizer == NORMALIZER_SOFTMAX ? score + exponent : score * exp2_approximately(exponent);
}

// What weights relative to the level `from` are multiplied by when the level becomes `to`.
template <int NORMALIZER> __device__ float relevel(float from, float to) {
    return NORMALIZER == NORMALIZER_SOFTMAX ? exp2_approximately(from - to) : from / to;
}

// The level after a score `highest` has been seen: the largest score so far (softmax), or 1 while no score is huge.
template <int NORMALIZER> __device__ float raised_level(float level, float highest) {
    if (NORMALIZER == NORMALIZER_SOFTMAX) return highest > level ? highest : level;
    return highest > LARGEST_WEIGHT * level ? highest : level;
}

template <int NORMALIZER> __device__ float first_level(void) {
    return NORMALIZER == NORMALIZER_SOFTMAX ? -INFINITY : 1.0f;
}

// Of a key that is not seen.
template <int NORMALIZER> __device__ float hidden_score(void) {
    return NORMALIZER == NORMALIZER_SOFTMAX ? -INFINITY : 0.0f;
}

template <int NORMALIZER> __device__ float weight_of(float score, float level) {
    return NORMALIZER == NORMALIZER_SOFTMAX ? exp2_approximately(score - level) : score * (1 / level);
}

// `relevel` for parts of a row that may have seen no key, whose sums are 0.
template <int NORMALIZER> __device__ float merge_factor(float from, float to) {
    return from == to ? 1.0f : relevel<NORMALIZER>(from, to);
}

// 1 / what a row's sums are divided by.
template <int NORMALIZER> __device__ float inverse_of(float level, float total, float delta) {
    return 1 / (NORMALIZER == NORMALIZER_SOFTMAX ? total : total + delta / level);
}

// ---- distances

template <class Score, int N> struct Pairs { // of a warp's rows with a tile's columns
    SumFragment dots[N];                     // products to begin with
    SumFragment spreads[N];                  // distances + eps

    // Dot products and spreads from products; `rows`: the measures of the lane's two rows, `columns`: of the tile's.
    // Returns whether the lane has a pair that is near.
    __device__ bool compare(const float (&rows)[2], const float *columns, float scale, float eps) {
        float closest = INFINITY;
#pragma unroll
        for (int j = 0; j < N; j++) {
            float2 two = {};
            if (Score::uses_distance) two = *(const float2 *)(columns + 8 * j + sum_column(0));
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float column = i % 2 ? two.y : two.x, norms = norms_of<Score>(rows[i / 2], column);
                dots[j].x[i] = dot_of<Score>(dots[j].x[i], rows[i / 2], column, scale);
                if (!Score::uses_distance) continue;
                float distance = distance_of(dots[j].x[i], norms);
                spreads[j].x[i] = distance + eps;
                closest = fminf(closest, nearness<Score>(distance, norms));
            }
        }
        return closest < near_limit<Score>;
    }

    // Bit 4 j + i: whether sum i of fragment j is of a near pair.
    __device__ unsigned near_pairs(const float (&rows)[2], const float *columns) const {
        unsigned near = 0;
#pragma unroll
        for (int j = 0; j < N; j++) {
            float2 two = *(const float2 *)(columns + 8 * j + sum_column(0));
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float norms = norms_of<Score>(rows[i / 2], i % 2 ? two.y : two.x);
                float distance = distance_of(dots[j].x[i], norms);
                if (nearness<Score>(distance, norms) < near_limit<Score>) near |= 1u << (4 * j + i);
            }
        }
        return near;
    }
};

// Sum number `at`, 4 j + i, which is known only at run time.
template <int N> __device__ float pick(const SumFragment (&sums)[N], int at) {
    float picked = 0;
#pragma unroll
    for (int e = 0; e < 4 * N; e++) picked = e == at ? sums[e / 4].x[e % 4] : picked;
    return picked;
}
template <int N> __device__ void put(SumFragment (&sums)[N], int at, float x) {
#pragma unroll
    for (int e = 0; e < 4 * N; e++) sums[e / 4].x[e % 4] = e == at ? x : sums[e / 4].x[e % 4];
}

// f(e, column, mine) for each number e of a near pair and each of its columns; `mine`: whether the pair of this quad's
// row is near. Near pairs are rare, so this goes through them one by one, eight rows at a time.
template <class Function> __device__ void each_near_pair(unsigned near, Function f) {
    unsigned lane = (unsigned)tile_lane();
#pragma unroll 1
    for (unsigned all = __reduce_or_sync(ALL_LANES, near); all; all &= all - 1) {
        int e = __ffs((int)all) - 1;
        unsigned lanes = __ballot_sync(ALL_LANES, near >> e & 1);
#pragma unroll 1
        for (unsigned t = 0; t < 4; t++) {
            if (lanes & 0x11111111u << t) f(e, e / 4 * 8 + 2 * (int)t + e % 2, lanes >> (lane / 4 * 4 + t) & 1);
        }
    }
}

// The rows of a tile in global memory, with the measures of those that there are.
typedef struct {
    const floatX *rows;
    size_t stride;
} GlobalRows;

// The squared distance of two rows by the four lanes of a quad, the same bits in each. Products are rounded by
// themselves: equal rows have the distance 0.
__device__ static inline float quad_distance(const floatX *a, float a_factor, const floatX *b, float b_factor, int HS) {
    float sum = 0;
    for (int d = tile_lane() % 4; d < HS; d += 4) {
        float apart = __fmul_rn(to_float(as_input(a[d])), a_factor) - __fmul_rn(to_float(as_input(b[d])), b_factor);
        sum = fmaf(apart, apart, sum);
    }
    return quad_sum(sum);
}

// The spreads of near pairs, from distances summed directly. `mine` begins with the warp's row 0.
template <class Score, int N>
__device__ void correct_spreads(Pairs<Score, N> &pairs, unsigned near, const GlobalRows &mine, const GlobalRows &other,
                                const float (&rows)[2], const float *columns, const Common &c) {
    each_near_pair(near, [&](int e, int column, bool is_mine) {
        int half = e / 2 % 2;
        const floatX *row = mine.rows + (size_t)(tile_lane() / 4 + 8 * half) * mine.stride;
        float distance =
            quad_distance(row, factor_of<Score>(half ? rows[1] : rows[0]), other.rows + column * other.stride,
                          factor_of<Score>(columns[column]), is_mine ? c.HS : 0);
        if (is_mine && sum_column(e % 2) == column % 8) put(pairs.spreads, e, distance + c.eps);
    });
}

// ---- launching

// Lets the kernel have a block's tiles, which must fit on every architecture we build for: the least has 99 KB.
template <class Tiles, class Kernel> void allow_shared_memory(Kernel *kernel) {
    static_assert(sizeof(Tiles) <= 99 * 1024, "tiles too large");
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(Tiles)));
}

#endif
