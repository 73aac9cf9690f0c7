// What the quadratic attentions share whatever their score is: sizes, the measures of rows, what heads see,
// <dout, out>, the gradient of a learned decay, and the end of decoding.
#include "quadratic.cuh"

// ---- sizes and places

static size_t round_up_to(size_t n, size_t step) {
    return (n + step - 1) / step * step;
}

size_t quadratic_gpu_saved_size(const AttentionConfig *config) {
    return 2 * (size_t)config->B * config->NH * row_stride(config->T);
}

// Tiles of keys in backward: the smallest have 32.
static size_t least_tiles(const AttentionConfig *config) {
    return ((size_t)config->T + 31) / 32;
}

// Sizes in floats of the parts of QuadraticWork, in their order, each in whole steps of 16 bytes.
enum { MEASURES, KEY_MEASURES, OUTPUT_DOTS, PARTIALS, DLOG_DECAYS, REACHES, WILD, PARTS };
static void part_sizes(size_t sizes[PARTS], const AttentionConfig *config) {
    size_t heads = (size_t)config->B * config->NH, rows = heads * row_stride(config->T);
    sizes[MEASURES] = sizes[KEY_MEASURES] = sizes[OUTPUT_DOTS] = rows;
    sizes[PARTIALS] = (size_t)config->NH * DECODE_SPLITS * (LARGEST_HEAD + 2);
    sizes[DLOG_DECAYS] = config->decay == DECAY_LEARNED ? heads * least_tiles(config) * 2 : 0;
    sizes[REACHES] = (size_t)config->NH * 2;
    sizes[WILD] = heads;
    for (int i = 0; i < PARTS; i++) sizes[i] = round_up_to(sizes[i], 4);
}

size_t quadratic_gpu_work_size(const AttentionConfig *config) {
    size_t sizes[PARTS], sum = 0;
    part_sizes(sizes, config);
    for (size_t size : sizes) sum += size;
    return sum;
}

QuadraticWork quadratic_gpu_work(float *work, const AttentionConfig *config) {
    size_t sizes[PARTS];
    float *parts[PARTS];
    int stride = row_stride(config->T);
    part_sizes(sizes, config);
    for (int i = 0; i < PARTS; work += sizes[i++]) parts[i] = work;
    return {{parts[MEASURES], stride},    {parts[KEY_MEASURES], stride}, parts[OUTPUT_DOTS], parts[PARTIALS],
            (double *)parts[DLOG_DECAYS], (Reach *)parts[REACHES],       (int *)parts[WILD]};
}

// A window needs room for its own keys and for those of one call, in whole tiles.
static int ring_rows(const AttentionConfig *config) {
    return config->window ? (int)round_up_to((size_t)config->window + config->T, 64) : config->max_T;
}

static size_t cached_rows(const AttentionConfig *config) { // in floats
    return round_up_to((size_t)ring_rows(config) * 2 * config->C * sizeof(floatX) / sizeof(float), 4);
}

size_t quadratic_gpu_cache_size(const AttentionConfig *config) {
    return cached_rows(config) + (size_t)config->NH * row_stride(ring_rows(config));
}

int quadratic_gpu_check(const AttentionConfig *config, char *why, size_t size) {
    if (config->HS <= LARGEST_HEAD) return 0;
    snprintf(why, size, "heads have %d channels, the GPU's kernels take at most %d; use more heads (--heads)",
             config->HS, LARGEST_HEAD);
    return -1;
}

int quadratic_gpu_width(const AttentionConfig *config) {
    char why[256];
    if (quadratic_gpu_check(config, why, sizeof why)) {
        fprintf(stderr, "attention: %s\n", why);
        exit(1);
    }
    return config->HS <= 32 ? 32 : config->HS <= 64 ? 64 : LARGEST_HEAD;
}

// ---- what kernels are told

Attend quadratic_gpu_attend(floatX *out, float *saved, const floatX *qkv, const QuadraticWork *work,
                            const AttentionConfig *config) {
    Attend a = {};
    a.common.wild = work->wild;
    a.common.reaches = config->decay ? work->reaches : NULL;
    a.common.window = config->window ? config->window : SEES_ALL;
    a.common.positions = config->positions;
    a.common.C = config->C, a.common.NH = config->NH, a.common.HS = config->HS;
    a.common.scale = 1, a.common.eps = config->eps, a.common.delta = config->delta;
    a.out = out, a.saved = saved;
    a.q = qkv, a.k = qkv + config->C, a.v = qkv + 2 * config->C;
    a.query_stride = a.key_stride = 3 * (size_t)config->C;
    a.query_measures = work->query_measures, a.key_measures = work->key_measures;
    a.queries = config->T;
    return a;
}

