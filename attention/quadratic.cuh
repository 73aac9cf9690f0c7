// The one tiled core of the quadratic attentions on the GPU, the twin of quadratic.h: the same rules, limits and saved
// numbers, O(T) memory. A mechanism is a type with the score of a pair; its .cu file makes the functions of struct
// AttentionGPU from it: quadratic_gpu_forward<Score> and so on.
//
// A block has a tile of queries and goes through the keys tile by tile (forward, and backward for dq), or has a tile of
// keys and goes through the queries (backward for dk and dv). No two blocks add to the same number: there are no
// atomics, and the bits are the same from run to run. Each warp has 16 rows of the tile and needs no other warp there.
//
// q and k stay in shared memory as they came in; unit length and scale are factors of the dot products, in float. So
// bf16 products are exact, and a bf16 build loses nothing by rounding unit vectors.
//
// Pointers to floatX must be aligned to 16 bytes, as allocations are.
#ifndef ATTENTION_QUADRATIC_CUH
#define ATTENTION_QUADRATIC_CUH

#include "attention_gpu.h"
#include "tile_product.cuh"

extern "C" {
#include "quadratic.h"
}

// A mechanism is such a type; this is softmax attention's.
struct SoftmaxScore {
    static constexpr int normalizer = NORMALIZER_SOFTMAX; // Normalizer
    static constexpr bool scaled = true;                  // q is divided by sqrt(HS)
    static constexpr bool unit_length = false;            // q and k are divided by their norms
    static constexpr bool uses_distance = false;          // the score is more than the dot product
    // The score of a pair from dot = <q,k>, distance = |q-k|^2 and eps.
    static __device__ float score(float dot, float, float) { return dot; }
    // Turns dL/dscore into dL/ddot and returns -2 dL/ddistance, as QuadraticKernel's `slopes` does; from the same
    // three.
    static __device__ float slopes(float &, float, float, float) { return 0; }
};

enum { LARGEST_HEAD = 128, DECODE_SPLITS = 32, DECODE_THREADS = 128, DECODE_KEYS = 128 };
constexpr unsigned ALL_LANES = 0xffffffff;

// ---- what quadratic.cu has for all mechanisms

typedef struct {    // of the rows of q or k, per head: (heads, rows)
    float *norms;   // squared, as distances are formed with
    float *factors; // what a row is multiplied by
    int rows;
} RowMeasures;

typedef struct {  // where everything of a launch is; rows of the heads of one sequence after the other
    floatX *out;  // (B, queries, C)
    float *saved; // (B * NH, 2, queries): the levels of a head's rows, then their inverses; NULL: not wanted
    const floatX *q, *k, *v;
    size_t query_stride, key_stride; // numbers from one row to the next
    RowMeasures query_measures, key_measures;
    int queries, first; // rows, position of the first: query i sees the keys up to first + i
    int C, NH, HS;
    float scale, eps, delta;
} Attend;

typedef struct {
    floatX *dqkv;             // (B, T, 3C)
    const floatX *dout, *qkv; // (B, T, C), (B, T, 3C)
    const float *saved;       // as in Attend
    const float *output_dots; // (B * NH, T) <dout, out>
    RowMeasures query_measures, key_measures;
    int T, C, NH, HS;
    float scale, eps;
} Differentiate;

typedef struct {
    RowMeasures query_measures, key_measures; // both in `work`; in steps the keys' are in the cache
    float *output_dots;                       // (B * NH, T)
    float *partials;                          // (NH, DECODE_SPLITS, padded head size + 2)
} QuadraticWork;

size_t quadratic_gpu_saved_size(const AttentionConfig *config);
size_t quadratic_gpu_work_size(const AttentionConfig *config);
size_t quadratic_gpu_cache_size(const AttentionConfig *config);
int quadratic_gpu_check(const AttentionConfig *config, char *why, size_t size);

QuadraticWork quadratic_gpu_work(float *work, const AttentionConfig *config);
// The widths that kernels are made for: 32, 64, 128. Ends the program when the head is larger.
int quadratic_gpu_width(const AttentionConfig *config);
Attend quadratic_gpu_attend(floatX *out, float *saved, const floatX *qkv, const QuadraticWork *work,
                            const AttentionConfig *config);
// One sequence, against its cache: rows (max_T, 2C) of k and v as they take part, then the measures of the keys.
Attend quadratic_gpu_attend_cache(floatX *out, float *cache, int pos, int n, const floatX *qkv,
                                  const QuadraticWork *work, const AttentionConfig *config);
// Measures n rows of q and k per sequence and, when `cache` is not NULL, puts k and v into its rows from `first` on.
void quadratic_gpu_prepare(const RowMeasures *queries, const RowMeasures *keys, floatX *cache, int first,
                           const floatX *qkv, int sequences, int n, int unit_length, const AttentionConfig *config,
                           cudaStream_t stream);
