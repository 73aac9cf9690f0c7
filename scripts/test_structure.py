#!/usr/bin/env python3
"""The plan of the house, checked: every #include points down or stays in its room, every source stands in a room, no file
has more than 1200 lines and no function more than 80, and lines are at most 120 columns wide. Last line:
`N passed, N failed`.

The house is described in CONTRIBUTING.md: base <- math <- gpu; base <- dataloader; math, gpu <- attention <- model <- ranks
<- sample <- train <- the programs.
"""
import os
import re
import subprocess
import sys

# Each room with the rooms that it may look into.
BELOW = {
    "core/base": [],
    "core/math": ["core/base"],
    "core/gpu": ["core/math"],
    "dataloader": ["core/base"],
    "dataloader/stories": ["dataloader"],
    "attention": ["core/gpu"],
    "core/model": ["attention", "dataloader"],
    "core/ranks": ["core/model"],
    "core/train": ["core/sample"],
    "core/sample": ["core/ranks"],
    "": ["core/train", "core/sample", "dataloader/stories", "dev/cuda"],  # the programs
    "dev": [""],
    "dev/bench": ["dev"],
    "dev/cuda": [""],
    "dev/experiments/kernel": ["dev"],
    "dev/faults": [],
    "dev/fixtures": [],
    "dev/fuzz": [""],
    "dev/cuda_on_cpu": ["core/gpu"],
    "dev/cuda_on_cpu/include": [],
    "dev/cuda_on_cpu/include/cooperative_groups": ["dev/cuda_on_cpu/include"],
    "dev/cuda_on_cpu/runtime": ["dev/cuda_on_cpu/include"],
}
# What tests may use from above: the format that fixtures come in.
FOR_TESTS = {"core/model/safetensors.h"}
LONGEST_FILE, LONGEST_FUNCTION, WIDEST_LINE = 1200, 80, 120
MAY_BE_LONGER = re.compile(r"^(main|\w*forward\w*|\w*backward\w*)$")
# Tables: one row a line reads better than one that is broken.
MAY_BE_WIDER = {"core/train/settings.c", "core/sample/sampling.c", "dataloader/unicode_classes.h", "dataloader/tokenize.c"}

failures = []


def check(holds, complaint):
    if not holds:
        failures.append(complaint)


def rooms_below(room, seen=None):
    seen = set() if seen is None else seen
    for below in BELOW[room]:
        if below not in seen:
            seen.add(below)
            rooms_below(below, seen)
    return seen


def includes(path, text, files):
    """The project's own files that `path` includes, and the line each stands in."""
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if not match:
            continue
        for candidate in (os.path.normpath(os.path.join(os.path.dirname(path), match.group(1))), os.path.normpath(match.group(1))):
            if candidate in files:
                yield number, candidate
                break


def check_includes(path, text, files):
    room = os.path.dirname(path)
    is_test = os.path.basename(path).startswith("test_")
    for number, included in includes(path, text, files):
        there = os.path.dirname(included)
        allowed = there == room or there in rooms_below(room) or (is_test and included in FOR_TESTS)
        check(allowed, f"{path}:{number}: {included} is not below {room or 'the programs'}")


NOT_FUNCTIONS = ("#", "//", "typedef", "struct", "enum", "union", "extern", "namespace")
STATEMENTS = ("if", "for", "while", "switch", "else", "do", "case", "return")


def functions(text):
    """Name, first line and number of lines of each function: from a line that ends with `{` to the `}` below it, in the
    first column or, within a struct, indented by one step."""
    lines = text.splitlines()
    start, name, end = None, None, None
    for number, line in enumerate(lines, 1):
        indent = "    " if line.startswith("    ") else ""
        begins = line.endswith("{") and not line[len(indent):].startswith((" ",) + NOT_FUNCTIONS)
        if start is None and begins and "=" not in line and not re.search(r"\b(struct|union) \w+[^()]*\{$", line):
            head = line if "(" in line else " ".join(lines[max(0, number - 4):number])
            match = re.search(r"(\w+)\((?!.*=\s*\{$)", head)
            if match and match.group(1) not in STATEMENTS:
                start, name, end = number, match.group(1), indent + "}"
        elif start is not None and line == end:
            yield name, start, number - start + 1
            start = None


def check_sizes(path, text):
    lines = text.splitlines()
    check(len(lines) <= LONGEST_FILE, f"{path}: {len(lines)} lines, at most {LONGEST_FILE} are allowed: it is two files")
    for name, start, count in functions(text):
        check(count <= LONGEST_FUNCTION or MAY_BE_LONGER.match(name),
              f"{path}:{start}: {name} has {count} lines, at most {LONGEST_FUNCTION} are allowed")
    wide = [number for number, line in enumerate(lines, 1) if len(line) > WIDEST_LINE]
    check(not wide or path in MAY_BE_WIDER, f"{path}:{wide[0] if wide else 0}: {len(wide)} lines are wider than {WIDEST_LINE} columns")


def main():
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], capture_output=True, text=True)
    names = listed.stdout.split("\n") if listed.returncode == 0 else [
        os.path.relpath(os.path.join(folder, name), ".") for folder, _, found in os.walk(".") for name in found]
    sources = {name for name in names if re.search(r"\.(c|h|cu|cuh|cpp)$", name) and os.path.exists(name) and not name.startswith("build")}
    check(len(sources) > 100, f"only {len(sources)} sources found")
    passed = len(sources)  # a source is one check: all its complaints make one failure
    for path in sorted(sources):
        before = len(failures)
        room = os.path.dirname(path)
        check(room in BELOW, f"{path}: stands in no room")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if room in BELOW:
            check_includes(path, text, sources)
        check_sizes(path, text)
        passed -= len(failures) > before
    for failure in failures:
        print("FAIL", failure)
    print(f"{passed} passed, {len(sources) - passed + (len(sources) <= 100)} failed")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