Attend quadratic_gpu_attend_cache(floatX *out, float *cache, int pos, const int *position, int n, const floatX *qkv,
                                  const QuadraticWork *work, const AttentionConfig *config) {
    Attend a = quadratic_gpu_attend(out, NULL, qkv, work, config);
    a.common.wild = NULL, a.common.positions = NULL;
    a.ring = ring_rows(config);
    a.k = (const floatX *)cache, a.v = a.k + config->C;
    a.key_stride = 2 * (size_t)config->C;
    a.key_measures = {cache + cached_rows(config), row_stride(a.ring)};
    a.queries = n, a.first = pos, a.position = position;
    return a;
}

Prepare quadratic_gpu_whole(const floatX *qkv, const QuadraticWork *work, const AttentionConfig *config) {
    Prepare p = {};
    p.qkv = qkv;
    p.query_measures = work->query_measures, p.key_measures = work->key_measures;
    p.wild = work->wild;
    p.ring = SEES_ALL;
    p.sequences = config->B, p.n = config->T;
    return p;
}

Prepare quadratic_gpu_arrival(const Attend *a, float *cache) {
    Prepare p = {};
    p.qkv = a->q;
    p.query_measures = a->query_measures, p.key_measures = a->key_measures;
    p.cache = (floatX *)cache;
    p.ring = a->ring, p.first = a->first, p.position = a->position;
    p.sequences = 1, p.n = a->queries;
    return p;
}

// ---- rows before their attention

enum { PREPARE_THREADS = 128 };

// The squared norm or the factor of one row, by one warp. Returns whether the row makes its head wild.
__device__ static bool measure_row(const RowMeasures &measures, int head, int row, const floatX *x, int HS,
                                   const Prepare &p) {
    float square = 0, measure;
    bool wild = false;
    for (int d = tile_lane(); d < HS; d += 32) {
        float value = to_float(as_input(x[d]));
        wild |= !(fabsf(to_float(x[d])) <= LARGEST_INPUT);
        square = fmaf(value, value, square);
    }
    square = warp_sum(square);
    measure = square;
    if (p.unit_length) {
        float norm = sqrtf(square);
        measure = 1 / (norm < LEAST_NORM ? LEAST_NORM : norm); // a norm that is NaN stays NaN
    }
    if (measures.numbers && tile_lane() == 0) measures.numbers[(size_t)head * measures.stride + row] = measure;
    return wild || square > p.largest_square;
}

// A warp for each row of each head.
__global__ static void __launch_bounds__(PREPARE_THREADS) prepare_kernel(Prepare p, int items, int C, int NH, int HS) {
    int item = (int)blockIdx.x * (PREPARE_THREADS / 32) + (int)threadIdx.x / 32;
    if (item >= items) return; // the whole warp
    int row = item / NH, h = item % NH, head = row / p.n * NH + h;
    int place = ((p.position ? *p.position : p.first) + row % p.n) % p.ring;
    const floatX *q = p.qkv + (size_t)row * 3 * C + (size_t)h * HS, *v = q + 2 * C;
    bool wild = measure_row(p.query_measures, head, row % p.n, q, HS, p);
    wild |= measure_row(p.key_measures, head, place, q + C, HS, p);
    for (int d = tile_lane(); d < HS; d += 32) {
        wild |= !(fabsf(to_float(v[d])) <= LARGEST_TAME_VALUE);
        if (!p.cache) continue;
        floatX *to = p.cache + (size_t)place * 2 * C + (size_t)h * HS;
        to[d] = as_input(q[C + d]), to[C + d] = as_input(v[d]);
    }
    if (p.wild && __any_sync(ALL_LANES, wild) && tile_lane() == 0) atomicOr(p.wild + head, 1);
}

void quadratic_gpu_prepare(const Prepare *p, const AttentionConfig *config, cudaStream_t stream) {
    int items = p->sequences * p->n * config->NH;
    if (p->wild) cuda_check(cudaMemsetAsync(p->wild, 0, (size_t)p->sequences * config->NH * sizeof *p->wild, stream));
    prepare_kernel<<<tiles_of(items, PREPARE_THREADS / 32), PREPARE_THREADS, 0, stream>>>(*p, items, config->C,
                                                                                          config->NH, config->HS);
    launch_check();
}

