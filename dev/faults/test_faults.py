#!/usr/bin/env python3
"""Faults, one at a time and everywhere: make test-faults.

  dev/faults/test_faults.py [--every N] [SCENE...]      the scenes whose names begin so; default: all

With --every N only each N-th of the places is tried, which ones depends on the scene and the kind: a sample for CI.

Every allocation and every call on files of a small run of each program fails once (dev/faults/faults.c is preloaded), the
trainer is killed and interrupted at every call, its disk fills and empties again, its directory goes away or is filled with
strange things. After each the program has said so in one line or has gone on as promised, no file under a final name is
damaged, and what goes on from there comes to the bits of an undisturbed run. Prints a table of what was tried; last line:
`N passed, N failed`. Needs the programs, a C compiler and a kernel with seccomp.
"""
import argparse
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

from scenes import ROOT, Scene, Training, run

sys.path.insert(0, os.path.join(ROOT, "scripts"))
import checks  # noqa: E402

FOR_EVER = 10 ** 9
# How a call of each kind fails.
ERRORS = {"open": ["EMFILE"], "read": ["EIO"], "write": ["ENOSPC", "EINTR", "short"], "fsync": ["EIO"], "rename": ["EIO"],
          "mkdir": ["ENOSPC"], "unlink": ["EACCES"], "mmap": ["ENOMEM"], "stat": ["EIO"], "statfs": ["EIO"], "list": ["EIO"],
          "truncate": ["EIO"], "lock": ["ENOLCK"], "seek": ["EIO"], "close": ["EIO"]}
# Signals that follow each other, three calls apart.
CHAINS = [["INT"], ["TERM"], ["HUP"], ["PIPE"], ["INT", "TERM"], ["TERM", "INT"], ["HUP", "TERM", "HUP"], ["PIPE", "HUP"],
          ["INT", "INT"], ["USR1", "PIPE", "TERM"], ["TERM", "KILL"]]


def action_of(name):
    return name if name == "short" else str(getattr(errno, name))


