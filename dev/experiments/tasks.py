"""The tasks that rows are compared on: data, options of the trainer, and what is measured of a finished run."""
import os

from compare_lib import corpora, losses

from . import mqar, shards

STORIES, AUSTEN = "data/stories", "data/austen_512"
LANGUAGE = ("--width 64 --heads 2 --context 256 --batch 4 --init-std 0.06 --schedule wsd --wsd-decay 0.4 --warmup 50 "
            "--final-lr 0 --weight-decay 0.01 --val-tokens 65536")


class Task:
    """A name, the trainer's options, the rates to begin with, and the number by which rates are chosen and rows tested."""

    def __init__(self, name, layers, steps, options, rates):
        self.name, self.layers, self.steps, self.rates = name, layers, steps, rates
        self.options = ["--layers", str(layers), "--steps", str(steps), *options.split()]

    def set_steps(self, steps):
        self.steps, self.options[3] = steps, str(steps)

    def option(self, name):
        return int(self.options[self.options.index("--" + name) + 1])

    def train_options(self):
        """Everything but row, rate and seed."""
        return [*self.data(), *self.options]

    def row_options(self, words):
        """A row's options for this task."""
        return words


class Recall(Task):
    """Multi-query associative recall: trained on several numbers of pairs, tested on each."""

    metric, higher_is_better = "accuracy", True

    def __init__(self, name, length, vocab, pairs, rows, layers, steps, options, rates, lengths=()):
        """`lengths` are tested besides the training length, with as many of the pairs as fit."""
        sizes = f" --context {length} --vocab {vocab} --val-tokens 16000"
        super().__init__(name, layers, steps, options + sizes, rates)
        self.length, self.vocab, self.pairs, self.rows, self.lengths = length, vocab, pairs, rows, lengths

    def shard(self, what, length=None):
        return os.path.join("data", "mqar", f"{what}_T{length or self.length}_V{self.vocab}.bin")

    def fitting(self, length):
        return [n for n in self.pairs if 4 * n <= length]

    def wanted(self):
        """{shard: (numbers of pairs, rows, length, seed)}, that for training first."""
        training = {self.shard(f"train{'-'.join(map(str, self.pairs))}x{self.rows}"): (self.pairs, self.rows, self.length, 1)}
        own = {self.shard(f"val{n}"): ([n], 1000, self.length, 2) for n in self.pairs}
        return {**training, **own, **{self.shard(f"val{n}", T): ([n], 500, T, 2) for T in self.lengths for n in self.fitting(T)}}

    def data(self):
        return ["--train", next(iter(self.wanted())), "--val", self.shard(f"val{max(self.pairs)}")]

    def prepare(self):
        """Makes the data on first use."""
        os.makedirs(os.path.join("data", "mqar"), exist_ok=True)
        for path, (pairs, rows, length, seed) in self.wanted().items():
            if not os.path.exists(path):
                shards.write_rows(path, mqar.make_rows(length, self.vocab, pairs, rows, seed))

    def row_options(self, words):
        """The first layer lets a token see the one before it, as a short convolution would; the second is the row's."""
        at = words.index("--attention") + 1
        return [*words[:at], "softmax:window=2," + words[at], *words[at + 1:]]

    def measure(self, run):
        """{"accuracy": of the most pairs, "loss": likewise, "pairs": {n: {"accuracy", "loss"}}}, and "lengths": {T: the same as
        "pairs"} where other lengths are tested."""
        found = {str(n): losses.recall(losses.of_run(run, self.shard(f"val{n}"), "--no-begin")) for n in self.pairs}
        other = {str(T): {str(n): losses.recall(losses.of_run(run, self.shard(f"val{n}", T), "--no-begin", "--length", str(T)))
                          for n in self.fitting(T)} for T in self.lengths}
        return {**found[str(max(self.pairs))], "pairs": found, **({"lengths": other} if other else {})}


class Language(Task):
    """Text; the loss over the validation set, of recall hits and the rest, and by position. `longer` also measures rows
    that are so many times as long as in training."""

    metric, higher_is_better = "loss", False

    def __init__(self, name, corpus, layers, steps, options, rates, longer=0):
        super().__init__(name, layers, steps, LANGUAGE + options, rates)
        self.corpus, self.longer, self.documents = corpus, longer, corpus == STORIES

    def data(self):
        words = ["--train", f"{self.corpus}/*_train_*.bin", "--val", f"{self.corpus}/*_val_*.bin",
                 "--tokenizer", f"{self.corpus}/vocab.tiktoken"]
        return words + (["--documents"] if self.documents else [])

    def prepare(self):
        """Makes or fetches the text on first use."""
        if self.corpus == STORIES:
            corpora.prepare("stories")
        elif self.corpus == AUSTEN and not os.path.exists(f"{AUSTEN}/vocab.tiktoken"):
            corpora.run_script(["scripts/get_corpus.sh", "austen", "--vocab", "512", "--out", AUSTEN])

    def measure(self, run):
        return losses.language_of_run(run, f"{self.corpus}/*_val_*.bin", self.documents, self.longer * self.option("context"))


# Naming any of n values in the context is right once in n times: a row that stays near that has not learned to bind keys to
# values yet, which says nothing of how many its state could hold.
MQAR = ("--width 64 --heads 1 --batch 32 --init-std 0.08 --warmup 50 --weight-decay 0 --schedule wsd --final-lr 0 "
        "--positions none")
RATES, MQAR_RATES = ["3e-3", "1e-2", "3e-2"], ["3e-4", "1e-3", "3e-3"]
RECALL = Recall("mqar, 64 pairs", 256, 1024, [4, 8, 16, 32, 64], 50000, 2, 1500, MQAR, MQAR_RATES, lengths=(64, 128, 512))
TASKS = {task.name: task for task in (
    Recall("mqar, 500 steps", 64, 128, [4, 8, 16], 100000, 2, 500, MQAR, MQAR_RATES),
    Recall("mqar", 64, 128, [4, 8, 16], 100000, 2, 1000, MQAR, MQAR_RATES),
    Recall("mqar, 32 pairs", 128, 256, [8, 16, 32], 100000, 2, 1500, MQAR, MQAR_RATES),
    Language("stories", STORIES, 2, 1000, "", RATES),
    Language("austen", AUSTEN, 2, 1000, "", RATES),
    Language("stories, any length", STORIES, 4, 1000, " --positions none", RATES, longer=16),
    Language("austen, any length", AUSTEN, 4, 1000, " --positions none", RATES, longer=16),
)}
