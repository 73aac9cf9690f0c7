// Quadratic attention backward: one kernel that owns queries and makes dq, one that owns keys and makes dk and dv. Both
// form the scores again tile by tile. Rows are what a block owns, columns what it goes through; with keys as rows the
// transposed weights and slopes come out as they are needed, as left operands in registers.
#ifndef ATTENTION_QUADRATIC_BACKWARD_CUH
#define ATTENTION_QUADRATIC_BACKWARD_CUH

#include "quadratic_tiles.cuh"

template <class Score, int WIDTH, bool OWNS_KEYS> struct DifferentiateTiles { // shared memory
    static constexpr bool wide = WIDTH > 64, is_float = sizeof(floatX) == 4;
    static constexpr int ROWS = wide && is_float ? 32 : 64;
    // As many as there are registers for.
    static constexpr bool crowded = OWNS_KEYS && Score::uses_distance;
    static constexpr int COLUMNS = wide && (is_float || crowded) ? 16 : WIDTH > 32 || is_float || crowded ? 32 : 64;
    static constexpr int THREADS = ROWS / WARP_ROWS * 32, STRIDE = tile_stride<floatX, WIDTH>;
    alignas(16) floatX rows[ROWS * STRIDE], partners[ROWS * STRIDE]; // q and dout, or k and v
    struct Stage {
        alignas(16) floatX rows[COLUMNS * STRIDE], partners[COLUMNS * STRIDE]; // k and v, or q and dout
        alignas(16) float measures[COLUMNS], levels[COLUMNS], inverses[COLUMNS], output_dots[COLUMNS];
    } stages[2];
};

typedef struct { // what the gradients of a pair need to know of its query
    float level, inverse, output_dot;
} QueryNumbers;

template <int WIDTH, bool OWNS_KEYS> struct RowGradients { // of a warp; numbers 0 and 1: lane / 4 and lane / 4 + 8
    SumFragment gradient[WIDTH / 8];                       // dq or dk
    SumFragment values[OWNS_KEYS ? WIDTH / 8 : 1];         // dv
    float measures[2];
    QueryNumbers queries[2];
    float pulls[2]; // of this lane's columns only
    double dlog_decay;
};

// ---- rows

typedef struct { // the queries of a head with dout, or its keys with their values
    const floatX *rows, *partners;
    const float *measures;
} HeadSide;

template <bool KEYS> __device__ HeadSide side_of_head(int head, const Differentiate &a) {
    const Common &c = a.common;
    size_t row = (size_t)(head / c.NH) * a.T, column = (size_t)(head % c.NH) * c.HS;
    const floatX *q = a.qkv + row * 3 * c.C + column;
    const RowMeasures &measures = KEYS ? a.key_measures : a.query_measures;
    return {KEYS ? q + c.C : q, KEYS ? q + 2 * c.C : a.dout + row * c.C + column,
            measures.numbers + (size_t)head * measures.stride};
}

// Starts to bring the rows from `first` on, and their partners, to shared memory.
template <bool KEYS, int THREADS, int ROWS, int WIDTH>
__device__ void stage_side(floatX *rows, floatX *partners, const HeadSide &from, int first, const Differentiate &a) {
    size_t C = (size_t)a.common.C, partner_stride = (KEYS ? 3 : 1) * C;
    stage_rows<THREADS, ROWS, WIDTH>(rows, from.rows + first * 3 * C, 3 * C, a.T - first, a.common.HS);
    stage_rows<THREADS, ROWS, WIDTH>(partners, from.partners + first * partner_stride, partner_stride, a.T - first,
                                     a.common.HS);
}

