"""Runs dev/cuda/traffic.cu on dev/cuda_on_cpu in count mode, and reads what every kernel moved, asked for and
multiplied."""

import os
import re
import subprocess
import sys

from sass import place_of


def run(command, **options):
    result = subprocess.run(command, capture_output=True, text=True, **options)
    if result.returncode != 0:
        sys.exit("%s\n%s" % (" ".join(command), result.stderr[-2000:]))
    return result.stdout


def demangled(names):
    """{mangled: name with template arguments, without the function's own}"""
    names = sorted(names)
    text = run(["c++filt", "-p"], input="\n".join(names)) if names else ""
    plain = [re.sub(r"\(\w+\)(?=-?\d)", "", re.sub(r"^void ", "", line)) for line in text.splitlines()]
    return dict(zip(names, plain))


class Count:
    """What one kernel, or one library's call, did in a run; sums over its launches."""

    SUMS = ("launches", "blocks", "moved", "requested", "shared", "bf16", "tf32", "fp32", "warps")

    def __init__(self, name):
        self.name, self.threads, self.dynamic, self.bytes_at = name, 0, 0, {}
        for key in self.SUMS:
            setattr(self, key, 0)

    def is_library(self):
        return self.name.startswith("cu")

    def multiply_adds(self):
        """Of tensor cores, TF32's twice as in sass.multiply_adds."""
        return self.bf16 / 2 + self.tf32

    def add(self, other):
        for key in self.SUMS:
            setattr(self, key, getattr(self, key) + getattr(other, key))
        self.threads, self.dynamic = max(self.threads, other.threads), max(self.dynamic, other.dynamic)
        for place, size in other.bytes_at.items():
            self.bytes_at[place] = self.bytes_at.get(place, 0) + size


class Program:
    """One build of traffic.cu. Results are kept in `directory` until the program is newer than they are."""

    def __init__(self, path, directory):
        self.path, self.directory, self.symbols, self.places, self.known = path, directory, None, {}, {}
        os.makedirs(directory, exist_ok=True)

    def name_of(self, offset, text):
        """A kernel's name from its address in the program; `text` is how its launch spells it."""
        if self.symbols is None:
            lines = [line.split() for line in run(["nm", "--defined-only", self.path]).splitlines()]
            at = {int(words[0], 16): words[2] for words in lines if len(words) == 3 and words[1] in "tTwWuV"}
            names = demangled(set(at.values()))
            self.symbols = {address: names[name] for address, name in at.items()}
        return self.symbols.get(offset, text) if offset else text

    def find_places(self, offsets):
        """Fills `places`: the source line of each instruction, by its offset in the program."""
        missing = sorted(o for o in offsets if o not in self.places)
        if not missing:
            return
        text = run(["addr2line", "-i", "-a", "-e", self.path], input="\n".join("%x" % (o - 1) for o in missing))
        frames = {}
        for line in text.splitlines():
            if line.startswith("0x"):
                at = frames.setdefault(int(line, 16) + 1, [])
            else:
                at.append(tuple(line.split(" (")[0].rsplit(":", 1)))
        self.places.update((o, place_of(frames.get(o, []))) for o in missing)

    def count(self, *words, processors=1, skip=False):
        """{name: Count} of one run; skip: only launches, with a GPU's sizes."""
        words = [str(word) for word in words]
        key = "_".join(words + [str(processors)] + ["skip"] * skip)
        if key not in self.known:
            path = os.path.join(self.directory, re.sub(r"[^\w.-]", "", key) + ".tsv")
            if not os.path.exists(path) or os.path.getmtime(path) < os.path.getmtime(self.path):
                settings = {"TRAFFIC": path + ".new", "SKIP": int(skip), "PROCESSORS": processors, "MEMORY_MB": 81920}
                run([self.path] + words,
                    env=dict(os.environ, **{"CUDA_ON_CPU_" + key: str(value) for key, value in settings.items()}))
                os.rename(path + ".new", path)
            self.known[key] = self.read(open(path))
        return self.known[key]

    def refusal(self, *words):
        """Why the program does not run this, or None."""
        result = subprocess.run([self.path] + [str(word) for word in words], capture_output=True, text=True)
        return result.stderr.strip().split("\n")[-1] if result.returncode else None

    def read(self, lines):
        found, raw = {}, []
        for line in lines:
            words = line.rstrip("\n").split("\t")
            if words[0]:
                raw.append((words[0], [int(word) for word in words[1:]], {}))
            else:
                raw[-1][2][int(words[1])] = int(words[2])
        self.find_places({o for _, _, places in raw for o in places})
        for text, numbers, places in raw:
            offset, threads, dynamic, launches, blocks, *sums = numbers
            count = Count(self.name_of(offset, text))
            count.threads, count.dynamic, count.launches, count.blocks = threads, dynamic, launches, blocks
            count.warps = blocks * -(-threads // 32)
            count.moved, count.requested, count.shared = sum(sums[0:2]), sum(sums[2:4]), sum(sums[4:6])
            count.bf16, count.tf32, count.fp32 = sums[6:9]
            for o, size in places.items():
                if self.places[o]:
                    count.bytes_at[self.places[o]] = count.bytes_at.get(self.places[o], 0) + size
            found.setdefault(count.name, Count(count.name)).add(count)
        return found

    def memory(self, name, *sizes):
        """Bytes of a tensor (B,T,C), of what is kept for backward, of scratch"""
        return tuple(map(int, run([self.path, "attention", name, "memory"] + [str(s) for s in sizes]).split()))
