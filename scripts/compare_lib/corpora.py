"""Corpora by name: made or fetched on first use, and given to train_gpt2 as its data options."""
import glob
import hashlib
import json
import math
import os
import re
import subprocess

from .settings import BadInput

VOCABULARY = {"austen": "4096", "enwik8": "4096"}


def prepare(corpus):
    """The data options of every run; makes or fetches the corpus when it is not there yet."""
    if corpus == "stories":
        run_script(["scripts/make_stories.sh"])
        return data_options("data/stories", documents=True)
    if corpus in VOCABULARY:
        directory = os.path.join("data", corpus)
        if not os.path.exists(os.path.join(directory, corpus + ".json")):
            run_script(["scripts/get_corpus.sh", corpus, "--vocab", VOCABULARY[corpus]])
        return data_options(directory)
    if not os.path.isdir(corpus):
        raise BadInput(f"--corpus: expected stories, austen, enwik8, a directory of shards or a folder of text, found '{corpus}'")
    if not glob.glob(os.path.join(glob.escape(corpus), "*_train_*.bin")) and text_files(corpus):
        return data_options(prepare_text(corpus))
    return data_options(corpus)


def text_files(folder):
    """The files that scripts/get_corpus.sh takes from a folder."""
    return sorted(path for ending in ("txt", "md")
                  for path in glob.glob(os.path.join(glob.escape(folder), "**", "*." + ending), recursive=True))


def prepare_text(folder):
    """Vocabulary and shards of a folder of text, under a name that changes with its files."""
    facts = [(path, os.path.getsize(path), os.path.getmtime(path)) for path in text_files(folder)]
    key = hashlib.sha256(json.dumps([os.path.abspath(folder), facts]).encode()).hexdigest()[:8]
    name = re.sub(r"[^A-Za-z0-9_-]", "_", os.path.basename(os.path.abspath(folder)))
    directory = os.path.join("data", f"{name}_{key}")
    if not glob.glob(os.path.join(directory, "*_val_*.bin")):
        run_script(["scripts/get_corpus.sh", folder, "--vocab", "auto", "--out", directory])
    return directory


def run_script(command):
    if subprocess.run(command, stdin=subprocess.DEVNULL).returncode:
        raise BadInput(f"{command[0]} failed; nothing was trained")


def data_options(directory, documents=False):
    """NAME_train_*.bin, NAME_val_*.bin and vocab.tiktoken, as ./tokenize writes them."""
    options = []
    for option, pattern in (("--train", "*_train_*.bin"), ("--val", "*_val_*.bin")):
        found = os.path.join(glob.escape(directory), pattern)
        if not glob.glob(found):
            raise BadInput(f"{directory}: expected token shards {pattern}, found none; ./tokenize encode writes them")
        options += [option, os.path.join(directory, pattern)]
    vocabulary = os.path.join(directory, "vocab.tiktoken")
    if os.path.isfile(vocabulary):
        options += ["--tokenizer", vocabulary]
    return options + (["--documents"] if documents else [])


def directory_of(options):
    return os.path.dirname(options[options.index("--train") + 1])


def entropy_floor(directory):
    """Nats per token that no model can be below, known for generated stories only; else None."""
    for path in glob.glob(os.path.join(glob.escape(directory), "*.json")):
        try:
            with open(path, encoding="utf-8") as file:
                facts = json.load(file)
            return facts["floor_bits"] * math.log(2) / facts["val"]["tokens"]
        except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError, RecursionError):
            continue
    return None


def prompt(directory):
    """The beginning of the validation text, the same for every model; empty when there is no text."""
    try:
        with open(os.path.join(directory, "val.txt"), "rb") as file:
            text = file.read(4096).decode("utf-8", "ignore").strip()
    except OSError:
        return ""
    words = text.split("\n")[0].split()
    return " ".join(words[:12])
