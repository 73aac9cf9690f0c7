// What each lane and register of core/gpu/tile_gpu.h's instructions and fragments holds, found by running them and
// printed one line each; core/gpu/test_tile_layouts.sh compares it with CUTLASS's tables.
#include "core/gpu/tile_gpu.h"

#include <stdio.h>
#include <vector>

template <typename Number> struct Managed {
    Number *x;
    explicit Managed(size_t count) { cuda_check(cudaMallocManaged((void **)&x, count * sizeof(Number))); }
    ~Managed() { (void)cudaFree(x); }
};

static void wait(void) {
    launch_check();
    cuda_check(cudaDeviceSynchronize());
}

// ---- ldmatrix: number i of lane l's row is 8 l + i

template <bool TRANSPOSED, int COUNT> __global__ void matrices_kernel(uint32_t *out) { // (32, COUNT)
    __shared__ alignas(16) uint16_t rows[32 * 8];
    int lane = (int)threadIdx.x;
    for (int i = 0; i < 8; i++) rows[8 * lane + i] = (uint16_t)(8 * lane + i);
    __syncthreads();
    uint32_t x[COUNT];
    load_matrices<TRANSPOSED>(x, rows + 8 * lane);
    for (int i = 0; i < COUNT; i++) out[lane * COUNT + i] = x[i];
}

template <bool TRANSPOSED, int COUNT> static void print_matrices(const char *name) {
    Managed<uint32_t> out(32 * COUNT);
    matrices_kernel<TRANSPOSED, COUNT><<<1, 32>>>(out.x);
    wait();
    for (int i = 0; i < 32 * COUNT * 2; i++) {
        int found = (int)(out.x[i / 2] >> (i % 2 ? 16 : 0) & 0xffff);
        printf("%s lane %d register %d half %d <- lane %d number %d\n", name, i / 2 / COUNT, i / 2 % COUNT, i % 2,
               found / 8, found % 8);
    }
}

// ---- mma: one number of a is 1, those of b count from 1, and each sum begins with 256 times its own number. All of
// these are exact in any precision.

template <bool BF16> __device__ static uint32_t two_numbers(float first, float second) {
    return BF16 ? pack_bf16(first, second) : __float_as_uint(first);
}

template <bool BF16> __global__ void product_kernel(float *out, int one) { // (32, 4)
    constexpr int EACH = BF16 ? 2 : 1;
    int lane = (int)threadIdx.x;
    uint32_t a[4], b[2];
    for (int i = 0; i < 4; i++) {
        int number = (lane * 4 + i) * EACH;
        a[i] = two_numbers<BF16>(number == one ? 1.0f : 0.0f, number + 1 == one ? 1.0f : 0.0f);
    }
    for (int i = 0; i < 2; i++) {
        int number = (lane * 2 + i) * EACH;
        b[i] = two_numbers<BF16>((float)(number + 1), (float)(number + 2));
    }
    float sums[4];
    for (int i = 0; i < 4; i++) sums[i] = 256.0f * (float)(lane * 4 + i);
    if constexpr (BF16)
        mma_bf16(sums, a, b);
    else
        mma_tf32(sums, a, b);
    for (int i = 0; i < 4; i++) out[lane * 4 + i] = sums[i];
}

template <bool BF16> static void print_product(const char *name) {
    constexpr int EACH = BF16 ? 2 : 1, NUMBERS_A = 4 * EACH, NUMBERS_B = 2 * EACH;
    Managed<float> out(32 * 4);
    for (int one = 0; one < 32 * NUMBERS_A; one++) {
        product_kernel<BF16><<<1, 32>>>(out.x, one);
        wait();
        for (int sum = 0; sum < 32 * 4; sum++) {
            int number = (int)out.x[sum] - 256 * sum - 1;
            if (number != -1)
                printf("%s lane %d number %d times lane %d number %d -> lane %d sum %d\n", name, one / NUMBERS_A,
                       one % NUMBERS_A, number / NUMBERS_B, number % NUMBERS_B, sum / 4, sum % 4);
        }
    }
}

// ---- fragments, from a tile whose numbers say where they are

enum { SIZE = 16 };
typedef enum { LEFT, RIGHT, PAIR } Operand;

