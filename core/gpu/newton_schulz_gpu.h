// core/math/newton_schulz.h's iteration on the device, in floatX: it only has to be roughly right.
#ifndef CORE_NEWTON_SCHULZ_GPU_H
#define CORE_NEWTON_SCHULZ_GPU_H

#include "arena_gpu.h"
#include "cuda_common.h"

typedef struct {         // scratch for matrices of at most `count` numbers and `side` in the smaller direction
    floatX *next;        // (count)
    floatX *gram, *poly; // (side,side)
    double *parts;       // of the norm
} NewtonSchulzGPU;

void newton_schulz_gpu_plan(NewtonSchulzGPU *scratch, ArenaGPU *arena, size_t count, size_t side);
// x (rows,columns), in place.
void newton_schulz_gpu(floatX *x, int rows, int columns, const NewtonSchulzGPU *scratch, cudaStream_t stream);

#endif
