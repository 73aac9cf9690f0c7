#include "packed_rows.h"
#include "core/base/memory.h"
#include "core/base/numbers.h"

#include <stdlib.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

// Eight numbers, whatever the machine's own width: the order of additions, and so the result, does not depend on it.
enum { EIGHT = 8, VECTORS = 8, GROUP_COLUMNS = EIGHT * VECTORS };
typedef real Numbers __attribute__((vector_size(EIGHT * sizeof(real)), aligned(sizeof(real)), may_alias));
typedef float Floats __attribute__((vector_size(EIGHT * sizeof(float))));
typedef uint32_t Words __attribute__((vector_size(EIGHT * sizeof(uint32_t)), aligned(4), may_alias));

static real largest_magnitude(const real *x, int count) {
    real largest = 0;
#pragma omp simd reduction(max : largest)
    for (int i = 0; i < count; i++) largest = real_abs(x[i]) > largest ? real_abs(x[i]) : largest;
    return largest;
}

static int all_are_finite(const real *x, int count) {
    real bad = 0;
#pragma omp simd reduction(+ : bad)
    for (int i = 0; i < count; i++) bad += x[i] - x[i];
    return bad == 0;
}

static inline __attribute__((always_inline)) real sum_lanes(const Numbers *v) {
    return ((*v)[0] + (*v)[4]) + ((*v)[1] + (*v)[5]) + (((*v)[2] + (*v)[6]) + ((*v)[3] + (*v)[7]));
}

// ---- numbers with short exponents, fp32 and bf16

// A row's numbers are divided by 2^(its largest exponent + HIGHEST), so that the largest one's biased exponent is 15.
enum {
    HIGHEST = 112,
    LARGEST_INPUT = 96
}; // inputs become as large as 2^96: no product of the two is too small for a float

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

// The exponent e of 2^e <= x < 2^(e+1); for those below the normal numbers that of the smallest.
static int exponent_of(float x) {
    int exponent = (int)(bits_of(x) >> 23 & 255) - 127;
    return exponent < -126 ? -126 : exponent;
}

