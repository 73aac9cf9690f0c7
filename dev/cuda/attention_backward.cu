// Quadratic attention, backward, from the first idea to the kernels that ship. Every version is checked against the C
// code.
//
//   1  One thread per query for dq, one per key for dk and dv: each sum has one owner, so no atomics. Everything comes
//      from global memory, and <dout, out> is summed again for every pair.
//   2  The other side's rows in tiles in shared memory, <dout, out> once per row.
//   3  The ones that ship (attention/quadratic_backward.cuh). A warp has 16 rows, queries or keys; scores, weights and
//      slopes of a whole tile are formed by products on the tensor cores and stay in registers, where they are operands
//      of the products that follow; the scores are formed twice, once for each owner, which costs less than adding
//      across blocks.
//
// usage: attention_backward [VERSION [MECHANISM [B T NH HS]]]    (all if none is given; times mean something only
// on a GPU)
#include "attention_case.h"

enum { VERSIONS = 3, ROWS = 64, COLUMNS = 32 };

// What a pair's gradients need to know about its query.
__device__ static inline QueryNumbers query_numbers(const Differentiate &a, int head, int query, float output_dot) {
    const float *levels = a.saved + (size_t)head * 2 * row_stride(a.T) + query;
    return {levels[0], levels[row_stride(a.T)], output_dot};
}

// The weight of a pair; the strengths with which its rows enter each other's gradients: slope, pull.
template <class Score>
__device__ float strengths_of_pair(float dot, float distance, float &slope, float &pull, const QueryNumbers &query,
                                   float eps) {
    float score = Score::uses_distance ? dot : dot * LOG2_E; // softmax's exponentials are powers of 2
    PairGradient pair = limited_gradient<Score>(score, distance + eps, slope, query, 0, 0);
    slope = pair.slope, pull = pair.pull_from * pair.pull_part;
    return pair.weight;
}

// The gradient of a row as it came in, in place, from that of the row brought to its length.
template <class Score>
__device__ void write_row(floatX *to, const float *gradient, const floatX *row, float factor, int HS) {
    float along = 0;
    if (Score::unit_length) {
        for (int d = 0; d < HS; d++) along += gradient[d] * to_float(row[d]) * factor;
        if (factor >= 1 / LEAST_NORM) factor = 0;
    }
    for (int d = 0; d < HS; d++) {
        to[d] = from_float<floatX>(factor * (gradient[d] - along * to_float(row[d]) * factor));
    }
}

// ---- version 1

// One row, query or key, from all rows of the other side.
template <class Score, bool OWNS_KEYS> __global__ void differentiate_from_global(Differentiate a, const floatX *out) {
    int mine = blockIdx.y * blockDim.x + threadIdx.x, head = blockIdx.x;
    if (mine >= a.T) return;
    size_t start = (size_t)(head / a.common.NH) * a.T, column = (size_t)(head % a.common.NH) * a.common.HS;
    const floatX *q = a.qkv + start * 3 * a.common.C + column, *douts = a.dout + start * a.common.C + column;
    const floatX *row = q + (size_t)mine * 3 * a.common.C + (OWNS_KEYS ? a.common.C : 0);
    float factor = row_factor<Score>(row, a.common.HS, OWNS_KEYS ? 1.0f : a.common.scale);
    float gradient[LARGEST_HEAD] = {}, value_gradient[LARGEST_HEAD] = {};
    for (int other = OWNS_KEYS ? mine : 0; OWNS_KEYS ? other < a.T : other <= mine; other++) {
        int query = OWNS_KEYS ? other : mine, key = OWNS_KEYS ? mine : other;
        const floatX *partner = q + (size_t)other * 3 * a.common.C + (OWNS_KEYS ? 0 : a.common.C);
        const floatX *value = q + (size_t)key * 3 * a.common.C + 2 * a.common.C,
                     *dout = douts + (size_t)query * a.common.C;
        float partner_factor = row_factor<Score>(partner, a.common.HS, OWNS_KEYS ? a.common.scale : 1.0f);
        float dot = 0, distance = 0, slope = dot_rows(dout, value, a.common.HS), pull;
        for (int d = 0; d < a.common.HS; d++) {
            float x = to_float(row[d]) * factor, y = to_float(partner[d]) * partner_factor;
            dot += x * y;
            distance += (x - y) * (x - y);
        }
        float output_dot = dot_rows(dout, out + (start + query) * a.common.C + column, a.common.HS);
        float weight = strengths_of_pair<Score>(dot, distance, slope, pull, query_numbers(a, head, query, output_dot),
                                                a.common.eps);
        for (int d = 0; d < a.common.HS; d++) {
            float x = to_float(row[d]) * factor, y = to_float(partner[d]) * partner_factor;
            gradient[d] += slope * y + pull * (y - x);
            if (OWNS_KEYS) value_gradient[d] += weight * to_float(dout[d]);
        }
    }
    floatX *to = a.dqkv + (start + mine) * 3 * a.common.C + column;
    write_row<Score>(OWNS_KEYS ? to + a.common.C : to, gradient, row, factor, a.common.HS);
    for (int d = 0; OWNS_KEYS && d < a.common.HS; d++) to[2 * a.common.C + d] = from_float<floatX>(value_gradient[d]);
}

