"""The table of a comparison: one row per attention, tested against softmax, with uniform averaging as the floor."""
import json
import math

from . import paper, statistics
from .runs import finite_number

REFERENCE, FLOOR = "softmax", "uniform"
SIGNIFICANT = 0.05
DECODE_POSITIONS = (1024, 65536)


def average(values):
    """The mean of those that are known; None when none is."""
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None


def final_losses(group):
    return [run.final["loss"] for run in group.runs if run.final]


def final_bits(group):
    return [run.final["bits_per_byte"] for run in group.runs if run.final and run.final["bits_per_byte"] is not None]


def spread(values):
    """Mean, standard error and n of a list of numbers."""
    return {"mean": average(values), "standard_error": statistics.standard_error(values) if values else None,
            "n": len(values), "values": values}


def training_speed(group, measured):
    """Tokens per second with the range of the rounds; when no rounds were measured, of the runs' own median steps."""
    if measured:
        return measured
    return {"median": average([run.tokens_per_second for run in group.runs]), "lowest": None, "highest": None, "rounds": 0}


def summarize(group, decode, speed):
    """One row, before it is compared with the others. `decode` is {position: tokens per second or None}."""
    loss, bits = spread(final_losses(group)), spread(final_bits(group))
    return {
        "label": group.label,
        "attention": group.attention,
        "runs": [run.path for run in group.runs],
        "seeds": [run.seed for run in group.runs],
        "loss": loss,
        "perplexity": math.exp(min(loss["mean"], 700)) if loss["mean"] is not None else None,
        "bits_per_byte": bits,
        "steps": average([run.last_step for run in group.runs]),
        "tokens": average([run.steps[-1]["tokens"] for run in group.runs]),
        "seconds": average([run.steps[-1]["seconds"] for run in group.runs]),
        "training_tokens_per_second": training_speed(group, speed),
        "peak_memory_mb": average([run.peak_memory_mb for run in group.runs]),
        "decode_tokens_per_second": {str(p): finite_number(decode.get(str(p))) for p in DECODE_POSITIONS},
    }


def find_row(rows, attention):
    """The row of an attention as it is by default, else its first variant; None when there is none."""
    plain = [row for row in rows if row["label"] == attention]
    return (plain or [row for row in rows if row["attention"] == attention] or [None])[0]


def compare_with(row, reference, metric):
    """The difference of the means and Welch's test."""
    if reference is None or row is reference or row[metric]["mean"] is None or reference[metric]["mean"] is None:
        return None
    test = statistics.welch(row[metric]["values"], reference[metric]["values"])
    result = {"difference": row[metric]["mean"] - reference[metric]["mean"], "t": None, "degrees": None, "p": None}
    if test:
        result.update(test)
    return result


def verdict(comparison):
    """Whether the difference counts, in one word for the table."""
    if comparison is None:
        return "reference"
    if comparison["p"] is None:
        return "n < 2"
    if comparison["p_corrected"] >= SIGNIFICANT:
        return "not significant"
    return "better" if comparison["difference"] < 0 else "worse"


def gap_closed(row, reference, floor, metric):
    """The share of the way from uniform averaging to softmax; None when softmax itself did not leave the floor."""
    means = [r[metric]["mean"] if r else None for r in (row, reference, floor)]
    if None in means or means[2] - means[1] <= 0:
        return None
    return (means[2] - means[0]) / (means[2] - means[1])


def correct(comparisons):
    """Adds Holm's correction over all comparisons with the same reference."""
    known = [c for c in comparisons if c]
    for comparison, p in zip(known, statistics.holm([c["p"] for c in known])):
        comparison["p_corrected"] = p


def compare_rows(rows, metric):
    """Adds to each row its comparison with softmax and with the floor."""
    reference, floor = find_row(rows, REFERENCE), find_row(rows, FLOOR)
    for row in rows:
        row["against_softmax"] = compare_with(row, reference, metric)
        row["against_uniform"] = compare_with(row, floor, metric)
        row["gap_closed"] = gap_closed(row, reference, floor, metric)
    correct([row["against_softmax"] for row in rows])
    correct([row["against_uniform"] for row in rows])
    for row in rows:
        row["verdict"] = verdict(row["against_softmax"]) if reference else "no softmax run"
    return rows


def tabulate(groups, decode, speed, mixed_vocabulary):
    """All rows, the best first. With different vocabularies only bits per byte are compared."""
    metric = "bits_per_byte" if mixed_vocabulary else "loss"
    rows = compare_rows([summarize(group, decode.get(group.label, {}), speed.get(group.label)) for group in groups], metric)
    if mixed_vocabulary:
        for row in rows:
            row["loss"], row["perplexity"] = spread([]), None
    return sorted(rows, key=lambda row: (row[metric]["mean"] is None, row[metric]["mean"]))


