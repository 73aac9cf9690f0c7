/*
A matrix product as most libraries do it. A block of c, BLOCK_ROWS x BLOCK_COLUMNS, stays in registers while a column of a
and a row of b are multiplied at a time. For that both are copied ("packed") into panels in which the numbers lie in just
that order: panels of b are DEPTH rows of BLOCK_COLUMNS numbers, and one at a time stays in the first cache; panels of a
are DEPTH columns of BLOCK_ROWS numbers, and STRIP_ROWS of them stay in the second.

What makes the difference is the innermost loop. Unrolled four times, it has so little besides its multiplications that
even half a core's width, which is what a neighbour on the same core leaves, is nearly enough for it.
*/
#include "product.h"
#include "core/base/memory.h"
#include "vectors.h"

#include <omp.h>

enum {
    BLOCK_ROWS = LANES == 8 ? 6 : 4, // with 2 vectors each: 12 of the 16 registers are sums (in double 8)
    BLOCK_COLUMNS = 2 * LANES,
    DEPTH = 256,
    STRIP_ROWS = 96,     // a multiple of BLOCK_ROWS
    STRIP_COLUMNS = 1536 // a multiple of BLOCK_COLUMNS
};
static const double SMALL = 1 << 20; // multiplications that are not worth waking another thread for

static int smaller(int a, int b) {
    return a < b ? a : b;
}

// ---- packing

// `width` rows of x, from `depth` columns, to out (depth, width). Up to LANES numbers behind its end are overwritten.
static inline __attribute__((always_inline)) void pack_panel(real *out, Strided x, int depth, int width) {
    if (x.row == 1) {
        for (int p = 0; p < depth; p++) // in order: what a vector writes too much the next one overwrites
            for (int i = 0; i < width; i += LANES)
                *(Vector *)(out + p * width + i) = *(const Vector *)(x.at + p * x.column + i);
        return;
    }
    int whole = depth / LANES * LANES;
    for (int i = 0; i < width; i += LANES)
        for (int p = 0; p < whole; p += LANES) {
            Vector rows[LANES];
#pragma GCC unroll 8
            for (int r = 0; r < LANES; r++)
                rows[r] = i + r < width ? *(const Vector *)(x.at + (i + r) * x.row + p) : (Vector){0};
            transpose_square(rows);
#pragma GCC unroll 8
            for (int r = 0; r < LANES; r++) *(Vector *)(out + (p + r) * width + i) = rows[r];
        }
    for (int p = whole; p < depth; p++)
        for (int i = 0; i < width; i++) out[p * width + i] = x.at[i * x.row + p];
}

// The last rows, fewer than `width`, filled up with zeros.
static void pack_rest(real *out, Strided x, int rows, int depth, int width) {
    for (int p = 0; p < depth; p++)
        for (int i = 0; i < width; i++) out[p * width + i] = i < rows ? x.at[i * x.row + p * x.column] : 0;
}

// All rows of x, in panels of `width`.
static inline __attribute__((always_inline)) void pack(real *out, Strided x, int rows, int depth, int width) {
    int vectors =
        (width + LANES - 1) / LANES * LANES; // a row of a panel is read in whole vectors where it is contiguous
    for (int i = 0; i < rows; i += width, out += (ptrdiff_t)width * depth) {
        Strided panel = {x.at + i * x.row, x.row, x.column};
        if (rows - i >= (x.row == 1 ? vectors : width))
            pack_panel(out, panel, depth, width);
        else
            pack_rest(out, panel, smaller(rows - i, width), depth, width);
    }
}

static __attribute__((noinline)) void pack_a(real *out, Strided a, int rows, int depth) {
    pack(out, a, rows, depth, BLOCK_ROWS);
}

static __attribute__((noinline)) void pack_b(real *out, Strided b, int depth, int columns) {
    pack(out, (Strided){b.at, b.column, b.row}, columns, depth, BLOCK_COLUMNS);
}

// ---- multiplying

static inline __attribute__((always_inline)) void multiply(real *c, ptrdiff_t c_row, const real *a, const real *b,
                                                           int depth, int accumulate) {
    Vector sum[BLOCK_ROWS][2];
    for (int r = 0; r < BLOCK_ROWS; r++) {
        sum[r][0] = sum[r][1] = (Vector){0};
        __builtin_prefetch(c + r * c_row, 1), __builtin_prefetch(c + r * c_row + BLOCK_COLUMNS - 1, 1);
    }
#pragma GCC unroll 4 // and not the loops around it: gcc 12 would run out of registers
    for (int p = 0; p < depth; p++) {
        Vector b0 = *(const Vector *)(b + p * BLOCK_COLUMNS), b1 = *(const Vector *)(b + p * BLOCK_COLUMNS + LANES);
#pragma GCC unroll 6
        for (int r = 0; r < BLOCK_ROWS; r++) {
            sum[r][0] += a[p * BLOCK_ROWS + r] * b0;
            sum[r][1] += a[p * BLOCK_ROWS + r] * b1;
        }
    }
    for (int r = 0; r < BLOCK_ROWS; r++) {
        Vector *row = (Vector *)(c + r * c_row);
        if (accumulate)
            row[0] += sum[r][0], row[1] += sum[r][1];
        else
            row[0] = sum[r][0], row[1] = sum[r][1];
    }
}

