// Included before every .cu file that cudacc compiles: what nvcc knows without being told. Types and host functions
// come from NVIDIA's own headers, compiled as plain C++, so that a call they would refuse is refused here too.
#ifndef CUDA_ON_CPU_H
#define CUDA_ON_CPU_H

// These two must survive the preprocessor: rewrite_cuda.py looks for them.
#define __shared__ __shared__
#define __global__ __global__

// cuda_bf16.h and cuda_fp16.h give their shuffles and cached loads only to nvcc; ours below are templates for all
// types.
#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// Limits for nvcc's register allocation; they mean nothing here.
#ifndef __launch_bounds__
#define __launch_bounds__(...)
#endif

#include "device_threads.h"
#include "device_atomics.h"
#include "device_math.h"
#include "kernel_launch.h"
#ifdef CUDA_ON_CPU_MUTANTS
#include "mutants.h"
#endif

#endif
