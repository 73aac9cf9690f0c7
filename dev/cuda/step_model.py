"""Estimates of time from what was counted and compiled: of a kernel, of an attention, of a training step."""

import math

import sass
from compiled import find_kernel
from hardware import GEMM_SHARE, GPUS, LAUNCH_SECONDS, SHARE_OF_MEMORY, CUDNN_RATE, occupancy, share_of_bound

# GPT-2 124M as it is trained: 65536 tokens a step on one GPU, in one micro-batch.
LAYERS, WIDTH, HEADS, VOCABULARY, STEP_TOKENS = 12, 768, 12, 50304, 65536
WEIGHTS_OF_PRODUCTS = 12 * LAYERS * WIDTH * WIDTH + VOCABULARY * WIDTH
ALL_WEIGHTS = WEIGHTS_OF_PRODUCTS + 1024 * WIDTH + (13 * LAYERS + 2) * WIDTH
QUADRATIC = ("softmax", "yat", "yat-spherical")


def model_operations(T):
    """Of a token in a step, as llm.c counts them: 6 for each weight of the products, and softmax's, whatever the attention."""
    return 6 * WEIGHTS_OF_PRODUCTS + 6 * LAYERS * WIDTH * T


class Work:
    """What a kernel did: sums over its launches, linear in everything so that they can be scaled and fitted."""

    KEYS = ("launches", "blocks", "moved", "requested", "shared", "bf16", "tf32", "fp32")

    def __init__(self, count, kernel, architectures):
        self.name, self.threads, self.dynamic, self.kernel = count.name, count.threads, count.dynamic, kernel
        self.sums = {key: float(getattr(count, key)) for key in self.KEYS}
        self.units, self.misfit = {}, {}
        self.is_library = count.is_library()
        if self.is_library:
            return
        for arch in architectures:
            regions = sass.regions_of(kernel.code[arch], arch, count.bytes_at)
            passes = sass.Passes(regions, count.warps, count.bytes_at, count.multiply_adds())
            self.units[arch], self.misfit[arch] = passes.cost().units, passes.misfit

    def combined(self, other, mine, others):
        """mine * self + others * other, in all sums."""
        result = object.__new__(Work)
        result.__dict__.update(self.__dict__)
        result.sums = {key: max(mine * self.sums[key] + others * other.sums[key], 0) for key in self.KEYS}
        result.units = {arch: {unit: max(mine * mine_cycles + others * other.units[arch][unit], 0)
                               for unit, mine_cycles in self.units[arch].items()} for arch in self.units if arch in other.units}
        return result

    def scaled(self, times):
        return self.combined(self, times, 0)


def works_of(counts, kernels, architectures):
    """[Work] of a counted run."""
    return [Work(count, None if count.is_library() else find_kernel(kernels, name), architectures)
            for name, count in counts.items()]


def extrapolate(short, long, lengths, T, quadratic):
    """Works at T tokens a row from those at two lengths: a T + b T^2 for attentions that look at pairs, else a + b T."""
    t1, t2 = lengths
    if quadratic:  # the solution of a t + b t^2 = q at both lengths, as a combination of the two q
        mine = T * (T - t2) / (t1 * (t1 - t2))
        others = T * (T - t1) / (t2 * (t2 - t1))
    else:
        mine, others = (t2 - T) / (t2 - t1), (T - t1) / (t2 - t1)
    later = {work.name: work for work in long}
    return [work.combined(later[work.name], mine, others) for work in short if work.name in later]


def with_launches(works, launched):
    """The launches and blocks of a run at the real sizes, where nothing was computed; {name: Count}."""
    for work in works:
        real = launched.get(work.name)
        if real:
            work.sums["launches"], work.sums["blocks"] = float(real.launches), float(real.blocks)
    return works


def library_seconds(work, gpu):
    numbers = GPUS[gpu]
    share = GEMM_SHARE[gpu]
    multiplying = sum(work.sums[how] / (share * numbers[how]) for how in ("bf16", "tf32", "fp32"))
    return {"products": multiplying, "memory": work.sums["moved"] / (SHARE_OF_MEMORY * numbers["memory"])}