// A whole block of c.
static __attribute__((noinline)) void multiply_block(real *c, ptrdiff_t c_row, const real *a, const real *b, int depth,
                                                     int accumulate) {
    if (accumulate)
        multiply(c, c_row, a, b, depth, 1);
    else
        multiply(c, c_row, a, b, depth, 0);
}

// A block at the edge of c, of which only so many rows and columns are there.
static void multiply_edge(real *c, ptrdiff_t c_row, const real *a, const real *b, int depth, int accumulate, int rows,
                          int columns) {
    real block[BLOCK_ROWS * BLOCK_COLUMNS];
    multiply_block(block, BLOCK_COLUMNS, a, b, depth, 0);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++)
            c[i * c_row + j] = (accumulate ? c[i * c_row + j] : 0) + block[i * BLOCK_COLUMNS + j];
}

// c (rows, columns) from packed a and b.
static void multiply_strip(real *c, ptrdiff_t c_row, const real *a, const real *b, int rows, int columns, int depth,
                           int accumulate) {
    for (int j = 0; j < columns; j += BLOCK_COLUMNS)
        for (int i = 0; i < rows; i += BLOCK_ROWS) {
            real *block = c + i * c_row + j;
            const real *a_panel = a + (ptrdiff_t)i * depth, *b_panel = b + (ptrdiff_t)j * depth;
            if (rows - i >= BLOCK_ROWS && columns - j >= BLOCK_COLUMNS)
                multiply_block(block, c_row, a_panel, b_panel, depth, accumulate);
            else
                multiply_edge(block, c_row, a_panel, b_panel, depth, accumulate, smaller(rows - i, BLOCK_ROWS),
                              smaller(columns - j, BLOCK_COLUMNS));
        }
}

// ---- the whole product

// Room for the panels of one thread, kept for the next product.
static real *panel_space(void) {
    static _Thread_local real *space;
    enum { COUNT = DEPTH * (STRIP_ROWS + STRIP_COLUMNS) + 2 * LANES };
    if (!space) space = memory_allocate(COUNT, sizeof *space, "the panels of a matrix product");
    return space;
}

// The part of one thread.
static void multiply_part(real *c, ptrdiff_t c_row, Strided a, Strided b, int m, int n, int k, int accumulate) {
    real *a_panels = panel_space(), *b_panels = a_panels + DEPTH * STRIP_ROWS + LANES;
    for (int j = 0; j < n; j += STRIP_COLUMNS)
        for (int p = 0; p < k; p += DEPTH) {
            int columns = smaller(STRIP_COLUMNS, n - j), depth = smaller(DEPTH, k - p);
            pack_b(b_panels, (Strided){b.at + p * b.row + j * b.column, b.row, b.column}, depth, columns);
            for (int i = 0; i < m; i += STRIP_ROWS) {
                int rows = smaller(STRIP_ROWS, m - i);
                pack_a(a_panels, (Strided){a.at + i * a.row + p * a.column, a.row, a.column}, rows, depth);
                multiply_strip(c + i * c_row + j, c_row, a_panels, b_panels, rows, columns, depth, accumulate || p > 0);
            }
        }
}

// From where to where the part of one of `parts` reaches, in whole blocks.
static void cut(int *first, int *last, int size, int block, int part, int parts) {
    long blocks = (size + block - 1) / block;
    *first = smaller(size, (int)(blocks * part / parts) * block);
    *last = smaller(size, (int)(blocks * (part + 1) / parts) * block);
}

// Into how many parts the rows of c are cut, a divisor of `threads`; the columns are cut into the others. The largest
// part decides the time: its multiplications, and the packing of its rows and columns, which costs about as much as
// PACKING multiplications for each number.
static int parts_of_rows(int m, int n, int threads) {
    enum { PACKING = 8 };
    double least = 0;
    int best = 1;
    for (int parts = 1; parts <= threads; parts++) {
        if (threads % parts != 0) continue;
        double rows = (m + BLOCK_ROWS - 1) / BLOCK_ROWS, columns = (n + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS;
        rows = ceil(rows / parts) * BLOCK_ROWS, columns = ceil(columns * parts / threads) * BLOCK_COLUMNS;
        double cost = rows * columns + PACKING * (rows + columns);
        if (parts == 1 || cost < least) least = cost, best = parts;
    }
    return best;
}

void product(real *c, ptrdiff_t c_row, Strided a, Strided b, int m, int n, int k, int accumulate) {
    int threads = (double)m * n * k < SMALL ? 1 : omp_get_max_threads();
#pragma omp parallel num_threads(threads)
    {
        int parts = omp_get_num_threads(), row_parts = parts_of_rows(m, n, parts), column_parts = parts / row_parts;
        int top, bottom, left, right;
        cut(&top, &bottom, m, BLOCK_ROWS, omp_get_thread_num() / column_parts, row_parts);
        cut(&left, &right, n, BLOCK_COLUMNS, omp_get_thread_num() % column_parts, column_parts);
        if (top < bottom && left < right)
            multiply_part(c + top * c_row + left, c_row, (Strided){a.at + top * a.row, a.row, a.column},
                          (Strided){b.at + left * b.column, b.row, b.column}, bottom - top, right - left, k,
                          accumulate);
    }
}
