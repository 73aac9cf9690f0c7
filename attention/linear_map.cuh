// What a mechanism gives to the linear core on the GPU: a map, a C++ type that the kernels of linear_chunk.cuh are
// compiled for. Its features exist for one chunk of rows at a time, in shared memory, and nowhere else.
//
//     struct SomeMap {
//         static constexpr bool IS_PRODUCT = ...; // phi = outer (x) inner: phi[e * inners + p] = outer[e] inner[p];
//                                                 // otherwise phi = inner, and there is no outer
//         static constexpr bool OUTER_IS_FIXED = ...; // outer does not depend on x: its gradient is not computed
//         static constexpr bool IS_SIGNED = ...;  // scores may be negative: their sums cancel and need all digits
//         static constexpr bool LOG_SCALED = ...; // features are exp(log_scale) times what is stored; no product
//         static constexpr bool IS_NARROW = ...;  // no more features than numbers in a head
//         LinearShape shape;                      // filled in on the host, see below
//         ...                                     // whatever else the device functions read
//         static SomeMap of(const AttentionConfig *config, const float *packed, const float *parameters);
//         // All rows of a tile, by all threads of the block together. They may use barriers; the block has passed one
//         // before the call, and passes one after it.
//         template <typename Tile>
//         __device__ void features(LinearFactors<Tile> to, const floatX *x, LinearPlace place) const;
//         template <typename Tile>
//         __device__ void gradient(float *dx, LinearGradients<Tile> d, LinearFactors<Tile> from, const floatX *x,
//                                  LinearPlace place) const;
//         // Adds what reached its projections, sums (NH, projections, WIDTH), to the parameters' gradients. Only if
//         // shape.projections is not 0.
//         void unpack(float *dparameters, const float *sums, const AttentionConfig *config, cudaStream_t) const;
//     };
//
// x is (ROWS, WIDTH) at x[row * X_STRIDE + c], in range (range.h), zeros beyond the head's numbers and below the last
// row that is present. dx is (ROWS, WIDTH) at dx[row * DX_STRIDE + c] and is overwritten; columns from HS on do not
// matter. Features of rows that are not present must be finite; nothing comes of them.
//
// A mechanism's .cu includes linear_passes.cuh and ends with LINEAR_GPU_ATTENTION(name, SomeMap, packed_size, pack);
// the last two are those of struct AttentionGPU, or NULL. One that has several maps (by configuration) or another core
// for some of them defines the functions of its struct itself, out of linear_forward<SomeMap>(...) and so on.
//
// A map with more features than a block has room for is worked on in slices, a range of outer times a range of inner
// features, whose scores add up: features and gradients are indexed from the slice's first ones, and `gradient` gives
// what comes through the slice's features alone. log_scale is that of the whole row, whatever the slice.
#ifndef ATTENTION_LINEAR_MAP_CUH
#define ATTENTION_LINEAR_MAP_CUH

#include "attention_gpu.h"
#include "core/gpu/tile_gpu.h"

extern "C" {
#include "linear.h"
#include "range.h"
}

typedef struct { // of a map, known on the host
    int HS;      // numbers of a head
    int outers;  // 1 if the map is no product
    int inners;
    int scratch;     // floats of shared memory per row that the device functions want: LinearPlace's `scratch`
    int projections; // of a map whose projections are trained: LinearPlace's d_projections has so many rows; else 0
} LinearShape;

// ---- tiles: the rows of a chunk and the warps that work on them

// Warp w has the rows of row tile w % ROW_TILES; the PARTS warps of a row tile share its columns, or its projections.
template <int WIDTH_, typename Operand_, bool IS_NARROW> struct LinearTile {
    typedef Operand_ Operand;            // what features and states are rounded to when they are multiplied
    static constexpr int WIDTH = WIDTH_; // numbers of a head, padded
    static constexpr int ROWS = sizeof(Operand) == 4 ? 16 : WIDTH == 128 ? 32 : 64;
    static constexpr int WARPS = (IS_NARROW && WIDTH < 128) || (sizeof(Operand) == 4 && WIDTH == 128) ? 4 : 8;
    static constexpr int THREADS = 32 * WARPS;
    static constexpr int ROW_TILES = ROWS / 16, PARTS = WARPS / ROW_TILES;
    static constexpr int X_STRIDE = tile_stride<floatX, WIDTH>, DX_STRIDE = tile_stride<float, WIDTH>;
    static constexpr int OUTER_STRIDE = tile_stride<Operand, ROWS>, D_OUTER_STRIDE = ROWS + 1;
};

