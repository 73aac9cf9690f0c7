"""Reads machine code: which loops a kernel has, and what one pass through them asks of each unit of a multiprocessor.

nvdisasm comes from the toolkit or, where it lacks it, from PyPI's wheel, fetched into the build directory."""

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
    """The path of a program of the toolkit."""
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


def disassemble(cubin, directory):
    """{mangled name: lines of its machine code, with the places in the source between them}"""
    return functions(subprocess.run([tool("nvdisasm", directory), "-c", "-gi", cubin], check=True, capture_output=True, text=True).stdout)


# ---- instructions and what they cost


class Instruction:
    """One line: predicate, operation with its suffixes, operands; `target` is the label it may jump to, `place` where in the
    source it is: ((file, line), ...), innermost first."""

    def __init__(self, predicate, operation, operands, place=()):
        self.predicate, self.operation, self.operands, self.place = predicate, operation, operands, place
        self.base = "NOP" if predicate == "@!PT" else operation.split(".")[0]
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


def leaves(instruction):
    """Whether control may go elsewhere. Calls of a label of the function itself are long jumps; others come back."""
    return instruction.base in LEAVING or (instruction.base == "CALL" and bool(instruction.target))


def is_own_line(path):
    """Whether a frame tells where in a kernel we are: not in what all kernels share, nor in the compiler's headers."""
    return not re.search(r"core/gpu/\w+\.h$|/include/|cuda_on_cpu/", os.path.normpath(path))


def place_of(frames):
    """((file, line), ...) of the frames that tell, innermost first; frames: [(path, line)], likewise."""
    return tuple((os.path.basename(path), int(line)) for path, line in frames if line.isdigit() and is_own_line(path))


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
            if leaves(blocks[-1].instructions[-1]):
                blocks.append(Block([]))
    at = {label: i for i, block in enumerate(blocks) for label in block.labels}
    for i, block in enumerate(blocks):
        last = block.instructions[-1] if block.instructions else None
        jumps = last and leaves(last)
        conditional = jumps and (last.predicate not in (None, "@PT") or re.match(r"!?U?P\d|~?U?R", last.operands))
        if jumps and last.target in at:
            block.successors.append(at[last.target])
        if (not jumps or conditional) and i + 1 < len(blocks):
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


class Path:
    """One way through a region, without the loops inside it: what it costs, which loops it enters, and how many bytes of
    device and shared memory a warp asks for at each place of the source."""

    def __init__(self, instructions, inner, arch):
        self.cost, self.inner, self.bytes_at = cost_of(instructions, arch), inner, {}
        for i in instructions:
            if i.place and class_of(i.base) in MEMORY:
                self.bytes_at[i.place] = self.bytes_at.get(i.place, 0) + bytes_of(i)


class Region:
    """The whole function, or a loop in it; `trips` per entry, where the code says it."""

    def __init__(self, header, blocks):
        self.header, self.blocks, self.latches = header, blocks, set()
        self.parent, self.inner, self.trips, self.paths = None, [], None, []


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


MEMORY = ("shared", "ldsm", "global", "async", "generic")
MOST_PATHS = 24  # of a region that are told apart


def bytes_of(instruction):
    """What a warp asks for if every lane asks for as much as the one that asks for most; a row of a matrix has 16 bytes."""
    return 32 * (16 if instruction.base in ("LDSM", "STSM") else width(instruction.operation))


class Way:
    """A way from a block to a region's end. Ways with the same memory accesses and products count as one, the longest: nothing
    counted could tell them apart."""

    def __init__(self, node, marks, mma, slots, onward=None):
        self.node, self.onward = node, onward
        self.marks = marks | onward.marks if onward else marks
        self.mma = mma + (onward.mma if onward else 0)
        self.slots = slots + (onward.slots if onward else 0)

    def nodes(self):
        way, found = self, []
        while way:
            found.append(way.node)
            way = way.onward
        return found


