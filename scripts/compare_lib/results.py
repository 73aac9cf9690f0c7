"""The table of a comparison: one row per attention, tested against softmax, with uniform averaging as the floor."""
import json
import math

from . import paper, state, statistics
from .runs import finite_number

REFERENCE, FLOOR = "softmax", "uniform"
SIGNIFICANT = 0.05
DECODE_POSITIONS = (1024, 65536)


def average(values):
    """The mean of those that are known; None when none is."""
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None


def spread(group, value):
    """Mean, standard error and n of a number of each run; `value` gives it, or None."""
    known = [(json.dumps(run.seed), value(run)) for run in group.runs if value(run) is not None] if group else []
    values = [found for _, found in known]
    return {"mean": average(values), "standard_error": statistics.standard_error(values) if values else None,
            "n": len(values), "values": values, "seeds": [seed for seed, _ in known]}


def final(key):
    return lambda run: run.final[key] if run.final else None


def training_speed(group, measured, apart):
    """Tokens per second with the range of the rounds. Without rounds it is that of the runs' own median steps, unless speed is
    to be measured `apart`, as a comparison does."""
    if measured:
        return measured
    own = None if apart else average([run.tokens_per_second for run in group.runs])
    return {"median": own, "lowest": None, "highest": None, "rounds": 0}


def summarize(group, costs):
    """One row, before it is compared with the others."""
    loss, decode = spread(group, final("loss")), costs.decode.get(group.label, {})
    width, size = state.of_run(group.runs[0])
    return {
        "label": group.label,
        "attention": group.attention,
        "runs": [run.path for run in group.runs],
        "seeds": [run.seed for run in group.runs],
        "rate": costs.rates.get(group.label),
        "loss": loss,
        "perplexity": math.exp(min(loss["mean"], 700)) if loss["mean"] is not None else None,
        "bits_per_byte": spread(group, final("bits_per_byte")),
        **{key: spread(group, lambda run, key=key: run.measures.get(key)) for key in ("hits", "rest", "share")},
        "feature_width": width,
        "state": size,
        "steps": average([run.last_step for run in group.runs]),
        "tokens": average([run.steps[-1]["tokens"] for run in group.runs]),
        "seconds": average([run.steps[-1]["seconds"] for run in group.runs]),
        "training_tokens_per_second": training_speed(group, costs.speed.get(group.label), costs.apart),
        "peak_memory_mb": average([run.peak_memory_mb for run in group.runs]),
        "decode_tokens_per_second": {str(p): finite_number(decode.get(str(p))) for p in DECODE_POSITIONS},
    }


class Costs:
    """What was found of attentions beside their runs, by label: decoding speed {position: tokens per second}, training speed
    in rounds, the rate that a sweep chose. `apart`: training speed is only what was measured apart from the runs."""

    def __init__(self, decode=None, speed=None, rates=None, apart=False):
        self.decode, self.speed, self.rates, self.apart = decode or {}, speed or {}, rates or {}, apart


def find_row(rows, attention):
    """The row of an attention as it is by default, else its first variant; None when there is none."""
    plain = [row for row in rows if row["label"] == attention]
    return (plain or [row for row in rows if row["attention"] == attention] or [None])[0]


def samples(row, metric):
    return dict(zip(row[metric]["seeds"], row[metric]["values"]))


def compare_with(row, reference, metric):
    """The difference to the reference and its tests; None when there is nothing to compare."""
    if reference is None or row is reference or row[metric]["mean"] is None or reference[metric]["mean"] is None:
        return None
    return statistics.compare(samples(row, metric), samples(reference, metric))


def not_below(rows, metric):
    """Those that the first of the rows, the lowest, is not shown to be below of: no test, or p too large after correction."""
    tests = statistics.correct([statistics.compare(samples(rows[0], metric), samples(row, metric)) for row in rows[1:]])
    return [row for row, test in zip(rows[1:], tests) if test["p"] is None or test["p_corrected"] >= SIGNIFICANT]


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


def compare_rows(rows, metric):
    """Adds to each row its comparison with softmax and with the floor."""
    reference, floor = find_row(rows, REFERENCE), find_row(rows, FLOOR)
    for row in rows:
        row["against_softmax"] = compare_with(row, reference, metric)
        row["against_uniform"] = compare_with(row, floor, metric)
        row["gap_closed"] = gap_closed(row, reference, floor, metric)
    for key in ("against_softmax", "against_uniform"):
        statistics.correct([row[key] for row in rows if row[key]])
    for row in rows:
        row["verdict"] = verdict(row["against_softmax"]) if reference else "no softmax run"
    return rows


def tabulate(groups, costs, mixed_vocabulary):
    """All rows, the best first. With different vocabularies only bits per byte are compared."""
    metric = "bits_per_byte" if mixed_vocabulary else "loss"
    rows = compare_rows([summarize(group, costs) for group in groups], metric)
    if mixed_vocabulary:
        for row in rows:
            row["loss"], row["perplexity"] = spread(None, None), None
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


class Column:
    """A column of the table: its name in text and on the page, what it is sorted by, and how it is shown."""

    def __init__(self, name, heading, key, show=str):
        self.name, self.heading, self.key, self.show = name, heading, key, show

    def cell(self, row):
        value = self.key(row)
        return "–" if value is None else self.show(value)


def spread_column(name, heading, key):
    column = Column(name, heading, lambda row: row[key]["mean"])
    column.cell = lambda row: with_error(row[key])
    return column


def against_softmax(key):
    return lambda row: (row["against_softmax"] or {}).get(key)


def decode_column(name, heading, position):
    return Column(name, heading, lambda row: row["decode_tokens_per_second"][str(position)], short_number)


