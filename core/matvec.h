// Weight matrices for decoding. A token is a single row there, every weight is used once, and the time is that of reading
// the weights from memory; so they lie in the order in which they are read, and may be kept in fewer bits:
//
//   fp32   as they are
//   bf16   the upper half of a float, rounded to nearest even
//   int8   whole numbers from -127 to 127 times a scale per output, the row's largest magnitude / 127
//
// Every output is made by one thread in one order: the same bits come out for any number of threads.
#ifndef CORE_MATVEC_H
#define CORE_MATVEC_H

#include "real.h"

#include <stddef.h>
#include <stdint.h>

typedef enum { WEIGHTS_FP32, WEIGHTS_BF16, WEIGHTS_INT8, WEIGHT_KINDS } WeightKind;
#define WEIGHT_KIND_CHOICES "fp32|bf16|int8" // the words for the command line, in this order

// A matrix of `rows` outputs and `columns` inputs, row by row: fp32 is plain, which BLAS reads as it is, the others'
// rows are filled up with zeros to whole runs of 16.
typedef struct {
    WeightKind kind;
    int rows, columns;
    const void *data;
    const float *scales; // (rows) of int8
} PackedMatrix;

typedef enum { SOURCE_ROWS, SOURCE_COLUMNS } SourceOrder; // (rows, columns), or (columns, rows)

size_t packed_bytes(WeightKind kind, int rows, int columns); // a multiple of 64
// Packs into `memory`, which has packed_bytes; each thread fills, and so first touches, the rows that it will multiply.
PackedMatrix packed_create(WeightKind kind, int rows, int columns, void *memory, const real *source, SourceOrder order);
// A plain fp32 matrix (rows, columns) that stays where it is.
PackedMatrix packed_borrow(const real *source, int rows, int columns);

// The numbers of rows first .. first + count - 1 as the product takes them, out (count, columns).
void packed_expand(real *out, const PackedMatrix *matrix, int first, int count);

// ---- matrix times vector, by the threads of a parallel region together

typedef struct {       // a vector as the products want it; each thread has its own
    real *numbers;     // fp32, bf16: filled up with zeros to a whole run
    int16_t *integers; // int8: -16383 to 16383, with a scale for each block of columns
    float *scales;
} MatvecInput;

MatvecInput matvec_input_create(int most_columns);
void matvec_input_free(MatvecInput *input);
void matvec_input_set(MatvecInput *input, const real *x, int columns, WeightKind kind);

typedef struct {
    int first, last; // `last` is not included
} RowRange;

// The rows that one of so many threads has packed.
RowRange packed_share(const PackedMatrix *matrix, int thread, int threads);

// How the threads share a product: each takes the greater part of its own share, in long streams, and what is left of all
// shares lies in pieces for whoever is ready first. The cores of a shared machine are not always equally fast, and in a
// decoder the threads wait for each other five times a layer.
typedef struct {
    const PackedMatrix *matrix;
    int thread, threads;
    int *taken; // pieces, by all threads; 0 before the first of them begins
    int begun;
} SharedRows;

// The thread's next rows; 0 when there are no more. They begin at a multiple of 16 and end at one or at the last row.
int shared_rows_next(SharedRows *rows, RowRange *range);

// out[r] = sum over c of matrix[r][c] x[c] + bias[r] + residual[r] for the rows of `range`; bias and residual may be NULL,
// residual may be out.
void matvec(real *out, const PackedMatrix *matrix, const MatvecInput *input, const real *bias, const real *residual,
            RowRange range);

#endif
