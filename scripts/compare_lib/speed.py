"""Training speed: short runs of all attentions in turn, one at a time, so that a slow moment of the machine meets them all."""
import os
import subprocess
import tempfile

from . import statistics
from .runs import BadRun, finite_number, load_run, whole_number
from .training import replace_options

ROUNDS = 5
VISIT_MILLISECONDS = 1500  # of timed steps, each time that an attention has its turn
LEAST_STEPS, MOST_STEPS = 3, 100
WARM_UP = 2  # steps before the timed ones: memory is touched and random features are drawn there


def steps_of(jobs):
    """Timed steps of each turn, the same for all attentions, from the quick steps of the runs: the machine may have been busy."""
    quick = [sorted(times)[len(times) // 20] for times in (job.metrics.step_milliseconds for job in jobs) if times]
    usual = max(statistics.median(quick), 1e-3) if quick else VISIT_MILLISECONDS
    return max(LEAST_STEPS, min(MOST_STEPS, round(VISIT_MILLISECONDS / usual)))


def short_run(command, steps, scratch):
    """Tokens per second of the median step, by the command of a run, shortened and without validation."""
    with tempfile.TemporaryDirectory(dir=scratch) as directory:
        out = os.path.join(directory, "run")
        words = replace_options(command, {"steps": str(steps + WARM_UP), "val-every": "0", "out": out})
        result = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if result.returncode:
            return None, result
        try:
            return statistics.median([step["tokens_per_second"] for step in load_run(out).steps[WARM_UP:]]), result
        except (BadRun, ZeroDivisionError, IndexError):
            return None, result


def earlier_rounds(stored, entries, steps, threads):
    """What an earlier call measured, if it is of the same attentions and the same steps; else a beginning."""
    fresh = {"steps": steps, "threads": threads, "rounds": []}
    if not isinstance(stored, dict) or stored.get("threads") != threads or not isinstance(stored.get("rounds"), list):
        return fresh
    whole = all(isinstance(each, dict) and set(each) == set(entries) for each in stored["rounds"])
    return stored if whole and stored["rounds"] and whole_number(stored.get("steps")) else fresh


def measure(commands, found, notes, scratch, keep, tell):
    """Adds the rounds that are missing. `commands` has one command per attention; `keep` stores what is found so far."""
    while len(found["rounds"]) < ROUNDS:
        tell(f"training speed, round {len(found['rounds']) + 1} of {ROUNDS}")
        order = list(commands.items())
        if len(found["rounds"]) % 2:  # there and back: a machine that grows slower is as hard on the first as on the last
            order.reverse()
        this_round = {}
        for entry, command in order:
            this_round[entry], result = short_run(command, found["steps"], scratch)
            if this_round[entry] is None:
                notes.add(f"training speed of {entry}", result)
        found["rounds"].append(this_round)
        keep()


# ---- what the table shows


def summaries(stored):
    """{attention: {median, lowest, highest, rounds}} of what measurements.json holds, which is not trusted."""
    rounds = stored.get("rounds") if isinstance(stored, dict) else None
    found = {}
    for each in rounds if isinstance(rounds, list) else []:
        for entry, speed in each.items() if isinstance(each, dict) else []:
            if finite_number(speed) is not None and speed > 0:
                found.setdefault(entry, []).append(speed)
    return {entry: {"median": statistics.median(speeds), "lowest": min(speeds), "highest": max(speeds), "rounds": len(speeds)}
            for entry, speeds in found.items()}


def described(stored):
    """How it was measured, in words; empty when it was not."""
    if not summaries(stored):
        return ""
    steps, threads = whole_number(stored.get("steps")), whole_number(stored.get("threads"))
    return (f"Training tok/s: after training, one attention at a time with {threads} thread{'s' if threads != 1 else ''}, in "
            f"{len(stored['rounds'])} rounds of {steps} steps each; the median of the rounds ± half of their range.")
