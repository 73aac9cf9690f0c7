"""The event files of runs read by TensorBoard's own readers, aim and trackio, beside the runs' metrics.jsonl.

    python scripts/read_events.py DIRECTORY_OF_RUNS      for scripts/test_tensorboard.sh; last line: `N passed, N failed`
"""
import importlib.util
import json
import os
import subprocess
import sys
import tempfile

from checks import check, summary
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator as PluginAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.util import tensor_util

TAGS = {"train/loss": ("step", "loss"), "train/norm": ("step", "norm"), "train/lr": ("step", "lr"),
        "train/tokens": ("step", "tokens"), "validation/loss": ("validation", "loss"),
        "validation/bits_per_byte": ("validation", "bits_per_byte")}


def read_metrics(run):
    with open(os.path.join(run, "metrics.jsonl")) as lines:
        return [json.loads(line) for line in lines]


def compare_scalars(name, run, scalars_of):
    """scalars_of(tag): [(step, value)]"""
    lines = read_metrics(run)
    for tag, (kind, key) in TAGS.items():
        expected = [(line["step"], line[key]) for line in lines if line["type"] == kind]
        found = scalars_of(tag)
        check(f"{name}: steps of {tag}", [step for step, _ in found] == [step for step, _ in expected], found[:3], expected[:3])
        far = [pair for pair in zip(found, expected) if not abs(pair[0][1] - pair[1][1]) <= 1e-5 * (1 + abs(pair[1][1]))]
        check(f"{name}: values of {tag}", not far, far[:3])


# ---- TensorBoard


def read_events(run, reader=EventAccumulator):
    events = reader(run, size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    return events


def by_tensorboard(name, run):
    events, lines = read_events(run), read_metrics(run)
    compare_scalars(f"TensorBoard, {name}", run, lambda tag: [(event.step, event.value) for event in events.Scalars(tag)])
    samples = [(event.step, tensor_util.make_ndarray(event.tensor_proto)[0].decode())
               for event in read_events(run, PluginAccumulator).Tensors("sample/text_summary")]  # as the page shows them
    expected = [(line["step"], line["text"]) for line in lines if line["type"] == "sample"]
    check(f"TensorBoard, {name}: samples", samples and samples == expected, samples, expected)
    text = tensor_util.make_ndarray(events.Tensors("configuration/text_summary")[0].tensor_proto)[0].decode()
    check(f"TensorBoard, {name}: configuration", json.loads(text) == lines[0], text)
    metadata = events.SummaryMetadata("_hparams_/session_start_info")
    start = plugin_data_pb2.HParamsPluginData.FromString(metadata.plugin_data.content).session_start_info
    options = {key: start.hparams[key].number_value for key in ("lr", "batch", "width")}
    check(f"TensorBoard, {name}: options", all(lines[0]["options"][key] == value for key, value in options.items()), options)
    check(f"TensorBoard, {name}: attention", start.hparams["attention"].string_value == "softmax", start.hparams)
    check(f"TensorBoard, {name}: the time", events.FirstEventTimestamp() > 1e9)


# ---- aim and trackio, which take the scalars of anyone's event files and leave texts out


def scalars(pairs):
    """In the order of their steps; what a session has done again after a rollback counts once."""
    return sorted({int(step): value for step, value in pairs}.items())


def by_aim(runs, directory):
    aim = [os.path.join(os.path.dirname(sys.executable), "aim")]
    for words in ["init", "--repo", directory], ["convert", "--repo", directory, "tensorboard", "--logdir", runs], \
            ["storage", "--repo", directory, "reindex", "--yes"]:
        result = subprocess.run([*aim, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        check(f"aim {words[0]}", result.returncode == 0, result.stderr[-500:])
    from aim import Repo

    opened = {os.path.basename(run["tensorboard_logdir"]): run for run in Repo(directory).iter_runs()}
    check("aim: every run", sorted(opened) == sorted(os.listdir(runs)), opened)
    for name, run in opened.items():
        metrics = {metric.name: metric for metric in run.metrics()}
        compare_scalars(f"aim, {name}", os.path.join(runs, name),
                        lambda tag: scalars(metrics[tag].dataframe()[["step", "value"]].values if tag in metrics else []))


def by_trackio(runs, directory):
    os.environ["TRACKIO_DIR"] = directory
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    trackio.import_tf_events(log_dir=runs, project="watched")
    check("trackio: every run", sorted(SQLiteStorage.get_runs("watched")) == sorted(os.listdir(runs)))
    for name in os.listdir(runs):
        logs = SQLiteStorage.get_logs("watched", name)
        compare_scalars(f"trackio, {name}", os.path.join(runs, name),
                        lambda tag: scalars((log["step"], log[tag]) for log in logs if tag in log))


def main():
    runs = os.path.abspath(sys.argv[1])
    for name in sorted(os.listdir(runs)):
        by_tensorboard(name, os.path.join(runs, name))
    losses = [[event.value for event in read_events(os.path.join(runs, name)).Scalars("train/loss")] for name in ("whole", "parts")]
    check("the same losses in one go and in parts", losses[0] == losses[1], losses)
    for needed, read in (("aim", "tensorflow"), by_aim), (("trackio", "tbparse"), by_trackio):
        if all(map(importlib.util.find_spec, needed)):
            with tempfile.TemporaryDirectory() as directory:
                read(runs, directory)
    return summary()


if __name__ == "__main__":
    sys.exit(main())
