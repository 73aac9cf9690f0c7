#!/usr/bin/env python3
"""A training step here and in PyTorch (eager and compiled, fused AdamW), side by side on the same machine.

    dev/bench/bench_train_pytorch.sh [--batch 4] [--sequence 64] [--threads 2] [--rounds 5] [--steps 8]
                                     [--attentions softmax,slay] [--peers eager,compile] [--model small] [--vocab 4096]

Both train the same GPT-2 in float32 on the same random tokens: forward, backward, clipping, AdamW. The two take turns,
each in a process of its own, so that a machine that is busy for a while is busy for both; the ratio is taken within each
round. The first steps of a process (--skip) do not count. Peak memory is the process's largest resident set.
"""
import argparse
import functools
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from results import record

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
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="steps per round that count")
    parser.add_argument("--skip", type=int, default=2, help="steps per round before those")
    parser.add_argument("--wanted", default="", help="how many times as fast it should be as each of the others, with "
                        "commas, for the table of make bench")
    parser.add_argument("--start-up", action="store_true", help="the time to the first step goes into that table too")
    parser.add_argument("--pytorch-child", metavar="SHARD", help=argparse.SUPPRESS)
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
    """Prints {"ms": ..., "loss": ...} for each step."""
    import numpy
    import torch

    torch.set_num_threads(options.threads)
    torch.manual_seed(1337)
    model = make_gpt2(torch, *SIZES[options.model], options.context, options.vocab)
    run = torch.compile(model) if options.peers == "compile" else model
    groups = [{"params": [p for p in model.parameters() if p.dim() == 2], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() != 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=6e-6, betas=(0.9, 0.95), fused=True)
    tokens = torch.from_numpy(numpy.fromfile(options.pytorch_child, dtype="<u2", offset=1024).astype("int64"))
    B, T = options.batch, options.sequence
    for step in range(options.skip + options.steps):
        start = time.perf_counter()
        begin = step * B * T % (len(tokens) - B * T - 1)
        inputs, targets = tokens[begin : begin + B * T].view(B, T), tokens[begin + 1 : begin + B * T + 1].view(B, T)
        optimizer.zero_grad(set_to_none=True)
        loss = run(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        value = loss.item()
        print(json.dumps({"ms": 1e3 * (time.perf_counter() - start), "loss": value}), flush=True)


# ---- both, as processes


def peak_megabytes(process):
    """Waits for the process to end."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_maxrss * 1024 / 1e6


def steps_so_far(run):
    try:
        with open(os.path.join(run, "metrics.jsonl")) as lines:
            return [json.loads(line) for line in lines if line.endswith("\n") and '"type": "step"' in line]
    except FileNotFoundError:
        return []


startups = []  # seconds
shares = {}  # attention: the share of the machine's own sgemm rate in each round


def run_slay(options, shard, directory, attention):
    """(step times, losses, peak memory). Ends by SIGKILL once it has done its steps, so that it saves no checkpoint."""
    run = os.path.join(directory, f"run_{time.monotonic_ns()}")
    layers, heads, width = map(str, SIZES[options.model])
    command = ["./train_gpt2", "--train", shard, "--no-shuffle", "--layers", layers, "--heads", heads, "--width", width,
               "--context", str(options.context), "--vocab", str(options.vocab), "--attention", attention, "--recompute",
               options.recompute, "--batch", str(options.batch), "--sequence",
               str(options.sequence), "--threads", str(options.threads), "--steps", "1000000", "--save-every", "0",
               "--quiet", "--out", run]
    process = subprocess.Popen(command)
    steps, wanted = [], options.skip + options.steps
    try:
        while len(steps) < wanted:
            time.sleep(0.2)
            if process.poll() is not None:
                sys.exit(f"./train_gpt2 ended with {process.returncode} after {len(steps)} steps")
            steps = steps_so_far(run)
    finally:
        if process.returncode is None:
            process.kill()
    memory = peak_megabytes(process)
    steps = steps[options.skip : wanted]
    with open(os.path.join(run, "metrics.jsonl")) as lines:
        machine = json.loads(lines.readline())["machine"]
    startups.append(machine["startup_seconds"])
    shares.setdefault(attention, []).append(statistics.median(s["gflops"] for s in steps) / machine["gflops"])
    return [s["ms"] for s in steps], [s["loss"] for s in steps], memory


def run_pytorch(options, shard, directory, way):
    environment = dict(os.environ, OMP_NUM_THREADS=str(options.threads))
    command = [sys.executable, os.path.abspath(__file__), "--pytorch-child", shard, "--peers", way]
    for name in "model", "vocab", "batch", "sequence", "threads", "steps", "skip":
        command += [f"--{name}", str(getattr(options, name))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=directory)
    try:
        steps = [json.loads(line) for line in process.stdout][options.skip :]
    except BaseException:
        process.kill()
        raise
    memory = peak_megabytes(process)
    if process.returncode != 0 or len(steps) != options.steps:
        sys.exit(f"PyTorch's process ended with {process.returncode} after {len(steps)} steps")
    return [s["ms"] for s in steps], [s["loss"] for s in steps], memory


def write_shard(path, count, vocabulary):
    import numpy

    header = numpy.zeros(256, dtype="<i4")
    header[:3] = 20240520, 1, count
    tokens = numpy.random.default_rng(1).integers(0, vocabulary, count).astype("<u2")
    with open(path, "wb") as file:
        file.write(header.tobytes() + tokens.tobytes())


def print_table(options, rounds):
    B, T = options.batch, options.sequence
    print(f"\n{options.model}, B={B}, T={T}, fp32, {options.threads} threads, {options.rounds} rounds of {options.steps} steps")
    print(f"{'':18}{'ms per step':>14}{'quartiles':>18}{'tokens/s':>10}{'peak memory':>14}{'loss':>9}")
    for name in rounds[0]:
        times = sorted(ms for r in rounds for ms in r[name][0])
        median, quarter = statistics.median(times), len(times) // 4
        quartiles = f"{times[quarter]:.0f} .. {times[-1 - quarter]:.0f}"
        memory, loss = max(r[name][2] for r in rounds), rounds[-1][name][1][-1]
        print(f"{name:18}{median:14.1f}{quartiles:>18}{1e3 * B * T / median:10.0f}{memory:11.0f} MB{loss:9.3f}")
    ours, *others = rounds[0]
    for attention, values in shares.items():
        print(f"share of the machine's sgemm rate, {attention}: {100 * statistics.median(values):.0f}% "
              f"({100 * min(values):.0f} .. {100 * max(values):.0f})")
    targets = [float(number) for number in options.wanted.split(",") if number]
    for name, wanted in itertools.zip_longest(others, targets[:len(others)]):
        ratios = sorted(statistics.median(r[ours][0]) / statistics.median(r[name][0]) for r in rounds)
        record_result(options, rounds, ours, name, ratios, wanted)
        print(f"{ours} is {1 / statistics.median(ratios):.2f} times as fast as {name} "
              f"({1 / ratios[-1]:.2f} .. {1 / ratios[0]:.2f} over the rounds)")


def record_result(options, rounds, ours, name, ratios, wanted):
    attention = ours.split()[-1]
    work = f"{options.model} step, B={options.batch} T={options.sequence}" + ("" if attention == "softmax" else f", {attention}")
    times = [statistics.median(ms for r in rounds for ms in r[side][0]) for side in (ours, name)]
    share = statistics.median(shares[attention])
    record(work, "ms", times[0], name, times[1], [1 / ratio for ratio in ratios], wanted, share)
    memory = [max(r[side][2] for r in rounds) for side in (ours, name)]
    record(work + ", memory", "MB", memory[0], name, memory[1], [r[name][2] / r[ours][2] for r in rounds])


def main():
    options = parse_options()
    if options.pytorch_child:
        return pytorch_child(options)
    if not os.access("./train_gpt2", os.X_OK):
        sys.exit("./train_gpt2 is missing; run make, and this from the project's root")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through the code that ends the other process
    contenders = {f"slay.c {name}": functools.partial(run_slay, attention=name) for name in options.attentions.split(",")}
    ways = [way for way in options.peers.split(",") if way != "none"]
    contenders |= {f"PyTorch {way}": functools.partial(run_pytorch, way=way) for way in ways}
    rounds = []
    with tempfile.TemporaryDirectory() as directory:
        shard = os.path.join(directory, "tokens.bin")
        write_shard(shard, 1 << 20, options.vocab)
        for i in range(options.rounds):
            rounds.append({name: contender(options, shard, directory) for name, contender in contenders.items()})
            medians = ", ".join(f"{name} {statistics.median(r[0]):.1f} ms" for name, r in rounds[-1].items())
            print(f"round {i + 1} of {options.rounds}: {medians}", flush=True)
    print_table(options, rounds)
    print(f"start-up to the first step: {statistics.median(startups):.2f} s ({min(startups):.2f} .. {max(startups):.2f})")
    if options.start_up:
        record(f"start-up, {options.model} with random weights", "s", statistics.median(startups), "", None, [])


if __name__ == "__main__":
    main()
