// Register tiles against plain loops: every way an operand can come from memory, both precisions, sums as operands,
// reductions over rows, asynchronous copies.
#include "test_gpu.h"
#include "tile_gpu.h"

#include <math.h>

enum { SIZE = 16 };

typedef struct {
    int left_transposed, right_transposed, in_pairs;
} Ways;

// out (16,16) = a (16,16) b (16,16)
template <typename Number> __global__ void product_kernel(float *out, const Number *a, const Number *b, Ways ways) {
    constexpr int stride = tile_stride<Number, SIZE>;
    __shared__ alignas(16) Number tile_a[SIZE * stride], tile_b[SIZE * stride];
    stage_async_by<32, SIZE, SIZE>(tile_a, a, SIZE, SIZE, SIZE, (int)threadIdx.x);
    copies_commit();
    stage_async_by<32, SIZE, SIZE>(tile_b, b, SIZE, SIZE, SIZE, (int)threadIdx.x);
    copies_commit();
    copies_wait<0>();
    __syncthreads();
    LeftFragment<Number> left;
    RightPair<Number> right;
    SumFragment sums[2] = {};
    if (ways.left_transposed)
        load_left_transposed(left, tile_a, stride);
    else
        load_left(left, tile_a, stride);
    for (int half = 0; half < 2; half++) {
        if (ways.right_transposed && !ways.in_pairs)
            load_right_transposed(right.half[half], tile_b + half * 8 * stride, stride);
        else if (!ways.in_pairs)
            load_right(right.half[half], tile_b + half * 8, stride);
    }
    if (ways.in_pairs && ways.right_transposed) load_right_transposed(right, tile_b, stride);
    if (ways.in_pairs && !ways.right_transposed) load_right(right, tile_b, stride);
    for (int half = 0; half < 2; half++) {
        multiply_add(sums[half], left, right.half[half]);
        store_sums(out + half * 8, SIZE, sums[half]);
    }
}

// Within the rounding of sums: products of bf16 are exact, those of split floats nearly so.
template <typename Number> static void check_product(Ways ways) {
    Tensors<Number> a(SIZE * SIZE, 1), b(SIZE * SIZE, 1);
    Sum out(SIZE * SIZE);
    for (int row = 0; row < SIZE; row++)
        for (int column = 0; column < SIZE; column++) {
            double sum = 0;
            for (int k = 0; k < SIZE; k++)
                sum += (double)a.host[ways.left_transposed ? k * SIZE + row : row * SIZE + k] *
                       (double)b.host[ways.right_transposed ? column * SIZE + k : k * SIZE + column];
            out.host[row * SIZE + column] = (float)sum;
        }
    product_kernel<<<1, 32, 0, stream>>>(out.device, a.device, b.device, ways);
    launch_check();
    check("the product", out, 1e-6);
}

static void products(void) {
    for (int way = 0; way < 8; way++) {
        check_product<__nv_bfloat16>({way & 1, way >> 1 & 1, way >> 2});
        check_product<float>({way & 1, way >> 1 & 1, way >> 2});
    }
}

// out (2,8,8): the products a b of the first 8 rows of a (16,16) with b (16,8), and the transposed b^T a^T
template <typename Number> __global__ void transposed_kernel(float *out, const Number *a, const Number *b) {
    constexpr int stride = tile_stride<Number, SIZE>;
    __shared__ alignas(16) Number tile_a[SIZE * stride], tile_b[SIZE * stride];
    stage_plainly<SIZE, SIZE>(tile_a, a, SIZE, SIZE, SIZE, (int)threadIdx.x, 32);
    stage_plainly<SIZE, SIZE>(tile_b, b, SIZE, SIZE, SIZE, (int)threadIdx.x, 32);
    __syncthreads();
    LeftFragment<Number> left;
    RightFragment<Number> right;
    SumFragment plain = {}, transposed = {};
    load_left(left, tile_a, stride);
    load_right(right, tile_b, stride);
    multiply_add(plain, left, right);
    load_left_transposed(left, tile_b, stride);
    load_right_transposed(right, tile_a, stride);
    multiply_add<true>(transposed, left, right);
    for (int i = 0; i < 2; i++) {
        out[sum_row(i) * 8 + sum_column(i)] = plain.x[i];
        out[64 + sum_column(i) * 8 + sum_row(i)] = transposed.x[i];
    }
}

