#!/usr/bin/env python3
"""Long runs: make test-soak MINUTES=60.

  dev/faults/soak.py [--steps 2000] [--stops 20] [--minutes 60] [--pause SECONDS] [--seed N]

A training with a checkpoint every 5 steps is ended and resumed 20 times, at random steps by random signals: its weights,
moments and metrics are those of a run that nobody disturbed, to the bit, and that run takes no more memory or files as it
goes. Then the sampler answers random lines for an hour, from a pipe, and beside it random keys at a terminal. Last line:
`N passed, N failed`. Needs the programs; with --minutes 0 there is no sampling. A line follows its answer at once, which
keeps a core busy for the hour; with --pause 0.1 lines and keys come as fast as people type, and other work goes on beside it.
"""
import argparse
import fcntl
import os
import pty
import random
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

from scenes import ENVIRONMENT, ROOT, metrics_lines, normal, read_tree
from test_faults import SIZES, make_data

sys.path.insert(0, os.path.join(ROOT, "scripts"))
import checks  # noqa: E402

SIGNALS = ["INT", "TERM", "HUP", "PIPE", "KILL"]
PATIENCE = 120  # seconds; a program that says nothing for so long hangs


class Usage:
    """Memory and descriptors of a process, looked at again and again: the most around `settled`, and the most later."""

    def __init__(self, settled):
        self.settled, self.first, self.last = settled, [0, 0], [0, 0]

    def look(self, process, progress):
        """`progress`: a share of the whole. The start, with what it reads and gives back, does not count."""
        if progress < self.settled / 2:
            return
        try:
            with open(f"/proc/{process.pid}/status") as file:
                memory = [int(line.split()[1]) for line in file if line.startswith("VmRSS")]
            found = [memory[0], len(os.listdir(f"/proc/{process.pid}/fd"))]
        except (OSError, IndexError):  # it has just ended
            return
        place = self.first if progress < self.settled else self.last
        place[:] = [max(pair) for pair in zip(place, found)]

    def check(self, name):
        print(f"     {name}: at first {self.first[0]} kB in {self.first[1]} files, later at most {self.last[0]} kB in {self.last[1]}")
        checks.check(f"{name}: memory flat within 1 %", 0 < self.last[0] <= 1.01 * self.first[0], self.first, self.last)
        checks.check(f"{name}: descriptors flat", 0 < self.last[1] <= self.first[1], self.first, self.last)


# ---- training

