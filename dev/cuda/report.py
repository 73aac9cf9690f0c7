#!/usr/bin/env python3
"""Static evidence of the GPU code, without a GPU: what ptxas says of every kernel on every architecture, the occupancy that
follows from it, what each layer must move and compute per token, and what a roofline makes of that on A100 and H100.

Everything on the page that this writes is computed from sources and data sheets; nothing is measured."""

import argparse
import concurrent.futures
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


def compile_file(nvcc, build, source, precision):
    """ptxas's words on one file for all architectures, and the thread limits in its PTX."""
    name = "%s_%s" % (source.replace("/", "_").replace(".cu", ""), precision)
    log, kept = os.path.join(build, name + ".log"), os.path.join(build, name)
    newest = max(os.path.getmtime(f) for f in [source] + glob.glob("core/*.h") + glob.glob("attention/*.*h") + glob.glob("attention/*.h"))
    if not os.path.exists(log) or os.path.getmtime(log) < newest:
        os.makedirs(kept, exist_ok=True)
        flags = ["-DPRECISION_BF16"] if precision == "bf16" else []
        for arch in ARCHITECTURES:
            flags += ["-gencode", "arch=compute_%s,code=sm_%s" % (arch, arch)]
        text = run([nvcc, "-std=c++17", "-O3", "-I.", "-Xptxas", "-v", "--keep", "--keep-dir", kept, "-c", source,
                    "-o", os.path.join(kept, "a.o")] + flags, with_errors=True)
        with open(log, "w") as out:
            out.write(text)
            for ptx in glob.glob(os.path.join(kept, "*compute_80*.ptx")):
                for entry, body in re.findall(r"\.entry (\w+)\((.*?)\n\{", open(ptx).read(), re.S):
                    limit = re.search(r"\.maxntid (\d+)", body)
                    if limit:
                        out.write("maxntid %s %s\n" % (entry, limit.group(1)))
        for path in glob.glob(os.path.join(kept, "*")):
            os.remove(path)
    return open(log).read()


def parse(text):
    """{mangled name: {arch: (registers, spilled bytes, shared bytes)}}, {mangled name: threads}"""
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
    threads = dict(re.findall(r"maxntid (\w+) (\d+)", text))
    return kernels, {name: int(count) for name, count in threads.items()}


def demangle(names):
    text = run(["c++filt", "-p"], input="\n".join(names)) if names else ""
    return dict(zip(names, (re.sub(r"\((?:int|bool|Normalizer)\)", "", line.replace("void ", "")) for line in text.splitlines())))


def kernel_table(out, args):
    sources = [f for f in ["train_gpt2.cu"] + sorted(glob.glob("core/*.cu")) + sorted(glob.glob("attention/*.cu"))
               if not os.path.basename(f).startswith("test_")]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        texts = list(pool.map(lambda f: compile_file(args.nvcc, args.build, f, args.precision), sources))
    sizes = [line.rsplit(" ", 2) for line in launch_sizes(args).splitlines()]
    out.append("| kernel | threads | " + " | ".join("sm_%s" % a for a in ARCHITECTURES) + " |")
    out.append("|---|---:|" + "---|" * len(ARCHITECTURES))
    spilling = 0
    for source, text in zip(sources, texts):
        kernels, limits = parse(text)
        names = demangle(sorted(kernels))
        if not kernels:
            continue
        out.append("| **%s** | |%s" % (source, " |" * len(ARCHITECTURES)))
        for mangled in sorted(kernels, key=lambda k: names[k]):
            threads, dynamic = limits.get(mangled, DEFAULT_THREADS), 0
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
    run([args.nvcc, "-std=c++17", "-I."] + (["-DPRECISION_BF16"] if args.precision == "bf16" else []) +
        ["dev/cuda/launch_sizes.cu", "core/cuda_common.cu", "-lcublas", "-o", program])
    return run([program])


def roofline(bytes_moved, products, other):
    """Seconds on each GPU: the largest of memory, tensor cores and plain arithmetic."""
    return [max(bytes_moved / bandwidth, products / tensor + other / plain) for bandwidth, tensor, plain in GPUS.values()]


