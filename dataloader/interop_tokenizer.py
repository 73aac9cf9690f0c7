#!/usr/bin/env python3
"""Compares the tokenizer with the real tiktoken, id by id, and its files with what Python libraries read.

Run from the project's root with tiktoken installed (`make test-interop` does). STRINGS=20000 makes it shorter.
"""
import glob
import importlib.util
import os
import random
import subprocess
import sys
import tempfile

os.environ["TIKTOKEN_CACHE_DIR"] = ""  # else it would remember old contents of a path
import tiktoken
from tiktoken.load import load_tiktoken_bpe

sys.path[:0] = ["dev/bench", "scripts"]
import naive_bpe
from checks import check, summary

TOKENIZE = os.environ.get("TOKENIZE", "./tokenize")
STRINGS = int(os.environ.get("STRINGS", "20000" if os.environ.get("QUICK") else "1000000"))
GPT2 = "data/gpt2.tiktoken"
SMALL = "dev/fixtures/tokenizer_small.tiktoken"
END = "<|endoftext|>"


def run(*arguments, **options):
    return subprocess.run([TOKENIZE, *arguments], check=True, stdout=subprocess.PIPE, **options).stdout


def reference(path, vocab=0):
    """tiktoken with the first `vocab - 1` ranks of a file."""
    ranks = load_tiktoken_bpe(path)
    if vocab:
        ranks = {token: rank for token, rank in ranks.items() if rank < vocab - 1}
    return tiktoken.Encoding(path, pat_str=naive_bpe.PATTERN, mergeable_ranks=ranks, special_tokens={END: len(ranks)})


def our_ids(strings, path, vocab=0):
    data = b"".join(string.encode() + b"\0" for string in strings)
    lines = run("encode", "--ids", "--null", "--vocab-file", path, "--vocab", str(vocab), input=data).decode()
    return lines.split("\n")[:-1]


def first_difference(strings, path, encoding, vocab=0):
    """The first string for which the ids differ, or None."""
    found = our_ids(strings, path, vocab)
    expected = encoding.encode_ordinary_batch(strings, num_threads=os.cpu_count() or 1)
    if len(found) != len(expected):
        return f"{len(found)} lines for {len(expected)} strings"
    for string, ids, line in zip(strings, expected, found):
        if " ".join(map(str, ids)) != line:
            return f"{string!r}: tiktoken {ids}, here {line}"
    return None


def random_strings(source, count):
    """Strings of 0 to 50 characters from pools that reach every rule: all of Unicode, spaces, digits, apostrophes."""
    every = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
    pools = [
        [chr(c) for c in range(32, 127)],
        list(" \n\t\r\x0b\x0c\x1c\x85\u00a0\u1680\u2003\u2028\u202f\u3000\u180e\u200b'"),
        list("aestdmvlrST'’ 019"),
        [chr(c) for c in range(0x80, 0x2000)],
        [chr(c) for c in every],
        [chr(c) for c in range(0x10000, 0x33500)],
        [chr(c) for c in every if chr(c).isnumeric()],
    ]
    for _ in range(count):
        chosen = source.sample(pools, source.randrange(1, 4))
        length = source.randrange(0, 51)
        string = "".join(source.choice(chosen[source.randrange(len(chosen))]) for _ in range(length))
        yield string * source.randrange(2, 30) if source.random() < 0.01 else string


def test_classes():
    output = subprocess.run([sys.executable, "scripts/make_unicode_classes.py"], check=True, stdout=subprocess.PIPE).stdout
    committed = open("dataloader/unicode_classes.h", "rb").read()
    same = output.split(b"\n")[2:] == committed.split(b"\n")[2:]  # the first line names tiktoken's version
    check("classes of all code points", same, "this tiktoken has another Unicode; run scripts/make_unicode_classes.py")


def test_random_strings():
    encoding = reference(GPT2)
    source = random.Random(20240520)
    done, difference = 0, None
    while done < STRINGS and difference is None:
        strings = list(random_strings(source, min(100000, STRINGS - done)))
        difference = first_difference(strings, GPT2, encoding)
        done += len(strings)
    check(f"{done} random Unicode strings", difference is None, difference)