def rate_column():
    column = Column("rate", "Rate", lambda row: row["rate"] and float(row["rate"]["chosen"]))
    column.cell = lambda row: row["rate"]["chosen"] + "*" * row["rate"]["at_the_end"] if row["rate"] else "–"
    return column


def speed_column():
    column = Column("train tok/s", "Training tok/s", lambda row: row["training_tokens_per_second"]["median"])
    column.cell = lambda row: speed_cell(row["training_tokens_per_second"])
    return column


COLUMNS = [
    Column("attention", "Attention", lambda row: row["label"]),
    Column("n", "n", lambda row: max(row["loss"]["n"], row["bits_per_byte"]["n"])),
    rate_column(),
    Column("F", "F", lambda row: row["feature_width"], short_number),
    Column("state", "State", lambda row: row["state"], short_number),
    spread_column("validation loss", "Validation loss", "loss"),
    Column("perplexity", "Perplexity", lambda row: row["perplexity"], lambda value: number(value, 3)),
    spread_column("bits/byte", "Bits per byte", "bits_per_byte"),
    Column("Δ softmax", "Δ to softmax", against_softmax("difference"), lambda value: f"{value:+.4f}"),
    Column("paired p", "p, paired", against_softmax("paired_p"), lambda value: probability(value)),
    Column("Welch p", "p, Welch", against_softmax("welch_p"), lambda value: probability(value)),
    Column("against softmax", "Against softmax", lambda row: row["verdict"]),
    Column("gap closed", "Gap closed", lambda row: row["gap_closed"], lambda value: percent(value)),
    spread_column("recall hits", "Recall hits", "hits"),
    spread_column("the rest", "The rest", "rest"),
    speed_column(),
    Column("peak MB", "Peak MB", lambda row: row["peak_memory_mb"], lambda value: number(value, 0)),
    decode_column("decode 1K", "Decode tok/s at 1K", 1024),
    decode_column("decode 64K", "Decode tok/s at 64K", 65536),
]


def columns_of(rows):
    """Those that hold something."""
    return [column for column in COLUMNS if any(column.key(row) is not None for row in rows)]


def text_table(rows):
    """Columns aligned for the terminal."""
    columns = columns_of(rows)
    table = [[column.name for column in columns]] + [[column.cell(row) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in table) for i in range(len(columns))]
    return "\n".join("  ".join(cell.ljust(width) if i == 0 else cell.rjust(width)
                               for i, (cell, width) in enumerate(zip(line, widths))).rstrip() for line in table)


def markdown_cell(text):
    return str(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def markdown_table(rows):
    columns = columns_of(rows)
    lines = ["| " + " | ".join(column.name for column in columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(markdown_cell(column.cell(row)) for column in columns) + " |" for row in rows]
    return "\n".join(lines)


# What a column means; the lines of columns that are not there are left out.
EXPLANATION = {
    "validation loss": "Validation loss: nats per token on one fixed validation set, token-weighted; mean ± standard error over n seeds.",
    "rate": "Rate: the best of those that were tried on a seed that is not reported; * where it is the largest or smallest of them.",
    "Δ softmax": "Δ: the mean difference over the seeds that both have. Runs of one seed share first weights and data, so the "
    "two-sided paired t test decides; Welch's, which does not use the pairs, stands beside it, and decides where fewer than two "
    "seeds are shared. \"Better\" and \"worse\" need p < 0.05 after Holm's correction for the number of attentions; the p shown are "
    "uncorrected.",
    "gap closed": "Gap closed: the share of the way from uniform averaging (the floor, 0 %) to softmax (100 %).",
    "recall hits": "Recall hits: the loss of targets whose bigram has already stood in the row; the rest: that of all others.",
    "F": "F: the feature width of attentions with a state of constant size.",
    "state": "State: numbers per head and layer that decoding keeps at the end of a row of the training length (mean over layers).",
    "decode 1K": "Decode: tokens per second of the whole model at position 1024 and 65536, one thread, the state there made up."}


def explanation(rows):
    names = {column.name for column in columns_of(rows)}
    return [text for name, text in EXPLANATION.items() if name in names]


def rate_table(rows):
    """What the sweep found: the headings, and a line of cells for each attention; empty without a sweep."""
    swept = [row for row in rows if row["rate"]]
    rates = sorted({rate for row in swept for rate in row["rate"]["tried"]}, key=float)
    lines = [[row["label"], *[tried_cell(row["rate"], rate) for rate in rates]] for row in swept]
    return (["attention", *rates], lines) if lines else ([], [])


def tried_cell(found, rate):
    if rate not in found["tried"]:
        return ""
    loss = found["tried"][rate]
    return ("diverged" if loss is None else f"{loss:.4f}") + (" ←" if rate == found["chosen"] else "")


def markdown_rates(rows):
    head, lines = rate_table(rows)
    if not lines:
        return []
    return ["", "## Rates tried", "", SWEEP_WORDS, "", "| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1),
            *["| " + " | ".join(map(markdown_cell, line)) + " |" for line in lines]]


SWEEP_WORDS = ("Validation loss of the runs that tried a rate, on a seed that is not reported, possibly with a smaller budget (see the "
               "command); ← the one taken.")


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
    parts += [f"- {markdown_cell(note)}" for note in explanation(summary["rows"]) + summary["notes"]]
    parts += markdown_rates(summary["rows"]) + markdown_beside_paper(summary["paper"])
    if summary["left_out"]:
        parts += ["", "Left out:", ""]
        parts += [f"- {markdown_cell(path)}: {markdown_cell(reason)}" for path, reason in summary["left_out"]]
    if summary["command"]:
        parts += ["", "Made with", "", "```", summary["command"].replace("```", "'''"), "```"]
    return "\n".join(parts).rstrip() + "\n"


def dump(summary):
    return json.dumps(summary, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
