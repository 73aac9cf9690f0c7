// The kernel of the linear core on the GPU: a block walks over one segment of the rows of one head of one sequence, a
// chunk at a time, with the state in its registers. Features, scores and phi exist on chip only.
//
// All passes are one walk. It has a side of rows, whose results it computes, and another side that enters the state:
//
//                    rows     others   state, over the chunks behind          results of a row
//     FORWARD        q        k        S = sum of phi(k) (v, 1)^T             phi(q) S, and its pairs
//     QUERY_GRADIENT q        k        S                                      d_phi(q) = (gamma, beta) S^T, ...
//     KEY_GRADIENT   k        q        U = sum of phi(q) (gamma, beta)^T      d_phi(k) = (v, 1) U^T, phi(k) U, ...
//     SUM_KEYS                k        S, of the segment alone, for the scan over segments
//     SUM_QUERIES             q        U, likewise
//
// where gamma = dout / g is the gradient of the numerator and beta that of the sum g. U is summed from the last chunk
// to the first. (v, 1) and (gamma, beta) are "extended" rows: the number beside the vector stands in column WIDTH.
//
// A warp has 16 features of every block of features of the state, with all columns, in float. A block of it at a time
// is rounded to shared memory, where all warps read it as an operand.
#ifndef ATTENTION_LINEAR_WALK_CUH
#define ATTENTION_LINEAR_WALK_CUH

#include "linear_denominators.cuh"
#include "linear_map.cuh"

#include <math.h>
#include <type_traits>

typedef enum { SUM_KEYS, SUM_QUERIES, FORWARD, QUERY_GRADIENT, KEY_GRADIENT } WalkMode;

__host__ __device__ constexpr bool has_results(WalkMode mode) {
    return mode >= FORWARD;
}
__host__ __device__ constexpr bool has_gradient(WalkMode mode) {
    return mode >= QUERY_GRADIENT;
}
__host__ __device__ constexpr bool has_numerator(WalkMode mode) {
    return mode == FORWARD || mode == KEY_GRADIENT;
}
__host__ __device__ constexpr bool walks_backwards(WalkMode mode) {
    return mode == SUM_QUERIES || mode == KEY_GRADIENT;
}

// ---- sizes

typedef struct { // a range of outer times a range of inner features, and the same rounded up
    int first_outer, outers, first_inner, inners;
    int inner_octets; // of one outer feature
    int octets;       // of phi
} LinearSlice;