// A tile of columns, with what is known of them.
template <class Score, bool OWNS_KEYS, int WIDTH>
__device__ void stage_columns(typename DifferentiateTiles<Score, WIDTH, OWNS_KEYS>::Stage &stage, const HeadSide &from,
                              int head, int first, const Differentiate &a) {
    typedef DifferentiateTiles<Score, WIDTH, OWNS_KEYS> Tiles;
    constexpr int COLUMNS = Tiles::COLUMNS;
    constexpr bool KEYS = !OWNS_KEYS;
    int present = a.T - first, stride = row_stride(a.T);
    stage_side<KEYS, Tiles::THREADS, COLUMNS, WIDTH>(stage.rows, stage.partners, from, first, a);
    if (Score::uses_distance) stage_numbers<COLUMNS>(stage.measures, from.measures + first, present);
    if (!KEYS) {
        const float *levels = a.saved + (size_t)head * 2 * stride + first;
        if (Score::normalizer == NORMALIZER_SOFTMAX) stage_numbers<COLUMNS>(stage.levels, levels, present);
        stage_numbers<COLUMNS>(stage.inverses, levels + stride, present);
        stage_numbers<COLUMNS>(stage.output_dots, a.output_dots + (size_t)head * stride + first, present);
    }
    copies_commit();
}

// What is known of the warp's rows, which begin with row `first` of the head.
template <class Score, bool OWNS_KEYS, int WIDTH>
__device__ void begin_rows(RowGradients<WIDTH, OWNS_KEYS> &rows, int head, int first, const Differentiate &a) {
    const RowMeasures &measures = OWNS_KEYS ? a.key_measures : a.query_measures;
    int stride = row_stride(a.T);
    rows = {};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = first + sum_row(2 * half);
        if (row >= a.T) continue;
        if (Score::uses_distance) rows.measures[half] = measures.numbers[(size_t)head * measures.stride + row];
        if (OWNS_KEYS) continue;
        const float *levels = a.saved + (size_t)head * 2 * stride + row;
        rows.queries[half] = {levels[0], levels[stride], a.output_dots[(size_t)head * stride + row]};
    }
}

// ---- pairs

typedef struct {
    float weight;               // of the pair
    float slope;                // the gradient of its dot product
    float pull_from, pull_part; // whose product is the pull: of tame pairs a part of the slope
    float decay;                // what reaches the logarithm of the decay
} PairGradient;

// Of a pair without decay, where nothing is huge. `d_weight` is the gradient of the weight, <dout, v>.
template <class Score>
__device__ PairGradient tame_gradient(float dot, float spread, float d_weight, const QueryNumbers &query) {
    constexpr bool softmax = Score::normalizer == NORMALIZER_SOFTMAX;
    PairGradient pair = {};
    float score = score_of<Score, false>(dot, spread);
    float share = query.inverse * (softmax ? exp2_approximately(score - query.level) : 1.0f);
    if constexpr (Score::has_quotient) {
        float quotient = Score::quotient(dot, spread), slope = fmaf(2.0f, d_weight, -2.0f * query.output_dot);
        float part = share * quotient;
        pair.weight = softmax ? share : dot * part;
        pair.slope = slope * part;
        pair.pull_from = pair.slope, pair.pull_part = quotient;
    } else {
        pair.weight = softmax ? share : score * share;
        pair.slope = (d_weight - query.output_dot) * share;
        pair.pull_from = Score::slopes(pair.slope, dot, spread), pair.pull_part = 1;
    }
    return pair;
}

// Of any pair.
template <class Score>
__device__ PairGradient limited_gradient(float dot, float spread, float d_weight, const QueryNumbers &query,
                                         float log2_decay, int apart) {
    PairGradient pair = {};
    float score = score_of<Score, true>(dot, spread), slope = d_weight - query.output_dot;
    if (Score::normalizer == NORMALIZER_SOFTMAX) {
        if (log2_decay != 0) score = faded<Score>(score, log2_decay, apart);
        pair.weight = exp2_approximately(score - query.level) * query.inverse;
        pair.slope = limit(pair.weight * slope, LARGEST_SLOPE);
        pair.decay = (float)apart * pair.slope;
    } else {
        float fade = log2_decay == 0 ? 1.0f : exp2_approximately(log2_decay * (float)apart);
        pair.weight = score * (fade * query.inverse);
        pair.slope = limit(slope * query.inverse, LARGEST_SLOPE) * fade;
        pair.decay = (float)apart * limit(pair.weight * slope, LARGEST_SLOPE);
    }
    float by_score = pair.slope;
    pair.pull_from = Score::slopes(pair.slope, dot, spread), pair.pull_part = 1;
    if (log2_decay != 0 || !(fabsf(score) < LARGEST_SCORE && fabsf(by_score) < LARGEST_SLOPE)) return pair;
    // Where no limit was met, with the bits of tame tiles: what a head's other rows are must not show.
    PairGradient tame = tame_gradient<Score>(dot, spread, d_weight, query);
    tame.decay = pair.decay;
    bool is_tame = fabsf(tame.pull_part) < LARGEST_SLOPE && fabsf(tame.slope) < LARGEST_SLOPE &&
                   fabsf(tame.pull_from * tame.pull_part) < LARGEST_SLOPE;
    return is_tame ? tame : pair;
}

