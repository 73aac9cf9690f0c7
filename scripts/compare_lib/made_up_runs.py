"""Run directories with made-up figures, for tests of the report."""
import json
import math
import os
import random

ATTENTIONS = [("yat", 0.62), ("softmax", 0.65), ("yat-spherical", 0.66), ("slay", 0.71), ("elu", 0.80), ("cosformer", 0.84),
              ("favor", 0.9), ("uniform", 1.05)]


def configuration(attention, seed, **changes):
    options = {"train": "data/made_up/a_train_000000.bin", "val": "data/made_up/a_val_000000.bin", "seed": seed, "threads": 1,
               "layers": 2, "heads": 2, "width": 128, "context": 256, "vocab": 2048, "attention": attention["name"],
               "batch": 8, "sequence": 256, "steps": 400, "seconds": 0.0, "lr": 0.003, **changes}
    machine = {"processor": "made up", "threads": 1, "memory_gb": 8.0, "blas": "none", "precision": "fp32"}
    return {"type": "configuration", "options": options, "attention": attention, "parameters": 691712, "machine": machine}


def step_lines(steps, level, noise, milliseconds):
    lines = []
    for step in range(1, steps + 1):
        loss = level + 7 * math.exp(-step / (0.06 * steps)) + 0.8 * (1 - step / steps) + noise.gauss(0, 0.02)
        record = {"type": "step", "step": step, "tokens": 2048 * step, "loss": round(loss, 6), "norm": 1.0, "lr": 1e-3,
                  "ms": milliseconds, "tokens_per_second": 2048e3 / milliseconds, "gflops": 60.0,
                  "seconds": step * milliseconds / 1e3}
        lines.append(record)
        if step % (steps // 8) == 0:
            loss = level + 7 * math.exp(-step / (0.06 * steps)) + 0.8 * (1 - step / steps) + noise.gauss(0, 0.004)
            lines.append({"type": "validation", "step": step, "loss": round(loss, 6), "perplexity": math.exp(loss),
                          "bits_per_byte": round(loss / math.log(2) / 4, 6), "tokens": 59113})
    return lines


def measures(level):
    """As a kept file has them."""
    buckets = [[0, 15, level + 0.5, 1000], [16, 31, level + 0.1, 1000], [32, 63, level, 2000]]
    return {"type": "measures", "hits": level - 0.3, "rest": level + 0.1, "share": 0.25, "positions": buckets,
            "longer": [*buckets, [64, 127, level + 0.2, 4000]]}


def write_run(directory, attention, seed, level, steps=400, milliseconds=120.0, lines=None, more=(), **changes):
    """A finished run; `lines` replaces everything after the configuration, and `more` stands behind it."""
    attention = attention if isinstance(attention, dict) else {"name": attention}
    records = step_lines(steps, level, random.Random(f"{attention['name']} {seed}"), milliseconds)
    records.append({"type": "done", "step": steps, "tokens": 2048 * steps, "seconds": steps * milliseconds / 1e3,
                    "peak_memory_mb": 72.5})
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "metrics.jsonl"), "w", encoding="utf-8") as file:
        for record in [configuration(attention, seed, steps=steps, **changes), *(records if lines is None else lines), *more]:
            file.write(json.dumps(record) + "\n")
    return directory


def write_other_vocabulary(directory, attention, seed, level):
    """A run on the same text in other tokens: half as many, each of twice the bytes."""
    lines = step_lines(400, 2 * level, random.Random(f"{attention} {seed}"), 100.0)
    for record in lines:
        if record["type"] == "validation":
            record["tokens"], record["bits_per_byte"] = 59113 / 2, record["loss"] / math.log(2) / 8
    lines.append({"type": "done", "step": 400, "seconds": 1.0, "peak_memory_mb": 1.0})
    return write_run(directory, attention, seed, level, lines=lines, vocab=4096)


def scaling_rows():
    rows = []
    for name, _ in ATTENTIONS:
        quadratic = name in ("softmax", "yat", "yat-spherical")
        for power in range(7, 15):
            T = 1 << power
            time = 2e-6 * T * T * (1.3 if name != "softmax" else 1) if quadratic else 1.2e-3 * T * (1 + len(name) / 20)
            rows.append({"attention": name, "T": T, "forward_ms": time, "backward_ms": 2 * time, "peak_mb": 18 + T * 3e-3})
    return rows


def write_comparison(directory, seeds=(1, 2, 3), variants=True):
    """A whole comparison as scripts/compare leaves it."""
    plan = {"jobs": 2, "threads": 1, "command": "scripts/compare --seeds 3", "runs": {}, "rates": ["1e-3", "3e-3", "1e-2"],
            "chosen": {}, "sweep": {}}
    measured = {"decode": {}, "samples": {}, "scaling": scaling_rows(), "notes": [], "prompt": "Jonas and the lost tray",
                "scaling_shape": "2 heads of 64, one sequence", "speed": {"steps": 12, "threads": 1, "rounds": [{}, {}, {}]}}
    entries = ATTENTIONS + ([("slay:poly=exact,R=2", 0.69), ("slay:poly=nystrom", 0.73)] if variants else [])
    for entry, level in entries:
        name = entry.partition(":")[0]
        for seed in seeds:
            run = f"{entry.replace(':', '_').replace('=', '-').replace(',', '_')}_seed{seed}"
            write_run(os.path.join(directory, run), {"name": name, "entry": entry}, seed, level, milliseconds=100.0 + 5 * len(entry),
                      more=[measures(level + 0.001 * seed)])
            plan["runs"][run] = {"attention": entry, "seed": seed, "command": f"./train_gpt2 --attention {name} --seed {seed}"}
        plan["chosen"][entry], plan["sweep"][entry] = "3e-3", {"1e-3": level + 0.2, "3e-3": level, "1e-2": None}
        for number, each in enumerate(measured["speed"]["rounds"]):
            each[entry] = (20000.0 - 100 * len(entry)) * (1 + 0.01 * number)
        quadratic = name in ("softmax", "yat", "yat-spherical")
        measured["decode"][entry] = {"1024": 7000.0, "65536": 100.0 if quadratic else 6000.0}
        measured["samples"][entry] = "Jonas and the lost tray\n\nJonas lived in the village of Underhill. " + "He looked for it. " * 20
    for name, value in (("compare.json", plan), ("measurements.json", measured)):
        with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
            json.dump(value, file)
