"""Single runs and what is kept of them: a small file of results for each, named after its command."""
import glob
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import time

from compare_lib.live import duration
from compare_lib.runs import load_run, parse_json

FOLDER = os.path.join("docs", "results", "better_slay", "runs")
CHOOSING_SEED, SEEDS = 1, (2, 3, 4)  # rates are chosen on a seed that is not reported
MORE_RATES = 2  # tried beyond the ends of the list while the best is at an end


def command_of(task, words, rate, seed):
    """One run, without where it goes and how many threads it has."""
    return ["./train_gpt2", *task.train_options(), "--lr", rate, "--seed", str(seed), "--val-every", "0",
            "--save-every", "0", *task.row_options(words)]


def key_of(command):
    return hashlib.sha256(shlex.join(command).encode()).hexdigest()[:10]


def save_result(folder, result, command):
    """Complete or not at all; a line for each figure. The row's name is for the reader: the command is what counts."""
    name = re.sub(r"[^a-z0-9]+", "_", f"{result['task']} {result['row']}".lower())
    path = os.path.join(folder, f"{name}_{key_of(command)}.json")
    os.makedirs(folder, exist_ok=True)
    with open(path + ".tmp", "w", encoding="utf-8") as file:
        file.write("{" + ",\n ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in result.items()) + "}\n")
    os.replace(path + ".tmp", path)


def load_result(folder, command):
    """What an earlier call found for this command; None when there is nothing."""
    for path in glob.glob(os.path.join(glob.escape(folder), f"*_{key_of(command)}.json")):
        with open(path, encoding="utf-8") as file:
            result = parse_json(file.read())
        if isinstance(result, dict) and result.get("command") == shlex.join(command):
            return result
    return None


def train(command, directory):
    """Trains; a run that was interrupted begins anew, for none takes long. Returns what the trainer refused, or None."""
    shutil.rmtree(directory, ignore_errors=True)
    result = subprocess.run(["nice", *command, "--threads", "1", "--quiet", "--out", directory], stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    return None if result.returncode == 0 else (result.stderr.strip().splitlines() or ["no message"])[-1]


def run(task, row, command, folder, scratch):
    """Trains and measures one run and keeps what was found. A run that diverges is a result too: {"failed": why}."""
    directory, started = os.path.join(scratch, "run"), time.monotonic()
    failed = train(command, directory)
    if failed and "not finite" not in failed:
        raise RuntimeError(f"{row}: {failed}")
    found = {"failed": failed} if failed else task.measure(directory)
    result = {"task": task.name, "row": row, "command": shlex.join(command),
              "seconds": round(time.monotonic() - started, 1), **found}
    if not failed:
        result["tokens"] = load_run(directory).steps[-1]["tokens"]
    save_result(folder, result, command)
    shutil.rmtree(directory, ignore_errors=True)
    return result


# ---- which runs a row needs


def neighbour(rate, up):
    """The next rate on the ladder 1e-3, 3e-3, 1e-2, 3e-2, ..."""
    digit, power = rate.split("e")
    return (f"3e{power}" if digit == "1" else f"1e{int(power) + 1}") if up else \
        (f"1e{power}" if digit == "3" else f"3e{int(power) - 1}")


def cost(result):
    """What the best rate has least of. A loss tells more than an accuracy of 100 %."""
    return result.get("loss", float("inf"))


class Row:
    """One row of a table on one task: the runs that there are, and the next that is missing."""

    def __init__(self, task, name, words, folder):
        self.task, self.name, self.words, self.folder = task, name, words, folder
        self.swept, self.found, self.missing, self.rate = {}, {}, [], None
        self.look()

    def result(self, rate, seed):
        return load_result(self.folder, command_of(self.task, self.words, rate, seed))

    def look(self):
        """Finds what is there; `missing` is what can be run now."""
        rates = list(self.task.rates)
        for _ in range(1 + MORE_RATES):
            self.swept = {rate: self.result(rate, CHOOSING_SEED) for rate in rates}
            self.missing = [(rate, CHOOSING_SEED) for rate, result in self.swept.items() if result is None]
            self.rate = None
            if self.missing:
                return
            self.rate = min(rates, key=lambda rate: cost(self.swept[rate]))
            more = [neighbour(rates[0], False)] if self.rate == rates[0] else [] if self.rate != rates[-1] else \
                [neighbour(rates[-1], True)]
            if not more or len(rates) == len(self.task.rates) + MORE_RATES:
                break
            rates = sorted(rates + more, key=float)
        self.found = {seed: self.result(self.rate, seed) for seed in SEEDS}
        self.missing = [(self.rate, seed) for seed, result in self.found.items() if result is None]

    @property
    def complete(self):
        return self.rate is not None and not self.missing

    @property
    def at_the_end(self):
        """Whether the best rate is the largest or the smallest that was tried."""
        return self.rate in (min(self.swept, key=float), max(self.swept, key=float))

    def left(self):
        """How many runs are missing at least."""
        return len(self.missing) + (0 if self.rate else len(SEEDS))

    def values(self, key):
        """{seed: value} of the finished runs that did not diverge."""
        return {seed: result[key] for seed, result in self.found.items() if result and result.get(key) is not None}


def run_all(rows, scratch, say):
    """Every run that is missing, one at a time."""
    spent = []
    while True:
        waiting = [row for row in rows if row.missing]
        if not waiting:
            return
        row = waiting[0]
        rate, seed = row.missing[0]
        left = sum(each.left() for each in waiting)
        guess = f", about {duration(left * sum(spent) / len(spent))} left" if spent else ""
        say(f"{row.task.name}: {row.name}, rate {rate}, seed {seed} ({left} runs{guess})")
        result = run(row.task, row.name, command_of(row.task, row.words, rate, seed), row.folder, scratch)
        spent.append(result["seconds"])
        shown = result.get("failed") or f"{row.task.metric} {result[row.task.metric]:.4f}, {result['seconds']:.0f} s"
        say(f"    {shown}")
        row.look()