// What is known of the query of a pair. Only softmax's levels are brought to a stage.
template <class Score, bool OWNS_KEYS, int WIDTH, class Stage>
__device__ QueryNumbers query_of(const RowGradients<WIDTH, OWNS_KEYS> &rows, const Stage &stage, int half, int column) {
    if (!OWNS_KEYS) return rows.queries[half];
    float level = Score::normalizer == NORMALIZER_SOFTMAX ? stage.levels[column] : 0.0f;
    return {level, stage.inverses[column], stage.output_dots[column]};
}

// Turns dot products into the gradients of the products of rows as they are in memory, and `d_weights` into weights.
// Pairs in `near`, which only CAREFUL tiles have, leave their pulls in place of their spreads; others leave 0 there.
template <class Score, bool OWNS_KEYS, Care CARE, int WIDTH, int N>
__device__ void differentiate_pairs(RowGradients<WIDTH, OWNS_KEYS> &rows, Pairs<Score, N> &pairs,
                                    SumFragment (&d_weights)[N],
                                    const typename DifferentiateTiles<Score, WIDTH, OWNS_KEYS>::Stage &stage,
                                    unsigned near, const View<OWNS_KEYS> &view, float log2_decay) {
    float dlog_decay = 0;
#pragma unroll
    for (int e = 0; e < 4 * N; e++) {
        int half = e / 2 % 2, row = sum_row(e % 4), column = e / 4 * 8 + sum_column(e % 4);
        float &dot = pairs.dots[e / 4].x[e % 4], &spread = pairs.spreads[e / 4].x[e % 4];
        float &d_weight = d_weights[e / 4].x[e % 4];
        QueryNumbers query = query_of<Score>(rows, stage, half, column);
        PairGradient pair = CARE == CAREFUL ? limited_gradient<Score>(dot, spread, d_weight, query, log2_decay,
                                                                      view.distance(row, column))
                                            : tame_gradient<Score>(dot, spread, d_weight, query);
        if (CARE != PLAIN && !view.sees(row, column)) pair = {}; // the slopes of what is hidden may be NaN
        if (CARE == CAREFUL && OWNS_KEYS) dlog_decay += pair.decay;
        if (CARE == CAREFUL && Score::uses_distance) {
            bool is_near = near >> e & 1;
            spread = is_near ? pair.pull_from * pair.pull_part : 0.0f;
            if (is_near) pair.pull_part = 0;
        }
        dot = pair.slope, d_weight = pair.weight;
        if (!Score::uses_distance) continue;
        rows.pulls[half] = fmaf(pair.pull_from, pair.pull_part, rows.pulls[half]);
        dot = fmaf(pair.pull_from, pair.pull_part, dot) * (Score::unit_length ? stage.measures[column] : 1.0f);
    }
    if (CARE == CAREFUL && OWNS_KEYS) rows.dlog_decay += dlog_decay;
}

