// What a block does with one chunk of its walk (linear_walk.cuh), and the kernel that goes from chunk to chunk.
#ifndef ATTENTION_LINEAR_CHUNK_CUH
#define ATTENTION_LINEAR_CHUNK_CUH

#include "linear_walk.cuh"

// exp(difference) for differences that are above 0 only where the result does not matter. NaN stays NaN.
__device__ static inline float scale_factor(float difference) {
    return expf(difference > 0 ? 0.0f : difference);
}

enum { THE_ROWS, THE_OTHERS }; // the sides of a walk

template <typename Map, int WIDTH, WalkMode MODE> struct Walker {
    typedef LinearWalk<Map, WIDTH> Walk;
    typedef typename Walk::Tile Tile;
    typedef typename Walk::Operand Operand;
    typedef LeftFragment<Operand> Left;
    static constexpr int ROWS = Walk::ROWS, STRIDE = Walk::EXTENDED_STRIDE, DEPTHS = Walk::EXTENDED / 16;
    static constexpr bool KEEPS_ROWS = has_gradient(MODE) && sizeof(Operand) == 2; // floats take too many registers
    static constexpr int UNROLLED = sizeof(Operand) == 2 ? DEPTHS : 1;

    const Map &map;
    const WalkPass &pass;
    const SharedLayout &layout;
    floatX *x[2];
    Operand *extended[2], *state_tile;
    LinearFactors<Tile> factors[2];
    LinearGradients<Tile> d;
    Numbers numbers;
    float *scratch;
    int task, head;     // a head of a sequence; the head
    int first, present; // rows of the chunk at hand
    bool fades;
    float log_decay, keep; // the state's factor from chunk to chunk
    double *warp_sums;     // (WARPS, 2) in place of a chunk's numbers, when they have done their work
    SumFragment state[Walk::BLOCKS][Walk::COLUMN_OCTETS];
    SumFragment results[Walk::OWN_OCTETS];  // this warp's octets of columns, own_octet
    Left own_rows[KEEPS_ROWS ? DEPTHS : 1]; // this warp's extended rows, for gradients
    SumFragment d_phi[Walk::OWN_FEATURES];  // maps that are no product: this warp's octets of features
    SumFragment d_single;                   // products with one octet of inner features: its gradient
    float flow[2], near;                    // for a learned decay: <phi, d_phi> of this lane's rows, and of pairs

    __device__ Walker(const Map &map_, const WalkPass &pass_, char *shared)
        : map(map_), pass(pass_), layout(pass_.layout) {
        float *at = (float *)(shared + layout.numbers);
#pragma unroll
        for (int side = 0; side < 2; side++) {
            x[side] = (floatX *)(shared + layout.x[side]);
            extended[side] = (Operand *)(shared + layout.extended[side]);
            factors[side] = {(Operand *)(shared + layout.outer[side]), (Operand *)(shared + layout.inner[side]),
                             at + (5 + side) * ROWS, layout.inner_stride};
        }
        state_tile = (Operand *)(shared + layout.state);
        d = {(float *)(shared + layout.d_outer), (float *)(shared + layout.d_inner), at + 7 * ROWS,
             layout.d_inner_stride};
        numbers = {at, (int *)at, at + ROWS, at + 2 * ROWS, {at + 3 * ROWS, at + 4 * ROWS}};
        head = (int)blockIdx.y, task = (int)blockIdx.z * pass.NH + head;
        scratch = (float *)(shared + layout.scratch);
        fades = Map::LOG_SCALED || pass.decay.kind != DECAY_NONE || pass.positions;
        log_decay = fades ? log_decay_of(pass.decay, head) : 0.0f;
        keep = 1;
        warp_sums = (double *)at;
    }

    // Of the task's segments, in the order of the states in memory.
    __device__ size_t block_number() const {
        return (size_t)task * pass.segments + blockIdx.x;
    }

    // ---- rows from memory

    // Which part of qkv a side is: 0 q, 1 k. Keys have values as extended rows, queries the incoming gradient.
    __device__ static constexpr int part_of(int side) {
        return (side == THE_OTHERS) != walks_backwards(MODE);
    }
    // Row `first` of a tensor (B, T, parts, C)
    __device__ size_t row_at(int row, int part, int parts) const {
        size_t C = (size_t)pass.NH * pass.HS;
        return (((size_t)blockIdx.z * pass.T + row) * parts + part) * C + (size_t)head * pass.HS;
    }
    __device__ size_t row_stride(int parts) const {
        return (size_t)parts * pass.NH * pass.HS;
    }

    __device__ void begin(floatX *tile, int apart, const floatX *rows, size_t stride, int count) {
        int thread = opaque((int)threadIdx.x);
        if (stages_async<floatX>(pass.HS))
            stage_async_by<Tile::THREADS, ROWS, WIDTH>(tile, rows, stride, count, pass.HS, thread, apart);
        else
            stage_plainly<ROWS, WIDTH>(tile, rows, stride, count, pass.HS, thread, Tile::THREADS, apart);
    }
    __device__ void begin_x(int side, int from) {
        if (from >= 0 && from < pass.T)
            begin(x[side], Tile::X_STRIDE, pass.qkv + row_at(from, part_of(side), 3), row_stride(3), pass.T - from);
    }
    __device__ const floatX *extended_rows(int side) const {
        return part_of(side) ? pass.qkv + row_at(first, 2, 3) : pass.dout + row_at(first, 0, 1);
    }
    __device__ void begin_extended(int side) {
        if constexpr (Walk::STAGES_RAW)
            begin((floatX *)extended[side], STRIDE, extended_rows(side), row_stride(part_of(side) ? 3 : 1), present);
    }

    // Rows (ROWS, WIDTH) of a tile, as they take part. Almost always they are in range already.
    __device__ static void limit_rows(floatX *tile, int stride) {
        constexpr int CHUNK = 16 / (int)sizeof(floatX), CHUNKS = WIDTH / CHUNK;
        for (int i = opaque((int)threadIdx.x); i < ROWS * CHUNKS; i += Tile::THREADS) {
            floatX *at = tile + i / CHUNKS * stride + i % CHUNKS * CHUNK;
            if (are_inputs<floatX>(*(const uint4 *)at)) continue;
            for (int c = 0; c < CHUNK; c++) at[c] = from_float<floatX>(as_input(at[c]));
        }
    }
    __device__ void finish_x(int side) {
        limit_rows(x[side], Tile::X_STRIDE);
    }
    // Two neighbouring numbers, the first in column c, of a row of a tensor; zeros where there are none.
    __device__ float2 two_of_row(const floatX *row, int c, bool is_there) const {
        if (pass.HS % 2 == 0) return is_there && c < pass.HS ? load_two(row + c) : make_float2(0, 0);
        return make_float2(is_there && c < pass.HS ? to_float(row[c]) : 0.0f,
                           is_there && c + 1 < pass.HS ? to_float(row[c + 1]) : 0.0f);
    }
    // Of the extended rows as they are in memory.
    __device__ float2 raw_two(int side, int row, int c) const {
        if constexpr (Walk::STAGES_RAW) return load_two(extended[side] + row * STRIDE + c);
        return two_of_row(extended_rows(side) + row * row_stride(part_of(side) ? 3 : 1), c, row < present);
    }
    // What stands beside the vector; columns beyond it are 0.
    __device__ void set_beside(int side, int row, int pair, float number) {
        store_two(extended[side] + row * STRIDE + WIDTH + 2 * pair, pair ? 0.0f : number, 0.0f);
    }
    __device__ void finish_values(int side) {
        constexpr int PAIRS = WIDTH / 2, BESIDE = (Walk::EXTENDED - WIDTH) / 2;
        if constexpr (Walk::STAGES_RAW)
            limit_rows((floatX *)extended[side], STRIDE);
        else
            for (int i = opaque((int)threadIdx.x); i < ROWS * PAIRS; i += Tile::THREADS) {
                float2 two = raw_two(side, i / PAIRS, i % PAIRS * 2);
                store_two(extended[side] + i / PAIRS * STRIDE + i % PAIRS * 2, as_input(two.x), as_input(two.y));
            }
        for (int i = opaque((int)threadIdx.x); i < ROWS * BESIDE; i += Tile::THREADS)
            set_beside(side, i / BESIDE, i % BESIDE, i / BESIDE < present ? 1.0f : 0.0f);
    }
    // (dout / g, beta); four lanes have a row.
    __device__ void finish_gradient(int side) {
        for (int row = opaque((int)threadIdx.x) / 4; row < ROWS; row += Tile::THREADS / 4) {
            int lane = threadIdx.x % 4;
            bool is_there = row < present;
            float dot = 0, g = is_there ? pass.denominators[(size_t)task * pass.T + first + row] : 1.0f,
                  inverse = 1 / g;
            const floatX *out = pass.out + row_at(first, 0, 1) + row * row_stride(1);
#pragma unroll
            for (int c = 2 * lane; c < WIDTH; c += 8) {
                float2 two = raw_two(side, row, c), out_two = two_of_row(out, c, is_there);
                dot += two.x * out_two.x + two.y * out_two.y;
                store_two(extended[side] + row * STRIDE + c, two.x * inverse, two.y * inverse);
            }
            dot = quad_sum(dot);
            float beta = is_there ? sum_gradient(dot, g, pass.rule) : 0.0f;
            set_beside(side, row, lane, beta), set_beside(side, row, lane + 4, 0.0f);
        }
    }
    template <int SIDE> __device__ void finish_extended() {
        if constexpr (part_of(SIDE))
            finish_values(SIDE);
        else
            finish_gradient(SIDE);
    }

    // ---- features

    // What rounds a slice up to whole octets and operands is 0: from the start where features have their own place,
    // else chunk by chunk: the gradients of the one before may have been there.
    __device__ void clear_padding(int side) {
        int inners = slice_inners16(pass.slice), spare = inners - pass.slice.inners;
        for (int i = opaque((int)threadIdx.x); i < ROWS * spare; i += Tile::THREADS)
            factors[side].set_inner(i / spare, pass.slice.inners + i % spare, 0);
        if constexpr (Map::IS_PRODUCT) {
            int from = pass.slice.outers * ROWS, to = round_up_to(pass.slice.outers, 16) * ROWS;
#pragma unroll
            for (int i = from + threadIdx.x; i < to; i += Tile::THREADS) factors[side].set_outer(i % ROWS, i / ROWS, 0);
        }
    }

    __device__ float running_max_at(int row) const {
        if constexpr (!Map::LOG_SCALED) return 0;
        if (row >= 0) return pass.running_max[(size_t)task * pass.T + row];
        return pass.max_before ? pass.max_before[head] : -INFINITY;
    }

    // The factors of pairs and of the state. With k of them between them, a key has faded by decay^k, and a log_scaled
    // map's is relative to the largest scale that the query has seen; the state is relative to the largest before the
    // chunk, and counts keys as seen from the row before it. No factor is above 1. The state is of one document, that
    // of the chunk's last row, or of the row before the chunk.
    __device__ void relate_rows() {
        int sequence = (int)blockIdx.z, last = first + present - 1;
        float before = running_max_at(first - 1) + log_decay;
        float end = running_max_at(first + present - 1) - log_decay * (float)(present - 1);
        constexpr int KEYS = part_of(THE_ROWS) ? THE_ROWS : THE_OTHERS;
        constexpr bool HAS_SCALES = Map::LOG_SCALED && (has_results(MODE) || KEYS == THE_OTHERS);
        for (int i = opaque((int)threadIdx.x); i < ROWS; i += Tile::THREADS) {
            float key = (HAS_SCALES ? factors[KEYS].log_scale[i] : 0.0f) - log_decay * (float)i;
            float query = running_max_at(first + min(i, present - 1)) - log_decay * (float)i;
            numbers.key_level[i] = key, numbers.query_level[i] = query;
            numbers.weight[KEYS][i] = scale_factor(key - end);
            numbers.weight[1 - KEYS][i] = scale_factor(before - query);
            if (i >= present || begins_after(pass, sequence, first + i + 1, last)) numbers.weight[KEYS][i] = 0;
            if (i >= present || begins_after(pass, sequence, first, first + i)) numbers.weight[1 - KEYS][i] = 0;
            if (pass.positions) numbers.position[i] = pass.positions[(size_t)sequence * pass.T + min(first + i, last)];
        }
        keep = begins_after(pass, sequence, first, last) ? 0.0f : scale_factor(before - end);
    }

    // Put together when it is wanted: registers are short.
    __device__ LinearPlace place() const {
        LinearPlace place;
        place.head = head;
        place.position = pass.position + first;
        place.present = present;
        place.first_outer = pass.slice.first_outer, place.outers = pass.slice.outers;
        place.first_inner = pass.slice.first_inner, place.inners = pass.slice.inners;
        place.scratch = scratch;
        place.d_projections =
            pass.d_projections ? pass.d_projections + block_number() * map.shape.projections * WIDTH : NULL;
        return place;
    }
    __device__ void make_features(int side) {
        map.template features<Tile>(factors[side], x[side], place());
    }

    // ---- the state

    __device__ float *state_at(float *states, int block, int octet) const {
        size_t features = (size_t)round_up_to(pass.slice.octets, 2) * 8;
        size_t feature = (size_t)(block * Walk::BLOCK_OCTETS + opaque((int)threadIdx.x) / 32 * 2) * 8;
        return states + (block_number() * features + feature) * Walk::COLUMNS + octet * 8;
    }
    __device__ bool has_block(int block) const {
        return block * Walk::BLOCK_OCTETS + 2 * linear_warp() < pass.slice.octets;
    }
    __device__ void load_state() {
#pragma unroll
        for (int i = 0; i < Walk::BLOCKS * Walk::COLUMN_OCTETS; i++) {
            int block = i / Walk::COLUMN_OCTETS, octet = i % Walk::COLUMN_OCTETS;
            SumFragment &to = state[block][octet];
            to = {};
            if (!pass.carry_in || !has_block(block)) continue;
            const float *from = state_at((float *)pass.carry_in, block, octet);
#pragma unroll
            for (int k = 0; k < 4; k++) to.x[k] = from[sum_row(k) * Walk::COLUMNS + sum_column(k)];
        }
    }
    __device__ void store_state() {
        if (!pass.carry_out) return;
#pragma unroll
        for (int i = 0; i < Walk::BLOCKS * Walk::COLUMN_OCTETS; i++) {
            int block = i / Walk::COLUMN_OCTETS, octet = i % Walk::COLUMN_OCTETS;
            if (has_block(block))
                store_sums(state_at(pass.carry_out, block, octet), Walk::COLUMNS, state[block][octet]);
        }
    }
    __device__ void share_state(int block) {
        Operand *to = state_tile + 16 * linear_warp() * STRIDE;
#pragma unroll
        for (int octet = 0; octet < Walk::COLUMN_OCTETS; octet++)
            store_sums(to + octet * 8, STRIDE, state[block][octet]);
        store_sums(to + Walk::COLUMNS, STRIDE, SumFragment{});
    }
    // Where there is one octet of inner features: phi's octets are that one times one outer feature after the other.
    __device__ bool is_single() const {
        return Map::IS_PRODUCT && pass.slice.inner_octets == 1;
    }
    // phi^T of 16 of the chunk's others, this warp's features of COUNT blocks from FIRST on.
    template <int FIRST, int COUNT> __device__ void load_own_phi(Left (&a)[COUNT], int row) {
        const float *weight = numbers.weight[THE_OTHERS] + row;
        if (is_single()) {
            RightFragment<Operand> b;
            load_right(b, factors[THE_OTHERS].inner + row * layout.inner_stride, layout.inner_stride);
            if (fades) weigh_columns(b, weight);
            const Operand *outer = factors[THE_OTHERS].outer + 2 * linear_warp() * Tile::OUTER_STRIDE + row;
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                const Operand *at = outer + (FIRST + i) * Walk::BLOCK_OCTETS * Tile::OUTER_STRIDE;
                set_product_transposed<0>(a[i], b, at);
                set_product_transposed<1>(a[i], b, at + Tile::OUTER_STRIDE);
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            OctetPlace place0 = octet_place((FIRST + i) * Walk::BLOCK_OCTETS + 2 * linear_warp(), pass.slice);
            load_phi_transposed<Map::IS_PRODUCT>(a[i], factors[THE_OTHERS], row, place0,
                                                 next_octet(place0, pass.slice));
            if (fades) weigh_columns(a[i], weight);
        }
    }
    // COUNT blocks from FIRST on take in 16 of the chunk's others; an operand of extended rows serves all of them.
    template <int FIRST, int COUNT> __device__ void update_blocks(int row) {
        const Operand *right = extended[THE_OTHERS] + row * STRIDE;
        Left a[COUNT];
        load_own_phi<FIRST>(a, row);
#pragma unroll
        for (int octet = 0; octet < Walk::COLUMN_OCTETS; octet += 2) {
            RightPair<Operand> b;
            if (octet + 1 < Walk::COLUMN_OCTETS)
                load_right(b, right + octet * 8, STRIDE);
            else
                load_right(b.half[0], right + octet * 8, STRIDE);
#pragma unroll
            for (int i = 0; i < 2 * COUNT; i++)
                if (octet + i % 2 < Walk::COLUMN_OCTETS)
                    multiply_add(state[FIRST + i / 2][octet + i % 2], a[i / 2], b.half[i % 2]);
        }
    }
    template <int BLOCK> __device__ void update_block_by_block(int row) {
        if constexpr (BLOCK < Walk::BLOCKS) {
            if (has_block(BLOCK)) update_blocks<BLOCK, 1>(row);
            update_block_by_block<BLOCK + 1>(row);
        }
    }
    __device__ void update_state() {
        if (fades)
#pragma unroll
            for (int i = 0; i < Walk::BLOCKS * 4 * Walk::COLUMN_OCTETS; i++)
                state[i / 4 / Walk::COLUMN_OCTETS][i / 4 % Walk::COLUMN_OCTETS].x[i % 4] *= keep;
        bool has_all = has_block(Walk::BLOCKS - 1);
#pragma unroll 1
        for (int row = 0; row < ROWS; row += 16) {
            if (has_all)
                update_blocks<0, Walk::BLOCKS>(row);
            else
                update_block_by_block<0>(row);
        }
    }

    // ---- results from the state

    __device__ static int first_row() {
        return row_tile_of_warp<Tile>() * 16;
    }

    // results += phi S
    __device__ void add_from_state(int block) {
        int from = block * Walk::BLOCK_OCTETS, to = min(from + Walk::BLOCK_OCTETS, pass.slice.octets);
        if (from >= to) return;
        if constexpr (Map::IS_PRODUCT) {
            if (is_single()) return add_from_single(from, to);
        }
        OctetPlace place0 = octet_place(from, pass.slice);
#pragma unroll 1
        for (int octet = from; octet < to; octet += 2) {
            OctetPlace place1 = next_octet(place0, pass.slice);
            Left a;
            load_phi<Map::IS_PRODUCT>(a, factors[THE_ROWS], first_row(), place0, place1);
            if (fades) weigh_rows(a, numbers.weight[THE_ROWS] + first_row());
            place0 = next_octet(place1, pass.slice);
            add_to_results(a, state_tile + (octet - from) * 8 * STRIDE);
        }
    }
    __device__ void add_from_single(int from, int to) {
        const Operand *outer = factors[THE_ROWS].outer + from * Tile::OUTER_STRIDE + first_row(), *right = state_tile;
        InnerOctet<Operand> inner;
        load_octet(inner, factors[THE_ROWS].inner + first_row() * layout.inner_stride, layout.inner_stride);
        if (fades) weigh_rows(inner, numbers.weight[THE_ROWS] + first_row());
#pragma unroll 2
        for (int octet = from; octet < to; octet += 2, outer += 2 * Tile::OUTER_STRIDE, right += 16 * STRIDE) {
            Left a;
            set_product<0>(a, inner, outer);
            set_product<1>(a, inner, outer + Tile::OUTER_STRIDE);
            add_to_results(a, right);
        }
    }
    // results += a right, 16 extended rows
    __device__ void add_to_results(const Left &a, const Operand *right) {
        int part = part_of_warp<Tile>();
#pragma unroll
        for (int i = 0; i < Walk::OWN_OCTETS; i++) {
            int octet = Walk::own_octet(part, i);
            if (octet >= Walk::COLUMN_OCTETS) continue;
            if constexpr (Walk::HAS_PAIRS) {
                if (i % 2) continue;
                if (i + 1 < Walk::OWN_OCTETS) {
                    RightPair<Operand> b;
                    load_right(b, right + octet * 8, STRIDE);
                    multiply_add(results[i], a, b.half[0]);
                    multiply_add(results[i + 1], a, b.half[1]);
                    continue;
                }
            }
            RightFragment<Operand> b;
            load_right(b, right + octet * 8, STRIDE);
            multiply_add(results[i], a, b);
        }
    }

    // 16 columns of this warp's extended rows
    __device__ Left extended_left(int depth) const {
        if constexpr (KEEPS_ROWS) return own_rows[depth];
        Left a;
        load_left(a, extended[THE_ROWS] + first_row() * STRIDE + depth * 16, STRIDE);
        return a;
    }
    // (extended rows) S^T for one octet of features (16, 8)
    __device__ SumFragment octet_gradient(int octet) {
        SumFragment sums = {};
#pragma unroll UNROLLED
        for (int depth = 0; depth < DEPTHS; depth++) {
            RightFragment<Operand> b;
            load_right_transposed(b, state_tile + octet * 8 * STRIDE + depth * 16, STRIDE);
            multiply_add(sums, extended_left(depth), b);
        }
        weigh_sums(sums);
        return sums;
    }
    __device__ void weigh_sums(SumFragment &sums) const {
        if (fades)
#pragma unroll
            for (int k = 0; k < 4; k++) sums.x[k] *= numbers.weight[THE_ROWS][first_row() + sum_row(k)];
    }
    // What reaches the features of the rows through a block of the state.
    __device__ void add_gradient_from_state(int block) {
        int from = block * Walk::BLOCK_OCTETS, to = min(Walk::BLOCK_OCTETS, pass.slice.octets - from);
        if constexpr (Map::IS_PRODUCT) {
            if (is_single()) return contract_single(from, to);
#pragma unroll 1
            for (int octet = part_of_warp<Tile>(); octet < to; octet += Walk::PARTS)
                contract(octet_gradient(octet), octet_place(from + octet, pass.slice));
        } else {
#pragma unroll
            for (int i = 0; i < Walk::OWN_FEATURES; i++) {
                int octet = part_of_warp<Tile>() + i * Walk::PARTS;
                if (octet < to) add_plainly(d_phi[i], octet_gradient(octet), octet_place(from + octet, pass.slice));
            }
        }
    }
    __device__ void add_plainly(SumFragment &to, const SumFragment &sums, OctetPlace at) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            to.x[k] += sums.x[k];
            if (pass.d_log_decay)
                flow[k / 2] +=
                    sums.x[k] * factors[THE_ROWS].inner_at(first_row() + sum_row(k), at.inner + sum_column(k));
        }
    }
    // The gradients of both factors. Octets are shared out so that no two warps have the same inner features of a row;
    // of the outer ones every part has a copy.
    __device__ void contract(const SumFragment &sums, OctetPlace at) {
        int part = part_of_warp<Tile>(), outers = round_up_to(pass.slice.outers, 16);
        float *d_outer = d.outer + (part * outers + at.outer) * Tile::D_OUTER_STRIDE;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = first_row() + sum_row(2 * half), column = at.inner + sum_column(0);
            float outer = factors[THE_ROWS].outer_at(row, at.outer), along = 0;
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float number = sums.x[2 * half + k];
                along += number * factors[THE_ROWS].inner_at(row, column + k);
                d.inner[row * d.inner_stride + column + k] += number * outer;
            }
            if (pass.d_log_decay) flow[half] += along * outer;
            if constexpr (!Map::OUTER_IS_FIXED) {
                along = quad_sum(along);
                if (tile_lane() % 4 == 0) d_outer[row] += along;
            }
        }
    }
    // The same where there is one octet of inner features, two outer ones at a time: every part has other outer
    // features, and the inner ones' gradients in d_single. (What rounds their number up is 0.)
    __device__ void contract_single(int from, int to) {
        float inner[4];
#pragma unroll
        for (int k = 0; k < 4; k++) inner[k] = factors[THE_ROWS].inner_at(first_row() + sum_row(k), sum_column(k));
#pragma unroll 1
        for (int octet = 2 * part_of_warp<Tile>(); octet < to; octet += 2 * Walk::PARTS) {
            SumFragment sums[2] = {};
#pragma unroll UNROLLED
            for (int depth = 0; depth < DEPTHS; depth++) {
                RightPair<Operand> b;
                Left a = extended_left(depth);
                load_right_transposed(b, state_tile + octet * 8 * STRIDE + depth * 16, STRIDE);
#pragma unroll
                for (int half = 0; half < 2; half++) multiply_add(sums[half], a, b.half[half]);
            }
            weigh_sums(sums[0]), weigh_sums(sums[1]);
            contract_two(sums, inner, from + octet);
        }
    }
    __device__ void contract_two(const SumFragment (&sums)[2], const float (&inner)[4], int e) {
        const Operand *outer = factors[THE_ROWS].outer + e * Tile::OUTER_STRIDE + first_row() + tile_lane() / 4;
        float along[4]; // of row 8 (i / 2) and outer feature i % 2
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *x = sums[i % 2].x + i / 2 * 2;
            float feature = to_float(outer[i % 2 * Tile::OUTER_STRIDE + i / 2 * 8]);
            along[i] = x[0] * inner[i / 2 * 2] + x[1] * inner[i / 2 * 2 + 1];
            d_single.x[i / 2 * 2] += x[0] * feature, d_single.x[i / 2 * 2 + 1] += x[1] * feature;
            if (pass.d_log_decay) flow[i / 2] += along[i] * feature;
        }
        if constexpr (!Map::OUTER_IS_FIXED) {
            int mine = tile_lane() % 4;
            d.outer[(e + mine % 2) * Tile::D_OUTER_STRIDE + first_row() + tile_lane() / 4 + mine / 2 * 8] +=
                quad_sum(along);
        }
    }

    // ---- pairs of rows within the chunk

    // Columns of `other` tile: <outer, outer> and <inner, inner> of the rows with it, (16, 16)
    __device__ void multiply_factors(SumFragment (&outer)[2], SumFragment (&inner)[2], int other) {
        int stride = layout.inner_stride;
        outer[0] = outer[1] = inner[0] = inner[1] = {};
        for (int p = 0; p < slice_inners16(pass.slice); p += 16) {
            Left a;
            RightPair<Operand> b;
            load_left(a, factors[THE_ROWS].inner + first_row() * stride + p, stride);
            load_right_transposed(b, factors[THE_OTHERS].inner + other * stride + p, stride);
#pragma unroll
            for (int half = 0; half < 2; half++) multiply_add(inner[half], a, b.half[half]);
        }
        if constexpr (Map::IS_PRODUCT)
            for (int e = 0; e < pass.slice.outers; e += 16) {
                Left a;
                RightPair<Operand> b;
                load_left_transposed(a, factors[THE_ROWS].outer + e * Tile::OUTER_STRIDE + first_row(),
                                     Tile::OUTER_STRIDE);
                load_right(b, factors[THE_OTHERS].outer + e * Tile::OUTER_STRIDE + other, Tile::OUTER_STRIDE);
#pragma unroll
                for (int half = 0; half < 2; half++) multiply_add(outer[half], a, b.half[half]);
            }
    }
    // Whether the query of a row and another sees the key.
    __device__ bool sees(int row, int other) const {
        int key = part_of(THE_ROWS) ? row : other, query = part_of(THE_ROWS) ? other : row;
        return key <= query && (!pass.positions || query - key <= numbers.position[query]);
    }
    __device__ float pair_factor(int row, int other) const {
        int key = part_of(THE_ROWS) ? row : other, query = part_of(THE_ROWS) ? other : row;
        return fades ? scale_factor(numbers.key_level[key] - numbers.query_level[query]) : 1.0f;
    }
    // slope (16, 16) = (extended rows) (extended others)^T
    __device__ void multiply_extended(SumFragment (&slope)[2], int other) {
        slope[0] = slope[1] = {};
#pragma unroll UNROLLED
        for (int depth = 0; depth < DEPTHS; depth++) {
            Left a;
            RightPair<Operand> b;
            load_left(a, extended[THE_ROWS] + first_row() * STRIDE + depth * 16, STRIDE);
            load_right_transposed(b, extended[THE_OTHERS] + other * STRIDE + depth * 16, STRIDE);
#pragma unroll
            for (int half = 0; half < 2; half++) multiply_add(slope[half], a, b.half[half]);
        }
    }

    // The scores of the warp's rows with 16 others, and what comes of them.
    __device__ void pair_with(int other) {
        SumFragment outer[2], inner[2], slope[2];
        multiply_factors(outer, inner, other);
        if constexpr (has_gradient(MODE)) multiply_extended(slope, other);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int row = first_row() + sum_row(i % 4), column = other + i / 4 * 8 + sum_column(i % 4);
            bool is_seen = sees(row, column);
            float factor = is_seen ? pair_factor(row, column) : 0.0f;
            float &a = outer[i / 4].x[i % 4], &b = inner[i / 4].x[i % 4], score = Map::IS_PRODUCT ? a * b : b;
            if constexpr (has_gradient(MODE)) {
                float d_score = is_seen ? slope[i / 4].x[i % 4] * factor : 0.0f;
                if (MODE == QUERY_GRADIENT && pass.d_log_decay && is_seen && part_of_warp<Tile>() == 0)
                    near += (float)(row - column) * d_score * score;
                slope[i / 4].x[i % 4] = d_score * (Map::IS_PRODUCT ? a : 1.0f); // of <inner, inner>
                a = d_score * b;                                                // of <outer, outer>
            }
            b = is_seen ? score * factor : 0.0f;
        }
        Left a;
        if constexpr (has_numerator(MODE)) {
            to_left(a, inner[0], inner[1]);
            add_to_results(a, extended[THE_OTHERS] + other * STRIDE);
        }
        if constexpr (has_gradient(MODE)) {
            to_left(a, slope[0], slope[1]);
            add_inner_gradient(a, other);
        }
        if constexpr (has_gradient(MODE) && Map::IS_PRODUCT && !Map::OUTER_IS_FIXED) {
            to_left(a, outer[0], outer[1]);
            add_outer_gradient(a, other);
        }
    }

    __device__ void add_pairs() {
        int own = row_tile_of_warp<Tile>(), from = part_of(THE_ROWS) ? own : 0;
        int to = part_of(THE_ROWS) ? Tile::ROW_TILES : own + 1;
        if constexpr (has_gradient(MODE)) clear_gradients();
#pragma unroll 1
        for (int tile = from; tile < to; tile++) pair_with(tile * 16);
    }

    // ---- gradients of features

    __device__ float *d_outer_at(int octet, int k) const {
        return d.outer + (octet * 8 + sum_column(k)) * Tile::D_OUTER_STRIDE + first_row() + sum_row(k);
    }
    __device__ float *d_inner_at(int octet, int k) const {
        return d.inner + (first_row() + sum_row(k)) * d.inner_stride + octet * 8 + sum_column(k);
    }
    // This warp's octets of both factors, with the copies of the outer ones.
    __device__ void clear_gradients() {
        int part = part_of_warp<Tile>(), outers = round_up_to(pass.slice.outers, 16) / 8 * layout.d_outer_copies;
        flow[0] = flow[1] = near = 0;
        d_single = {};
#pragma unroll
        for (int i = 0; i < Walk::OWN_FEATURES; i++) d_phi[i] = {};
        if constexpr (Map::IS_PRODUCT) {
            for (int octet = part; octet < pass.slice.inner_octets; octet += Walk::PARTS)
#pragma unroll
                for (int k = 0; k < 4; k++) *d_inner_at(octet, k) = 0;
            for (int octet = part; !Map::OUTER_IS_FIXED && octet < outers; octet += Walk::PARTS)
#pragma unroll
                for (int k = 0; k < 4; k++) *d_outer_at(octet, k) = 0;
        }
    }
    // What 16 others give to the gradients of the inner features, a (16, 16) times theirs.
    __device__ void add_inner_gradient(const Left &a, int other) {
        int part = part_of_warp<Tile>(), stride = layout.inner_stride;
        const Operand *inner = factors[THE_OTHERS].inner + other * stride;
        RightFragment<Operand> b;
        if constexpr (!Map::IS_PRODUCT) {
#pragma unroll
            for (int i = 0; i < Walk::OWN_FEATURES; i++) {
                int octet = part + i * Walk::PARTS;
                if (octet >= pass.slice.octets) continue;
                load_right(b, inner + octet * 8, stride);
                multiply_add(d_phi[i], a, b);
            }
        } else {
            for (int octet = part; octet < pass.slice.inner_octets; octet += Walk::PARTS) {
                SumFragment sums;
                load_right(b, inner + octet * 8, stride);
#pragma unroll
                for (int k = 0; k < 4; k++) sums.x[k] = *d_inner_at(octet, k);
                multiply_add(sums, a, b);
#pragma unroll
                for (int k = 0; k < 4; k++) *d_inner_at(octet, k) = sums.x[k];
            }
        }
    }
    // The same for the outer ones.
    __device__ void add_outer_gradient(const Left &a, int other) {
        int octets = round_up_to(pass.slice.outers, 16) / 8;
        for (int octet = part_of_warp<Tile>(); octet < octets; octet += Walk::PARTS) {
            RightFragment<Operand> b;
            SumFragment sums;
            load_right_transposed(b, factors[THE_OTHERS].outer + octet * 8 * Tile::OUTER_STRIDE + other,
                                  Tile::OUTER_STRIDE);
#pragma unroll
            for (int k = 0; k < 4; k++) sums.x[k] = *d_outer_at(octet, k);
            multiply_add(sums, a, b);
#pragma unroll
            for (int k = 0; k < 4; k++) *d_outer_at(octet, k) = sums.x[k];
        }
    }
    // Sums up the copies, after a barrier.
    __device__ void end_gradients() {
        if constexpr (!Map::IS_PRODUCT) {
#pragma unroll
            for (int i = 0; i < Walk::OWN_FEATURES; i++) {
                int octet = part_of_warp<Tile>() + i * Walk::PARTS;
                if (octet < pass.slice.octets)
                    store_sums(d.inner + first_row() * d.inner_stride + octet * 8, d.inner_stride, d_phi[i]);
            }
        } else if (pass.slice.inner_octets == 1) {
            for (int turn = 0; turn < Walk::PARTS; turn++) {
                float *at = d.inner + first_row() * d.inner_stride;
#pragma unroll
                for (int k = 0; k < 4; k++)
                    if (turn == part_of_warp<Tile>()) at[sum_row(k) * d.inner_stride + sum_column(k)] += d_single.x[k];
                __syncthreads();
            }
        } else if (!Map::OUTER_IS_FIXED) {
            int outers = round_up_to(pass.slice.outers, 16);
            for (int i = opaque((int)threadIdx.x); i < outers * ROWS; i += Tile::THREADS) {
                float *at = d.outer + i / ROWS * Tile::D_OUTER_STRIDE + i % ROWS;
                for (int copy = 1; copy < layout.d_outer_copies; copy++)
                    *at += at[copy * outers * Tile::D_OUTER_STRIDE];
            }
        }
        for (int i = opaque((int)threadIdx.x); Map::LOG_SCALED && i < ROWS; i += Tile::THREADS)
            d.log_scale[i] = i < present ? pass.d_log_scale[(size_t)task * pass.T + first + i] : 0.0f;
    }

    // What the chunk gives to a learned decay, summed over the block in a fixed order. Ends with a barrier.
    __device__ void share_decay() {
        double sums[2] = {near, 0};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = first_row() + sum_row(2 * half), distance = part_of(THE_ROWS) ? ROWS - 1 - row : row + 1;
            sums[0] += (double)distance * flow[half], sums[1] += flow[half];
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            for (int offset = 16; offset; offset /= 2) sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], offset);
            if (tile_lane() == 0) warp_sums[2 * linear_warp() + i] = sums[i];
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int chunks = (pass.T + ROWS - 1) / ROWS;
            DecayShare *to = pass.d_log_decay + (size_t)task * chunks + first / ROWS;
            double *distances = part_of(THE_ROWS) ? &to->from_keys : &to->near;
            double *total = part_of(THE_ROWS) ? &to->to_keys : &to->to_queries;
            if (pass.is_first_slice) *distances = *total = 0;
            for (int warp = 0; warp < Walk::WARPS; warp++)
                *distances += warp_sums[2 * warp], *total += warp_sums[2 * warp + 1];
        }
        __syncthreads();
    }

    // ---- results to memory

    __device__ float *partial_at(float *partial, int columns, int row) const {
        return partial + ((size_t)task * pass.T + first + row) * columns;
    }
    // Adds what earlier slices have left, or leaves it to the next. True if these are the results.
    __device__ bool complete(float *number, float *partial) const {
        if (!pass.is_first_slice) *number += *partial;
        if (!pass.is_last_slice) *partial = *number;
        return pass.is_last_slice;
    }
    // Calls use(row, column, number) for the results of rows that are present.
    template <typename Use> __device__ void for_each_result(Use use) {
#pragma unroll
        for (int i = 0; i < 4 * Walk::OWN_OCTETS; i++) {
            int octet = Walk::own_octet(part_of_warp<Tile>(), i / 4), row = first_row() + sum_row(i % 4);
            if (octet < Walk::COLUMN_OCTETS && row < present)
                use(row, octet * 8 + sum_column(i % 4), results[i / 4].x[i % 4]);
        }
    }
    // The results, times their rows' factors, to a part of a tensor (B, T, parts, C).
    __device__ void write_results(int part, int parts, const float (&factor)[2]) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = first_row() + sum_row(2 * half);
            floatX *to = pass.to + row_at(first + row, part, parts);