__device__ static inline int linear_warp(void) {
    return (int)threadIdx.x / 32;
}
template <typename Tile> __device__ static inline int row_tile_of_warp(void) {
    return linear_warp() % Tile::ROW_TILES;
}
template <typename Tile> __device__ static inline int part_of_warp(void) {
    return linear_warp() / Tile::ROW_TILES;
}

// Features of a tile's rows, as operands in shared memory.
template <typename Tile> struct LinearFactors {
    typename Tile::Operand *outer; // (outers, ROWS), transposed: outer[e * OUTER_STRIDE + row]
    typename Tile::Operand *inner; // (ROWS, inners): inner[row * inner_stride + p]
    float *log_scale;              // (ROWS)
    int inner_stride;              // even
    __device__ void set_outer(int row, int e, float feature) {
        outer[e * Tile::OUTER_STRIDE + row] = from_float<typename Tile::Operand>(feature);
    }
    __device__ void set_inner(int row, int p, float feature) {
        inner[row * inner_stride + p] = from_float<typename Tile::Operand>(feature);
    }
    __device__ float outer_at(int row, int e) const { return to_float(outer[e * Tile::OUTER_STRIDE + row]); }
    __device__ float inner_at(int row, int p) const { return to_float(inner[row * inner_stride + p]); }
};

// Their gradients; the map may use them as scratch.
template <typename Tile> struct LinearGradients {
    float *outer;     // (outers, ROWS), transposed: outer[e * D_OUTER_STRIDE + row]
    float *inner;     // (ROWS, inners): inner[row * inner_stride + p]
    float *log_scale; // (ROWS) what reaches a log_scaled map through its scale
    int inner_stride;
    __device__ float outer_at(int row, int e) const { return outer[e * Tile::D_OUTER_STRIDE + row]; }
    __device__ float inner_at(int row, int p) const { return inner[row * inner_stride + p]; }
};

typedef struct { // where the rows are, and the slice of features that is wanted
    int head;
    int position; // of row 0 in its sequence
    int present;  // rows
    int first_outer, outers, first_inner, inners;
    float *scratch;       // shape.scratch * ROWS floats of shared memory
    float *d_projections; // (projections, WIDTH) in device memory, this block's own: to be added to; or NULL
} LinearPlace;

// Calls use(row, c) for every number of a tile's rows.
template <typename Tile, typename Use> __device__ static inline void for_each_number(int HS, Use use) {
    for (int i = opaque((int)threadIdx.x); i < Tile::ROWS * Tile::WIDTH; i += Tile::THREADS)
        if (i % Tile::WIDTH < HS) use(i / Tile::WIDTH, i % Tile::WIDTH);
}

// sum (ROWS) of f(row, c) over the numbers of each row, the same bits for every thread that reads it; by all threads,
// there for them after a barrier. Four neighbouring lanes share a row.
template <typename Tile, typename F> __device__ static inline void sum_rows(float *sum, int HS, F f) {
    for (int row = opaque((int)threadIdx.x) / 4; row < Tile::ROWS; row += Tile::THREADS / 4) {
        float part = 0;
        for (int c = threadIdx.x % 4; c < HS; c += 4) part += f(row, c);
        part = quad_sum(part);
        if (threadIdx.x % 4 == 0) sum[row] = part;
    }
}

// ---- projections: products of the rows with a head's own matrix (projections, HS)
//
// The matrix is packed once, in the order in which lanes take it as a right operand: 16 bytes of a lane are the four
// floats of its RightFragment, or in bf16 that of the matrix rounded and, so that exponents keep their digits, that of
// what the rounding left. x itself is a bf16 number and multiplied as it is. Numbers of projections are rounded up to
// pieces of 16; what pads them is 0.