__host__ __device__ static inline int round_up_to(int n, int multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

// The width of phi's blocks and of their sum, for a map and a tile.
template <typename Map, int WIDTH_> struct LinearWalk {
    typedef typename std::conditional<Map::IS_SIGNED, float, floatX>::type Operand;
    typedef LinearTile<WIDTH_, Operand, Map::IS_NARROW> Tile;
    static constexpr int WIDTH = WIDTH_, ROWS = Tile::ROWS, WARPS = Tile::WARPS, PARTS = Tile::PARTS;
    static constexpr int BLOCKS = Map::IS_PRODUCT && !Map::OUTER_IS_FIXED && WIDTH < 128 ? 3 : 1; // of features
    static constexpr int BLOCK_OCTETS = 2 * WARPS, MOST_OCTETS = BLOCKS * BLOCK_OCTETS;
    static constexpr int COLUMNS = WIDTH + 8, COLUMN_OCTETS = COLUMNS / 8; // of a state in memory and in registers
    static constexpr int EXTENDED = WIDTH + 16, EXTENDED_STRIDE = tile_stride<Operand, EXTENDED>; // in shared memory
    static constexpr int OWN_OCTETS = (COLUMN_OCTETS + PARTS - 1) / PARTS; // of columns, of a warp's results
    static constexpr int OWN_FEATURES = BLOCK_OCTETS / PARTS;              // octets of a block whose gradients it has
    static constexpr int INNER_STEP = PARTS > 2 ? 8 * PARTS : 16; // inner features of a product are rounded up to
    static constexpr bool HAS_PAIRS = sizeof(Operand) == 2;       // octets of columns are loaded two at a time
    // Octet number i of the columns of a part's results; the last may be beyond COLUMN_OCTETS.
    static __device__ int own_octet(int part, int i) {
        return HAS_PAIRS ? (part + i / 2 * PARTS) * 2 + i % 2 : part + i * PARTS;
    }
    static constexpr bool STAGES_RAW = sizeof(Operand) == sizeof(floatX); // rows become operands where they are
};

// inner features of a row in shared memory, rounded up for the products of pairs
__host__ __device__ static inline int slice_inners16(LinearSlice slice) {
    return round_up_to(slice.inner_octets * 8, 16);
}

typedef struct {                               // offsets in bytes
    int x[2], extended[2], outer[2], inner[2]; // of the rows and of the others
    int state, d_outer, d_inner, numbers, scratch, total;
    int inner_stride, d_inner_stride, d_outer_copies;
} SharedLayout;

static inline int take_shared(int *total, size_t bytes) {
    int at = *total;
    *total += (int)((bytes + 15) / 16 * 16);
    return at;
}

enum { ROW_NUMBERS = 8 }; // floats that a row has in shared memory: Numbers, and the log scales of both sides

// The gradients of a map that is no product take the place of the state and the others' features, when these have done
// their work; those of the inputs that of the extended rows.
template <typename Walk>
static inline SharedLayout shared_layout(WalkMode mode, LinearSlice slice, int scratch, bool is_product) {
    typedef typename Walk::Tile Tile;
    constexpr size_t number = sizeof(typename Walk::Operand);
    SharedLayout layout = {};
    int *total = &layout.total;
    int inners = slice_inners16(slice), outers = is_product ? round_up_to(slice.outers, 16) : 0;
    layout.inner_stride = inners + 16 / (int)number;
    layout.d_inner_stride = slice.inner_octets * 8 + 4;
    layout.d_outer_copies = is_product && slice.inner_octets > 1 ? Walk::PARTS : 1;
    for (int side = has_results(mode) ? 0 : 1; side < 2; side++)
        layout.x[side] = take_shared(total, (size_t)Walk::ROWS * Tile::X_STRIDE * sizeof(floatX));
    for (int side = has_gradient(mode) ? 0 : 1; side < 2; side++)
        layout.extended[side] = take_shared(total, (size_t)Walk::ROWS * Walk::EXTENDED_STRIDE * number);
    if (!has_gradient(mode)) layout.extended[0] = layout.extended[1];
    size_t outer_bytes = outers * Tile::OUTER_STRIDE * number,
           inner_bytes = (size_t)Walk::ROWS * layout.inner_stride * number;
    size_t d_inner_bytes = (size_t)Walk::ROWS * layout.d_inner_stride * sizeof(float);
    if (has_results(mode)) {
        layout.outer[0] = take_shared(total, outer_bytes);
        layout.inner[0] = take_shared(total, inner_bytes);
        layout.state = take_shared(total, (size_t)Walk::BLOCK_OCTETS * 8 * Walk::EXTENDED_STRIDE * number);
    }
    layout.outer[1] = take_shared(total, outer_bytes);
    layout.inner[1] = take_shared(total, inner_bytes);
    if (has_gradient(mode) && is_product) {
        layout.d_outer =
            take_shared(total, (size_t)layout.d_outer_copies * outers * Tile::D_OUTER_STRIDE * sizeof(float));
        layout.d_inner = take_shared(total, d_inner_bytes);
    } else if (has_gradient(mode)) {
        layout.d_inner = layout.state;
        if (*total < layout.state + (int)d_inner_bytes) *total = layout.state + (int)d_inner_bytes;
    }
    layout.numbers = take_shared(total, sizeof(float) * ROW_NUMBERS * Walk::ROWS);
    layout.scratch = take_shared(total, sizeof(float) * (size_t)scratch * Walk::ROWS);
    return layout;
}

// ---- arguments

typedef struct {  // how much less a key counts with every row that it is further away: decay^distance
    int kind, NH; // Decay
    float shortest, longest;
    const float *parameters; // (NH) of a learned decay
} LinearDecay;

// What a chunk gives to the gradient of a learned decay's logarithm, the sum over all pairs of distance * score * its
// gradient. The distance of a query in one chunk and a key in another is that from the query to the beginning of its
// chunk, plus the rows of the chunks in between, plus that from the key to the end of its chunk.
typedef struct {
    double near;                // pairs within the chunk, and of other chunks' keys with its queries the first part
    double from_keys;           // ... of its keys with other chunks' queries the last part
    double to_queries, to_keys; // score * gradient of its queries with earlier chunks; of its keys with later ones
} DecayShare;

typedef struct {
    int T, NH, HS; // rows of a sequence
    int position;  // of its first row: when decoding, what came before
    int segments, segment_rows;
    LinearSlice slice;
    SharedLayout layout; // on the host by launch_walk: what depends on sizes alone takes no registers here
    int is_first_slice, is_last_slice;
    const floatX *qkv, *dout, *out; // (B, T, 3C), (B, T, C)
    floatX *to;                     // out, or dqkv
    float *denominators;            // (B * NH, T) written by FORWARD unless NULL, read by gradients
    const float *carry_in;          // (B * NH, segments, state) before each segment's first chunk; NULL: nothing
    float *carry_out;               // likewise, after its last one
    float *partial, *partial_dx;    // (B * NH, T, COLUMNS), (B * NH, T, WIDTH): sums over the slices so far
    const float *running_max;       // (B * NH, T) log_scaled maps, see linear_scales.cuh
    const float *max_before;        // (NH) before row 0, NULL: nothing came before
    const float *d_log_scale;       // (B * NH, T) of the rows
    float *d_projections;           // (B * NH * segments, projections, WIDTH)
    DecayShare *d_log_decay;        // (B * NH, chunks of a sequence) of a learned decay, else NULL
    const int *positions;           // (B, T) of each token in its document; NULL: rows are documents
    LinearDecay decay;
    DenominatorRule rule;
} WalkPass;

// Whether the document of row t of a sequence, 0 the first, begins with row `first` or later: nothing of what came
// before `first` reaches the row.
__device__ static inline bool begins_after(const WalkPass &pass, int sequence, int first, int t) {
    return pass.positions && pass.positions[(size_t)sequence * pass.T + t] <= t - first;
}

// As attention_log_decay.
__device__ static inline float log_decay_of(LinearDecay decay, int head) {
    if (decay.kind == DECAY_NONE) return 0;
    if (decay.kind == DECAY_FIXED) {
        double along = decay.NH > 1 ? (double)head / (decay.NH - 1) : 1;
        return (float)log1p(-1 / (decay.shortest * pow((double)decay.longest / decay.shortest, along)));
    }
    double g = decay.parameters[head];
    return (float)(g < 0 ? g - log1p(exp(g)) : -log1p(exp(-g)));
}

typedef struct {                    // (ROWS) each, in shared memory
    float *sum;                     // a row's denominator
    int *position;                  // of a query in its document, or more; in the place of its sum, which comes later
    float *key_level, *query_level; // a pair's factor is exp(key_level - query_level)
    float *weight[2];               // of the rows as they meet the state, of the others as they enter it
} Numbers;

// ---- phi as an operand

__device__ static inline uint32_t times(uint32_t a, uint32_t b) {
    __nv_bfloat162 x, y;
    memcpy((void *)&x, &a, sizeof x);
    memcpy((void *)&y, &b, sizeof y);
    x = __hmul2(x, y);
    memcpy(&a, &x, sizeof a);
    return a;
}
__device__ static inline uint32_t two_of(const __nv_bfloat16 *at) {
    return *(const uint32_t *)at;
}
__device__ static inline uint32_t same_two(__nv_bfloat16 x) {
    __nv_bfloat162 both = __bfloat162bfloat162(x);
    uint32_t bits;
    memcpy(&bits, &both, sizeof bits);
    return bits;
}

// One octet of the inner features of 16 rows, and its products with outer features: halves of a left operand. A lane
// has two neighbouring numbers of two rows.
template <typename Operand> struct InnerOctet;
template <> struct InnerOctet<__nv_bfloat16> { uint32_t x[2]; };
template <> struct InnerOctet<float> { float x[4]; };

__device__ static inline void load_octet(InnerOctet<__nv_bfloat16> &octet, const __nv_bfloat16 *inner, int stride) {
    const __nv_bfloat16 *at = inner + tile_lane() / 4 * stride + 2 * (tile_lane() % 4);
    octet.x[0] = two_of(at), octet.x[1] = two_of(at + 8 * stride);
}
__device__ static inline void load_octet(InnerOctet<float> &octet, const float *inner, int stride) {
    const float *at = inner + tile_lane() / 4 * stride + 2 * (tile_lane() % 4);
#pragma unroll
    for (int i = 0; i < 4; i++) octet.x[i] = at[i / 2 * 8 * stride + i % 2];
}
// Rows times their weights.
__device__ static inline void weigh_rows(InnerOctet<__nv_bfloat16> &octet, const float *weight) {
    const float *at = weight + tile_lane() / 4;
#pragma unroll
    for (int i = 0; i < 2; i++) octet.x[i] = times(octet.x[i], pack_bf16(at[8 * i], at[8 * i]));
}
__device__ static inline void weigh_rows(InnerOctet<float> &octet, const float *weight) {
#pragma unroll
    for (int i = 0; i < 4; i++) octet.x[i] *= weight[tile_lane() / 4 + i / 2 * 8];
}
// `outer` is the outer feature of the rows.
template <int PLACE>
__device__ static inline void set_product(LeftFragment<__nv_bfloat16> &a, const InnerOctet<__nv_bfloat16> &octet,
                                          const __nv_bfloat16 *outer) {
    int row = tile_lane() / 4;
#pragma unroll
    for (int i = 0; i < 2; i++) a.x[2 * PLACE + i] = times(octet.x[i], same_two(outer[row + 8 * i]));
}
template <int PLACE>
__device__ static inline void set_product(LeftFragment<float> &a, const InnerOctet<float> &octet, const float *outer) {
    int row = tile_lane() / 4;
#pragma unroll
    for (int i = 0; i < 4; i++) a.x[4 * PLACE + i] = octet.x[i] * outer[row + i / 2 * 8];
}

// The same for the transpose: inner features as a right operand, whose lanes have two neighbouring rows.
template <int PLACE>
__device__ static inline void set_product_transposed(LeftFragment<__nv_bfloat16> &a,
                                                     const RightFragment<__nv_bfloat16> &b,
                                                     const __nv_bfloat16 *outer) {
#pragma unroll
    for (int i = 0; i < 2; i++) a.x[PLACE + 2 * i] = times(b.x[i], two_of(outer + 2 * (tile_lane() % 4) + 8 * i));
}
template <int PLACE>
__device__ static inline void set_product_transposed(LeftFragment<float> &a, const RightFragment<float> &b,
                                                     const float *outer) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        a.x[2 * PLACE + i % 2 + i / 2 * 4] = b.x[i] * outer[2 * (tile_lane() % 4) + i % 2 + i / 2 * 8];
}
__device__ static inline void weigh_columns(RightFragment<__nv_bfloat16> &b, const float *weight) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float *at = weight + 2 * (tile_lane() % 4) + 8 * i;
        b.x[i] = times(b.x[i], pack_bf16(at[0], at[1]));
    }
}
__device__ static inline void weigh_columns(RightFragment<float> &b, const float *weight) {
#pragma unroll
    for (int i = 0; i < 4; i++) b.x[i] *= weight[2 * (tile_lane() % 4) + i % 2 + i / 2 * 8];
}

