#!/usr/bin/env python3
"""Static evidence on the GPU code, without a GPU: what ptxas and the disassembler say of every kernel on every architecture,
what every kernel moves and multiplies (counted: dev/cuda_on_cpu executes it), what bounds it, and what a model of a whole
training step makes of that on A100 and H100. Writes docs/cuda_report.md, and fails where a rule or a budget is broken.

Everything on the page is computed or counted; nothing is measured on a GPU."""

import argparse
import os
import sys
import textwrap

import compiled
import counts
import hardware
import step_model
from hardware import ARCHITECTURES, GPUS
from step_model import HEADS, LAYERS, QUADRATIC, STEP_TOKENS, WIDTH, lowest_bound, seconds_of, tensor_share, with_launches, works_of

# ---- what is promised; a line that is not kept fails the target
BYTES_BUDGET = {"slay": 1.2e6, "elu": 1.2e6, "softmax": 0.6e6, "yat": 0.6e6}  # per token and step, 124M, T=1024, B=64
LAUNCH_BUDGET = 12  # per layer and direction, B = 4 and 64
# ---- what is aimed at; the page says which are met
LEAST_TENSOR_SHARE = 0.5
STEP_AIMS = ((1024, 0.9), (4096, 1.3))  # slay's step beside softmax's by cuDNN: T, how many times as fast
PAPER_SECONDS = {16384: 4e-3, 131072: 30e-3}  # SLAY at embed 256, 8 heads, forward
PAPER_BYTES = 600e6

ATTENTIONS = ("softmax", "yat", "yat-spherical", "uniform", "elu", "cosformer", "favor", "rff", "slay")
MODELLED = ("softmax", "yat", "elu", "slay")  # in the step model, by own kernels
# Options with kernels of their own.
VARIANTS = (("favor", "--features", "exp"), ("slay", "--poly", "exact"), ("slay", "--poly", "tensorsketch"))
# Options that the kernels of the default take in, where the GPU code has them: these are run, and have no tables.
OTHER_OPTIONS = tuple(("slay",) + words for words in (
    ("--poly", "nystrom"), ("--poly", "maclaurin"), ("--poly", "none"), ("--poly", "rademacher"), ("--fusion", "hadamard"),
    ("--fusion", "flat"), ("--learn", "both"), ("--decay", "learned"), ("--window", "64"))) + (
    ("yat", "--window", "64"), ("yat", "--decay", "learned"), ("yat", "--normalizer", "softmax"), ("softmax", "--decay", "learned"),
    ("elu", "--decay", "learned"), ("elu", "--window", "64"), ("favor", "--features", "exp", "--decay", "learned"))
MODELLED_ARCHITECTURES = tuple(numbers["arch"] for numbers in GPUS.values())
PASSES = ("forward", "backward", "prompt", "step", "decode")
PAIRS_OF_VARIANTS = ("exact",)  # variants that look at every pair
MODEL_LENGTHS = (256, 512)  # tokens of the counted runs of the whole model
WEIGHTS = 1 << 20
MUON_SOURCES = ("core/ranks/muon_gpu.cu", "core/gpu/newton_schulz_gpu.cu")
MUON_SIZES = (16, 128)  # tokens and channels of traffic.cu's layer
# Measured by the paper's authors on an A100, milliseconds at 16384 and 131072 tokens.
PAPER = {"softmax": ("85.6", "out of memory"), "yat-spherical": ("141.4", "out of memory"), "elu": ("18.8", "147.6"),
         "cosformer": ("35.3", "291"), "favor": ("19.4", "155"), "slay": ("19.0", "149.6")}


def figure(number):
    """With a comma before every three digits; small ones with decimals."""
    if 0 < number < 0.01:
        return "< 0.01"
    return format(number, ",.0f" if number >= 100 or number == int(number) else ".2f")


def percent(share):
    return "-" if share is None else "%.0f %%" % (100 * share)


