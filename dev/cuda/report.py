#!/usr/bin/env python3
"""Static evidence of the GPU code, without a GPU: what ptxas says of every kernel on every architecture, the occupancy that
follows from it, what every kernel moves (counted: dev/cuda_on_cpu executes it and counts) and computes per token, and what
a roofline makes of that on A100 and H100.

Everything on the page that this writes is computed or counted; nothing is measured on a GPU."""

import argparse
import glob
import os
import re
import subprocess
import sys

ARCHITECTURES = ["80", "90", "100", "120"]
# Per multiprocessor: 32-bit registers, threads, bytes of shared memory, blocks.
LIMITS = {"80": (65536, 2048, 164 << 10, 32), "90": (65536, 2048, 228 << 10, 32),
          "100": (65536, 2048, 228 << 10, 32), "120": (65536, 1536, 100 << 10, 24)}
# Data sheets: bytes per second, dense bf16 operations per second with fp32 sums, fp32 operations per second.
GPUS = {"A100 80 GB SXM": (2.039e12, 312e12, 19.5e12), "H100 SXM": (3.35e12, 989e12, 67e12)}
DEFAULT_THREADS = 256


def occupancy(arch, registers, shared, threads):
    """Resident threads as a share of the most, and what limits them."""
    all_registers, most_threads, all_shared, most_blocks = LIMITS[arch]
    warps = -(-threads // 32)
    per_warp = -(-registers * 32 // 256) * 256
    blocks = {"registers": all_registers // (per_warp * warps), "threads": most_threads // (warps * 32),
              "shared memory": all_shared // (shared + 1024), "blocks": most_blocks}
    limit = min(blocks, key=blocks.get)
    return blocks[limit] * warps * 32 / most_threads, limit


def run(command, with_errors=False, **options):
    result = subprocess.run(command, capture_output=True, text=True, **options)
    if result.returncode != 0:
        sys.exit("%s\n%s" % (" ".join(command), result.stderr[-2000:]))
    return result.stdout + (result.stderr if with_errors else "")


def compiler_words(objects, source):
    """What ptxas said of one file for all architectures when `make cuda` compiled it."""
    path = os.path.join(objects, source.replace(".cu", ".ptxas"))
    if not os.path.exists(path):
        sys.exit("%s is missing; run make cuda-report" % path)
    return open(path).read()


def parse(text):
    """{mangled name: {arch: (registers, spilled bytes, shared bytes)}}"""
    kernels, current = {}, None
    for line in text.splitlines():
        found = re.search(r"Compiling entry function '(\w+)' for 'sm_(\d+)", line)
        if found:
            current, spill = found.groups(), 0
        found = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line)
        if found:
            spill = int(found.group(1)) + int(found.group(2))
        found = re.search(r"Used (\d+) registers", line)
        if found and current:
            shared = re.search(r"(\d+) bytes smem", line)
            kernels.setdefault(current[0], {})[current[1]] = (int(found.group(1)), spill, int(shared.group(1)) if shared else 0)
    return kernels


def demangle(names):
    text = run(["c++filt", "-p"], input="\n".join(names)) if names else ""
    return dict(zip(names, (re.sub(r"\((?:int|bool|Normalizer)\)", "", line.replace("void ", "")) for line in text.splitlines())))


def kernel_table(out, args):
    sources = [f for f in ["train_gpt2.cu", "sample_gpt2.cu"] + sorted(glob.glob("core/*.cu")) + sorted(glob.glob("attention/*.cu"))
               if not os.path.basename(f).startswith("test_")]
    texts = [compiler_words(args.objects, source) for source in sources]
    sizes = [line.rsplit(" ", 2) for line in launch_sizes(args).splitlines()]
    out.append("| kernel | threads | " + " | ".join("sm_%s" % a for a in ARCHITECTURES) + " |")
    out.append("|---|---:|" + "---|" * len(ARCHITECTURES))
    spilling, seen = 0, set()
    for source, text in zip(sources, texts):
        kernels = {name: numbers for name, numbers in parse(text).items() if name not in seen}  # sample_gpt2.cu includes train_gpt2.cu
        seen.update(kernels)
        names = demangle(sorted(kernels))
        if not kernels:
            continue
        out.append("| **%s** | |%s" % (source, " |" * len(ARCHITECTURES)))
        for mangled in sorted(kernels, key=lambda k: names[k]):
            threads, dynamic = DEFAULT_THREADS, 0
            for pattern, size_threads, size_bytes in sizes:
                if re.fullmatch(pattern, names[mangled]):
                    threads, dynamic = int(size_threads), int(size_bytes)
            cells = []
            for arch in ARCHITECTURES:
                registers, spill, shared = kernels[mangled].get(arch, (0, 0, 0))
                share, limit = occupancy(arch, max(registers, 1), shared + dynamic, threads)
                spilling += spill > 0
                cells.append("%d regs, %s%.1f KB, %.0f%%%s" % (
                    registers, "**spills %d B**, " % spill if spill else "", (shared + dynamic) / 1024, 100 * share,
                    "" if share == 1 else " (%s)" % limit))
            out.append("| `%s` | %d | %s |" % (names[mangled], threads, " | ".join(cells)))
    out.append("")
    out.append("Kernels with spills, counted per architecture: %d." % spilling)


def launch_sizes(args):
    program = os.path.join(args.build, "launch_sizes")
    run([args.nvcc, "-std=c++17", "-arch=sm_80", "-I.", "-DPRECISION_BF16", "dev/cuda/launch_sizes.cu", "core/cuda_common.cu", "-lcublas", "-o", program])
    return run([program])


def roofline(bytes_moved, products, other):
    """Seconds on each GPU: the largest of memory, tensor cores and plain arithmetic."""
    return [max(bytes_moved / bandwidth, products / tensor + other / plain) for bandwidth, tensor, plain in GPUS.values()]


# Arithmetic of our kernels, read off the source: bytes of the numbers that it mostly loads and stores, and operations per
# such number (an exponential counts as ten). With the count of numbers requested this makes the operations.
ARITHMETIC = {
    "embedding_forward_kernel": (2, 1 / 3), "layernorm_forward_kernel": (2, 1.5), "layernorm_backward_kernel": (2, 2),
    "token_gradient_kernel": (2, 1), "position_gradient_kernel": (2, 1), "classifier_kernel": (2, 12),
    "gelu_forward_kernel": (2, 10), "gelu_backward_kernel": (2, 12), "sum_rows_kernel": (4, 1), "add_kernel": (4, 1 / 3),
    "sum_losses_kernel": (4, 1), "sum_squares_kernel": (4, 2), "finish_norm_kernel": (8, 1), "adamw_kernel": (4, 3),
    "round_weights_kernel": (4, 4),
    "load_kernel": (4, 0.5), "store_gradient_kernel": (4, 0), "output_kernel": (4, 0.5), "load_output_gradient_kernel": (4, 1),
    "expand_kernel": (4, 1 / 3), "contract_kernel": (4, 1), "scan_kernel": (4, 0.5), "score_kernel": (4, 0.5),
    "score_gradient_kernel": (4, 1), "decode_kernel": (4, 1.5), "running_max_kernel": (4, 1), "relative_scale_kernel": (4, 5),
    "scale_shares_kernel": (2, 1), "scale_gradient_kernel": (4, 1), "keep_scale_kernel": (4, 0),
}
OTHERWISE = (4, 5)  # the feature maps: an exponential or a few products for every two numbers
MATRIX_KERNELS = ("attend", "differentiate", "decode")  # quadratic attention: the arithmetic is the attention's own count
LINEAR_TOKENS, QUADRATIC_TOKENS, MODEL_TOKENS = 3072, 512, 256


def traffic(args, *arguments):
    """{kernel or library call: (launches, bytes moved, bytes requested)} of one run in count mode."""
    path = os.path.join(args.build, "_".join(["traffic"] + [str(a) for a in arguments]) + ".tsv")
    if not os.path.exists(path) or os.path.getmtime(path) < os.path.getmtime(args.traffic):
        run([args.traffic] + [str(a) for a in arguments], env=dict(os.environ, CUDA_ON_CPU_TRAFFIC=path + ".new"))
        os.rename(path + ".new", path)
    found = {}
    for line in open(path):
        name, *numbers = line.rstrip("\n").split("\t")
        launches, read, written, requested_read, requested_written = map(int, numbers)
        name = name.split("<")[0]
        before = found.get(name, (0, 0, 0))
        found[name] = tuple(a + b for a, b in zip(before, (launches, read + written, requested_read + requested_written)))
    return found


def is_library(name):
    return name.startswith("cublas")


def is_quadratic(name):
    return name in ("softmax", "yat", "yat-spherical")


def kernel_rows(out, counted, tokens, flops=None):
    """A table's lines for the kernels of one run; `flops` per token for kernels of matrix products."""
    for name in sorted(counted, key=lambda n: -counted[n][1]):
        launches, moved, requested = counted[name]
        if is_library(name):
            out.append("| %s | | %.0f | | | | | |" % (name, moved / tokens))
            continue
        size, per_number = ARITHMETIC.get(name, OTHERWISE)
        is_matrix = name in MATRIX_KERNELS and flops
        operations = flops if is_matrix else requested / size * per_number / tokens
        seconds = roofline(moved / tokens, operations if is_matrix else 0, 0 if is_matrix else operations)
        bound = ["memory" if moved / tokens / gpu[0] >= s * (1 - 1e-9) else "arithmetic" for s, gpu in zip(seconds, GPUS.values())]
        out.append("| `%s` | %d | %.0f | %.0f | %.0f | %.2f | %s | %s |" % (
            name, launches, moved / tokens, requested / tokens, operations, operations * tokens / max(moved, 1), ", ".join(bound),
            ", ".join("%.3f" % (1e9 * s) for s in seconds)))


HEADER = ["| kernel | launches | bytes moved per token | requested | operations per token | per byte | bound by (A100, H100) | ns per token (A100, H100) |",
          "|---|---:|---:|---:|---:|---:|---|---|"]


def layer_table(out, args):
    """Our kernels in a training step, and what the matrix products between them take at least."""
    counted = traffic(args, "gpt2", MODEL_TOKENS)
    per_step = ("adamw_kernel", "sum_squares_kernel", "finish_norm_kernel", "round_weights_kernel", "sum_losses_kernel")
    ours = {name: row for name, row in counted.items() if not is_library(name) and name not in per_step}
    attention = [n for n in ours if n in ("load_kernel", "output_kernel", "load_output_gradient_kernel", "score_kernel",
                                          "score_gradient_kernel", "store_gradient_kernel", "scan_kernel", "fill_kernel")]
    out += HEADER
    kernel_rows(out, {n: r for n, r in ours.items() if n not in attention}, MODEL_TOKENS)
    parameters = 50304 * 768 + MODEL_TOKENS * 768 + 12 * 768 * 768 + 13 * 768 + 2 * 768
    updating = sum(counted[n][1] for n in per_step if n in counted)
    out.append("")
    out.append("Norm, AdamW and rounding move %.1f bytes per parameter and step (counted): %s ms a step for 124M parameters." % (
        updating / parameters, " and ".join("%.1f (%s)" % (1e3 * 124439808 * updating / parameters / gpu[0], name) for name, gpu in GPUS.items())))
    out += ["", "The matrix products are cuBLASLt's. What they move at least is their operands, once: here by formula, per token; the "
            "weights are left out, for at 64k tokens a step they are below 1%.", "",
            "| product | times | bytes per token | operations per token | operations per byte | bound by (A100, H100) | ns per token (A100, H100) |",
            "|---|---:|---:|---:|---:|---|---|"]
    product_rows(out)


def product_rows(out):
    C, V, L, x = 768, 50257, 12, 2
    rows = [  # name, times per step, bytes per token, operations in products, other operations
        ("qkv with bias", L, 4 * C * x, 6 * C * C, 3 * C),
        ("attention projection with bias", L, 2 * C * x, 2 * C * C, C),
        ("fc with bias and GELU", L, 9 * C * x, 8 * C * C, 40 * C),
        ("fcproj with bias", L, 5 * C * x, 8 * C * C, C),
        ("head: logits", 1, (C + V) * x, 2 * C * V, 0),
        ("head: backward", 1, 2 * (C + V) * x, 4 * C * V, 0),
        ("fcproj backward with GELU's", L, 14 * C * x, 16 * C * C, 40 * C),
        ("fc backward", L, 11 * C * x, 16 * C * C, 4 * C),
        ("attention projection backward", L, 5 * C * x, 4 * C * C, C),
        ("qkv backward", L, 9 * C * x, 12 * C * C, 3 * C),
    ]
    for name, times, moved, products, other in rows:
        seconds = roofline(moved, products, other)
        bound = ["memory" if moved / gpu[0] >= s * (1 - 1e-9) else "arithmetic" for s, gpu in zip(seconds, GPUS.values())]
        out.append("| %s | %d | %.0f | %.0f | %.1f | %s | %s |" % (
            name, times, moved, products + other, (products + other) / moved, ", ".join(bound),
            ", ".join("%.2f" % (1e9 * s) for s in seconds)))


def attention_flops(args, T):
    return {line.split()[0]: float(line.split()[1]) for line in run([args.flops, "256", "8", str(T)]).splitlines()}


def attention_table(out, args):
    """Roofline of the attention module alone, forward, embed 256 with 8 heads, beside the paper's measurements."""
    paper = {"softmax": ("85.6", "out of memory"), "yat-spherical": ("141.4", "out of memory"), "elu": ("18.8", "147.6"),
             "cosformer": ("35.3", "291"), "favor": ("19.4", "155"), "slay": ("19.0", "149.6")}
    out.append("| attention | T | operations per token | bytes moved per token | per byte | estimate A100 | estimate H100 | memory, forward | with backward | paper, A100, measured |")
    out.append("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    moved = {}
    for name in attention_flops(args, 1024):
        tokens = QUADRATIC_TOKENS if is_quadratic(name) else LINEAR_TOKENS
        moved[name] = sum(row[1] for row in traffic(args, "attention", name, "forward", tokens).values()) / tokens
    for T, which in ((16384, 0), (131072, 1)):
        for name, flops in attention_flops(args, T).items():
            products, other = (flops * 0.9, flops * 0.1) if is_quadratic(name) else (flops, 0)
            seconds = roofline(moved[name] * T, products * T, other * T)
            tensor, kept, scratch = map(int, run([args.traffic, "attention", name, "memory", str(T)]).split())
            measured = paper.get(name, ("-", "-"))[which]
            out.append("| %s | %d | %.0f | %.0f | %.1f | %.2f ms | %.2f ms | %.0f MB | %.0f MB | %s |" % (
                name, T, flops, moved[name], flops / moved[name], 1e3 * seconds[0], 1e3 * seconds[1],
                (4 * tensor + kept + scratch) / 1e6, (8 * tensor + kept + scratch) / 1e6,
                measured + (" ms" if measured[0].isdigit() else "") + (", 2442 MB" if name == "slay" and which else "")))


def attention_kernels(out, args):
    for name, flops in attention_flops(args, QUADRATIC_TOKENS).items():
        tokens = QUADRATIC_TOKENS if is_quadratic(name) else LINEAR_TOKENS
        for words, factor in (("forward", 1), ("backward", 2.5), ("decode", 0)):
            steps = 1 if words == "decode" else tokens
            out += ["", "**%s, %s**, %s" % (name, words, "one token behind %d" % (tokens - 1) if words == "decode" else "%d tokens" % tokens), ""]
            out += HEADER
            kernel_rows(out, traffic(args, "attention", name, words, tokens), steps, flops * factor if is_quadratic(name) else None)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--build", default="build/cuda/report")
    parser.add_argument("--flops", default="build/attention_flops")
    parser.add_argument("--traffic", default="build/cuda_on_cpu/count-bf16/traffic")
    parser.add_argument("--objects", default="build/cuda/bf16", help="where make cuda leaves what ptxas says")
    parser.add_argument("--out", default="docs/cuda_report.md")
    args = parser.parse_args()
    os.makedirs(args.build, exist_ok=True)
    out = ["# The GPU code on paper", "",
           "Written by `make cuda-report` from the sources, the compiler's print-out, a count of memory accesses and NVIDIA's data "
           "sheets. **Nothing on this page was measured on a GPU**, except where a figure is said to be the paper's. How to measure: "
           "[gpu.md](gpu.md).", "",
           "**Bytes are counted, not estimated**: [dev/cuda_on_cpu](../dev/cuda_on_cpu/README.md) executes the kernels, bf16 build, and counts. "
           "*Moved*: every 32-byte sector once per launch, as if the caches were perfect within a launch and empty before it; a library call "
           "moves its operands once. *Requested*: what threads ask for, as if there were no caches. The truth on a GPU lies between. The linear "
           "attentions were counted at %d tokens (chunks are as long there as at 131072), the quadratic ones at %d, the model's layers at %d. "
           "**Operations** are the programs' own count for whole attentions; for single kernels, the numbers requested times the arithmetic per "
           "number as it stands in the source. **Times are rooflines**: the larger of bytes moved over bandwidth and operations over the "
           "data sheet's peak (%s). A bound, not a forecast: for the linear attentions it is less than "
           "the launches of a dozen kernels cost." % (LINEAR_TOKENS, QUADRATIC_TOKENS, MODEL_TOKENS, "; ".join(
               "%s: %.2f TB/s, %.0f TFLOP/s bf16, %.1f fp32" % (name, gpu[0] / 1e12, gpu[1] / 1e12, gpu[2] / 1e12) for name, gpu in GPUS.items())), "",
           "## Attention alone: estimates beside the paper's measurements", "",
           "Forward pass of the attention module, embed 256, 8 heads, batch 1, causal. The paper's figures are a PyTorch module's as its "
           "authors timed it, 19.0 ms for SLAY at 16384 tokens, 149.6 ms and 2442 MB at 131072. Memory is the sum of the memory plan: q, k, v, "
           "out, what is kept for backward, scratch; with backward also the gradients of the first four. Estimates, all but the last column.", ""]
    attention_table(out, args)
    out += ["", "## Layers of GPT-2 124M", "",
            "One training step of one layer with the embedding and the head, without the attention, which is further down. Launches are "
            "those of this one layer; in the whole model the layers' are twelvefold.", ""]
    layer_table(out, args)
    out += ["", "## Registers, shared memory, occupancy", "",
            "Registers, static and dynamic shared memory, and theoretical occupancy (resident threads as a share of the most; in "
            "brackets what limits them), bf16 build, with the threads and the memory of the launches; attend_cached_kernel's for heads of "
            "32 channels. Spills, of registers to memory, would stand in bold.", ""]
    kernel_table(out, args)
    out += ["", "## The attentions' kernels, one by one", "", "Embed 256, 8 heads, batch 1. cuBLAS's products move their operands once."]
    attention_kernels(out, args)
    with open(args.out, "w") as page:
        page.write("\n".join(out) + "\n")
    print("wrote %s" % args.out)


if __name__ == "__main__":
    main()
