"""The report: one HTML file without any network, from run directories or from a comparison."""
import html
import json
import os
import re
import shlex
import time

from . import corpora, measure, paper, results, speed, statistics
from .live import duration
from .runs import finite_number, group_runs, parse_json, select, unequal_options, whole_number

HERE = os.path.dirname(os.path.abspath(__file__))
CURVE_POINTS = 160
# One accent for each attention, readable in light and dark and told apart by the colour-blind; variants share it.
ACCENTS = {"softmax": ("#1b1b1f", "#f4f4f5"), "yat": ("#d1490c", "#ff8f4f"), "yat-spherical": ("#b07d00", "#f0c04a"),
           "elu": ("#3f9fdb", "#7cc8f8"), "cosformer": ("#b8558f", "#e79bc8"), "favor": ("#0b5fa5", "#4d94e6"),
           "slay": ("#00876a", "#35cda0"), "uniform": ("#85858c", "#93939b"), "rff": ("#7a5c3e", "#c2a281")}
OTHER_ACCENT = ("#5a5f73", "#aab0c6")


class Report:
    """Everything that is on the page."""

    def __init__(self, summary, data):
        self.summary, self.data = summary, data


# ---- where the runs are


class Source:
    """What was found under the paths that were given: runs, and for comparisons their plans and measurements."""

    def __init__(self):
        self.paths, self.labels, self.commands, self.plans = [], {}, {}, []
        self.decode, self.samples, self.scaling, self.notes = {}, {}, [], []
        self.speed, self.speed_notes = {}, []
        self.prompt, self.scaling_shape, self.left_out = "", "", []


