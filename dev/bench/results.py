#!/usr/bin/env python3
"""Collects what the benchmarks measured and prints it as one table.

A benchmark calls record(); with BENCH_RESULTS=FILE in the environment each call adds a line of JSON to the file, which
begins with a line {"machine": ...} that says where and when it was made.

    dev/bench/results.py FILE... [--markdown]     the table of all lines
"""
import argparse
import fileinput
import itertools
import json
import os
import statistics
import subprocess

SPREAD = 0.1  # how far apart the quartiles of a ratio may be, as a share of its median


def quartiles(values):
    """The first and the third."""
    if len(values) < 2:
        return values[0], values[0]
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third


def settled(ratios):
    """Whether the rounds so far are enough."""
    first, third = quartiles(ratios)
    return third - first < SPREAD * statistics.median(ratios)


def add_round_options(parser, least=6, most=20):
    parser.add_argument("--rounds", type=int, default=least, help="at least so many")
    parser.add_argument("--most-rounds", type=int, default=most)


def rounds_until_settled(options, take_round, ratios_of):
    """Rounds as take_round() makes them, until each of the lists of ratios_of(rounds) is settled."""
    rounds = []
    while len(rounds) < options.rounds or len(rounds) < options.most_rounds and not all(map(settled, ratios_of(rounds))):
        rounds.append(take_round())
    return rounds


def machine_now(threads):
    """{"peak_gflops": ..., "gflops": ..., "gigabytes_per_second": ...}, as the machine is at this moment."""
    return json.loads(subprocess.run(["build/dev/bench/bench_machine", str(threads)], check=True, capture_output=True).stdout)


def record(work, unit, ours, peer, theirs, ratios, wanted=None, share=None):
    """ours, theirs: medians in `unit`; ratios: ours against theirs per round, above 1 is better; wanted: the target;
    share: of the limit that the machine sets, where there is one."""
    path = os.environ.get("BENCH_RESULTS")
    if not path:
        return
    low, high = quartiles(ratios) if ratios else (None, None)
    line = {"work": work, "unit": unit, "ours": ours, "peer": peer, "theirs": theirs,
            "ratio": statistics.median(ratios) if ratios else None, "low": low, "high": high,
            "rounds": len(ratios), "wanted": wanted, "share": share}
    with open(path, "a") as file:
        file.write(json.dumps(line) + "\n")


def short(value):
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def cells(line):
    ratio = "" if line["ratio"] is None else f"{line['ratio']:.2f}x" if line["low"] == line["high"] else \
        f"{line['ratio']:.2f}x ({line['low']:.2f} .. {line['high']:.2f})"
    wanted = "" if line["wanted"] is None else f"{line['wanted']:g}x"
    share = "" if line["share"] is None else f"{100 * line['share']:.0f}%"
    return [line["work"], line["unit"], short(line["ours"]), line["peer"], short(line["theirs"]), ratio, wanted, share]


HEADER = ["work", "unit", "slay.c", "peer", "its", "better by (quartiles)", "wanted", "of the limit"]


NOTE = """All sides of a comparison take turns on the same machine, a few steps or one text at a time; ratios are taken within a
round of turns, and above 1 slay.c is better. "Wanted" is the target that the project has set itself. "Of the limit" is the
share of the rate of a large matrix product (training) or of the rate at which memory is read (decoding), both measured in
the same rounds. The machines are shared ones."""


def read_parts(paths):
    """[(machine and day, [line of a table])] of one file after the other"""
    parts = []
    with fileinput.input(paths) as lines:
        for line in (json.loads(text) for text in lines if text.strip()):
            if "machine" in line:
                parts.append((line["machine"], []))
            else:
                parts[-1][1].append(cells(line))
    return parts


def print_page(parts):
    """The tables one after the other, under the machine and the day that they share."""
    print(f"# Benchmarks\n\nMade by `make bench`, or `dev/bench/run.sh PART`.\n\n{NOTE}")
    for machine, together in itertools.groupby(sorted(parts, key=lambda part: part[0]), key=lambda part: part[0]):
        print(f"\n## {machine}\n\n| " + " | ".join(HEADER) + " |\n|---|---|---:|---|---:|---:|---:|---:|")
        for _, rows in together:
            for row in rows:
                print("| " + " | ".join(row) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("results", nargs="+")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    parts = read_parts(options.results)
    if options.markdown:
        print_page(parts)
        return
    rows = [row for _, lines in parts for row in lines]
    widths = [max(len(row[i]) for row in [HEADER, *rows]) for i in range(len(HEADER))]
    right = {2, 4, 5, 6, 7}
    for row in [HEADER, *rows]:
        print("  ".join(c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths))).rstrip())


if __name__ == "__main__":
    main()
