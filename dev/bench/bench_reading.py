#!/usr/bin/env python3
"""How much of a training step goes into reading its data: the smallest model, whose steps are the shortest.

    dev/bench/bench_reading.py [--steps 500]

From --profile, which times the loader in the thread that waits for it. The order is shuffled, so that every row is read
from another place.
"""
import argparse
import os
import re
import subprocess
import tempfile

from bench_train_pytorch import write_shard
from results import record

COMMAND = "./train_gpt2 --model tiny --vocab 4096 --context 64 --batch 1 --save-every 0 --quiet --profile".split()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        shard = os.path.join(directory, "tokens.bin")
        write_shard(shard, 1 << 20, 4096)
        run = subprocess.run(COMMAND + ["--train", shard, "--steps", str(options.steps), "--out", os.path.join(directory, "run")],
                             check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    reading = float(re.search(r"^reading data(?: +[\d.]+){2} +([\d.]+)", run.stdout, re.M).group(1))
    step = float(re.search(r"^in all +([\d.]+)", run.stdout, re.M).group(1))
    print(f"reading data: {reading:.3f} of {step:.2f} ms, {100 * reading / step:.2f} % of a step; wanted: under 0.5 %")
    record("reading data, tiny step, B=1 T=64", "% of a step", 100 * reading / step, "", None, [])


if __name__ == "__main__":
    main()
