// Quadratic attention forward, FlashAttention-2's loop: queries, scores and sums stay in registers, the next tile of
// keys and values arrives while this one is used.
#ifndef ATTENTION_QUADRATIC_FORWARD_CUH
#define ATTENTION_QUADRATIC_FORWARD_CUH

#include "quadratic_tiles.cuh"

template <int WIDTH> struct AttendTiles { // shared memory
    static constexpr int ROWS = sizeof(floatX) == 2 ? 128 : WIDTH > 64 ? 32 : 64, COLUMNS = ROWS / 2;
    static constexpr int THREADS = ROWS / WARP_ROWS * 32, STRIDE = tile_stride<floatX, WIDTH>;
    struct Stage {
        alignas(16) floatX rows[2 * COLUMNS * STRIDE]; // keys, then values; in the second stage at first the queries
        alignas(16) float measures[COLUMNS];
        __device__ floatX *keys() { return rows; }
        __device__ floatX *values() { return rows + COLUMNS * STRIDE; }
    } stages[2];
};

template <int WIDTH> struct Rows { // of a warp: numbers 0 and 1 are rows lane / 4 and lane / 4 + 8
    LeftFragment<floatX> queries[WIDTH / 16];
    SumFragment sums[WIDTH / 8];
    float measures[2];
    float levels[2], totals[2]; // totals: of this lane's columns only
};

typedef struct { // of a head
    const floatX *k, *v;
    const float *measures;
} HeadKeys;

__device__ static inline HeadKeys keys_of_head(int head, const Attend &a) {
    const Common &c = a.common;
    size_t sequence_row = (size_t)(head / c.NH) * a.queries; // a cache is of one sequence
    size_t at = sequence_row * a.key_stride + (size_t)(head % c.NH) * c.HS;
    return {a.k + at, a.v + at, a.key_measures.numbers + (size_t)head * a.key_measures.stride};
}

// Starts to bring the keys from `place` on to a stage, of which so many are present.
template <class Score, int WIDTH>
__device__ void stage_keys(typename AttendTiles<WIDTH>::Stage &stage, const HeadKeys &from, int place, int present,
                           const Attend &a) {
    constexpr int COLUMNS = AttendTiles<WIDTH>::COLUMNS, THREADS = AttendTiles<WIDTH>::THREADS;
    size_t at = place * a.key_stride;
    stage_rows<THREADS, COLUMNS, WIDTH>(stage.keys(), from.k + at, a.key_stride, present, a.common.HS);
    stage_rows<THREADS, COLUMNS, WIDTH>(stage.values(), from.v + at, a.key_stride, present, a.common.HS);
    if (Score::uses_distance) stage_numbers<COLUMNS>(stage.measures, from.measures + place, present);
    copies_commit();
}

// Turns a tile's dot products and spreads into weights, in place of the former, and adds them to the totals. Rescales
// the sums of rows whose level has risen.
template <class Score, Care CARE, int WIDTH, int N>
__device__ void weigh(Rows<WIDTH> &rows, Pairs<Score, N> &pairs, const View<false> &view, float log2_decay) {
    constexpr int normalizer = Score::normalizer;
    constexpr bool has_levels = normalizer == NORMALIZER_SOFTMAX || CARE == CAREFUL;
    float highest[2] = {rows.levels[0], rows.levels[1]}, factors[2] = {1, 1}, levels[2] = {1, 1};
#pragma unroll
    for (int e = 0; e < 4 * N; e++) {
        int half = e / 2 % 2, row = sum_row(e % 4), column = e / 4 * 8 + sum_column(e % 4);
        float &x = pairs.dots[e / 4].x[e % 4];
        x = score_of<Score, CARE == CAREFUL>(x, pairs.spreads[e / 4].x[e % 4]);
        if (CARE == CAREFUL && log2_decay != 0) x = faded<Score>(x, log2_decay, view.distance(row, column));
        if (CARE != PLAIN && !view.sees(row, column)) x = hidden_score<normalizer>();
        if (has_levels) highest[half] = fmaxf(highest[half], x);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (!has_levels) continue;
        float raised = raised_level<normalizer>(rows.levels[half], quad_max(highest[half]));
        levels[half] = raised == -INFINITY ? 0.0f : raised; // no key was seen yet
        if (raised != rows.levels[half]) factors[half] = relevel<normalizer>(rows.levels[half], raised);
        rows.levels[half] = raised;
    }
    float sums[2] = {};
#pragma unroll
    for (int e = 0; e < 4 * N; e++) {
        float &x = pairs.dots[e / 4].x[e % 4];
        if (has_levels) x = weight_of<normalizer>(x, levels[e / 2 % 2]);
        sums[e / 2 % 2] += x;
    }
#pragma unroll
    for (int half = 0; half < 2; half++) rows.totals[half] = fmaf(rows.totals[half], factors[half], sums[half]);
    if constexpr (has_levels) {
        if (!__any_sync(ALL_LANES, factors[0] != 1.0f || factors[1] != 1.0f)) return;
#pragma unroll
        for (int e = 0; e < WIDTH / 2; e++) rows.sums[e / 4].x[e % 4] *= factors[e / 2 % 2];
    }
}