def is_quadratic(name, options=()):
    return name in QUADRATIC or any(word in options for word in PAIRS_OF_VARIANTS)


class Evidence:
    """Counted runs and compiled kernels."""

    def __init__(self, args):
        tools = os.path.join(args.build, "tools")
        os.makedirs(tools, exist_ok=True)
        self.programs = {build: counts.Program(os.path.join(args.count, directory, "dev/cuda/traffic"), os.path.join(args.build, build))
                         for build, directory in (("bf16", "count-bf16"), ("fp32", "count")) if build in compiled.BUILDS}
        self.program = self.programs["bf16"]
        self.kernels = {build: compiled.read_build(args.objects, build, tools) for build in compiled.BUILDS}
        self.counted = set()  # names of all kernels that ran
        self.kept = {}

    def works(self, *words, processors=1, architectures=MODELLED_ARCHITECTURES):
        """[Work] of one counted run of the bf16 build."""
        key = (words, processors, tuple(architectures))
        if key not in self.kept:
            found = self.program.count(*words, processors=processors)
            self.counted.update(found)
            self.kept[key] = works_of(found, self.kernels["bf16"], architectures)
        return self.kept[key]

    def launched(self, name, direction, B, T, C, NH, gpu, options=()):
        """{kernel: Count} at these sizes; nothing is computed."""
        return self.program.count("attention", name, direction, B, T, C, NH, *options, processors=GPUS[gpu]["processors"], skip=True)

    def attention(self, name, direction, B, T, C, NH, gpu="A100", options=()):
        """[Work] of one layer's pass at these sizes: counted for one or two heads on a device that is smaller than an A100 in
        proportion."""
        processors, head, tasks = GPUS["A100"]["processors"], C // NH, B * NH
        fills = tasks >= processors
        heads, small = (2, 1) if fills else (1, max(processors // tasks, 1))
        lengths = (512, 1024) if is_quadratic(name, options) else (1024, 2048) if fills else (8192, 16384)
        def counted(t, architectures=MODELLED_ARCHITECTURES):
            return [work.scaled(tasks / heads) for work in self.works(
                "attention", name, direction, 1, t, heads * head, heads, *options, processors=small, architectures=architectures)]
        if T in lengths:  # every architecture's slots are told of one length
            works = counted(T, ARCHITECTURES if fills else MODELLED_ARCHITECTURES)
        else:
            works = step_model.extrapolate(*map(counted, lengths), lengths, T, is_quadratic(name, options))
        return with_launches(works, self.launched(name, direction, B, T, C, NH, gpu, options))

    def run_other_options(self):
        """Counts them for their kernels' names; returns the sentences of those that the GPU code refuses."""
        refused = []
        for name, *options in OTHER_OPTIONS:
            why = self.program.refusal("attention", name, "memory", 1, 256, 128, 2, *options)
            if why:
                refused.append(why)
                continue
            for direction in PASSES:
                self.counted.update(self.program.count("attention", name, direction, 1, 256, 128, 2, *options, processors=108))
        return refused

    def layers(self, name, T, gpu):
        """Forward and backward of one layer in the step model."""
        return [self.attention(name, direction, STEP_TOKENS // T, T, WIDTH, HEADS, gpu) for direction in ("forward", "backward")]

    def rest(self):
        """The step without its attention, which is `uniform` in the counted runs."""
        runs = {(L, t): self.program.count("gpt2", L, t) for L in (1, 2) for t in MODEL_LENGTHS}
        for found in runs.values():
            self.counted.update(found)
        uniform = [self.program.count("attention", "uniform", direction, 1, MODEL_LENGTHS[0], WIDTH, HEADS)
                   for direction in ("forward", "backward")]
        leave_out = {name for found in uniform for name in found if name != "cublasLtMatmul"} | {
            name for found in runs.values() for name in found if name.startswith("round_weights_kernel")}
        return step_model.rest_of_step(runs, MODEL_LENGTHS, {name for name in leave_out if not name.startswith("cublasLt")})

    def launch_shapes(self, build):
        """{kernel: (threads, dynamic bytes)} in all passes of all attentions with heads of 32, 64 and 128, and in the model."""
        shapes = {}
        runs = [("attention", name, direction, 1, 256, 2 * head, 2) + options for head in (32, 64, 128) for direction in PASSES
                for name, *options in [(n,) for n in ATTENTIONS] + list(VARIANTS) for options in [tuple(options)]]
        for words in runs:
            for name, count in self.programs[build].count(*words, processors=108, skip=True).items():
                shapes[name] = (count.threads, max(count.dynamic, shapes.get(name, (0, 0))[1]))
        return shapes


# ---- targets


def step_bytes(evidence, name):
    """Of device memory per token and step by the attention of all layers, 124M, T=1024, B=64."""
    return LAYERS * sum(work.sums["moved"] for works in evidence.layers(name, 1024, "A100") for work in works) / STEP_TOKENS


def launches(evidence, name, B):
    """Of one layer forward and backward, library calls among them."""
    return [sum(count.launches for count in evidence.launched(name, direction, B, 1024, WIDTH, HEADS, "A100").values())
            for direction in ("forward", "backward")]


def target_rows(evidence, steps):
    """[(what, aim, found, met, whether breaking it fails)]"""
    rows = []
    for name, budget in BYTES_BUDGET.items():
        found = step_bytes(evidence, name)
        rows.append(("device memory of %s's attention, per token and step, 124M, T=1024, B=64" % name, "at most %.1f MB" % (budget / 1e6),
                     "%.2f MB" % (found / 1e6), found <= budget, True))
    for name in MODELLED:
        found = [launches(evidence, name, B) for B in (4, 64)]
        rows.append(("launches of %s per layer, forward and backward, B=4 and B=64" % name, "at most %d" % LAUNCH_BUDGET,
                     "%d and %d; %d and %d" % tuple(found[0] + found[1]), max(map(max, found)) <= LAUNCH_BUDGET, True))
    for name in QUADRATIC:
        for direction in ("forward", "backward"):
            works = evidence.attention(name, direction, 64, 1024, WIDTH, HEADS)
            share = tensor_share(works, "80")
            rows.append(("tensor cores' share of issue, %s %s, head 64, T=1024, sm_80" % (name, direction),
                         "at least %.0f %%" % (100 * LEAST_TENSOR_SHARE), percent(share and share[0]),
                         bool(share) and share[0] >= LEAST_TENSOR_SHARE, False))
    for T, aim in STEP_AIMS:
        ratio = sum(steps["A100", T, "softmax (cuDNN)"].values()) / sum(steps["A100", T, "slay"].values())
        rows.append(("slay's step beside softmax's by cuDNN, T=%d, A100 (estimate)" % T, "at least %.1fx as fast" % aim,
                     "%.2fx" % ratio, ratio >= aim, False))
    for T, aim in PAPER_SECONDS.items():
        seconds = seconds_of(evidence.attention("slay", "forward", 1, T, 256, 8), "A100")
        rows.append(("SLAY forward, embed 256, 8 heads, %d tokens, A100 (estimate)" % T, "under %.0f ms" % (1e3 * aim),
                     "%.2f ms" % (1e3 * seconds), seconds < aim, False))
    tensor, kept, scratch = evidence.program.memory("slay", 1, 131072, 256, 8)
    rows.append(("memory of SLAY's attention at 131072 tokens, forward (q, k, v, out, kept, scratch)", "at most %.0f MB" % (PAPER_BYTES / 1e6),
                 "%.0f MB" % ((4 * tensor + kept + scratch) / 1e6), 4 * tensor + kept + scratch <= PAPER_BYTES, False))
    return rows


def broken(rows):
    """The budgets that are not kept, as sentences."""
    return ["%s: %s, allowed %s" % (what, found, aim) for what, aim, found, met, fails in rows if fails and not met]


def target_table(out, rows):
    out += ["| target | aim | found | |", "|---|---|---|---|"]
    out += ["| %s | %s | %s | %s |" % (what, aim, found, "met" if met else "**not met**") for what, aim, found, met, _ in rows]


def limits_of_step(evidence, steps):
    """For each length at which slay's step is aimed at: what its attention may take, takes, and would take if tensor cores alone
    held it up, in sentences."""
    sentences = []
    for T, aim in STEP_AIMS:
        parts, softmax = steps["A100", T, "slay"], sum(steps["A100", T, "softmax (cuDNN)"].values())
        rest = sum(parts.values()) - parts["attention"]
        least = LAYERS * sum(step_model.tensor_seconds(works, "A100") for works in evidence.layers("slay", T, "A100"))
        sentences.append("At T=%d the aim leaves %.0f ms for slay's attention of all layers, forward and backward; it takes %.0f ms, and would take "
                         "%.0f ms (%.2fx cuDNN's step) if its kernels issued nothing but products, as they are." % (
                             T, 1e3 * (softmax / aim - rest), 1e3 * parts["attention"], 1e3 * least, softmax / (rest + least)))
    return " ".join(sentences)


# ---- the step


def steps_of(evidence):
    """{(gpu, T, attention): {part: seconds}} of a step of 65536 tokens."""
    rest, steps = evidence.rest(), {}
    for gpu in GPUS:
        for T in (1024, 4096):
            parts = step_model.rest_seconds(rest, gpu)
            steps[gpu, T, "softmax (cuDNN)"] = dict(parts, attention=step_model.cudnn_seconds(gpu, T))
            for name in MODELLED:
                seconds = LAYERS * sum(seconds_of(works, gpu) for works in evidence.layers(name, T, gpu))
                steps[gpu, T, "softmax (own)" if name == "softmax" else name] = dict(parts, attention=seconds)
    return steps


def step_table(out, steps):
    out += ["| GPU | T | attention | products | attention, ms | other kernels | optimiser | step, ms | tokens/s | MFU | beside cuDNN |",
            "|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for (gpu, T, name), parts in steps.items():
        step = sum(parts.values())
        per_second = STEP_TOKENS / step
        out.append("| %s | %d | %s | %.0f | %.1f | %.1f | %.1f | %.0f | %s | %s | %.2fx |" % (
            gpu, T, name, *(1e3 * parts[key] for key in ("products", "attention", "other kernels", "optimiser")), 1e3 * step,
            figure(round(per_second, -3)), percent(step_model.model_operations(T) * per_second / GPUS[gpu]["bf16"]),
            sum(steps[gpu, T, "softmax (cuDNN)"].values()) / step))


def anchor_line(steps):
    found = STEP_TOKENS / sum(steps["A100", 1024, "softmax (cuDNN)"].values())
    return ("The model is tied to one published figure: llm.c trained 124M at T=1024 with %.0f thousand tokens/s on each of 8 A100; "
            "it gives %.0f thousand (estimate) for softmax by cuDNN." % (hardware.ANCHOR / 1e3, found / 1e3))


# ---- attentions alone


def paper_table(out, evidence):
    out += ["| attention | T | %s | bound on A100 | MB, forward | with backward | paper, measured, ms |" % " | ".join(
        "%s, ms" % gpu for gpu in GPUS), "|---|---:|%s---|---:|---:|---:|" % ("---:|" * len(GPUS))]
    for which, T in enumerate((16384, 131072)):
        for name in ATTENTIONS:
            works = {gpu: evidence.attention(name, "forward", 1, T, 256, 8, gpu) for gpu in GPUS}
            slowest = max(works["A100"], key=lambda work: lowest_bound(work, "A100")[1])
            tensor, kept, scratch = evidence.program.memory(name, 1, T, 256, 8)
            out.append("| %s | %d | %s | %s | %.0f | %.0f | %s |" % (
                name, T, " | ".join("%.2f" % (1e3 * seconds_of(works[gpu], gpu)) for gpu in GPUS),
                lowest_bound(slowest, "A100")[0], (4 * tensor + kept + scratch) / 1e6, (8 * tensor + kept + scratch) / 1e6,
                PAPER.get(name, ("-", "-"))[which]))


def linearity_table(out, evidence):
    """That bytes and blocks grow with the number of rows and heads, so that few stand for many."""
    out += ["| slay, T=1024 | bytes, 2 tasks | 4 tasks | ratio | blocks, 2 tasks | 768 tasks, A100 | ratio |", "|---|---:|---:|---:|---:|---:|---:|"]
    for direction in ("forward", "backward"):
        two, four = (evidence.works("attention", "slay", direction, B, 1024, 128, 2, processors=B) for B in (1, 2))
        real = evidence.launched("slay", direction, 64, 1024, WIDTH, HEADS, "A100")
        moved = [sum(work.sums["moved"] for work in works) for works in (two, four)]
        blocks = [sum(work.sums["blocks"] for work in two), sum(count.blocks for count in real.values())]
        out.append("| %s | %s | %s | %.3f | %s | %s | %.1f |" % (direction, figure(moved[0]), figure(moved[1]), moved[1] / moved[0],
                                                               figure(blocks[0]), figure(blocks[1]), blocks[1] / blocks[0]))


def kernel_table(out, works, tokens):
    """One line for each kernel: what it moves and multiplies per token, how its slots compare with the tensor cores' cycles on
    every architecture, and its lowest bound on both GPUs."""
    out += ["| kernel | launches | threads | bytes/token | requested | tensor flops/token | slots per tensor cycle: %s | %s | misfit |"
            % (", ".join(ARCHITECTURES), " | ".join("bound, us: %s" % gpu for gpu in GPUS)),
            "|---|---:|---:|---:|---:|---:|---|%s---:|" % ("---|" * len(GPUS))]
    for work in sorted(works, key=lambda work: -lowest_bound(work, "A100")[1]):
        ends = " | ".join("%s %s" % (limit, figure(1e6 * seconds)) for limit, seconds in (lowest_bound(work, gpu) for gpu in GPUS))
        slots = "" if work.is_library else ", ".join(
            "%.1f" % (work.units[arch]["issue"] / work.units[arch]["tensor"]) if work.units.get(arch, {}).get("tensor") else "-"
            for arch in ARCHITECTURES)
        out.append("| %s | %s | %s | %s | %s | %s | %s | %s | %s |" % (
            work.name if work.is_library else "`%s`" % work.name, figure(work.sums["launches"]), work.threads or "",
            figure(work.sums["moved"] / tokens), "" if work.is_library else figure(work.sums["requested"] / tokens),
            figure((work.sums["bf16"] + work.sums["tf32"]) / tokens), slots, ends,
            "" if work.is_library else percent(max(work.misfit.values()))))


def attention_kernels(out, evidence):
    for name, *options in [(n,) for n in ATTENTIONS] + list(VARIANTS):
        title = " ".join([name] + options)
        for direction in ("forward", "backward"):
            out += ["", "**%s, %s**, one layer, B=64, T=1024, 12 heads of 64; estimates" % (title, direction), ""]
            kernel_table(out, evidence.attention(name, direction, 64, 1024, WIDTH, HEADS, options=tuple(options)), STEP_TOKENS)
        for direction, what, tokens in (("prompt", "read for decoding, 256 tokens", 256), ("decode", "one token after 255", 1)):
            out += ["", "**%s, %s**, 2 heads of 64; estimates" % (title, what), ""]
            kernel_table(out, evidence.works("attention", name, direction, 1, 256, 128, 2, *options, processors=108), tokens)
        evidence.works("attention", name, "step", 1, 256, 128, 2, *options, processors=108)


# ---- the rest of the model


def rest_table(out, evidence):
    rest = evidence.rest()
    out += ["| kernel | launches a step | bytes/token | products, flops/token | %s |" % " | ".join("ms a step: %s" % gpu for gpu in GPUS),
            "|---|---:|---:|---:|%s" % ("---:|" * len(GPUS))]
    for name in sorted(rest, key=lambda name: (-rest[name][2], -rest[name][1])):
        number, moved, operations = rest[name]
        seconds = [sum(step_model.rest_seconds({name: rest[name]}, gpu).values()) for gpu in GPUS]
        out.append("| %s | %s | %s | %s | %s |" % (name if name.startswith("cu") else "`%s`" % name, figure(number),
                                                 figure(moved / STEP_TOKENS), figure(operations / STEP_TOKENS),
                                                 " | ".join("%.2f" % (1e3 * s) for s in seconds)))
    out += ["", "Kernels that only some runs launch, once each, 768 or 3072 wide: dropout, GELU and bias outside of a product, a bias gradient's "
            "second micro-batch; and weights made ready for decoding, per weight. Estimates.", ""]
    kernel_table(out, evidence.works("optional", MODEL_LENGTHS[0]), MODEL_LENGTHS[0])
    out.append("")
    kernel_table(out, evidence.works("weights", WEIGHTS), WEIGHTS)
    tokens, width = MUON_SIZES
    out += ["", "Muon's kernels, of the matrices of one layer %d wide, per number of theirs; products are cuBLAS's. Estimates." % width, ""]
    kernels = evidence.kernels["bf16"]
    kernel_table(out, [work for work in evidence.works("muon", tokens)
                       if work.name in kernels and kernels[work.name].source in MUON_SOURCES], 12 * width ** 2)


# ---- registers and occupancy


def compiled_cell(arch, said, threads, dynamic):
    registers, spill, shared = said
    blocks, limit = hardware.occupancy(arch, max(registers, 1), shared + dynamic, threads)
    share = blocks * -(-threads // 32) * 32 / hardware.LIMITS[arch][1]
    return "%d, %s%.0f KB, %.0f %%%s" % (registers, "**spills %d B**, " % spill if spill else "", (shared + dynamic) / 1024,
                                        100 * share, "" if share == 1 else " " + {"registers": "r", "shared memory": "s"}.get(limit, "t"))


def compiled_table(out, evidence, build):
    kernels, shapes = evidence.kernels[build], evidence.launch_shapes(build)
    out += ["| kernel | threads | " + " | ".join("sm_%s" % a for a in ARCHITECTURES) + " |", "|---|---:|" + "---|" * len(ARCHITECTURES)]
    for source in sorted({kernel.source for kernel in kernels.values()}):
        out.append("| **%s** | |%s" % (source, " |" * len(ARCHITECTURES)))
        for name in sorted(name for name in kernels if kernels[name].source == source):
            threads, dynamic = shapes.get(name, (256, 0))
            cells = [compiled_cell(arch, kernels[name].said[arch], threads, dynamic) for arch in ARCHITECTURES if arch in kernels[name].said]
            out.append("| `%s` | %d | %s |" % (name, threads, " | ".join(cells)))
    spills = sum(said[1] > 0 for kernel in kernels.values() for said in kernel.said.values())
    out += ["", "%d kernels; with spills, counted per architecture: %d." % (len(kernels), spills)]


# ---- the page


def prose(out, *paragraphs):
    for paragraph in paragraphs:
        out += textwrap.wrap(paragraph, 120, break_long_words=False, break_on_hyphens=False) + [""]


def assumptions(out):
    prose(out, "What is assumed of the hardware, with sources, stands in `dev/cuda/hardware.py`; the ones that matter most:")
    out += ["| assumed | %s |" % " | ".join(GPUS), "|---|%s" % ("---:|" * len(GPUS))]
    shares = ", ".join("%.2f" % share for _, share in hardware.SHARE_OF_BOUND)
    for what, figure_of in (
            ("bf16 peak, TFLOP/s; memory, TB/s (data sheets)",
             lambda gpu: "%.0f; %.2f" % (GPUS[gpu]["bf16"] / 1e12, GPUS[gpu]["memory"] / 1e12)),
            ("share of memory's rate that streaming kernels reach (guess)", lambda gpu: percent(hardware.SHARE_OF_MEMORY)),
            ("cuBLAS's share of the bf16 peak in the layers' products (A100: fitted to llm.c's figure; H100: guess)",
             lambda gpu: percent(hardware.GEMM_SHARE[gpu])),
            ("cuDNN's softmax, causal, head 64, forward and backward, TFLOP/s at T=1024; 4096 (A100: FlashAttention-2's figure 4; H100: guess)",
             lambda gpu: "%.0f; %.0f" % tuple(hardware.CUDNN_RATE[gpu][T] / 1e12 for T in (1024, 4096))),
            ("cycles of a quarter's tensor cores for mma.sync 16x8x16 in bf16 (A100: data sheet; H100: 62 % of wgmma's rate, arXiv 2402.13499)",
             lambda gpu: "%.1f" % hardware.MMA_CYCLES[GPUS[gpu]["arch"]]),
            ("share of its bound that a kernel reaches with 1, 2, 3, 4, 8 resident warps a quarter (guess)", lambda gpu: shares),
            ("from one launch to the next, us (guess)", lambda gpu: "%.1f" % (1e6 * hardware.LAUNCH_SECONDS))):
        out.append("| %s | %s |" % (what, " | ".join(figure_of(gpu) for gpu in GPUS)))
    out.append("")


HOW = (
    "**Bytes and products are counted.** [dev/cuda_on_cpu](../dev/cuda_on_cpu/README.md) executes the kernels of the bf16 build and "
    "counts: bytes *moved*, every 32-byte sector once per launch, as if caches were perfect within a launch and empty before it; bytes "
    "*requested* by threads; the tensor cores' operations; at every line of the source the bytes that it asked for. A library's call "
    "moves its operands once. Attentions are counted with two heads (or one, where a GPU has more multiprocessors than there are heads) "
    "on a device that is smaller in proportion, and multiplied; quadratic ones at 512 and 1024 tokens, others at 1024 and 2048 "
    "(8192 and 16384 for the paper's sizes), and other lengths follow by aT + bT^2 or a + bT. Launches and blocks are those of the real "
    "sizes: there the launches are made and nothing is computed.",
    "**Issue slots come from machine code.** Each kernel's SASS is cut into loops, and these into the paths that differ in their memory "
    "accesses or products. How often each path was taken follows from the counts: so often that the bytes that its loads and stores ask for "
    "come, call by call and line by line, to what was counted there, and its tensor-core instructions to the products counted (maximum "
    "likelihood; *misfit* is what remains of the difference). Loops without memory accesses run as often as their code says, or once; of "
    "paths that no count can tell apart the longest is taken. Every instruction takes one slot of issue and holds a unit (tensor, fma, integer, special functions, "
    "shared memory) for as long as NVIDIA's throughput tables say; the busiest unit bounds the kernel, or memory does.",
    "What this cannot see: bank conflicts, latencies of dependent instructions, the order of blocks, caches between launches, clocks under "
    "load. The shares of the bounds in the table above stand for all of these.",
)


def page_of(evidence):
    out = ["# The GPU code on paper", ""]
    prose(out, "Written by `make cuda-report` from the sources, the compiler's output, counts of a run on the CPU and published figures. "
          "**Nothing on this page was measured on a GPU: times, rates and shares are ESTIMATES**, except the paper's. How to "
          "measure: [gpu.md](gpu.md).")
    steps = steps_of(evidence)
    rows = target_rows(evidence, steps)
    out += ["## Targets (estimates)", ""]
    target_table(out, rows)
    out.append("")
    prose(out, "Estimates, A100. " + limits_of_step(evidence, steps))
    out += ["## A training step of GPT-2 124M (estimates)", ""]
    prose(out, "bf16, 65536 tokens a step in one micro-batch on one GPU (B=64 at T=1024, B=16 at T=4096), no exchange. Milliseconds; MFU as "
          "llm.c counts it, 6 operations per weight and softmax's, whatever the attention. " + anchor_line(steps))
    step_table(out, steps)
    out += ["", "## Attention alone (estimates beside the paper's measurements)", ""]
    prose(out, "Forward pass of one attention module, embed 256, 8 heads, batch 1, causal. The paper's figures are those of a PyTorch module as its "
          "authors timed it on an A100; at 131072 tokens SLAY took 2442 MB. Memory is the sum of the plan: q, k, v, out, what is kept for "
          "backward, scratch; with backward also the gradients of the first four.")
    paper_table(out, evidence)
    out += ["", "## How the estimates are made", ""]
    assumptions(out)
    prose(out, *HOW)
    linearity_table(out, evidence)
    out += ["", "## The step without its attention (estimates)", ""]
    prose(out, "From runs with one and two layers of %d and %d tokens, as a step of 12 layers and 65536 tokens; memory-bound kernels by their bytes, "
          "cuBLAS's products by their operations." % MODEL_LENGTHS)
    rest_table(out, evidence)
    out += ["", "## The attentions' kernels, one by one (estimates)", ""]
    prose(out, "Slots per tensor cycle: issue slots of all warps over cycles of the tensor cores, for sm_%s; below 1 the tensor cores can be "
          "busy all the time, at 2 half of it. The bound is what takes longest, and the time with it; softmax is our own kernel, not "
          "cuDNN's." % ", ".join(ARCHITECTURES))
    attention_kernels(out, evidence)
    refused = evidence.run_other_options()
    if refused:
        out += ["", "Refused by the GPU code: " + "; ".join(refused) + "."]
    out += ["", "## Registers, shared memory, occupancy", ""]
    prose(out, "Registers, shared memory static and dynamic, theoretical occupancy (resident threads as a share of the most) and what limits it: "
          "registers (r), shared memory (s), threads or blocks (t); with the threads and the memory of the launches. Spills would stand in "
          "bold.")
    for build in compiled.BUILDS:
        out += ["### The %s build" % build, ""]
        compiled_table(out, evidence, build)
        out.append("")
    return out, rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build/cuda/report", help="where counts and tools are kept")
    parser.add_argument("--count", default="build/cuda_on_cpu", help="where count mode's programs are, in count/ and count-bf16/")
    parser.add_argument("--objects", default="build/cuda/report", help="where make cuda-report leaves machine code and what ptxas says, sm_80/bf16/ ...")
    parser.add_argument("--out", default="docs/cuda_report.md")
    args = parser.parse_args()
    evidence = Evidence(args)
    for build in compiled.BUILDS:
        compiled.require_architectures(evidence.kernels[build], build)
    out, rows = page_of(evidence)
    with open(args.out, "w") as page:
        page.write("\n".join(out).rstrip("\n") + "\n")
    print("wrote %s" % args.out)
    missing = compiled.uncounted([name for build in compiled.BUILDS for name in evidence.kernels[build]], evidence.counted)
    problems = ["no run of dev/cuda/traffic.cu launches %s" % name for name in missing] + broken(rows) + [
        "%s build: %s" % (build, fault) for build in compiled.BUILDS for fault in compiled.faults(evidence.kernels[build])]
    if problems:
        sys.exit("cuda-report: %d rules are broken\n  " % len(problems) + "\n  ".join(problems))


if __name__ == "__main__":
    main()
