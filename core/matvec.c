#include "matvec.h"
#include "memory.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

enum {
    GROUP = 4,             // rows that are multiplied at once
    RUN = 16,              // columns of a row that lie side by side
    FETCH_AHEAD = 2048,    // bytes; what measured best
    LARGEST_INT8 = 127,    // of a weight
    LARGEST_INT16 = 16383, // of an input: a block's sum of products stays below 2^31
    BLOCK = 1024,          // columns that share an input scale
};

// Eight numbers, whatever the machine's own width: the order of additions, and so the result, does not depend on it.
enum { LANES = 8 };
typedef real Numbers __attribute__((vector_size(LANES * sizeof(real)), aligned(sizeof(real)), may_alias));
typedef float Floats __attribute__((vector_size(LANES * sizeof(float))));
typedef uint32_t Words __attribute__((vector_size(LANES * sizeof(uint32_t))));
typedef uint16_t Halves __attribute__((vector_size(LANES * sizeof(uint16_t)), aligned(2), may_alias));

// ---- layout

static size_t round_up(size_t n, size_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

static size_t weight_bytes(WeightKind kind) {
    return kind == WEIGHTS_FP32 ? sizeof(real) : kind == WEIGHTS_BF16 ? sizeof(uint16_t) : sizeof(int8_t);
}

static size_t data_bytes(WeightKind kind, int rows, int columns) {
    size_t r = (size_t)rows, c = (size_t)columns;
    if (kind != WEIGHTS_FP32) r = round_up(r, GROUP), c = round_up(c, RUN);
    return round_up(r * c * weight_bytes(kind), 64);
}

size_t packed_bytes(WeightKind kind, int rows, int columns) {
    size_t scales = kind == WEIGHTS_INT8 ? round_up((size_t)rows * sizeof(float), 64) : 0;
    return data_bytes(kind, rows, columns) + scales;
}

// The place of a weight in the packed layout.
static size_t packed_index(const PackedMatrix *matrix, int row, int column) {
    size_t width = round_up((size_t)matrix->columns, RUN);
    return (size_t)(row / GROUP) * GROUP * width + (size_t)(column / RUN) * GROUP * RUN + (size_t)(row % GROUP) * RUN +
           (size_t)(column % RUN);
}

RowRange packed_share(const PackedMatrix *matrix, int thread, int threads) {
    int64_t groups = (matrix->rows + GROUP - 1) / GROUP;
    int first = (int)(groups * thread / threads) * GROUP, last = (int)(groups * (thread + 1) / threads) * GROUP;
    return (RowRange){first, last < matrix->rows ? last : matrix->rows};
}

// ---- packing

static uint16_t to_bf16(real value) {
    float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static float from_bf16(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static real largest_magnitude(const real *x, int count) {
    real largest = 0;
#pragma omp simd reduction(max : largest)
    for (int i = 0; i < count; i++) largest = real_abs(x[i]) > largest ? real_abs(x[i]) : largest;
    return largest;
}

// One row of weights, (columns), to its place.
static void pack_row(const PackedMatrix *matrix, int row, const real *from) {
    int columns = matrix->columns;
    if (matrix->kind == WEIGHTS_FP32) {
        memcpy((real *)matrix->data + (size_t)row * (size_t)columns, from, (size_t)columns * sizeof *from);
    } else if (matrix->kind == WEIGHTS_BF16) {
        uint16_t *data = (uint16_t *)matrix->data;
        for (int c = 0; c < columns; c++) data[packed_index(matrix, row, c)] = to_bf16(from[c]);
    } else {
        int8_t *data = (int8_t *)matrix->data;
        real largest = largest_magnitude(from, columns), factor = largest > 0 ? LARGEST_INT8 / largest : 0;
        for (int c = 0; c < columns; c++) data[packed_index(matrix, row, c)] = (int8_t)real_rint(from[c] * factor);
        ((float *)matrix->scales)[row] = (float)(largest / LARGEST_INT8);
    }
}

// Rows first .. last - 1. A transposed source is read in strips as wide as a cache line.
static void pack_rows(const PackedMatrix *matrix, const real *source, SourceOrder order, RowRange range) {
    enum { STRIP = 16 };
    size_t rows = (size_t)matrix->rows, columns = (size_t)matrix->columns;
    real *strip = memory_allocate(STRIP * columns, sizeof *strip, "a strip of weights");
    for (int first = range.first; first < range.last; first += STRIP) {
        int count = range.last - first < STRIP ? range.last - first : STRIP;
        for (size_t c = 0; order == SOURCE_COLUMNS && c < columns; c++)
            for (int i = 0; i < count; i++) strip[(size_t)i * columns + c] = source[c * rows + (size_t)(first + i)];
        const real *from = order == SOURCE_COLUMNS ? strip : source + (size_t)first * columns;
        for (int i = 0; i < count; i++) pack_row(matrix, first + i, from + (size_t)i * columns);
    }
    free(strip);
}

// The zeros that fill up the packed layout: a thread's groups are all its own.
static void clear_groups(const PackedMatrix *matrix, RowRange range) {
    size_t group = GROUP * round_up((size_t)matrix->columns, RUN) * weight_bytes(matrix->kind);
    size_t first = (size_t)range.first / GROUP, last = ((size_t)range.last + GROUP - 1) / GROUP;
    if (last > first) memset((char *)matrix->data + first * group, 0, (last - first) * group);
}

PackedMatrix packed_create(WeightKind kind, int rows, int columns, void *memory, const real *source,
                           SourceOrder order) {
    PackedMatrix matrix = {.kind = kind, .rows = rows, .columns = columns, .data = memory};
    if (kind == WEIGHTS_INT8) matrix.scales = (const float *)((char *)memory + data_bytes(kind, rows, columns));
#pragma omp parallel
    {
        RowRange range = packed_share(&matrix, omp_get_thread_num(), omp_get_num_threads());
        if (kind != WEIGHTS_FP32) clear_groups(&matrix, range);
        pack_rows(&matrix, source, order, range);
    }
    return matrix;
}

PackedMatrix packed_borrow(const real *source, int rows, int columns) {
    return (PackedMatrix){.kind = WEIGHTS_FP32, .rows = rows, .columns = columns, .data = source};
}

static void expand_row(real *out, const PackedMatrix *matrix, int row) {
    int columns = matrix->columns;
    if (matrix->kind == WEIGHTS_FP32) {
        memcpy(out, (const real *)matrix->data + (size_t)row * (size_t)columns, (size_t)columns * sizeof *out);
        return;
    }
    for (int start = 0; start < columns; start += RUN) {
        size_t at = packed_index(matrix, row, start);
        int count = columns - start < RUN ? columns - start : RUN;
        if (matrix->kind == WEIGHTS_BF16) {
            const uint16_t *from = (const uint16_t *)matrix->data + at;
            for (int i = 0; i < count; i++) out[start + i] = from_bf16(from[i]);
        } else {
            const int8_t *from = (const int8_t *)matrix->data + at;
            for (int i = 0; i < count; i++) out[start + i] = from[i] * matrix->scales[row];
        }
    }
}

void packed_expand(real *out, const PackedMatrix *matrix, int first, int count) {
#pragma omp parallel for schedule(static) if (count > 64)
    for (int i = 0; i < count; i++) expand_row(out + (size_t)i * (size_t)matrix->columns, matrix, first + i);
}

// ---- the vector

MatvecInput matvec_input_create(int most_columns) {
    size_t width = round_up((size_t)most_columns, RUN), blocks = (width + BLOCK - 1) / BLOCK;
    return (MatvecInput){.numbers = memory_allocate(width, sizeof(real), "a decoder's vector"),
                         .integers = memory_allocate(width, sizeof(int16_t), "a decoder's vector"),
                         .scales = memory_allocate(blocks, sizeof(float), "a decoder's vector")};
}

void matvec_input_free(MatvecInput *input) {
    free(input->numbers), free(input->integers), free(input->scales);
    *input = (MatvecInput){0};
}

// A block of at most BLOCK numbers as integers; returns their scale, which is NaN when a number is not finite.
static float round_block(int16_t *integers, const real *x, int count) {
    real largest = largest_magnitude(x, count), bad = 0;
    real factor = largest > 0 ? LARGEST_INT16 / largest : 0;
#pragma omp simd reduction(+ : bad)
    for (int i = 0; i < count; i++) bad += x[i] - x[i];
    if (!(bad == 0)) return NAN;
    for (int i = 0; i < count; i++) integers[i] = (int16_t)real_rint(x[i] * factor);
    return (float)(largest / LARGEST_INT16);
}

void matvec_input_set(MatvecInput *input, const real *x, int columns, WeightKind kind) {
    int width = (int)round_up((size_t)columns, RUN);
    if (kind != WEIGHTS_INT8) {
        memcpy(input->numbers, x, (size_t)columns * sizeof *x);
        for (int c = columns; c < width; c++) input->numbers[c] = 0;
        return;
    }
    for (int start = 0; start < columns; start += BLOCK) {
        int count = columns - start < BLOCK ? columns - start : BLOCK;
        input->scales[start / BLOCK] = round_block(input->integers + start, x + start, count);
    }
    for (int c = columns; c < width; c++) input->integers[c] = 0;
}

// ---- four dot products at once

static inline __attribute__((always_inline)) real sum_lanes(const Numbers *v) {
    return ((*v)[0] + (*v)[4]) + ((*v)[1] + (*v)[5]) + (((*v)[2] + (*v)[6]) + ((*v)[3] + (*v)[7]));
}

// rows: where each of the four begins; they may be the same row.
static void dot_fp32(real sums[GROUP], const real *const rows[GROUP], const real *x, int columns) {
    Numbers even[GROUP] = {0}, odd[GROUP] = {0};
    int whole = columns / RUN * RUN;
    for (int c = 0; c < whole; c += RUN) {
        Numbers x0 = *(const Numbers *)(x + c), x1 = *(const Numbers *)(x + c + LANES);
        for (int i = 0; i < GROUP; i++) {
            even[i] += x0 * *(const Numbers *)(rows[i] + c);
            odd[i] += x1 * *(const Numbers *)(rows[i] + c + LANES);
        }
    }
    for (int i = 0; i < GROUP; i++) {
        even[i] += odd[i];
        sums[i] = sum_lanes(&even[i]);
        for (int c = whole; c < columns; c++) sums[i] += x[c] * rows[i][c];
    }
}

static void dot_bf16(real sums[GROUP], const uint16_t *group, const real *x, int columns) {
    Numbers even[GROUP] = {0}, odd[GROUP] = {0};
    for (int c = 0; c < columns; c += RUN, group += GROUP * RUN) {
        Numbers x0 = *(const Numbers *)(x + c), x1 = *(const Numbers *)(x + c + LANES);
        __builtin_prefetch((const char *)group + FETCH_AHEAD);
        __builtin_prefetch((const char *)group + FETCH_AHEAD + 64);
        for (int i = 0; i < GROUP; i++) {
            Words w0 = __builtin_convertvector(*(const Halves *)(group + i * RUN), Words) << 16;
            Words w1 = __builtin_convertvector(*(const Halves *)(group + i * RUN + LANES), Words) << 16;
            even[i] += x0 * __builtin_convertvector((Floats)w0, Numbers);
            odd[i] += x1 * __builtin_convertvector((Floats)w1, Numbers);
        }
    }
    for (int i = 0; i < GROUP; i++) {
        even[i] += odd[i];
        sums[i] = sum_lanes(&even[i]);
    }
}

// The whole-number sums of a block of columns. They are exact, so both forms give the same.
#if defined(__AVX2__)
static inline int32_t sum_words(__m256i v) {
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xB1)));
}

