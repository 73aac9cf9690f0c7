// The GPU's name and its peak rate in dense matrix products, for the share-of-peak figure.
#ifndef CORE_GPU_PEAK_H
#define CORE_GPU_PEAK_H

const char *gpu_device_name(void);           // "NVIDIA A100-SXM4-80GB, bf16"
double gpu_peak_by_name(const char *device); // from NVIDIA's data sheets; 0: not known
// From NVIDIA's data sheets for a GPU that is known by name, else measured by a large product; in GFLOP/s.
double gpu_peak_gflops(void);

#endif
