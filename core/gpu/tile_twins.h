// The instructions of tile_gpu.h in plain C++, for dev/cuda_on_cpu: what they do to the lanes of a warp, as NVIDIA's
// PTX manual says. Included by tile_gpu.h only.
#ifndef CORE_TILE_TWINS_H
#define CORE_TILE_TWINS_H

#include "cuda_common.h"

#include <math.h>
#include <stdint.h>
#include <string.h>
#include <vector>

// ---- matrices from shared memory

typedef struct {
    uint16_t row[8]; // what is at the lane's address
    uint32_t *x;     // its registers
} MatrixLane;

template <bool TRANSPOSED, int COUNT> static void spread_matrices(void *const *lanes) {
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < COUNT; i++) {
            uint32_t pair[2];
            for (int j = 0; j < 2; j++) {
                int row = TRANSPOSED ? 2 * (lane % 4) + j : lane / 4,
                    column = TRANSPOSED ? lane / 4 : 2 * (lane % 4) + j;
                pair[j] = ((const MatrixLane *)lanes[8 * i + row])->row[column];
            }
            ((MatrixLane *)lanes[lane])->x[i] = pair[0] | pair[1] << 16;
        }
}

// The lane reads its own row, as the race checker sees it; then the warp exchanges numbers.
template <bool TRANSPOSED, int COUNT>
static inline void load_matrices(uint32_t (&x)[COUNT], const void *row, CUDA_ON_CPU_CALLER) {
    MatrixLane mine = {{}, x};
    if (cuda_on_cpu::lane() < 8 * COUNT) {
        cuda_on_cpu::check_shared_row(row, CUDA_ON_CPU_PLACE);
        const uint16_t *from = (const uint16_t *)row;
        for (int i = 0; i < 8; i++) mine.row[i] = from[i];
    }
    cuda_on_cpu::warp_together(spread_matrices<TRANSPOSED, COUNT>, &mine, CUDA_ON_CPU_PLACE);
}

// ---- products

typedef struct {
    float *sums;           // (4)
    const uint32_t *a, *b; // of one product after the other
} ProductLane;

static inline float float_of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// Number e, 0 or 1, of a pair of bf16.
static inline float half_of_pair(uint32_t pair, int e) {
    return float_of_bits(e ? pair & 0xffff0000u : pair << 16);
}

// A row of 8 numbers, which the CPU adds and multiplies at once.
typedef float Row __attribute__((vector_size(32), aligned(32)));

// The sums of all lanes (16,8): where lane `lane` has its number i.
static inline float &sum_of_lane(Row (&sums)[16], int lane, int i) {
    return ((float *)&sums[lane / 4 + i / 2 * 8])[2 * (lane % 4) + i % 2];
}
static inline void gather_sums(Row (&sums)[16], void *const *lanes) {
    for (int i = 0; i < 32 * 4; i++) sum_of_lane(sums, i / 4, i % 4) = ((ProductLane *)lanes[i / 4])->sums[i % 4];
}
static inline void scatter_sums(void *const *lanes, Row (&sums)[16]) {
    for (int i = 0; i < 32 * 4; i++) ((ProductLane *)lanes[i / 4])->sums[i % 4] = sum_of_lane(sums, i / 4, i % 4);
}

// sums (16,8) += a (16,DEPTH) b (DEPTH,8), term after term
template <int DEPTH>
static inline void add_product(Row (&sums)[16], const float (&a)[16][DEPTH], const Row (&b)[DEPTH]) {
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < DEPTH; k++) sums[row] += a[row][k] * b[k];
}

static void add_product_bf16(void *const *lanes) {
    float a[16][16];
    Row b[16], sums[16];
    for (int lane = 0; lane < 32; lane++) {
        const ProductLane *from = (const ProductLane *)lanes[lane];
        int g = lane / 4, t = lane % 4;
        for (int e = 0; e < 2; e++) {
            for (int i = 0; i < 4; i++) a[g + i % 2 * 8][2 * t + e + i / 2 * 8] = half_of_pair(from->a[i], e);
            for (int i = 0; i < 2; i++) ((float *)&b[2 * t + e + i * 8])[g] = half_of_pair(from->b[i], e);
        }
    }
    gather_sums(sums, lanes);
    add_product(sums, a, b);
    scatter_sums(lanes, sums);
    cuda_on_cpu::count_tensor_operation("bf16", 2 * 16 * 8 * 16);
}