// A warp's 16 queries against one tile of keys. `mine` and `other`: where the rows of q and k are in global memory.
template <class Score, int WIDTH>
__device__ void attend_tile(Rows<WIDTH> &rows, typename AttendTiles<WIDTH>::Stage &stage, const View<false> &view,
                            bool wild, const GlobalRows &mine, const GlobalRows &other, float log2_decay,
                            const Common &c) {
    constexpr int COLUMNS = AttendTiles<WIDTH>::COLUMNS, N = COLUMNS / 8;
    Pairs<Score, N> pairs;
    multiply_rows<WIDTH, N>(pairs.dots, stage.keys(), [&](LeftFragment<floatX> &a, int k) { a = rows.queries[k]; });
    bool near = pairs.compare(rows.measures, stage.measures, product_scale<Score>(c), c.eps);
    if constexpr (Score::uses_distance) near = __any_sync(ALL_LANES, near);
    bool tame = !wild && !near && log2_decay == 0;
    if (tame && view.is_full(COLUMNS)) {
        weigh<Score, PLAIN>(rows, pairs, view, 0);
        add_rows<true, WIDTH, N>(rows.sums, pairs.dots, stage.values(), 0, COLUMNS);
        return;
    }
    if constexpr (Score::uses_distance)
        if (near)
            correct_spreads(pairs, pairs.near_pairs(rows.measures, stage.measures), mine, other, rows.measures,
                            stage.measures, c);
    if (tame)
        weigh<Score, MASKED>(rows, pairs, view, 0);
    else
        weigh<Score, CAREFUL>(rows, pairs, view, log2_decay);
    add_rows<false, WIDTH, N>(rows.sums, pairs.dots, stage.values(), view.first(), view.last());
}

// The warp's rows of `out`, and what backward wants to know of them. `first`: of the head's rows, `present`: how many.
template <class Score, int WIDTH>
__device__ void write_rows(Rows<WIDTH> &rows, int head, int first, int present, const Attend &a) {
    const Common &c = a.common;
    int stride = row_stride(a.queries);
    floatX *out = a.out + ((size_t)(head / c.NH) * a.queries + first) * c.C + (size_t)(head % c.NH) * c.HS;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = sum_row(2 * half);
        float level = rows.levels[half], total = quad_sum(rows.totals[half]);
        float inverse = inverse_of<Score::normalizer>(level, total, c.delta);
        if (row >= present) continue;
#pragma unroll
        for (int j = 0; j < WIDTH / 8; j++) {
            const float *x = rows.sums[j].x + 2 * half;
            store_columns(out + (size_t)row * c.C, 8 * j + sum_column(0), c.HS, x[0] * inverse, x[1] * inverse);
        }
        if (!a.saved || tile_lane() % 4) continue;
        float *levels = a.saved + (size_t)head * 2 * stride + first + row;
        levels[0] = level;
        levels[stride] = Score::normalizer == NORMALIZER_SOFTMAX ? inverse : inverse / level;
    }
}

