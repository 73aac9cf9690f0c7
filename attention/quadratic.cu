// What the quadratic attentions share whatever their score is: sizes, the measures of rows, <dout, out>, and the end of
// decoding.
#include "quadratic.cuh"

// ---- sizes and places

size_t quadratic_gpu_saved_size(const AttentionConfig *config) {
    return 2 * (size_t)config->B * config->NH * config->T;
}

enum { MEASURES = 5 }; // per row and head: norms and factors of q and k, <dout, out>

size_t quadratic_gpu_work_size(const AttentionConfig *config) {
    size_t rows = (size_t)config->B * config->NH * config->T;
    return MEASURES * rows + (size_t)config->NH * DECODE_SPLITS * (LARGEST_HEAD + 2);
}

QuadraticWork quadratic_gpu_work(float *work, const AttentionConfig *config) {
    size_t rows = (size_t)config->B * config->NH * config->T;
    return {{work, work + rows, config->T},
            {work + 2 * rows, work + 3 * rows, config->T},
            work + 4 * rows,
            work + MEASURES * rows};
}

static size_t cached_rows(const AttentionConfig *config) { // in floats
    return (size_t)config->max_T * 2 * config->C * sizeof(floatX) / sizeof(float);
}

size_t quadratic_gpu_cache_size(const AttentionConfig *config) {
    return cached_rows(config) + 2 * (size_t)config->NH * config->max_T;
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

Attend quadratic_gpu_attend(floatX *out, float *saved, const floatX *qkv, const QuadraticWork *work,
                            const AttentionConfig *config) {
    Attend a = {};
    a.out = out, a.saved = saved;
    a.q = qkv, a.k = qkv + config->C, a.v = qkv + 2 * config->C;
    a.query_stride = a.key_stride = 3 * (size_t)config->C;
    a.query_measures = work->query_measures, a.key_measures = work->key_measures;
    a.queries = config->T;
    a.C = config->C, a.NH = config->NH, a.HS = config->HS;
    a.scale = 1, a.eps = config->eps, a.delta = config->delta;
    return a;
}

Attend quadratic_gpu_attend_cache(floatX *out, float *cache, int pos, int n, const floatX *qkv,
                                  const QuadraticWork *work, const AttentionConfig *config) {
    Attend a = quadratic_gpu_attend(out, NULL, qkv, work, config);
    float *measures = cache + cached_rows(config);
    a.k = (const floatX *)cache, a.v = a.k + config->C;
    a.key_stride = 2 * (size_t)config->C;
    a.key_measures = {measures, measures + (size_t)config->NH * config->max_T, config->max_T};
    a.queries = n, a.first = pos;
    return a;
}

// ---- rows before their attention

enum { PREPARE_THREADS = 128 };

// The squared norm and the factor of one row, by one warp.
__device__ static void measure_row(const RowMeasures &measures, int head, int row, const floatX *x, int HS,
                                   int unit_length) {
    int lane = threadIdx.x % 32;
    float square = 0, factor = 1;
    for (int d = lane; d < HS; d += 32) {
        float value = to_float(as_input(x[d]));
        square = fmaf(value, value, square);
    }
    square = warp_sum(square);
    if (unit_length) {
        float norm = sqrtf(square);
        factor = 1 / (norm < LEAST_NORM ? LEAST_NORM : norm); // a norm that is NaN stays NaN
        square = 1; // a row too short for unit length has no dot product large enough for distances to matter
    }
    if (lane == 0) {
        size_t at = (size_t)head * measures.rows + row;
        measures.norms[at] = square, measures.factors[at] = factor;
    }
}

// A warp for each row of each head. cache: (max_T, 2C) of k and v, or NULL.
__global__ void __launch_bounds__(PREPARE_THREADS)
    prepare(RowMeasures queries, RowMeasures keys, floatX *cache, int first, const floatX *qkv, int items, int n,
            int unit_length, int C, int NH, int HS) {
    int item = blockIdx.x * (PREPARE_THREADS / 32) + threadIdx.x / 32;
    if (item >= items) return; // the whole warp
    int row = item / NH, h = item % NH, head = row / n * NH + h;
    const floatX *q = qkv + (size_t)row * 3 * C + (size_t)h * HS;
    measure_row(queries, head, row % n, q, HS, unit_length);
    measure_row(keys, head, first + row % n, q + C, HS, unit_length);
    if (!cache) return;
    floatX *to = cache + (size_t)(first + row) * 2 * C + (size_t)h * HS;
    for (int d = threadIdx.x % 32; d < HS; d += 32) to[d] = as_input(q[C + d]), to[C + d] = as_input(q[2 * C + d]);
}

void quadratic_gpu_prepare(const RowMeasures *queries, const RowMeasures *keys, floatX *cache, int first,
                           const floatX *qkv, int sequences, int n, int unit_length, const AttentionConfig *config,
                           cudaStream_t stream) {
    int items = sequences * n * config->NH;
    prepare<<<tiles_of(items, PREPARE_THREADS / 32), PREPARE_THREADS, 0, stream>>>(
        *queries, *keys, cache, first, qkv, items, n, unit_length, config->C, config->NH, config->HS);
    launch_check();
}

// ---- <dout, out>, for backward

template <int WIDTH> struct OutputTiles { // shared memory
    static constexpr int ROWS = 64, THREADS = ROWS / WARP_ROWS * 32;
    alignas(32) floatX douts[ROWS][tile_stride<WIDTH>], outs[ROWS][tile_stride<WIDTH>];
    ScoreTile<ROWS, WARP_ROWS> products;
};

// As the diagonal of a product, whose sums run as those of <dout, v> do: where a query sees one key only, and out = v,
// the gradient of its score is their difference 0, and not a rounding error for a steep kernel to magnify.
template <int WIDTH>
__global__ void __launch_bounds__(OutputTiles<WIDTH>::THREADS)
    dot_outputs(float *output_dots, const floatX *dout, const floatX *out, int T, int C, int NH, int HS) {
    typedef OutputTiles<WIDTH> Tiles;
    extern __shared__ SharedBytes shared[];
    Tiles &s = *reinterpret_cast<Tiles *>(shared);
    int head = blockIdx.x, first = blockIdx.y * Tiles::ROWS, present = min(Tiles::ROWS, T - first);
    int warp_row = threadIdx.x / 32 * WARP_ROWS, row = warp_row + threadIdx.x % 32;
    size_t at = ((size_t)(head / NH) * T + first) * C + (size_t)(head % NH) * HS;
    load_tile<Tiles::ROWS, WIDTH>(s.douts[0], dout + at, C, present, HS);
    load_tile<Tiles::ROWS, WIDTH>(s.outs[0], out + at, C, present, HS);
    __syncthreads();
    multiply_rows<WIDTH, WARP_ROWS>(s.products.scores[warp_row], s.products.stride, s.douts[warp_row],
                                    s.outs[warp_row]);
    __syncwarp();
    if (threadIdx.x % 32 < WARP_ROWS && row < present) {
        output_dots[(size_t)head * T + first + row] = s.products.scores[row][row - warp_row];
    }
}

template <int WIDTH>
static void launch_dot_outputs(float *output_dots, const floatX *dout, const floatX *out, const AttentionConfig *config,
                               cudaStream_t stream) {
    typedef OutputTiles<WIDTH> Tiles;
    allow_shared_memory<Tiles>(dot_outputs<WIDTH>);
    dim3 grid(config->B * config->NH, tiles_of(config->T, Tiles::ROWS));
    dot_outputs<WIDTH><<<grid, Tiles::THREADS, sizeof(Tiles), stream>>>(output_dots, dout, out, config->T, config->C,
                                                                        config->NH, config->HS);
    launch_check();
}

void quadratic_gpu_output_dots(float *output_dots, const floatX *dout, const floatX *out, const AttentionConfig *config,
                               cudaStream_t stream) {
    int width = quadratic_gpu_width(config);
    if (width == 32)
        launch_dot_outputs<32>(output_dots, dout, out, config, stream);
    else if (width == 64)
        launch_dot_outputs<64>(output_dots, dout, out, config, stream);
    else
        launch_dot_outputs<128>(output_dots, dout, out, config, stream);
}

// ---- the end of decoding

// A block for each head, a thread for each number of its row. partials: (NH, splits, width + 2) as `decode` left them.
template <int NORMALIZER>
__global__ void __launch_bounds__(LARGEST_HEAD)
    combine(floatX *out, const float *partials, int splits, int width, int HS, float delta) {
    const float *partial = partials + (size_t)blockIdx.x * splits * (width + 2);
    float level = partial[width + 1], sum = 0, total = 0;
    for (int i = 1; i < splits; i++) {
        float other = partial[(size_t)i * (width + 2) + width + 1];
        level = other > level ? other : level;
    }
    for (int i = 0; i < splits; i++, partial += width + 2) {
        float factor = relevel<NORMALIZER>(partial[width + 1], level);
        sum += partial[threadIdx.x] * factor;
        total += partial[width] * factor;
    }
    if ((int)threadIdx.x < HS) {
        out[(size_t)blockIdx.x * HS + threadIdx.x] =
            from_float<floatX>(sum * inverse_of<NORMALIZER>(level, total, delta));
    }
}

void quadratic_gpu_combine(floatX *out, const float *partials, int splits, int width, int normalizer,
                           const AttentionConfig *config, cudaStream_t stream) {
    if (normalizer == NORMALIZER_SOFTMAX) {
        combine<NORMALIZER_SOFTMAX>
            <<<config->NH, width, 0, stream>>>(out, partials, splits, width, config->HS, config->delta);
    } else {
        combine<NORMALIZER_KERNEL>
            <<<config->NH, width, 0, stream>>>(out, partials, splits, width, config->HS, config->delta);
    }
    launch_check();
}