class Campaign:
    """Runs scenes under faults, as many at once as there are cores, and counts."""

    def __init__(self, work, every=1):
        self.every = every
        self.work, self.library = work, os.path.join(work, "faults.so")
        self.number, self.table = 0, []
        self.pool = ThreadPoolExecutor(os.cpu_count())

    def build(self):
        """Whether the library works here."""
        source = os.path.join(ROOT, "dev/faults/faults.c")
        compiler = os.environ.get("CC", "cc")
        built = subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", self.library, source], capture_output=True)
        return built.returncode == 0 and run(["inspect", "--help"], self.folder(make=True), self.library).code == 0

    def folder(self, make=False):
        self.number += 1
        path = os.path.join(self.work, f"{self.number}")
        if make:
            os.mkdir(path)
        return path

    def try_one(self, scene, faults, codes=(0, 1), leaves=False, at_stop=None, place=None):
        """One run and what followed from it, as complaints."""
        folder = place or self.folder()
        scene.prepare(folder)
        result = run(scene.command, folder, self.library, at_stop, FAULTS=faults)
        if at_stop == fill_or_empty and os.path.exists(filler_of(folder)):
            os.remove(filler_of(folder))
        complaints = [f"{faults}: {text}" for text in scene.judge(result, codes, leaves, at_stop is not None)]
        if not complaints:
            complaints = [f"{faults}: {text}" for text in scene.recover(result)]
        if not complaints or not os.environ.get("KEEP"):
            shutil.rmtree(folder)
        return complaints

    def some_of(self, cases, name):
        return cases[zlib.crc32(name.encode()) % self.every::self.every]

    def report(self, scene, what, tried, complaints):
        self.table.append((scene.name, what, tried, len(complaints)))
        checks.check(f"{scene.name}: {what}: {tried} tried", tried and not complaints, *complaints[:5])

    def try_all(self, scene, what, cases, all_of_them=False):
        """`cases`: arguments of try_one."""
        cases = cases if all_of_them else self.some_of(cases, f"{scene.name} {what}")
        if not cases:
            return
        jobs = [self.pool.submit(self.try_one, scene, *case) for case in cases]
        self.report(scene, what, len(jobs), [text for job in jobs for text in job.result()])

    def count_calls(self, scene):
        folder = self.folder()
        scene.prepare(folder)
        run(scene.command, folder, self.library, FAULTS_REPORT=folder + ".calls")
        with open(folder + ".calls") as file:
            return {kind: int(count) for kind, count in (line.split() for line in file)}

    # ---- kinds of campaigns

    def fail_allocations(self, scene):
        """In children of one process; those that went on are run as a whole."""
        folder = self.folder()
        scene.prepare(folder)
        run(scene.command, folder, self.library, FAULTS_FORK=folder + ".children", FAULTS_FORK_EVERY=str(self.every))
        with open(folder + ".children") as file:
            children = [line.rstrip("\n").split(" ", 2) for line in file]
        complaints, going_on = [], []
        for number, code, text in children:
            messages = [part for part in text.split("\t") if part and ": warning: " not in part]
            if code in ("0", "77"):
                going_on.append((f"alloc:{number}:1:{errno.ENOMEM}", (0, 1), True))
            elif code != "1" or len(messages) != 1:
                complaints.append(f"allocation {number}: exit code {code}, {messages[:3]}")
        self.report(scene, "an allocation fails", len(children), complaints)
        self.try_all(scene, "an allocation fails and it goes on", going_on, all_of_them=True)

    def fail_calls(self, scene, calls):
        for kind, names in ERRORS.items():
            for name in names:
                cases = [(f"{kind}:{k}:1:{action_of(name)}", (0, 1), kind == "unlink") for k in range(1, calls[kind] + 1)]
                self.try_all(scene, f"{kind} fails ({name})", cases)

    def kill_everywhere(self, scene, calls):
        cases = [(f"file:{k}:1:-9", (-9,), True) for k in range(1, calls["file"] + 1)]
        self.try_all(scene, "kill -9 at a call on files", cases)

    def send_signals(self, scene, calls):
        cases = []
        for k in range(1, calls["file"] + 1):
            numbers = [getattr(signal, "SIG" + name) for name in CHAINS[k % len(CHAINS)]]
            faults = ",".join(f"file:{k + 3 * i}:1:-{number}" for i, number in enumerate(numbers))
            codes = [0] + [128 + n for n in numbers] + [-n for n in numbers] + [128 + signal.SIGTERM] * (signal.SIGUSR1 in numbers)
            cases.append((faults, codes, True))
        self.try_all(scene, "signals at a call on files", cases)

    def break_disk(self, scene, calls):
        """Full, broken or read-only from some call on: for a while, or for ever."""
        for name in ("ENOSPC", "EROFS", "EIO"):
            for count in (4, 40, FOR_EVER):
                cases = [(f"change:{k}:{count}:{action_of(name)}", (0, 1), True) for k in range(1, calls["change"] + 1, 3)]
                length = "from there on" if count == FOR_EVER else f"for {count} calls"
                self.try_all(scene, f"the disk fails ({name}) {length}", cases)

    def change_directory(self, scene, calls):
        for what, change in (("removed", remove_run), ("replaced", replace_run), ("filled with strange entries", add_strange)):
            cases = [(f"file:{k}:1:-{signal.SIGSTOP}", (0, 1), True, change) for k in range(1, calls["file"] + 1, 4)]
            self.try_all(scene, f"the run directory is {what}", cases)

    def fill_disk(self, scene, calls):
        place = self.folder(make=True)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", place], capture_output=True).returncode:
            print("skipped: a small disk that fills and empties again: mounting is not allowed here")
            return
        try:
            complaints, tried = [], 0
            for k in self.some_of(range(1, calls["change"] + 1, 5), "disk"):
                stops = f"change:{k}:1:-{signal.SIGSTOP},change:{k + 12}:1:-{signal.SIGSTOP}"
                complaints += self.try_one(scene, stops, (0, 1), True, fill_or_empty, place + "/run")
                tried += 1
            self.report(scene, "a disk of 4 MB fills and empties again", tried, complaints)
        finally:
            subprocess.run(["umount", place])


# ---- what happens to a run directory while its program is stopped

def remove_run(folder):
    shutil.rmtree(folder + "/run", ignore_errors=True)


def replace_run(folder):
    if os.path.isdir(folder + "/run"):
        os.rename(folder + "/run", folder + "/moved")
        os.mkdir(folder + "/run")