def test_every_code_point():
    """Each code point alone and next to a letter, a digit, a space, a punctuation mark."""
    every = [chr(c) for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
    strings = ["".join(f"a{c}b1{c}2 {c} {c}.{c}!{c}\n" for c in every[i : i + 64]) for i in range(0, len(every), 64)]
    difference = first_difference(strings, GPT2, reference(GPT2))
    check("every code point between its neighbours", difference is None, (difference or "")[:400])


def test_texts():
    lines = open("dev/fixtures/tokenizer_text.txt", encoding="utf-8").read().split("\n")
    source = random.Random(1)
    mixed = ["".join(source.choice(lines)[: source.randrange(1, 60)] for _ in range(20)) for _ in range(3000)]
    for vocab in (0, 257, 300, 1000, 5000, 30000):
        difference = first_difference(mixed, GPT2, reference(GPT2, vocab), vocab)
        check(f"mixed scripts, GPT-2's vocabulary {vocab or 'whole'}", difference is None, difference)


def test_novels():
    if not os.path.exists("data/austen/train.txt"):
        subprocess.run(["scripts/get_corpus.sh", "austen"])
    books = sorted(glob.glob("data/austen/*.txt"))
    if not books:
        print("the novels could not be fetched: they were not compared")
        return
    texts = [open(path, encoding="utf-8", newline="").read() for path in books]
    difference = first_difference(texts, GPT2, reference(GPT2))
    size = sum(len(text.encode()) for text in texts)
    check(f"the novels, {size / 1e6:.1f} MB", difference is None and size > 1e6, (difference or "")[:400])


def test_long_pieces():
    source = random.Random(2)
    strings = ["a" * 5000, " " * 3000, "\n" * 2000 + "x", "ab" * 2000, "=" * 4000, "'" * 999, "é" * 2000]
    strings += ["".join(source.choice("aeinrst") for _ in range(source.randrange(30, 3000))) for _ in range(300)]
    strings += ["".join(source.choice("acgt") for _ in range(source.randrange(35, 50))) for _ in range(3000)]
    difference = first_difference(strings, GPT2, reference(GPT2))
    check("long pieces", difference is None, (difference or "")[:400])


def test_training(directory):
    text = open("dev/fixtures/tokenizer_text.txt", encoding="utf-8", newline="").read()
    text += "\n".join(sorted(open(path, encoding="utf-8").read() for path in glob.glob("*/*.h")))
    path, vocabulary = os.path.join(directory, "text"), os.path.join(directory, "trained.tiktoken")
    open(path, "w", encoding="utf-8", newline="").write(text)
    run("train", "--vocab", "1500", "--out", vocabulary, path)
    tokens = naive_bpe.train(text, 1500)
    ranks = load_tiktoken_bpe(vocabulary)
    check("tiktoken reads a vocabulary trained here", len(ranks) == 1499)
    check("it is the one that the plain trainer learns", ranks == {token: rank for rank, token in enumerate(tokens)})
    strings = list(random_strings(random.Random(3), 20000)) + text.split("\n")
    difference = first_difference(strings, vocabulary, reference(vocabulary))
    check("ids with it", difference is None, difference)


def test_shards(directory):
    text = open("dev/fixtures/tokenizer_text.txt", encoding="utf-8", newline="").read()
    encoding = reference(GPT2)
    paths = []
    for number, part in enumerate((text[:900], text[900:])):
        paths.append(os.path.join(directory, f"part{number}"))
        open(paths[-1], "w", encoding="utf-8", newline="").write(part)
    run("encode", "--vocab-file", GPT2, "--out", os.path.join(directory, "x"), *paths)
    data = open(os.path.join(directory, "x_train_000000.bin"), "rb").read()
    header = [int.from_bytes(data[i : i + 4], "little") for i in range(0, 1024, 4)]
    ids = [int.from_bytes(data[i : i + 2], "little") for i in range(1024, len(data), 2)]
    expected = [50256, *encoding.encode_ordinary(text[:900]), 50256, *encoding.encode_ordinary(text[900:])]
    check("a shard's header", header[:3] == [20240520, 1, len(expected)] and not any(header[3:]))
    check("a shard's tokens", ids == expected)


def test_hugging_face(directory):
    if importlib.util.find_spec("transformers") is None:
        print("transformers is not installed: its tokenizer was not compared")
        return
    from transformers import AutoTokenizer

    lines = open("dev/fixtures/tokenizer_text.txt", encoding="utf-8").read().split("\n")
    lines += [string for string in random_strings(random.Random(4), 2000) if string.isprintable()]
    for name, path in (("GPT-2's vocabulary", GPT2), ("a small vocabulary", SMALL)):
        out = os.path.join(directory, os.path.basename(path) + ".hf")
        run("export", "--vocab-file", path, "--out", out)
        theirs, encoding = AutoTokenizer.from_pretrained(out), reference(path)
        wrong = [line for line in lines if theirs(line)["input_ids"] != encoding.encode_ordinary(line)]
        check(f"Hugging Face opens {name}", not wrong and theirs.eos_token_id == encoding.n_vocab - 1, repr(wrong[:1]))


def main():
    if not os.path.exists(GPT2):
        subprocess.run(["scripts/get_gpt2_vocab.sh"], check=True)
    test_classes()
    test_texts()
    test_novels()
    test_long_pieces()
    test_every_code_point()
    with tempfile.TemporaryDirectory() as directory:
        test_training(directory)
        test_shards(directory)
        test_hugging_face(directory)
    test_random_strings()
    sys.exit(summary())


main()
