#!/usr/bin/env python3
"""What the tests have executed of the C code, and every message of refusal. Called by `dev/sanitized/run.sh coverage`.

  coverage.py count OBJECTS FILE              reads the counts beside the objects, which the tests have left there, into a file
  coverage.py write DOCS FILE FILE TEST...    from the counts after the tests, and those after the faults too, DOCS/coverage.md
                                              and DOCS/refusals.md; FILE.branches lists the branches that neither has taken
"""
import collections
import datetime
import glob
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile

COMMAND = "`make coverage`"
EVERY = int(os.environ.get("FAULTS_EVERY", 1))
LEFT_OUT = ("test_", "dev/", "attention/naive_")  # tests, and definitions that only tests call


class Lines:
    """How often each line of a file was executed, and each branch of it, over all programs."""

    def __init__(self, counts=(), branches=()):
        self.counts, self.branches = collections.Counter(dict(counts)), dict(branches)

    def add(self, line):
        number = line["line_number"]
        self.counts[number] += line["count"]
        taken = [branch["count"] for branch in line["branches"]]
        before = self.branches.get(number, [0] * len(taken))
        if len(before) == len(taken):
            self.branches[number] = [a + b for a, b in zip(before, taken)]


def read_counts(folder):
    files = collections.defaultdict(Lines)
    names = [os.path.abspath(path) for path in glob.glob(folder + "/**/*.gcno", recursive=True)]
    with tempfile.TemporaryDirectory() as work:
        for i in range(0, len(names), 50):
            subprocess.run(["gcov", "--branch-probabilities", "--json-format", "--hash-filenames"] + names[i:i + 50],
                           cwd=work, check=True, capture_output=True)
        for path in glob.glob(work + "/*.json.gz"):
            with gzip.open(path) as file:
                for source in json.load(file)["files"]:
                    name = os.path.normpath(source["file"])
                    if name.endswith(".c") and not name.startswith("/") and not any(part in name for part in LEFT_OUT):
                        for line in source["lines"]:
                            files[name].add(line)
    return files


def save_counts(path, files):
    with open(path, "w") as file:
        json.dump({name: [list(lines.counts.items()), list(lines.branches.items())] for name, lines in files.items()}, file)


def load_counts(path):
    with open(path) as file:
        return {name: Lines(*map(dict, saved)) for name, saved in json.load(file).items()}


def share(part, whole):
    return f"{part} of {whole} | {100 * part / whole:.1f}%" if whole else "0 of 0 | "


def taken_of(lines):
    branches = [count for counts in lines.branches.values() for count in counts]
    return [sum(count > 0 for count in branches), len(branches)]


def counts_of(lines, with_faults):
    return [sum(count > 0 for count in lines.counts.values()), len(lines.counts)] + taken_of(lines) + taken_of(with_faults)


def room_of(name):
    return os.path.dirname(name) or "the programs (train_gpt2.c, sample_gpt2.c, evaluate.c)"


def write_coverage(path, files, with_faults, tests):
    rooms = collections.defaultdict(lambda: [0] * 6)
    for name, lines in files.items():
        for key in (room_of(name), "all"):
            rooms[key] = [a + b for a, b in zip(rooms[key], counts_of(lines, with_faults[name]))]
    with open(path, "w") as file:
        file.write(f"# What the tests execute\n\nLines and branches of the C code that the CPU's tests and scripts have executed, by gcov: {COMMAND}, "
                   f"{datetime.date.today()}. A branch is each way out of a condition. Among those that no test takes are the ways "
                   "out of system calls and allocations that fail, in which the last columns differ: with `make test-faults` as well, where such a call "
                   f"fails at every {EVERY}th of its places.\n\n"
                   "| room | lines | | branches | | with faults | |\n|---|---:|---:|---:|---:|---:|---:|\n")
        for room in sorted(rooms, key=lambda room: (room == "all", room)):
            done = rooms[room]
            file.write(f"| {room} | {share(*done[:2])} | {share(*done[2:4])} | {share(*done[4:])} |\n")
        names = ", ".join(sorted(os.path.splitext(os.path.basename(test))[0].removeprefix("test_") for test in tests))
        file.write(f"\nThe tests were: {names}.\n")


def write_left(path, files):
    """The lines with a branch that was never taken, as FILE:LINE: COUNTS: TEXT."""
    with open(path, "w") as out:
        for name in sorted(files):
            with open(name) as file:
                text = file.read().split("\n")
            for number, counts in sorted(files[name].branches.items()):
                if 0 in counts:
                    out.write(f"{name}:{number}: {' '.join(map(str, counts))}: {text[number - 1].strip()}\n")


# ---- messages

LITERALS = r'((?:"(?:[^"\\]|\\.)*"\s*(?:PRI\w+\s*|[A-Z_]+\s+)?)+)'
CALL = re.compile(r'\b(?:error_set\(\s*[^,"]+,|die\()\s*' + LITERALS)


def readable(literals):
    """A format as its reader meets it: what is filled in as ..."""
    text = "".join(part if part[:1] != '"' else part[1:-1] for part in re.findall(r'"(?:[^"\\]|\\.)*"|[A-Z_]\w+', literals))
    text = re.sub(r"%(?:PRI\w+|JSON_INTEGER_FORMAT)|%[-+ #0]*[\d*]*(?:\.[\d*]+)?(?:hh|h|ll|l|z|j)?[diuxXeEfgGsc]", "...", text.replace("%%", "\0"))
    return text.replace("\0", "%").replace('\\"', '"').replace("|", "\\|").replace("<", "&lt;")


def messages_of(name, lines):
    with open(name) as file:
        text = file.read()
    for match in CALL.finditer(text):
        first, last = (1 + text.count("\n", 0, place) for place in (match.start(), match.end()))
        yield first, readable(match.group(1)), any(lines.counts.get(number, 0) for number in range(first, last + 1))


def write_refusals(path, files):
    met = whole = 0
    rows = []
    for name in sorted(files):
        for line, text, is_met in messages_of(name, files[name]):
            met, whole = met + is_met, whole + 1
            rows.append(f"| {text} | {name} | {'yes' if is_met else ''} |\n")
    with open(path, "w") as file:
        file.write(f"# Messages of refusal\n\nEvery message with which a program refuses a file, an option or a state of the machine; `...` is filled in: "
                   f"the file, what was found. Made by {COMMAND}, {datetime.date.today()}, which also tells which of them the tests have "
                   f"provoked: {met} of {whole}. Most of the others need an allocation or a system call that fails, or another machine; "
                   "`make test-faults` makes such calls fail.\n\n| message | in | met by the tests |\n|---|---|---|\n")
        file.writelines(rows)


def main():
    if sys.argv[1] == "count":
        save_counts(sys.argv[3], read_counts(sys.argv[2]))
        return
    docs, after_tests, after_faults, *tests = sys.argv[2:]
    files, with_faults = load_counts(after_tests), load_counts(after_faults)
    write_coverage(os.path.join(docs, "coverage.md"), files, with_faults, tests)
    write_refusals(os.path.join(docs, "refusals.md"), files)
    write_left(after_faults + ".branches", with_faults)


if __name__ == "__main__":
    main()