// Pairs that are near are pulled together along the difference itself, where pull k - pull q would cancel. `pulls` are
// those that differentiate_pairs has left.
template <class Score, bool OWNS_KEYS, int WIDTH, int N>
__device__ void pull_near_pairs(RowGradients<WIDTH, OWNS_KEYS> &rows, const SumFragment (&pulls)[N], unsigned near,
                                const GlobalRows &mine, const GlobalRows &other, const float *columns, int HS) {
    each_near_pair(near, [&](int e, int column, bool is_mine) {
        int from_lane = tile_lane() / 4 * 4 + column % 8 / 2;
        float pull = __shfl_sync(ALL_LANES, pick(pulls, e), from_lane);
        if (!is_mine) return;
        bool is_lower = e / 2 % 2;
        const floatX *toward = other.rows + column * other.stride, *from = mine.rows + sum_row(e % 4) * mine.stride;
        float toward_factor = factor_of<Score>(columns[column]);
        float from_factor = factor_of<Score>(is_lower ? rows.measures[1] : rows.measures[0]);
#pragma unroll
        for (int i = 0; i < WIDTH / 4; i++) { // both rows of the lane: which one it is, is known only at run time
            int d = i / 2 * 8 + sum_column(i % 2);
            float apart = d < HS ? __fmul_rn(to_float(as_input(toward[d])), toward_factor) -
                                       __fmul_rn(to_float(as_input(from[d])), from_factor)
                                 : 0.0f;
            rows.gradient[i / 2].x[i % 2] += is_lower ? 0.0f : pull * apart;
            rows.gradient[i / 2].x[2 + i % 2] += is_lower ? pull * apart : 0.0f;
        }
    });
}

// ---- tiles

// A warp's 16 rows against one tile of columns. `tiles` and `warp_row`: where its own rows are in shared memory, `mine`
// and `other`: where q and k are in global memory.
template <class Score, bool OWNS_KEYS, int WIDTH>
__device__ void differentiate_tile(RowGradients<WIDTH, OWNS_KEYS> &rows,
                                   const DifferentiateTiles<Score, WIDTH, OWNS_KEYS> &tiles, int warp_row,
                                   const typename DifferentiateTiles<Score, WIDTH, OWNS_KEYS>::Stage &stage,
                                   const View<OWNS_KEYS> &view, bool wild, const GlobalRows &mine,
                                   const GlobalRows &other, float log2_decay, const Common &c) {
    typedef DifferentiateTiles<Score, WIDTH, OWNS_KEYS> Tiles;
    constexpr int N = Tiles::COLUMNS / 8, AT = Tiles::STRIDE;
    Pairs<Score, N> pairs;
    SumFragment d_weights[N];
    multiply_rows<WIDTH, N, OWNS_KEYS>(pairs.dots, stage.rows, [&](LeftFragment<floatX> &a, int k) {
        load_left(a, tiles.rows + warp_row * AT + 16 * k, AT);
    });
    multiply_rows<WIDTH, N, OWNS_KEYS>(d_weights, stage.partners, [&](LeftFragment<floatX> &a, int k) {
        load_left(a, tiles.partners + warp_row * AT + 16 * k, AT);
    });
    bool is_near = pairs.compare(rows.measures, stage.measures, product_scale<Score>(c), c.eps);
    if constexpr (Score::uses_distance) is_near = __any_sync(ALL_LANES, is_near);
    bool tame = !wild && !is_near && log2_decay == 0;
    if (tame && view.is_full(Tiles::COLUMNS)) {
        differentiate_pairs<Score, OWNS_KEYS, PLAIN>(rows, pairs, d_weights, stage, 0, view, 0);
        add_rows<true, WIDTH, N>(rows.gradient, pairs.dots, stage.rows, 0, 0);
        if constexpr (OWNS_KEYS) add_rows<true, WIDTH, N>(rows.values, d_weights, stage.partners, 0, 0);
        return;
    }
    unsigned near = 0;
    if constexpr (Score::uses_distance)
        if (is_near) {
            near = pairs.near_pairs(rows.measures, stage.measures);
            correct_spreads(pairs, near, mine, other, rows.measures, stage.measures, c);
        }
    if (tame)
        differentiate_pairs<Score, OWNS_KEYS, MASKED>(rows, pairs, d_weights, stage, 0, view, 0);
    else
        differentiate_pairs<Score, OWNS_KEYS, CAREFUL>(rows, pairs, d_weights, stage, near, view, log2_decay);
    if constexpr (Score::uses_distance)
        if (is_near) pull_near_pairs<Score>(rows, pairs.spreads, near, mine, other, stage.measures, c.HS);
    add_rows<false, WIDTH, N>(rows.gradient, pairs.dots, stage.rows, view.first(), view.last());
    if constexpr (OWNS_KEYS)
        add_rows<false, WIDTH, N>(rows.values, d_weights, stage.partners, view.first(), view.last());
}

