#!/usr/bin/env python3
"""slay, forward + backward, side by side with the same mathematics in straightforward chunked PyTorch.

    dev/bench/bench_attention_linear.py [--threads 2] [--lengths 1024 4096] [--rounds 7] [--chunks 64 128 256]

PyTorch computes the feature vectors of the whole sequence in one go, then walks over the chunks with a state, and
differentiates itself. It is given several chunk sizes; the fastest counts. The two take turns; medians are printed, and
the exit code says whether slay.c was at least --wanted times as fast, a number for each of --lengths.
"""
import argparse
import math
import os
import statistics
import subprocess
import sys
import time

from results import record

parser = argparse.ArgumentParser()
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096])
parser.add_argument("--rounds", type=int, default=7)
parser.add_argument("--chunks", type=int, nargs="+", default=[64, 128, 256])
parser.add_argument("--heads", type=int, default=12)
parser.add_argument("--head-size", type=int, default=64)
parser.add_argument("--wanted", type=float, nargs="+", default=[8, 15])
parser.add_argument("--program", default="build/dev/bench/bench_attention_softmax")
args = parser.parse_args()

os.environ["OMP_NUM_THREADS"] = str(args.threads)
import numpy  # noqa: E402  (after the environment is set)
import torch  # noqa: E402

torch.set_num_threads(args.threads)
R, M, P, EPS, DELTA = 3, 16, 8, 1e-3, 1e-6
D = args.head_size
nodes, weights = (torch.tensor(x, dtype=torch.float32) / (2 + EPS) for x in numpy.polynomial.laguerre.laggauss(R))
omega = torch.randn(R, args.heads, D, M)
anchors = torch.nn.functional.normalize(torch.randn(P, D), dim=-1)


def features(x):
    u = torch.nn.functional.normalize(x, dim=-1)
    y = torch.einsum("bhtd,rhdm->bhtrm", u, omega)
    exponent = (torch.sqrt(2 * nodes)[:, None] * y - nodes[:, None]).clamp(-20, 20)
    outer = torch.sqrt(weights / M)[:, None] * torch.exp(exponent)
    inner = (u @ anchors.T) ** 2 * math.sqrt(D * (D + 2) / P)
    return (outer.flatten(-2)[..., None] * inner[..., None, :]).flatten(-2)


def chunked_slay(q, k, v, chunk):
    phi_q, phi_k = features(q), features(k)
    values = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)
    state, outputs = 0, []
    for start in range(0, q.shape[2], chunk):
        a, b, c = (x[:, :, start:start + chunk] for x in (phi_q, phi_k, values))
        result = (a @ b.transpose(-1, -2)).tril() @ c
        if start:
            result = result + a @ state
        state = state + b.transpose(-1, -2) @ c
        outputs.append(result)
    result = torch.cat(outputs, dim=2)
    return result[..., :-1] / (result[..., -1:] + DELTA)


def theirs(q, k, v, dout, chunk):
    q.grad = k.grad = v.grad = None
    start = time.perf_counter()
    chunked_slay(q, k, v, chunk).backward(dout)
    return 1e3 * (time.perf_counter() - start)


def ours(program, length):
    program.stdin.write(f"{length}\n")
    program.stdin.flush()
    return sum(float(x) for x in program.stdout.readline().split())


def compare(program, length, wanted):
    shape = (1, args.heads, length, D)
    q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))
    dout = torch.randn(shape)
    mine, peers = [], {chunk: [] for chunk in args.chunks}
    for turn in range(args.rounds + 1):
        times = [ours(program, length)] + [theirs(q, k, v, dout, chunk) for chunk in args.chunks]
        time.sleep(0.02)  # idle threads of either side stop spinning
        if turn:  # the first turn warms up
            mine.append(times[0])
            for chunk, taken in zip(args.chunks, times[1:]):
                peers[chunk].append(taken)
    best = min(args.chunks, key=lambda chunk: statistics.median(peers[chunk]))
    our_time, their_time = statistics.median(mine), statistics.median(peers[best])
    print(f"T={length:6d}  slay.c {our_time:9.2f} ms   PyTorch {their_time:9.2f} ms (chunks of {best})   "
          f"PyTorch / slay.c {their_time / our_time:.2f}", flush=True)
    record(f"slay attention, T={length}", "ms", our_time, "chunked PyTorch", their_time,
           [b / a for a, b in zip(mine, peers[best])], wanted)
    return their_time / our_time


def main():
    print(f"slay R={R} M={M} P={P}, forward + backward, float32, B=1, {args.heads} heads of {D}, {args.threads} threads, "
          f"PyTorch {torch.__version__}, median of {args.rounds} interleaved rounds")
    command = [args.program, "slay", "1", str(args.heads), str(D)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        passed = [compare(program, *goal) >= goal[1] for goal in zip(args.lengths, args.wanted)]
        program.stdin.close()
    return 0 if all(passed) else 1


sys.exit(main())
