// Quadratic attention of one more token, from the first idea to the kernels that ship. Every version is checked against
// the last row of the C code's forward pass.
//
//   1  One thread per head, which goes through all keys. Of a GPU's tens of thousands of threads twelve are busy.
//   2  One warp per head, whose lanes share the channels: a row of keys or values is one read of the whole warp, a dot
//      product five shuffles. Still one key after another, and twelve warps.
//   3  The ones that ship (attention/quadratic_decode.cuh). Caches are split over 32 blocks of four warps, and a
//      lane has a key of its own, so that dot products need no shuffles. Each block leaves its level, total and sums,
//      and a last small kernel merges them in the order of the splits. The norms of the keys are kept in the cache.
//
// usage: attention_decode [VERSION [MECHANISM [1 T NH HS]]]    (all if none is given; times: only on a GPU)
#include "attention_case.h"

enum { VERSIONS = 3, PER_LANE = LARGEST_HEAD / 32 };

// ---- version 1

template <class Score> __global__ void decode_by_threads(Attend a) {
    int head = blockIdx.x * blockDim.x + threadIdx.x;
    if (head >= a.common.NH) return;
    size_t column = (size_t)head * a.common.HS;
    const floatX *q = a.q + column;
    float q_factor = row_factor<Score>(q, a.common.HS, product_scale<Score>(a.common)),
          level = first_level<Score::normalizer>(), total = 0;
    float sum[LARGEST_HEAD] = {};
    for (int key = 0; key <= a.first; key++) {
        const floatX *k = a.k + key * a.key_stride + column, *v = k + a.common.C;
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
    for (int d = 0; d < a.common.HS; d++) a.out[column + d] = from_float<floatX>(sum[d] * inverse);
}

// ---- version 2

// A lane's share of a row: channels lane, lane + 32, ...; zeros past the end of the head.
__device__ static inline void load_share(float share[PER_LANE], const floatX *row, float factor, int HS) {
    for (int i = 0; i < PER_LANE; i++) {
        int d = (int)threadIdx.x + 32 * i;
        share[i] = d < HS ? to_float(row[d]) * factor : 0.0f;
    }
}

template <class Score> __global__ void decode_by_warps(Attend a) {
    size_t column = (size_t)blockIdx.x * a.common.HS;
    const floatX *row = a.q + column;
    float q[PER_LANE], k[PER_LANE], v[PER_LANE], sum[PER_LANE] = {};
    float level = first_level<Score::normalizer>(), total = 0;
    load_share(q, row, row_factor<Score>(row, a.common.HS, product_scale<Score>(a.common)), a.common.HS);
    for (int key = 0; key <= a.first; key++) {
        const floatX *keys = a.k + key * a.key_stride + column;
        float dot = 0, distance = 0, factor;
        load_share(k, keys, row_factor<Score>(keys, a.common.HS, 1.0f), a.common.HS);
        load_share(v, keys + a.common.C, 1, a.common.HS);
        for (int i = 0; i < PER_LANE; i++) {
            dot += q[i] * k[i];
            distance += (q[i] - k[i]) * (q[i] - k[i]);
        }
        float score = score_of<Score, true>(warp_sum(dot), warp_sum(distance) + a.common.eps);
        float weight = fold_pair<Score>(level, total, score, factor);
        for (int i = 0; i < PER_LANE; i++) sum[i] = sum[i] * factor + weight * v[i];
    }
    float inverse = inverse_of<Score::normalizer>(level, total, a.common.delta);
    for (int i = 0; i < PER_LANE; i++) {
        int d = (int)threadIdx.x + 32 * i;
        if (d < a.common.HS) a.out[column + d] = from_float<floatX>(sum[i] * inverse);
    }
}

// ---- all versions

// The early ones read keys and values where the projection left them.
template <class Score> void launch_early(const Case &c, floatX *out, const floatX *qkv) {
    QuadraticWork none = {};
    Attend a = quadratic_gpu_attend(out, NULL, qkv, &none, &c.config);
    a.common.scale = scale_of<Score>(&c.config);
    a.first = c.config.T - 1, a.queries = 1;
    a.q += (size_t)a.first * a.query_stride;
    if (c.version == 1)
        decode_by_threads<Score><<<tiles_of(a.common.NH, 32), 32>>>(a);
    else
        decode_by_warps<Score><<<a.common.NH, 32>>>(a);
    launch_check();
}

static void launch(const Case &c, floatX *out, float *cache, const floatX *qkv, float *work) {
    int last = c.config.T - 1;
    if (c.version == VERSIONS)
        mechanisms[c.mechanism]->step(out, cache, last, 1, qkv + (size_t)last * 3 * c.config.C, NULL, NULL, work,
                                      &c.config, 0);
    else if (c.mechanism == SOFTMAX)
        launch_early<SoftmaxScore>(c, out, qkv);
    else if (c.mechanism == YAT)
        launch_early<PlainYat>(c, out, qkv);
    else
        launch_early<SphericalYat>(c, out, qkv);
}

static bool run(Case &c) {
    c.config.B = 1; // the sampler's
    run_cpu(c);
    const AttentionGPU *shipped = mechanisms[c.mechanism];
    Numbers last_row(c.out.end() - c.config.C, c.out.end());
    floatX *qkv = upload<floatX>(c.qkv), *out = allocate<floatX>(c.numbers);
    float *work = allocate<float>(shipped->work_size(&c.config));
    float *cache = allocate<float>(shipped->cache_size(&c.config));
    if (c.config.T > 1) shipped->step(out, cache, 0, c.config.T - 1, qkv, NULL, NULL, work, &c.config, 0); // the prompt
    bool right = check_and_time(c, "decode", out, last_row, [&]() { launch(c, out, cache, qkv, work); });
    cuda_check(cudaFree(qkv)), cuda_check(cudaFree(out)), cuda_check(cudaFree(work)), cuda_check(cudaFree(cache));
    return right;
}

int main(int argc, char **argv) {
    return run_cases(argc, argv, VERSIONS, run);
}