static void dot_block(int32_t sums[GROUP], const int8_t *group, const int16_t *x, int columns) {
    __m256i sum[GROUP] = {0};
    for (int c = 0; c < columns; c += RUN, group += GROUP * RUN) {
        __m256i inputs = _mm256_loadu_si256((const __m256i *)(x + c));
        __builtin_prefetch(group + FETCH_AHEAD);
        for (int i = 0; i < GROUP; i++) {
            __m256i weights = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(group + i * RUN)));
            sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(inputs, weights));
        }
    }
    for (int i = 0; i < GROUP; i++) sums[i] = sum_words(sum[i]);
}
#else
static void dot_block(int32_t sums[GROUP], const int8_t *group, const int16_t *x, int columns) {
    memset(sums, 0, GROUP * sizeof *sums);
    for (int c = 0; c < columns; c += RUN, group += GROUP * RUN)
        for (int i = 0; i < GROUP; i++)
            for (int j = 0; j < RUN; j++) sums[i] += (int32_t)group[i * RUN + j] * (int32_t)x[c + j];
}
#endif

static void dot_int8(real sums[GROUP], const int8_t *group, const MatvecInput *input, int columns) {
    memset(sums, 0, GROUP * sizeof *sums);
    for (int start = 0; start < columns; start += BLOCK) {
        int32_t block[GROUP];
        dot_block(block, group + (size_t)start * GROUP, input->integers + start,
                  columns - start < BLOCK ? columns - start : BLOCK);
        for (int i = 0; i < GROUP; i++) sums[i] += (real)block[i] * input->scales[start / BLOCK];
    }
}

