#include "muon.h"
#include "core/math/newton_schulz.h"

#include <string.h>

void muon_directions(Parameter *updated, int count, real momentum, real gradient_scale) {
#pragma omp parallel
    for (int i = 0; i < count; i++) {
        real *m = updated[i].m, *gradient = updated[i].gradient;
        size_t numbers = updated[i].muon_blocks ? updated[i].count : 0;
#pragma omp for simd schedule(static) nowait
        for (size_t j = 0; j < numbers; j++) {
            real g = gradient[j] * gradient_scale;
            m[j] = momentum * m[j] + (1 - momentum) * g;
            gradient[j] = momentum * m[j] + (1 - momentum) * g;
        }
    }
}

// Whether this rank updates some part of the tensor.
static int is_needed(const Parameter *whole, const Parameter *updated, int count) {
    for (int i = 0; i < count; i++)
        if (updated[i].value >= whole->value && updated[i].value < whole->value + whole->count) return 1;
    return 0;
}

// One of the matrices that stand side by side in x, whose rows are `stride` apart. x: (rows,columns), made orthogonal
// in the scratch and scaled.
static void orthogonalize_block(real *x, int rows, int columns, int stride, real *work) {
    real *block = work, scale = columns > rows ? real_sqrt((real)columns / (real)rows) : 1; // columns are the outputs
    for (int r = 0; r < rows; r++)
        memcpy(block + (size_t)r * (size_t)columns, x + (size_t)r * (size_t)stride, (size_t)columns * sizeof *x);
    newton_schulz(block, rows, columns, work + (size_t)rows * (size_t)columns);
#pragma omp parallel for schedule(static)
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++)
            x[(size_t)r * (size_t)stride + (size_t)c] = scale * block[(size_t)r * (size_t)columns + (size_t)c];
}

void muon_orthogonalize(const Parameter *whole, int whole_count, const Parameter *updated, int count, real *work) {
    for (int i = 0; i < whole_count; i++) {
        const Parameter *p = &whole[i];
        if (!p->muon_blocks || !is_needed(p, updated, count)) continue;
        int rows = (int)p->shape[0], stride = (int)p->shape[1], columns = stride / p->muon_blocks;
        for (int b = 0; b < p->muon_blocks; b++)
            orthogonalize_block(p->gradient + (size_t)b * (size_t)columns, rows, columns, stride, work);
    }
}

void muon_apply(Parameter *updated, int count, real rate, real keep) {
#pragma omp parallel
    for (int i = 0; i < count; i++) {
        real *value = updated[i].value;
        const real *direction = updated[i].gradient;
        size_t numbers = updated[i].muon_blocks ? updated[i].count : 0;
#pragma omp for simd schedule(static) nowait
        for (size_t j = 0; j < numbers; j++) value[j] = value[j] * keep - rate * direction[j];
    }
}

// The largest matrices are (C,4C) and (4C,C).
size_t muon_work(int C) {
    return 4 * (size_t)C * (size_t)C + newton_schulz_work(C, 4 * C);
}