def bounds(work, gpu):
    """{what: seconds that it takes at least}, with what is assumed of how close a kernel comes to it."""
    numbers = GPUS[gpu]
    if work.is_library:
        return library_seconds(work, gpu)
    arch, processors = numbers["arch"], numbers["processors"]
    registers, _, static = work.kernel.said[arch]
    resident, _ = occupancy(arch, max(registers, 1), static + work.dynamic, work.threads)
    blocks = max(work.sums["blocks"] / max(work.sums["launches"], 1), 1)
    filled = blocks / (processors * math.ceil(blocks / processors))
    warps = min(max(resident, 1), math.ceil(blocks / processors)) * -(-work.threads // 32) / 4
    quarters = 4 * processors * numbers["clock"]
    seconds = {unit: cycles / quarters / filled / share_of_bound(warps) for unit, cycles in work.units[arch].items()}
    seconds["memory"] = work.sums["moved"] / (SHARE_OF_MEMORY * numbers["memory"]) / min(1, 2 * blocks / processors)
    return seconds


def lowest_bound(work, gpu):
    """What limits it, and the seconds of all its launches."""
    all_bounds = bounds(work, gpu)
    limit = max(all_bounds, key=all_bounds.get)
    return limit, all_bounds[limit] + work.sums["launches"] * LAUNCH_SECONDS


def seconds_of(works, gpu):
    return sum(lowest_bound(work, gpu)[1] for work in works)


def tensor_seconds(works, gpu):
    """What would be left of seconds_of if nothing but tensor cores, or memory, held the kernels up."""
    total = 0.0
    for work in works:
        limits = bounds(work, gpu)
        total += max(limits.get("tensor", 0.0), limits["memory"]) + work.sums["launches"] * LAUNCH_SECONDS
    return total


def cudnn_seconds(gpu, T):
    """Of cuDNN's softmax in a step: 2 products forward and 5 backward for half of all pairs."""
    return LAYERS * 7 * T * WIDTH * STEP_TOKENS / CUDNN_RATE[gpu][T]


def tensor_share(works, arch):
    """Of the kernels that use tensor cores together: their cycles over the slots of issue that the same time has, and over
    the cycles of the unit that is busiest."""
    multiplying = [work for work in works if not work.is_library and work.units[arch]["tensor"]]
    if not multiplying:
        return None
    tensor = sum(work.units[arch]["tensor"] for work in multiplying)
    issue = sum(max(work.units[arch]["issue"], work.units[arch]["tensor"]) for work in multiplying)
    return tensor / issue, tensor / sum(max(work.units[arch].values()) for work in multiplying)


# ---- the rest of the model, from runs with one and two layers of two lengths


def plane(runs, lengths, layers, tokens):
    """One sum at so many layers and tokens, when it is c + l L + t T + m L T: runs[(L, T)], L in (1, 2), T in lengths."""
    t1, t2 = lengths
    at = {}
    for L in (1, 2):
        at[L] = runs[(L, t1)] + (runs[(L, t2)] - runs[(L, t1)]) * (tokens - t1) / (t2 - t1)
    return max(at[1] + (at[2] - at[1]) * (layers - 1), 0)


def rest_of_step(runs, lengths, leave_out, tokens=STEP_TOKENS, layers=LAYERS):
    """{name: (launches, bytes moved, operations of products)} of a step without the attention; runs: {(L, T): {name: Count}}."""
    names = {name for counts in runs.values() for name in counts} - set(leave_out)
    result = {}
    for name in names:
        def of(key):
            return {at: float(getattr(counts[name], key)) if name in counts else 0.0 for at, counts in runs.items()}
        launches = of("launches")
        in_step = launches[(1, lengths[0])] + (launches[(2, lengths[0])] - launches[(1, lengths[0])]) * (layers - 1)
        result[name] = (in_step, plane(of("moved"), lengths, layers, tokens), plane(of("bf16"), lengths, layers, tokens))
    return result


def rest_seconds(rest, gpu):
    """{"products", "other kernels", "optimiser"}: seconds."""
    numbers, times = GPUS[gpu], {"products": 0.0, "other kernels": 0.0, "optimiser": 0.0}
    for name, (launches, moved, operations) in rest.items():
        if name.startswith("cu"):
            times["products"] += operations / (GEMM_SHARE[gpu] * numbers["bf16"])
        else:
            kind = "optimiser" if name.split("<")[0] in OPTIMISER else "other kernels"
            times[kind] += moved / (SHARE_OF_MEMORY * numbers["memory"]) + launches * LAUNCH_SECONDS
    return times


OPTIMISER = ("adamw_kernel", "sum_squares_kernel", "finish_norm_kernel", "round_weights_kernel")