void quadratic_gpu_output_dots(float *output_dots, const floatX *dout, const floatX *out, const AttentionConfig *config,
                               cudaStream_t stream);
// Merges the partial results of `splits` blocks per head and writes the row.
void quadratic_gpu_combine(floatX *out, const float *partials, int splits, int width, int normalizer,
                           const AttentionConfig *config, cudaStream_t stream);

// ---- rows of q, k, v, dout

// As quadratic.h's `limited`.
__device__ static inline float limit(float x, float largest) {
    float below = x > largest ? largest : x;
    return below < -largest ? -largest : below;
}

// A number as it takes part: in range; infinity and NaN become NaN.
__device__ static inline floatX as_input(floatX x) {
    float value = to_float(x);
    return from_float<floatX>(limit(value, LARGEST_INPUT) + (value - value));
}

// Columns column .. column + CHUNK - 1 of a row of HS numbers, zeros past its end.
__device__ static inline void load_chunk(floatX chunk[CHUNK], const floatX *row, int column, int HS) {
    uint4 bits = {0, 0, 0, 0};
    if (HS % CHUNK == 0) { // then every row of every head starts at a multiple of 16 bytes
        if (column < HS) bits = *reinterpret_cast<const uint4 *>(row + column);
        memcpy((void *)chunk, &bits, sizeof bits);
    } else {
#pragma unroll
        for (int i = 0; i < CHUNK; i++) chunk[i] = column + i < HS ? row[column + i] : from_float<floatX>(0);
    }
#pragma unroll
    for (int i = 0; i < CHUNK; i++) chunk[i] = as_input(chunk[i]);
}

// Fills a tile of ROWS rows from global memory, with all threads of the block; zeros past the last row there is.
template <int ROWS, int WIDTH>
__device__ void load_tile(floatX *tile, const floatX *rows, size_t stride, int present, int HS) {
    for (int i = threadIdx.x; i < ROWS * WIDTH / CHUNK; i += blockDim.x) {
        int row = i / (WIDTH / CHUNK), column = i % (WIDTH / CHUNK) * CHUNK;
        floatX chunk[CHUNK];
        load_chunk(chunk, rows + row * stride, column, row < present ? HS : 0);
        uint4 bits;
        memcpy(&bits, chunk, sizeof bits);
        *reinterpret_cast<uint4 *>(tile + row * tile_stride<WIDTH> + column) = bits;
    }
}

// ---- the score of a pair

typedef struct {                      // what a tile needs to know of one of its rows
    float factor, norm;               // RowMeasures
    float level, inverse, output_dot; // of a query, in backward
} RowNumbers;

template <class Score> __device__ RowNumbers row_measures(const RowMeasures &measures, int head, int row, float scale) {
    RowNumbers numbers = {scale, 0, 0, 0, 0};
    if constexpr (Score::uses_distance) {
        size_t at = (size_t)head * measures.rows + row;
        numbers.factor = measures.factors[at], numbers.norm = measures.norms[at];
    }
    return numbers;
}

typedef struct {
    float dot, distance;
    bool near; // so near that |q|^2 + |k|^2 - 2<q,k> would lose digits
} Pair;

// `product` is the dot product of the two rows as they are in memory.
template <class Score>
__device__ Pair compare(float product, const RowNumbers &a, const RowNumbers &b, const floatX *a_row,
                        const floatX *b_row, int HS) {
    Pair pair = {product * a.factor * b.factor, 0, false};
    if constexpr (Score::uses_distance) {
        float norms = a.norm + b.norm;
        pair.distance = norms - 2 * pair.dot;
        pair.near = pair.distance < NEAR * norms;
        if (pair.near) {
            pair.distance = 0;
            for (int d = 0; d < HS; d++) { // products rounded by themselves: equal rows have the distance 0
                float apart = __fmul_rn(to_float(a_row[d]), a.factor) - __fmul_rn(to_float(b_row[d]), b.factor);
                pair.distance += apart * apart;
            }
        }
    }
    return pair;
}

// What weights relative to the level `from` are multiplied by when the level becomes `to`.
template <int NORMALIZER> __device__ float relevel(float from, float to) {
    return NORMALIZER == NORMALIZER_SOFTMAX ? expf(from - to) : from / to;
}

// The level after a score `highest` has been seen: the largest score so far (softmax), or 1 while no score is huge.
template <int NORMALIZER> __device__ float raised_level(float level, float highest) {
    if (NORMALIZER == NORMALIZER_SOFTMAX) return highest > level ? highest : level;
    return highest > LARGEST_WEIGHT * level ? highest : level;
}

