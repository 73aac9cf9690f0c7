// One row of weights as decoding keeps it in memory, in each of its kinds:
//
//   fp32   28 bits: sign, all 23 digits, and how far the exponent lies below that of the row's largest weight, 0 to 14.
//          What such a small number cannot hold, a weight of less than 2^-14 of the largest, leaves a rest
//          (PackedRest), which is added to the product separately: no weight loses a digit
//   bf16   12 bits: the same with 7 digits, rounded to nearest even, without rests
//   int8   whole numbers from -127 to 127 times the row's scale, its largest magnitude / 127
//
// Rows of fp32 and bf16 lie in groups of 64 numbers, eight vectors of eight. Shifted down to exponents from 0 to 15 (so
// that the smallest become subnormal, as floats do), a number has four bits that are always zero; those of seven
// vectors hold the eighth, those of six halves the two others. Taking a vector out is one `and`.
#ifndef CORE_PACKED_ROWS_H
#define CORE_PACKED_ROWS_H

#include "core/base/real.h"

#include <stddef.h>
#include <stdint.h>

typedef enum { WEIGHTS_FP32, WEIGHTS_BF16, WEIGHTS_INT8, WEIGHT_KINDS } WeightKind;
#define WEIGHT_KIND_CHOICES "fp32|bf16|int8" // the words for the command line, in this order

typedef struct {       // a vector as the products want it; each thread has its own
    real *numbers;     // fp32, bf16: the vector times a power of two, padded with zeros to a whole group
    int16_t *integers; // int8: -16383 to 16383, with a scale for each block of columns
    float *scales;
    real shrink; // fp32, bf16: `numbers` times this is the vector again; NaN when a number of it is not finite
} MatvecInput;

enum { STREAMS = 4 }; // rows that are multiplied at once

typedef struct { // a kind's functions; weights (columns)
    size_t (*row_bytes)(int columns);
    // Returns the row's scale: NaN when a weight is not finite.
    float (*pack)(void *row, const real *weights, int columns);
    // The numbers as the product takes them, out (columns); without the rests.
    void (*expand)(real *out, const void *row, float scale, int columns);
    void (*set_input)(MatvecInput *input, const real *x, int columns);
    // Without the rows' scales.
    void (*dot)(real sums[STREAMS], const void *const rows[STREAMS], const MatvecInput *input, int columns);
    int has_rests;
} RowFormat;

const RowFormat *row_format(WeightKind kind);

MatvecInput matvec_input_create(int most_columns);
void matvec_input_free(MatvecInput *input);

#endif
