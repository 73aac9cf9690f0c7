// Muon's step on the device: core/ranks/muon.h says what it is. The directions stand where the gradients were.
#ifndef CORE_MUON_GPU_H
#define CORE_MUON_GPU_H

#include "core/gpu/adamw_gpu.h"
#include "core/gpu/newton_schulz_gpu.h"
#include "parameters_gpu.h"

typedef struct {    // scratch
    floatX *matrix; // the one at hand
    NewtonSchulzGPU newton_schulz;
} MuonGPU;

typedef struct {
    float momentum, rate;
    float keep;             // 1 - AdamW's rate * weight decay
    uint64_t key;           // of the rounding
    const StepState *state; // on the device: the clip factor, and whether the step is taken
} MuonStepGPU;

void muon_gpu_plan(MuonGPU *muon, ArenaGPU *arena, int C);
// What of a range of the flat arrays is Muon's; nothing of it, at its end, when AdamW is alone.
Range muon_gpu_share(const ParametersGPU *parameters, Range range);
void muon_gpu_step(const MuonGPU *muon, const ParametersGPU *parameters, ExchangeGPU *exchange, const MuonStepGPU *step,
                   cudaStream_t stream);

#endif