def add_strange(folder):
    """Things in the place of what is to be saved, and names that resemble it."""
    run_folder = folder + "/run/"
    if not os.path.isdir(run_folder):
        return
    for name in ("step_00000005.tmp/inner/deep", "step_00000006.tmp/x", "step_00000099999999999999999999", "metrics.jsonl.tmp/a"):
        if not os.path.isfile(os.path.dirname(run_folder + name)):
            os.makedirs(run_folder + name, exist_ok=True)
    if not os.path.exists(run_folder + "step_00000006"):
        with open(run_folder + "step_00000006", "w") as file:
            file.write("not a checkpoint")
    os.mkfifo(run_folder + "step_00000003")
    os.symlink("nowhere", run_folder + "aside")
    os.symlink(".", run_folder + "step_00000001")
    with open(run_folder + "a\nb\x1b[31m", "w"):
        pass


def filler_of(folder):
    return os.path.dirname(folder) + "/filler"


def fill_or_empty(folder):
    path = filler_of(folder)
    if os.path.exists(path):
        os.remove(path)
        return
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass


# ---- the scenes

SIZES = ["--layers", "1", "--heads", "2", "--width", "16", "--context", "32", "--sequence", "16", "--batch", "2", "--warmup", "1",
         "--save-wait", "0", "--keep", "9"]
FRESH = ["train_gpt2", "--train", "shard_train_000000.bin", "--val", "shard_val_000000.bin", "--tokenizer", "vocab", "--steps", "6",
         "--save-every", "2", "--val-every", "3", "--out", "run", "--val-tokens", "64"] + SIZES


def must(command, folder):
    result = run(command, folder)
    assert result.code == 0, (command, result.messages)


def make_data(folder):
    """Texts, a vocabulary, shards, a set of questions."""
    must(["stories", "--stories", "40", "--seed", "3", "--out", "text"], folder)
    must(["stories", "--stories", "20", "--seed", "4", "--out", "other"], folder)
    must(["tokenize", "train", "--vocab", "290", "--out", "vocab", "text"], folder)
    must(["tokenize", "encode", "--vocab-file", "vocab", "--out", "shard", "--validation-file", "other", "text"], folder)
    with open(folder + "/set.jsonl", "w") as file:
        for label in range(3):
            print(json.dumps({"ctx": "Once upon", "endings": ["a time", "on a", "the end"], "label": label}), file=file)


def make_scenes(campaign):
    """Two templates: data alone, and data with a run and older versions of everything that is written."""
    data, full, half = (campaign.folder(make=True) for _ in range(3))
    make_data(data)
    shutil.rmtree(full), shutil.rmtree(half)
    shutil.copytree(data, full)
    shutil.copytree(data, half)
    must(FRESH, full)
    must(FRESH, half)
    for step in (4, 6):
        shutil.rmtree(f"{half}/run/step_{step:08}")
    for name in ("out.tiktoken", "new_train_000000.bin", "new.json", "out.gguf", "out.bin", "scores", "logits"):
        with open(f"{full}/{name}", "w") as file:
            file.write("the version before\n")

    def without_rate(text):
        return "\n".join(line.split(" s (")[0].rsplit(",", 1)[0] for line in text.split("\n"))
    yield Training("train", data, FRESH, FRESH)
    yield Training("resume", half, ["train_gpt2", "--resume", "run", "--steps", "6"], FRESH)
    yield Scene("sample", full, ["sample_gpt2", "run/step_00000006", "--prompt", "Once upon", "--tokens", "6", "--no-stats"])
    yield Scene("sample logits", full, ["sample_gpt2", "run/step_00000006", "--prompt", "Once", "--logits", "logits"])
    yield Scene("sample loss", full, ["sample_gpt2", "run/step_00000006", "--loss", "shard_val_000000.bin", "--loss-tokens", "64", "--no-stats"])
    yield Scene("tokenize train", full, ["tokenize", "train", "--vocab", "280", "--out", "out.tiktoken", "other"], without_rate)
    yield Scene("tokenize encode", full, ["tokenize", "encode", "--vocab-file", "vocab", "--out", "new", "other"], without_rate)
    yield Scene("tokenize decode", full, ["tokenize", "decode", "--vocab-file", "vocab", "shard_val_000000.bin"])
    yield Scene("tokenize info", full, ["tokenize", "info", "vocab"])
    yield Scene("inspect", full, ["inspect", "run"])
    yield Scene("inspect checkpoint", full, ["inspect", "run/step_00000004"])
    yield Scene("export_gguf", full, ["export_gguf", "run/step_00000006", "out.gguf"])
    yield Scene("export_llmc", full, ["export_llmc", "run/step_00000006", "out.bin"])
    yield Scene("evaluate", full, ["evaluate", "run/step_00000006", "set.jsonl", "--scores", "scores"])