// The four rows from number `first`, a multiple of GROUP; where there are fewer, the other sums mean nothing.
static void dot_group(real sums[GROUP], const PackedMatrix *matrix, const MatvecInput *input, int first) {
    size_t columns = (size_t)matrix->columns, start = (size_t)first * round_up(columns, RUN);
    if (matrix->kind == WEIGHTS_FP32) {
        const real *rows[GROUP];
        for (int i = 0; i < GROUP; i++) {
            int row = first + i < matrix->rows ? first + i : matrix->rows - 1;
            rows[i] = (const real *)matrix->data + (size_t)row * columns;
        }
        dot_fp32(sums, rows, input->numbers, matrix->columns);
    } else if (matrix->kind == WEIGHTS_BF16) {
        dot_bf16(sums, (const uint16_t *)matrix->data + start, input->numbers, matrix->columns);
    } else {
        dot_int8(sums, (const int8_t *)matrix->data + start, input, matrix->columns);
        for (int i = 0; i < GROUP && first + i < matrix->rows; i++) sums[i] *= matrix->scales[first + i];
    }
}

void matvec(real *out, const PackedMatrix *matrix, const MatvecInput *input, const real *bias, const real *residual,
            RowRange range) {
    for (int first = range.first; first < range.last; first += GROUP) {
        real sums[GROUP];
        dot_group(sums, matrix, input, first);
        for (int r = first; r < first + GROUP && r < range.last; r++)
            out[r] = sums[r - first] + (bias ? bias[r] : 0) + (residual ? residual[r] : 0);
    }
}