template <int NORMALIZER> __device__ float first_level(void) {
    return NORMALIZER == NORMALIZER_SOFTMAX ? -INFINITY : 1.0f;
}

template <int NORMALIZER> __device__ float weight_of(float score, float level) {
    return NORMALIZER == NORMALIZER_SOFTMAX ? expf(score - level) : score * (1 / level);
}

// 1 / what a row's sums are divided by.
template <int NORMALIZER> __device__ float inverse_of(float level, float total, float delta) {
    return 1 / (NORMALIZER == NORMALIZER_SOFTMAX ? total : total + delta / level);
}

// ---- forward

template <int WIDTH> struct AttendTiles { // shared memory
    static constexpr int ROWS = 64, COLUMNS = WIDTH > 64 ? 32 : 64, THREADS = ROWS / WARP_ROWS * 32;
    alignas(32) floatX queries[ROWS][tile_stride<WIDTH>];
    alignas(32) floatX keys[COLUMNS][tile_stride<WIDTH>], values[COLUMNS][tile_stride<WIDTH>];
    ScoreTile<ROWS, COLUMNS> scores;
    RowNumbers query_numbers[ROWS], key_numbers[COLUMNS];
    float row_factors[ROWS];
};

// How many of a tile's columns a warp's rows can see, when the first sees `visible`: in whole steps of the products.
__device__ static inline int visible_columns(int visible, int columns) {
    int last = max(visible + WARP_ROWS - 1, 0); // what the last of the rows sees
    return min((last + WARP_ROWS - 1) / WARP_ROWS * WARP_ROWS, columns);
}

// Turns the dot products of a row, in place, into scores and then weights, and adds them to *total. Two lanes have a
// row, one its even and one its odd columns. Returns what earlier weights have to be multiplied by.
template <class Score, class Tiles>
__device__ float fold_row(Tiles &s, int row, int odd, int visible, float &level, float &total, const Attend &a) {
    float *scores = s.scores.scores[row], highest = level, sum = 0;
    floatX *weights = s.scores.weights(row);
    for (int column = odd; column < visible; column += 2) {
        Pair pair = compare<Score>(scores[column], s.query_numbers[row], s.key_numbers[column], s.queries[row],
                                   s.keys[column], a.HS);
        float score = Score::score(pair.dot, pair.distance, a.eps);
        scores[column] = score;
        highest = score > highest ? score : highest;
    }
    float other = __shfl_xor_sync(ALL_LANES, highest, 1);
    float raised = raised_level<Score::normalizer>(level, other > highest ? other : highest);
    float factor = raised == level ? 1.0f : relevel<Score::normalizer>(level, raised);
    level = raised;
    for (int column = odd; column < Tiles::COLUMNS; column += 2) {
        float weight = column < visible ? weight_of<Score::normalizer>(scores[column], level) : 0.0f;
        weights[column] = from_float<floatX>(weight);
        sum += weight;
    }
    total = total * factor + (sum + __shfl_xor_sync(ALL_LANES, sum, 1));
    return factor;
}

