"""Reads run directories. What they hold is not trusted: a run that cannot be used raises BadRun with the reason."""
import json
import math
import os
import re

METRICS_MOST_BYTES = 1 << 30
STATE_MOST_BYTES = 1 << 24


class BadRun(Exception):
    """Why a run is left out, in words for the user."""


def as_one(attention):
    """A list over the layers as one attention: {"name": "slay*3,softmax", "slay:R": 3, "softmax:window": 64, ...}."""
    if isinstance(attention, dict):
        return attention
    names = [entry["name"] + (f"*{entry['layers']}" if entry.get("layers", 1) > 1 else "") for entry in attention]
    options = {f"{entry['name']}:{key}": value for entry in attention for key, value in entry.items()
               if key not in ("name", "layers", "seed")}
    return {"name": ",".join(names), **options}


class Run:
    """One run, a directory or a kept file: its configuration, what was measured at each step, and how it ended."""

    def __init__(self, path, configuration, steps, validations, done, cut_short):
        self.path, self.name = path, os.path.basename(os.path.normpath(path)).removesuffix(".jsonl")
        self.configuration = configuration
        self.options = configuration["options"]
        self.attention = as_one(configuration["attention"])
        self.machine = configuration.get("machine") if isinstance(configuration.get("machine"), dict) else {}
        self.steps, self.validations, self.done, self.cut_short = steps, validations, done, cut_short
        self.state, self.measures, self.failed = newest_state(path), {}, None

    @property
    def seed(self):
        return self.options.get("seed")

    @property
    def finished(self):
        """The trainer's last line is there; runs of trainers that wrote none say in their state how many steps there are."""
        if self.done:
            return self.done["step"] == self.last_step
        options = self.state.get("options")
        return isinstance(options, dict) and options.get("steps") == self.last_step and not self.cut_short

    @property
    def last_step(self):
        return self.steps[-1]["step"] if self.steps else 0

    @property
    def planned_steps(self):
        return whole_number(self.options.get("steps")) or 0

    @property
    def final(self):
        """The last validation; None when there was none."""
        return self.validations[-1] if self.validations else None

    @property
    def tokens_per_second(self):
        """Of the median step: a pause or a save does not count."""
        rates = sorted(step["tokens_per_second"] for step in self.steps)
        return rates[len(rates) // 2] if rates else None

    @property
    def peak_memory_mb(self):
        return self.done.get("peak_memory_mb") if self.done else None

    @property
    def vocabulary(self):
        """Its size and, when the checkpoint knows it, the checksum of its file."""
        files = self.state.get("files")
        entry = files.get("tokenizer.tiktoken") if isinstance(files, dict) else None
        checksum = entry.get("xxh3") if isinstance(entry, dict) else None
        return (whole_number(self.options.get("vocab")), checksum if isinstance(checksum, str) else None)

    @property
    def corpus(self):
        """What tells one corpus from another under one vocabulary: the training shards, the validation tokens."""
        loader = self.state.get("loader")
        fingerprint = loader.get("fingerprint") if isinstance(loader, dict) else None
        if not isinstance(fingerprint, str):
            fingerprint = str(self.options.get("train"))
        return (fingerprint, self.final["tokens"] if self.final else None)

    @property
    def validation_bytes(self):
        """The bytes of the validation text, from its loss in nats per token and in bits per byte; None if unknown."""
        if not self.final or not self.final["bits_per_byte"] or self.final["loss"] <= 0:
            return None
        return self.final["loss"] * self.final["tokens"] / (math.log(2) * self.final["bits_per_byte"])


# ---- numbers and lines


def whole_number(value):
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def finite_number(value):
    """The number, or None for anything else: text, true, NaN, infinity."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:
        return None


def parse_json(text):
    """The value, or None when the text is not JSON; NaN and Infinity count as numbers that are not finite."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def needed(record, key, where, least=-math.inf):
    value = finite_number(record.get(key))
    if value is None or value < least:
        found = json.dumps(record.get(key))[:40]
        raise BadRun(f"damaged: {where}: expected a finite number \"{key}\", found {found}")
    return value


def read_step(record, where):
    names = ("step", "tokens", "loss", "tokens_per_second", "seconds")
    return {name: needed(record, name, where, 0) for name in names}


def read_validation(record, where):
    result = {name: needed(record, name, where, 0) for name in ("step", "loss", "tokens")}
    bits = record.get("bits_per_byte")
    result["bits_per_byte"] = None if bits is None else needed(record, "bits_per_byte", where, 0)
    return result


def read_done(record, where):
    result = {"step": needed(record, "step", where, 0), "seconds": needed(record, "seconds", where, 0)}
    result["peak_memory_mb"] = needed(record, "peak_memory_mb", where, 0)
    return result


def read_buckets(value):
    """[[from, to, loss, targets]], or [] for anything else."""
    good = isinstance(value, list) and all(isinstance(bucket, list) and len(bucket) == 4 and
                                           all(finite_number(number) is not None for number in bucket) for bucket in value)
    return value if good else []


def read_measures(record):
    """Loss of recall hits and of the rest, and by position; what is not there, or odd, is None or empty."""
    return {**{name: finite_number(record.get(name)) for name in ("hits", "rest", "share")},
            **{name: read_buckets(record.get(name)) for name in ("positions", "longer")}}


# ---- files


def read_text(path, most_bytes):
    try:
        if not os.path.isfile(path):
            raise BadRun(f"{os.path.basename(path)} is missing")
        if os.path.getsize(path) > most_bytes:
            raise BadRun(f"{os.path.basename(path)} is larger than {most_bytes >> 20} MB")
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace")
    except OSError as error:
        raise BadRun(f"{os.path.basename(path)} cannot be read: {error.strerror}") from None


def checkpoints(path):
    """The steps of a run's checkpoints, ascending."""
    try:
        names = os.listdir(path)
    except OSError:
        return []
    return sorted(int(match[1]) for match in (re.fullmatch(r"step_(\d{8,15})", name) for name in names) if match)


def newest_state(path):
    """The state of the newest checkpoint, as a dictionary; empty when there is none that can be read."""
    for step in reversed(checkpoints(path)):
        try:
            state = parse_json(read_text(os.path.join(path, f"step_{step:08d}", "state.json"), STATE_MOST_BYTES))
        except BadRun:
            continue
        if isinstance(state, dict):
            return state
    return {}


def check_configuration(record):
    if not isinstance(record, dict) or record.get("type") != "configuration":
        raise BadRun("damaged: the first line of metrics.jsonl is not the configuration")
    if not isinstance(record.get("options"), dict):
        raise BadRun("damaged: the configuration has no \"options\"")
    attention = record.get("attention")
    entries = attention if isinstance(attention, list) and attention else [attention]
    if not isinstance(attention, (dict, list)):
        raise BadRun("damaged: the configuration has no \"attention\"")
    if not all(isinstance(entry, dict) and isinstance(entry.get("name"), str) for entry in entries):
        raise BadRun("damaged: the configuration does not name its attention")
    if not all(isinstance(entry.get("layers", 1), int) for entry in entries):
        raise BadRun("damaged: an attention of the configuration has no number of layers")
    return record


def load_run(path):
    """Reads RUN/metrics.jsonl, or a kept file; a last line without its end is one that is being written, and is passed over."""
    if not os.path.isdir(path) and not path.endswith(".jsonl"):
        raise BadRun("no such directory")
    text = read_text(path if path.endswith(".jsonl") else os.path.join(path, "metrics.jsonl"), METRICS_MOST_BYTES)
    lines = text.split("\n")
    cut_short = lines.pop() != ""
    if not lines:
        raise BadRun("unfinished: metrics.jsonl is empty" if not text else "unfinished: metrics.jsonl has no whole line")
    configuration = check_configuration(parse_json(lines[0]))
    steps, validations, done, more = [], [], None, {}
    for number, line in enumerate(lines[1:], 2):
        where, record = f"metrics.jsonl line {number}", parse_json(line)
        if not isinstance(record, dict):
            raise BadRun(f"damaged: {where}: expected a JSON object, found {json.dumps(line[:40])}")
        if record.get("type") == "step":
            steps.append(read_step(record, where))
            if len(steps) > 1 and steps[-1]["step"] <= steps[-2]["step"]:
                raise BadRun(f"damaged: {where}: steps run backwards")
        elif record.get("type") == "validation":
            validations.append(read_validation(record, where))
        elif record.get("type") == "done":
            done = read_done(record, where)
        else:
            more[record.get("type") if isinstance(record.get("type"), str) else None] = record
    return with_kept(Run(path, configuration, steps, validations, done, cut_short), more)


def with_kept(run, more):
    """What only a kept file has."""
    run.state = more.get("state") or run.state
    run.measures = read_measures(more.get("measures", {}))
    run.failed = str(more["failed"].get("reason")) if "failed" in more else None
    return run


def progress(run):
    """How far an unfinished run came, in words."""
    plan = f" of {run.planned_steps}" if run.planned_steps and not run.options.get("seconds") else ""
    return f"unfinished: it ends at step {run.last_step}{plan}; ./train_gpt2 --resume {run.path} goes on"


# ---- which runs can be compared


def usable(path, with_unfinished):
    """Loads a run that has something to show, or raises BadRun."""
    run = load_run(path)
    if not run.steps:
        raise BadRun("it diverged: " + run.failed if run.failed else "unfinished: it has no steps yet")
    if not run.finished and not with_unfinished:
        raise BadRun(progress(run))
    if not run.final and not with_unfinished:
        raise BadRun("it has no validation loss; train it with --val")
    return run


def most_common(values):
    """The value that occurs most often; of several the first."""
    return max(values, key=lambda value: (values.count(value), -values.index(value)))


def other_corpus(run, reference):
    """Why this run cannot stand beside the reference run; None when it can."""
    if run.vocabulary == reference.vocabulary:
        if not run.final or not reference.final:  # still going on: the training data have to do
            return None if run.corpus[0] == reference.corpus[0] else "of another corpus: other training data"
        if run.corpus == reference.corpus:
            return None
        what = "training data" if run.corpus[0] != reference.corpus[0] else "validation tokens"
        return f"of another corpus: other {what} than {reference.name}"
    here, there = run.validation_bytes, reference.validation_bytes
    if not here or not there:
        return f"another vocabulary than {reference.name}, and no bits per byte to compare by; train with --tokenizer"
    if abs(here - there) > 1e-3 * there:
        return (f"of another corpus: {here:.0f} bytes of validation text, {reference.name} has {there:.0f}; if --val-tokens cut the "
                "same text, train both with more")
    return None


def same_run(run, others):
    """The name of a run with the same attention, seed and options; it would count twice."""
    def identity(r):
        return (r.attention, r.seed, comparable_options(r), r.vocabulary)

    return next((other.name for other in others if identity(other) == identity(run)), None)


class Selection:
    """The runs that can be compared, those left out with the reason, and whether vocabularies differ."""

    def __init__(self, runs, left_out):
        self.runs, self.left_out = runs, left_out
        self.mixed_vocabulary = len({run.vocabulary for run in runs}) > 1


def select(paths, with_unfinished=False):
    runs, kept, left_out = [], [], []
    for path in paths:
        try:
            runs.append(usable(path, with_unfinished))
        except BadRun as reason:
            left_out.append((path, str(reason)))
    if not runs:
        return Selection([], left_out)
    common = most_common([(run.vocabulary, run.corpus) for run in runs])
    reference = next(run for run in runs if (run.vocabulary, run.corpus) == common)
    for run in runs:
        reason = other_corpus(run, reference)
        double = same_run(run, kept)
        if not reason and double:
            reason = f"the same attention, seed and options as {double}"
        if reason:
            left_out.append((run.path, reason))
        else:
            kept.append(run)
    return Selection(kept, left_out)


# ---- groups: runs that differ in their seed alone

# Options that change nothing of what a run learns, or only how long it is watched.
NOT_COMPARED = {"seed", "threads", "attention", "on-nan", "val-every", "save-every", "keep", "keep-every", "model",
                "train", "val", "tokenizer", "vocab", "seconds"}


def comparable_options(run):
    """The options that have to be equal; under a time budget the number of steps is a result."""
    timed = finite_number(run.options.get("seconds"))
    options = {key: value for key, value in run.options.items() if key not in NOT_COMPARED}
    if timed:
        options["steps"] = f"{timed:g} s"
    return options


def attention_options(run):
    return {key: value for key, value in run.attention.items() if key not in ("seed", "name")}


class Group:
    """The seeds of one attention."""

    def __init__(self, label, runs):
        self.label, self.runs, self.attention = label, runs, runs[0].attention["name"]


def differing(dictionaries):
    """The keys whose values are not the same in all of them."""
    keys = sorted(set().union(*dictionaries))
    return [key for key in keys if len({json.dumps(d.get(key), sort_keys=True) for d in dictionaries}) > 1]


def group_runs(runs, labels=None):
    """Groups by attention and options. `labels` maps a run's path to the name its maker gave it."""
    labels = labels or {}
    by_key = {}
    for run in runs:
        key = json.dumps([run.attention["name"], attention_options(run), comparable_options(run), run.vocabulary[0]])
        by_key.setdefault((labels.get(run.path), key), []).append(run)
    members = list(by_key.items())
    return [Group(given or describe(group, [g for _, g in members]), group) for (given, _), group in members]


def describe(group, groups):
    """The attention's name, and whatever it takes to tell the group from the others."""
    run = group[0]
    same_name = [attention_options(g[0]) for g in groups if g[0].attention["name"] == run.attention["name"]]
    parts = [f"{key}={run.attention.get(key)}" for key in differing(same_name)]
    parts += [f"{key}={comparable_options(run).get(key)}" for key in differing([comparable_options(g[0]) for g in groups])]
    if len({g[0].vocabulary for g in groups}) > 1:
        parts.append(f"vocab={run.vocabulary[0]}")
    return run.attention["name"] + (":" + ",".join(parts) if parts else "")


def unequal_options(groups, swept=False):
    """What differs between groups besides the attention, as {option: [values]}; empty in an honest comparison. Rates that were
    chosen for each attention do not count."""
    options = [{key: value for key, value in comparable_options(group.runs[0]).items() if not (swept and key == "lr")}
               for group in groups]
    if not options:
        return {}
    return {key: sorted({str(o.get(key)) for o in options}) for key in differing(options)}