// COUNT products one after the other; lanes have the operands of all.
template <int COUNT> static void add_products_tf32(void *const *lanes) {
    Row sums[16];
    gather_sums(sums, lanes);
    for (int product = 0; product < COUNT; product++) {
        float a[16][8];
        Row b[8];
        for (int lane = 0; lane < 32; lane++) {
            const ProductLane *from = (const ProductLane *)lanes[lane];
            int g = lane / 4, t = lane % 4;
            for (int i = 0; i < 4; i++) a[g + i % 2 * 8][t + i / 2 * 4] = float_of_bits(from->a[4 * product + i]);
            for (int i = 0; i < 2; i++) ((float *)&b[t + i * 4])[g] = float_of_bits(from->b[2 * product + i]);
        }
        add_product(sums, a, b);
        cuda_on_cpu::count_tensor_operation("tf32", 2 * 16 * 8 * 8);
    }
    scatter_sums(lanes, sums);
}

static inline void mma_bf16(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], CUDA_ON_CPU_CALLER) {
    ProductLane mine = {sums, a, b};
    cuda_on_cpu::warp_together(add_product_bf16, &mine, CUDA_ON_CPU_PLACE);
}

static inline void mma_tf32(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], CUDA_ON_CPU_CALLER) {
    ProductLane mine = {sums, a, b};
    cuda_on_cpu::warp_together(add_products_tf32<1>, &mine, CUDA_ON_CPU_PLACE);
}

// One exchange between the lanes for all: a quarter of the time.
template <int COUNT>
static inline void mma_tf32_in_turn(float (&sums)[4], const uint32_t (&a)[COUNT][4], const uint32_t (&b)[COUNT][2],
                                    CUDA_ON_CPU_CALLER) {
    ProductLane mine = {sums, a[0], b[0]};
    cuda_on_cpu::warp_together(add_products_tf32<COUNT>, &mine, CUDA_ON_CPU_PLACE);
}

static inline uint32_t round_to_tf32(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7f800000u) == 0x7f800000u) return bits;
    return (bits + 0x1000u) & ~0x1fffu;
}

// ---- single numbers

static inline float flushed(float x) {
    return x < 1.17549435e-38f && x > -1.17549435e-38f ? x * 0 : x;
}

static inline float exp2_approximately(float x) {
    return flushed(exp2f(flushed(x)));
}

static inline float reciprocal_approximately(float x) {
    return flushed(1 / flushed(x));
}

static inline float min_or_nan(float a, float b) {
    return a != a || b != b ? NAN : a < b ? a : b;
}

static inline float max_or_nan(float a, float b) {
    return a != a || b != b ? NAN : a > b ? a : b;
}

static inline int opaque(int x) {
    return x;
}

// ---- copies: they arrive when they are waited for and not before, so that a missing wait shows

typedef struct {
    void *to;
    const void *from;
    int bytes;
} Copy;

typedef struct { // of one thread
    uint64_t block;
    std::vector<std::vector<Copy>> groups; // the last one is open
} Copies;

// One for the whole program: templates that copy and those that wait may come from different files.
inline Copies &copies_of_thread(void) {
    static Copies all[1024];
    Copies &mine = all[cuda_on_cpu::thread_in_block()];
    if (mine.block != cuda_on_cpu::block_serial || mine.groups.empty()) {
        mine.block = cuda_on_cpu::block_serial;
        mine.groups.assign(1, {});
    }
    return mine;
}

static inline void copy_async(void *shared, const void *global, int bytes, CUDA_ON_CPU_CALLER) {
    cuda_on_cpu::check_shared_row(shared, CUDA_ON_CPU_PLACE);
    cuda_on_cpu::check_aligned(global, 16, CUDA_ON_CPU_PLACE);
    copies_of_thread().groups.back().push_back({shared, global, bytes});
}

static inline void copies_commit(void) {
    copies_of_thread().groups.push_back({});
}

static inline void carry_out(const Copy &copy) {
    const uint32_t *from = (const uint32_t *)copy.from;
    uint32_t *to = (uint32_t *)copy.to;
    for (int i = 0; i < 4; i++) to[i] = 4 * i < copy.bytes ? from[i] : 0;
}

template <int PENDING> static inline void copies_wait(void) {
    std::vector<std::vector<Copy>> &groups = copies_of_thread().groups;
    while ((int)groups.size() - 1 > PENDING) { // the open one has not been committed
        for (const Copy &copy : groups.front()) carry_out(copy);
        groups.erase(groups.begin());
    }
}

#endif
