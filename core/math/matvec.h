// Weight matrices for decoding. A token is a single row there, every weight is used once, and the time is that of
// reading the weights from memory; so they lie in the order in which they are read, in as few bits as their kind allows
// (packed_rows.h).
//
// Every output is made by one thread in one order: the same bits come out for any number of threads.
#ifndef CORE_MATVEC_H
#define CORE_MATVEC_H

#include "packed_rows.h"

typedef struct { // what a weight is beyond what its packed row says
    int row, column;
    float rest;
} PackedRest;

// A matrix of `rows` outputs and `columns` inputs, row by row.
typedef struct {
    const RowFormat *format;
    int rows, columns;
    size_t row_bytes;
    const void *data;
    const float *scales; // (rows)
    PackedRest *rests;   // in the order of rows
    int *first_rest;     // (rows + 1): of each row; NULL: there are none
} PackedMatrix;

typedef enum { SOURCE_ROWS, SOURCE_COLUMNS } SourceOrder; // (rows, columns), or (columns, rows)

size_t packed_bytes(WeightKind kind, int rows, int columns); // a multiple of 64
// Packs into `memory`, which has packed_bytes; each thread fills, and so first touches, the rows that it will multiply.
PackedMatrix packed_create(WeightKind kind, int rows, int columns, void *memory, const real *source, SourceOrder order);
// Frees the rests; `memory` is the caller's.
void packed_free(PackedMatrix *matrix);

// The numbers of rows first .. first + count - 1 as the product takes them, out (count, columns). fp32: the source's
// bits.
void packed_expand(real *out, const PackedMatrix *matrix, int first, int count);

// ---- matrix times vector, by the threads of a parallel region together

typedef struct {
    int first, last; // `last` is not included
} RowRange;

// The rows that one of so many threads has packed.
RowRange packed_share(const PackedMatrix *matrix, int thread, int threads);

// How the threads share a product: each takes the greater part of its own share, in long streams; the rest of all
// shares is cut into pieces for whoever is ready first. Cores that others use too are not always equally fast, and in a
// decoder the threads wait for each other five times a layer.
typedef struct {
    const PackedMatrix *matrix;
    int thread, threads;
    int *taken; // pieces, by all threads; 0 before the first of them begins
    int begun;
} SharedRows;

// The thread's next rows; 0 when there are no more. They begin at a multiple of 16 and end at one or at the last row.
int shared_rows_next(SharedRows *rows, RowRange *range);

// `input` has been set by the matrix's format. out[r] = sum over c of matrix[r][c] x[c] + bias[r] + residual[r] for the
// rows of `range`; bias and residual may be NULL, residual may be out.
void matvec(real *out, const PackedMatrix *matrix, const MatvecInput *input, const real *bias, const real *residual,
            RowRange range);

#endif
