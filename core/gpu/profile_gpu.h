// Where the time goes on the GPU: named ranges on Nsight's time line (NVTX), and --profile's table.
#ifndef CORE_PROFILE_GPU_H
#define CORE_PROFILE_GPU_H

#include "cuda_common.h"

extern "C" {
#include "core/base/profile.h"
}

#include <nvtx3/nvToolsExt.h>

static bool profiling; // --profile

// A range for as long as the object lives. With --profile the clock is read where work begins, and the host
// waits for the device there, so that the reading means something.
struct NamedRange {
    NamedRange(const char *name, Work work, cudaStream_t stream) {
        nvtxRangePushA(name);
        if (!profiling) return;
        cuda_check(cudaStreamSynchronize(stream));
        profile_work(work);
    }
    ~NamedRange() { nvtxRangePop(); }
};

#endif
