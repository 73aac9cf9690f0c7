"""Byte-pair training in the plainest way: count all pairs, join the best one everywhere, begin again.

The reference for `tokenize train`: the tokenizer's fixture is made with it, the benchmark compares with it. Rules that
make the result unique: the highest count wins, then the smallest (left id, right id); inside a piece, pairs are joined
from left to right.
"""
import collections
import regex

PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def join(ids, pair, merged):
    out, i = [], 0
    while i < len(ids):
        if i + 1 < len(ids) and (ids[i], ids[i + 1]) == pair:
            out.append(merged)
            i += 2
        else:
            out.append(ids[i])
            i += 1
    return out


def train(text, vocab):
    """The tokens of a vocabulary of `vocab` tokens in order of rank (end-of-text is not among them)."""
    pieces = collections.Counter(regex.findall(PATTERN, text))
    words = [(list(piece.encode()), times) for piece, times in pieces.items()]
    tokens = [bytes([b]) for b in range(256)]
    while len(tokens) < vocab - 1:
        counts = collections.Counter()
        for ids, times in words:
            for pair in zip(ids, ids[1:]):
                counts[pair] += times
        if not counts:
            raise ValueError(f"the text has only enough pairs for a vocabulary of {len(tokens) + 1}")
        pair = min(counts, key=lambda p: (-counts[p], p))
        words = [(join(ids, pair, len(tokens)), times) for ids, times in words]
        tokens.append(tokens[pair[0]] + tokens[pair[1]])
    return tokens
