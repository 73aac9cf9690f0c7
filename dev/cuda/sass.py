"""Reads machine code: which loops a kernel has, and what one pass through them asks of each unit of a multiprocessor.

nvdisasm and cuobjdump come from the toolkit or, where it lacks them, from PyPI's wheels, fetched into the build directory."""

import glob
import os
import re
import shutil
import subprocess
import sys
import zipfile

from hardware import ALU_CYCLES, FMA_CYCLES, GLOBAL_CYCLES, IMAD_CYCLES, MMA_CYCLES, SHARED_BYTES, SHUFFLE_CYCLES, SPECIAL_CYCLES

# ---- the disassembler


def tool(name, directory):
    """The path of nvdisasm or cuobjdump."""
    beside_nvcc = os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", name)
    found = shutil.which(name) or (beside_nvcc if os.path.exists(beside_nvcc) else None)
    return found or fetched(name, directory)


def fetched(name, directory):
    pattern = os.path.join(directory, "nvidia", "*", "bin", name)
    if not glob.glob(pattern):
        wheel = "nvidia-cuda-" + name
        if subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", directory, wheel]).returncode:
            sys.exit("%s is neither in the toolkit nor could PyPI's %s be fetched; cuda-report needs it" % (name, wheel))
        for path in glob.glob(os.path.join(directory, wheel.replace("-", "_") + "-*.whl")):
            zipfile.ZipFile(path).extractall(directory)
        os.chmod(glob.glob(pattern)[0], 0o755)
    return glob.glob(pattern)[0]


def disassemble(path, directory):
    """{arch: text of nvdisasm} of an object file."""
    work = os.path.join(directory, "cubins", re.sub(r"\W", "_", path))
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    subprocess.run([os.path.abspath(tool("cuobjdump", directory)), "-xelf", "all", os.path.abspath(path)], cwd=work, check=True,
                   stdout=subprocess.DEVNULL)
    texts = {}
    for cubin in glob.glob(os.path.join(work, "*.cubin")):
        arch = re.search(r"sm_(\d+)", os.path.basename(cubin)).group(1)
        texts[arch] = subprocess.run([tool("nvdisasm", directory), "-c", "-gi", cubin], check=True, capture_output=True, text=True).stdout
    shutil.rmtree(work)
    return texts


# ---- instructions and what they cost


class Instruction:
    """One line: predicate, operation with its suffixes, operands; `target` is the label it may jump to, `line` the place in
    the source as "file:number"."""

    def __init__(self, predicate, operation, operands, line=None):
        self.predicate, self.operation, self.operands, self.line = predicate, operation, operands, line
        self.base = operation.split(".")[0]
        found = re.search(r"`\((\.L_\w+)\)", operands)
        self.target = found.group(1) if found else None


def width(operation):
    """Bytes that one lane loads or stores."""
    for bits, size in ((".128", 16), (".64", 8), (".U16", 2), (".S16", 2), (".16", 2), (".U8", 1), (".S8", 1)):
        if bits in operation:
            return size
    return 4


def multiply_adds(operation):
    """Of a warp's HMMA, with TF32's counted twice: they take twice the time."""
    digits = re.search(r"MMA(?:\.SP)?\.(\d+)", operation)
    sizes = {"16816": 2048, "1688": 1024, "1684": 512, "884": 256, "16832": 4096}
    if not digits or digits.group(1) not in sizes:
        raise ValueError("unknown shape of a tensor-core instruction: %s" % operation)
    return sizes[digits.group(1)] * (2 if "TF32" in operation else 1)


TENSOR, SPECIAL = ("HMMA", "QMMA", "OMMA"), ("MUFU", "I2F", "F2I", "I2FP", "F2IP", "FRND")
FMA = ("FFMA", "FADD", "FMUL", "HFMA2", "HADD2", "HMUL2", "FFMA2", "FADD2", "FMUL2", "FFMA32I", "FADD32I", "FMUL32I")
SHARED = ("LDS", "STS", "ATOMS")
GLOBAL = ("LDG", "STG", "LD", "ST", "RED", "ATOM", "ATOMG", "LDGSTS", "LDL", "STL")
NOTHING = ("NOP",)
CLASSES = ("tensor", "ldsm", "shared", "shuffle", "global", "async", "generic", "local", "special", "fp32", "convert", "barrier", "other")


def class_of(base):
    """What the page counts an instruction as."""
    if base in TENSOR:
        return "tensor"
    if base in ("LDSM", "STSM"):
        return "ldsm"
    if base in SHARED:
        return "shared"
    if base in ("SHFL", "REDUX"):
        return "shuffle"
    if base in ("LD", "ST"):
        return "generic"
    if base in ("LDL", "STL"):
        return "local"
    if base == "LDGSTS":
        return "async"
    if base in GLOBAL:
        return "global"
    if base in SPECIAL:
        return "special"
    if base in FMA:
        return "fp32"
    if base in ("F2FP", "F2F"):
        return "convert"
    return "barrier" if base == "BAR" else "other"