// One tile of queries of one head against all the keys that they see. (The 1 in the launch bounds: shared memory limits
// the blocks of a multiprocessor anyway; without it the compiler would spill registers in order to fit more blocks.)
template <class Score, int WIDTH> __global__ void __launch_bounds__(AttendTiles<WIDTH>::THREADS, 1) attend(Attend a) {
    typedef AttendTiles<WIDTH> Tiles;
    extern __shared__ SharedBytes shared[];
    Tiles &s = *reinterpret_cast<Tiles *>(shared);
    int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * WARP_ROWS, row = warp_row + lane / 2, odd = lane % 2;
    int head = blockIdx.x, first_query = (gridDim.y - 1 - blockIdx.y) * Tiles::ROWS; // the longest rows start first
    size_t sequence_row = (size_t)(head / a.NH) * a.queries, column = (size_t)(head % a.NH) * a.HS;
    int present = min(Tiles::ROWS, a.queries - first_query), keys = a.first + first_query + present;

    load_tile<Tiles::ROWS, WIDTH>(s.queries[0], a.q + (sequence_row + first_query) * a.query_stride + column,
                                  a.query_stride, present, a.HS);
    for (int i = threadIdx.x; i < present; i += blockDim.x) {
        s.query_numbers[i] = row_measures<Score>(a.query_measures, head, first_query + i, a.scale);
    }
    RowSums<WIDTH> sums(s.scores.scores[warp_row], s.scores.stride);
    float level = first_level<Score::normalizer>(), total = 0;
    for (int key = 0; key < keys; key += Tiles::COLUMNS) {
        int keys_here = min(Tiles::COLUMNS, keys - key);
        size_t at = (sequence_row + key) * a.key_stride + column;
        __syncthreads(); // all warps have done with the last tile
        load_tile<Tiles::COLUMNS, WIDTH>(s.keys[0], a.k + at, a.key_stride, keys_here, a.HS);
        load_tile<Tiles::COLUMNS, WIDTH>(s.values[0], a.v + at, a.key_stride, keys_here, a.HS);
        for (int i = threadIdx.x; i < keys_here; i += blockDim.x) {
            s.key_numbers[i] = row_measures<Score>(a.key_measures, head, key + i, 1.0f);
        }
        __syncthreads();
        int lead = a.first + first_query - key; // query i of the tile sees the keys up to lead + i
        int columns = visible_columns(lead + warp_row + 1, Tiles::COLUMNS);
        if (columns == 0) continue; // the whole warp
        multiply_rows<WIDTH, Tiles::COLUMNS>(s.scores.scores[warp_row], s.scores.stride, s.queries[warp_row],
                                             s.keys[0]);
        __syncwarp();
        int visible = row < present ? min(max(lead + row + 1, 0), keys_here) : 0;
        float factor = fold_row<Score>(s, row, odd, visible, level, total, a);
        if (!odd) s.row_factors[row] = factor;
        __syncwarp();
        if (__any_sync(ALL_LANES, factor != 1.0f)) {
            sums.each([&](int r, int, float &sum) { sum *= s.row_factors[warp_row + r]; });
        }
        sums.add(s.scores.weights(warp_row), s.scores.weight_stride, s.values[0], 0, columns);
    }

    float inverse = inverse_of<Score::normalizer>(level, total, a.delta);
    __syncwarp();
    if (!odd) s.row_factors[row] = inverse;
    __syncwarp();
    floatX *out = a.out + (sequence_row + first_query + warp_row) * a.C + column;
    sums.each([&](int r, int d, float &sum) {
        if (warp_row + r < present && d < a.HS) {
            out[(size_t)r * a.C + d] = from_float<floatX>(sum * s.row_factors[warp_row + r]);
        }
    });
    if (a.saved && !odd && row < present) {
        float *levels = a.saved + (size_t)head * 2 * a.queries + first_query + row;
        levels[0] = level;
        levels[a.queries] = Score::normalizer == NORMALIZER_SOFTMAX ? inverse : inverse / level;
    }
}

// ---- backward

template <int WIDTH> struct DifferentiateTiles { // shared memory
    static constexpr int ROWS = WIDTH > 64 && sizeof(floatX) == 4 ? 32 : 64;
    static constexpr int COLUMNS = WIDTH > 32 ? 32 : 64, THREADS = ROWS / WARP_ROWS * 32;
    typedef floatX Row[tile_stride<WIDTH>];
    alignas(32) Row rows[ROWS], row_partners[ROWS];             // q and dout, or k and v
    alignas(32) Row columns[COLUMNS], column_partners[COLUMNS]; // k and v, or q and dout
    ScoreTile<ROWS, COLUMNS> scores, slopes;
    RowNumbers row_numbers[ROWS], column_numbers[COLUMNS];

    // At the end, the gradients of the rows in float, in the place of tiles that are no longer needed.
    static constexpr int gradient_stride = WIDTH + SCORE_PAD;
    __device__ float *gradient(int row) {
        static_assert(sizeof(Row) * (ROWS + 2 * COLUMNS) >= sizeof(float) * gradient_stride * ROWS, "no room");
        return reinterpret_cast<float *>(row_partners[0]) + row * gradient_stride;
    }
};

// A tile of queries with their douts (KEYS false), or of keys with their values.
template <class Score, bool KEYS, int ROWS, int WIDTH>
__device__ void load_side(floatX *rows, floatX *partners, RowNumbers *numbers, int head, int first,
                          const Differentiate &a) {
    size_t row = (size_t)(head / a.NH) * a.T + first, column = (size_t)(head % a.NH) * a.HS;
    int present = min(ROWS, a.T - first);
    const floatX *q = a.qkv + row * 3 * a.C + column;
    load_tile<ROWS, WIDTH>(rows, KEYS ? q + a.C : q, 3 * (size_t)a.C, present, a.HS);
    load_tile<ROWS, WIDTH>(partners, KEYS ? q + 2 * a.C : a.dout + row * a.C + column, (KEYS ? 3 : 1) * (size_t)a.C,
                           present, a.HS);
    for (int i = threadIdx.x; i < ROWS; i += blockDim.x) {
        RowNumbers row_numbers = {};
        if (i < present) {
            const RowMeasures &measures = KEYS ? a.key_measures : a.query_measures;
            row_numbers = row_measures<Score>(measures, head, first + i, KEYS ? 1.0f : a.scale);
        }
        if (!KEYS && i < present) {
            const float *levels = a.saved + (size_t)head * 2 * a.T + first + i;
            row_numbers.level = levels[0], row_numbers.inverse = levels[a.T];
            row_numbers.output_dot = a.output_dots[(size_t)head * a.T + first + i];
        }
        numbers[i] = row_numbers;
    }
}