# ---- locks: another machine is one whose name stands in the file

MOUNT = "36 35 {device} / {place} rw,noatime - {type} server:/export rw,vers=3{option}\n"
LOCKS = [  # type, option of the mount, errno of flock, who is in the file; the exit code, a part of what is said
    ("nfs", "", 0, "", 0, ""),
    ("nfs", "", 0, "process 1 on elsewhere", 0, ""),
    ("nfs", ",nolock", 0, "", 0, "the locks of this file system (nfs) do not reach other machines"),
    ("nfs4", ",local_lock=all", 0, "process 1 on elsewhere", 1, "found process 1 on elsewhere; locks do not reach"),
    ("lustre", ",localflock", 0, "process 7 on elsewhere", 1, "found process 7 on elsewhere; locks do not reach"),
    ("lustre", ",flock", 0, "process 7 on elsewhere", 0, ""),
    ("ext4", "", errno.ENOLCK, "", 0, "(No locks available) do not reach other machines"),
    ("ext4", "", errno.ENOLCK, "process 1 on elsewhere", 1, "found process 1 on elsewhere"),
    ("ext4", "", errno.ENOLCK, "process 999999999 on " + os.uname().nodename, 0, "do not reach other machines"),
    ("ext4", "", errno.ENOLCK, "process 1 on " + os.uname().nodename, 1, "found process 1 on"),
    ("ext4", "", errno.EWOULDBLOCK, "process 1 on elsewhere", 1, "found process 1 on elsewhere; wait for it"),
    ("ext4", "", 0, "nonsense \x1b", 0, ""),
]


def try_locks(campaign, scene):
    complaints = []
    for kind, option, failure, holder, code, part in LOCKS:
        folder = campaign.folder()
        scene.prepare(folder)
        os.mkdir(folder + "/run")
        with open(folder + "/run/lock", "w") as file:
            file.write(holder)
        number = os.stat(folder).st_dev
        with open(folder + ".mounts", "w") as file:
            file.write(MOUNT.format(device=f"{os.major(number)}:{os.minor(number)}", place=folder, type=kind, option=option))
        result = run(scene.command, folder, campaign.library, FAULTS_MOUNTS=folder + ".mounts", FAULTS=f"lock:1:9:{failure}")
        said = "\n".join(result.warnings + result.messages)
        if result.code != code or part not in said or (not part and said):
            complaints.append(f"{kind}{option}, {failure}, {holder}: {result.code} {said}")
    campaign.report(scene, "two runs in one directory, of one machine or of two", len(LOCKS), complaints)


def try_scene(campaign, scene):
    scene.learn(campaign.folder(), campaign.library)
    calls = campaign.count_calls(scene)
    campaign.fail_allocations(scene)
    campaign.fail_calls(scene, calls)
    campaign.kill_everywhere(scene, calls)
    campaign.break_disk(scene, calls)
    if isinstance(scene, Training):
        campaign.send_signals(scene, calls)
        campaign.change_directory(scene, calls)
        campaign.fill_disk(scene, calls)
    if scene.command == FRESH:
        try_locks(campaign, scene)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("scenes", nargs="*")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        campaign = Campaign(work, options.every)
        if not campaign.build():
            print("skipped: faults: no C compiler for the library, or no seccomp on this machine")
            print("0 passed, 0 failed, 1 skipped")
            return 0
        for scene in make_scenes(campaign):
            if not options.scenes or scene.name.startswith(tuple(options.scenes)):
                try_scene(campaign, scene)
    used = os.times()
    print(f"{sum(row[2] for row in campaign.table)} faults tried, {sum(row[3] for row in campaign.table)} failed, "
          f"{time.monotonic() - began:.0f} s, {used.children_user + used.children_system + used.user + used.system:.0f} s of processor time")
    return checks.summary()


if __name__ == "__main__":
    sys.exit(main())
