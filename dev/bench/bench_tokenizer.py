#!/usr/bin/env python3
"""The tokenizer's speed beside tiktoken's and beside a plain trainer in Python.

    pip install tiktoken; make tokenize; dev/bench/bench_tokenizer.py [TEXT]

Both sides take turns, so that a busy machine slows both; ratios are medians over the rounds, with the lowest and the
highest in parentheses. TEXT is English prose of a few MB (data/austen/train.txt). GPT-2's vocabulary is fetched if need
be. The library is called with a fresh encoder each time, that is with a cold cache, and timed in CPU time;
`tokenize` is timed as a program by the wall clock, from its start to shards on the disk, with the text eight times over.
"""
import base64
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time

import tiktoken

os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
sys.path.insert(0, "dev/bench")
import naive_bpe

TOKENIZE = os.environ.get("TOKENIZE", "./tokenize")
ROUNDS = int(os.environ.get("ROUNDS", "7"))
GPT2 = "data/gpt2.tiktoken"
SOURCES = ["dataloader/tokenizer.c", "dataloader/merge_queue.c", "core/base/error.c", "core/base/file.c", "core/base/memory.c"]


def seconds(action, clock=time.perf_counter):
    start = clock()
    action()
    return clock() - start


def spread(values, digits=1):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


class Library:
    """dataloader/tokenizer.c itself, without program or files around it."""

    def __init__(self, directory):
        path = os.path.join(directory, "tokenizer.so")
        compiler = os.environ.get("CC", "cc")
        flags = ["-std=gnu11", "-O3", "-march=native", "-shared", "-fPIC", "-I."]
        subprocess.run([compiler, *flags, *SOURCES, "-lxxhash", "-o", path], check=True)
        self.c = ctypes.CDLL(path)
        self.c.tokenizer_encoder_create.restype = ctypes.c_void_p
        self.c.tokenizer_encoder_create.argtypes = [ctypes.c_void_p]
        self.c.tokenizer_encoder_free.argtypes = [ctypes.c_void_p]
        self.c.tokenizer_encoder_append.restype = ctypes.c_size_t
        self.tokenizer, self.tokens, self.capacity = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
        error = ctypes.create_string_buffer(1024)
        if self.c.tokenizer_load(ctypes.byref(self.tokenizer), GPT2.encode(), 0, error):
            sys.exit(error.value.decode())

    def encode(self, data):
        encoder = self.c.tokenizer_encoder_create(self.tokenizer)
        count = self.c.tokenizer_encoder_append(ctypes.c_void_p(encoder), data, ctypes.c_size_t(len(data)),
                                                ctypes.byref(self.tokens), ctypes.c_size_t(0), ctypes.byref(self.capacity))
        self.c.tokenizer_encoder_free(encoder)
        return count


def bench_library(library, encoding, name, text):
    data = text.encode()
    theirs, ours = [], []
    for _ in range(ROUNDS):
        theirs.append(seconds(lambda: encoding.encode_ordinary(text), time.process_time))
        ours.append(seconds(lambda: library.encode(data), time.process_time))
    rate = len(data) / 1e6
    print(f"{name:28} {rate / statistics.median(theirs):7.1f} MB/s  {rate / statistics.median(ours):7.1f} MB/s  "
          f"{spread([a / b for a, b in zip(theirs, ours)])}x", flush=True)


def bench_program(encoding, text, directory):
    path, out = os.path.join(directory, "text"), os.path.join(directory, "out")
    open(path, "w", encoding="utf-8", newline="").write(text * 8)
    size = os.path.getsize(path) / 1e6
    for threads in (1, 2):
        command = [TOKENIZE, "encode", "--vocab-file", GPT2, "--out", out, "--threads", str(threads), path]
        parts = [text] * 8
        theirs, ours = [], []
        for _ in range(ROUNDS):
            theirs.append(seconds(lambda: encoding.encode_ordinary_batch(parts, num_threads=threads)))
            ours.append(seconds(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL)))
        print(f"{f'program, {threads} thread' + 's' * (threads > 1):28} {size / statistics.median(theirs):7.1f} MB/s  "
              f"{size / statistics.median(ours):7.1f} MB/s  {spread([a / b for a, b in zip(theirs, ours)])}x", flush=True)


def bench_training(text, directory):
    path, out = os.path.join(directory, "text"), os.path.join(directory, "v.tiktoken")
    open(path, "w", encoding="utf-8", newline="").write(text)
    command = [TOKENIZE, "train", "--threads", "1", "--out", out, path, "--vocab"]
    theirs = seconds(lambda: naive_bpe.train(text, 512))
    ours = min(seconds(lambda: subprocess.run([*command, "512"], check=True, stdout=subprocess.DEVNULL)) for _ in range(3))
    print(f"{'train 512, s':28} {theirs:7.2f}       {ours:7.2f}       {theirs / ours:.0f}x")
    ours = min(seconds(lambda: subprocess.run([*command, "8192"], check=True, stdout=subprocess.DEVNULL)) for _ in range(3))
    print(f"{'train 8192, s':28} {'-':>7}       {ours:7.2f}")


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else "data/austen/train.txt"
    if not os.path.exists(GPT2):
        subprocess.run(["scripts/get_gpt2_vocab.sh"], check=True)
    if not os.path.exists(path):
        subprocess.run(["scripts/get_corpus.sh", "austen"], check=True)
    ranks = {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in open(GPT2, "rb")}
    # tiktoken's own way to write the pattern for GPT-2, its fastest
    pattern = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
    encoding = tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256})
    text = open(path, encoding="utf-8", newline="").read()
    code = "".join(open(os.path.join(folder, name), encoding="utf-8").read() for folder in ("core", "dataloader")
                   for name in sorted(os.listdir(folder)) if name.endswith((".c", ".h"))) * 4
    mixed = open("dev/fixtures/tokenizer_text.txt", encoding="utf-8", newline="").read() * 300
    print(f"{'text':28} {'tiktoken':>7} {tiktoken.__version__:7} {'slay.c':>7}       ratio")
    with tempfile.TemporaryDirectory() as directory:
        library = Library(directory)
        bench_library(library, encoding, "prose, 1 thread", text)
        bench_library(library, encoding, "C code, 1 thread", code)
        bench_library(library, encoding, "14 scripts, 1 thread", mixed)
        bench_program(encoding, text, directory)
        bench_training(text[:400000], directory)
        run = min(seconds(lambda: library.encode(b"a" * 10_000_000), time.process_time) for _ in range(3))
        print(f"{'10 MB of one letter, s':28} {'-':>7}       {run:7.2f}")


main()