// a's rows times their weights, and its columns
__device__ static inline void weigh_rows(LeftFragment<__nv_bfloat16> &a, const float *weight) {
    int row = tile_lane() / 4;
#pragma unroll
    for (int i = 0; i < 4; i++) a.x[i] = times(a.x[i], pack_bf16(weight[row + i % 2 * 8], weight[row + i % 2 * 8]));
}
__device__ static inline void weigh_rows(LeftFragment<float> &a, const float *weight) {
#pragma unroll
    for (int i = 0; i < 8; i++) a.x[i] *= weight[tile_lane() / 4 + i / 2 % 2 * 8];
}
__device__ static inline void weigh_columns(LeftFragment<__nv_bfloat16> &a, const float *weight) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float *at = weight + 2 * (tile_lane() % 4) + i / 2 * 8;
        a.x[i] = times(a.x[i], pack_bf16(at[0], at[1]));
    }
}
__device__ static inline void weigh_columns(LeftFragment<float> &a, const float *weight) {
#pragma unroll
    for (int i = 0; i < 8; i++) a.x[i] *= weight[2 * (tile_lane() % 4) + i % 2 + i / 4 * 8];
}

typedef struct { // where an octet of phi has its factors
    int outer, inner;
} OctetPlace;

__device__ static inline OctetPlace octet_place(int octet, LinearSlice slice) {
    int outer = octet / slice.inner_octets;
    OctetPlace place = {outer, (octet - outer * slice.inner_octets) * 8};
    return place;
}
__device__ static inline OctetPlace next_octet(OctetPlace place, LinearSlice slice) {
    place.inner += 8;
    if (place.inner == 8 * slice.inner_octets) place.inner = 0, place.outer++;
    return place;
}

