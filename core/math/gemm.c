/*
A matrix product as most libraries do it. The micro-kernel multiplies a column of a and a row of b at a time, so both
are copied ("packed") into panels in which the numbers lie in just that order: panels of b are DEPTH rows of
PANEL_COLUMNS numbers, and one at a time stays in the first cache; panels of a are DEPTH columns of PANEL_ROWS numbers,
and STRIP_ROWS of them stay in the second.
*/
#include "gemm.h"
#include "core/base/memory.h"
#include "core/base/numbers.h"
#include "microkernel.h"

#include <omp.h>

enum {
    PANEL_ROWS = LANES < BLOCK_ROWS ? LANES : BLOCK_ROWS, // packing writes a whole vector at a time
    PANEL_COLUMNS = BLOCK_COLUMNS,
    DEPTH = 256,
    STRIP_ROWS = 96,     // a multiple of PANEL_ROWS
    STRIP_COLUMNS = 1536 // a multiple of PANEL_COLUMNS
};
_Static_assert(STRIP_ROWS % PANEL_ROWS == 0 && STRIP_COLUMNS % PANEL_COLUMNS == 0, "strips are whole panels");
static const double SMALL = 1 << 20; // multiplications that are not worth waking another thread for

// ---- packing

// `width` rows of x, from `depth` columns, to out (depth, width). Up to LANES numbers after its end are overwritten.
static inline __attribute__((always_inline)) void pack_panel(real *out, Strided x, int depth, int width) {
    if (x.row == 1) {
        for (int p = 0; p < depth; p++) // in order: the next one overwrites what a vector writes too much
            for (int i = 0; i < width; i += LANES)
                *(Vector *)(out + p * width + i) = *(const Vector *)(x.at + p * x.column + i);
        return;
    }
    int whole = depth / LANES * LANES;
    for (int i = 0; i < width; i += LANES)
        for (int p = 0; p < whole; p += LANES) {
            Vector rows[LANES];
#pragma GCC unroll 16
            for (int r = 0; r < LANES; r++)
                rows[r] = i + r < width ? *(const Vector *)(x.at + (i + r) * x.row + p) : (Vector){0};
            transpose_square(rows);
#pragma GCC unroll 16
            for (int r = 0; r < LANES; r++) *(Vector *)(out + (p + r) * width + i) = rows[r];
        }
    for (int p = whole; p < depth; p++)
        for (int i = 0; i < width; i++) out[p * width + i] = x.at[i * x.row + p];
}

// The last rows, fewer than `width`, padded with zeros.
static void pack_rest(real *out, Strided x, int rows, int depth, int width) {
    for (int p = 0; p < depth; p++)
        for (int i = 0; i < width; i++) out[p * width + i] = i < rows ? x.at[i * x.row + p * x.column] : 0;
}

// All rows of x, in panels of `width`.
static inline __attribute__((always_inline)) void pack(real *out, Strided x, int rows, int depth, int width) {
    int vectors = (int)round_up(width, LANES); // a row of a panel is read in whole vectors where it is contiguous
    for (int i = 0; i < rows; i += width, out += (ptrdiff_t)width * depth) {
        Strided panel = {x.at + i * x.row, x.row, x.column};
        if (rows - i >= (x.row == 1 ? vectors : width))
            pack_panel(out, panel, depth, width);
        else
            pack_rest(out, panel, min_int(rows - i, width), depth, width);
    }
}

static __attribute__((noinline)) void pack_a(real *out, Strided a, int rows, int depth) {
    pack(out, a, rows, depth, PANEL_ROWS);
}

static __attribute__((noinline)) void pack_b(real *out, Strided b, int depth, int columns) {
    pack(out, (Strided){b.at, b.column, b.row}, columns, depth, PANEL_COLUMNS);
}

// ---- multiplying

// A whole block of c.
static __attribute__((noinline)) void multiply_panels(real *c, ptrdiff_t c_row, const real *a, const real *b, int depth,
                                                      int accumulate) {
    Block block = {c, a, b, c_row, 1, PANEL_ROWS, PANEL_COLUMNS, depth};
    for (int r = 0; r < PANEL_ROWS; r++)
        __builtin_prefetch(c + r * c_row, 1), __builtin_prefetch(c + r * c_row + PANEL_COLUMNS - 1, 1);
    multiply_block(block, PANEL_ROWS, BLOCK_VECTORS, accumulate ? SUM_IS_ADDED : SUM_OVERWRITES);
}