def layer_table(out):
    """Bytes and operations per token of GPT-2 124M's layers as the trainer launches them, in bf16."""
    C, V, L, x = 768, 50257, 12, 2
    rows = [  # name, times per step, bytes per token, operations in products, other operations
        ("embedding forward", 1, 3 * C * x, 0, C),
        ("residual + LayerNorm forward", 2 * L + 1, 4 * C * x, 0, 8 * C),
        ("qkv product with bias", L, 4 * C * x, 6 * C * C, 3 * C),
        ("attention projection with bias", L, 2 * C * x, 2 * C * C, C),
        ("fc product with bias and GELU", L, 9 * C * x, 8 * C * C, 40 * C),
        ("fcproj product with bias", L, 5 * C * x, 8 * C * C, C),
        ("head: logits", 1, (C + V) * x, 2 * C * V, 0),
        ("head: loss and gradient of the logits", 1, 3 * V * x, 0, 12 * V),
        ("head: backward products", 1, 2 * (C + V) * x, 4 * C * V, 0),
        ("fcproj backward with GELU's", L, 14 * C * x, 16 * C * C, 40 * C),
        ("fc backward", L, 11 * C * x, 16 * C * C, 4 * C),
        ("LayerNorm backward", 2 * L + 1, 4 * C * x + 8 * C / 32, 0, 16 * C),
        ("attention projection backward", L, 5 * C * x, 4 * C * C, C),
        ("qkv backward", L, 9 * C * x, 12 * C * C, 3 * C),
        ("embedding backward", 1, 2 * C * x, 0, 2 * C),
    ]
    out.append("| layer | times | bytes per token | operations per token | operations per byte | bound by (A100, H100) | ns per token (A100, H100) |")
    out.append("|---|---:|---:|---:|---:|---|---|")
    totals = [0.0 for _ in GPUS]
    for name, times, moved, products, other in rows:
        seconds = roofline(moved, products, other)
        bound = ["memory" if moved / gpu[0] >= s * (1 - 1e-9) else "arithmetic" for s, gpu in zip(seconds, GPUS.values())]
        totals = [total + times * s for total, s in zip(totals, seconds)]
        out.append("| %s | %d | %.0f | %.0f | %.1f | %s | %s |" % (
            name, times, moved, products + other, (products + other) / moved, ", ".join(bound),
            ", ".join("%.2f" % (1e9 * s) for s in seconds)))
    out.append("| **all of these, times their number** | | | | | | **%s** |" % ", ".join("%.0f" % (1e9 * t) for t in totals))
    parameters = 124439808
    out.append("")
    out.append("Norm and AdamW move %d bytes per parameter and step (fp32 weight, gradient, two moments; bf16 weight): %s ms "
               "a step for 124M parameters." % (4 + 4 * 4 + 3 * 4 + 2, " and ".join(
                   "%.1f (%s)" % (1e3 * parameters * 34 / gpu[0], name) for name, gpu in GPUS.items())))
    out.append("Weights are counted once per product and not per token: at 64k tokens a step they are below 1%.")


def attention_table(out, args):
    """Roofline of the attention module alone, forward, embed 256 with 8 heads, beside the paper's measurements."""
    paper = {"softmax": ("85.6", "out of memory"), "yat-spherical": ("141.4", "out of memory"), "elu": ("18.8", "147.6"),
             "cosformer": ("35.3", "291"), "favor": ("19.4", "155"), "slay": ("19.0", "149.6")}
    C, NH, x = 256, 8, 2
    out.append("| attention | T | operations per token | bytes per token at least | estimate A100 | estimate H100 | paper, A100, measured |")
    out.append("|---|---:|---:|---:|---:|---:|---:|")
    for T, which in ((16384, 0), (131072, 1)):
        for line in run([args.flops, str(C), str(NH), str(T)]).splitlines():
            name, flops, R, M, P = line.split()
            flops, features = float(flops), {"slay": int(R) * int(M) + int(P)}.get(name, int(M))
            quadratic = name in ("softmax", "yat", "yat-spherical")
            # in and out, and for linear mechanisms the features of q and k written once and read twice, in fp32
            moved = 4 * C * x + (0 if quadratic else 2 * NH * (features or C // NH) * 4 * 3)
            products, other = (flops, 0) if not quadratic else (flops * 0.9, flops * 0.1)
            seconds = roofline(moved * T, products * T, other * T)
            out.append("| %s | %d | %.0f | %.0f | %.2f ms | %.2f ms | %s |" % (
                name, T, flops, moved, 1e3 * seconds[0], 1e3 * seconds[1],
                paper[name][which] + (" ms" if paper[name][which][0].isdigit() else "") if name in paper else "-"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--build", default="build/cuda/report")
    parser.add_argument("--flops", default="build/attention_flops")
    parser.add_argument("--precision", default="bf16", choices=["bf16", "fp32"])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", default="docs/cuda_report.md")
    args = parser.parse_args()
    os.makedirs(args.build, exist_ok=True)
    out = ["# The GPU code on paper", "",
           "Written by `make cuda-report` from the sources, the compiler's print-out and NVIDIA's data sheets. **Nothing on this page "
           "was measured on a GPU**, except where a figure is said to be the paper's. How to measure: [gpu.md](gpu.md).", "",
           "## Attention alone: estimates beside the paper's measurements", "",
           "Forward pass of the attention module, embed 256, 8 heads, batch 1, causal. The estimate is a roofline: the larger of the "
           "time to move the bytes and the time to compute at the data sheet's peak (%s). It is a bound and not "
           "a forecast: for the linear attentions it is less than the launches of a dozen kernels cost. The paper's figures are a "
           "PyTorch module's as its authors timed it. The paper's memory for SLAY at 131072 tokens is 2442 MB." % "; ".join(
               "%s: %.2f TB/s, %.0f TFLOP/s bf16" % (name, gpu[0] / 1e12, gpu[1] / 1e12) for name, gpu in GPUS.items()), ""]
    attention_table(out, args)
    out += ["", "## Layers of GPT-2 124M: estimates", "", "Per token, bf16, forward and backward as `train_gpt2.cu` launches them.", ""]
    layer_table(out)
    out += ["", "## Kernels", "", "Registers, static and dynamic shared memory, and theoretical occupancy (resident threads as a share of the most; in "
            "brackets what limits them), %s build. Where a launch decides the block's size, %d threads are assumed." % (
                args.precision, DEFAULT_THREADS), ""]
    kernel_table(out, args)
    with open(args.out, "w") as page:
        page.write("\n".join(out) + "\n")
    print("wrote %s" % args.out)


if __name__ == "__main__":
    main()
