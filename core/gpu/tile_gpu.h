// Register tiles: the tensor cores' products with their operands in the registers of a warp, and what brings numbers
// there. Kernels are written with the second half of this header, which is the same for both precisions:
//
//     LeftFragment<Number>   16 x 16   a matrix that is multiplied from the left
//     RightFragment<Number>  16 x 8    one that is multiplied from the right
//     SumFragment            16 x 8    float sums
//
// Number is __nv_bfloat16, multiplied as it is, or float, multiplied in full precision: as the sum of two TF32 numbers
// (three products, whose error is about 2^-22 of the factors). Lane l = 4 g + t of the warp has, whatever the Number,
//
//     left    (g, 2t) (g, 2t+1)  (g+8, 2t) (g+8, 2t+1)  (g, 2t+8) (g, 2t+9)  (g+8, 2t+8) (g+8, 2t+9)
//     right   (2t, g) (2t+1, g)  (2t+8, g) (2t+9, g)
//     sums    (g, 2t) (g, 2t+1)  (g+8, 2t) (g+8, 2t+1)
//
// so that two neighbouring sums become a left operand without leaving their lane, and a row lies in the four lanes of a
// quad. All lanes of a warp must call these functions together.
//
// The first half has the instructions. There is PTX here and nowhere else, and beside each instruction a twin for
// dev/cuda_on_cpu, which tests compare with the layout tables of NVIDIA's CUTLASS (core/gpu/test_tile_layouts.cpp).
#ifndef CORE_TILE_GPU_H
#define CORE_TILE_GPU_H

#include "cuda_common.h"

#include <stdint.h>

// ---------------------------------------------------------------------------------------------------------------------
// Instructions

#ifndef CUDA_ON_CPU_H

__device__ static inline uint32_t shared_address(const void *at) {
    return (uint32_t)__cvta_generic_to_shared(at);
}

// Four 8x8 matrices of 16-bit numbers from shared memory: lane l has the address of row l % 8 of matrix l / 8, and gets
// from matrix i the numbers (l / 4, 2 (l % 4)) and the next; TRANSPOSED: (2 (l % 4), l / 4) and the one below.
template <bool TRANSPOSED> __device__ static inline void load_matrices(uint32_t (&x)[4], const void *row) {
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(shared_address(row))
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(shared_address(row))
                     : "memory");
}

// Two of them: the addresses of the lanes from 16 on do not matter.
template <bool TRANSPOSED> __device__ static inline void load_matrices(uint32_t (&x)[2], const void *row) {
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                     : "=r"(x[0]), "=r"(x[1])
                     : "r"(shared_address(row))
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                     : "=r"(x[0]), "=r"(x[1])
                     : "r"(shared_address(row))
                     : "memory");
}

// sums (16,8) += a (16,16) b (16,8), pairs of bf16
__device__ static inline void mma_bf16(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// sums (16,8) += a (16,8) b (8,8); numbers from round_to_tf32. Lane 4 g + t has a (g, t), (g+8, t), (g, t+4),
// (g+8, t+4) and b (t, g), (t+4, g).
__device__ static inline void mma_tf32(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <int COUNT>
__device__ static inline void mma_tf32_in_turn(float (&sums)[4], const uint32_t (&a)[COUNT][4],
                                               const uint32_t (&b)[COUNT][2]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) mma_tf32(sums, a[i], b[i]);
}

// The nearest number with a mantissa of 10 bits, ties away from zero.
__device__ static inline uint32_t round_to_tf32(float x) {
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}

// 16 bytes from global to shared memory, both aligned to 16, of which `bytes` are read and the rest are zeros. They are
// there for this thread after copies_wait, for others after a barrier that follows it.
__device__ static inline void copy_async(void *shared, const void *global, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes)
                 : "memory");
}