def distinct(ways):
    """The longest of each kind; where there are too many kinds, the longest and the shortest with the same products, and of the
    others as many as there is room for, from the longest to the shortest at even steps."""
    best = {}
    for way in ways:
        key = (way.marks, way.mma)
        if key not in best or best[key].slots < way.slots:
            best[key] = way
    found = sorted(best.values(), key=lambda way: -way.slots)
    if len(found) <= MOST_PATHS:
        return found
    first, last = {}, {}
    for i, way in enumerate(found):
        first.setdefault(way.mma, i)
        last[way.mma] = i
    ends = sorted({*first.values(), *last.values()}, key=lambda i: -found[i].mma)[:MOST_PATHS]
    between = [i for i in range(len(found)) if i not in ends]
    room = MOST_PATHS - len(ends)
    chosen = ends + [between[i * len(between) // room] for i in range(room)]
    return [found[i] for i in sorted(chosen)]


def marks_of(instructions):
    return frozenset(i.place for i in instructions if i.place and class_of(i.base) in MEMORY)


def never_ran(instructions, counted):
    """Whether there are memory accesses, and nothing was counted at any of them."""
    places = marks_of(instructions)
    return bool(places) and not any(match(place, counted) for place in places)


def paths_of(blocks, region, arch, idle):
    """The paths through a region: from its header to where it begins again, or where the function ends; around the blocks
    in `idle` where there is a way around them."""
    inside = {b: loop for loop in region.inner for b in loop.blocks}
    ways, active, stack = {}, set(), [region.header]

    def following(node):
        members = inside[node].blocks if node in inside else {node}
        all_of_them = {s for b in members for s in blocks[b].successors if s in region.blocks and s not in members and s != region.header}
        return all_of_them - idle or all_of_them

    while stack:
        node = stack[-1]
        active.add(node)
        waiting = [n for n in following(node) if n not in ways and n not in active]
        if waiting:
            stack.append(waiting[0])
            continue
        onward = [way for n in following(node) for way in ways.get(n, ())]
        if node in inside:
            ends = bool(inside[node].blocks & region.latches)
            here = (node, frozenset(), 0, 1)  # rather into the loop than past it
        else:
            ends = node in region.latches
            cost = cost_of(blocks[node].instructions, arch)
            here = (node, marks_of(blocks[node].instructions), cost.mma, cost.units["issue"])
        alone = ends if region.latches else not onward
        ways[node] = distinct([Way(*here, way) for way in onward] + ([Way(*here)] if alone else []))
        active.discard(stack.pop())
    if not ways[region.header] and idle:
        return paths_of(blocks, region, arch, set())
    found = []
    for way in ways[region.header]:
        nodes = way.nodes()
        instructions = [i for n in nodes if n not in inside for i in blocks[n].instructions]
        found.append(Path(instructions, {inside[n].header for n in nodes if n in inside}, arch))
    return found


def regions_of(lines, arch, counted=()):
    """The function and its loops, outer ones first, with their paths; counted: the places where anything was."""
    blocks = blocks_of(lines)
    regions = loops_of(blocks)
    idle = {i for i, block in enumerate(blocks) if counted and never_ran(block.instructions, counted)}
    for region in regions:
        region.paths = paths_of(blocks, region, arch, idle)
    return regions


# ---- how often each path was taken


def same_frame(a, b, lines):
    return a[0] == b[0] and abs(a[1] - b[1]) <= lines


def match(place, counted):
    """The counted place that is this one: the harness's compiler inlines less, so it may know fewer of the outer frames, and
    compilers differ by a few lines in where a call stands that has several. None: nothing was counted there."""
    found = [key for key in counted if 0 < len(key) <= len(place) and
             all(same_frame(a, b, 3 if i else 0) for i, (a, b) in enumerate(zip(key, place)))]
    return max(found, key=lambda key: (len(key), -sum(abs(a[1] - b[1]) for a, b in zip(key, place)))) if found else None


class Passes:
    """How often all warps together took each path of each region: so that the bytes that the code asks for, place by place,
    and the tensor cores' multiply-adds come to what was counted. Maximum likelihood by the EM of Richardson and Lucy. Loops
    without memory accesses run as often as their code says, or once, for each pass around them; those none of whose accesses
    were counted did not run. `misfit`: what remains of the differences, as a share of what was counted."""

    def __init__(self, regions, warps, bytes_at, mma):
        self.regions, self.warps = regions, warps
        self.paths = [(region, path) for region in regions for path in region.paths]
        self.taken = [0.0] * len(self.paths)
        self.asked, self.counted = self.equations(bytes_at, mma)
        self.start()
        for _ in range(400):
            self.improve()
        self.follow()
        off = sum(abs(self.predicted(key) - self.counted[key]) for key in self.users)
        self.misfit = off / max(sum(self.counted[key] for key in self.users), 1)

    def equations(self, bytes_at, mma):
        """What each path asks for by key, and what was counted by key: of places that never ran nothing, where there is a path
        around them."""
        asked, counted, matched = [], dict(bytes_at), {}
        for region, path in self.paths:
            mine = {}
            for place, size in path.bytes_at.items():
                if place not in matched:
                    matched[place] = match(place, bytes_at)
                key = matched[place]
                if key is None and all(place in other.bytes_at for other in region.paths):
                    continue
                key = ("never", place) if key is None else key
                counted.setdefault(key, 0)
                mine[key] = mine.get(key, 0) + size
            if mma and path.cost.mma:
                mine["mma"], counted["mma"] = 4 * path.cost.mma, 4 * mma
            asked.append(mine)
        self.users = {}
        for i, mine in enumerate(asked):
            for key in mine:
                self.users.setdefault(key, []).append(i)
        return asked, counted

    def passes(self, region):
        return sum(taken for (owner, _), taken in zip(self.paths, self.taken) if owner is region)

    def start(self):
        """As often as the code says, all paths of a region alike."""
        expected = {}
        for region in self.regions:
            expected[region] = self.warps if not region.parent else expected[region.parent] * (region.trips or 1)
        self.taken = [expected[region] / len(region.paths) for region, _ in self.paths]

    def predicted(self, key):
        return sum(self.asked[i][key] * self.taken[i] for i in self.users[key])

    def improve(self):
        ratio = {key: self.counted[key] / max(self.predicted(key), 1e-30) for key in self.users}
        for i, mine in enumerate(self.asked):
            if mine:
                self.taken[i] *= sum(size * ratio[key] for key, size in mine.items()) / sum(mine.values())
        once = [i for i, (region, _) in enumerate(self.paths) if not region.parent]
        total = sum(self.taken[i] for i in once)
        for i in once:
            self.taken[i] *= self.warps / total if total else 0

    def follow(self):
        """Loops of which no place tells."""
        for region in self.regions[1:]:
            mine = [i for i, (owner, _) in enumerate(self.paths) if owner is region]
            if any(self.asked[i] for i in mine):
                continue
            entered = sum(taken for (owner, path), taken in zip(self.paths, self.taken)
                          if owner is region.parent and region.header in path.inner)
            idle = any(path.bytes_at for path in region.paths)
            for i in mine:
                self.taken[i] = 0.0 if idle else entered * (region.trips or 1) / len(mine)

    def cost(self):
        """What all warps asked for."""
        total = Cost()
        for (_, path), taken in zip(self.paths, self.taken):
            total.add(path.cost, taken)
        return total


def forbidden(lines):
    """{"generic": n, "local": n}: loads and stores whose address space the compiler did not know, and those of its spills."""
    counts = {"generic": 0, "local": 0}
    for line in lines:
        found = CODE.match(line)
        kind = class_of(found.group(2).split(".")[0]) if found else None
        if kind in counts:
            counts[kind] += 1
    return counts