// The gradients of the warp's rows as they came in, from those of the rows as they take part: the twin of
// unpack_gradient in quadratic_backward.c. `own`: the rows in shared memory, `present`: how many there are.
template <class Score, bool OWNS_KEYS, int WIDTH>
__device__ void write_gradient(floatX *to, RowGradients<WIDTH, OWNS_KEYS> &rows, const floatX *own, int present,
                               const Common &c) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = sum_row(2 * half);
        float factor = factor_of<Score>(rows.measures[half]), backwards = quad_sum(rows.pulls[half]), along = 0;
        float last_factor = Score::unit_length ? factor : c.scale, x[WIDTH / 4] = {};
        if (Score::unit_length && factor >= 1 / LEAST_NORM) last_factor = 0;
#pragma unroll
        for (int i = 0; i < WIDTH / 4 && Score::uses_distance; i++)
            x[i] = to_float(own[row * tile_stride<floatX, WIDTH> + i / 2 * 8 + sum_column(i % 2)]) * factor;
#pragma unroll
        for (int i = 0; i < WIDTH / 4 && Score::unit_length; i++)
            along = fmaf(x[i], rows.gradient[i / 2].x[2 * half + i % 2] - backwards * x[i], along);
        if (Score::unit_length) backwards += quad_sum(along);
        if (row >= present) continue;
#pragma unroll
        for (int j = 0; j < WIDTH / 8; j++) {
            float first = rows.gradient[j].x[2 * half], second = rows.gradient[j].x[2 * half + 1];
            first = last_factor * (first - backwards * x[2 * j]);
            second = last_factor * (second - backwards * x[2 * j + 1]);
            if (last_factor == 0) first = second = 0;
            store_columns(to + (size_t)row * 3 * c.C, 8 * j + sum_column(0), c.HS, first, second);
        }
    }
}

// Sums what the block's lanes have and leaves it for quadratic_gpu_decay_gradient. `parts` is free shared memory.
__device__ static inline void write_decay(double *to, double dlog_decay, double *parts) {
    dlog_decay = warp_sum(dlog_decay);
    if (tile_lane() == 0) parts[threadIdx.x / 32] = dlog_decay;
    __syncthreads();
    if (threadIdx.x) return;
    double sum = 0;
    for (unsigned warp = 0; warp < blockDim.x / 32; warp++) sum += parts[warp];
    *to = sum;
}

