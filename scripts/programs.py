"""Our programs, for the tests in Python that compare them with others' software: run from the project's root."""
import json
import os
import subprocess
import tempfile

import numpy as np
from checks import check
from safetensors.numpy import load_file, save_file

QUICK = bool(os.environ.get("QUICK"))  # of much that is alike, one of each kind


def run(*command):
    """What a command prints; one that fails is an error with what it says. Text that a model draws need not be UTF-8."""
    result = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {result.returncode}: {result.stderr.strip()}")
    return result.stdout


def make_stories(directory, vocabulary, stories=150):
    """text, vocab and shard_train_000000.bin, where they are not there yet; the options that train on them."""
    path = lambda name: os.path.join(directory, name)
    if not os.path.exists(path("shard_train_000000.bin")):
        run("./stories", "--stories", str(stories), "--seed", "3", "--out", path("text"))
        run("./tokenize", "train", "--vocab", str(vocabulary), "--out", path("vocab"), path("text"))
        run("./tokenize", "encode", "--vocab-file", path("vocab"), "--out", path("shard"), path("text"))
    return ["--train", path("shard_train_000000.bin"), "--documents"]


def write_shard(path, tokens):
    header = np.zeros(256, dtype="<i4")
    header[:3] = 20240520, 1, len(tokens)
    with open(path, "wb") as file:
        file.write(header.tobytes() + tokens.astype("<u2").tobytes())


def train(out, *options):
    """The directory of the run's last checkpoint."""
    run("./train_gpt2", "--quiet", "--out", out, *options)
    return os.path.join(out, max((name for name in os.listdir(out) if name.startswith("step_")), default=""))


def metrics(run_directory, kind):
    with open(os.path.join(run_directory, "metrics.jsonl")) as lines:
        return [line for line in map(json.loads, lines) if line["type"] == kind]


def greedy_text(checkpoint, prompt, tokens, *options):
    return run("./sample_gpt2", checkpoint, "--prompt", prompt, "--tokens", str(tokens), "--temperature", "0", "--no-stats",
               *options).removesuffix("\n")


def logits_here(checkpoint, tokens, directory, precision=""):
    """(B,T,V) of tokens (B,T); with "_double" everything after the weights is float64."""
    source, target = os.path.join(directory, "tokens.safetensors"), os.path.join(directory, "logits.safetensors")
    save_file({"tokens": tokens.astype(np.int32)}, source)
    run("build/dev/gpt2_eval" + precision, "--model", checkpoint, "--in", source, "--out", target)
    return load_file(target)["logits"]


def run_tests(tests):
    """Each in a directory of its own; one that cannot go on has failed, the others still run."""
    run("make", "-s", "build/dev/gpt2_eval", "build/dev/gpt2_eval_double")
    for test in tests:
        with tempfile.TemporaryDirectory() as directory:
            try:
                test(directory)
            except Exception as error:
                check(test.__name__, False, repr(error))