class Soak:
    def __init__(self, folder, options):
        self.folder, self.options = folder, options
        self.fresh = ["--train", "shard_train_000000.bin", "--val", "shard_val_000000.bin", "--tokenizer", "vocab", "--steps",
                      str(options.steps), "--save-every", "5", "--val-every", "50", "--val-tokens", "64"] + SIZES + ["--keep", "2"]

    def start(self, arguments):
        return subprocess.Popen([os.path.join(ROOT, "train_gpt2"), "--quiet"] + arguments, cwd=self.folder, env=ENVIRONMENT,
                                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def step(self, run):
        """The last step that its metrics tell of."""
        try:
            with open(f"{self.folder}/{run}/metrics.jsonl", "rb") as file:
                file.seek(max(0, os.path.getsize(file.name) - 4096))
                lines = [line for line in file.read().split(b"\n")[:-1] if b'"type": "step"' in line]
            return int(lines[-1].split(b'"step": ')[1].split(b",")[0]) if lines else 0
        except OSError:
            return 0

    def watch(self, process, run, until, usage=None):
        """Waits for the step; whether the process is still there."""
        while process.poll() is None and self.step(run) < until:
            if usage:
                usage.look(process, self.step(run) / self.options.steps)
            time.sleep(0.01)
        return process.poll() is None

    def undisturbed(self):
        usage = Usage(0.2)
        process = self.start(self.fresh + ["--out", "calm"])
        self.watch(process, "calm", self.options.steps, usage)
        checks.check("undisturbed: exit code", process.wait() == 0, process.returncode)
        usage.check(f"{self.options.steps} steps, {self.options.steps // 5} saves")

    def disturbed(self):
        """Its signals, and the steps at which they came."""
        told, wrong, width = [], [], self.options.steps / (self.options.stops + 1)
        for i in range(self.options.stops):
            process = self.start(["--resume", "run", "--steps", str(self.options.steps)] if i else self.fresh + ["--out", "run"])
            until, name = int((i + random.uniform(0.4, 1)) * width) + 1, random.choice(SIGNALS)
            is_there = self.watch(process, "run", until)
            time.sleep(random.uniform(0, 0.02))
            number = getattr(signal, "SIG" + name)
            process.send_signal(number)
            told.append(f"{self.step('run')} {name}")
            code = process.wait(PATIENCE)
            if not is_there or code != (-number if name == "KILL" else 128 + number):
                wrong.append(f"{told[-1]}: exit code {code}")
        print("     ended at step:", ", ".join(told))
        checks.check(f"{self.options.stops} signals: exit codes", not wrong, *wrong)
        process = self.start(["--resume", "run", "--steps", str(self.options.steps)])
        checks.check("the last resumption: exit code", process.wait() == 0, process.returncode)

    def compare(self):
        calm, disturbed = (read_tree(f"{self.folder}/{name}") for name in ("calm", "run"))
        last = f"step_{self.options.steps:08}/"
        wrong = [path for path in calm if path.startswith(last) and normal(path, calm[path]) != normal(path, disturbed.get(path, b"{}"))]
        checks.check("weights, moments and state to the bit", last + "model.safetensors" in calm and not wrong, wrong)
        lines = [metrics_lines(tree["metrics.jsonl"]) for tree in (calm, disturbed)]
        checks.check("every step and validation once, to the digit", len(lines[0]) > self.options.steps and lines[0] == lines[1])


# ---- sampling

WORDS = ["Once", "upon", "a", "time", "\u00e9t\u00e9", "\u4f60\u597d", "\U0001f600", "<|endoftext|>", "%s%n", "\\", '"', "\t", "  ", "\x7f", "0" * 99]
LONGEST = 230000  # bytes of a line; more than 11 words, 200 times over


def random_line(most):
    """Bytes for a line: words, and now and then bytes that are no text; never empty."""
    line = b""
    for _ in range(random.randrange(1, 12)):
        line += random.choice(WORDS).encode() + b" " if random.random() < 0.9 else random.randbytes(random.randrange(1, 20))
    if random.random() < 0.02:
        line *= random.randrange(1, most)
    return b"x" + line.replace(b"\n", b" ").replace(b"\r", b" ")


def start_sampler(folder, **streams):
    return subprocess.Popen([os.path.join(ROOT, "sample_gpt2"), folder + "/calm", "--interactive", "--no-stats", "--tokens", "20", "--seed",
                             str(random.randrange(1000))], env={**ENVIRONMENT, "TERM": "xterm", "HOME": folder}, **streams)


def answer_pipe(folder, minutes, pause):
    """Lines from a pipe, one after each prompt, to one process."""
    process = start_sampler(folder, stdin=subprocess.PIPE, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    usage, began, lines, heard = Usage(0.2), time.monotonic(), 0, b""
    while (progress := (time.monotonic() - began) / (60 * minutes)) < 1:
        while not heard.endswith(b"> "):
            part = os.read(process.stderr.fileno(), 4096) if select.select([process.stderr], [], [], PATIENCE)[0] else b""
            if not part:
                break
            heard = (heard + part)[-100:]
        if not heard.endswith(b"> "):
            break
        heard = b""
        process.stdin.write(b"x" * LONGEST + b"\n" if lines == 0 else random_line(200) + b"\n")  # what it needs at most comes first
        process.stdin.flush()
        usage.look(process, progress)
        lines += 1
        time.sleep(pause)
    process.stdin.close()
    said = process.stderr.read()[-300:]
    code = process.wait(PATIENCE)
    checks.check(f"{lines} lines from a pipe in {minutes} minutes: exit code", code == 0 and progress >= 1, code, heard, said)
    usage.check("sampling")


ENDING = b"\x04\x11\x13\x1a\x1c"  # keys that end or stop a program, or hold a terminal up
KEYS = [bytes([k]) for k in range(1, 32) if k not in ENDING + b"\n\r"] + \
    [b"\x1b[A", b"\x1b[B", b"\x1b[C", b"\x1b[D", b"\x1b[3~", b"\x1bb", b"\x1bf", b"\x1bd", b"\xff", b"\xc3"]


def type_at_terminal(folder, ends, deadline, pause):
    """One process at a terminal that is resized and typed at, until it ends or the time is over; its exit code, None: it hangs."""
    master, slave = pty.openpty()
    process = start_sampler(folder, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
                            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
    os.close(slave)
    heard_at, is_alive = time.monotonic(), True
    while is_alive and time.monotonic() < deadline and time.monotonic() - heard_at < PATIENCE:
        if select.select([master], [], [], max(0.02, pause))[0]:
            heard_at = time.monotonic()
            try:
                is_alive = len(os.read(master, 65536)) > 0
            except OSError:  # the terminal's other end is closed
                is_alive = False
        elif process.poll() is None:
            keys = random.choice(KEYS) if random.random() < 0.3 else random_line(20)[:2000].translate(None, ENDING) + b"\n" * random.randrange(2)
            os.write(master, keys)
            if random.random() < 0.05:
                fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", random.randrange(1, 60), random.randrange(2, 200), 0, 0))
        else:
            is_alive = False
    hangs = is_alive and time.monotonic() < deadline
    if is_alive:
        process.kill()
    process.wait(PATIENCE)
    os.close(master)
    ends.append("hangs" if hangs else 0 if is_alive else process.returncode)


def answer_terminal(folder, minutes, pause, ends):
    deadline = time.monotonic() + 60 * minutes
    while time.monotonic() < deadline:
        type_at_terminal(folder, ends, deadline, pause)


def sample(folder, minutes, pause):
    ends = []
    terminal = threading.Thread(target=answer_terminal, args=(folder, minutes, pause, ends))
    terminal.start()
    answer_pipe(folder, minutes, pause)
    terminal.join()
    wrong = [code for code in ends if code not in (0, 128 + signal.SIGINT, -signal.SIGINT)]
    checks.check(f"{len(ends)} processes at a terminal under random keys: exit codes", ends and not wrong, wrong[:9])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, kind, value in (("--steps", int, 2000), ("--stops", int, 20), ("--minutes", float, 60), ("--pause", float, 0), ("--seed", int, 1)):
        parser.add_argument(name, type=kind, default=value)
    options = parser.parse_args()
    for number in (signal.SIGHUP, signal.SIGINT):  # nohup and a shell's & have them ignored, and so would the programs
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    random.seed(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        make_data(folder)
        soak = Soak(folder, options)
        soak.undisturbed()
        soak.disturbed()
        soak.compare()
        if options.minutes > 0:
            sample(folder, options.minutes, options.pause)
    return checks.summary()


if __name__ == "__main__":
    sys.exit(main())