// phi of the rows from `row` on, two octets (16, 16)
template <bool IS_PRODUCT, typename Tile>
__device__ static inline void load_phi(LeftFragment<typename Tile::Operand> &a, const LinearFactors<Tile> &factors,
                                       int row, OctetPlace first, OctetPlace second) {
    if constexpr (IS_PRODUCT) {
        const typename Tile::Operand *inner = factors.inner + row * factors.inner_stride, *outer = factors.outer + row;
        InnerOctet<typename Tile::Operand> octet;
        load_octet(octet, inner + first.inner, factors.inner_stride);
        set_product<0>(a, octet, outer + first.outer * Tile::OUTER_STRIDE);
        load_octet(octet, inner + second.inner, factors.inner_stride);
        set_product<1>(a, octet, outer + second.outer * Tile::OUTER_STRIDE);
    } else {
        load_left(a, factors.inner + row * factors.inner_stride + first.inner, factors.inner_stride);
    }
}

// its transpose
template <bool IS_PRODUCT, typename Tile>
__device__ static inline void load_phi_transposed(LeftFragment<typename Tile::Operand> &a,
                                                  const LinearFactors<Tile> &factors, int row, OctetPlace first,
                                                  OctetPlace second) {
    if constexpr (IS_PRODUCT) {
        const typename Tile::Operand *inner = factors.inner + row * factors.inner_stride, *outer = factors.outer + row;
        RightFragment<typename Tile::Operand> b;
        load_right(b, inner + first.inner, factors.inner_stride);
        set_product_transposed<0>(a, b, outer + first.outer * Tile::OUTER_STRIDE);
        load_right(b, inner + second.inner, factors.inner_stride);
        set_product_transposed<1>(a, b, outer + second.outer * Tile::OUTER_STRIDE);
    } else {
        load_left_transposed(a, factors.inner + row * factors.inner_stride + first.inner, factors.inner_stride);
    }
}

#endif
