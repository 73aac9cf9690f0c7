"""What is assumed of the GPUs, every number in this one place with where it comes from. Nothing here was measured by
us.

[sheet]  NVIDIA's data sheets: A100 80 GB SXM, H100 SXM, RTX 5090 (which is sm_120), B200 (sm_100)
[guide]  CUDA C++ Programming Guide, "Arithmetic Instructions": results per clock and multiprocessor
[paper]  named beside the number
[guess]  ours, and said to be one on the page"""

import os

# Those that kernels were compiled for: make cuda-report CUDA_ARCH=80 makes a page of one in a quarter of the time.
ARCHITECTURES = os.environ.get("CUDA_ARCH", "80 90 100 120").split()
# Per multiprocessor: 32-bit registers, threads, bytes of shared memory, blocks. [guide]
LIMITS = {"80": (65536, 2048, 164 << 10, 32), "90": (65536, 2048, 228 << 10, 32),
          "100": (65536, 2048, 228 << 10, 32), "120": (65536, 1536, 100 << 10, 24)}

# The GPUs of the step model. Bytes and dense operations per second, multiprocessors, hertz: [sheet].
GPUS = {
    "A100": {"arch": "80", "memory": 2.039e12, "bf16": 312e12, "tf32": 156e12, "fp32": 19.5e12, "processors": 108,
             "clock": 1.41e9},
    "H100": {"arch": "90", "memory": 3.35e12, "bf16": 989e12, "tf32": 495e12, "fp32": 67e12, "processors": 132,
             "clock": 1.83e9},
}

GPUS = {name: numbers for name, numbers in GPUS.items() if numbers["arch"] in ARCHITECTURES}

# Cycles for which one warp's mma.sync m16n8k16 in bf16 (2048 multiply-adds) holds the tensor cores of its quarter of a
# multiprocessor; other shapes and TF32, at half the rate, in proportion.
#   80: 256 multiply-adds a cycle and quarter = 312 TFLOP/s over 108 x 4 quarters at 1.41 GHz: 8. [sheet]
#   90: wgmma's 989 TFLOP/s would be 4; mma.sync reaches 62 % of it (Luo et al., arXiv 2402.13499): 6.5. [paper]
#  100: nothing published for mma.sync was found; as on 90. [guess]
#  120: 209.5 TFLOP/s with fp32 sums over 170 x 4 quarters at 2.41 GHz: 32. [sheet]
MMA_CYCLES = {"80": 8.0, "90": 6.5, "100": 6.5, "120": 32.0}

# Cycles for which one warp's instruction holds a unit of its quarter, = 32 lanes / (results per clock / 4). [guide]
#   fp32 multiply-adds: 64 a clock on 80, 128 from 90 on. Integers, comparisons, conversions to bf16: 64.
#   exponentials, roots, reciprocals, int-float conversions: 16. Shuffles: 32, by the shared memory's unit.
FMA_CYCLES = {"80": 2, "90": 1, "100": 1, "120": 1}
ALU_CYCLES = 2
IMAD_CYCLES = 2
SPECIAL_CYCLES = 8
SHUFFLE_CYCLES = 4
SHARED_BYTES = 32  # of shared memory a clock, for each quarter of a multiprocessor: 128 for all four [guide]
GLOBAL_CYCLES = 4  # of the load and store unit for one access of a warp of 4 bytes a lane: 128 bytes a clock for all four

# How close to its lowest bound a kernel comes, by resident warps of a quarter. [guess]: few warps hide little latency.
# FlashAttention-2 has two warps a quarter and reaches 61 % of A100's peak forward (arXiv 2307.08691, figure 5).
SHARE_OF_BOUND = ((1, 0.50), (2, 0.65), (3, 0.72), (4, 0.80), (8, 0.85))
SHARE_OF_MEMORY = 0.88  # of a data sheet's bandwidth, for kernels that stream: what copies reach on both. [guess]
LAUNCH_SECONDS = 2.5e-6  # from one kernel's end to the next one's first blocks, in one stream. [guess]

# Matrix products of the layers by cuBLAS, as a share of the dense bf16 peak, K = 768 to 3072.
#   A100: chosen so that the model gives llm.c's published speed for softmax by cuDNN: 10 billion tokens in 90 minutes on
#   8 A100 (llm.c, discussion 481), 231 thousand tokens/s each with what the exchange between them costs.
#   H100: no such figure at 124M was found. [guess]
GEMM_SHARE = {"A100": 0.72, "H100": 0.55}
ANCHOR = 231e3  # tokens per second of that A100

# cuDNN's fused causal softmax, head 64, forward and backward together, operations per second by tokens of a row.
#   A100: FlashAttention-2 as its paper has it (arXiv 2307.08691, figure 4, causal, head 64: 119 at 1k, 156 at 4k).
#   H100: between FlashAttention-2's there (figure 7) and -3's (arXiv 2407.08608, figures 5 and 6). [guess]
CUDNN_RATE = {"A100": {1024: 119e12, 4096: 156e12}, "H100": {1024: 220e12, 4096: 330e12}}


def share_of_bound(warps_of_quarter):
    return [share for warps, share in SHARE_OF_BOUND if warps <= max(warps_of_quarter, 1)][-1]


def occupancy(arch, registers, shared, threads):
    """Resident blocks of a multiprocessor, and what limits them."""
    all_registers, most_threads, all_shared, most_blocks = LIMITS[arch]
    warps = -(-threads // 32)
    per_warp = -(-registers * 32 // 256) * 256
    blocks = {"registers": all_registers // (per_warp * warps), "threads": most_threads // (warps * 32),
              "shared memory": all_shared // (shared + 1024), "blocks": most_blocks}
    limit = min(blocks, key=blocks.get)
    return blocks[limit], limit
