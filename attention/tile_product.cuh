// The two matrix products of a tiled quadratic attention, each done by one warp for its 16 rows of a tile in shared
// memory: dot products of rows with rows, and sums of rows by weights. Two builds of the same interface:
// register-blocked multiply-adds for float, tensor cores (nvcuda::wmma, 16x16x16, sums in float) for bf16.
//
// In the float build every sum runs over its terms in ascending order, one fused multiply-add each, so that the same
// numbers give the same bits wherever in a tile they stand.
#ifndef ATTENTION_TILE_PRODUCT_CUH
#define ATTENTION_TILE_PRODUCT_CUH

#include "core/gpu/cuda_common.h"

#ifdef PRECISION_BF16
#include <mma.h>
#endif

enum {
    WARP_ROWS = 16,              // rows of a tile that belong to one warp
    CHUNK = 16 / sizeof(floatX), // numbers of one 16-byte access
    SCORE_PAD =
        16 / sizeof(float), // rows are padded by 16 bytes, so that those of neighbouring lanes lie in different banks
};

// What dynamic shared memory is declared as: wmma needs its operands aligned like this.
struct alignas(32) SharedBytes {
    unsigned char bytes[32];
};

// Numbers from one row of a tile to the next.
template <int WIDTH> constexpr int tile_stride = WIDTH + CHUNK;

// The scores of a tile. As weights in a product they have the operands' type, which float has already.
template <int ROWS, int COLUMNS> struct ScoreTile {
    static constexpr int stride = COLUMNS + SCORE_PAD;
    alignas(32) float scores[ROWS][stride];
#ifdef PRECISION_BF16
    static constexpr int weight_stride = COLUMNS + CHUNK;
    alignas(32) floatX rounded[ROWS][weight_stride];
    __device__ floatX *weights(int row) {
        return rounded[row];
    }
#else
    static constexpr int weight_stride = stride;
    __device__ floatX *weights(int row) {
        return scores[row];
    }
#endif
};

#ifndef PRECISION_BF16

// A lane's part of 16 rows: rows lane / 8 + 4 i, i < 4.
enum { LANE_ROWS = 4, ROW_STEP = WARP_ROWS / LANE_ROWS, COLUMN_LANES = 32 / ROW_STEP };

__device__ static inline float4 load4(const float *x) {
    return *reinterpret_cast<const float4 *>(x);
}

