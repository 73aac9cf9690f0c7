// The one tiled core of the quadratic attentions on the GPU, the twin of quadratic.h: the same rules and limits, O(T)
// memory. A mechanism is a type with the score of a pair; its .cu file makes a struct AttentionGPU from it:
// quadratic_gpu_attention<Score>.
//
// A block has a tile of queries and goes through the keys tile by tile (forward, and backward for dq), or has a tile of
// keys and goes through the queries (backward for dk and dv). No two blocks add to the same number: there are no
// atomics on them, and the bits are the same from run to run. Each warp has 16 rows of the tile and needs no other warp
// there: scores and sums are in its registers.
//
// q and k stay in shared memory as they came in; unit length and scale are factors of the dot products, in float. So
// bf16 products are exact, and a bf16 build loses nothing by rounding unit vectors. A small kernel before the others
// measures the rows and notes which heads are wild: have numbers out of range, or could have scores so huge that a
// kernel's weights need a level, or slopes that meet their limit. Only there are tiles brought into range, levels kept
// and slopes limited; the bits do not depend on it.
//
// What is saved of a row is its level, for softmax to base 2, and its inverse; see quadratic.h.
//
// Pointers to floatX must be aligned to 16 bytes, as allocations are.
#ifndef ATTENTION_QUADRATIC_CUH
#define ATTENTION_QUADRATIC_CUH

#include "quadratic_backward.cuh"
#include "quadratic_decode.cuh"
#include "quadratic_forward.cuh"

// ---- what quadratic.cu has for all mechanisms

typedef struct {
    RowMeasures query_measures, key_measures; // both in `work`; in steps the keys' are in the cache
    float *output_dots;                       // (B * NH, row_stride(T))
    float *partials;                          // (NH, DECODE_SPLITS, padded head size + 2)
    double *dlog_decays;                      // (B * NH, tiles of keys)
    Reach *reaches;                           // (NH)
    int *wild;                                // (B * NH)
} QuadraticWork;

typedef struct {                              // the kernel before the others: every row of q, k and v
    const floatX *qkv;                        // (sequences, n, 3C)
    RowMeasures query_measures, key_measures; // where they go
    int *wild;                                // as in Common; NULL: not wanted
    floatX *cache;                            // (ring, 2C): where k and v go as they take part; NULL: nowhere
    int ring, first;                          // its rows, and the position of the first of the n
    const int *position;                      // where `first` is on the device; NULL: it is above
    int sequences, n;
    bool unit_length;
    float largest_square; // norms, squared, from which on a head is wild
} Prepare;

size_t quadratic_gpu_saved_size(const AttentionConfig *config);
size_t quadratic_gpu_work_size(const AttentionConfig *config);
size_t quadratic_gpu_cache_size(const AttentionConfig *config);
int quadratic_gpu_check(const AttentionConfig *config, char *why, size_t size);

QuadraticWork quadratic_gpu_work(float *work, const AttentionConfig *config);
// The widths that kernels are made for: 32, 64, 128. Ends the program when the head is larger.
int quadratic_gpu_width(const AttentionConfig *config);
Attend quadratic_gpu_attend(floatX *out, float *saved, const floatX *qkv, const QuadraticWork *work,
                            const AttentionConfig *config);
// One sequence, against its cache: rows (ring, 2C) of k and v as they take part, then the measures of the keys.
// position: of the first of the n rows when it is in device memory, else NULL.
Attend quadratic_gpu_attend_cache(floatX *out, float *cache, int pos, const int *position, int n, const floatX *qkv,
                                  const QuadraticWork *work, const AttentionConfig *config);
// What `prepare` has to do before a pass over whole sequences, and before such a step.
Prepare quadratic_gpu_whole(const floatX *qkv, const QuadraticWork *work, const AttentionConfig *config);
Prepare quadratic_gpu_arrival(const Attend *a, float *cache);

void quadratic_gpu_prepare(const Prepare *prepare, const AttentionConfig *config, cudaStream_t stream);
// With decay: what each head sees, to `reaches`.
void quadratic_gpu_reaches(Reach *reaches, const float *parameters, const AttentionConfig *config, cudaStream_t stream);
// <dout, out>; heads with a dout that is too large to be tame become wild.
void quadratic_gpu_output_dots(float *output_dots, int *wild, const floatX *dout, const floatX *out, const float *saved,
                               const AttentionConfig *config, cudaStream_t stream);
// Adds what each head has gathered in dlog_decays to the gradient of a learned decay.
void quadratic_gpu_decay_gradient(float *dparameters, const double *dlog_decays, int tiles, const float *parameters,
                                  const AttentionConfig *config, cudaStream_t stream);
// Merges the partial results of DECODE_SPLITS blocks per head and writes the row.
void quadratic_gpu_combine(floatX *out, const float *partials, int width, int normalizer, const AttentionConfig *config,
                           cudaStream_t stream);

// ---- the functions of struct AttentionGPU

template <class Score> float scale_of(const AttentionConfig *config) {
    return Score::scaled ? 1 / sqrtf((float)config->HS) : 1.0f;
}

