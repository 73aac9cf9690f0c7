"""What a model's losses, token by token, say: accuracy, recall hits and the rest, loss by position.

`sample_gpt2 --loss SHARDS --losses FILE` writes the file: inputs, targets, losses and likeliest, each (rows, T)."""
import array
import json
import math
import os
import struct
import subprocess
import tempfile

TYPES = {"I32": "i", "F32": "f", "U8": "B"}
LONGER = 16  # rows so many times as long as in training, where a model can read them


class Losses:
    """The file's tensors as flat arrays, with `rows` rows of `T` positions. A target below 0 does not count."""

    def __init__(self, path):
        with open(path, "rb") as file:
            content = file.read()
        start = 8 + struct.unpack("<Q", content[:8])[0]
        for name, facts in json.loads(content[8:start]).items():
            if name == "__metadata__":
                continue
            begin, end = facts["data_offsets"]
            numbers = array.array(TYPES[facts["dtype"]])
            numbers.frombytes(content[start + begin:start + end])
            setattr(self, name, numbers)
            self.rows, self.T = facts["shape"]

    def counted(self):
        """(index, row, position) of every target that counts."""
        for index, target in enumerate(self.targets):
            if target >= 0:
                yield index, index // self.T, index % self.T


def of_run(run, shards, *words):
    """Every token's loss of a run directory's model over shards."""
    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, "losses")
        command = ["./sample_gpt2", run, "--loss", shards, "--losses", path, "--threads", "1", *words]
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
        return Losses(path)


def mean(values):
    return round(math.fsum(values) / len(values), 6) if values else None


def recall(losses):
    """{"accuracy", "loss"}: how many targets are the likeliest token."""
    at = [index for index, _, _ in losses.counted()]
    return {"accuracy": mean([losses.likeliest[index] for index in at]), "loss": mean([losses.losses[index] for index in at])}


def hits_and_rest(losses):
    """Recall hits are targets whose bigram, (token, target), has already stood in the row."""
    hits, rest, seen, seen_of = [], [], set(), None
    for index, row, _ in losses.counted():
        if row != seen_of:
            seen, seen_of = set(), row
        bigram = (losses.inputs[index], losses.targets[index])
        (hits if bigram in seen else rest).append(losses.losses[index])
        seen.add(bigram)
    return {"hits": mean(hits), "rest": mean(rest), "share": round(len(hits) / max(1, len(hits) + len(rest)), 6)}


def by_position(losses, first=16):
    """[[from, to, loss, targets]] in buckets that double: 0 to 15, 16 to 31, 32 to 63, ..."""
    buckets = {}
    for index, _, position in losses.counted():
        number = (position // first).bit_length()
        total = buckets.setdefault(number, [0.0, 0])
        total[0] += losses.losses[index]
        total[1] += 1
    return [[first << number >> 1 if number else 0, (first << number) - 1, round(total / count, 6), count]
            for number, (total, count) in sorted(buckets.items())]


def language(losses):
    """{"loss", "hits", "rest", "share", "positions"}"""
    return {"loss": mean([losses.losses[index] for index, _, _ in losses.counted()]), **hits_and_rest(losses),
            "positions": by_position(losses)}


def language_of_run(run, shards, documents=False, longer=None, tokens=65536):
    """The same of a run directory; `longer` is the length of longer rows, or None: then there is no "longer"."""
    found = language(of_run(run, shards, "--loss-tokens", str(tokens), *([] if documents else ["--no-begin"])))
    if longer:
        words = ["--length", str(longer), "--loss-tokens", str(4 * tokens), "--no-begin"]
        found["longer"] = by_position(of_run(run, shards, *words))
    return found
