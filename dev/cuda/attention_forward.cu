// Quadratic attention, forward, from the first idea to the kernel that ships. Every version is checked against the C
// code.
//
//   1  One thread per query, which reads every key and value it sees from global memory. The online softmax is here
//      already: a running level and total, so no row of scores is ever stored. Each key is read once per query: T^2 HS
//      numbers of traffic, and the threads of a warp read the same ones only as long as they stay in step.
//   2  Keys and values in tiles in shared memory, read once per 64 queries; the query and its sums in registers. Now
//      limited by shared memory: every multiply-add needs one number from there.
//   3  The one that ships (attention/quadratic_forward.cuh), FlashAttention-2's loop. A warp has 16 queries and
//      multiplies whole tiles on the tensor cores: queries, scores and sums stay in registers, and weights are operands
//      of the second product where they are. The next tile of keys and values arrives while this one is used. The level
//      is raised once per tile and not once per key; distances come from norms and the dot product where that loses no
//      digits.
//
// usage: attention_forward [VERSION [MECHANISM [B T NH HS]]]    (all if none is given; times mean something only on a
// GPU)
#include "attention_case.h"

enum { VERSIONS = 3, QUERIES = 64, KEYS = 32 };

// ---- version 1

template <class Score> __global__ void attend_from_global(Attend a) {
    int query = blockIdx.y * blockDim.x + threadIdx.x, head = blockIdx.x;
    if (query >= a.queries) return;
    size_t start = (size_t)(head / a.common.NH) * a.queries, column = (size_t)(head % a.common.NH) * a.common.HS;
    const floatX *q = a.q + (start + query) * a.query_stride + column;
    float q_factor = row_factor<Score>(q, a.common.HS, product_scale<Score>(a.common)),
          level = first_level<Score::normalizer>(), total = 0;
    float sum[LARGEST_HEAD] = {};
    for (int key = 0; key <= query; key++) {
        const floatX *k = a.k + (start + key) * a.key_stride + column, *v = k + a.common.C;
        float k_factor = row_factor<Score>(k, a.common.HS, 1.0f), dot = 0, distance = 0, factor;
        for (int d = 0; d < a.common.HS; d++) {
            float x = to_float(q[d]) * q_factor, y = to_float(k[d]) * k_factor;
            dot += x * y;
            distance += (x - y) * (x - y);
        }
        float weight = fold_pair<Score>(level, total, score_of<Score, true>(dot, distance + a.common.eps), factor);
        for (int d = 0; d < a.common.HS; d++) sum[d] = sum[d] * factor + weight * to_float(v[d]);
    }
    float inverse = inverse_of<Score::normalizer>(level, total, a.common.delta);
    floatX *out = a.out + (start + query) * a.common.C + column;
    for (int d = 0; d < a.common.HS; d++) out[d] = from_float<floatX>(sum[d] * inverse);
}

template <class Score> void launch_from_global(const Attend &a, int heads) {
    attend_from_global<Score><<<dim3(heads, tiles_of(a.queries, QUERIES)), QUERIES>>>(a);
    launch_check();
}

// ---- version 2