// A block at the edge of c, of which only some rows and columns exist.
static void multiply_edge(real *c, ptrdiff_t c_row, const real *a, const real *b, int depth, int accumulate, int rows,
                          int columns) {
    real block[PANEL_ROWS * PANEL_COLUMNS];
    multiply_panels(block, PANEL_COLUMNS, a, b, depth, 0);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++)
            c[i * c_row + j] = (accumulate ? c[i * c_row + j] : 0) + block[i * PANEL_COLUMNS + j];
}

// c (rows, columns) from packed a and b.
static void multiply_strip(real *c, ptrdiff_t c_row, const real *a, const real *b, int rows, int columns, int depth,
                           int accumulate) {
    for (int j = 0; j < columns; j += PANEL_COLUMNS)
        for (int i = 0; i < rows; i += PANEL_ROWS) {
            real *block = c + i * c_row + j;
            const real *a_panel = a + (ptrdiff_t)i * depth, *b_panel = b + (ptrdiff_t)j * depth;
            if (rows - i >= PANEL_ROWS && columns - j >= PANEL_COLUMNS)
                multiply_panels(block, c_row, a_panel, b_panel, depth, accumulate);
            else
                multiply_edge(block, c_row, a_panel, b_panel, depth, accumulate, min_int(rows - i, PANEL_ROWS),
                              min_int(columns - j, PANEL_COLUMNS));
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
            int columns = min_int(STRIP_COLUMNS, n - j), depth = min_int(DEPTH, k - p);
            pack_b(b_panels, (Strided){b.at + p * b.row + j * b.column, b.row, b.column}, depth, columns);
            for (int i = 0; i < m; i += STRIP_ROWS) {
                int rows = min_int(STRIP_ROWS, m - i);
                pack_a(a_panels, (Strided){a.at + i * a.row + p * a.column, a.row, a.column}, rows, depth);
                multiply_strip(c + i * c_row + j, c_row, a_panels, b_panels, rows, columns, depth, accumulate || p > 0);
            }
        }
}

// Where one of `parts` parts begins and ends, in whole blocks.
static void cut(int *first, int *last, int size, int block, int part, int parts) {
    long blocks = (size + block - 1) / block;
    *first = min_int(size, (int)(blocks * part / parts) * block);
    *last = min_int(size, (int)(blocks * (part + 1) / parts) * block);
}

// Into how many parts the rows of c are cut, a divisor of `threads`; the columns are cut to make up the rest. The
// largest part decides the time: its multiplications, and the packing of its rows and columns, which costs about as
// much as PACKING multiplications for each number.
static int parts_of_rows(int m, int n, int threads) {
    enum { PACKING = 8 };
    double least = 0;
    int best = 1;
    for (int parts = 1; parts <= threads; parts++) {
        if (threads % parts != 0) continue;
        double rows = (m + PANEL_ROWS - 1) / PANEL_ROWS, columns = (n + PANEL_COLUMNS - 1) / PANEL_COLUMNS;
        rows = ceil(rows / parts) * PANEL_ROWS, columns = ceil(columns * parts / threads) * PANEL_COLUMNS;
        double cost = rows * columns + PACKING * (rows + columns);
        if (parts == 1 || cost < least) least = cost, best = parts;
    }
    return best;
}

void gemm(real *c, ptrdiff_t c_row, Strided a, Strided b, int m, int n, int k, int accumulate) {
    int threads = (double)m * n * k < SMALL ? 1 : omp_get_max_threads();
#pragma omp parallel num_threads(threads)
    {
        int parts = omp_get_num_threads(), row_parts = parts_of_rows(m, n, parts), column_parts = parts / row_parts;
        int top, bottom, left, right;
        cut(&top, &bottom, m, PANEL_ROWS, omp_get_thread_num() / column_parts, row_parts);
        cut(&left, &right, n, PANEL_COLUMNS, omp_get_thread_num() % column_parts, column_parts);
        if (top < bottom && left < right)
            multiply_part(c + top * c_row + left, c_row, (Strided){a.at + top * a.row, a.row, a.column},
                          (Strided){b.at + left * b.column, b.row, b.column}, bottom - top, right - left, k,
                          accumulate);
    }
}
