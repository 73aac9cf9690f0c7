#!/usr/bin/env python3
"""Multi-query associative recall, as zoology defines it, as token shards with targets.

    dev/experiments/mqar.py --length 64 --vocab 128 --pairs 4,8,16 --rows 100000 --seed 1 --out data/mqar/train.bin

A row is n keys with their values, key value key value ..., then questions: every key stands there once more, at an even
distance, and the target at that position is its value. No other position has a target, and random tokens fill the rest.
Keys are different tokens from 1 .. V/2-1, values different ones from V/2 .. V-1. The slots of the questions are drawn with
probabilities proportional to i^(a-1), so that most stand early. With several numbers of pairs, rows take them in turn.
"""
import argparse
import os
import random
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
from dev.experiments import shards  # noqa: E402  (after the path is set)

POWER = 0.01  # a


def draw_slots(source, slots, count):
    """Different slots, each drawn in turn by its weight among those left: the largest of u^(1/w) are such a draw."""
    keys = [(source.random() ** ((slot + 1) ** (1 - POWER)), slot) for slot in range(slots)]
    return [slot for _, slot in sorted(keys, reverse=True)[:count]]


def make_row(source, length, vocab, pairs):
    """(tokens, {position: target})"""
    keys = source.sample(range(1, vocab // 2), pairs)
    values = source.sample(range(vocab // 2, vocab), pairs)
    row = [token for pair in zip(keys, values) for token in pair]
    row += [int(source.random() * vocab) for _ in range(length - len(row))]
    targets = {}
    for key, value, slot in zip(keys, values, draw_slots(source, (length - 2 * pairs) // 2, pairs)):
        row[2 * pairs + 2 * slot] = key
        targets[2 * pairs + 2 * slot] = value
    return row, targets


def make_rows(length, vocab, pairs, rows, seed):
    """A generator of `rows` rows; `pairs` are the numbers of pairs that they have in turn."""
    if length % 2 or vocab <= length or any(4 * n > length or n >= vocab // 2 for n in pairs):
        raise ValueError(f"expected an even length of at least 4 times the pairs and a larger vocabulary, found length "
                         f"{length}, vocabulary {vocab}, pairs {pairs}")
    source = random.Random(f"mqar {length} {vocab} {pairs} {seed}")
    return (make_row(source, length, vocab, pairs[i % len(pairs)]) for i in range(rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--vocab", type=int, default=128)
    parser.add_argument("--pairs", default="4,8,16", help="numbers of pairs, taken in turn")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", required=True, help="NAME.bin; the targets go to NAME.targets")
    options = parser.parse_args()
    try:
        pairs = [int(n) for n in options.pairs.split(",")]
        shards.write_rows(options.out, make_rows(options.length, options.vocab, pairs, options.rows, options.seed))
    except (ValueError, OSError) as error:
        sys.exit(f"mqar.py: {error}")


if __name__ == "__main__":
    main()
