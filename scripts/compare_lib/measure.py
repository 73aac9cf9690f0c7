"""What is measured beside training: decoding speed by position, time and memory by length, samples of text."""
import array
import json
import math
import os
import random
import re
import struct
import subprocess
import tempfile

from .results import DECODE_POSITIONS
from .runs import finite_number, parse_json
from .settings import as_words, parse_attention

BUILD = os.environ.get("BUILD", "build")
DECODE_PROGRAM, ATTENTION_PROGRAM = f"{BUILD}/dev/bench/bench_decode_position", f"{BUILD}/dev/attention_eval"
CLEARLY_FASTER = 0.9  # of softmax's time at the longest sequence, for a crossing that is more than noise
SCALING_LENGTHS = (128, 256, 512, 1024, 2048, 4096)
SAMPLE_TOKENS, SAMPLE_SEED, SAMPLE_TEMPERATURE = 160, 1, 0.7


class Notes:
    """What could not be measured, and why."""

    def __init__(self):
        self.lines = []

    def add(self, what, result):
        message = result.stderr.decode("utf-8", "replace").strip().splitlines()
        self.lines.append(f"{what}: not measured: {message[-1] if message else 'it ended with code %d' % result.returncode}")


def call(command):
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


# ---- decoding


def decode_speed(run_directory, notes, label):
    """{position: tokens per second} of the whole model with one thread."""
    speeds = {}
    for position in DECODE_POSITIONS:
        result = call([DECODE_PROGRAM, run_directory, "--position", str(position), "--threads", "1", "--seconds", "0.3"])
        record = parse_json(result.stdout.decode("utf-8", "replace"))
        if result.returncode or not isinstance(record, dict):
            notes.add(f"decoding with {label} at position {position}", result)
            continue
        speeds[str(position)] = finite_number(record.get("tokens_per_second"))
    return speeds


# ---- time and memory by length