# ---- as text


def number(value, digits=4):
    return "–" if value is None else f"{value:.{digits}f}"


def with_error(value, digits=4):
    if value["mean"] is None:
        return "–"
    error = "" if value["standard_error"] is None else f" ± {value['standard_error']:.{digits}f}"
    return f"{value['mean']:.{digits}f}{error}"


def short_number(value):
    """12345 -> 12.3k: four characters that say the size."""
    if value is None:
        return "–"
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= limit:
            return f"{value / {'G': 1e9, 'M': 1e6, 'k': 1e3}[suffix]:.1f}{suffix}"
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def speed_cell(speed):
    """The median of the rounds ± half of their range."""
    if speed["lowest"] is None or not speed["median"]:
        return short_number(speed["median"])
    return f"{short_number(speed['median'])} ± {50 * (speed['highest'] - speed['lowest']) / speed['median']:.0f} %"


def probability(p):
    if p is None:
        return "–"
    return "< 0.0001" if p < 0.0001 else f"{p:.4f}" if p < 0.01 else f"{p:.3f}"


def percent(share):
    if share is not None and share < -1:  # worse than the floor by more than softmax is better
        return "< -100 %"
    return "–" if share is None else f"{100 * share:.0f} %"


COLUMNS = ["attention", "n", "validation loss", "perplexity", "bits/byte", "Δ softmax", "p", "against softmax",
           "gap closed", "train tok/s", "peak MB", "decode 1K", "decode 64K"]


def cells(row):
    """A row as text, in the order of COLUMNS."""
    comparison = row["against_softmax"] or {"difference": None, "p": None}
    decode = row["decode_tokens_per_second"]
    n = max(row["loss"]["n"], row["bits_per_byte"]["n"])
    difference = "–" if comparison["difference"] is None else f"{comparison['difference']:+.4f}"
    return [row["label"], str(n), with_error(row["loss"]), number(row["perplexity"], 3),
            with_error(row["bits_per_byte"]), difference, probability(comparison["p"]), row["verdict"],
            percent(row["gap_closed"]), speed_cell(row["training_tokens_per_second"]), number(row["peak_memory_mb"], 0),
            *[short_number(decode[str(p)]) for p in DECODE_POSITIONS]]


def text_table(rows):
    """Columns aligned for the terminal."""
    table = [COLUMNS] + [cells(row) for row in rows]
    widths = [max(len(line[i]) for line in table) for i in range(len(COLUMNS))]
    return "\n".join("  ".join(cell.ljust(width) if i == 0 else cell.rjust(width)
                               for i, (cell, width) in enumerate(zip(line, widths))).rstrip() for line in table)


def markdown_cell(text):
    return str(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def markdown_table(rows):
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(markdown_cell(cell) for cell in cells(row)) + " |" for row in rows]
    return "\n".join(lines)


EXPLANATION = [
    "Validation loss: nats per token on one fixed validation set, token-weighted; mean ± standard error over n seeds.",
    "p: Welch's two-sided t test against softmax; \"better\" and \"worse\" need p < 0.05 after Holm's correction for the number "
    "of attentions.",
    "Gap closed: the share of the way from uniform averaging (the floor, 0 %) to softmax (100 %).",
    "Decode: tokens per second of the whole model at position 1024 and 65536, one thread, the state there made up."]


def markdown_beside_paper(found):
    if not found:
        return []
    lines = [f"| {each['label']} | {each['rank_here']} | {each['rank_paper']} | {each['loss_here']:.4f} | {each['loss_paper']:.4f} |"
             for each in found["attentions"]]
    return ["", "## Beside the paper", "", "| attention | place here | place in the paper | loss here | loss in the paper |",
            "|---|---|---|---|---|", *lines, "", paper.in_words(found)]


def markdown(summary):
    """results.md: the table, what its columns mean, how it was made."""
    parts = [f"# {markdown_cell(summary['title'])}", "", *[markdown_cell(line) + "  " for line in summary["facts"]], "",
             markdown_table(summary["rows"]), ""]
    parts += [f"- {markdown_cell(note)}" for note in EXPLANATION + summary["notes"]]
    parts += markdown_beside_paper(summary["paper"])
    if summary["left_out"]:
        parts += ["", "Left out:", ""]
        parts += [f"- {markdown_cell(path)}: {markdown_cell(reason)}" for path, reason in summary["left_out"]]
    if summary["command"]:
        parts += ["", "Made with", "", "```", summary["command"].replace("```", "'''"), "```"]
    return "\n".join(parts).rstrip() + "\n"


def dump(summary):
    return json.dumps(summary, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
