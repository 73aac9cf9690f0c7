#!/usr/bin/env python3
"""Static evidence on the GPU code, without a GPU: what ptxas says of every kernel on every architecture, the occupancy that
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
# Data sheets: bytes per second and dense operations per second, those of the tensor cores with fp32 sums.
GPUS = {"A100 80 GB SXM": {"memory": 2.039e12, "bf16": 312e12, "tf32": 156e12, "fp32": 19.5e12},
        "H100 SXM": {"memory": 3.35e12, "bf16": 989e12, "tf32": 495e12, "fp32": 67e12}}
BUILDS = ("bf16", "fp32")
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


def sources():
    return [f for f in ["train_gpt2.cu", "sample_gpt2.cu"] + sorted(glob.glob("core/*/*.cu")) + sorted(glob.glob("attention/*.cu"))
            if not os.path.basename(f).startswith("test_")]


def compiler_words(args, build, source):
    """What ptxas said of one file for all architectures when `make cuda` compiled it."""
    path = os.path.join(args.objects, build, source.replace(".cu", ".ptxas"))
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


def compiled_kernels(args, build):
    """[(source, {kernel's name: {arch: what ptxas said}})], each kernel where it appears first."""
    files, seen = [], set()
    for source in sources():
        kernels = {name: said for name, said in parse(compiler_words(args, build, source)).items() if name not in seen}
        seen.update(kernels)  # sample_gpt2.cu includes train_gpt2.cu
        names = demangle(sorted(kernels))
        if kernels:
            files.append((source, {names[mangled]: said for mangled, said in kernels.items()}))
    return files


def kernel_cell(arch, said, threads, dynamic):
    registers, spill, shared = said
    share, limit = occupancy(arch, max(registers, 1), shared + dynamic, threads)
    return "%d regs, %s%.1f KB, %.0f%%%s" % (registers, "**spills %d B**, " % spill if spill else "", (shared + dynamic) / 1024,
                                             100 * share, "" if share == 1 else " (%s)" % limit)


def spilling(kernels):
    """Which of {kernel's name: {arch: what ptxas said}} keep registers in memory."""
    return ["%s on sm_%s" % (name, arch) for name in sorted(kernels)
            for arch, (_, spill, _) in sorted(kernels[name].items()) if spill]


def kernel_table(out, args, build):
    """Returns what spills."""
    sizes = [line.rsplit(" ", 2) for line in launch_sizes(args, build).splitlines()]
    out.append("| kernel | threads | " + " | ".join("sm_%s" % a for a in ARCHITECTURES) + " |")
    out.append("|---|---:|" + "---|" * len(ARCHITECTURES))
    kernels, spills = 0, []
    for source, found in compiled_kernels(args, build):
        out.append("| **%s** | |%s" % (source, " |" * len(ARCHITECTURES)))
        for name in sorted(found):
            threads, dynamic = DEFAULT_THREADS, 0
            for pattern, size_threads, size_bytes in sizes:
                if re.fullmatch(pattern, name):
                    threads, dynamic = int(size_threads), int(size_bytes)
            missing = [arch for arch in ARCHITECTURES if arch not in found[name]]
            if missing:
                sys.exit("%s, %s build: ptxas said nothing of sm_%s; make cuda-report compiles for all" % (name, build, missing[0]))
            kernels += 1
            cells = [kernel_cell(arch, found[name][arch], threads, dynamic) for arch in ARCHITECTURES]
            out.append("| `%s` | %d | %s |" % (name, threads, " | ".join(cells)))
        spills += spilling(found)
    out += ["", "%d kernels for %d architectures each; kernels with spills, counted per architecture: %d." % (
        kernels, len(ARCHITECTURES), len(spills))]
    return spills


def launch_sizes(args, build):
    program = os.path.join(args.build, "launch_sizes_" + build)
    run([args.nvcc, "-std=c++17", "-arch=sm_80", "-I."] + (["-DPRECISION_BF16"] if build == "bf16" else []) +
        ["dev/cuda/launch_sizes.cu", "core/gpu/cuda_common.cu", "-lcublas", "-o", program])
    return run([program])


def uncounted(compiled, counted):
    """The kernels that were compiled, without their template arguments, and that no counted run has launched."""
    return sorted({name.split("<")[0] for name in compiled} - set(counted))


def require_all_counted(args):
    compiled = [name for build in BUILDS for _, found in compiled_kernels(args, build) for name in found]
    missing = uncounted(compiled, COUNTED)
    if missing:
        sys.exit("no run of dev/cuda/traffic.cu launches %s: add one, and a table here" % ", ".join(missing))


def roofline(bytes_moved, work):
    """Seconds on each GPU: the larger of memory and arithmetic. work: {"bf16", "tf32" or "fp32": operations}"""
    return [max(bytes_moved / gpu["memory"], sum(operations / gpu[how] for how, operations in work.items()))
            for gpu in GPUS.values()]


def bounds(bytes_moved, work):
    """What bounds it on each GPU, and for how many nanoseconds, as two cells of a table."""
    seconds = roofline(bytes_moved, work)
    by = ["memory" if bytes_moved / gpu["memory"] >= s * (1 - 1e-9) else "arithmetic" for s, gpu in zip(seconds, GPUS.values())]
    return "%s | %s" % (by[0] if by[0] == by[1] else ", ".join(by), ", ".join("%.3f" % (1e9 * s) for s in seconds))


# Arithmetic of our kernels, read off the source: bytes of the numbers that it mostly loads and stores, and operations per
# such number (an exponential, sine or random number counts as ten). With the numbers requested this makes the operations.
ARITHMETIC = {
    "embedding_forward_kernel": (2, 1 / 3), "layernorm_forward_kernel": (2, 1.2), "layernorm_backward_kernel": (2, 2.4),
    "token_gradient_kernel": (2, 0.4), "position_gradient_kernel": (2, 0.2), "classifier_kernel": (2, 12),
    "bias_kernel": (2, 1 / 3), "gelu_forward_kernel": (2, 9), "gelu_backward_kernel": (2, 9), "sum_rows_kernel": (4, 1),
    "add_kernel": (4, 1 / 3),
    "dropout_kernel": (2, 6), "sum_losses_kernel": (4, 1), "sum_squares_kernel": (4, 2), "finish_norm_kernel": (8, 1),
    "adamw_kernel": (4, 3), "round_weights_kernel": (4, 8), "nearest_weights_kernel": (2, 1 / 3),
    "load_kernel": (4, 0.5), "store_gradient_kernel": (4, 0), "output_kernel": (4, 0.5), "load_output_gradient_kernel": (4, 1),
    "expand_kernel": (4, 1 / 3), "contract_kernel": (4, 1), "scan_kernel": (4, 0.5), "score_kernel": (4, 0.5),
    "score_gradient_kernel": (4, 0.7), "decode_kernel": (4, 1), "running_max_kernel": (4, 1), "relative_scale_kernel": (4, 4),
    "scale_shares_kernel": (2, 1), "scale_gradient_kernel": (4, 1), "keep_scale_kernel": (4, 0), "cache_keys_kernel": (4, 0),
    "pair_score_kernel": (4, 1), "pair_gradient_kernel": (4, 1), "fold_kernel": (4, 1), "fold_scale_kernel": (4, 1),
    "uniform_features_kernel": (4, 2), "uniform_gradient_kernel": (4, 0.5),
    "elu_features_kernel": (4, 6), "elu_gradient_kernel": (4, 0.7),
    "cosformer_features_kernel": (4, 1.3), "cosformer_gradient_kernel": (4, 0.5), "relu_kernel": (4, 1),
    "relu_gradient_kernel": (4, 0.5), "exp_features_kernel": (4, 4), "exp_gradient_kernel": (4, 0.8),
    "rff_features_kernel": (4, 6), "rff_slope_kernel": (4, 1 / 3), "pack_kernel": (4, 1), "normalise_kernel": (4, 1),
    "normalise_gradient_kernel": (4, 0.8), "exponential_kernel": (4, 4), "exponential_gradient_kernel": (4, 0.8),
    "polynomial_kernel": (4, 1), "polynomial_gradient_kernel": (4, 1), "sketch_gradient_kernel": (4, 1),
    "prepare": (2, 1.5), "combine": (4, 4), "decode": (2, 2.2), "dot_outputs": (2, 16),
}
# Exponential features have scales in logarithms, and take an exponential for every pair.
LOG_SCALED = {"score_kernel": (4, 4), "score_gradient_kernel": (4, 2.5), "scan_kernel": (4, 3)}
# The tiled kernels of the quadratic attentions multiply on the tensor cores, all pairs of a query and a key before it: two
# products forward, seven in the two launches of backward, three for the queries and four for the keys.
PRODUCTS_OF_PAIRS = {"attend": 2, "differentiate": 7}
HEAD = 32  # channels of a head where attentions are counted alone
PER_PAIR = 12  # other operations for a pair and two products: an exponential, or a quotient with its distance, and sums
LINEAR_TOKENS, QUADRATIC_TOKENS, MODEL_TOKENS, WEIGHTS = 3072, 512, 256, 1 << 20
COUNTED = set()  # the kernels that have appeared in a table


def traffic(args, *arguments):
    """{kernel or library call: (launches, bytes moved, bytes requested, operations of a library's products)} of one run"""
    path = os.path.join(args.build, "_".join(["traffic"] + [str(a) for a in arguments]) + ".tsv")
    if not os.path.exists(path) or os.path.getmtime(path) < os.path.getmtime(args.traffic):
        run([args.traffic] + [str(a) for a in arguments], env=dict(os.environ, CUDA_ON_CPU_TRAFFIC=path + ".new"))
        os.rename(path + ".new", path)
    found = {}
    for line in open(path):
        name, *numbers = line.rstrip("\n").split("\t")
        launches, read, written, requested_read, requested_written, operations = map(int, numbers)
        name = name.split("<")[0]
        before = found.get(name, (0, 0, 0, 0))
        row = (launches, read + written, requested_read + requested_written, operations)
        found[name] = tuple(a + b for a, b in zip(before, row))
    return found


def is_library(name):
    return name.startswith("cublas")


def work_of(name, row, tokens, pairs=0, arithmetic=()):
    """{how: operations per token} of one kernel or library call; `pairs`: of a query and a key per token, all heads."""
    if is_library(name):
        return {name.split(", ")[1]: row[3] / tokens}
    if name in PRODUCTS_OF_PAIRS:
        products = PRODUCTS_OF_PAIRS[name] * pairs
        return {"bf16": 2 * HEAD * products, "fp32": PER_PAIR / 2 * products}
    if name not in ARITHMETIC:
        sys.exit("%s: say in ARITHMETIC what it computes" % name)
    size, per_number = dict(ARITHMETIC, **dict(arithmetic))[name]
    return {"bf16" if name == "dot_outputs" else "fp32": row[2] / size * per_number / tokens}


def is_quadratic(name):
    return name in ("softmax", "yat", "yat-spherical")


def kernel_rows(out, counted, tokens, pairs=0, arithmetic=()):
    """A table's lines for the kernels of one run."""
    for name in sorted(counted, key=lambda n: -counted[n][1]):
        launches, moved, requested, _ = counted[name]
        work = work_of(name, counted[name], tokens, pairs, arithmetic)
        operations = sum(work.values())
        COUNTED.add(name)
        out.append("| %s | %s | %s | %s | %s | %.2f | %s |" % (
            name if is_library(name) else "`%s`" % name, "" if is_library(name) else launches, figure(moved / tokens),
            "" if is_library(name) else figure(requested / tokens), figure(operations), operations * tokens / max(moved, 1),
            bounds(moved / tokens, work)))


def figure(number):
    """With a comma before every three digits; small ones with decimals."""
    if 0 < number < 0.01:
        return "< 0.01"
    return format(number, ",.0f" if number >= 100 or number == int(number) else ".2f")


def header(per="token"):
    return ["| kernel | launches | bytes moved per %s | requested | operations per %s | per byte | bound by (A100, H100) | "
            "ns per %s (A100, H100) |" % (per, per, per), "|---|---:|---:|---:|---:|---:|---|---|"]


PER_STEP = ("adamw_kernel", "sum_squares_kernel", "finish_norm_kernel", "round_weights_kernel")
UNIFORM_KERNELS = ("load_kernel", "output_kernel", "load_output_gradient_kernel", "score_kernel", "score_gradient_kernel",
                   "store_gradient_kernel", "scan_kernel", "uniform_features_kernel",
                   "uniform_gradient_kernel")  # the attention of the counted step


def layer_table(out, args):
    """Our kernels in a training step, and what the matrix products between them take at least."""
    counted = {name: row for name, row in traffic(args, "gpt2", MODEL_TOKENS).items() if not is_library(name)}
    out += header()
    kernel_rows(out, {n: r for n, r in counted.items() if n not in PER_STEP + UNIFORM_KERNELS}, MODEL_TOKENS)
    out += ["", "Kernels that only some runs launch, once each: dropout; GELU where no product has taken it in (`--recompute cheap`, and "
            "shapes for which cuBLASLt has no such product), 3072 wide; a bias gradient's sum from the second micro-batch on.", ""]
    out += header()
    kernel_rows(out, traffic(args, "optional", MODEL_TOKENS), MODEL_TOKENS)
    optimiser_table(out, args, counted)
    out += ["", "The matrix products are cuBLASLt's. What they move at least is their operands, once: here by formula, per token; the "
            "weights are left out, for at 64k tokens a step they are below 1%.", "",
            "| product | times | bytes per token | operations per token | per byte | bound by (A100, H100) | ns per token (A100, H100) |",
            "|---|---:|---:|---:|---:|---|---|"]
    product_rows(out)


def optimiser_table(out, args, counted):
    parameters = 50304 * 768 + MODEL_TOKENS * 768 + 12 * 768 * 768 + 13 * 768 + 2 * 768
    out += ["", "### The optimiser", "", "Per weight and step. `round_weights_kernel` runs only where the weights came from elsewhere than "
            "AdamW's kernel, which rounds as it updates: at the start, and at every step of a run over several GPUs that share out the "
            "moments. `nearest_weights_kernel` runs once, before text is written.", ""]
    out += header("weight")
    kernel_rows(out, {n: counted[n] for n in PER_STEP}, parameters)
    kernel_rows(out, traffic(args, "weights", WEIGHTS), WEIGHTS)
    updating = sum(counted[n][1] for n in PER_STEP if n != "round_weights_kernel") / parameters
    out += ["", "A step's norm and AdamW move %.1f bytes per weight: %s ms a step for 124M weights." % (updating, " and ".join(
        "%.1f (%s)" % (1e3 * 124439808 * updating / gpu["memory"], name) for name, gpu in GPUS.items()))]


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
        out.append("| %s | %d | %s | %s | %.1f | %s |" % (name, times, figure(moved), figure(products + other), (products + other) / moved,
                                                      bounds(moved, {"bf16": products, "fp32": other})))


ATTENTIONS = ("softmax", "yat", "yat-spherical", "uniform", "elu", "cosformer", "favor", "rff", "slay")
# Options with kernels of their own, and how many tokens of them are counted: few where every pair is looked at, and where a
# sketch convolves.
VARIANTS = (("favor", LINEAR_TOKENS, "--features", "exp"), ("slay", QUADRATIC_TOKENS, "--poly", "exact"),
            ("slay", QUADRATIC_TOKENS, "--poly", "tensorsketch"))


def pairs_per_token(T):
    """Of a query and a key before it or itself, 8 heads."""
    return 8 * (T + 1) / 2


def attention_work(args, name, T):
    """Bytes and {how: operations}, per token, of a forward pass over T tokens."""
    tokens = QUADRATIC_TOKENS if is_quadratic(name) else LINEAR_TOKENS
    moved, work = 0, {}
    for kernel, row in traffic(args, "attention", name, "forward", tokens).items():
        moved += row[1] / tokens
        for how, operations in work_of(kernel, row, tokens, pairs_per_token(T)).items():
            work[how] = work.get(how, 0) + operations
    return moved, work


def attention_table(out, args):
    """Roofline of the attention module alone, forward, embed 256 with 8 heads, beside the paper's measurements."""
    paper = {"softmax": ("85.6", "out of memory"), "yat-spherical": ("141.4", "out of memory"), "elu": ("18.8", "147.6"),
             "cosformer": ("35.3", "291"), "favor": ("19.4", "155"), "slay": ("19.0", "149.6")}
    out.append("| attention | T | bf16 operations per token | TF32 | fp32 | bytes moved per token | operations per byte | estimate A100 | "
               "estimate H100 | memory, forward | with backward | paper, A100, measured |")
    out.append("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for T, which in ((16384, 0), (131072, 1)):
        for name in ATTENTIONS:
            moved, work = attention_work(args, name, T)
            seconds = roofline(moved * T, {how: operations * T for how, operations in work.items()})
            tensor, kept, scratch = map(int, run([args.traffic, "attention", name, "memory", str(T)]).split())
            measured = paper.get(name, ("-", "-"))[which]
            out.append("| %s | %d | %s | %s | %.2f ms | %.2f ms | %.0f MB | %.0f MB | %s |" % (
                name, T, " | ".join(figure(work.get(how, 0)) if work.get(how) else "-" for how in ("bf16", "tf32", "fp32")),
                "%s | %.1f" % (figure(moved), sum(work.values()) / moved), 1e3 * seconds[0], 1e3 * seconds[1],
                (4 * tensor + kept + scratch) / 1e6, (8 * tensor + kept + scratch) / 1e6,
                measured + (" ms" if measured[0].isdigit() else "") + (", 2442 MB" if name == "slay" and which else "")))


def attention_kernels(out, args):
    runs = [(name, QUADRATIC_TOKENS if is_quadratic(name) else LINEAR_TOKENS) for name in ATTENTIONS]
    for name, tokens, *options in runs + list(VARIANTS):
        for words in ("forward", "backward", "decode"):
            is_decode = words == "decode"
            out += ["", "**%s, %s**, %s" % (" ".join([name] + options), words, "one token after %d" % (tokens - 1) if is_decode else "%d tokens" % tokens), ""]
            out += header()
            counted = traffic(args, "attention", name, words, tokens, *options)
            kernel_rows(out, counted, 1 if is_decode else tokens, pairs_per_token(tokens), LOG_SCALED if "exp" in options else ())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--build", default="build/cuda/report")
    parser.add_argument("--traffic", default="build/cuda_on_cpu/count-bf16/dev/cuda/traffic")
    parser.add_argument("--objects", default="build/cuda", help="where make cuda leaves what ptxas says, bf16/ and fp32/")
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
           "In the fp32 build activations and layers' weights have four bytes instead of two; the linear attentions' own numbers are fp32 in both." % (
               LINEAR_TOKENS, QUADRATIC_TOKENS, MODEL_TOKENS), "",
           "**Operations**: those of cuBLAS's products are counted too, call by call, with the chunks that the GPU code chooses and in the "
           "arithmetic that it asks for: in the bf16 build the linear attentions multiply fp32 numbers, as TF32 on the tensor cores, and in full "
           "fp32 without them for projections and for maps with signed scores (rff; slay's nystrom, tensorsketch and maclaurin polynomials). The tiled "
           "kernels of the quadratic attentions multiply bf16 on the tensor cores: two products for all causal pairs forward, seven "
           "backward, and %d other operations for a pair forward, %d backward. The other kernels compute in fp32: the numbers requested times the arithmetic per "
           "number as it stands in the source, an exponential counting as ten." % (
               PER_PAIR, PER_PAIR * PRODUCTS_OF_PAIRS["differentiate"] // 2), "",
           "**Times are rooflines**: the larger of bytes moved over bandwidth and operations over the data sheet's dense peak for their "
           "arithmetic (%s). A bound, not a forecast: for the linear attentions it is less than the launches of a dozen kernels cost." % "; ".join(
               "%s: %.2f TB/s; %.0f TFLOP/s bf16, %.0f TF32, %.1f fp32" % (name, *(gpu[key] / 1e12 for key in ("memory", "bf16", "tf32", "fp32")))
               for name, gpu in GPUS.items()), "",
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
            "brackets what limits them), with the threads and the memory of the launches. Spills, of registers to memory, would "
            "stand in bold."]
    spills = []
    for build in BUILDS:
        out += ["", "### The %s build" % build, ""]
        spills += kernel_table(out, args, build)
    out += ["", "## The attentions' kernels, one by one", "", "Embed 256, 8 heads, batch 1. cuBLAS's products move their operands once. Softmax is our own kernel, not cuDNN's. "
            "Variants with kernels of their own are at the end."]
    attention_kernels(out, args)
    require_all_counted(args)
    with open(args.out, "w") as page:
        page.write("\n".join(out) + "\n")
    print("wrote %s" % args.out)
    if spills:
        sys.exit("registers are spilled to memory by %s" % ", ".join(spills))


if __name__ == "__main__":
    main()