// A warp's queries from the stage that they came in; the measures of the rows that there are.
template <class Score, int WIDTH>
__device__ void take_queries(Rows<WIDTH> &rows, const floatX *queries, int head, int first, int present,
                             const RowMeasures &measures) {
#pragma unroll
    for (int k = 0; k < WIDTH / 16; k++) load_left(rows.queries[k], queries + 16 * k, tile_stride<floatX, WIDTH>);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = sum_row(2 * half);
        rows.levels[half] = first_level<Score::normalizer>(), rows.totals[half] = rows.measures[half] = 0;
        if (Score::uses_distance && row < present)
            rows.measures[half] = measures.numbers[(size_t)head * measures.stride + first + row];
    }
#pragma unroll
    for (int j = 0; j < WIDTH / 8; j++) rows.sums[j] = {};
}

// One tile of queries of one head against all the keys that they see. (The 1 in the launch bounds: without it the
// compiler would spill registers in order to fit more blocks.)
template <class Score, int WIDTH> __global__ void __launch_bounds__(AttendTiles<WIDTH>::THREADS, 1) attend(Attend a) {
    typedef AttendTiles<WIDTH> Tiles;
    extern __shared__ uint4 shared[];
    Tiles &s = *reinterpret_cast<Tiles *>(shared);
    const Common &c = a.common;
    int warp_row = (int)threadIdx.x / 32 * WARP_ROWS, head = (int)blockIdx.x;
    int first_query = (int)(gridDim.y - 1 - blockIdx.y) * Tiles::ROWS; // the longest rows start first
    int present = min(Tiles::ROWS, a.queries - first_query), keys = a.first + first_query + present;
    Reach reach = reach_of(c, head);
    bool wild = is_wild(c, head);
    int first_row = head / c.NH * a.queries, sight = sight_of(c, first_row + first_query, reach.window);
    int key = max(a.first + first_query - sight + 1, 0) / Tiles::COLUMNS * Tiles::COLUMNS;

    size_t column = (size_t)(head % c.NH) * c.HS, sequence_row = (size_t)(head / c.NH) * a.queries;
    const floatX *q = a.q + (sequence_row + first_query) * a.query_stride + column;
    HeadKeys from = keys_of_head(head, a);
    int place = a.ring ? key % a.ring : key; // a ring that is begun again has whole tiles
    stage_rows<Tiles::THREADS, Tiles::ROWS, WIDTH>(s.stages[1].rows, q, a.query_stride, present, c.HS);
    stage_keys<Score, WIDTH>(s.stages[0], from, place, keys - key, a);
    copies_wait<0>();
    __syncthreads();
    if (wild) {
        clamp_rows<Tiles::ROWS, WIDTH>(s.stages[1].rows);
        __syncthreads();
    }
    Rows<WIDTH> rows;
    take_queries<Score>(rows, s.stages[1].rows + warp_row * Tiles::STRIDE, head, first_query + warp_row,
                        present - warp_row, a.query_measures);
    GlobalRows mine = {q + (size_t)warp_row * a.query_stride, a.query_stride};
    for (int stage = 0; key < keys; key += Tiles::COLUMNS, stage ^= 1) {
        copies_wait<0>();
        __syncthreads(); // the tile is there, and all warps have done with the one before
        GlobalRows other = {from.k + place * a.key_stride, a.key_stride};
        place += Tiles::COLUMNS;
        if (a.ring && place >= a.ring) place = 0;
        if (key + Tiles::COLUMNS < keys)
            stage_keys<Score, WIDTH>(s.stages[stage ^ 1], from, place, keys - key - Tiles::COLUMNS, a);
        if (wild) {
            clamp_rows<2 * Tiles::COLUMNS, WIDTH>(s.stages[stage].rows);
            __syncthreads();
        }
        View<false> view = {a.first + first_query + warp_row - key,
                            reach.window,
                            Tiles::COLUMNS,
                            c,
                            first_row + first_query + warp_row,
                            first_row + a.queries - 1};
        if (view.first() >= view.last()) continue; // the whole warp
        attend_tile<Score, WIDTH>(rows, s.stages[stage], view, wild, mine, other, reach.log2_decay, c);
    }
    write_rows<Score>(rows, head, first_query + warp_row, present - warp_row, a);
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

#endif
