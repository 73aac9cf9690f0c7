"""What the compiler made of every kernel: ptxas's words and machine code, by architecture."""

import glob
import os
import re
import sys

import sass
from counts import demangled
from hardware import ARCHITECTURES

BUILDS = tuple(os.environ.get("REPORT_BUILDS", "bf16 fp32").split())


def sources():
    files = ["train_gpt2.cu", "sample_gpt2.cu"] + sorted(glob.glob("core/*/*.cu")) + sorted(glob.glob("attention/*.cu"))
    return [f for f in files if not os.path.basename(f).startswith("test_")]


def parse(text):
    """{mangled name: {arch: (registers, spilled bytes, shared bytes)}} of ptxas's words"""
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
            said = (int(found.group(1)), spill, int(shared.group(1)) if shared else 0)
            kernels.setdefault(current[0], {})[current[1]] = said
    return kernels


class Kernel:
    """One kernel of one build: by architecture what ptxas said, and its code's lines."""

    def __init__(self, name, source):
        self.name, self.source, self.said, self.code = name, source, {}, {}

    def multiplies(self, arch):
        """Whether it uses tensor cores."""
        return any("MMA." in line and sass.CODE.match(line) for line in self.code[arch])


def read_build(objects, build, tools):
    """{name: Kernel}, each where it appears first: sample_gpt2.cu includes train_gpt2.cu. objects: where make cuda-report leaves
    them, sm_ARCH/BUILD/SOURCE.cubin and what ptxas said of it."""
    kernels = {}
    for source in sources():
        for arch in ARCHITECTURES:
            stem = os.path.join(objects, "sm_" + arch, build, source[:-3])
            if not os.path.exists(stem + ".ptxas"):
                sys.exit("%s.ptxas is missing; run make cuda-report" % stem)
            said = parse(open(stem + ".ptxas").read())
            codes = sass.disassemble(stem + ".cubin", tools) if said else {}
            for mangled, name in demangled(said).items():
                kernel = kernels.setdefault(name, Kernel(name, source))
                if kernel.source == source:
                    kernel.said.update(said[mangled])
                    kernel.code[arch] = codes[mangled]
    return kernels


def require_architectures(kernels, build):
    for name, kernel in kernels.items():
        for arch in ARCHITECTURES:
            if arch not in kernel.said or arch not in kernel.code:
                sys.exit("%s, %s build: nothing for sm_%s; make cuda-report compiles for all" % (name, build, arch))


def faults(kernels):
    """What no kernel may have, as sentences: spills anywhere; in a kernel of the tensor cores loads and stores to
    addresses whose space the compiler does not know (LD, ST: twice the latency, and no LDSM), or to local memory."""
    found = []
    for name in sorted(kernels):
        kernel = kernels[name]
        for arch in sorted(kernel.said):
            if kernel.said[arch][1]:
                found.append("%s on sm_%s spills %d bytes of registers" % (name, arch, kernel.said[arch][1]))
            if arch in kernel.code and kernel.multiplies(arch):
                for kind, number in sass.forbidden(kernel.code[arch]).items():
                    if number:
                        found.append("%s on sm_%s has %d %s loads and stores" % (name, arch, number, kind))
    return found


def find_kernel(kernels, name):
    """A counted kernel's; where the harness knows only how its launch is written, the first of that name that is there."""
    if name in kernels:
        return kernels[name]
    same = sorted(other for other in kernels if other.split("<")[0] == name.split("<")[0])
    if not same:
        sys.exit("%s was counted, but nvcc's objects have no such kernel: are they older than the source?" % name)
    return kernels[same[0]]


def uncounted(compiled, counted):
    """The kernels that were compiled, without their template arguments, and that no counted run has launched."""
    return sorted({name.split("<")[0] for name in compiled} - {name.split("<")[0] for name in counted})
