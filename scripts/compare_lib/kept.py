"""A finished run as a small file: what the page shows of it, in the format of metrics.jsonl, so that it can be committed and
a comparison grows over days and machines."""
import json
import os

from . import statistics
from .runs import BadRun, load_run

PARTS = 40  # of the training curve


def thin(run):
    """Step records: the ends of equal parts and the steps of validations, each with the mean loss since the one before."""
    steps, validated = run.steps, {validation["step"] for validation in run.validations}
    ends = {(part + 1) * len(steps) // PARTS - 1 for part in range(PARTS)} | {len(steps) - 1}
    ends = sorted(i for i in ends | {i for i, step in enumerate(steps) if step["step"] in validated} if i >= 0)
    records = []
    for first, last in zip([0] + [end + 1 for end in ends], ends):
        part = steps[first:last + 1]
        records.append({"type": "step", **steps[last], "loss": round(statistics.mean([step["loss"] for step in part]), 6),
                        "tokens_per_second": round(statistics.median([step["tokens_per_second"] for step in part]), 1)})
    return records


def records_of(run, measures):
    loader = run.state.get("loader")
    fingerprint = loader.get("fingerprint") if isinstance(loader, dict) else None
    ended = [{"type": "done", **run.done}] if run.done else []  # a run that lost its last line has its state to say so
    return [run.configuration,
            {"type": "state", "options": {"steps": run.last_step}, "loader": {"fingerprint": fingerprint},
             "files": {"tokenizer.tiktoken": {"xxh3": run.vocabulary[1]}}},
            *thin(run), *[{"type": "validation", **validation} for validation in run.validations],
            *ended, {"type": "measures", **measures}]


def write(path, records):
    """Complete or not at all."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".tmp", "w", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    os.replace(path + ".tmp", path)


def write_run(path, directory, measures):
    write(path, records_of(load_run(directory), measures))


def write_failed(path, directory, reason):
    """A run that diverged is a result too."""
    write(path, [load_run(directory).configuration, {"type": "failed", "reason": reason}])


def load(path):
    """The run of a kept file, finished or failed; None when there is none that can be read."""
    try:
        run = load_run(path)
    except BadRun:
        return None
    return run if run.failed or (run.finished and run.final) else None