// ---- decay

typedef struct {
    const float *parameters; // (NH), or NULL: the decay is fixed
    double shortest, longest;
    int NH, window;
} Decays;

// The twin of attention_log_decay.
__device__ static double log_decay_of(const Decays &decays, int head) {
    if (!decays.parameters) {
        double along = decays.NH > 1 ? (double)head / (decays.NH - 1) : 1;
        return log1p(-1 / (decays.shortest * pow(decays.longest / decays.shortest, along)));
    }
    double g = decays.parameters[head];
    return g < 0 ? g - log1p(exp(g)) : -log1p(exp(-g));
}

// The twin of quadratic_core_of_head: beyond its reach a head's keys count as outside its window.
__global__ static void reaches_kernel(Reach *reaches, Decays decays) {
    int head = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (head >= decays.NH) return;
    float log_decay = limit((float)log_decay_of(decays, head), LARGEST_SLOPE);
    double reach = log(LEAST_FADE) / -fabs((double)log_decay);
    reaches[head] = {log_decay * LOG2_E, reach < decays.window ? 1 + (int)reach : decays.window};
}

void quadratic_gpu_reaches(Reach *reaches, const float *parameters, const AttentionConfig *config,
                           cudaStream_t stream) {
    if (config->decay == DECAY_NONE) return;
    Decays decays = {config->decay == DECAY_LEARNED ? parameters : NULL, config->decay_shortest, config->decay_longest,
                     config->NH, config->window ? config->window : SEES_ALL};
    reaches_kernel<<<tiles_of(config->NH, 32), 32, 0, stream>>>(reaches, decays);
    launch_check();
}

// The twin of add_decay_gradients and attention_decay_gradient: a warp for each head, always in the same order.
__global__ static void decay_gradient_kernel(float *dparameters, const double *dlog_decays, int B, int tiles,
                                             const float *parameters) {
    int head = (int)blockIdx.x, NH = (int)gridDim.x;
    double sum = 0;
    for (int i = tile_lane(); i < B * tiles; i += 32)
        sum += dlog_decays[((size_t)(i / tiles) * NH + head) * tiles + i % tiles];
    sum = warp_sum(sum);
    if (tile_lane() == 0) dparameters[head] += (float)((float)sum / (1 + exp((double)parameters[head])));
}

void quadratic_gpu_decay_gradient(float *dparameters, const double *dlog_decays, int tiles, const float *parameters,
                                  const AttentionConfig *config, cudaStream_t stream) {
    decay_gradient_kernel<<<config->NH, 32, 0, stream>>>(dparameters, dlog_decays, config->B, tiles, parameters);
    launch_check();
}

// ---- <dout, out>, for backward

template <int WIDTH> struct OutputTiles { // shared memory
    static constexpr int ROWS = 64, THREADS = ROWS / WARP_ROWS * 32, STRIDE = tile_stride<floatX, WIDTH>;
    alignas(16) floatX douts[ROWS * STRIDE], outs[ROWS * STRIDE];
};