template <class Score> void launch_from_global(const Differentiate &a, const floatX *out, int heads) {
    dim3 grid(heads, tiles_of(a.T, ROWS));
    differentiate_from_global<Score, false><<<grid, ROWS>>>(a, out);
    launch_check();
    differentiate_from_global<Score, true><<<grid, ROWS>>>(a, out);
    launch_check();
}

// ---- version 2

template <class Score, bool OWNS_KEYS>
__global__ void __launch_bounds__(ROWS) differentiate_from_shared(Differentiate a) {
    // The other side: q or k brought to its length, and with it dout or v.
    __shared__ float rows[COLUMNS][LARGEST_HEAD], partners[COLUMNS][LARGEST_HEAD], factors[COLUMNS];
    int mine = blockIdx.y * ROWS + threadIdx.x, head = blockIdx.x, present = mine < a.T;
    size_t start = (size_t)(head / a.common.NH) * a.T, column = (size_t)(head % a.common.NH) * a.common.HS;
    const floatX *q = a.qkv + start * 3 * a.common.C + column, *douts = a.dout + start * a.common.C + column;
    int at = present ? mine : a.T - 1, first = OWNS_KEYS ? blockIdx.y * ROWS : 0;
    int end = OWNS_KEYS ? a.T : min(a.T, (int)(blockIdx.y + 1) * ROWS);
    const floatX *row = q + (size_t)at * 3 * a.common.C + (OWNS_KEYS ? a.common.C : 0);
    const floatX *own_partner = OWNS_KEYS ? row + a.common.C : douts + (size_t)at * a.common.C;
    float factor = row_factor<Score>(row, a.common.HS, OWNS_KEYS ? 1.0f : a.common.scale);
    float gradient[LARGEST_HEAD] = {}, value_gradient[LARGEST_HEAD] = {};
    for (; first < end; first += COLUMNS) {
        __syncthreads();
        if (threadIdx.x < COLUMNS && first + (int)threadIdx.x < end) {
            const floatX *other = q + (size_t)(first + threadIdx.x) * 3 * a.common.C + (OWNS_KEYS ? 0 : a.common.C);
            factors[threadIdx.x] = row_factor<Score>(other, a.common.HS, OWNS_KEYS ? a.common.scale : 1.0f);
        }
        __syncthreads();
        for (int i = threadIdx.x; i < COLUMNS * a.common.HS; i += ROWS) {
            int j = i / a.common.HS, d = i % a.common.HS;
            if (first + j >= end) continue;
            const floatX *other = q + (size_t)(first + j) * 3 * a.common.C;
            rows[j][d] = to_float(other[(OWNS_KEYS ? 0 : a.common.C) + d]) * factors[j];
            partners[j][d] =
                to_float(OWNS_KEYS ? douts[(size_t)(first + j) * a.common.C + d] : other[2 * a.common.C + d]);
        }
        __syncthreads();
        for (int j = 0; j < COLUMNS && first + j < end; j++) {
            if (!present || (OWNS_KEYS ? first + j < mine : first + j > mine)) continue;
            int query = OWNS_KEYS ? first + j : mine;
            float dot = 0, distance = 0, slope = 0, pull;
            for (int d = 0; d < a.common.HS; d++) {
                float x = to_float(row[d]) * factor, y = rows[j][d];
                dot += x * y;
                distance += (x - y) * (x - y);
                slope += to_float(own_partner[d]) * partners[j][d];
            }
            float output_dot = a.output_dots[(size_t)head * row_stride(a.T) + query];
            float weight = strengths_of_pair<Score>(dot, distance, slope, pull,
                                                    query_numbers(a, head, query, output_dot), a.common.eps);
            for (int d = 0; d < a.common.HS; d++) {
                gradient[d] += slope * rows[j][d] + pull * (rows[j][d] - to_float(row[d]) * factor);
                if (OWNS_KEYS) value_gradient[d] += weight * partners[j][d];
            }
        }
    }
    floatX *to = a.dqkv + (start + mine) * 3 * a.common.C + column;
    if (present) write_row<Score>(OWNS_KEYS ? to + a.common.C : to, gradient, row, factor, a.common.HS);
    for (int d = 0; OWNS_KEYS && present && d < a.common.HS; d++)
        to[2 * a.common.C + d] = from_float<floatX>(value_gradient[d]);
}