typedef struct {     // of one head
    const float4 *x; // for y = x omega^T: [(16 columns' place) of (octet of projections)][lane]
    const float4 *y; // for dx = dy omega: [(octet of columns) of (piece of 16 projections)][lane]
} LinearProjection;

static inline int projection_pieces(int projections) {
    return (projections + 15) / 16;
}

// Floats per head; both orders.
static inline size_t projection_size(int projections, int width) {
    return (size_t)projection_pieces(projections) * 16 * width * 2;
}

__host__ __device__ static inline LinearProjection projection_at(const float *packed, int head, int pieces, int width) {
    const float4 *x = (const float4 *)(packed + (size_t)head * pieces * 16 * width * 2);
    LinearProjection projection = {x, x + (size_t)pieces * 4 * width};
    return projection;
}

// The padded width of a head, the tiles' WIDTH.
static inline int linear_width(const AttentionConfig *config) {
    return config->HS <= 32 ? 32 : config->HS <= 64 ? 64 : 128;
}

__device__ static inline float4 packed_fragment(const float (&x)[4]) {
    float4 packed;
    if (sizeof(floatX) == 4) return make_float4(x[0], x[1], x[2], x[3]);
    float low[4];
    for (int i = 0; i < 4; i++) low[i] = x[i] - to_float(__float2bfloat16_rn(x[i]));
    uint32_t bits[4] = {pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(low[0], low[1]),
                        pack_bf16(low[2], low[3])};
    memcpy(&packed, bits, sizeof packed);
    return packed;
}

// Packs the projections of all heads: omega(head, projection, c) gives a number. A thread per lane's fragment.
template <typename Omega>
__global__ static void pack_projections_kernel(float *packed, Omega omega, int heads, int projections, int HS,
                                               int pieces, int width) {
    int fragments = pieces * width / 4, i = (int)(blockIdx.x * blockDim.x + threadIdx.x); // of one head
    int head = i / 32 / fragments, fragment = i / 32 % fragments, lane = i % 32;
    if (head >= heads) return;
    bool is_first = fragment < fragments / 2; // of the two orders
    int which = is_first ? fragment : fragment - fragments / 2, across = is_first ? width / 16 : width / 8;
    float x[4];
    for (int k = 0; k < 4; k++) {
        int row = 2 * (lane % 4) + k % 2 + k / 2 * 8, column = lane / 4; // of the right operand
        int projection = is_first ? which / across * 8 + column : which / across * 16 + row;
        int c = is_first ? which % across * 16 + row : which % across * 8 + column;
        x[k] = projection < projections && c < HS ? omega(head, projection, c) : 0.0f;
    }
    ((float4 *)packed)[i] = packed_fragment(x);
}

template <typename Omega>
static void pack_projections(float *packed, Omega omega, int projections, const AttentionConfig *config,
                             cudaStream_t stream) {
    int width = linear_width(config), pieces = projection_pieces(projections), threads = 256;
    size_t lanes = (size_t)config->NH * pieces * width / 4 * 32;
    pack_projections_kernel<<<(unsigned)((lanes + threads - 1) / threads), threads, 0, stream>>>(
        packed, omega, config->NH, projections, config->HS, pieces, width);
    launch_check();
}

// sums += a b for a packed b; in bf16 with what its rounding has left, unless IS_ROUNDED
template <bool IS_ROUNDED>
__device__ static inline void multiply_add_packed(SumFragment &sums, const LeftFragment<float> &a, float4 b) {
    RightFragment<float> right = {{b.x, b.y, b.z, b.w}};
    multiply_add(sums, a, right);
}
template <bool IS_ROUNDED>
__device__ static inline void multiply_add_packed(SumFragment &sums, const LeftFragment<__nv_bfloat16> &a, float4 b) {
    RightFragment<__nv_bfloat16> high = {{__float_as_uint(b.x), __float_as_uint(b.y)}};
    RightFragment<__nv_bfloat16> low = {{__float_as_uint(b.z), __float_as_uint(b.w)}};
    if (!IS_ROUNDED) multiply_add(sums, a, low);
    multiply_add(sums, a, high);
}