template <typename Number> static void check_transposed(void) {
    Tensors<Number> a(SIZE * SIZE, 1), b(SIZE * SIZE, 1);
    Sum out(128);
    transposed_kernel<<<1, 32, 0, stream>>>(out.device, a.device, b.device);
    launch_check();
    std::vector<float> found = out.fetch();
    for (int i = 0; i < 64; i++) CHECK(found[i] == found[64 + i]);
}

static void transposed_products_have_the_same_bits(void) {
    check_transposed<__nv_bfloat16>();
    check_transposed<float>();
}

// out (16,8) = (a b) c, with a b (16,16) as an operand straight from its sums
template <typename Number> __global__ void chain_kernel(float *out, const Number *a, const Number *b, const Number *c) {
    constexpr int stride = tile_stride<Number, SIZE>;
    __shared__ alignas(16) Number tiles[3][SIZE * stride];
    const Number *from[3] = {a, b, c};
    for (int i = 0; i < 3; i++) stage_plainly<SIZE, SIZE>(tiles[i], from[i], SIZE, SIZE, SIZE, (int)threadIdx.x, 32);
    __syncthreads();
    LeftFragment<Number> left;
    RightPair<Number> right;
    SumFragment sums[2] = {}, last = {};
    load_left(left, tiles[0], stride);
    load_right(right, tiles[1], stride);
    multiply_add(sums[0], left, right.half[0]);
    multiply_add(sums[1], left, right.half[1]);
    to_left(left, sums[0], sums[1]);
    load_right(right, tiles[2], stride);
    multiply_add(last, left, right.half[0]);
    store_sums(out, 8, last);
}

template <typename Number> static void check_chain(double bound) {
    Tensors<Number> a(SIZE * SIZE, 1), b(SIZE * SIZE, 1), c(SIZE * SIZE, 1);
    Sum out(SIZE * 8);
    std::vector<float> between(SIZE * SIZE);
    for (int row = 0; row < SIZE; row++)
        for (int column = 0; column < SIZE; column++) {
            float sum = 0;
            for (int k = 0; k < SIZE; k++) sum += a.host[row * SIZE + k] * b.host[k * SIZE + column];
            between[row * SIZE + column] = to_float(from_float<Number>(sum));
        }
    for (int row = 0; row < SIZE; row++)
        for (int column = 0; column < 8; column++) {
            out.host[row * 8 + column] = 0;
            for (int k = 0; k < SIZE; k++)
                out.host[row * 8 + column] += between[row * SIZE + k] * c.host[k * SIZE + column];
        }
    chain_kernel<<<1, 32, 0, stream>>>(out.device, a.device, b.device, c.device);
    launch_check();
    check("the product of a product", out, bound);
}

static void sums_become_operands(void) {
    check_chain<__nv_bfloat16>(4e-3); // a sum may be rounded the other way
    check_chain<float>(2e-6);
}

// out (2,16): the sum and the largest of every row of x (16,8)
__global__ void rows_kernel(float *out, const float *x) {
    float sum[2] = {}, most[2] = {-INFINITY, -INFINITY};
    for (int i = 0; i < 4; i++) {
        float number = x[sum_row(i) * 8 + sum_column(i)];
        sum[i / 2] += number;
        most[i / 2] = fmaxf(most[i / 2], number);
    }
    for (int half = 0; half < 2; half++) {
        float all = quad_sum(sum[half]), largest = quad_max(most[half]);
        if (threadIdx.x % 4 == 3) out[sum_row(2 * half)] = all, out[16 + sum_row(2 * half)] = largest;
    }
}

static void rows_reduce(void) {
    Sum x(16 * 8, 1), out(32);
    for (int row = 0; row < 16; row++) {
        float *sum = &out.host[row], *most = &out.host[16 + row];
        *sum = 0, *most = -INFINITY;
        for (int c = 0; c < 8; c++) *sum += x.host[row * 8 + c], *most = fmaxf(*most, x.host[row * 8 + c]);
    }
    rows_kernel<<<1, 32, 0, stream>>>(out.device, x.device);
    launch_check();
    check("rows", out, 1e-6);
}

// out (8,4): number t of the four lanes of every quad, summed up, by lane t
__global__ void quads_kernel(float *out, const float *x) {
    float four[4];
    for (int i = 0; i < 4; i++) four[i] = x[threadIdx.x * 4 + i];
    out[threadIdx.x] = quad_sum(four);
}