static uint32_t round_to_upper_half(uint32_t bits) {
    return (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000;
}

// Whether weights fit a float and how they are scaled: 2^e of the largest. With `halves` it is the largest after
// rounding.
static float scale_of_row(const real *weights, int columns, int halves) {
    uint32_t bits = bits_of((float)largest_magnitude(weights, columns));
    float largest;
    if (halves) bits = round_to_upper_half(bits);
    memcpy(&largest, &bits, sizeof largest);
    return all_are_finite(weights, columns) && isfinite(largest) ? ldexpf(1, exponent_of(largest)) : NAN;
}

// A group's numbers as the bits of floats with exponents from 0 to 15; zeros after the row's end and where it is NaN.
static void shorten_group(uint32_t bits[GROUP_COLUMNS], const real *weights, int count, float scale, int halves) {
    double factor = isnan(scale) ? 0 : ldexp(1 / (double)scale, -HIGHEST);
    for (int i = 0; i < GROUP_COLUMNS; i++) {
        bits[i] = factor != 0 && i < count ? bits_of((float)((double)weights[i] * factor)) : 0;
        if (halves) bits[i] = round_to_upper_half(bits[i]);
    }
}

typedef struct {
    Words vectors[VECTORS]; // bits of floats
} Group;

enum { BORROWED_SHIFT = 27 };
static const uint32_t SIGN = 0x80000000, OWN = 0x87FFFFFF, BORROWED = 0x78000000, OWN_HALF = 0x87FF0000,
                      BORROWED_HALVES = 0x78007800;

enum { FP32_WORDS = 7 * EIGHT, BF16_WORDS = 3 * EIGHT }; // of a group

// Vectors 0 to 6 as they are; the eighth's 28 bits, its sign the lowest, in the free bits of those, four in each.
static void join_fp32(uint32_t words[FP32_WORDS], const uint32_t bits[GROUP_COLUMNS]) {
    for (int i = 0; i < FP32_WORDS; i++) {
        uint32_t last = bits[7 * EIGHT + i % EIGHT], rotated = last << 1 | last >> 31;
        words[i] = bits[i] | (rotated >> 4 * (i / EIGHT) & 15) << BORROWED_SHIFT;
    }
}

static inline __attribute__((always_inline)) Group split_fp32(const uint32_t *words) {
    Group group;
    Words last = {0};
#pragma GCC unroll 7
    for (int j = 0; j < 7; j++) {
        Words word = *(const Words *)(words + j * EIGHT);
        group.vectors[j] = word & OWN;
        last = last >> 4 | (word & BORROWED);
    }
    group.vectors[7] = last >> 4 | last << 28;
    return group;
}

// Three words of two halves each; the free bits of the upper ones hold vector 6, of the lower ones vector 7.
static void join_bf16(uint32_t words[BF16_WORDS], const uint32_t bits[GROUP_COLUMNS]) {
    for (int i = 0; i < BF16_WORDS; i++) {
        int j = i / EIGHT, lane = i % EIGHT;
        uint32_t pair = bits[2 * j * EIGHT + lane] | bits[(2 * j + 1) * EIGHT + lane] >> 16;
        for (int half = 0; half < 2; half++) {
            uint32_t last = bits[(6 + half) * EIGHT + lane] >> 16, rotated = (last << 1 | last >> 15) & 0xFFF;
            pair |= (rotated >> 4 * j & 15) << (BORROWED_SHIFT - 16 * half);
        }
        words[i] = pair;
    }
}

static inline __attribute__((always_inline)) Group split_bf16(const uint32_t *words) {
    Group group;
    Words last = {0};
#pragma GCC unroll 3
    for (int j = 0; j < 3; j++) {
        Words word = *(const Words *)(words + j * EIGHT);
        group.vectors[2 * j] = word & OWN_HALF;
        group.vectors[2 * j + 1] = word << 16 & OWN_HALF;
        last = last >> 4 | (word & BORROWED_HALVES);
    }
    group.vectors[6] = (last >> 4 & (OWN_HALF & ~SIGN)) | (last << 12 & SIGN);
    group.vectors[7] = (last << 12 & (OWN_HALF & ~SIGN)) | last << 28;
    return group;
}

#define NUMBERS_OF(bits) __builtin_convertvector((Floats)(bits), Numbers)

// ---- rows of such groups; `split` is known where these are used, and becomes part of the loop

typedef Group Split(const uint32_t *words);

static inline __attribute__((always_inline)) void expand_groups(real *out, const uint32_t *words, float scale,
                                                                int columns, Split *split, int group_words) {
    const real highest = (real)ldexp(1, HIGHEST);
    for (int c = 0; c < columns; c += GROUP_COLUMNS, words += group_words) {
        Numbers numbers[VECTORS];
        Group group = split(words);
        for (int j = 0; j < VECTORS; j++) numbers[j] = NUMBERS_OF(group.vectors[j]) * highest * (real)scale;
        memcpy(out + c, numbers, (size_t)(columns - c < GROUP_COLUMNS ? columns - c : GROUP_COLUMNS) * sizeof *out);
    }
}

static inline __attribute__((always_inline)) void dot_groups(real sums[STREAMS], const void *const rows[STREAMS],
                                                             const MatvecInput *input, int columns, Split *split,
                                                             int group_words) {
    Numbers sum[STREAMS] = {0};
    const uint32_t *words[STREAMS];
    for (int i = 0; i < STREAMS; i++) words[i] = rows[i];
    for (const real *x = input->numbers, *end = x + columns; x < end; x += GROUP_COLUMNS)
#pragma GCC unroll 4
        for (int i = 0; i < STREAMS; i++) {
            Group group = split(words[i]);
            words[i] += group_words;
#pragma GCC unroll 8
            for (int j = 0; j < VECTORS; j++)
                sum[i] += *(const Numbers *)(x + j * EIGHT) * NUMBERS_OF(group.vectors[j]);
        }
    for (int i = 0; i < STREAMS; i++) sums[i] = sum_lanes(&sum[i]) * (real)ldexp(1, HIGHEST) * input->shrink;
}

// Times a power of two, which changes no digit, so that the largest is near 2^LARGEST_INPUT.
static void set_scaled(MatvecInput *input, const real *x, int columns) {
    float largest = (float)largest_magnitude(x, columns);
    int shift = LARGEST_INPUT - (isfinite(largest) ? exponent_of(largest) : 0);
    int width = (int)round_up((size_t)columns, GROUP_COLUMNS);
    real factor = (real)ldexp(1, shift < 126 ? shift : 126);
    for (int c = 0; c < columns; c++) input->numbers[c] = x[c] * factor;
    for (int c = columns; c < width; c++) input->numbers[c] = 0;
    input->shrink = all_are_finite(x, columns) ? 1 / factor : (real)NAN;
}

static size_t groups_of(int columns) {
    return ((size_t)columns + GROUP_COLUMNS - 1) / GROUP_COLUMNS;
}

static size_t bytes_fp32(int columns) {
    return groups_of(columns) * FP32_WORDS * sizeof(uint32_t);
}

static float pack_fp32(void *row, const real *weights, int columns) {
    float scale = scale_of_row(weights, columns, 0);
    uint32_t bits[GROUP_COLUMNS], *words = row;
    for (int c = 0; c < columns; c += GROUP_COLUMNS, words += FP32_WORDS) {
        shorten_group(bits, weights + c, columns - c, scale, 0);
        join_fp32(words, bits);
    }
    return scale;
}

static void expand_fp32(real *out, const void *row, float scale, int columns) {
    expand_groups(out, row, scale, columns, split_fp32, FP32_WORDS);
}

static void dot_fp32(real sums[STREAMS], const void *const rows[STREAMS], const MatvecInput *input, int columns) {
    dot_groups(sums, rows, input, columns, split_fp32, FP32_WORDS);
}

static size_t bytes_bf16(int columns) {
    return groups_of(columns) * BF16_WORDS * sizeof(uint32_t);
}

static float pack_bf16(void *row, const real *weights, int columns) {
    float scale = scale_of_row(weights, columns, 1);
    uint32_t bits[GROUP_COLUMNS], *words = row;
    for (int c = 0; c < columns; c += GROUP_COLUMNS, words += BF16_WORDS) {
        shorten_group(bits, weights + c, columns - c, scale, 1);
        join_bf16(words, bits);
    }
    return scale;
}

static void expand_bf16(real *out, const void *row, float scale, int columns) {
    expand_groups(out, row, scale, columns, split_bf16, BF16_WORDS);
}

static void dot_bf16(real sums[STREAMS], const void *const rows[STREAMS], const MatvecInput *input, int columns) {
    dot_groups(sums, rows, input, columns, split_bf16, BF16_WORDS);
}

// ---- whole numbers, int8

enum {
    RUN = 16,              // columns of a row that are multiplied at once
    LARGEST_INT8 = 127,    // of a weight
    LARGEST_INT16 = 16383, // of an input: a block's sum of products stays below 2^31
    BLOCK = 1024,          // columns that share an input scale
};

static size_t bytes_int8(int columns) {
    return round_up((size_t)columns, RUN);
}

static float pack_int8(void *row, const real *weights, int columns) {
    real largest = largest_magnitude(weights, columns), factor = largest > 0 ? LARGEST_INT8 / largest : 0;
    int is_finite = all_are_finite(weights, columns);
    memset(row, 0, bytes_int8(columns));
    for (int c = 0; is_finite && c < columns; c++) ((int8_t *)row)[c] = (int8_t)real_rint(weights[c] * factor);
    return is_finite ? (float)(largest / LARGEST_INT8) : NAN;
}

static void expand_int8(real *out, const void *row, float scale, int columns) {
    for (int c = 0; c < columns; c++) out[c] = ((const int8_t *)row)[c] * scale;
}

// A block of at most BLOCK numbers as integers; returns their scale, which is NaN when a number is not finite.
static float round_block(int16_t *integers, const real *x, int count) {
    real largest = largest_magnitude(x, count), factor = largest > 0 ? LARGEST_INT16 / largest : 0;
    if (!all_are_finite(x, count)) return NAN;
    for (int i = 0; i < count; i++) integers[i] = (int16_t)real_rint(x[i] * factor);
    return (float)(largest / LARGEST_INT16);
}

static void set_rounded(MatvecInput *input, const real *x, int columns) {
    for (int start = 0; start < columns; start += BLOCK) {
        int count = columns - start < BLOCK ? columns - start : BLOCK;
        input->scales[start / BLOCK] = round_block(input->integers + start, x + start, count);
    }
    for (int c = columns; c < (int)round_up((size_t)columns, RUN); c++) input->integers[c] = 0;
}

// The whole-number sums of a block of columns. They are exact, so both forms give the same.
#if defined(__AVX2__)
// The sums of four vectors' words.
static inline void sum_words(int32_t sums[STREAMS], const __m256i v[STREAMS]) {
    __m256i pairs = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    __m128i both = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    _mm_storeu_si128((__m128i *)sums, both);
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
    sum_words(sums, sum);
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

// ---- plain rows: what fp32 is where `real` is double, in the gradient tests

static size_t bytes_plain(int columns) {
    return (size_t)columns * sizeof(real);
}

static float pack_plain(void *row, const real *weights, int columns) {
    memcpy(row, weights, bytes_plain(columns));
    return 1;
}

static void expand_plain(real *out, const void *row, float scale, int columns) {
    (void)scale;
    memcpy(out, row, bytes_plain(columns));
}

static void set_plain(MatvecInput *input, const real *x, int columns) {
    memcpy(input->numbers, x, bytes_plain(columns));
}

static void dot_plain(real sums[STREAMS], const void *const rows[STREAMS], const MatvecInput *input, int columns) {
    for (int i = 0; i < STREAMS; i++) {
        sums[i] = 0;
        for (int c = 0; c < columns; c++) sums[i] += ((const real *)rows[i])[c] * input->numbers[c];
    }
}

// ---- all kinds

const RowFormat *row_format(WeightKind kind) {
    static const RowFormat formats[WEIGHT_KINDS] = {
        [WEIGHTS_FP32] = {bytes_fp32, pack_fp32, expand_fp32, set_scaled, dot_fp32, 1},
        [WEIGHTS_BF16] = {bytes_bf16, pack_bf16, expand_bf16, set_scaled, dot_bf16, 0},
        [WEIGHTS_INT8] = {bytes_int8, pack_int8, expand_int8, set_rounded, dot_int8, 0},
    };
    static const RowFormat plain = {bytes_plain, pack_plain, expand_plain, set_plain, dot_plain, 0};
    return kind == WEIGHTS_FP32 && sizeof(real) > sizeof(float) ? &plain : &formats[kind];
}

MatvecInput matvec_input_create(int most_columns) {
    size_t width = round_up((size_t)most_columns, GROUP_COLUMNS), blocks = (width + BLOCK - 1) / BLOCK;
    return (MatvecInput){.numbers = memory_allocate(width, sizeof(real), "a decoder's vector"),
                         .integers = memory_allocate(width, sizeof(int16_t), "a decoder's vector"),
                         .scales = memory_allocate(blocks, sizeof(float), "a decoder's vector")};
}

void matvec_input_free(MatvecInput *input) {
    free(input->numbers), free(input->integers), free(input->scales);
    *input = (MatvecInput){0};
}