// The gradients of one tile of queries from all keys that they see, or of one tile of keys and their values from all
// queries that see them. (The 1 in the launch bounds: as for `attend`.)
template <class Score, int WIDTH, bool OWNS_KEYS>
__global__ void __launch_bounds__(DifferentiateTiles<Score, WIDTH, OWNS_KEYS>::THREADS, 1)
    differentiate(Differentiate a) {
    typedef DifferentiateTiles<Score, WIDTH, OWNS_KEYS> Tiles;
    extern __shared__ uint4 shared[];
    Tiles &s = *reinterpret_cast<Tiles *>(shared);
    const Common &c = a.common;
    int warp_row = (int)threadIdx.x / 32 * WARP_ROWS, head = (int)blockIdx.x;
    int first_row = (int)(OWNS_KEYS ? blockIdx.y : gridDim.y - 1 - blockIdx.y) * Tiles::ROWS,
        row = first_row + warp_row;
    Reach reach = reach_of(c, head);
    bool wild = is_wild(c, head);
    int sequence_row = head / c.NH * a.T, sight = sight_of(c, sequence_row + first_row, reach.window);
    int column = OWNS_KEYS ? first_row : max(first_row - sight + 1, 0) / Tiles::COLUMNS * Tiles::COLUMNS;
    int end = first_row + Tiles::ROWS + (OWNS_KEYS ? min(reach.window, SEES_ALL / 2) - 1 : 0);
    end = min(end, a.T);

    HeadSide mine = side_of_head<OWNS_KEYS>(head, a), other = side_of_head<!OWNS_KEYS>(head, a);
    stage_side<OWNS_KEYS, Tiles::THREADS, Tiles::ROWS, WIDTH>(s.rows, s.partners, mine, first_row, a);
    stage_columns<Score, OWNS_KEYS, WIDTH>(s.stages[0], other, head, column, a);
    RowGradients<WIDTH, OWNS_KEYS> rows;
    begin_rows<Score>(rows, head, row, a);
    size_t stride = 3 * (size_t)c.C;
    for (int stage = 0, is_first = 1; column < end; column += Tiles::COLUMNS, stage ^= 1, is_first = 0) {
        copies_wait<0>();
        __syncthreads(); // the tile is there, and all warps have done with the one before
        int next = column + Tiles::COLUMNS;
        if (OWNS_KEYS && c.positions && next < end && // a document begins behind all rows
            c.positions[sequence_row + next] <= next - (first_row + Tiles::ROWS))
            end = next;
        if (next < end) stage_columns<Score, OWNS_KEYS, WIDTH>(s.stages[stage ^ 1], other, head, next, a);
        if (wild) {
            if (is_first) clamp_rows<2 * Tiles::ROWS, WIDTH>(s.rows);
            clamp_rows<2 * Tiles::COLUMNS, WIDTH>(s.stages[stage].rows);
            __syncthreads();
        }
        View<OWNS_KEYS> view = {
            row - column,          reach.window, a.T - column, c, sequence_row + (OWNS_KEYS ? column : row),
            sequence_row + a.T - 1};
        if (view.first() >= min(view.last(), Tiles::COLUMNS)) continue; // the whole warp
        differentiate_tile<Score, OWNS_KEYS, WIDTH>(rows, s, warp_row, s.stages[stage], view, wild,
                                                    {mine.rows + row * stride, stride},
                                                    {other.rows + column * stride, stride}, reach.log2_decay, c);
    }
    floatX *dq = a.dqkv + ((size_t)(head / c.NH) * a.T + row) * stride + (size_t)(head % c.NH) * c.HS;
    write_gradient<Score>(OWNS_KEYS ? dq + c.C : dq, rows, s.rows + warp_row * Tiles::STRIDE, a.T - row, c);
    if constexpr (OWNS_KEYS) {
#pragma unroll
        for (int i = 0; i < WIDTH / 4; i++) {
            const float *x = rows.values[i / 2].x + 2 * (i % 2);
            int mine_at = sum_row(2 * (i % 2));
            if (row + mine_at < a.T)
                store_columns(dq + 2 * c.C + mine_at * stride, i / 2 * 8 + sum_column(0), c.HS, x[0], x[1]);
        }
        __syncthreads();
        if (a.dlog_decays)
            write_decay(a.dlog_decays + (size_t)head * gridDim.y + blockIdx.y, rows.dlog_decay, (double *)&s.stages[0]);
    }
}

template <class Score, int WIDTH, bool OWNS_KEYS>
int launch_differentiate(const Differentiate &a, int heads, cudaStream_t stream) {
    typedef DifferentiateTiles<Score, WIDTH, OWNS_KEYS> Tiles;
    allow_shared_memory<Tiles>(differentiate<Score, WIDTH, OWNS_KEYS>);
    dim3 grid(heads, tiles_of(a.T, Tiles::ROWS));
    differentiate<Score, WIDTH, OWNS_KEYS><<<grid, Tiles::THREADS, sizeof(Tiles), stream>>>(a);
    launch_check();
    return (int)grid.y;
}

// Returns how many tiles a head's rows have.
template <class Score, bool OWNS_KEYS>
int differentiate_any(const Differentiate &a, int width, int heads, cudaStream_t stream) {
    if (width == 32) return launch_differentiate<Score, 32, OWNS_KEYS>(a, heads, stream);
    if (width == 64) return launch_differentiate<Score, 64, OWNS_KEYS>(a, heads, stream);
    return launch_differentiate<Score, 128, OWNS_KEYS>(a, heads, stream);
}

#endif