static void quads_share_out_their_sums(void) {
    Sum x(32 * 4, 1), out(32);
    for (int lane = 0; lane < 32; lane++) {
        out.host[lane] = 0;
        for (int of = lane / 4 * 4; of < lane / 4 * 4 + 4; of++) out.host[lane] += x.host[of * 4 + lane % 4];
    }
    quads_kernel<<<1, 32, 0, stream>>>(out.device, x.device);
    launch_check();
    check("sums of quads", out, 1e-6);
}

// Rows of 24 in tiles of 32, 5 of 16 present: the rest has to be zeros, whatever was there, and nothing between the
// rows changes. By as many threads as rows ask for, and by more.
enum { WIDTH = 32, HEAD = 24, PRESENT = 5, APART = WIDTH + 16, STAGE_THREADS = 256 };
template <typename Number> __global__ void stage_kernel(float *out, const Number *rows, int way) {
    __shared__ alignas(16) Number tile[SIZE * APART];
    int thread = (int)threadIdx.x;
    for (int i = thread; i < SIZE * APART; i += STAGE_THREADS) tile[i] = from_float<Number>(-1.0f);
    __syncthreads();
    if (way == 2)
        stage_async_by<STAGE_THREADS, SIZE, WIDTH>(tile, rows, 2 * HEAD, PRESENT, HEAD, thread, APART);
    else if (way && thread < 64)
        stage_async_by<64, SIZE, WIDTH>(tile, rows, 2 * HEAD, PRESENT, HEAD, thread, APART);
    else if (!way)
        stage_plainly<SIZE, WIDTH>(tile, rows, 2 * HEAD, PRESENT, HEAD, thread, STAGE_THREADS, APART);
    copies_commit();
    copies_wait<0>();
    __syncthreads();
    for (int i = thread; i < SIZE * APART; i += STAGE_THREADS) out[i] = to_float(tile[i]);
}

template <typename Number> static void check_staging(int way) {
    Tensors<Number> rows(2 * PRESENT * HEAD, 1);
    Sum out(SIZE * APART);
    for (int i = 0; i < SIZE * APART; i++) {
        int row = i / APART, column = i % APART;
        out.host[i] = row < PRESENT && column < HEAD ? rows.host[row * 2 * HEAD + column] : column < WIDTH ? 0 : -1;
    }
    stage_kernel<<<1, STAGE_THREADS, 0, stream>>>(out.device, rows.device, way);
    launch_check();
    check("a staged tile", out, 0);
}

static void rows_are_staged(void) {
    for (int way = 0; way < 3; way++) check_staging<__nv_bfloat16>(way), check_staging<float>(way);
}

// out (4,8) of x (8): 2^x, 1 / x, the smaller and the larger of x and 1
__global__ void number_kernel(float *out, const float *x) {
    float number = x[threadIdx.x];
    out[threadIdx.x] = exp2_approximately(number);
    out[8 + threadIdx.x] = reciprocal_approximately(number);
    out[16 + threadIdx.x] = min_or_nan(number, 1.0f);
    out[24 + threadIdx.x] = max_or_nan(1.0f, number);
}

static void single_numbers(void) {
    Sum x(8), out(32);
    const float numbers[8] = {0.3f, -7.7f, 100, -100, 1e30f, -INFINITY, -150, NAN};
    for (int i = 0; i < 8; i++) x.host[i] = numbers[i];
    x.send();
    number_kernel<<<1, 8, 0, stream>>>(out.device, x.device);
    launch_check();
    std::vector<float> found = out.fetch();
    for (int i = 0; i < 7; i++) {
        double power = i == 6 ? 0 : exp2(numbers[i]), inverse = 1 / (double)numbers[i];
        CHECK(found[i] == (float)power || fabs(found[i] / power - 1) < 4e-7);
        CHECK(found[8 + i] == (float)inverse || fabs(found[8 + i] / inverse - 1) < 2e-7);
        CHECK(found[16 + i] == fminf(numbers[i], 1) && found[24 + i] == fmaxf(numbers[i], 1));
    }
    for (int i = 7; i < 32; i += 8) CHECK(found[i] != found[i]);
}

int main(void) {
    cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    RUN(products);
    RUN(transposed_products_have_the_same_bits);
    RUN(sums_become_operands);
    RUN(rows_reduce);
    RUN(quads_share_out_their_sums);
    RUN(rows_are_staged);
    RUN(single_numbers);
    return test_summary();
}
