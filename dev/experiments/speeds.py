"""Training and decoding speed of the rows of a task, in turn."""
import json
import os

from compare_lib import measure as compare_measure
from compare_lib import speed

from . import runs

STEPS, ROUNDS_FILE = 40, "speed.json"
POSITIONS = (512, 4096)


def load(folder):
    """{task: {"rounds": ..., "decode": {row: {position: tokens per second}}}}"""
    try:
        with open(os.path.join(folder, ROUNDS_FILE), encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def keep(folder, found):
    path = os.path.join(folder, ROUNDS_FILE)
    os.makedirs(folder, exist_ok=True)
    with open(path + ".tmp", "w", encoding="utf-8") as file:
        file.write(json.dumps(found, indent=1) + "\n")
    os.replace(path + ".tmp", path)


def decode(command, scratch):
    """{position: tokens per second} of a model after one step: speed does not depend on the weights."""
    directory = os.path.join(scratch, "decode")
    failed = runs.train(speed.replace_options(command, {"steps": "1"}), directory)
    if failed:
        raise RuntimeError(failed)
    found = {}
    for position in POSITIONS:
        result = compare_measure.call([compare_measure.DECODE_PROGRAM, directory, "--position", str(position),
                                       "--threads", "1", "--seconds", "0.3"])
        if result.returncode:
            raise RuntimeError(result.stderr.decode("utf-8", "replace").strip())
        found[str(position)] = json.loads(result.stdout)["tokens_per_second"]
    return found


def measure(task, rows, folder, scratch, say):
    """Adds a task's figures to the file; those that are there are measured anew, all rows in the same rounds."""
    all_found, notes = load(folder), compare_measure.Notes()
    commands = {name: [*runs.command_of(task, words, task.rates[0], 1), "--threads", "1"] for name, words in rows.items()}
    found = {"steps": STEPS, "threads": 1, "rounds": []}
    speed.measure(commands, found, notes, scratch, lambda: None, say)
    if notes.lines:
        raise RuntimeError(notes.lines[0])
    found["decode"] = {name: decode(command, scratch) for name, command in commands.items()}
    all_found[task.name] = found
    keep(folder, all_found)


def summary(found, task, row):
    """(tokens per second of training, [of decoding at POSITIONS]); None and an empty list if unknown."""
    of_task = found.get(task.name, {})
    measured, decoded = speed.summaries(of_task).get(row), of_task.get("decode", {}).get(row, {})
    return measured["median"] if measured else None, [decoded[str(at)] for at in POSITIONS if str(at) in decoded]