// y (TILES times 16 rows, 16 projections of `piece`) = x omega^T, each as two fragments of sums
template <typename Tile, int TILES>
__device__ static inline void project_piece(SumFragment (&y)[TILES][2], const floatX *x, LinearProjection omega,
                                            int piece) {
    constexpr int DEPTHS = Tile::WIDTH / 16;
    const float4 *packed = omega.x + (size_t)piece * 2 * DEPTHS * 32 + tile_lane();
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) y[i / 2][i % 2] = {};
#pragma unroll
    for (int depth = 0; depth < DEPTHS; depth++) {
        LeftFragment<floatX> a[TILES];
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
            load_left(a[tile], x + tile * 16 * Tile::X_STRIDE + depth * 16, Tile::X_STRIDE);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float4 b = packed[(half * DEPTHS + depth) * 32];
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) multiply_add_packed<false>(y[tile][half], a[tile], b);
        }
    }
}

// Calls use(row, projection, y) for every row tile and every piece of [from, to): y[half].x[2 i + k] of a lane is what
// row `row` + 8 i has of projection `projection` + 8 half + k. A warp projects two row tiles at once where there are
// so many: what it loads of omega serves both.
template <typename Tile, typename Use>
__device__ static inline void project_pieces(const floatX *x, LinearProjection omega, int from, int to, Use use) {
    constexpr int TILES = Tile::ROW_TILES % 2 ? 1 : 2, GROUPS = Tile::ROW_TILES / TILES;
    int first_row = linear_warp() % GROUPS * TILES * 16;
    for (int piece = from + linear_warp() / GROUPS; piece < to; piece += Tile::WARPS / GROUPS) {
        SumFragment y[TILES][2];
        project_piece<Tile>(y, x + first_row * Tile::X_STRIDE, omega, piece);
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
            use(first_row + tile * 16 + sum_row(0), piece * 16 + sum_column(0), y[tile]);
    }
}

// Calls use(row, projection, y) for every row of the tile and every projection of the pieces [from, to), those of a row
// tile by the warps that have it.
template <typename Tile, typename Use>
__device__ static inline void project_rows(const floatX *x, LinearProjection omega, int from, int to, Use use) {
    int first_row = row_tile_of_warp<Tile>() * 16;
    for (int piece = from + part_of_warp<Tile>(); piece < to; piece += Tile::PARTS) {
        SumFragment y[1][2];
        project_piece<Tile>(y, x + first_row * Tile::X_STRIDE, omega, piece);
#pragma unroll
        for (int i = 0; i < 8; i++)
            use(first_row + sum_row(i % 4), piece * 16 + i / 4 * 8 + sum_column(i % 4), y[0][i / 4].x[i % 4]);
    }
}

// d_omega (16 projections of each part's piece, WIDTH) += dy^T x over the tile's rows. `tile` has dy, (ROWS, 16 PARTS),
// with a stride of DY_STRIDE; each warp has one octet of columns after the other.
template <typename Tile> constexpr int dy_stride = tile_stride<floatX, 16 * Tile::PARTS>;
// Floats of scratch per row that this takes.
template <typename Tile> constexpr int dy_scratch = dy_stride<Tile> *(int)sizeof(floatX) / 4;

template <typename Tile>
__device__ static inline void add_projection_gradient(float *d_omega, const floatX *tile, const floatX *x, int piece,
                                                      int to) {
    for (int i = linear_warp(); i < Tile::PARTS * Tile::WIDTH / 8; i += Tile::WARPS) {
        int part = i % Tile::PARTS, octet = i / Tile::PARTS;
        if (piece + part >= to) continue;
        SumFragment sums = {};
        for (int row = 0; row < Tile::ROWS; row += 16) {
            LeftFragment<floatX> a;
            RightFragment<floatX> b;
            load_left_transposed(a, tile + row * dy_stride<Tile> + part * 16, dy_stride<Tile>);
            load_right(b, x + row * Tile::X_STRIDE + octet * 8, Tile::X_STRIDE);
            multiply_add(sums, a, b);
        }
#pragma unroll
        for (int k = 0; k < 4; k++)
            d_omega[((piece + part) * 16 + sum_row(k)) * Tile::WIDTH + octet * 8 + sum_column(k)] += sums.x[k];
    }
}

