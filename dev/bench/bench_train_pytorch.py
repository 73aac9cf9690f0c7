#!/usr/bin/env python3
"""A training step here and in PyTorch (eager and compiled, fused AdamW), side by side on the same machine.

    dev/bench/bench_train_pytorch.sh [--batch 4] [--sequence 64] [--threads 2] [--rounds 6] [--most-rounds 20] [--steps 2]
                                     [--attentions softmax,slay] [--peers eager,compile] [--model small] [--vocab 4096]

Both train the same GPT-2 in float32 on the same random tokens: forward, backward, clipping, AdamW. Each is a process of
its own that runs all the time, but all are stopped except the one whose turn it is, and a turn is a few steps long: a
machine that is busy for a while is busy for all of them. The ratio is taken within a round of turns, and rounds go on
until its quartiles are less than 10 % apart, or for --most-rounds. The first steps of a process (--skip) do not count,
nor does a step that a stop has cut in two. Peak memory is the process's largest resident set.
"""
import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from results import add_round_options, machine_now, quartiles, record, rounds_until_settled

SIZES = {"tiny": (4, 4, 128), "small": (6, 8, 256), "gpt2": (12, 12, 768), "gpt2-medium": (24, 16, 1024)}


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=SIZES, default="gpt2")
    parser.add_argument("--vocab", type=int, default=50257)
    parser.add_argument("--attentions", default="softmax", help="ours to run, with commas; the first is compared")
    parser.add_argument("--recompute", default="none", help="ours: none, cheap or blocks")
    parser.add_argument("--peers", default="eager", help="PyTorch's ways to run, with commas: eager, compile; or none")
    parser.add_argument("--batch", type=int, default=4, help="rows per step")
    parser.add_argument("--sequence", type=int, default=64, help="tokens per row")
    parser.add_argument("--threads", type=int, default=2)
    add_round_options(parser)
    parser.add_argument("--steps", type=int, default=2, help="steps per turn")
    parser.add_argument("--skip", type=int, default=2, help="steps of each process before its first turn")
    parser.add_argument("--wanted", default="", help="how many times as fast it should be as each of the others, with "
                        "commas, for the table of make bench")
    parser.add_argument("--wanted-memory", type=float, help="how many times its memory PyTorch should need, likewise")
    parser.add_argument("--start-up", action="store_true", help="the time to the first step too")
    parser.add_argument("--pytorch-child", nargs=2, metavar=("SHARD", "LOG"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.context = max(1024, options.sequence)
    return options


# ---- PyTorch, in a process of its own


def make_gpt2(torch, layers, heads, width, context, vocabulary):
    """GPT-2 as one writes it in PyTorch: fused attention, tied head."""
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.fc, self.fcproj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            B, T, C = x.shape
            q, k, v = (y.view(B, T, heads, C // heads).transpose(1, 2) for y in self.qkv(self.ln_1(x)).split(C, dim=2))
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
            return x + self.fcproj(functional.gelu(self.fc(self.ln_2(x)), approximate="tanh"))

    class GPT2(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
            self.blocks, self.ln_f = nn.ModuleList(Block() for _ in range(layers)), nn.LayerNorm(width)
            for weight in self.parameters():
                if weight.dim() == 2:
                    nn.init.normal_(weight, std=0.02)

        def forward(self, inputs, targets):
            x = self.wte(inputs) + self.wpe.weight[: inputs.shape[1]]
            for block in self.blocks:
                x = block(x)
            logits = functional.linear(self.ln_f(x), self.wte.weight)
            return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return GPT2()


def pytorch_child(options):
    """Trains until it is killed, with a line {"type": "step", "ms": ..., "loss": ...} in the log for each step."""
    import numpy
    import torch

    torch.set_num_threads(options.threads)
    torch.manual_seed(1337)
    model = make_gpt2(torch, *SIZES[options.model], options.context, options.vocab)
    run = torch.compile(model) if options.peers == "compile" else model
    groups = [{"params": [p for p in model.parameters() if p.dim() == 2], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() != 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=6e-6, betas=(0.9, 0.95), fused=True)
    shard, log_path = options.pytorch_child
    tokens = torch.from_numpy(numpy.fromfile(shard, dtype="<u2", offset=1024).astype("int64"))
    B, T = options.batch, options.sequence
    log = open(log_path, "w")
    for step in itertools.count():
        start = time.perf_counter()
        begin = step * B * T % (len(tokens) - B * T - 1)
        inputs, targets = tokens[begin : begin + B * T].view(B, T), tokens[begin + 1 : begin + B * T + 1].view(B, T)
        optimizer.zero_grad(set_to_none=True)
        loss = run(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        value = loss.item()
        print(json.dumps({"type": "step", "ms": 1e3 * (time.perf_counter() - start), "loss": value}), file=log, flush=True)


# ---- both, as processes


class Contender:
    """A process that trains, and writes a line for each step to its log; stopped except in its turns."""

    def __init__(self, command, log, environment=None):
        self.log, self.seen, self.memory = log, 0, 0
        self.process = subprocess.Popen(command, env=environment)

    def steps(self):
        try:
            with open(self.log) as lines:
                return [json.loads(line) for line in lines if line.endswith("\n") and '"type": "step"' in line]
        except FileNotFoundError:
            return []

    def turn(self, count, skip=1):
        """`count` steps after the first `skip`; by default after the one that the last stop has cut in two."""
        wanted = self.seen + skip + count
        os.kill(self.process.pid, signal.SIGCONT)
        while len(steps := self.steps()) < wanted:
            time.sleep(0.05)
            if self.process.poll() is not None:
                sys.exit(f"{self.process.args[0]} ended with {self.process.returncode} after {len(steps)} steps")
        os.kill(self.process.pid, signal.SIGSTOP)
        self.seen = len(self.steps())  # one more may have ended meanwhile
        return steps[wanted - count : wanted]

    def end(self):
        """Kills it, so that it saves no checkpoint. Its largest resident set stays in `memory`, in megabytes."""
        if self.process.returncode is None:
            self.process.kill()
            _, status, usage = os.wait4(self.process.pid, 0)
            self.process.returncode = os.waitstatus_to_exitcode(status)
            self.memory = usage.ru_maxrss * 1024 / 1e6


def start_slay(options, shard, directory, attention):
    run = os.path.join(directory, f"run_{time.monotonic_ns()}")
    layers, heads, width = map(str, SIZES[options.model])
    command = ["./train_gpt2", "--train", shard, "--no-shuffle", "--layers", layers, "--heads", heads, "--width", width,
               "--context", str(options.context), "--vocab", str(options.vocab), "--attention", attention, "--recompute",
               options.recompute, "--batch", str(options.batch), "--sequence",
               str(options.sequence), "--threads", str(options.threads), "--steps", "1000000", "--save-every", "0",
               "--quiet", "--out", run]
    return Contender(command, os.path.join(run, "metrics.jsonl"))


def start_pytorch(options, shard, directory, way):
    log = os.path.join(directory, f"pytorch_{way}.jsonl")
    command = [sys.executable, os.path.abspath(__file__), "--pytorch-child", shard, log, "--peers", way]
    for name in "model", "vocab", "batch", "sequence", "threads":
        command += [f"--{name}", str(getattr(options, name))]
    return Contender(command, log, dict(os.environ, OMP_NUM_THREADS=str(options.threads)))


def startup_seconds(options, shard, directory):
    """From the program's start to its first step, of a process of its own."""
    contender = start_slay(options, shard, directory, options.attentions.split(",")[0])
    contender.turn(1, skip=0)
    contender.end()
    with open(contender.log) as lines:
        return json.loads(lines.readline())["machine"]["startup_seconds"]


def write_shard(path, count, vocabulary):
    import numpy

    header = numpy.zeros(256, dtype="<i4")
    header[:3] = 20240520, 1, count
    tokens = numpy.random.default_rng(1).integers(0, vocabulary, count).astype("<u2")
    with open(path, "wb") as file:
        file.write(header.tobytes() + tokens.tobytes())


# ---- rounds and what they came to


def ratios_to(rounds, ours, name):
    """In how much less time ours makes a step, in each round."""
    return [statistics.median(r[name]) / statistics.median(r[ours]) for r in rounds]


def run_round(options, contenders):
    """{name: its steps' milliseconds}, and "share": of the sgemm rate at the time, the first contender's."""
    gflops = machine_now(options.threads)["gflops"]
    steps = {name: contender.turn(options.steps) for name, contender in contenders.items()}
    times = {name: [step["ms"] for step in taken] for name, taken in steps.items()}
    print(", ".join(f"{name} {statistics.median(ms):.1f} ms" for name, ms in times.items()), flush=True)
    ours = next(iter(contenders))
    return times | {"share": statistics.median(step["gflops"] for step in steps[ours]) / gflops}


def print_table(options, contenders, rounds):
    B, T = options.batch, options.sequence
    print(f"\n{options.model}, B={B}, T={T}, fp32, {options.threads} threads, {len(rounds)} rounds of {options.steps} steps")
    print(f"{'':18}{'ms per step':>14}{'quartiles':>18}{'tokens/s':>10}{'peak memory':>14}{'loss':>9}")
    for name, contender in contenders.items():
        times = [ms for r in rounds for ms in r[name]]
        median, (low, high) = statistics.median(times), quartiles(times)
        print(f"{name:18}{median:14.1f}{f'{low:.0f} .. {high:.0f}':>18}{1e3 * B * T / median:10.0f}"
              f"{contender.memory:11.0f} MB{contender.steps()[options.skip]['loss']:9.3f}")
    ours, *others = contenders
    shares = [r["share"] for r in rounds]
    low, high = quartiles(shares)
    print(f"share of the machine's sgemm rate, {ours}: {100 * statistics.median(shares):.0f}% "
          f"({100 * low:.0f} .. {100 * high:.0f})")
    targets = [float(number) for number in options.wanted.split(",") if number]
    for name, wanted in itertools.zip_longest(others, targets[:len(others)]):
        ratios = ratios_to(rounds, ours, name)
        low, high = quartiles(ratios)
        print(f"{ours} is {statistics.median(ratios):.2f} times as fast as {name} (quartiles {low:.2f} .. {high:.2f})")
        record_result(options, contenders, rounds, ours, name, wanted)
    if not others:
        record(work_of(options, ours) + ", memory", "MB", contenders[ours].memory, "", None, [])


def work_of(options, ours):
    """What the table of make bench calls it."""
    special = [word for word in (ours.split()[-1], f"recompute {options.recompute}") if word not in ("softmax", "recompute none")]
    return ", ".join([f"{options.model} step", f"B={options.batch} T={options.sequence}"] + special)


def record_result(options, contenders, rounds, ours, name, wanted):
    work = work_of(options, ours)
    times = [statistics.median(ms for r in rounds for ms in r[side]) for side in (ours, name)]
    record(work, "ms", times[0], name, times[1], ratios_to(rounds, ours, name), wanted,
           statistics.median(r["share"] for r in rounds))
    memory = [contenders[side].memory for side in (ours, name)]
    record(work + ", memory", "MB", memory[0], name, memory[1], [memory[1] / memory[0]], options.wanted_memory)


def compare(options, shard, directory):
    starts = {f"slay.c {name}": (start_slay, name) for name in options.attentions.split(",")}
    starts |= {f"PyTorch {way}": (start_pytorch, way) for way in options.peers.split(",") if way != "none"}
    contenders = {}
    try:
        for name, (start, variant) in starts.items():
            contenders[name] = start(options, shard, directory, variant)
            contenders[name].turn(1, options.skip - 1)
        ours, *others = contenders
        rounds = rounds_until_settled(options, lambda: run_round(options, contenders),
                                      lambda rounds: [ratios_to(rounds, ours, name) for name in others])
    finally:
        for contender in contenders.values():
            contender.end()
    print_table(options, contenders, rounds)


def main():
    options = parse_options()
    if options.pytorch_child:
        return pytorch_child(options)
    if not os.access("./train_gpt2", os.X_OK):
        sys.exit("./train_gpt2 is missing; run make, and this from the project's root")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through the code that ends the other processes
    with tempfile.TemporaryDirectory() as directory:
        shard = os.path.join(directory, "tokens.bin")
        write_shard(shard, 1 << 20, options.vocab)
        if options.start_up:
            startups = [startup_seconds(options, shard, directory) for _ in range(5)]
            print(f"start-up to the first step: {statistics.median(startups):.2f} s ({min(startups):.2f} .. {max(startups):.2f})")
            record(f"start-up, {options.model} with random weights", "s", statistics.median(startups), "", None, [])
        compare(options, shard, directory)


if __name__ == "__main__":
    main()
