#!/usr/bin/env python3
"""Softmax attention, forward + backward, side by side with PyTorch's scaled_dot_product_attention on the CPU.

    dev/bench/bench_attention_softmax.py [--threads 2] [--lengths 1024 4096] [--rounds 15] [--program PATH]

The two take turns within one process tree, so that both see the same machine; medians and the median of the ratios of
neighbouring runs are printed. PyTorch gets q, k, v as (B, heads, T, head size), contiguous, which is its fastest form.
The last line says whether every length was at least as fast; the exit code does too.
"""
import argparse
import os
import statistics
import subprocess
import sys
import time

from results import record

parser = argparse.ArgumentParser()
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096])
parser.add_argument("--rounds", type=int, default=15)
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--heads", type=int, default=12)
parser.add_argument("--head-size", type=int, default=64)
parser.add_argument("--program", default="build/dev/bench/bench_attention_softmax")
args = parser.parse_args()

os.environ["OMP_NUM_THREADS"] = str(args.threads)
import torch  # noqa: E402  (after the environment is set)
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

torch.set_num_threads(args.threads)


def start_program():
    command = [args.program, "softmax", str(args.batch), str(args.heads), str(args.head_size)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ours(program, length):
    program.stdin.write(f"{length}\n")
    program.stdin.flush()
    return [float(x) for x in program.stdout.readline().split()]


def theirs(q, k, v, dout):
    q.grad = k.grad = v.grad = None
    start = time.perf_counter()
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    middle = time.perf_counter()
    out.backward(dout)
    return [1e3 * (middle - start), 1e3 * (time.perf_counter() - middle)]


def compare(program, length):
    shape = (args.batch, args.heads, length, args.head_size)
    q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))
    dout = torch.randn(shape)
    pairs = []
    for round in range(args.rounds + 2):
        pair = ours(program, length), theirs(q, k, v, dout)
        time.sleep(0.02)  # idle threads of either side stop spinning
        if round >= 2:
            pairs.append(pair)
    mine, torchs = ([statistics.median(pair[side][part] for pair in pairs) for part in (0, 1)] for side in (0, 1))
    ratio = statistics.median(sum(b) / sum(a) for a, b in pairs)
    print(f"T={length:6d}  slay.c forward {mine[0]:8.2f} backward {mine[1]:8.2f} ms   "
          f"PyTorch {torchs[0]:8.2f} {torchs[1]:8.2f} ms   PyTorch / slay.c {ratio:.2f}", flush=True)
    record(f"softmax attention, T={length}", "ms", sum(mine), "PyTorch SDPA", sum(torchs),
           [sum(b) / sum(a) for a, b in pairs], 1)
    return ratio


def main():
    print(f"softmax attention, float32, B={args.batch}, {args.heads} heads of {args.head_size}, {args.threads} threads, "
          f"PyTorch {torch.__version__}, median of {args.rounds} interleaved rounds")
    with start_program() as program:
        ratios = [compare(program, length) for length in args.lengths]
        program.stdin.close()
    passed = min(ratios) >= 1
    print("at least as fast at every length" if passed else "slower than PyTorch at some length")
    return 0 if passed else 1


sys.exit(main())
