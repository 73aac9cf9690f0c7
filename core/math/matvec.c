#include "matvec.h"
#include "core/base/memory.h"
#include "core/base/numbers.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { GROUP = 16 }; // threads get whole groups of rows, so that what follows the product has whole vectors

// ---- layout

static size_t data_bytes(WeightKind kind, int rows, int columns) {
    return round_up((size_t)rows * row_format(kind)->row_bytes(columns), 64);
}

size_t packed_bytes(WeightKind kind, int rows, int columns) {
    return data_bytes(kind, rows, columns) + round_up((size_t)rows * sizeof(float), 64);
}

static void *row_data(const PackedMatrix *matrix, int row) {
    return (char *)matrix->data + (size_t)row * matrix->row_bytes;
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

typedef struct { // a list that grows, one for each thread
    PackedRest *at;
    int count, room;
} Rests;

static void add_rest(Rests *rests, PackedRest rest) {
    if (rests->count == rests->room) {
        rests->room = rests->room > 0 ? 2 * rests->room : 64;
        rests->at = memory_resize(rests->at, (size_t)rests->room, sizeof *rests->at, "the rests of weights");
    }
    rests->at[rests->count++] = rest;
}

// One row of weights, (columns), to its place. What the packed row cannot hold goes to `rests`.
static void pack_row(const PackedMatrix *matrix, int row, const real *from, Rests *rests, real *unpacked) {
    const RowFormat *format = matrix->format;
    int columns = matrix->columns;
    float scale = ((float *)matrix->scales)[row] = format->pack(row_data(matrix, row), from, columns);
    if (!format->has_rests || isnan(scale)) return;
    format->expand(unpacked, row_data(matrix, row), scale, columns);
    for (int c = 0; c < columns; c++)
        if (unpacked[c] != from[c]) add_rest(rests, (PackedRest){row, c, (float)(from[c] - unpacked[c])});
}

// Rows first .. last - 1. A transposed source is read in strips as wide as a cache line.
static void pack_rows(const PackedMatrix *matrix, const real *source, SourceOrder order, RowRange range, Rests *rests) {
    enum { STRIP = 16 };
    size_t rows = (size_t)matrix->rows, columns = (size_t)matrix->columns;
    real *strip = memory_allocate((STRIP + 1) * columns, sizeof *strip, "a strip of weights");
    for (int first = range.first; first < range.last; first += STRIP) {
        int count = range.last - first < STRIP ? range.last - first : STRIP;
        for (size_t c = 0; order == SOURCE_COLUMNS && c < columns; c++)
            for (int i = 0; i < count; i++) strip[(size_t)i * columns + c] = source[c * rows + (size_t)(first + i)];
        const real *from = order == SOURCE_COLUMNS ? strip : source + (size_t)first * columns;
        for (int i = 0; i < count; i++)
            pack_row(matrix, first + i, from + (size_t)i * columns, rests, strip + STRIP * columns);
    }
    free(strip);
}

// Joins the threads' lists, whose rows follow one another, into the matrix's.
static void join_rests(PackedMatrix *matrix, Rests *lists, int threads) {
    int count = 0;
    for (int t = 0; t < threads; t++) count += lists[t].count;
    if (count > 0) {
        matrix->rests = memory_allocate((size_t)count, sizeof *matrix->rests, "the rests of weights");
        matrix->first_rest = memory_allocate_zeroed((size_t)matrix->rows + 1, sizeof(int), "the rests of weights");
    }
    for (int t = 0, at = 0; t < threads; at += lists[t++].count) {
        if (lists[t].count > 0) memcpy(matrix->rests + at, lists[t].at, (size_t)lists[t].count * sizeof *lists->at);
        free(lists[t].at);
    }
    for (int i = 0; i < count; i++) matrix->first_rest[matrix->rests[i].row + 1]++;
    for (int r = 0; count > 0 && r < matrix->rows; r++) matrix->first_rest[r + 1] += matrix->first_rest[r];
}

PackedMatrix packed_create(WeightKind kind, int rows, int columns, void *memory, const real *source,
                           SourceOrder order) {
    const RowFormat *format = row_format(kind);
    PackedMatrix matrix = {.format = format,
                           .rows = rows,
                           .columns = columns,
                           .row_bytes = format->row_bytes(columns),
                           .data = memory,
                           .scales = (const float *)((char *)memory + data_bytes(kind, rows, columns))};
    int threads = omp_get_max_threads();
    Rests *lists = memory_allocate_zeroed((size_t)threads, sizeof *lists, "the rests of weights");
#pragma omp parallel num_threads(threads)
    {
        int thread = omp_get_thread_num();
        pack_rows(&matrix, source, order, packed_share(&matrix, thread, omp_get_num_threads()), &lists[thread]);
    }
    join_rests(&matrix, lists, threads);
    free(lists);
    return matrix;
}

void packed_free(PackedMatrix *matrix) {
    free(matrix->rests), free(matrix->first_rest);
    matrix->rests = NULL, matrix->first_rest = NULL;
}

static void expand_row(real *out, const PackedMatrix *matrix, int row) {
    matrix->format->expand(out, row_data(matrix, row), matrix->scales[row], matrix->columns);
    if (!matrix->first_rest) return;
    for (int i = matrix->first_rest[row]; i < matrix->first_rest[row + 1]; i++)
        out[matrix->rests[i].column] += matrix->rests[i].rest;
}

void packed_expand(real *out, const PackedMatrix *matrix, int first, int count) {
#pragma omp parallel for schedule(static) if (count > 64)
    for (int i = 0; i < count; i++) expand_row(out + (size_t)i * (size_t)matrix->columns, matrix, first + i);
}

// ---- the product

static void dot_rows(real sums[STREAMS], const PackedMatrix *matrix, const MatvecInput *input,
                     const int numbers[STREAMS]) {
    const void *rows[STREAMS];
    for (int i = 0; i < STREAMS; i++) rows[i] = row_data(matrix, numbers[i]);
    matrix->format->dot(sums, rows, input, matrix->columns);
    for (int i = 0; i < STREAMS; i++) sums[i] *= matrix->scales[numbers[i]];
}

static void add_rests(real *out, const PackedMatrix *matrix, const MatvecInput *input, RowRange range) {
    if (!matrix->first_rest) return;
    for (int i = matrix->first_rest[range.first]; i < matrix->first_rest[range.last]; i++) {
        const PackedRest *rest = &matrix->rests[i];
        out[rest->row] += rest->rest * (input->numbers[rest->column] * input->shrink);
    }
}

// A thread's rows are cut into STREAMS parts, and one row of each is multiplied at a time. So all parts are read from
// end to end at once: long streams that lie far apart get half as much again out of the memory as rows side by side,
// which end every few kilobytes.
void matvec(real *out, const PackedMatrix *matrix, const MatvecInput *input, const real *bias, const real *residual,
            RowRange range) {
    int part = (range.last - range.first + STREAMS - 1) / STREAMS;
    for (int first = range.first; first < range.first + part; first++) {
        real sums[STREAMS];
        int rows[STREAMS]; // past the end the last one again, whose sum is not used
        for (int i = 0; i < STREAMS; i++) rows[i] = first + i * part < range.last ? first + i * part : range.last - 1;
        dot_rows(sums, matrix, input, rows);
        for (int i = 0, r = first; i < STREAMS && r < range.last; i++, r += part)
            out[r] = sums[i] + (bias ? bias[r] : 0) + (residual ? residual[r] : 0);
    }
    add_rests(out, matrix, input, range);
}