__device__ static float number_of(const uint32_t *x, int i) {
    return __uint_as_float(i % 2 ? x[i / 2] & 0xffff0000u : x[i / 2] << 16);
}
__device__ static float number_of(const float *x, int i) {
    return x[i];
}

template <typename Number> __global__ void fragment_kernel(float *out, Operand operand, int is_transposed) { // (32, 8)
    constexpr int stride = tile_stride<Number, SIZE>;
    __shared__ alignas(16) Number tile[SIZE * stride];
    int lane = (int)threadIdx.x;
    for (int i = lane; i < SIZE * SIZE; i += 32) {
        int row = i / SIZE, column = i % SIZE;
        tile[row * stride + column] = from_float<Number>((float)(is_transposed ? column * SIZE + row : i));
    }
    __syncthreads();
    LeftFragment<Number> left;
    RightPair<Number> right;
    if (operand == LEFT && is_transposed) load_left_transposed(left, tile, stride);
    if (operand == LEFT && !is_transposed) load_left(left, tile, stride);
    if (operand == RIGHT && is_transposed) load_right_transposed(right.half[0], tile, stride);
    if (operand == RIGHT && !is_transposed) load_right(right.half[0], tile, stride);
    if (operand == PAIR && is_transposed) load_right_transposed(right, tile, stride);
    if (operand == PAIR && !is_transposed) load_right(right, tile, stride);
    for (int i = 0; i < (operand == RIGHT ? 4 : 8); i++)
        out[8 * lane + i] = operand == LEFT ? number_of(left.x, i) : number_of(right.half[i / 4].x, i % 4);
}

template <typename Number> static void print_operand(const char *name, Operand operand, int is_transposed) {
    Managed<float> out(32 * 8);
    fragment_kernel<Number><<<1, 32>>>(out.x, operand, is_transposed);
    wait();
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < (operand == RIGHT ? 4 : 8); i++) {
            int found = (int)out.x[8 * lane + i];
            printf("%s%s lane %d number %d at (%d, %d)\n", name, is_transposed ? ".transposed" : "", lane, i,
                   found / SIZE, found % SIZE);
        }
}

// stored (16,8), said (32,4): where sum i of a lane goes, and where sum_row and sum_column say it is
__global__ void sums_kernel(float *stored, int *said) {
    SumFragment sums;
    for (int i = 0; i < 4; i++) {
        sums.x[i] = (float)(4 * threadIdx.x + i);
        said[4 * threadIdx.x + i] = sum_row(i) * 8 + sum_column(i);
    }
    store_sums(stored, 8, sums);
}

static void print_sums(void) {
    Managed<float> stored(16 * 8);
    Managed<int> said(32 * 4);
    sums_kernel<<<1, 32>>>(stored.x, said.x);
    wait();
    const char *line = "%s lane %d number %d at (%d, %d)\n";
    for (int i = 0; i < 32 * 4; i++) {
        printf(line, "sum_row, sum_column", i / 4, i % 4, said.x[i] / 8, said.x[i] % 8);
        printf(line, "store_sums", (int)stored.x[i] / 4, (int)stored.x[i] % 4, i / 8, i % 8);
    }
}

int main(void) {
    print_matrices<false, 4>("ldmatrix.x4");
    print_matrices<true, 4>("ldmatrix.x4.trans");
    print_matrices<false, 2>("ldmatrix.x2");
    print_matrices<true, 2>("ldmatrix.x2.trans");
    print_product<true>("mma.m16n8k16.bf16");
    print_product<false>("mma.m16n8k8.tf32");
    for (int is_transposed = 0; is_transposed < 2; is_transposed++) {
        print_operand<__nv_bfloat16>("load_left.bf16", LEFT, is_transposed);
        print_operand<__nv_bfloat16>("load_right.bf16", RIGHT, is_transposed);
        print_operand<__nv_bfloat16>("load_right.pair.bf16", PAIR, is_transposed);
        print_operand<float>("load_left.float", LEFT, is_transposed);
        print_operand<float>("load_right.float", RIGHT, is_transposed);
        print_operand<float>("load_right.pair.float", PAIR, is_transposed);
    }
    print_sums();
}