// The weight of a pair; `slope`, the gradient of the weight, becomes that of the score.
template <class Score> __device__ float differentiate_weight(float score, float &slope, const RowNumbers &query) {
    if (Score::normalizer == NORMALIZER_SOFTMAX) {
        float weight = expf(score - query.level) * query.inverse;
        slope = limit(weight * (slope - query.output_dot), LARGEST_SLOPE);
        return weight;
    }
    slope = limit((slope - query.output_dot) * query.inverse, LARGEST_SLOPE);
    return score * query.inverse;
}

// Pairs that are near are pulled together along the difference itself, where pull k - pull q would cancel. `near` has a
// bit for each lane whose pair (row lane / 2, column + lane % 2) is.
template <class Tiles, class Sums>
__device__ void pull_near_pairs(Sums &gradient, const Tiles &s, unsigned near, float pull, int warp_row, int column) {
    for (; near; near &= near - 1) {
        int lane = __ffs(near) - 1;
        float strength = __shfl_sync(ALL_LANES, pull, lane);
        int from = warp_row + lane / 2, toward = column + lane % 2;
        float from_factor = s.row_numbers[from].factor, toward_factor = s.column_numbers[toward].factor;
        gradient.each([&](int r, int d, float &x) {
            if (warp_row + r == from) {
                x += strength * (__fmul_rn(to_float(s.columns[toward][d]), toward_factor) -
                                 __fmul_rn(to_float(s.rows[from][d]), from_factor));
            }
        });
    }
}

// The weights of a warp's rows to s.scores, the gradients of their dot products to s.slopes, both ready to be
// multiplied with the columns as they are in memory. `offset`: position of the first row minus that of the first
// column. Returns the sum of the row's pulls.
template <class Score, bool OWNS_KEYS, class Tiles, class Sums>
__device__ float differentiate_rows(Sums &gradient, Tiles &s, int warp_row, int offset, int columns_left,
                                    const Differentiate &a) {
    int lane = threadIdx.x % 32, row = warp_row + lane / 2;
    float pulls = 0;
#pragma unroll 1
    for (int first = 0; first < Tiles::COLUMNS; first += 2) {
        int column = first + lane % 2;
        bool visible = OWNS_KEYS ? offset + row <= column && column < columns_left : column <= offset + row;
        bool near = false;
        float weight = 0, slope = 0, pull = 0;
        if (visible) {
            const RowNumbers &mine = s.row_numbers[row], &other = s.column_numbers[column];
            Pair pair = compare<Score>(s.scores.scores[row][column], mine, other, s.rows[row], s.columns[column], a.HS);
            slope = s.slopes.scores[row][column];
            weight = differentiate_weight<Score>(Score::score(pair.dot, pair.distance, a.eps), slope,
                                                 OWNS_KEYS ? other : mine);
            pull = Score::slopes(slope, pair.dot, pair.distance, a.eps);
            near = pair.near;
            if (!near) slope += pull, pulls += pull;
            slope *= other.factor;
        }
        if constexpr (Score::uses_distance) {
            pull_near_pairs(gradient, s, __ballot_sync(ALL_LANES, near), pull, warp_row, first);
        }
        s.scores.weights(row)[column] = from_float<floatX>(weight);
        s.slopes.weights(row)[column] = from_float<floatX>(slope);
    }
    return pulls + __shfl_xor_sync(ALL_LANES, pulls, 1);
}

// The gradients of the 16 rows as they came in, from those of the rows as they take part, which are in shared memory:
// the twin of unpack_gradient in quadratic_backward.c. Lanes 2r and 2r+1 know the pulls of row r.
template <class Score, class Tiles>
__device__ void write_gradient(floatX *to, Tiles &s, int warp_row, float pulls, int rows, const Differentiate &a) {
    int lane = threadIdx.x % 32, mine = warp_row + lane / 2;
    float along = 0, factor = s.row_numbers[mine].factor;
    if constexpr (Score::unit_length) {
        for (int d = lane % 2; d < a.HS; d += 2) {
            float x = to_float(s.rows[mine][d]) * factor;
            along += x * (s.gradient(mine)[d] - pulls * x);
        }
        along += __shfl_xor_sync(ALL_LANES, along, 1);
    }
    for (int r = 0; r < WARP_ROWS; r++) {
        float row_factor = __shfl_sync(ALL_LANES, factor, 2 * r);
        float backwards = __shfl_sync(ALL_LANES, pulls, 2 * r) + __shfl_sync(ALL_LANES, along, 2 * r);
        bool too_short = Score::unit_length && row_factor >= 1 / LEAST_NORM;
        for (int d = lane; d < a.HS && warp_row + r < rows; d += 32) {
            float x = to_float(s.rows[warp_row + r][d]) * row_factor;
            float gradient = s.gradient(warp_row + r)[d] - backwards * x;
            to[(size_t)(warp_row + r) * 3 * a.C + d] = from_float<floatX>(too_short ? 0.0f : row_factor * gradient);
        }
    }
}