UNITS = ("issue", "tensor", "fma", "integer", "special", "shared")


def unit_cycles(instruction, arch):
    """{unit: cycles that this warp's instruction holds it}; every instruction takes one slot of the issue."""
    base, operation = instruction.base, instruction.operation
    if base in NOTHING:
        return {"issue": 1}
    if base in TENSOR:
        return {"issue": 1, "tensor": MMA_CYCLES[arch] * multiply_adds(operation) / 2048}
    if base in ("LDSM", "STSM"):
        matrices = 4 if operation.endswith(".4") else 2 if operation.endswith(".2") else 1
        return {"issue": 1, "shared": matrices * 128 / SHARED_BYTES}
    if base in SHARED:
        return {"issue": 1, "shared": max(width(operation) * 32, 128) / SHARED_BYTES}
    if base in ("SHFL", "REDUX"):
        return {"issue": 1, "shared": SHUFFLE_CYCLES}
    if base in GLOBAL:
        return {"issue": 1, "shared": GLOBAL_CYCLES * max(width(operation) // 4, 1)}
    if base in SPECIAL:
        return {"issue": 1, "special": SPECIAL_CYCLES}
    if base in FMA:
        return {"issue": 1, "fma": FMA_CYCLES[arch]}
    if base == "IMAD":
        return {"issue": 1, "fma": IMAD_CYCLES}
    if base.startswith("U") or base in ("BAR", "BRA", "BSSY", "BSYNC", "EXIT", "DEPBAR", "LDGDEPBAR", "WARPSYNC", "S2R", "S2UR", "CALL", "RET"):
        return {"issue": 1}
    return {"issue": 1, "integer": ALU_CYCLES}


class Cost:
    """What a piece of code asks of a quarter of a multiprocessor, per warp."""

    def __init__(self):
        self.units = dict.fromkeys(UNITS, 0.0)
        self.classes = dict.fromkeys(CLASSES, 0.0)
        self.global_bytes = 0.0  # asked for by a warp's loads and stores
        self.mma = 0.0  # multiply-adds of tensor cores

    def add(self, other, times=1):
        for name in UNITS:
            self.units[name] += times * other.units[name]
        for name in CLASSES:
            self.classes[name] += times * other.classes[name]
        self.global_bytes += times * other.global_bytes
        self.mma += times * other.mma
        return self


def cost_of(instructions, arch):
    cost = Cost()
    for instruction in instructions:
        for unit, cycles in unit_cycles(instruction, arch).items():
            cost.units[unit] += cycles
        kind = class_of(instruction.base)
        cost.classes[kind] += 1
        if kind in ("global", "async", "generic"):
            cost.global_bytes += 32 * width(instruction.operation)
        if kind == "tensor":
            cost.mma += multiply_adds(instruction.operation)
    return cost


# ---- control flow


class Block:
    def __init__(self, labels):
        self.labels, self.instructions, self.successors = labels, [], []


def functions(text):
    """{mangled name: lines of its section}"""
    found, current = {}, None
    for line in text.splitlines():
        section = re.match(r"\.text\.(\S+):$", line.strip())
        if section:
            current = found.setdefault(section.group(1), [])
        elif line.startswith("//-----"):
            current = None
        elif current is not None:
            current.append(line)
    return found


CODE = re.compile(r"\s*(?:\{\s*)?/\*[0-9a-f]+\*/\s+(?:(@!?U?P[0-9T]+)\s+)?([A-Z][\w.]*)\s*([^;]*);")
FRAME = re.compile(r'\s*//## File "([^"]+)", line (\d+)( inlined at)?')
LEAVING = ("BRA", "EXIT", "RET", "BRX", "JMP", "KILL")


def is_own_line(path):
    """Whether a frame tells where in a kernel we are: not in what all kernels share, nor in the compiler's headers."""
    return not re.search(r"core/gpu/\w+\.h$|/include/|cuda_on_cpu/", os.path.normpath(path))


def place_of(frames):
    """"file:line" of the innermost frame that tells; frames: [(path, line)], innermost first."""
    for path, line in frames:
        if is_own_line(path):
            return "%s:%s" % (os.path.basename(path), line)
    return None


def blocks_of(lines):
    """The basic blocks of a function, in order, with the indices of their successors."""
    blocks, frames, complete = [Block([])], [], True
    for line in lines:
        label, frame, code = re.match(r"\s*(\.L_\w+):", line), FRAME.match(line), CODE.match(line)
        if label:
            if blocks[-1].instructions:
                blocks.append(Block([]))
            blocks[-1].labels.append(label.group(1))
        elif frame:
            frames = ([] if complete else frames) + [frame.group(1, 2)]
            complete = not frame.group(3)
        elif code:
            blocks[-1].instructions.append(Instruction(*code.groups(), place_of(frames)))
            if blocks[-1].instructions[-1].base in LEAVING:
                blocks.append(Block([]))
    at = {label: i for i, block in enumerate(blocks) for label in block.labels}
    for i, block in enumerate(blocks):
        last = block.instructions[-1] if block.instructions else None
        leaves = last and last.base in LEAVING
        conditional = leaves and (last.predicate not in (None, "@PT") or re.match(r"!?U?P\d", last.operands))
        if last and last.base in ("BRA", "JMP") and last.target in at:
            block.successors.append(at[last.target])
        if (not leaves or conditional) and i + 1 < len(blocks):
            block.successors.append(i + 1)
    return blocks


def order_of(blocks):
    """Indices of the blocks that can be reached, in reverse postorder."""
    seen, order, stack = {0}, [], [(0, iter(blocks[0].successors))]
    while stack:
        node, successors = stack[-1]
        for successor in successors:
            if successor not in seen:
                seen.add(successor)
                stack.append((successor, iter(blocks[successor].successors)))
                break
        else:
            order.append(node)
            stack.pop()
    return order[::-1]


def dominators(blocks, order):
    """{block: the blocks that every way to it passes}, {block: those before it}"""
    before = {node: [] for node in order}
    for node in order:
        for successor in blocks[node].successors:
            before[successor].append(node)
    dominated_by = {node: set(order) for node in order}
    dominated_by[order[0]] = {order[0]}
    changed = True
    while changed:
        changed = False
        for node in order[1:]:
            new = set.intersection(*(dominated_by[b] for b in before[node])) | {node}
            if new != dominated_by[node]:
                dominated_by[node], changed = new, True
    return dominated_by, before


class Region:
    """The whole function, or a loop in it. `own` is what a pass costs without the loops inside; `bytes_at` says how many
    bytes of device and shared memory a warp's pass asks for at each place of the source. `trips` per entry, where the code
    says it."""

    def __init__(self, header, blocks):
        self.header, self.blocks, self.latches = header, blocks, set()
        self.parent, self.inner, self.trips = None, [], None
        self.own, self.bytes_at, self.weight = Cost(), {}, (0, 0, 0, 0)


def loops_of(blocks):
    """The function's region and those of its loops, outer ones first."""
    order = order_of(blocks)
    dominated_by, before = dominators(blocks, order)
    found = {}
    for node in order:
        for successor in blocks[node].successors:
            if successor in dominated_by[node]:
                loop = found.setdefault(successor, Region(successor, {successor}))
                loop.latches.add(node)
                stack = [node]
                while stack:
                    block = stack.pop()
                    if block not in loop.blocks:
                        loop.blocks.add(block)
                        stack += before[block]
    regions = [Region(0, set(order))] + sorted(found.values(), key=lambda l: -len(l.blocks))
    for i, loop in enumerate(regions[1:], 1):
        loop.trips = trips_of(blocks, loop)
        loop.parent = [outer for outer in regions[:i] if loop.blocks <= outer.blocks][-1]
        loop.parent.inner.append(loop)
    return regions


def trips_of(blocks, loop):
    """How often a loop runs when it counts from zero with a step and to a limit that are in the code; else None."""
    inside = [i for b in sorted(loop.blocks) for i in blocks[b].instructions]
    jump = blocks[max(loop.latches)].instructions[-1:]
    predicate = jump and jump[0].base == "BRA" and re.search(r"U?P\d", (jump[0].predicate or "") + " " + jump[0].operands)
    tests = [i for i in inside if predicate and i.base in ("ISETP", "UISETP") and i.operands.startswith(predicate.group(0) + ",")]
    compared = tests and re.match(r"U?P\d, U?PT, (U?R\d+)(?:\.reuse)?, (0x[0-9a-f]+), U?PT$", tests[-1].operands.strip())
    if not compared:
        return None
    register, limit = compared.group(1), int(compared.group(2), 16)
    for step in inside:
        counts = re.match(r"(U?R\d+), (?:U?PT, U?PT, )?(U?R\d+)(?:\.reuse)?, (0x[0-9a-f]+)(?:, U?RZ)?$", step.operands.strip())
        if step.base in ("IADD3", "VIADD", "UIADD3", "IADD") and counts and counts.group(1) == counts.group(2) == register:
            size = int(counts.group(3), 16)
            return limit // size if 0 < size <= limit < 1 << 20 and limit % size == 0 else None
    return None


MEMORY = ("shared", "ldsm", "global", "generic")


def weigh(instructions, arch, ran):
    """Of two paths the one taken more often: that which has no memory access that never ran, then the one that multiplies
    more, loads more, is shorter. ran: the places that did, None where that is not known."""
    cost = cost_of(instructions, arch)
    places = {i.line for i in instructions if i.line and class_of(i.base) in MEMORY}
    dead = ran is not None and bool(places) and not places & ran
    return (-dead, cost.mma, cost.global_bytes, -cost.units["issue"])


def path_through(blocks, region, arch, ran):
    """The blocks of a pass through a region that is taken most, without those of inner loops; sets the region's weight."""
    inside = {b: loop for loop in region.inner for b in loop.blocks}
    best, active, stack = {}, set(), [region.header]

    def following(node):
        members = inside[node].blocks if node in inside else {node}
        return [s for b in members for s in blocks[b].successors if s in region.blocks and s not in members and s != region.header]

    while stack:
        node = stack[-1]
        active.add(node)
        waiting = [n for n in following(node) if n not in best and n not in active]
        if waiting:
            stack.append(waiting[0])
            continue
        ways = [best[n] for n in following(node) if best.get(n)]
        members = inside[node].blocks if node in inside else {node}
        ends = bool(members & region.latches) if region.latches else not ways
        weight = inside[node].weight if node in inside else weigh(blocks[node].instructions, arch, ran)
        onward = max(ways, key=lambda way: way[0]) if ways else ((0, 0, 0, 0), [])
        here = [] if node in inside else [node]
        best[node] = (tuple(a + b for a, b in zip(weight, onward[0])), here + onward[1]) if ways or ends else None
        active.discard(stack.pop())
    weight, path = best[region.header] or ((0, 0, 0, 0), [])
    region.weight = tuple((region.trips or 1) * x for x in weight)
    return path


def bytes_of(instruction):
    """That a whole warp's instruction asks for."""
    if instruction.base in ("LDSM", "STSM"):
        return 128 * (4 if instruction.operation.endswith(".4") else 2 if instruction.operation.endswith(".2") else 1)
    return 32 * width(instruction.operation)


def regions_of(lines, arch, ran=None):
    """The function and its loops, with what they cost; `ran` as in weigh."""
    blocks = blocks_of(lines)
    regions = loops_of(blocks)
    for region in reversed(regions):
        instructions = [i for b in path_through(blocks, region, arch, ran) for i in blocks[b].instructions]
        region.own = cost_of(instructions, arch)
        for i in instructions:
            if i.line and class_of(i.base) in MEMORY:
                region.bytes_at[i.line] = region.bytes_at.get(i.line, 0) + bytes_of(i)
    return regions


# ---- how often the loops ran


def passes_of(regions, warps, bytes_at, mma):
    """Passes of all warps through each region: those for which the bytes that the code asks for, line by line, and the
    tensor cores' multiply-adds come to what was counted. Maximum likelihood by the EM of Richardson and Lucy; a loop without
    any memory access runs as often as its code says, or once, for each pass around it; one whose accesses all never ran did
    not run. Returns them and the misfit, 0 to 1."""
    shares = [dict(region.bytes_at) for region in regions]
    for share, region in zip(shares, regions):
        if mma and region.own.mma:
            share["mma"] = region.own.mma
    counted = dict(bytes_at, mma=mma)
    lines = [line for line in counted if counted[line] and any(line in share for share in shares)]
    passes, told = [float(warps)], [True]
    for i, region in enumerate(regions[1:], 1):
        passes.append(passes[regions.index(region.parent)] * (region.trips or 1))
        told.append(any(line in shares[i] for line in lines))
    users = {line: [i for i in range(len(regions)) if line in shares[i]] for line in lines}
    for _ in range(300):
        ratio = {line: counted[line] / sum(shares[i][line] * passes[i] for i in users[line]) for line in lines}
        for i in range(1, len(regions)):
            mine = [line for line in lines if line in shares[i]]
            if mine:
                passes[i] *= sum(shares[i][line] * ratio[line] for line in mine) / sum(shares[i][line] for line in mine)
    for i, region in enumerate(regions):
        if not told[i]:
            passes[i] = 0 if region.bytes_at else passes[regions.index(region.parent)] * (region.trips or 1)
    off = sum(abs(sum(shares[i][line] * passes[i] for i in users[line]) - counted[line]) for line in lines)
    return passes, off / max(sum(counted[line] for line in lines), 1)


def total_cost(regions, passes):
    """What all warps of a kernel asked for."""
    cost = Cost()
    for region, times in zip(regions, passes):
        cost.add(region.own, times)
    return cost


def forbidden(lines):
    """{"generic": n, "local": n}: loads and stores whose address space the compiler did not know, and those of its spills."""
    counts = {"generic": 0, "local": 0}
    for line in lines:
        found = CODE.match(line)
        kind = class_of(found.group(2).split(".")[0]) if found else None
        if kind in counts:
            counts[kind] += 1
    return counts