// Ends a group of copies; waits until at most PENDING of this thread's groups are under way.
__device__ static inline void copies_commit(void) {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int PENDING> __device__ static inline void copies_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// 2^x and 1 / x by one instruction, within about two units in the last place; results and arguments below 2^-126 count
// as 0, and so does 1 / x beyond 2^126.
__device__ static inline float exp2_approximately(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ static inline float reciprocal_approximately(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// fminf and fmaxf, except that NaN stays NaN.
__device__ static inline float min_or_nan(float a, float b) {
    float y;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
__device__ static inline float max_or_nan(float a, float b) {
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

// The same number, of which the compiler knows nothing: what is computed from it within a loop stays there, where it
// would otherwise take registers for as long as the loop runs.
__device__ static inline int opaque(int x) {
    asm volatile("" : "+r"(x));
    return x;
}

#else
#include "tile_twins.h"
#endif

// ---------------------------------------------------------------------------------------------------------------------
// Fragments

template <typename Number> struct LeftFragment;
template <typename Number> struct RightFragment;
template <> struct LeftFragment<__nv_bfloat16> { uint32_t x[4]; };
template <> struct RightFragment<__nv_bfloat16> { uint32_t x[2]; };
template <> struct LeftFragment<float> { float x[8]; };
template <> struct RightFragment<float> { float x[4]; };
struct SumFragment {
    float x[4];
};

// Rows of tiles in shared memory are padded by 16 bytes, so that eight of them lie in different banks.
template <typename Number, int WIDTH> constexpr int tile_stride = WIDTH + 16 / (int)sizeof(Number);

__device__ static inline int tile_lane(void) {
    return (int)(threadIdx.x % 32);
}

// Where sum i of this lane is in its fragment.
__device__ static inline int sum_row(int i) {
    return tile_lane() / 4 + i / 2 * 8;
}
__device__ static inline int sum_column(int i) {
    return 2 * (tile_lane() % 4) + i % 2;
}

__device__ static inline uint32_t pack_bf16(float low, float high) {
    __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &both, sizeof bits);
    return bits;
}

// ---- products. TRANSPOSED: the same bits as those of the transposed product, b^T a^T, without it.

template <bool TRANSPOSED = false>
__device__ static inline void multiply_add(SumFragment &sums, const LeftFragment<__nv_bfloat16> &a,
                                           const RightFragment<__nv_bfloat16> &b) {
    mma_bf16(sums.x, a.x, b.x);
}

// A float as the sum of two TF32 numbers. What is split is x rounded to such a sum: the sum is split into the same two
// again, and what comes out of a product with 1 gives the same products as what went in.
struct SplitFloat {
    uint32_t high, low;
};
__device__ static inline SplitFloat split_float(float x) {
    float first = __uint_as_float(round_to_tf32(x)), sum = first + __uint_as_float(round_to_tf32(x - first));
    SplitFloat split;
    split.high = round_to_tf32(sum);
    split.low = __float_as_uint(sum - __uint_as_float(split.high)); // exact: at most 11 bits
    return split;
}

// The product sums over 8 columns of a at a time. In which order does not matter as long as the rows of b follow: here
// column 2t takes the place of t, and 2t+1 that of t+4.
template <bool TRANSPOSED = false>
__device__ static inline void multiply_add(SumFragment &sums, const LeftFragment<float> &a,
                                           const RightFragment<float> &b) {
    const int place[4] = {0, 2, 1, 3}, small = TRANSPOSED ? 1 : 0; // the product with a's low parts; the last has none
    uint32_t from_a[6][4], from_b[6][2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int first = 3 * half;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            SplitFloat split = split_float(a.x[4 * half + place[i]]);
            from_a[first + small][i] = split.low, from_a[first + 1 - small][i] = from_a[first + 2][i] = split.high;
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            SplitFloat split = split_float(b.x[2 * half + i]);
            from_b[first + 1 - small][i] = split.low, from_b[first + small][i] = from_b[first + 2][i] = split.high;
        }
    }
    mma_tf32_in_turn(sums.x, from_a, from_b);
}

// ---- operands from shared memory. `tile` is the operand's first number, `stride` the distance between rows there, a
// multiple of 16 bytes; "transposed": what is in memory is the operand's transpose.

// a (16,16) at tile[row * stride + column]
__device__ static inline void load_left(LeftFragment<__nv_bfloat16> &a, const __nv_bfloat16 *tile, int stride) {
    int lane = tile_lane();
    load_matrices<false>(a.x, tile + lane % 16 * stride + lane / 16 * 8);
}
__device__ static inline void load_left(LeftFragment<float> &a, const float *tile, int stride) {
    int lane = tile_lane();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 two = *(const float2 *)(tile + (lane / 4 + i % 2 * 8) * stride + 2 * (lane % 4) + i / 2 * 8);
        a.x[2 * i] = two.x, a.x[2 * i + 1] = two.y;
    }
}

// a (16,16) at tile[column * stride + row]
__device__ static inline void load_left_transposed(LeftFragment<__nv_bfloat16> &a, const __nv_bfloat16 *tile,
                                                   int stride) {
    int lane = tile_lane();
    load_matrices<true>(a.x, tile + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8);
}
__device__ static inline void load_left_transposed(LeftFragment<float> &a, const float *tile, int stride) {
    int lane = tile_lane();
#pragma unroll
    for (int i = 0; i < 8; i++) a.x[i] = tile[(2 * (lane % 4) + i % 2 + i / 4 * 8) * stride + lane / 4 + i / 2 % 2 * 8];
}

// b (16,8) at tile[row * stride + column]
__device__ static inline void load_right(RightFragment<__nv_bfloat16> &b, const __nv_bfloat16 *tile, int stride) {
    load_matrices<true>(b.x, tile + tile_lane() % 16 * stride);
}
__device__ static inline void load_right(RightFragment<float> &b, const float *tile, int stride) {
    int lane = tile_lane();
#pragma unroll
    for (int i = 0; i < 4; i++) b.x[i] = tile[(2 * (lane % 4) + i % 2 + i / 2 * 8) * stride + lane / 4];
}

// b (16,8) at tile[column * stride + row]
__device__ static inline void load_right_transposed(RightFragment<__nv_bfloat16> &b, const __nv_bfloat16 *tile,
                                                    int stride) {
    int lane = tile_lane();
    load_matrices<false>(b.x, tile + lane % 8 * stride + lane / 8 % 2 * 8);
}
__device__ static inline void load_right_transposed(RightFragment<float> &b, const float *tile, int stride) {
    int lane = tile_lane();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float2 two = *(const float2 *)(tile + lane / 4 * stride + 2 * (lane % 4) + i * 8);
        b.x[2 * i] = two.x, b.x[2 * i + 1] = two.y;
    }
}

// Two neighbours at once, b (16,16): columns 0..7 and 8..15.
template <typename Number> struct RightPair { RightFragment<Number> half[2]; };

__device__ static inline void load_right(RightPair<__nv_bfloat16> &b, const __nv_bfloat16 *tile, int stride) {
    int lane = tile_lane();
    uint32_t x[4];
    load_matrices<true>(x, tile + lane % 16 * stride + lane / 16 * 8);
    b.half[0].x[0] = x[0], b.half[0].x[1] = x[1], b.half[1].x[0] = x[2], b.half[1].x[1] = x[3];
}
__device__ static inline void load_right(RightPair<float> &b, const float *tile, int stride) {
    load_right(b.half[0], tile, stride);
    load_right(b.half[1], tile + 8, stride);
}
__device__ static inline void load_right_transposed(RightPair<__nv_bfloat16> &b, const __nv_bfloat16 *tile,
                                                    int stride) {
    int lane = tile_lane();
    uint32_t x[4];
    load_matrices<false>(x, tile + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8);
    b.half[0].x[0] = x[0], b.half[0].x[1] = x[1], b.half[1].x[0] = x[2], b.half[1].x[1] = x[3];
}
__device__ static inline void load_right_transposed(RightPair<float> &b, const float *tile, int stride) {
    load_right_transposed(b.half[0], tile, stride);
    load_right_transposed(b.half[1], tile + 8 * stride, stride);
}

// ---- sums as operands, and to memory

// a = (first | second), two neighbouring fragments of sums
__device__ static inline void to_left(LeftFragment<__nv_bfloat16> &a, const SumFragment &first,
                                      const SumFragment &second) {
    a.x[0] = pack_bf16(first.x[0], first.x[1]), a.x[1] = pack_bf16(first.x[2], first.x[3]);
    a.x[2] = pack_bf16(second.x[0], second.x[1]), a.x[3] = pack_bf16(second.x[2], second.x[3]);
}
__device__ static inline void to_left(LeftFragment<float> &a, const SumFragment &first, const SumFragment &second) {
#pragma unroll
    for (int i = 0; i < 4; i++) a.x[i] = first.x[i], a.x[4 + i] = second.x[i];
}

// Two numbers that stand side by side, in one access. The address is a multiple of two numbers' size.
__device__ static inline void store_two(__nv_bfloat16 *to, float first, float second) {
    *(__nv_bfloat162 *)to = __floats2bfloat162_rn(first, second);
}
__device__ static inline void store_two(float *to, float first, float second) {
    *(float2 *)to = make_float2(first, second);
}

__device__ static inline float2 load_two(const __nv_bfloat16 *from) {
    return __bfloat1622float2(*(const __nv_bfloat162 *)from);
}
__device__ static inline float2 load_two(const float *from) {
    return *(const float2 *)from;
}

// Two neighbours of a row of HS numbers, the first in column d; nothing beyond them.
template <typename Number>
__device__ static inline void store_columns(Number *row, int d, int HS, float first, float second) {
    if (HS % 2 == 0) { // then every row of every head starts at a multiple of two numbers
        if (d < HS) store_two(row + d, first, second);
        return;
    }
    if (d < HS) row[d] = from_float<Number>(first);
    if (d + 1 < HS) row[d + 1] = from_float<Number>(second);
}

// tile[row * stride + column] = sums (16,8)
template <typename Number> __device__ static inline void store_sums(Number *tile, int stride, const SumFragment &sums) {
    store_two(tile + sum_row(0) * stride + sum_column(0), sums.x[0], sums.x[1]);
    store_two(tile + sum_row(2) * stride + sum_column(2), sums.x[2], sums.x[3]);
}

// ---- rows: over the four lanes that have one, the same bits in each of them

__device__ static inline float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Of four numbers of each lane: lane t of the quad gets the sum of number t.
__device__ static inline float quad_sum(const float (&x)[4]) {
    bool is_odd = threadIdx.x % 2, is_upper = threadIdx.x / 2 % 2;
    float low = is_odd ? x[1] : x[0], high = is_odd ? x[3] : x[2];
    low += __shfl_xor_sync(0xffffffffu, is_odd ? x[0] : x[1], 1);
    high += __shfl_xor_sync(0xffffffffu, is_odd ? x[2] : x[3], 1);
    return (is_upper ? high : low) + __shfl_xor_sync(0xffffffffu, is_upper ? low : high, 2);
}

// NaN is lost, as in fmaxf.
__device__ static inline float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

// ---- tiles from global memory

// Begins to fill rows (ROWS, WIDTH) of a tile with rows of HS numbers that are `stride` apart, by all THREADS of the
// block, which divide the tile's rows; zeros beyond HS and from row `present` on. To be followed by copies_commit. Rows
// of global memory must begin at multiples of 16 bytes, for which HS has to be a multiple of 16 / sizeof(Number): see
// stages_async. Rows of the tile may be further `apart` than WIDTH asks for.
template <int THREADS, int ROWS, int WIDTH, typename Number>
__device__ static inline void stage_async_by(Number *tile, const Number *rows, size_t stride, int present, int HS,
                                             int thread, int apart = tile_stride<Number, WIDTH>) {
    constexpr int CHUNK = 16 / (int)sizeof(Number), CHUNKS = WIDTH / CHUNK, STEP = THREADS / CHUNKS;
    static_assert(THREADS % CHUNKS == 0 && (STEP > ROWS || ROWS % STEP == 0), "threads have to divide the tile");
    int row = thread / CHUNKS, column = thread % CHUNKS * CHUNK;
    const Number *from = rows + row * stride + column;
    Number *to = tile + row * apart + column;
    if (column >= HS) present = 0;
    if (STEP > ROWS && row >= ROWS) return;
#pragma unroll
    for (int i = 0; i < ROWS; i += STEP, from += STEP * stride) {
        bool exists = row + i < present;
        copy_async(to + i * apart, exists ? from : rows, exists ? 16 : 0);
    }
}

// The same number by number, for rows that begin anywhere; there after the next barrier.
template <int ROWS, int WIDTH, typename Number>
__device__ static inline void stage_plainly(Number *tile, const Number *rows, size_t stride, int present, int HS,
                                            int thread, int threads, int apart = tile_stride<Number, WIDTH>) {
#pragma unroll 1
    for (int i = thread; i < ROWS * WIDTH; i += threads) {
        int row = i / WIDTH, column = i % WIDTH;
        bool exists = row < present && column < HS;
        tile[row * apart + column] = exists ? rows[row * stride + column] : from_float<Number>(0.0f);
    }
}

// Whether rows of heads of HS numbers can be staged asynchronously; the tensors themselves are aligned.
template <typename Number> __host__ __device__ static inline bool stages_async(int HS) {
    return HS % (16 / (int)sizeof(Number)) == 0;
}

#endif