#pragma unroll
            for (int i = 0; i < Walk::OWN_OCTETS; i++) {
                int column = Walk::own_octet(part_of_warp<Tile>(), i) * 8 + sum_column(0);
                const float *x = results[i].x + 2 * half;
                if (row < present) store_columns(to, column, pass.HS, x[0] * factor[half], x[1] * factor[half]);
            }
        }
    }
    __device__ void complete_results() {
        if (pass.is_first_slice && pass.is_last_slice) return;
        for_each_result([&](int row, int column, float &number) {
            complete(&number, partial_at(pass.partial, Walk::COLUMNS, row) + column);
        });
    }
    // The sums have to be known to all parts: there is a barrier inside.
    __device__ void write_outputs() {
        complete_results();
        for_each_result([&](int row, int column, float &number) {
            if (column == WIDTH) numbers.sum[row] = number;
        });
        __syncthreads();
        if (!pass.is_last_slice) return;
        float inverse[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = first_row() + sum_row(2 * half);
            inverse[half] = row < present ? 1 / stabilised(numbers.sum[row], pass.rule) : 0.0f;
        }
        write_results(0, 1, inverse);
        for (int row = opaque((int)threadIdx.x); row < present; row += Tile::THREADS) {
            float sum = numbers.sum[row], g = stabilised(sum, pass.rule);
            if (pass.denominators) pass.denominators[(size_t)task * pass.T + first + row] = g;
            if (pass.rule.is_signed && (sum < 0 || is_floored(g, pass.rule))) atomicAdd(&floored_rows, 1ull);
        }
    }
    __device__ void write_value_gradients() {
        complete_results();
        if (!pass.is_last_slice) return;
        write_results(2, 3, {1, 1});
    }
    // dx, in shared memory, goes out.
    __device__ void write_input_gradients(const float *dx) {
        constexpr int PAIRS = WIDTH / 2;
        for (int i = opaque((int)threadIdx.x); i < ROWS * PAIRS; i += Tile::THREADS) {
            int row = i / PAIRS, c = i % PAIRS * 2;
            if (row >= present || c >= pass.HS) continue;
            float2 two = load_two(dx + row * Tile::DX_STRIDE + c);
            if (pass.partial_dx) {
                float *partial = partial_at(pass.partial_dx, WIDTH, row) + c;
                complete(&two.x, partial), complete(&two.y, partial + 1);
            }
            if (!pass.partial_dx || pass.is_last_slice)
                store_columns(pass.to + row_at(first + row, part_of(THE_ROWS), 3), c, pass.HS, two.x, two.y);
        }
    }

    // ---- one chunk

    // Brings the chunk's rows and makes their features. The inputs of the chunk have been begun before.
    __device__ void load_chunk() {
        if constexpr (has_gradient(MODE)) begin_extended(THE_ROWS);
        begin_extended(THE_OTHERS);
        copies_commit();
        copies_wait<1>();
        __syncthreads();
#pragma unroll
        for (int side = has_results(MODE) ? THE_ROWS : THE_OTHERS; side < 2; side++) {
            finish_x(side);
            if constexpr (!Map::IS_PRODUCT) clear_padding(side);
        }
        __syncthreads();
        if constexpr (has_results(MODE)) {
            make_features(THE_ROWS);
            __syncthreads();
        }
        make_features(THE_OTHERS);
        copies_wait<0>();
        __syncthreads();
        if constexpr (has_gradient(MODE)) finish_extended<THE_ROWS>();
        finish_extended<THE_OTHERS>();
        if (fades) relate_rows();
    }

    __device__ void end_chunk() {
        __syncthreads();
        if constexpr (MODE == FORWARD) write_outputs();
        if constexpr (MODE == KEY_GRADIENT) write_value_gradients();
        if constexpr (has_gradient(MODE)) {
            float *dx = (float *)extended[THE_ROWS];
            if (pass.d_log_decay) share_decay();
            end_gradients();
            __syncthreads();
            map.template gradient<Tile>(dx, d, factors[THE_ROWS], x[THE_ROWS], place());
            __syncthreads();
            write_input_gradients(dx);
            __syncthreads();
        }
    }

    // `next` is the first row of the chunk that follows in the walk.
    __device__ void walk_chunk(int next) {
        load_chunk();
        __syncthreads();
        begin_x(THE_OTHERS, next);
        if constexpr (MODE == FORWARD) begin_x(THE_ROWS, next);
#pragma unroll
        for (int i = 0; i < Walk::OWN_OCTETS; i++) results[i] = {};
        if constexpr (has_results(MODE)) add_pairs();
        if constexpr (KEEPS_ROWS)
#pragma unroll
            for (int depth = 0; depth < DEPTHS; depth++)
                load_left(own_rows[depth], extended[THE_ROWS] + first_row() * STRIDE + depth * 16, STRIDE);
#pragma unroll
        for (int block = 0; block < Walk::BLOCKS; block++) {
            if (block * Walk::BLOCK_OCTETS >= pass.slice.octets) break;
            if constexpr (has_results(MODE)) {
                if (block) __syncthreads();
                share_state(block);
                __syncthreads();
            }
            if constexpr (has_numerator(MODE)) add_from_state(block);
            if constexpr (has_gradient(MODE)) add_gradient_from_state(block);
        }
        update_state();
        end_chunk();
        if constexpr (has_gradient(MODE)) begin_x(THE_ROWS, next);
        copies_commit();
    }

    __device__ void walk() {
        int from = (int)blockIdx.x * pass.segment_rows, to = min(from + pass.segment_rows, pass.T);
        int chunks = (to - from + ROWS - 1) / ROWS;
        load_state();
        if constexpr (Map::IS_PRODUCT)
            for (int side = has_results(MODE) ? THE_ROWS : THE_OTHERS; side < 2; side++) clear_padding(side);
        for (int i = 0; i < chunks; i++) {
            int chunk = walks_backwards(MODE) ? chunks - 1 - i : i;
            int step = walks_backwards(MODE) ? -ROWS : ROWS;
            first = from + chunk * ROWS, present = min(ROWS, to - first);
            if (i == 0) {
#pragma unroll
                for (int side = has_results(MODE) ? THE_ROWS : THE_OTHERS; side < 2; side++) begin_x(side, first);
                copies_commit();
            }
            walk_chunk(i + 1 < chunks ? first + step : -1);
        }
        store_state();
    }
};

// A block for every segment of every head of every sequence: x, y and z of the grid. (The 1 in the launch bounds:
// shared memory leaves room for one block anyway, and the compiler need not save registers for another.)
template <typename Map, int WIDTH, WalkMode MODE>
__global__ static void __launch_bounds__(LinearWalk<Map, WIDTH>::Tile::THREADS, 1) walk_kernel(Map map, WalkPass pass) {
    extern __shared__ float4 walk_shared[];
    Walker<Map, WIDTH, MODE> walker(map, pass, (char *)walk_shared);
    walker.walk();
}

#endif
