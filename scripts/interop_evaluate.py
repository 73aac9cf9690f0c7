"""evaluate beside lm-eval, which opens the same checkpoints through transformers and a task of its own, in a local file.

Run from the project's root by scripts/test_interop.sh. Last line: `N passed, N failed`.
"""
import json
import os
import random
import re
import sys
import tempfile

import lm_eval
import numpy as np
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

sys.path.insert(0, "scripts")
from checks import check, summary
from programs import QUICK, make_stories, run, train

TASK = """task: stories
dataset_path: json
dataset_kwargs:
  data_files: {path}
test_split: train
output_type: multiple_choice
doc_to_text: "{{{{ctx}}}}"
doc_to_choice: "{{{{endings}}}}"
doc_to_target: "{{{{label}}}}"
metric_list:
  - metric: acc
  - metric: acc_norm
"""


def make_set(directory):
    """Beginnings of the stories' sentences with their ends and two whose words stand backwards; some beyond ASCII."""
    rng, path = random.Random(1), os.path.join(directory, "set.jsonl")
    with open(os.path.join(directory, "text")) as file:
        sentences = [line.split() for line in file if len(line.split()) > 12]
    with open(path, "w") as file:
        for i, words in enumerate(sentences[:60]):
            begin, end = words[:6], words[6:10 + i % 4]
            other = rng.choice(sentences)[6:11 + i % 3]
            others = [end[::-1], other[::-1]]
            endings = [" ".join(words) + ("" if i % 5 else " caf\u00e9") for words in (end, *others)]
            label = i % 3
            endings[0], endings[label] = endings[label], endings[0]
            json.dump({"ctx": " ".join(begin), "endings": endings, "label": label}, file)
            file.write("\n")
    return path


def make_models(directory):
    """A checkpoint for each of two attentions; quickly, of the second."""
    path = lambda name: os.path.join(directory, name)
    sizes = ["--layers", "2", "--heads", "2", "--width", "64", "--context", "64", "--batch", "8", "--steps", "300"]
    data = [*make_stories(directory, 400), "--tokenizer", path("vocab"), "--warmup", "5", "--lr", "0.005"]
    for name, *options in (("softmax",), ("slay", "--attention", "slay", "--decay", "learned"))[QUICK:]:
        yield name, train(path(name), *data, *sizes, *options)


def report_here(checkpoint, path, directory, *options):
    """The accuracies, and the scores (examples, completions)."""
    scores = os.path.join(directory, "scores")
    out = run("./evaluate", checkpoint, path, "--scores", scores, *options)
    accuracy, _, per_token, per_character = (float(x) for x in re.search(
        r"accuracy ([\d.]+) \+- ([\d.]+)  per token ([\d.]+)  per character ([\d.]+)", out).groups())
    with open(scores) as lines:
        return accuracy, per_token, per_character, [json.loads(line) for line in lines]


def report_there(checkpoint, directory, **options):
    model = HFLM(pretrained=checkpoint, trust_remote_code=True, dtype="float32", batch_size=7, device="cpu", **options)
    manager = TaskManager(include_path=os.path.join(directory, "tasks"), include_defaults=False)
    results = lm_eval.simple_evaluate(model=model, tasks=["stories"], task_manager=manager, log_samples=True, bootstrap_iters=0)
    samples = sorted(results["samples"]["stories"], key=lambda sample: sample["doc_id"])
    scores = [[float(answer[0][0]) for answer in sample["resps"]] for sample in samples]
    return results["results"]["stories"]["acc,none"], results["results"]["stories"]["acc_norm,none"], scores


def compare(name, checkpoint, path, directory, begin):
    accuracy, per_token, per_character, lines = report_here(checkpoint, path, directory, "--begin", "yes" if begin else "no")
    there, normed, scores = report_there(checkpoint, directory, add_bos_token=begin)
    worst = max(np.abs(np.array(line["scores"]) - np.array(score)).max() for line, score in zip(lines, scores, strict=True))
    check(f"{name}: every log-probability within 1e-3", worst < 1e-3, worst)
    check(f"{name}: acc", abs(accuracy - there) < 1e-4, accuracy, there)
    check(f"{name}: acc_norm is per character", abs(per_character - normed) < 1e-4, per_character, normed)
    mean = np.mean([np.argmax(np.array(line["scores"]) / line["tokens"]) == line["label"] for line in lines])
    check(f"{name}: per token, from the scores", abs(per_token - mean) < 1e-4, per_token, mean)
    return accuracy


def main():
    with tempfile.TemporaryDirectory() as directory:
        os.mkdir(os.path.join(directory, "tasks"))
        for name, checkpoint in make_models(directory):
            path = make_set(directory)
            with open(os.path.join(directory, "tasks", "stories.yaml"), "w") as file:
                file.write(TASK.format(path=path))
            accuracies = [compare(f"{name}, {'begun' if begin else 'as it is'}", checkpoint, path, directory, begin)
                          for begin in (True, False)]
            check(f"{name}: it has learned", max(accuracies) > 0.5, accuracies)
            default, *_ = report_there(checkpoint, directory)
            check(f"{name}: lm-eval's default is ours", abs(default - report_here(checkpoint, path, directory)[0]) < 1e-4)
    return summary()


if __name__ == "__main__":
    raise SystemExit(main())