// OCTETS octets of columns of what gather_gradient gives, from octet `octet0` on.
template <typename Tile, int OCTETS, typename Slopes>
__device__ static inline void gather_columns(float *dx, const floatX *x, LinearProjection omega, int from, int to,
                                             float *d_projections, float *scratch, int octet0, Slopes slopes) {
    int row_tile = row_tile_of_warp<Tile>(), part = part_of_warp<Tile>();
    floatX *dy_tile = (floatX *)scratch;
    SumFragment sums[OCTETS] = {};
    for (int first = from; first < to; first += Tile::PARTS) {
        int piece = first + part;
        SumFragment y[2] = {};
        if (piece < to) {
            slopes(y, row_tile * 16 + sum_row(0), piece);
            LeftFragment<floatX> a;
            to_left(a, y[0], y[1]);
            const float4 *packed = omega.y + ((size_t)piece * (Tile::WIDTH / 8) + octet0) * 32 + tile_lane();
#pragma unroll
            for (int octet = 0; octet < OCTETS; octet++) multiply_add_packed<true>(sums[octet], a, packed[octet * 32]);
        }
        if (!d_projections) continue;
        for (int half = 0; half < 2; half++)
            store_sums(dy_tile + row_tile * 16 * dy_stride<Tile> + part * 16 + half * 8, dy_stride<Tile>, y[half]);
        __syncthreads();
        add_projection_gradient<Tile>(d_projections, dy_tile, x, first, to);
        __syncthreads();
    }
    for (int turn = 0; turn < Tile::PARTS; turn++) { // one part after the other: in a fixed order
        float *at = dx + (row_tile * 16 + sum_row(0)) * Tile::DX_STRIDE + octet0 * 8 + sum_column(0);
#pragma unroll
        for (int i = 0; i < 4 * OCTETS; i++) {
            float *to_add = at + i % 4 / 2 * 8 * Tile::DX_STRIDE + i / 4 * 8 + i % 2;
            if (turn == part) *to_add = (turn ? *to_add : 0.0f) + sums[i / 4].x[i % 4];
        }
        __syncthreads();
    }
}

// dx (ROWS, WIDTH) = dy omega over the pieces [from, to), where slopes(dy, row, piece, is_first) gives what reaches the
// piece's projections, laid out as by project_pieces. Where registers are short, columns are gathered in two groups,
// and slopes are asked for twice: is_first says for the first time. Unless d_projections is NULL, what reaches omega is
// added there, which takes dy_scratch floats of scratch per row, at `scratch`. Ends with a barrier.
template <typename Tile, typename Slopes>
__device__ static inline void gather_gradient(float *dx, const floatX *x, LinearProjection omega, int from, int to,
                                              float *d_projections, float *scratch, Slopes slopes) {
    constexpr int GROUPS = Tile::WIDTH == 128 || sizeof(typename Tile::Operand) == 4 ? 2 : 1;
#pragma unroll 1
    for (int group = 0; group < GROUPS; group++)
        gather_columns<Tile, Tile::WIDTH / 8 / GROUPS>(
            dx, x, omega, from, to, group ? NULL : d_projections, scratch, group * (Tile::WIDTH / 8 / GROUPS),
            [&](SumFragment(&dy)[2], int row, int piece) { slopes(dy, row, piece, group == 0); });
}

// The same where slope(row, projection, y, is_first) turns a projection y into its gradient.
template <typename Tile, typename Slope>
__device__ static inline void project_gradient(float *dx, const floatX *x, LinearProjection omega, int from, int to,
                                               Slope slope) {
    gather_gradient<Tile>(
        dx, x, omega, from, to, NULL, NULL, [&](SumFragment(&dy)[2], int row, int piece, bool is_first) {
            SumFragment y[1][2];
            project_piece<Tile>(y, x + row_tile_of_warp<Tile>() * 16 * Tile::X_STRIDE, omega, piece);
#pragma unroll
            for (int i = 0; i < 8; i++)
                dy[i / 4].x[i % 4] = slope(row + i % 4 / 2 * 8, piece * 16 + i / 4 * 8 + sum_column(i % 4),
                                           y[0][i / 4].x[i % 4], is_first);
        });
}

#endif