template <class Score, int WIDTH> __global__ void __launch_bounds__(QUERIES) attend_from_shared(Attend a) {
    __shared__ float keys[KEYS][WIDTH], values[KEYS][WIDTH], key_factors[KEYS];
    int query = blockIdx.y * QUERIES + threadIdx.x, head = blockIdx.x;
    int last = min(a.queries, (int)(blockIdx.y + 1) * QUERIES); // no query of the block sees this key
    size_t start = (size_t)(head / a.common.NH) * a.queries, column = (size_t)(head % a.common.NH) * a.common.HS;
    const floatX *row = a.q + (start + min(query, a.queries - 1)) * a.query_stride + column;
    float q_factor = row_factor<Score>(row, a.common.HS, product_scale<Score>(a.common)),
          level = first_level<Score::normalizer>(), total = 0;
    float q[WIDTH], sum[WIDTH] = {};
#pragma unroll
    for (int d = 0; d < WIDTH; d++) q[d] = d < a.common.HS ? to_float(row[d]) * q_factor : 0.0f;
    for (int first = 0; first < last; first += KEYS) {
        __syncthreads();
        if (threadIdx.x < KEYS && first + (int)threadIdx.x < last) {
            const floatX *k = a.k + (start + first + threadIdx.x) * a.key_stride + column;
            key_factors[threadIdx.x] = row_factor<Score>(k, a.common.HS, 1.0f);
        }
        __syncthreads();
        for (int i = threadIdx.x; i < KEYS * WIDTH; i += QUERIES) {
            int j = i / WIDTH, d = i % WIDTH;
            const floatX *k = a.k + (start + first + j) * a.key_stride + column;
            bool present = first + j < last && d < a.common.HS;
            keys[j][d] = present ? to_float(k[d]) * key_factors[j] : 0.0f;
            values[j][d] = present ? to_float(k[a.common.C + d]) : 0.0f;
        }
        __syncthreads();
        for (int j = 0; j < KEYS && first + j <= query; j++) {
            float dot = 0, distance = 0, factor;
#pragma unroll
            for (int d = 0; d < WIDTH; d++) {
                dot += q[d] * keys[j][d];
                distance += (q[d] - keys[j][d]) * (q[d] - keys[j][d]);
            }
            float weight = fold_pair<Score>(level, total, score_of<Score, true>(dot, distance + a.common.eps), factor);
#pragma unroll
            for (int d = 0; d < WIDTH; d++) sum[d] = sum[d] * factor + weight * values[j][d];
        }
    }
    float inverse = inverse_of<Score::normalizer>(level, total, a.common.delta);
    floatX *out = a.out + (start + query) * a.common.C + column;
#pragma unroll
    for (int d = 0; d < WIDTH; d++) {
        if (query < a.queries && d < a.common.HS) out[d] = from_float<floatX>(sum[d] * inverse);
    }
}

template <class Score> void launch_from_shared(const Attend &a, int heads) {
    dim3 grid(heads, tiles_of(a.queries, QUERIES));
    if (a.common.HS <= 32)
        attend_from_shared<Score, 32><<<grid, QUERIES>>>(a);
    else if (a.common.HS <= 64)
        attend_from_shared<Score, 64><<<grid, QUERIES>>>(a);
    else
        attend_from_shared<Score, 128><<<grid, QUERIES>>>(a);
    launch_check();
}

// ---- all versions

template <class Score> void launch_early(const Case &c, floatX *out, const floatX *qkv) {
    QuadraticWork none = {};
    Attend a = quadratic_gpu_attend(out, NULL, qkv, &none, &c.config);
    a.common.scale = scale_of<Score>(&c.config);
    if (c.version == 1)
        launch_from_global<Score>(a, c.config.B * c.config.NH);
    else
        launch_from_shared<Score>(a, c.config.B * c.config.NH);
}

static bool run(Case &c) {
    run_cpu(c);
    const AttentionGPU *shipped = mechanisms[c.mechanism];
    floatX *qkv = upload<floatX>(c.qkv), *out = allocate<floatX>(c.numbers);
    float *work = allocate<float>(shipped->work_size(&c.config));
    bool right = check_and_time(c, "forward", out, c.out, [&]() {
        if (c.version == VERSIONS)
            shipped->forward(out, NULL, qkv, NULL, NULL, work, &c.config, 0);
        else if (c.mechanism == SOFTMAX)
            launch_early<SoftmaxScore>(c, out, qkv);
        else if (c.mechanism == YAT)
            launch_early<PlainYat>(c, out, qkv);
        else
            launch_early<SphericalYat>(c, out, qkv);
    });
    cuda_check(cudaFree(qkv)), cuda_check(cudaFree(out)), cuda_check(cudaFree(work));
    return right;
}

int main(int argc, char **argv) {
    return run_cases(argc, argv, VERSIONS, run);
}