template <class Score> void launch_from_shared(const Differentiate &a, int heads) {
    dim3 grid(heads, tiles_of(a.T, ROWS));
    differentiate_from_shared<Score, false><<<grid, ROWS>>>(a);
    launch_check();
    differentiate_from_shared<Score, true><<<grid, ROWS>>>(a);
    launch_check();
}

// ---- all versions

template <class Score> void launch_early(const Case &c, const Differentiate &sizes, const floatX *out, float *work) {
    Differentiate a = sizes;
    a.common.scale = scale_of<Score>(&c.config);
    if (c.version == 1) {
        launch_from_global<Score>(a, out, c.config.B * c.config.NH);
        return;
    }
    QuadraticWork places = quadratic_gpu_work(work, &c.config);
    quadratic_gpu_output_dots(places.output_dots, places.wild, a.dout, out, a.saved, &c.config, 0);
    a.output_dots = places.output_dots;
    launch_from_shared<Score>(a, c.config.B * c.config.NH);
}

static bool run(Case &c) {
    run_cpu(c);
    const AttentionGPU *shipped = mechanisms[c.mechanism];
    floatX *qkv = upload<floatX>(c.qkv), *out = allocate<floatX>(c.numbers), *dout = upload<floatX>(c.dout);
    floatX *dqkv = allocate<floatX>(3 * c.numbers);
    float *saved = allocate<float>(shipped->saved_size(&c.config));
    float *work = allocate<float>(shipped->work_size(&c.config));
    shipped->forward(out, saved, qkv, NULL, NULL, work, &c.config, 0);
    Differentiate a = {};
    a.dqkv = dqkv, a.dout = dout, a.qkv = qkv, a.saved = saved;
    a.T = c.config.T, a.common.C = c.config.C, a.common.NH = c.config.NH, a.common.HS = c.config.HS,
    a.common.eps = c.config.eps;
    bool right = check_and_time(c, "backward", dqkv, c.dqkv, [&]() {
        if (c.version == VERSIONS)
            shipped->backward(dqkv, NULL, dout, qkv, out, saved, NULL, NULL, work, &c.config, 0);
        else if (c.mechanism == SOFTMAX)
            launch_early<SoftmaxScore>(c, a, out, work);
        else if (c.mechanism == YAT)
            launch_early<PlainYat>(c, a, out, work);
        else
            launch_early<SphericalYat>(c, a, out, work);
    });
    for (void *data : {(void *)qkv, (void *)out, (void *)dout, (void *)dqkv, (void *)saved, (void *)work}) {
        cuda_check(cudaFree(data));
    }
    return right;
}

int main(int argc, char **argv) {
    return run_cases(argc, argv, VERSIONS, run);
}