def write_inputs(path, heads, length, size):
    """q, k, v and dout (1,H,T,d) of normal numbers as safetensors; a short tile is repeated, for time does not depend on it."""
    source = random.Random(1)
    count = heads * length * size
    tile = array.array("f", (source.gauss(0, 1) for _ in range(min(count, 65536 + 17))))  # a length that no row divides
    data = (tile * (count // len(tile) + 1))[:count].tobytes()
    header, names = {}, ("q", "k", "v", "dout")
    for i, name in enumerate(names):
        header[name] = {"dtype": "F32", "shape": [1, heads, length, size],
                        "data_offsets": [i * len(data), (i + 1) * len(data)]}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data * len(names))


def time_attention(entry, mode, inputs, scratch):
    """(milliseconds, megabytes) of one attention; None when the tool refuses."""
    name, options = parse_attention(entry)
    result = call([ATTENTION_PROGRAM, "--in", inputs, "--out", os.path.join(scratch, "out"), "--attention", name,
                   *as_words(options), "--mode", mode, "--time"])
    match = re.search(r"median ([0-9.]+) ms of \d+, peak memory ([0-9.]+) MB", result.stdout.decode("utf-8", "replace"))
    return (float(match[1]), float(match[2])) if match and result.returncode == 0 else None


def measure_scaling(entries, heads, size, rows, keep, tell):
    """Adds rows {attention, T, forward_ms, backward_ms, peak_mb} of the attention alone; `keep` stores them, length by length."""
    known = {(row["attention"], row["T"]) for row in rows}
    with tempfile.TemporaryDirectory() as scratch:
        inputs = os.path.join(scratch, "in.safetensors")
        for length in SCALING_LENGTHS:
            missing = [entry for entry in entries if (entry, length) not in known]
            if not missing:
                continue
            tell(f"attention alone, T = {length}")
            write_inputs(inputs, heads, length, size)
            for entry in missing:
                forward, both = (time_attention(entry, mode, inputs, scratch) for mode in ("forward", "backward"))
                if forward and both:
                    rows.append({"attention": entry, "T": length, "forward_ms": forward[0],
                                 "backward_ms": max(0.0, both[0] - forward[0]), "peak_mb": both[1]})
            keep()


def read_scaling(path):
    """Rows from a file: the TSV of bench_attention_scaling, a TSV with a header, a JSON list, {"rows": ...}, or JSON lines."""
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read(1 << 26)
    whole = parse_json(text)
    if isinstance(whole, dict) and isinstance(whole.get("rows"), list):
        whole = whole["rows"]
    if not isinstance(whole, list):
        whole = read_lines(text)
    rows = same_passes([row for row in map(check_scaling, whole) if row])
    if not rows:
        raise ValueError(f"{path}: expected rows of attention, T, forward_ms, backward_ms, peak_mb, found none")
    return rows


# as dev/bench/bench_attention_scaling prints them, in the spelling of docs/results/attention_scaling.json
BENCH_COLUMNS = ["attention", "T", "forward_ms", "forward_backward_ms", "forward_mb", "forward_backward_mb"]


def read_lines(text):
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines or "\t" not in lines[0]:
        return [parse_json(line) for line in lines]
    names = lines.pop(0).split("\t") if lines[0].startswith("attention\t") else BENCH_COLUMNS
    return [dict(zip(names, map(number_or_text, line.split("\t")))) for line in lines]


def number_or_text(text):
    """A number, a text, or None for a dash."""
    try:
        return float(text)
    except ValueError:
        return None if text == "-" else text


def check_scaling(row):
    """The row with what is known and sensible; None without a name, a length and a time."""
    if not isinstance(row, dict) or not isinstance(row.get("attention"), str):
        return None
    keys = {*BENCH_COLUMNS[1:], "backward_ms", "peak_mb"}
    found = {key: finite_number(row.get(key)) for key in keys}
    if any(value is not None and value < 0 for value in found.values()) or not found["T"] or not found["forward_ms"]:
        return None
    if found["forward_backward_ms"] is not None:
        found["backward_ms"] = max(0.0, found["forward_backward_ms"] - found["forward_ms"])
    peak = next((found[key] for key in ("peak_mb", "forward_backward_mb") if found[key] is not None), None)
    return {"attention": row["attention"], "T": found["T"], "forward_ms": found["forward_ms"],
            "backward_ms": found["backward_ms"], "peak_mb": peak, "forward_mb": found["forward_mb"]}


def same_passes(rows):
    """Backward for all or for none: a line that loses it half-way would bend for no reason."""
    partly = any(row["backward_ms"] is None for row in rows)
    return [{"attention": row["attention"], "T": row["T"], "forward_ms": row["forward_ms"],
             "backward_ms": None if partly else row["backward_ms"],
             "peak_mb": row["forward_mb"] if partly and row["forward_mb"] is not None else row["peak_mb"]} for row in rows]


def passes(rows):
    """What the times of these rows are of, in words."""
    return "forward" if any(row["backward_ms"] is None for row in rows) else "forward and backward"


def crossover(rows, name, reference="softmax"):
    """The length from which an attention is faster than the reference, interpolated between powers; None if never.

    0 when it is faster at every length that was measured."""
    def times(attention):
        return {row["T"]: row["forward_ms"] + (row["backward_ms"] or 0) for row in rows if row["attention"] == attention}

    ours, theirs = times(name), times(reference)
    lengths = sorted(set(ours) & set(theirs))
    ratios = [math.log(ours[T] / theirs[T]) if ours[T] > 0 and theirs[T] > 0 else None for T in lengths]
    if not lengths or None in ratios or ratios[-1] > math.log(CLEARLY_FASTER):
        return None
    last = max((i for i, ratio in enumerate(ratios) if ratio >= 0), default=None)
    if last is None:
        return 0
    share = ratios[last] / (ratios[last] - ratios[last + 1])
    return math.exp(math.log(lengths[last]) + share * math.log(lengths[last + 1] / lengths[last]))


# ---- samples


def sample(run_directory, prompt, notes, label):
    """A text of the model, the same prompt and seed for all; None when there is none."""
    command = ["./sample_gpt2", run_directory, "--tokens", str(SAMPLE_TOKENS), "--seed", str(SAMPLE_SEED), "--temperature",
               str(SAMPLE_TEMPERATURE), "--no-stats", "--threads", "1"]
    result = call(command + (["--prompt=" + prompt] if prompt else []))
    if result.returncode:
        notes.add(f"a sample of {label}", result)
        return None
    return result.stdout.decode("utf-8", "replace").rstrip("\n")
