#include "matvec.h"
#include "memory.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

enum {
    STREAMS = 4,           // rows that are multiplied at once, each from its own part of the thread's rows
    GROUP = 16,            // rows that a thread gets at least: those behind may go through vectors together
    RUN = 16,              // columns of a row that are multiplied at once
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

// The numbers from one row to the next.
static size_t row_width(WeightKind kind, int columns) {
    return kind == WEIGHTS_FP32 ? (size_t)columns : round_up((size_t)columns, RUN);
}

static size_t data_bytes(WeightKind kind, int rows, int columns) {
    return round_up((size_t)rows * row_width(kind, columns) * weight_bytes(kind), 64);
}

size_t packed_bytes(WeightKind kind, int rows, int columns) {
    size_t scales = kind == WEIGHTS_INT8 ? round_up((size_t)rows * sizeof(float), 64) : 0;
    return data_bytes(kind, rows, columns) + scales;
}

static void *row_data(const PackedMatrix *matrix, int row) {
    return (char *)matrix->data + (size_t)row * row_width(matrix->kind, matrix->columns) * weight_bytes(matrix->kind);
}

RowRange packed_share(const PackedMatrix *matrix, int thread, int threads) {
    int64_t groups = (matrix->rows + GROUP - 1) / GROUP;
    int first = (int)(groups * thread / threads) * GROUP, last = (int)(groups * (thread + 1) / threads) * GROUP;
    return (RowRange){first, last < matrix->rows ? last : matrix->rows};
}

// A share in sixteenths: the first OWN are its thread's, the others are pieces for all.
enum { SIXTEENTHS = 16, OWN = 12 };

static RowRange sixteenths(RowRange share, int from, int to) {
    int groups = (share.last - share.first + GROUP - 1) / GROUP;
    int first = share.first + groups * from / SIXTEENTHS * GROUP, last = share.first + groups * to / SIXTEENTHS * GROUP;
    return (RowRange){first, last < share.last ? last : share.last};
}

int shared_rows_next(SharedRows *rows, RowRange *range) {
    *range = (RowRange){0, 0};
    if (!rows->begun) *range = sixteenths(packed_share(rows->matrix, rows->thread, rows->threads), 0, OWN);
    rows->begun = 1;
    while (range->first >= range->last) {
        int piece;
#pragma omp atomic capture
        piece = (*rows->taken)++;
        int from = OWN + piece / rows->threads; // the threads' first pieces, then their second ones
        if (from >= SIXTEENTHS) return 0;
        *range = sixteenths(packed_share(rows->matrix, piece % rows->threads, rows->threads), from, from + 1);
    }
    return 1;
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

// One row of weights, (columns), to its place, filled up with zeros.
static void pack_row(const PackedMatrix *matrix, int row, const real *from) {
    int columns = matrix->columns;
    size_t width = row_width(matrix->kind, columns);
    void *to = row_data(matrix, row);
    memset(to, 0, width * weight_bytes(matrix->kind));
    if (matrix->kind == WEIGHTS_FP32) {
        memcpy(to, from, (size_t)columns * sizeof *from);
    } else if (matrix->kind == WEIGHTS_BF16) {
        for (int c = 0; c < columns; c++) ((uint16_t *)to)[c] = to_bf16(from[c]);
    } else {
        real largest = largest_magnitude(from, columns), factor = largest > 0 ? LARGEST_INT8 / largest : 0;
        for (int c = 0; c < columns; c++) ((int8_t *)to)[c] = (int8_t)real_rint(from[c] * factor);
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

PackedMatrix packed_create(WeightKind kind, int rows, int columns, void *memory, const real *source,
                           SourceOrder order) {
    PackedMatrix matrix = {.kind = kind, .rows = rows, .columns = columns, .data = memory};
    if (kind == WEIGHTS_INT8) matrix.scales = (const float *)((char *)memory + data_bytes(kind, rows, columns));
#pragma omp parallel
    {
        RowRange range = packed_share(&matrix, omp_get_thread_num(), omp_get_num_threads());
        pack_rows(&matrix, source, order, range);
    }
    return matrix;
}

PackedMatrix packed_borrow(const real *source, int rows, int columns) {
    return (PackedMatrix){.kind = WEIGHTS_FP32, .rows = rows, .columns = columns, .data = source};
}

static void expand_row(real *out, const PackedMatrix *matrix, int row) {
    int columns = matrix->columns;
    const void *from = row_data(matrix, row);
    if (matrix->kind == WEIGHTS_FP32) {
        memcpy(out, from, (size_t)columns * sizeof *out);
    } else if (matrix->kind == WEIGHTS_BF16) {
        for (int c = 0; c < columns; c++) out[c] = from_bf16(((const uint16_t *)from)[c]);
    } else {
        for (int c = 0; c < columns; c++) out[c] = ((const int8_t *)from)[c] * matrix->scales[row];
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

static void dot_fp32(real sums[STREAMS], const void *const rows[STREAMS], const real *x, int columns) {
    Numbers even[STREAMS] = {0}, odd[STREAMS] = {0};
    int whole = columns / RUN * RUN;
    for (int c = 0; c < whole; c += RUN) {
        Numbers x0 = *(const Numbers *)(x + c), x1 = *(const Numbers *)(x + c + LANES);
        for (int i = 0; i < STREAMS; i++) {
            const real *weights = (const real *)rows[i] + c;
            even[i] += x0 * *(const Numbers *)weights;
            odd[i] += x1 * *(const Numbers *)(weights + LANES);
        }
    }
    for (int i = 0; i < STREAMS; i++) {
        even[i] += odd[i];
        sums[i] = sum_lanes(&even[i]);
        for (int c = whole; c < columns; c++) sums[i] += x[c] * ((const real *)rows[i])[c];
    }
}

static void dot_bf16(real sums[STREAMS], const void *const rows[STREAMS], const real *x, int columns) {
    Numbers even[STREAMS] = {0}, odd[STREAMS] = {0};
    for (int c = 0; c < columns; c += RUN) {
        Numbers x0 = *(const Numbers *)(x + c), x1 = *(const Numbers *)(x + c + LANES);
        for (int i = 0; i < STREAMS; i++) {
            const uint16_t *weights = (const uint16_t *)rows[i] + c;
            Words w0 = __builtin_convertvector(*(const Halves *)weights, Words) << 16;
            Words w1 = __builtin_convertvector(*(const Halves *)(weights + LANES), Words) << 16;
            even[i] += x0 * __builtin_convertvector((Floats)w0, Numbers);
            odd[i] += x1 * __builtin_convertvector((Floats)w1, Numbers);
        }
    }
    for (int i = 0; i < STREAMS; i++) {
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

static void dot_block(int32_t sums[STREAMS], const void *const rows[STREAMS], const int16_t *x, int first, int last) {
    __m256i sum[STREAMS] = {0};
    for (int c = first; c < last; c += RUN) {
        __m256i inputs = _mm256_loadu_si256((const __m256i *)(x + c));
        for (int i = 0; i < STREAMS; i++) {
            __m128i weights = _mm_loadu_si128((const __m128i *)((const int8_t *)rows[i] + c));
            sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(inputs, _mm256_cvtepi8_epi16(weights)));
        }
    }
    for (int i = 0; i < STREAMS; i++) sums[i] = sum_words(sum[i]);
}
#else
static void dot_block(int32_t sums[STREAMS], const void *const rows[STREAMS], const int16_t *x, int first, int last) {
    for (int i = 0; i < STREAMS; i++) {
        sums[i] = 0;
        for (int c = first; c < last; c++) sums[i] += (int32_t)((const int8_t *)rows[i])[c] * (int32_t)x[c];
    }
}
#endif

static void dot_int8(real sums[STREAMS], const void *const rows[STREAMS], const MatvecInput *input, int columns) {
    memset(sums, 0, STREAMS * sizeof *sums);
    for (int start = 0; start < columns; start += BLOCK) {
        int32_t block[STREAMS];
        dot_block(block, rows, input->integers, start, columns - start < BLOCK ? columns : start + BLOCK);
        for (int i = 0; i < STREAMS; i++) sums[i] += (real)block[i] * input->scales[start / BLOCK];
    }
}

static void dot_rows(real sums[STREAMS], const PackedMatrix *matrix, const MatvecInput *input,
                     const int numbers[STREAMS]) {
    const void *rows[STREAMS];
    for (int i = 0; i < STREAMS; i++) rows[i] = row_data(matrix, numbers[i]);
    if (matrix->kind == WEIGHTS_FP32) {
        dot_fp32(sums, rows, input->numbers, matrix->columns);
    } else if (matrix->kind == WEIGHTS_BF16) {
        dot_bf16(sums, rows, input->numbers, matrix->columns);
    } else {
        dot_int8(sums, rows, input, matrix->columns);
        for (int i = 0; i < STREAMS; i++) sums[i] *= matrix->scales[numbers[i]];
    }
}

// A thread's rows are cut into STREAMS parts, of which one row each is multiplied at a time. Every part is then read from
// end to end while the others are: streams that go on for long and lie far apart get half as much again out of the memory
// as rows side by side, which end every few kilobytes.
void matvec(real *out, const PackedMatrix *matrix, const MatvecInput *input, const real *bias, const real *residual,
            RowRange range) {
    int part = (range.last - range.first + STREAMS - 1) / STREAMS;
    for (int first = range.first; first < range.first + part; first++) {
        real sums[STREAMS];
        int rows[STREAMS]; // beyond the end the last one, whose sum is left alone
        for (int i = 0; i < STREAMS; i++) rows[i] = first + i * part < range.last ? first + i * part : range.last - 1;
        dot_rows(sums, matrix, input, rows);
        for (int i = 0, r = first; i < STREAMS && r < range.last; i++, r += part)
            out[r] = sums[i] + (bias ? bias[r] : 0) + (residual ? residual[r] : 0);
    }
}