// No score of rows with smaller squares, whose dot product is no larger, needs a level: dot^2 / eps is below
// LARGEST_WEIGHT. Softmax has levels anyway.
template <class Score> float largest_square_of(const AttentionConfig *config) {
    if (!Score::uses_distance) return INFINITY;
    float largest = sqrtf(LARGEST_WEIGHT * config->eps) / 2;
    return Score::unit_length && largest > 1 ? INFINITY : largest;
}

template <class Score> void prepare_any(Prepare prepare, const AttentionConfig *config, cudaStream_t stream) {
    prepare.unit_length = Score::unit_length;
    prepare.largest_square = largest_square_of<Score>(config);
    if (!Score::uses_distance) prepare.query_measures.numbers = prepare.key_measures.numbers = NULL;
    quadratic_gpu_prepare(&prepare, config, stream);
}

template <class Score>
void quadratic_gpu_forward(floatX *out, float *saved, const floatX *qkv, const float *, const float *parameters,
                           float *work_base, const AttentionConfig *config, cudaStream_t stream) {
    QuadraticWork work = quadratic_gpu_work(work_base, config);
    prepare_any<Score>(quadratic_gpu_whole(qkv, &work, config), config, stream);
    quadratic_gpu_reaches(work.reaches, parameters, config, stream);
    Attend a = quadratic_gpu_attend(out, saved, qkv, &work, config);
    a.common.scale = scale_of<Score>(config);
    attend_any<Score>(a, quadratic_gpu_width(config), config->B * config->NH, stream);
}

template <class Score>
void quadratic_gpu_backward(floatX *dqkv, float *dparameters, const floatX *dout, const floatX *qkv, const floatX *out,
                            const float *saved, const float *, const float *parameters, float *work_base,
                            const AttentionConfig *config, cudaStream_t stream) {
    QuadraticWork work = quadratic_gpu_work(work_base, config);
    prepare_any<Score>(quadratic_gpu_whole(qkv, &work, config), config, stream);
    quadratic_gpu_reaches(work.reaches, parameters, config, stream);
    quadratic_gpu_output_dots(work.output_dots, work.wild, dout, out, saved, config, stream);
    Differentiate a = {};
    a.common = quadratic_gpu_attend(NULL, NULL, qkv, &work, config).common;
    a.common.scale = scale_of<Score>(config);
    a.dqkv = dqkv, a.dout = dout, a.qkv = qkv, a.saved = saved, a.output_dots = work.output_dots;
    a.query_measures = work.query_measures, a.key_measures = work.key_measures;
    a.T = config->T;
    if (config->decay == DECAY_LEARNED) a.dlog_decays = work.dlog_decays;
    int width = quadratic_gpu_width(config), heads = config->B * config->NH;
    differentiate_any<Score, false>(a, width, heads, stream);
    int tiles = differentiate_any<Score, true>(a, width, heads, stream);
    if (a.dlog_decays) quadratic_gpu_decay_gradient(dparameters, work.dlog_decays, tiles, parameters, config, stream);
}

// n positions, or one whose number is in device memory.
template <class Score>
void quadratic_gpu_steps(floatX *out, float *cache, int pos, const int *position, int n, const floatX *qkv,
                         const float *parameters, float *work_base, const AttentionConfig *config,
                         cudaStream_t stream) {
    QuadraticWork work = quadratic_gpu_work(work_base, config);
    Attend a = quadratic_gpu_attend_cache(out, cache, pos, position, n, qkv, &work, config);
    a.common.scale = scale_of<Score>(config);
    prepare_any<Score>(quadratic_gpu_arrival(&a, cache), config, stream);
    quadratic_gpu_reaches(work.reaches, parameters, config, stream);
    int width = quadratic_gpu_width(config);
    if (n > 1) {
        attend_any<Score>(a, width, config->NH, stream);
        return;
    }
    decode_any<Score>(work.partials, a, width, stream);
    quadratic_gpu_combine(out, work.partials, width, Score::normalizer, config, stream);
}

template <class Score>
void quadratic_gpu_step(floatX *out, float *cache, int pos, int n, const floatX *qkv, const float *,
                        const float *parameters, float *work, const AttentionConfig *config, cudaStream_t stream) {
    quadratic_gpu_steps<Score>(out, cache, pos, NULL, n, qkv, parameters, work, config, stream);
}

template <class Score>
void quadratic_gpu_decode(floatX *out, float *cache, const int *position, const floatX *qkv, const float *,
                          const float *parameters, float *work, const AttentionConfig *config, cudaStream_t stream) {
    quadratic_gpu_steps<Score>(out, cache, 0, position, 1, qkv, parameters, work, config, stream);
}

template <class Score> constexpr AttentionGPU quadratic_gpu_attention(const Attention *cpu) {
    AttentionGPU gpu = {cpu,
                        quadratic_gpu_saved_size,
                        quadratic_gpu_work_size,
                        quadratic_gpu_cache_size,
                        quadratic_gpu_forward<Score>,
                        quadratic_gpu_backward<Score>,
                        quadratic_gpu_step<Score>,
                        quadratic_gpu_check};
    gpu.decode = quadratic_gpu_decode<Score>;
    gpu.supports = USES_DECAY | USES_WINDOW | USES_DOCUMENTS;
    return gpu;
}

#endif