// The gradients of one tile of queries from all keys that they see, or of one tile of keys and their values from all
// queries that see them.
template <class Score, int WIDTH, bool OWNS_KEYS>
__global__ void __launch_bounds__(DifferentiateTiles<WIDTH>::THREADS, 1) differentiate(Differentiate a) {
    typedef DifferentiateTiles<WIDTH> Tiles;
    extern __shared__ SharedBytes shared[];
    Tiles &s = *reinterpret_cast<Tiles *>(shared);
    int warp_row = threadIdx.x / 32 * WARP_ROWS, head = blockIdx.x;
    int first_row = (OWNS_KEYS ? blockIdx.y : gridDim.y - 1 - blockIdx.y) * Tiles::ROWS, rows = a.T - first_row;
    int first_column = OWNS_KEYS ? first_row : 0, end = OWNS_KEYS ? a.T : min(a.T, first_row + Tiles::ROWS);

    load_side<Score, OWNS_KEYS, Tiles::ROWS, WIDTH>(s.rows[0], s.row_partners[0], s.row_numbers, head, first_row, a);
    RowSums<WIDTH> gradient(s.scores.scores[warp_row], s.scores.stride); // dq or dk
    RowSums<WIDTH> value_gradient = gradient;                            // dv, with keys; 0 as well
    float pulls = 0;
    for (int column = first_column; column < end; column += Tiles::COLUMNS) {
        __syncthreads(); // all warps have done with the last tile
        load_side<Score, !OWNS_KEYS, Tiles::COLUMNS, WIDTH>(s.columns[0], s.column_partners[0], s.column_numbers, head,
                                                            column, a);
        __syncthreads();
        int offset = first_row - column; // where tiles meet the diagonal, a multiple of 16
        int from = OWNS_KEYS ? max(offset + warp_row, 0) : 0;
        int to = OWNS_KEYS ? Tiles::COLUMNS : min(Tiles::COLUMNS, offset + warp_row + WARP_ROWS);
        if (from >= to) continue; // the whole warp
        multiply_rows<WIDTH, Tiles::COLUMNS>(s.scores.scores[warp_row], s.scores.stride, s.rows[warp_row],
                                             s.columns[0]);
        multiply_rows<WIDTH, Tiles::COLUMNS>(s.slopes.scores[warp_row], s.slopes.stride, s.row_partners[warp_row],
                                             s.column_partners[0]);
        __syncwarp();
        pulls += differentiate_rows<Score, OWNS_KEYS>(gradient, s, warp_row, offset, a.T - column, a);
        __syncwarp();
        gradient.add(s.slopes.weights(warp_row), s.slopes.weight_stride, s.columns[0], from, to);
        if constexpr (OWNS_KEYS) {
            value_gradient.add(s.scores.weights(warp_row), s.scores.weight_stride, s.column_partners[0], from, to);
        }
    }

    __syncthreads();
    gradient.each([&](int r, int d, float &x) { s.gradient(warp_row + r)[d] = x; });
    __syncwarp();
    floatX *dq = a.dqkv + ((size_t)(head / a.NH) * a.T + first_row) * 3 * a.C + (size_t)(head % a.NH) * a.HS;
    write_gradient<Score>(OWNS_KEYS ? dq + a.C : dq, s, warp_row, pulls, rows, a);
    if constexpr (OWNS_KEYS) {
        value_gradient.each([&](int r, int d, float &x) {
            if (warp_row + r < rows && d < a.HS) {
                dq[2 * a.C + (size_t)(warp_row + r) * 3 * a.C + d] = from_float<floatX>(x);
            }
        });
    }
}

// ---- decoding: one query, its keys split over blocks

__device__ static inline float warp_sum(float x) {
    for (int apart = 16; apart; apart /= 2) x += __shfl_xor_sync(ALL_LANES, x, apart);
    return x;
}

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
    for (int d = 0; d < WIDTH; d += CHUNK) {
        floatX chunk[CHUNK];
        load_chunk(chunk, key, d, HS);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) sum = fmaf(to_float(query[d + i]), to_float(chunk[i]), sum);
    }
    return sum;
}