// scores (16, COLUMNS) = rows (16, WIDTH) . columns (COLUMNS, WIDTH)^T. A lane has the columns lane % 8 + 8 j.
template <int WIDTH, int COLUMNS>
__device__ void multiply_rows(float *scores, int score_stride, const float *rows, const float *columns) {
    constexpr int stride = tile_stride<WIDTH>, LANE_COLUMNS = COLUMNS / COLUMN_LANES;
    int lane = threadIdx.x % 32, row = lane / COLUMN_LANES, column = lane % COLUMN_LANES;
    float sum[LANE_ROWS][LANE_COLUMNS] = {};
#pragma unroll 2
    for (int k = 0; k < WIDTH; k += 4) {
        float4 a[LANE_ROWS];
#pragma unroll
        for (int i = 0; i < LANE_ROWS; i++) a[i] = load4(rows + (row + i * ROW_STEP) * stride + k);
#pragma unroll
        for (int j = 0; j < LANE_COLUMNS; j++) {
            float4 b = load4(columns + (column + j * COLUMN_LANES) * stride + k);
#pragma unroll
            for (int i = 0; i < LANE_ROWS; i++) {
                sum[i][j] = fmaf(a[i].x, b.x, sum[i][j]);
                sum[i][j] = fmaf(a[i].y, b.y, sum[i][j]);
                sum[i][j] = fmaf(a[i].z, b.z, sum[i][j]);
                sum[i][j] = fmaf(a[i].w, b.w, sum[i][j]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < LANE_ROWS; i++) {
#pragma unroll
        for (int j = 0; j < LANE_COLUMNS; j++) {
            scores[(row + i * ROW_STEP) * score_stride + column + j * COLUMN_LANES] = sum[i][j];
        }
    }
}

// 16 rows of sums (16, WIDTH), spread over the registers of a warp. A lane has the columns 4 (lane % 8) + 32 j + 0..3.
template <int WIDTH> struct RowSums {
    static constexpr int VECTORS = WIDTH / 32;
    float x[LANE_ROWS][VECTORS][4];

    __device__ explicit RowSums(float *, int) : x{} {}

    // f(row, column, sum) for each sum that this lane has
    template <class Function> __device__ void each(Function f) {
        int lane = threadIdx.x % 32, row = lane / COLUMN_LANES, column = 4 * (lane % COLUMN_LANES);
#pragma unroll
        for (int i = 0; i < LANE_ROWS; i++) {
#pragma unroll
            for (int j = 0; j < VECTORS * 4; j++) {
                f(row + i * ROW_STEP, column + 32 * (j / 4) + j % 4, x[i][j / 4][j % 4]);
            }
        }
    }

    // += weights (16, first..last-1) . rows (first..last-1, WIDTH); first and last are multiples of 16
    __device__ void add(const float *weights, int weight_stride, const float *rows, int first, int last) {
        int lane = threadIdx.x % 32, row = lane / COLUMN_LANES, column = 4 * (lane % COLUMN_LANES);
#pragma unroll 1
        for (int k = first; k < last; k += 4) {
            float a[LANE_ROWS][4];
#pragma unroll
            for (int i = 0; i < LANE_ROWS; i++) {
                float4 four = load4(weights + (row + i * ROW_STEP) * weight_stride + k);
                a[i][0] = four.x, a[i][1] = four.y, a[i][2] = four.z, a[i][3] = four.w;
            }
#pragma unroll
            for (int step = 0; step < 4; step++) {
#pragma unroll
                for (int j = 0; j < VECTORS; j++) {
                    float4 b = load4(rows + (k + step) * tile_stride<WIDTH> + column + 32 * j);
#pragma unroll
                    for (int i = 0; i < LANE_ROWS; i++) {
                        x[i][j][0] = fmaf(a[i][step], b.x, x[i][j][0]);
                        x[i][j][1] = fmaf(a[i][step], b.y, x[i][j][1]);
                        x[i][j][2] = fmaf(a[i][step], b.z, x[i][j][2]);
                        x[i][j][3] = fmaf(a[i][step], b.w, x[i][j][3]);
                    }
                }
            }
        }
    }
};

#else

enum { FRAGMENT = 16 };
namespace wmma = nvcuda::wmma;
typedef wmma::fragment<wmma::accumulator, FRAGMENT, FRAGMENT, FRAGMENT, float> SumFragment;
typedef wmma::fragment<wmma::matrix_a, FRAGMENT, FRAGMENT, FRAGMENT, floatX, wmma::row_major> LeftFragment;
template <class Layout>
using RightFragment = wmma::fragment<wmma::matrix_b, FRAGMENT, FRAGMENT, FRAGMENT, floatX, Layout>;

// scores (16, COLUMNS) = rows (16, WIDTH) . columns (COLUMNS, WIDTH)^T
template <int WIDTH, int COLUMNS>
__device__ void multiply_rows(float *scores, int score_stride, const floatX *rows, const floatX *columns) {
    constexpr int stride = tile_stride<WIDTH>;
    SumFragment sums[COLUMNS / FRAGMENT];
#pragma unroll
    for (int j = 0; j < COLUMNS / FRAGMENT; j++) wmma::fill_fragment(sums[j], 0.0f);
#pragma unroll(WIDTH > 64 ? 2 : WIDTH / FRAGMENT) // backward has no registers to spare with the widest heads
    for (int k = 0; k < WIDTH; k += FRAGMENT) {
        LeftFragment a;
        wmma::load_matrix_sync(a, rows + k, stride);
#pragma unroll
        for (int j = 0; j < COLUMNS / FRAGMENT; j++) {
            RightFragment<wmma::col_major> b;
            wmma::load_matrix_sync(b, columns + j * FRAGMENT * stride + k, stride);
            wmma::mma_sync(sums[j], a, b, sums[j]);
        }
    }
#pragma unroll
    for (int j = 0; j < COLUMNS / FRAGMENT; j++) {
        wmma::store_matrix_sync(scores + j * FRAGMENT, sums[j], score_stride, wmma::mem_row_major);
    }
}

// 16 rows of sums (16, WIDTH), spread over the registers of a warp. Where a fragment keeps which sum is not
// documented; `places`, a fragment loaded with the numbers 0 to 255, shows it.
template <int WIDTH> struct RowSums {
    static constexpr int FRAGMENTS = WIDTH / FRAGMENT;
    SumFragment sums[FRAGMENTS], places;

    // scratch: 16 rows of the warp's own, which are free again after the block's next barrier
    __device__ explicit RowSums(float *scratch, int stride) {
        for (int i = threadIdx.x % 32; i < FRAGMENT * FRAGMENT; i += 32) {
            scratch[i / FRAGMENT * stride + i % FRAGMENT] = (float)i;
        }
        __syncwarp();
        wmma::load_matrix_sync(places, scratch, stride, wmma::mem_row_major);
#pragma unroll
        for (int j = 0; j < FRAGMENTS; j++) wmma::fill_fragment(sums[j], 0.0f);
    }

    // f(row, column, sum) for each sum that this lane has
    template <class Function> __device__ void each(Function f) {
#pragma unroll
        for (int j = 0; j < FRAGMENTS; j++) {
#pragma unroll
            for (int i = 0; i < SumFragment::num_elements; i++) {
                int place = (int)places.x[i];
                f(place / FRAGMENT, j * FRAGMENT + place % FRAGMENT, sums[j].x[i]);
            }
        }
    }

    // += weights (16, first..last-1) . rows (first..last-1, WIDTH); first and last are multiples of 16
    __device__ void add(const floatX *weights, int weight_stride, const floatX *rows, int first, int last) {
#pragma unroll 1
        for (int k = first; k < last; k += FRAGMENT) {
            LeftFragment a;
            wmma::load_matrix_sync(a, weights + k, weight_stride);
#pragma unroll
            for (int j = 0; j < FRAGMENTS; j++) {
                RightFragment<wmma::row_major> b;
                wmma::load_matrix_sync(b, rows + k * tile_stride<WIDTH> + j * FRAGMENT, tile_stride<WIDTH>);
                wmma::mma_sync(sums[j], a, b, sums[j]);
            }
        }
    }
};

#endif
#endif