// As the diagonal of a product, whose sums run as those of <dout, v> do: where a query sees one key only, and out = v,
// the gradient of its score is their difference 0, and not a rounding error for a steep kernel to magnify.
template <int WIDTH>
__global__ static void __launch_bounds__(OutputTiles<WIDTH>::THREADS)
    dot_outputs(float *output_dots, int *wild, const floatX *dout, const floatX *out, const float *saved, int T, int C,
                int NH, int HS) {
    typedef OutputTiles<WIDTH> Tiles;
    extern __shared__ uint4 shared[];
    Tiles &s = *reinterpret_cast<Tiles *>(shared);
    int head = (int)blockIdx.x, first = (int)blockIdx.y * Tiles::ROWS, present = min(Tiles::ROWS, T - first);
    int warp_row = (int)threadIdx.x / 32 * WARP_ROWS;
    size_t at = ((size_t)(head / NH) * T + first) * C + (size_t)(head % NH) * HS;
    stage_rows<Tiles::THREADS, Tiles::ROWS, WIDTH>(s.douts, dout + at, C, present, HS);
    stage_rows<Tiles::THREADS, Tiles::ROWS, WIDTH>(s.outs, out + at, C, present, HS);
    copies_commit();
    copies_wait<0>();
    __syncthreads();
    bool bad = false;
    const float *inverses = saved + ((size_t)head * 2 + 1) * row_stride(T) + first;
    for (int i = (int)threadIdx.x; i < present * WIDTH; i += Tiles::THREADS) {
        float dout_here = to_float(s.douts[i / WIDTH * Tiles::STRIDE + i % WIDTH]);
        bad |= !(fabsf(dout_here) * fmaxf(inverses[i / WIDTH], 1) <= LARGEST_TAME_GRADIENT);
    }
    if (__syncthreads_or(bad)) {
        clamp_rows<Tiles::ROWS, WIDTH>(s.douts);
        if (threadIdx.x == 0) atomicOr(wild + head, 1);
        __syncthreads();
    }
    SumFragment products[2];
    multiply_rows<WIDTH, 2>(products, s.outs + warp_row * Tiles::STRIDE, [&](LeftFragment<floatX> &a, int k) {
        load_left(a, s.douts + warp_row * Tiles::STRIDE + 16 * k, Tiles::STRIDE);
    });
#pragma unroll
    for (int i = 0; i < 4; i++) { // the diagonal of rows 0..7 is in the first fragment, of the others in the second
        int row = warp_row + sum_row(i);
        if (sum_column(i) == tile_lane() / 4 && row < present)
            output_dots[(size_t)head * row_stride(T) + first + row] = products[i / 2].x[i];
    }
}

template <int WIDTH>
static void launch_dot_outputs(float *output_dots, int *wild, const floatX *dout, const floatX *out, const float *saved,
                               const AttentionConfig *config, cudaStream_t stream) {
    typedef OutputTiles<WIDTH> Tiles;
    allow_shared_memory<Tiles>(dot_outputs<WIDTH>);
    dim3 grid(config->B * config->NH, tiles_of(config->T, Tiles::ROWS));
    dot_outputs<WIDTH><<<grid, Tiles::THREADS, sizeof(Tiles), stream>>>(output_dots, wild, dout, out, saved, config->T,
                                                                        config->C, config->NH, config->HS);
    launch_check();
}

void quadratic_gpu_output_dots(float *output_dots, int *wild, const floatX *dout, const floatX *out, const float *saved,
                               const AttentionConfig *config, cudaStream_t stream) {
    int width = quadratic_gpu_width(config);
    if (width == 32)
        launch_dot_outputs<32>(output_dots, wild, dout, out, saved, config, stream);
    else if (width == 64)
        launch_dot_outputs<64>(output_dots, wild, dout, out, saved, config, stream);
    else
        launch_dot_outputs<128>(output_dots, wild, dout, out, saved, config, stream);
}

// ---- the end of decoding

// A block for each head, a thread for each number of its row. partials: (NH, DECODE_SPLITS, width + 2) as `decode` left
// them.
template <int NORMALIZER>
__global__ static void __launch_bounds__(LARGEST_HEAD)
    combine(floatX *out, const float *partials, int width, int HS, float delta) {
    const float *partial = partials + (size_t)blockIdx.x * DECODE_SPLITS * (width + 2);
    float level = partial[width + 1], sum = 0, total = 0;
    for (int i = 1; i < DECODE_SPLITS; i++) {
        float other = partial[(size_t)i * (width + 2) + width + 1];
        level = other > level ? other : level;
    }
    for (int i = 0; i < DECODE_SPLITS; i++, partial += width + 2) {
        float factor = merge_factor<NORMALIZER>(partial[width + 1], level);
        sum += partial[threadIdx.x] * factor;
        total += partial[width] * factor;
    }
    if ((int)threadIdx.x < HS)
        out[(size_t)blockIdx.x * HS + threadIdx.x] =
            from_float<floatX>(sum * inverse_of<NORMALIZER>(level, total, delta));
}

void quadratic_gpu_combine(floatX *out, const float *partials, int width, int normalizer, const AttentionConfig *config,
                           cudaStream_t stream) {
    auto kernel = normalizer == NORMALIZER_SOFTMAX ? combine<NORMALIZER_SOFTMAX> : combine<NORMALIZER_KERNEL>;
    kernel<<<config->NH, width, 0, stream>>>(out, partials, width, config->HS, config->delta);
    launch_check();
}