// A head's keys from split * keys_per_split on; each warp takes every fourth group of 32, one per lane. Leaves the
// level, the total and the weighted sums of the values in `partials`. (The 1 in the launch bounds: as for `attend`.)
template <class Score, int WIDTH>
__global__ void __launch_bounds__(DECODE_THREADS, 1) decode(float *partials, Attend a, int keys_per_split) {
    constexpr int WARPS = DECODE_THREADS / 32;
    __shared__ floatX query[WIDTH];
    __shared__ float sums[WARPS][WIDTH], levels[WARPS], totals[WARPS];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.x, split = blockIdx.y;
    size_t column = (size_t)head * a.HS;
    int first = split * keys_per_split, end = min(a.first + 1, first + keys_per_split);
    for (int d = threadIdx.x; d < WIDTH; d += blockDim.x) {
        query[d] = d < a.HS ? as_input(a.q[column + d]) : from_float<floatX>(0);
    }
    RowNumbers query_numbers = row_measures<Score>(a.query_measures, head, 0, a.scale);
    float sum[WIDTH / 32] = {}, level = first_level<Score::normalizer>(), total = 0;
    __syncthreads();
    for (int group = first + 32 * warp; group < end; group += DECODE_THREADS) {
        int key = group + lane, seen = min(32, end - group);
        float score = -INFINITY;
        if (key < end) {
            const floatX *row = a.k + key * a.key_stride + column;
            RowNumbers key_numbers = row_measures<Score>(a.key_measures, head, key, 1.0f);
            Pair pair =
                compare<Score>(dot_with_query<WIDTH>(query, row, a.HS), query_numbers, key_numbers, query, row, a.HS);
            score = Score::score(pair.dot, pair.distance, a.eps);
        }
        float raised = raised_level<Score::normalizer>(level, warp_highest(score));
        float factor = raised == level ? 1.0f : relevel<Score::normalizer>(level, raised);
        float weight = key < end ? weight_of<Score::normalizer>(score, raised) : 0.0f;
        level = raised;
        total = total * factor + warp_sum(weight);
        for (int i = 0; i < WIDTH / 32; i++) sum[i] *= factor;
        for (int j = 0; j < seen; j++) {
            float w = __shfl_sync(ALL_LANES, weight, j);
            const floatX *value = a.v + (group + j) * a.key_stride + column;
#pragma unroll
            for (int i = 0; i < WIDTH / 32; i++) {
                int d = lane + 32 * i;
                if (d < a.HS) sum[i] = fmaf(w, to_float(value[d]), sum[i]);
            }
        }
    }
    for (int i = 0; i < WIDTH / 32; i++) sums[warp][lane + 32 * i] = sum[i];
    if (lane == 0) levels[warp] = level, totals[warp] = total;
    __syncthreads();

    float *partial = partials + ((size_t)head * gridDim.y + split) * (WIDTH + 2);
    level = levels[0];
    for (int w = 1; w < WARPS; w++) level = levels[w] > level ? levels[w] : level;
    for (int d = threadIdx.x; d < WIDTH + 1; d += blockDim.x) { // one more than there are sums: the total
        float merged = 0;
        for (int w = 0; w < WARPS; w++) {
            merged += (d < WIDTH ? sums[w][d] : totals[w]) * relevel<Score::normalizer>(levels[w], level);
        }
        partial[d] = merged;
    }
    if (threadIdx.x == 0) partial[WIDTH + 1] = level;
}

// ---- launching

// Lets the kernel have a block's tiles, which must fit on every architecture we build for: the least has 99 KB.
template <class Tiles, class Kernel> void allow_shared_memory(Kernel *kernel) {
    static_assert(sizeof(Tiles) <= 99 * 1024, "tiles too large");
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(Tiles)));
}

static inline int tiles_of(int n, int tile) {
    return (n + tile - 1) / tile;
}

template <class Score, int WIDTH> void launch_attend(const Attend &a, int heads, cudaStream_t stream) {
    typedef AttendTiles<WIDTH> Tiles;
    allow_shared_memory<Tiles>(attend<Score, WIDTH>);
    dim3 grid(heads, tiles_of(a.queries, Tiles::ROWS));
    attend<Score, WIDTH><<<grid, Tiles::THREADS, sizeof(Tiles), stream>>>(a);
    launch_check();
}

template <class Score> void attend_any(const Attend &a, int width, int heads, cudaStream_t stream) {
    if (width == 32)
        launch_attend<Score, 32>(a, heads, stream);
    else if (width == 64)
        launch_attend<Score, 64>(a, heads, stream);
    else
        launch_attend<Score, 128>(a, heads, stream);
}