def read_json_file(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            value = parse_json(file.read(1 << 26))
    except OSError:
        return {}
    return value if isinstance(value, dict) else {}


def add_path(source, path):
    """A comparison, a run, or a directory of runs."""
    if os.path.isfile(os.path.join(path, "compare.json")):
        add_comparison(source, path)
    elif os.path.exists(os.path.join(path, "metrics.jsonl")) or not os.path.isdir(path):
        source.paths.append(path)
    else:
        inside = [os.path.join(path, name) for name in sorted(os.listdir(path))]
        runs = [each for each in inside if os.path.isfile(os.path.join(each, "metrics.jsonl"))]
        source.paths += runs or [path]


def add_comparison(source, path):
    plan = read_json_file(os.path.join(path, "compare.json"))
    source.plans.append(plan)
    runs = plan.get("runs") if isinstance(plan.get("runs"), dict) else {}
    waiting = []
    for name, facts in runs.items():
        facts, directory = facts if isinstance(facts, dict) else {}, run_path(path, plan, os.path.basename(name))
        if not os.path.exists(directory):
            waiting.append(os.path.basename(name))
            continue
        source.paths.append(directory)
        source.labels[directory] = str(facts.get("attention", name))
        source.commands[directory] = str(facts.get("command", ""))
    if waiting:
        source.left_out.append((path, f"not begun yet: {', '.join(waiting)}"))
    add_measurements(source, path)


def rates_of(plans):
    """{label: {"chosen", "at_the_end", "tried": {rate: loss, None when it diverged}}} of the sweeps; what is odd is passed over."""
    found = {}
    for plan in plans:
        chosen, tried = (plan.get(key) if isinstance(plan.get(key), dict) else {} for key in ("chosen", "sweep"))
        for label, rate in chosen.items():
            losses = tried.get(label)
            if isinstance(losses, dict) and rate in losses and all(re.fullmatch(r"[13]e-?\d", each) for each in losses):
                ends = min(losses, key=float), max(losses, key=float)
                found[label] = {"chosen": rate, "at_the_end": rate in ends,
                                "tried": {each: finite_number(loss) for each, loss in losses.items()}}
    return found


def without_costs(source):
    """Whether costs were not to be measured: then the runs' own times are not shown either."""
    return any(plan.get("costs") is False for plan in source.plans)


def swept(source):
    return any(plan.get("rates") for plan in source.plans)


def run_path(path, plan, name):
    """The small file of a finished run, or its directory."""
    small, elsewhere = os.path.join(path, "kept", name + ".jsonl"), plan.get("runs_in")
    if os.path.isfile(small):
        return small
    return os.path.join(elsewhere if isinstance(elsewhere, str) and os.path.isdir(elsewhere) else path, name)


def add_measurements(source, path):
    found = read_json_file(os.path.join(path, "measurements.json"))
    for name in ("decode", "samples"):
        if isinstance(found.get(name), dict):
            getattr(source, name).update(found[name])
    source.decode = {label: speeds for label, speeds in source.decode.items() if isinstance(speeds, dict)}
    source.speed.update(speed.summaries(found.get("speed")))
    source.speed_notes += [note for note in [speed.described(found.get("speed"))] if note]
    if isinstance(found.get("notes"), list):
        source.notes += [str(note) for note in found["notes"]]
    source.prompt = found.get("prompt") if isinstance(found.get("prompt"), str) else ""
    source.scaling_shape = str(found.get("scaling_shape", ""))
    if isinstance(found.get("scaling"), list):
        source.scaling = measure.same_passes([row for row in map(measure.check_scaling, found["scaling"]) if row])
    if os.path.isfile(os.path.join(path, "scaling.json")):
        source.scaling, source.scaling_shape = measure.read_scaling(os.path.join(path, "scaling.json")), ""


def load_comparison(path):
    source = Source()
    add_path(source, path)
    return build(source)


# ---- curves


def timed(groups):
    """Whether runs had a time for their budget, so that steps are a result."""
    return any(finite_number(run.options.get("seconds")) for group in groups for run in group.runs)


def paces(groups, measured):
    """{label: tokens per second} by which the time axis is drawn; empty when it is the time that really passed.

    Under a time budget the time that passed is what was given. Under another budget it tells what else the machine did, so
    the speed that was measured apart is better, if it is known of all."""
    if timed(groups) or not all(group.label in measured for group in groups):
        return {}
    return {group.label: measured[group.label]["median"] for group in groups}


def seconds_at(step, pace):
    return step["tokens"] / pace if pace else step["seconds"]


def bucket(run, count, pace):
    """The training loss as means over `count` equal parts of the run: [(tokens, seconds, loss)]."""
    points, steps = [], run.steps
    for part in range(count):
        chosen = steps[part * len(steps) // count:(part + 1) * len(steps) // count]
        points.append((chosen[-1]["tokens"], seconds_at(chosen[-1], pace), statistics.mean([step["loss"] for step in chosen])))
    return points


def validation_points(run, metric, pace):
    """[(step, tokens, seconds, value)] of the validations; a step's tokens and seconds are those of its training step."""
    at = {step["step"]: step for step in run.steps}
    points = {}
    for validation in run.validations:
        step = at.get(validation["step"])
        if step and validation[metric] is not None:
            points[validation["step"]] = (step["tokens"], seconds_at(step, pace), validation[metric])
    return points


def across_seeds(columns):
    """Points of several seeds that belong together -> [tokens, seconds, mean, lowest, highest]."""
    values = [point[2] for point in columns]
    return [statistics.mean([point[0] for point in columns]), statistics.mean([point[1] for point in columns]),
            statistics.mean(values), min(values), max(values)]


def training_curve(group, pace=None):
    count = min([CURVE_POINTS] + [len(run.steps) for run in group.runs])
    return [across_seeds(points) for points in zip(*[bucket(run, count, pace) for run in group.runs])]


def validation_curve(group, metric, pace=None):
    """At the steps that all seeds have, and at the end of each, which under a time budget are not the same steps."""
    points = [validation_points(run, metric, pace) for run in group.runs]
    points = [each for each in points if each]
    if not points:
        return []
    common = sorted(set.intersection(*[set(each) for each in points]))
    curve = [across_seeds([each[step] for each in points]) for step in common]
    last = across_seeds([each[max(each)] for each in points])
    return curve if curve and curve[-1] == last else curve + [last]


def difference_curve(group, reference, metric, pace=None):
    """Validation minus softmax's of the same seed, which had the same first weights and the same batches, step by step."""
    theirs = {json.dumps(run.seed): validation_points(run, metric, None) for run in reference.runs}
    pairs = [(validation_points(run, metric, pace), theirs.get(json.dumps(run.seed), {})) for run in group.runs]
    differences = [{step: (*ours[step][:2], ours[step][2] - other[step][2]) for step in ours if step in other}
                   for ours, other in pairs]
    differences = [each for each in differences if each]
    common = sorted(set.intersection(*[set(each) for each in differences])) if differences else []
    return [across_seeds([each[step] for each in differences]) for step in common]


# ---- words


def plural(count, word):
    return f"{count:,} {word}{'s' if count != 1 else ''}".replace(",", "\u202f")


def common_value(groups, key):
    """An option's value when all runs have the same; else None."""
    values = {json.dumps(run.options.get(key)) for group in groups for run in group.runs}
    return json.loads(values.pop()) if len(values) == 1 else None


def budget_text(groups):
    """What each run was given, in steps, tokens or seconds."""
    seconds = finite_number(common_value(groups, "seconds"))
    if seconds:
        return f"{duration(seconds)} each"
    runs = [run for group in groups for run in group.runs]
    steps, tokens = {run.last_step for run in runs}, {run.steps[-1]["tokens"] for run in runs}
    if len(steps) > 1 or len(tokens) > 1:
        return f"from {min(steps):,} to {max(steps):,} steps".replace(",", "\u202f")
    return f"{plural(steps.pop(), 'step')}, {results.short_number(tokens.pop())} tokens each"


def model_text(groups):
    sizes = {key: common_value(groups, key) for key in ("layers", "heads", "width", "context")}
    parameters = {whole_number(run.configuration.get("parameters")) for group in groups for run in group.runs}
    text = ", ".join(f"{key} {value}" for key, value in sizes.items() if value is not None)
    count = parameters.pop() if len(parameters) == 1 else None
    return f"GPT-2 with {text}" + (f"; {results.short_number(count)} parameters" if count else "")


def machine_text(groups):
    machine = groups[0].runs[0].machine
    parts = [str(machine.get("processor", "unknown processor"))]
    if finite_number(machine.get("memory_gb")):
        parts.append(f"{machine['memory_gb']:.0f} GB")
    return ", ".join(parts + [str(machine[key]) for key in ("blas", "precision") if isinstance(machine.get(key), str)])


def corpus_text(groups):
    train = common_value(groups, "train")
    final = next((run.final for group in groups for run in group.runs if run.final), None)
    name = os.path.dirname(str(train)) or str(train) if train else "several sets of shards"
    return name + (f", {plural(int(final['tokens']), 'validation token')}" if final else "")


def facts_of(groups):
    seeds = sorted({str(run.seed) for group in groups for run in group.runs}, key=lambda text: (len(text), text))
    return [f"Corpus: {corpus_text(groups)}", f"Model: {model_text(groups)}", f"Budget: {budget_text(groups)}",
            f"Seeds: {', '.join(seeds)}", f"Machine: {machine_text(groups)}"]


def notes_of(selection, groups, rows, source):
    """What a careful reader has to know, before the figures are believed."""
    notes = []
    if selection.mixed_vocabulary:
        notes.append("The runs have different vocabularies. Losses per token cannot be compared then; everything is compared "
                     "in bits per byte of the validation text, and in nothing else.")
    for key, values in unequal_options(groups, swept(source)).items():
        notes.append(f"Not all else is equal: {key} is {', '.join(values)}.")
    notes += notes_on_seeds(rows) + notes_on_tests(rows) + notes_on_hits(rows) + notes_on_floor(rows)
    notes += notes_on_speed(rows, source)
    if unfinished_of(selection):
        notes.append(f"Still training, so their figures will change: {', '.join(unfinished_of(selection))}.")
    return notes + source.notes


def notes_on_seeds(rows):
    counts = {row["label"]: max(row["loss"]["n"], row["bits_per_byte"]["n"]) for row in rows}
    single = [label for label, n in counts.items() if n < 2]
    if single:
        return [f"n = 1, so there is no error and no test: {', '.join(single)}."]
    if counts and min(counts.values()) < 3:
        return ["With two seeds the standard error is a rough guess and the test is weak: a difference that is not significant "
                "here may still be real."]
    return []


def notes_on_tests(rows):
    apart = [row for row in rows if row["against_softmax"] and row["against_softmax"]["test"] == "Welch"]
    return [f"Fewer than two seeds shared with softmax, so Welch's test decides: {names(apart)}."] if apart else []


def notes_on_hits(rows):
    shares = [row["share"]["mean"] for row in rows if row["share"]["mean"] is not None]
    return [f"Recall hits are {100 * statistics.mean(shares):.0f} % of the validation targets."] if shares else []


def notes_on_speed(rows, source):
    """How training speed was measured: apart from the runs, or with whatever else the machine did meanwhile."""
    if all(row["training_tokens_per_second"]["median"] is None for row in rows):
        return []
    if all(row["training_tokens_per_second"]["rounds"] for row in rows):
        return source.speed_notes
    plans = [(whole_number(plan.get("jobs")), whole_number(plan.get("threads"))) for plan in source.plans]
    beside = next((f", {jobs} runs side by side with {plural(threads, 'thread')} each" for jobs, threads in plans
                   if jobs and threads and jobs > 1), "")
    return [*source.speed_notes, f"Training tok/s without a ± is the median step of the runs themselves{beside}; whatever else ran "
            "on the machine slowed it."]


def notes_on_floor(rows):
    """The floor is of use only when softmax is above it."""
    reference = results.find_row(rows, results.REFERENCE)
    test = reference and reference["against_uniform"]
    if not test or test["p"] is None or (test["p_corrected"] < results.SIGNIFICANT and test["difference"] < 0):
        return []
    return ["Softmax is not shown to be better than uniform averaging here, so the share of the gap that is closed means little: "
            "a longer run, more seeds or a harder corpus would tell more."]


def unfinished_of(selection):
    return [run.name for run in selection.runs if not run.finished]


def names(rows):
    return ", ".join(row["label"] for row in rows)


def headline(known, metric):
    """Who has the lowest loss, and whether the test says so."""
    best, unit = known[0], "bits per byte" if metric == "bits_per_byte" else "nats per token"
    text = f"{best['label']}: {results.with_error(best[metric])} {unit} (n\u00a0=\u00a0{best[metric]['n']})"
    level = results.not_below(known, metric)
    if len(known) == 1:
        return f"{text}."
    if not level:
        return f"Best: {text}, significantly below every other."
    several = names(level) if len(level) < len(known) - 1 else "any other"
    return f"Lowest mean loss, but no winner: {text}, not significantly below {several}."


def findings_of(rows, scaling, metric):
    """The answer in a few sentences, from the figures alone."""
    known = [row for row in rows if row[metric]["mean"] is not None]
    if not known:
        return []
    found = [headline(known, metric)]
    for word, text in (("better", "Significantly better than softmax"), ("worse", "Significantly worse than softmax"),
                       ("not significant", "No significant difference to softmax")):
        chosen = [row for row in known if row["verdict"] == word]
        if chosen:
            found.append(f"{text}: {names(chosen)}.")
    return found + cost_findings(rows, scaling)


def speed_finding(rows, reference):
    """The slowest and the fastest in training, beside softmax; nothing when the speed is the runs' own."""
    speeds = {row["label"]: row["training_tokens_per_second"] for row in rows if row["attention"] != results.FLOOR}
    if not reference or len(speeds) < 2 or not all(speed["rounds"] for speed in speeds.values()):
        return []
    usual = speeds[reference["label"]]["median"]
    ratios = sorted((speed["median"] / usual, label) for label, speed in speeds.items() if label != reference["label"])
    return [f"Training speed at this context, softmax being 1: from {ratios[0][0]:.2f} ({ratios[0][1]}) to {ratios[-1][0]:.2f} "
            f"({ratios[-1][1]})."]


def cost_findings(rows, scaling):
    reference = results.find_row(rows, results.REFERENCE)
    found = speed_finding(rows, reference)
    far = str(results.DECODE_POSITIONS[-1])
    fast = [row for row in rows if row["attention"] != results.FLOOR and row["decode_tokens_per_second"][far]]
    if reference and reference["decode_tokens_per_second"][far] and fast:
        winner = max(fast, key=lambda row: row["decode_tokens_per_second"][far])
        ratio = winner["decode_tokens_per_second"][far] / reference["decode_tokens_per_second"][far]
        if winner is not reference:
            found.append(f"Decoding at position 65\u202f536, {winner['label']} is {ratio:.0f} times as fast as softmax.")
    crossings = [(label, measure.crossover(scaling, label)) for label in dict.fromkeys(row["attention"] for row in scaling)]
    crossings = [f"{label} from T ≈ {length:.0f}" if length else f"{label} at every length measured"
                 for label, length in crossings if length is not None and label not in (results.REFERENCE, results.FLOOR)]
    if crossings:
        found.append(f"Faster than softmax, {measure.passes(scaling)} of the attention alone: {'; '.join(crossings)}.")
    return found


# ---- putting it together


def command_of(run):
    """The command that an ordinary run's configuration stands for."""
    words = ["./train_gpt2"]
    skipped = {"seconds"} if not run.options.get("seconds") else {"steps"}
    for key, value in run.options.items():
        if key in skipped or value in (None, ""):
            continue
        words += [f"--{key}" if value is True else f"--no-{key}"] if isinstance(value, bool) else [f"--{key}", str(value)]
    words += [word for key, value in run.attention.items() if key not in ("name", "seed")
              for word in (f"--{key.replace('_', '-')}", str(value))]
    return shlex.join([*words, "--out", run.path])


def variant_numbers(groups):
    """0 for an attention as it is by default, 1, 2, ... for its variants: they share a colour and differ in the dashes."""
    numbers, counts = {}, {}
    for group in sorted(groups, key=lambda group: group.label != group.attention):
        numbers[group.label] = counts.get(group.attention, 0)
        counts[group.attention] = numbers[group.label] + 1
    return numbers


def reference_of(groups, has_rates):
    """The group of softmax, where the same step is the same number of tokens for all; else None."""
    same = not timed(groups) and not unequal_options(groups, has_rates)
    return next((group for group in groups if group.label == results.REFERENCE), None) if same else None


def position_curve(group, key):
    """Loss by position, or beyond the training length: [from, to, mean, lowest, highest] of each bucket, over the seeds."""
    found = [run.measures[key] for run in group.runs if run.measures.get(key)]
    same = [columns for columns in zip(*found) if len({(bucket[0], bucket[1]) for bucket in columns}) == 1]
    losses = [[bucket[2] for bucket in columns] for columns in same]
    return [[*columns[0][:2], statistics.mean(values), min(values), max(values)] for columns, values in zip(same, losses)]


def series_of(groups, metric, mixed, pace, has_rates):
    """What the page draws of each group."""
    series, variants, reference = [], variant_numbers(groups), None if mixed else reference_of(groups, has_rates)
    for group in groups:
        series.append({"label": group.label, "attention": group.attention, "variant": variants[group.label],
                       "validation": validation_curve(group, metric, pace.get(group.label)),
                       "difference": difference_curve(group, reference, metric, pace.get(group.label)) if reference else [],
                       **{key: [] if mixed else position_curve(group, key) for key in ("positions", "longer")},
                       "training": [] if mixed else training_curve(group, pace.get(group.label))})
    return series


def collect_samples(source, groups, take_samples):
    """The samples that a comparison stored; for other runs they are drawn now, if the sampler is there."""
    samples = {label: text for label, text in source.samples.items() if isinstance(text, str)}
    notes = measure.Notes()
    for group in groups:
        run = group.runs[0]
        if take_samples and group.label not in samples and run.finished and os.path.exists("./sample_gpt2"):
            if not source.prompt:
                source.prompt = corpora.prompt(os.path.dirname(str(run.options.get("train"))))
            samples[group.label] = measure.sample(run.path, source.prompt, notes, group.label)
    source.notes += notes.lines
    return {label: text for label, text in samples.items() if text}


def floor_of(groups, metric):
    """The entropy of generated stories, when the corpus knows it, in nats per token."""
    train = common_value(groups, "train")
    return corpora.entropy_floor(os.path.dirname(train)) if isinstance(train, str) and metric == "loss" else None


def build(source, with_unfinished=False, take_samples=False, title=None):
    """Reads all runs and computes everything that the page shows."""
    selection = select(source.paths, with_unfinished)
    groups = group_runs(selection.runs, source.labels)
    costs = results.Costs(source.decode, source.speed, rates_of(source.plans), without_costs(source))
    rows = results.tabulate(groups, costs, selection.mixed_vocabulary)
    order = [row["label"] for row in rows]
    groups.sort(key=lambda group: order.index(group.label))
    samples = collect_samples(source, groups, take_samples)
    summary = summary_of(source, selection, groups, rows)
    summary["title"] = title or (f"{len(groups)} attentions compared" if len(groups) != 1 else groups[0].label)
    report = Report(summary, data_of(source, selection, groups, rows))
    report.samples, report.prompt, report.scaling_shape = samples, source.prompt, source.scaling_shape
    return report


def metric_of(selection):
    return "bits_per_byte" if selection.mixed_vocabulary else "loss"


def summary_of(source, selection, groups, rows):
    """What results.json holds."""
    metric = metric_of(selection)
    return {
        "title": "",
        "made": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "metric": metric,
        "facts": facts_of(groups) if groups else [],
        "rows": rows,
        "findings": findings_of(rows, source.scaling, metric),
        "paper": paper.compare(rows, metric),
        "notes": notes_of(selection, groups, rows, source) if groups else [],
        "unfinished": unfinished_of(selection),
        "left_out": source.left_out + selection.left_out,
        "command": next((str(plan.get("command", "")) for plan in source.plans), ""),
        "commands": [(run.path, source.commands.get(run.path) or command_of(run)) for group in groups for run in group.runs],
        "configuration": groups[0].runs[0].configuration if groups else {},
    }


def data_of(source, selection, groups, rows):
    """What the page's script draws."""
    metric, pace = metric_of(selection), paces(groups, source.speed)
    series = series_of(groups, metric, selection.mixed_vocabulary, pace, swept(source))
    return {"metric": metric, "series": series, "scaling": source.scaling, "time_is": time_is(source, groups, pace),
            "floor": floor_of(groups, metric) if groups else None, "crossings": crossings(source.scaling),
            "rows": [dot_row(row, metric) for row in rows]}


def time_is(source, groups, pace):
    """What the second axis of the curves is; None when all that is known is how long a comparison beside other work took."""
    if pace:
        return "time at the measured speed"
    return None if without_costs(source) and not timed(groups) else "time in training"


def crossings(scaling):
    found = {label: measure.crossover(scaling, label) for label in dict.fromkeys(row["attention"] for row in scaling)}
    return {label: length for label, length in found.items() if length}


def dot_row(row, metric):
    return {"label": row["label"], "attention": row["attention"], "mean": row[metric]["mean"],
            "error": row[metric]["standard_error"], "values": row[metric]["values"], "seeds": row[metric]["seeds"]}


# ---- HTML


def text(value):
    return html.escape(str(value), quote=True)


def script_json(value):
    """JSON that can stand inside a script element whatever it holds."""
    dumped = json.dumps(value, allow_nan=False, ensure_ascii=True)
    return dumped.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def asset(name):
    with open(os.path.join(HERE, name), encoding="utf-8") as file:
        return file.read()


def accent(attention):
    return ACCENTS.get(attention, OTHER_ACCENT)


def accent_style(attention):
    light, dark = accent(attention)
    return f"--light:{light};--dark:{dark}"


def breakable(label):
    """A label that may be broken between its parts."""
    return text(label).replace(":", ":<wbr>").replace(",", ",<wbr>").replace("=", "=<wbr>")


def table_row(row, columns):
    cells = []
    for column in columns:
        value, shown = column.key(row), column.cell(row)
        sort = "" if value is None else f' data-sort="{text(value)}"'
        if column is columns[0]:
            cells.append(f'<th scope="row"{sort}><i class="dot" style="{accent_style(row["attention"])}"></i>'
                         f'<span>{breakable(shown)}</span></th>')
        elif column.name == "against softmax":
            kind = row["verdict"].split()[0].replace("<", "")
            cells.append(f'<td{sort}><span class="verdict {text(kind)}">{text(shown)}</span></td>')
        else:
            cells.append(f'<td{sort}>{text(shown)}</td>')
    return "<tr>" + "".join(cells) + "</tr>"


def table(rows):
    columns = results.columns_of(rows)
    head = "".join(f'<th scope="col"><button type="button" data-column="{i}">{text(column.heading)}</button></th>'
                   for i, column in enumerate(columns))
    body = "\n".join(table_row(row, columns) for row in rows)
    return (f'<div class="wide" tabindex="0" role="region" aria-label="results"><table id="results"><thead><tr>{head}</tr>'
            f'</thead><tbody>\n{body}\n</tbody></table></div>')


def rate_section(report):
    """What the sweep found of each attention."""
    head, lines = results.rate_table(report.summary["rows"])
    if not lines:
        return ""
    attention_of = {row["label"]: row["attention"] for row in report.summary["rows"]}
    body = "".join(f'<tr><th scope="row"><i class="dot" style="{accent_style(attention_of[line[0]])}"></i>{breakable(line[0])}</th>'
                   + "".join(f"<td>{text(cell)}</td>" for cell in line[1:]) + "</tr>" for line in lines)
    heads = "".join(f'<th scope="col">{text(name)}</th>' for name in ("Attention", *head[1:]))
    return section("rates", "Rates tried", f'<div class="wide" tabindex="0" role="region" aria-label="rates tried"><table class="short">'
                   f'<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div><p class="caption">{text(results.SWEEP_WORDS)}</p>')


def paper_section(report):
    """The two orders side by side."""
    found = report.summary["paper"]
    if not found:
        return ""
    heads = ("Attention", "Place here", "Place in the paper", "Loss here", "Loss in the paper")
    attention_of = {row["label"]: row["attention"] for row in report.summary["rows"]}
    rows = [f'<tr><th scope="row"><i class="dot" style="{accent_style(attention_of[each["label"]])}"></i>{text(each["label"])}</th>'
            f'<td>{each["rank_here"]}</td><td>{each["rank_paper"]}</td><td>{each["loss_here"]:.4f}</td>'
            f'<td>{each["loss_paper"]:.4f}</td></tr>' for each in found["attentions"]]
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    return section("paper", "Beside the paper", f'<div class="wide" tabindex="0" role="region" aria-label="beside the paper"><table class='
                   f'"short"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
                   f'<p class="caption">{text(paper.in_words(found))}</p>')


def sample_cards(report):
    attention_of = {row["label"]: row["attention"] for row in report.summary["rows"]}
    cards = []
    for label in [row["label"] for row in report.summary["rows"] if row["label"] in report.samples]:
        shown = re.sub(r"\n{3,}", "\n\n", report.samples[label])
        body, prompt = text(shown), report.prompt
        if prompt and shown.startswith(prompt):
            body = f"<b>{text(prompt)}</b>{text(shown[len(prompt):])}"
        cards.append(f'<article style="{accent_style(attention_of[label])}"><h3>{text(label)}</h3><p>{body}</p></article>')
    return "\n".join(cards)


def section(identity, title, body):
    return f'<section id="{identity}"><h2>{text(title)}</h2>\n{body}\n</section>' if body else ""


def figure(identity, caption, controls=""):
    return f'<figure id="{identity}">{controls}<div class="plot"></div><figcaption>{caption}</figcaption></figure>'


def items(lines, kind=""):
    return f'<ul class="{kind}">' + "".join(f"<li>{text(line)}</li>" for line in lines) + "</ul>" if lines else ""


CURVE_CONTROLS = """<div class="controls">
<span class="choice" role="group" aria-label="which loss"><button type="button" data-set="curve" data-value="validation">Validation</button><button type="button" data-set="curve" data-value="difference">minus softmax</button><button type="button" data-set="curve" data-value="training">Training</button></span>
<span class="choice" role="group" aria-label="scale of the loss"><button type="button" data-set="y" data-value="linear">Loss linear</button><button type="button" data-set="y" data-value="log">log</button></span>
<span class="choice" role="group" aria-label="scale of tokens and time"><button type="button" data-set="x" data-value="linear">Tokens, time linear</button><button type="button" data-set="x" data-value="log">log</button></span>
</div>"""


def curve_section(report):
    unit = "bits per byte" if report.summary["metric"] == "bits_per_byte" else "nats per token"
    minus = ("Minus softmax: the validation loss less that of softmax with the same seed, which had the same first weights and "
             "the same batches; below zero is better. ") if any(s["difference"] for s in report.data["series"]) else ""
    then = f", then against the {report.data['time_is']}" if report.data["time_is"] else ""
    caption = (f"Loss in {unit} against training tokens{then}. Lines are means over "
               "the seeds, bands reach from the lowest to the highest seed. A dashed line, where there is one, is the entropy "
               "of the text, which no model can beat. The first twentieth of a run may leave the frame at the top. " + minus)
    return section("curves", "Learning",
                   '<div class="legend" id="legend"></div>' + CURVE_CONTROLS
                   + '<div class="pair">' + figure("curve-tokens", "") + (figure("curve-time", "") if report.data["time_is"] else "")
                   + "</div>"
                   + f'<p class="caption">{caption.strip()}</p>')


def position_section(report):
    """Loss by position, and beyond the training length where models could read so far."""
    drawn = [key for key in ("positions", "longer") if any(series[key] for series in report.data["series"])]
    if not drawn:
        return ""
    caption = ("Validation loss by the target's position in its row, in buckets that double; bands reach from the lowest to the "
               "highest seed.") + (" The second figure has longer rows than training had." if "longer" in drawn else "")
    return section("by-position", "Loss by position", '<div class="pair">' + "".join(figure(key, "") for key in drawn)
                   + f'</div><p class="caption">{caption}</p>')


def scaling_section(report):
    if not report.data["scaling"]:
        return ""
    shape = f" ({text(report.scaling_shape)})" if report.scaling_shape else ""
    caption = (f"The attention alone{shape}, {measure.passes(report.data['scaling'])}, on logarithmic axes: milliseconds, then peak memory of "
               "the process, against the length of the sequence. A ring marks where a line crosses below softmax for "
               "good; from there on it is the cheaper one.")
    return section("scaling", "Cost by length", '<div class="pair">' + figure("scaling-time", "")
                   + figure("scaling-memory", "") + f'</div><p class="caption">{caption}</p>')


def sample_section(report):
    cards = sample_cards(report)
    if not cards:
        return ""
    prompt = f"the prompt “{text(report.prompt)}”" if report.prompt else "an empty prompt"
    return section("samples", "Samples", f'<p class="caption">Each model of the first seed continues {prompt}, with '
                   f'temperature {measure.SAMPLE_TEMPERATURE} and sampling seed {measure.SAMPLE_SEED}. One sample shows a '
                   f'style; it proves nothing.</p><div class="samples">{cards}</div>')


def method_section(report):
    summary = report.summary
    commands = "\n".join(text(command) for _, command in summary["commands"])
    whole = f"<h3>The comparison</h3><pre>{text(summary['command'])}</pre>" if summary["command"] else ""
    configuration = text(json.dumps(summary["configuration"], indent=1, ensure_ascii=False))
    return section("method", "How it was made", f"""{whole}
<details data-key="commands"><summary>The command of each run</summary><pre>{commands}</pre></details>
<details data-key="configuration"><summary>Configuration and machine, as the first run wrote them</summary><pre>{configuration}</pre></details>
<h3>What the columns mean</h3>{items(results.explanation(summary["rows"]), "plain")}""")


def left_out_section(summary):
    if not summary["left_out"]:
        return ""
    return section("left-out", "Left out", items([f"{path}: {reason}" for path, reason in summary["left_out"]], "plain"))


def facts_list(facts):
    pairs = [fact.partition(": ") for fact in facts]
    return '<dl class="facts">' + "".join(f"<div><dt>{text(k)}</dt><dd>{text(v)}</dd></div>" for k, _, v in pairs) + "</dl>"


def body_of(report):
    summary = report.summary
    if not summary["rows"]:
        return '<p>There is no run to show.</p>' + left_out_section(summary)
    dots = figure("dots", "Final validation loss: each seed a small dot, the mean a large one, the bar one standard error to "
                  "either side. The thin lines are softmax and uniform averaging.")
    return "\n".join([section("answer", "Findings", items(summary["findings"], "findings")), dots,
                      items(summary["notes"], "notes"), section("table", "Results", table(summary["rows"])),
                      curve_section(report), position_section(report), rate_section(report), scaling_section(report), paper_section(report), sample_section(report),
                      method_section(report),
                      left_out_section(summary)])


def render(report, refresh_seconds=None):
    """The whole page. The policy forbids every request, so that nothing in the data could make one."""
    summary = report.summary
    labels = [*[s["attention"] for s in report.data["series"]], *[row["attention"].partition(":")[0] for row in report.data["scaling"]]]
    data = {**report.data, "accents": {name: accent(name) for name in labels}, "refresh": refresh_seconds,
            "title": summary["title"]}
    live = '<p class="live">Refreshes itself while training runs.</p>' if refresh_seconds else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{text(summary["title"])}</title>
<style>
{asset("report.css")}</style>
</head>
<body>
<header>
<h1>{text(summary["title"])}</h1>
{facts_list(summary["facts"])}
{live}
</header>
<main>
{body_of(report)}
</main>
<footer>Made by slay.c on {text(summary["made"])}. This file needs no network.</footer>
<div id="tip" role="status" hidden></div>
<script type="application/json" id="data">{script_json(data)}</script>
<script>
{asset("report.js")}</script>
</body>
</html>
"""