template <class Score, int WIDTH, bool OWNS_KEYS>
void launch_differentiate(const Differentiate &a, int heads, cudaStream_t stream) {
    typedef DifferentiateTiles<WIDTH> Tiles;
    allow_shared_memory<Tiles>(differentiate<Score, WIDTH, OWNS_KEYS>);
    dim3 grid(heads, tiles_of(a.T, Tiles::ROWS));
    differentiate<Score, WIDTH, OWNS_KEYS><<<grid, Tiles::THREADS, sizeof(Tiles), stream>>>(a);
    launch_check();
}

template <class Score, bool OWNS_KEYS>
void differentiate_any(const Differentiate &a, int width, int heads, cudaStream_t stream) {
    if (width == 32)
        launch_differentiate<Score, 32, OWNS_KEYS>(a, heads, stream);
    else if (width == 64)
        launch_differentiate<Score, 64, OWNS_KEYS>(a, heads, stream);
    else
        launch_differentiate<Score, 128, OWNS_KEYS>(a, heads, stream);
}

template <class Score>
void decode_any(float *partials, const Attend &a, int width, dim3 grid, int keys_per_split, cudaStream_t stream) {
    if (width == 32)
        decode<Score, 32><<<grid, DECODE_THREADS, 0, stream>>>(partials, a, keys_per_split);
    else if (width == 64)
        decode<Score, 64><<<grid, DECODE_THREADS, 0, stream>>>(partials, a, keys_per_split);
    else
        decode<Score, 128><<<grid, DECODE_THREADS, 0, stream>>>(partials, a, keys_per_split);
    launch_check();
}

template <class Score> float scale_of(const AttentionConfig *config) {
    return Score::scaled ? 1 / sqrtf((float)config->HS) : 1.0f;
}

template <class Score>
void quadratic_gpu_forward(floatX *out, float *saved, const floatX *qkv, const float *, const float *, float *work_base,
                           const AttentionConfig *config, cudaStream_t stream) {
    QuadraticWork work = quadratic_gpu_work(work_base, config);
    if (Score::uses_distance) {
        quadratic_gpu_prepare(&work.query_measures, &work.key_measures, NULL, 0, qkv, config->B, config->T,
                              Score::unit_length, config, stream);
    }
    Attend a = quadratic_gpu_attend(out, saved, qkv, &work, config);
    a.scale = scale_of<Score>(config);
    attend_any<Score>(a, quadratic_gpu_width(config), config->B * config->NH, stream);
}

template <class Score>
void quadratic_gpu_backward(floatX *dqkv, float *dparameters, const floatX *dout, const floatX *qkv, const floatX *out,
                            const float *saved, const float *, const float *, float *work_base,
                            const AttentionConfig *config, cudaStream_t stream) {
    QuadraticWork work = quadratic_gpu_work(work_base, config);
    if (Score::uses_distance) {
        quadratic_gpu_prepare(&work.query_measures, &work.key_measures, NULL, 0, qkv, config->B, config->T,
                              Score::unit_length, config, stream);
    }
    quadratic_gpu_output_dots(work.output_dots, dout, out, config, stream);
    Differentiate a = {
        dqkv,      dout,      qkv,        saved,      work.output_dots,        work.query_measures, work.key_measures,
        config->T, config->C, config->NH, config->HS, scale_of<Score>(config), config->eps};
    int width = quadratic_gpu_width(config), heads = config->B * config->NH;
    differentiate_any<Score, false>(a, width, heads, stream);
    differentiate_any<Score, true>(a, width, heads, stream);
}

template <class Score>
void quadratic_gpu_step(floatX *out, float *cache, int pos, int n, const floatX *qkv, const float *, const float *,
                        float *work_base, const AttentionConfig *config, cudaStream_t stream) {
    QuadraticWork work = quadratic_gpu_work(work_base, config);
    Attend a = quadratic_gpu_attend_cache(out, cache, pos, n, qkv, &work, config);
    a.scale = scale_of<Score>(config);
    quadratic_gpu_prepare(&a.query_measures, &a.key_measures, (floatX *)cache, pos, qkv, 1, n, Score::unit_length,
                          config, stream);
    int width = quadratic_gpu_width(config);
    if (n > 1) {
        attend_any<Score>(a, width, config->NH, stream);
        return;
    }
    int keys = pos + 1, groups = tiles_of(keys, DECODE_KEYS);
    int keys_per_split = tiles_of(groups, DECODE_SPLITS) * DECODE_KEYS, splits = tiles_of(keys, keys_per_split);
    decode_any<Score>(work.partials, a, width, dim3(config->NH, splits), keys_per_split, stream);
    quadratic_gpu_combine(out, work.partials, splits, width, Score::normalizer, config, stream);
}

#endif
