"""The pages of the kernel experiments, from the tables that measurements.py has kept: a page each, and one to look at
first. Every sentence with a number in it is made from the tables, so that pages cannot disagree with them."""
import csv
import math
import os
import re

from compare_lib import statistics

from . import measurements as made
from . import plots

EMPTY = "#fdfdfc"


class Page:
    """One experiment's: what it found, its pictures in order, the rest as markdown."""

    def __init__(self, name, title, finding):
        self.name, self.title, self.finding = name, title, finding
        self.pictures, self.parts = {}, []

    def picture(self, name, svg, words):
        self.pictures[f"{name}.svg"] = (svg, words)
        self.parts.append(f"![{words}]({name}.svg)")

    def text(self, words):
        self.parts.append(words)

    def table(self, head, rows):
        lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
        self.parts.append("\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]))

    def render(self):
        tail = f"\n\nMade by `make experiments`; this page alone: `dev/experiments/kernel/run {self.name}`. The numbers are in [data](data).\n"
        return f"# {self.title}\n\n{self.finding}\n\n" + "\n\n".join(self.parts) + tail


class Data:
    """The kept tables, as lists of dictionaries with numbers where they are numbers."""

    def __init__(self, folder):
        self.folder = folder

    def has(self, name):
        return os.path.exists(os.path.join(self.folder, name + ".csv"))

    def read(self, name):
        with open(os.path.join(self.folder, name + ".csv"), encoding="utf-8", newline="") as file:
            return [{key: number(value) for key, value in row.items()} for row in csv.DictReader(file)]

    def by_name(self, table, names):
        """{name: rows} in the order of `names`, {name: what --attentions had}."""
        found = {text: [] for text in names.values()}
        for row in self.read(table):
            if row["attention"] in found:
                found[row["attention"]].append(row)
        return {name: found[text] for name, text in names.items() if found[text]}


def number(text):
    try:
        return float(text)
    except ValueError:
        return text


def short(value, digits=3):
    """Three significant digits, also for very large and small ones."""
    if abs(value) < 1e-12:  # rounding
        return "0"
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 1e5 or abs(value) < 1e-4:
        mantissa, power = f"{value:.{digits - 2}e}".split("e")
        return f"{mantissa}e{int(power)}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def percent(value):
    return "0 %" if abs(value) < 1e-9 else f"{100 * value:.1f} %" if value >= 0.001 else f"{100 * value:.2g} %"


def mechanism(name):
    return name.split()[0]


# ---- fidelity

FIDELITY_NAMES = {"yat-spherical": "exact kernel", "uniform": "uniform", "softmax": "softmax", "elu": "elu", "favor": "favor, F = 64",
                  "favor F": "favor, same F", "anchor": "slay anchor", "exact": "slay exact", "nystrom": "slay nystrom",
                  "tensorsketch": "slay tensorsketch", "maclaurin": "slay maclaurin", "rademacher": "slay rademacher",
                  "none": "slay none", "hadamard": "slay hadamard", "flat": "slay flat"}
# The published sweep; what is called Laplace there is `none`, Random Maclaurin `maclaurin`.
FIDELITY_PAPER = {"anchor": ".663 / .567 / .494", "none": ".587 / .542 / .485", "hadamard": ".824 / .661 / .679",
                  "nystrom": "22.9 / 61.7 / 28.2", "tensorsketch": "4.7e5 / 2.1e5 / 4.6e5", "maclaurin": "2.2e6 / 1.7e6 / 1.8e6",
                  "yat-spherical": "0.789 (a misprint)"}
DATA_WORDS = {
    "module": "The paper's protocol: x ~ N(0,1) of width 64 through projections with biases, 4 heads of 16, eps 1e-6, the module's output.",
    "independent": "q, k, v ~ N(0,1), independent; 4 heads of 16, eps 1e-3, the attention's output.",
    "correlated": f"Every query has the cosine {made.RHO} with one of the keys that it sees; otherwise as above. The kernel has something to find."}


OFF_THE_SCALE = 1.6  # of the pictures: predicting nothing has 1


def fidelity_table(page, rows, data, latency):
    variants = [name for name in FIDELITY_NAMES if any(row["variant"] == name for row in rows)]
    budgets = sorted({row["budget"] for row in rows}, key="SML".index)
    last = budgets[-1]
    head = ["", f"F ({' / '.join(budgets)})", f"Rel-L2, {' / '.join(budgets)}"] + ["the paper's"] * (data == "module") + [
        f"± sd at {last}", f"median at {last}", f"bias at {last}", f"spread at {last}", f"cosine at {last}", f"MSE at {last}"]
    head += [f"ms, {' / '.join(budgets)}"] if latency else []
    lines = []
    for name in variants:
        each = {row["budget"]: row for row in rows if row["variant"] == name}
        one = each[last]
        widths = ["-" if not each[b]["F"] else f"{each[b]['F']:.0f}" for b in budgets]
        cells = [FIDELITY_NAMES[name], widths[0] if len(set(widths)) == 1 else " / ".join(widths),
                 " / ".join(short(each[b]["rel_l2"]) for b in budgets)]
        cells += [FIDELITY_PAPER.get(name, "")] if data == "module" else []
        cells += [short(one[key]) for key in ("sd", "median", "bias", "spread", "cosine", "mse")]
        if latency:
            cells.append(" / ".join(short(latency[b, without_eps(each[b]["attention"])]) for b in budgets))
        lines.append(cells)
    page.table(head, lines)


def without_eps(attention):
    """Epsilon costs no time."""
    return re.sub(r":eps=[^:]*", "", attention)


def fidelity_counts(rows):
    one = max(rows, key=lambda row: row["draws"])
    return (f"n = {one['datasets']:.0f} sets of data (seeds 0 to {one['datasets'] - 1:.0f}) x {one['draws']:.0f} draws of the constants "
            f"(seeds 1 to {one['draws']:.0f}); one draw where there are none")


def fidelity_pictures(page, rows, data):
    budgets = sorted({row["budget"] for row in rows}, key="SML".index)
    found = {(row["variant"], row["budget"]): row for row in rows}
    names = [name for name in FIDELITY_NAMES if name not in ("yat-spherical", "uniform") and (name, budgets[0]) in found]
    lines = [(FIDELITY_NAMES[name], mechanism(FIDELITY_NAMES[name]).strip(","), [found[name, b]["rel_l2"] for b in budgets]) for name in names]
    floor = found["uniform", budgets[-1]]["rel_l2"]
    page.picture(f"fidelity_{data}", plots.dots(f"Distance to the exact kernel's output: {data}", "Rel-L2: smaller is nearer", lines,
                                                [f"budget {b}" for b in budgets], mark=(floor, f"uniform averaging, {budgets[-1]}"), most=OFF_THE_SCALE),
                 f"Distance of each feature map's output to the exact kernel's, {data} data")
    lines = [(label, attention, [found[name, budgets[-1]]["bias"], found[name, budgets[-1]]["spread"]])
             for name, (label, attention, _) in zip(names, lines)]
    page.picture(f"fidelity_{data}_parts", plots.dots(f"The same, taken apart at budget {budgets[-1]}: {data}", "in units of the exact output's length",
                                                      lines, ["bias", "spread over the draws"], mark=(floor, "uniform averaging"), most=OFF_THE_SCALE),
                 f"Bias and spread of each map, {data} data")


def over_budgets(rows, variant):
    """'0.686 / 0.584 / 0.494'"""
    return " / ".join(short(row["rel_l2"]) for row in sorted(rows, key=lambda row: "SML".index(row["budget"])) if row["variant"] == variant)


def fidelity(data):
    rows = data.read("fidelity")
    by_data = {kind: [row for row in rows if row["data"] == kind] for kind in DATA_WORDS}
    words = "; ".join(f"{kind}: slay {over_budgets(of_kind, 'anchor')}, slay flat {over_budgets(of_kind, 'flat')}, averaging {over_budgets(of_kind, 'uniform')}, "
                      f"softmax {over_budgets(of_kind, 'softmax')}" for kind, of_kind in by_data.items())
    nearer = sum(row["rel_l2"] > other["rel_l2"] for row in rows for other in rows
                 if (row["variant"], other["variant"]) == ("anchor", "softmax") and (row["data"], row["budget"]) == (other["data"], other["budget"]))
    page = Page("fidelity", "How near are the features to the exact kernel?",
                f"Relative distance of an output to the exact kernel's, at the paper's three budgets. {words[0].upper() + words[1:]}. Averaging of the values is what a map "
                f"without any kernel has; softmax, another kernel altogether, is nearer to the exact one than slay in {nearer} of {sum(row['variant'] == 'anchor' for row in rows)} cases.")
    latency = {(row["budget"], without_eps(row["attention"])): row["ms"] for row in data.read("latency")} if data.has("latency") else None
    for kind, of_kind in by_data.items():
        page.text(f"## {kind[0].upper() + kind[1:]}\n\n{DATA_WORDS[kind]}")
        fidelity_pictures(page, of_kind, kind)
        fidelity_table(page, of_kind, kind, latency)
        page.text(f"{fidelity_counts(of_kind)}.")
    page.text("""## What the columns are

The reference is `yat-spherical`, kernel-normalised. Budgets (T, R, M, P): S 128, 2, 8, 8; M 256, 2, 16, 16; L 512, 2, 32, 32, the
paper's. `none`, `hadamard` and `flat` have as many features as the tensor products; `exact` has d (d + 1) / 2 polynomial
features instead of P, whence its width. Rel-L2 is |out - exact| / |exact|; **bias** is that of the mean output over the draws
(corrected for what is left of the scatter), **spread** the scatter around it: Rel-L2² is about bias² + spread². Signed maps
(nystrom, tensorsketch, maclaurin, rademacher) have rows whose sum is near zero, and their means are those rows: read
the median. The published 1e5 to 1e6 come from dividing such rows by a clamp at 1e-6 ([denominators](denominators.md)).""")
    if not latency:
        page.text("Latency is not on this page: it is measured by `dev/experiments/kernel/run --latency`, on a machine that does nothing else.")
    return page


# ---- neurons


def winners(data):
    """({attention: rows of numbers}, the same of shares, places)"""
    found = {"winner": {}, "share": {}}
    places = []
    for row in data.read("neurons"):
        numbers = [float(value) for value in str(row["cells"]).split()]
        if row["what"] == "place":
            places.append(numbers)
        else:
            found[row["what"]].setdefault(row["attention"], []).append(numbers)
    return found["winner"], found["share"], places


def neurons(data):
    winner, share, places = winners(data)
    names = {name: text for name, text in made.KERNELS.items() if text in winner}

    def same(a, b):
        pairs = [(x, y) for one, other in zip(winner[names[a]], winner[names[b]]) for x, y in zip(one, other)]
        return sum(x == y for x, y in pairs) / len(pairs)

    def colour(which, part):
        return EMPTY if which < 0 else plots.blend(plots.NEUTRAL[int(which)], (0.35, 0.6, 0.8, 1)[min(3, int(part / 25))])

    page = Page("neurons", "Decision boundaries of five neurons",
                f"Where the exact kernel and slay's features disagree about the strongest of five neurons in the plane: slay agrees with "
                f"yat-spherical on {percent(same('slay', 'yat-spherical'))} of the square, slay with exact polynomial features on "
                f"{percent(same('slay exact', 'yat-spherical'))}, softmax on {percent(same('softmax', 'yat-spherical'))}; the plane has two "
                f"dimensions, where random features are at their best. yat, which sees lengths, is another kernel: {percent(same('yat', 'yat-spherical'))}.")
    overlay = "".join(f'<circle cx="{(x + 3) / 6:.3f}" cy="{(3 - y) / 6:.3f}" r="0.028" fill="{plots.NEUTRAL[i]}" stroke="#1b1b1f" '
                      f'stroke-width="0.012"/>' for i, (x, y) in enumerate(places))
    panels = [(name, [[colour(w, s) for w, s in zip(*rows)] for rows in zip(winner[text], share[text])]) for name, text in names.items()]
    page.picture("neurons", plots.maps("Which of five neurons (rings) answers a point most strongly", panels, 3, overlay=overlay),
                 "Maps of the plane, coloured by the strongest of five neurons, one for each kernel")
    page.text("The square from -3 to 3; darker where the strongest has a larger part of the sum over the five (quarters). One draw of the "
              "constants (seed 1). The paper's Figure 1 shows the same for its kernels.")
    page.table(["kernel", "agrees with yat", "with yat-spherical", "with softmax"],
               [[name, *(percent(same(name, other)) for other in ("yat", "yat-spherical", "softmax"))] for name in names])
    return page


# ---- response


def at_angle(rows, angle):
    return min(rows, key=lambda row: abs(row["angle"] - angle))


def response(data):
    found = data.by_name("response", made.KERNELS)
    relative = {name: [(row, row["mean"] / rows[0]["mean"]) for row in rows] for name, rows in found.items()}
    one = found["slay"][0]
    counts = f"d = {one['d']:.0f}, |q| = |k| = sqrt(d), n = {one['draws']:.0f} draws of plane and constants (seeds 1 to {one['draws']:.0f})"

    def series(points):
        return [plots.Series(name, mechanism(name), points(name)) for name in found]

    def left(name, angle):
        return short(at_angle(found[name], angle)["mean"] / found[name][0]["mean"], 2)

    page = Page("response", "Response of the kernels over the angle",
                f"The exact spherical kernel answers a key 10° away with {left('yat-spherical', 10)} of what an aligned one gets, softmax with "
                f"{left('softmax', 10)}, slay with {left('slay', 10)}; at 90° they are {left('yat-spherical', 90)}, {left('softmax', 90)} and "
                f"{left('slay', 90)}. Slay has neither the peak nor the zero of the kernel that it stands for.")
    least = 1e-4
    page.picture("response_alignment", plots.lines("Score over alignment x = cos(angle), aligned = 1", "x", series(
        lambda name: sorted((row["x"], value) for row, value in relative[name])), y_log=True, y_range=(least, 3)),
        "Score over alignment for each kernel")
    page.picture("response_angle", plots.lines("Score over the angle, aligned = 1", "degrees", series(
        lambda name: [(row["angle"], value) for row, value in relative[name]]), y_log=True, y_range=(least, 3)),
        "Score over the angle for each kernel")
    page.picture("response_gradient", plots.lines("Length of the gradient |q| |dk/dq|, in units of the aligned score", "degrees", series(
        lambda name: [(row["angle"], row["gradient"] / found[name][0]["mean"]) for row in found[name]]), y_log=True, y_range=(1e-4, 100)),
        "Length of the gradient over the angle for each kernel")
    page.text(f"Means over the draws. {counts}.")
    angles = [0, 10, 30, 60, 90, 120, 180]
    page.text("Score relative to an aligned key:")
    page.table(["kernel", "F", *(f"{at_angle(found['slay'], angle)['angle']:.0f}°" for angle in angles), "sd / mean at 0°", "at 90°"],
               [[name, f"{rows[0]['F']:.0f}" if rows[0]["F"] else "-", *(left(name, angle) for angle in angles),
                 short(rows[0]["sd"] / rows[0]["mean"], 2) if rows[0]["sd"] > 1e-9 * rows[0]["mean"] else "0",
                 short(at_angle(rows, 90)["sd"] / at_angle(rows, 90)["mean"], 2) if at_angle(rows, 90)["sd"] > 1e-9 * at_angle(rows, 90)["mean"] else "0"]
                for name, rows in found.items()])
    page.text("Gradient |q| |dk/dq| in units of the aligned score:")
    page.table(["kernel", *(f"{at_angle(found['slay'], angle)['angle']:.0f}°" for angle in angles)],
               [[name, *(short(at_angle(rows, angle)["gradient"] / rows[0]["mean"], 2) for angle in angles)] for name, rows in found.items()])
    return page


# ---- denominators


def denominators(data):
    found = data.by_name("denominators", made.SUMS)
    bins = data.by_name("denominators_histogram", made.SUMS)
    one = {name: rows[0] for name, rows in found.items()}
    first = one["slay"]
    counts = f"T = {first['T']:.0f}, d = {first['d']:.0f}, q and k ~ N(0,1), n = {first['draws']:.0f} draws of the constants (seeds 1 to {first['draws']:.0f})"
    negative = [f"{name} {percent(row['not_positive'])}" for name, row in one.items() if row["not_positive"] > 0]
    page = Page("denominators", "The sums that rows are divided by",
                f"Slay's least sum is {short(first['least'])} and none is negative; from one draw of the constants to the next a row's sum "
                f"scatters by {percent(first['scatter'])} of its mean (slay flat {percent(one['slay flat']['scatter'])}, favor {percent(one['favor']['scatter'])}). "
                f"Sums that are not positive: {', '.join(negative)}.")
    ridges = []
    for name, rows in bins.items():
        shares = [(row["log10"], row["share"]) for row in rows if row["log10"] != "not positive"]
        ridges.append((name, mechanism(name), shares, percent(one[name]["not_positive"]) if one[name]["not_positive"] else ""))
    edges = [middle for _, _, shares, _ in ridges for middle, _ in shares]
    page.picture("denominators", plots.ridges("How large are the sums Z? Positive ones, by variant", "log10 Z", ridges,
                                              math.floor(min(edges)), math.ceil(max(edges)), note="Z ≤ 0"),
                 "Histograms of the logarithm of the sums, one for each variant")
    page.text(f"{counts}. Scales differ by constants that cancel in the output.")
    page.table(["", "F", "least Z", "1st percentile", "median", "largest", "Z ≤ 0", "scatter over draws"],
               [[name, f"{row['F']:.0f}" if row["F"] else "-", *(short(row[key]) for key in ("least", "percentile_1", "median", "most")),
                 percent(row["not_positive"]), percent(row["scatter"]) if row["scatter"] > 1e-9 else "0"] for name, row in one.items()])
    page.text("""The scatter is the median over the rows of a sum's standard deviation over the draws in units of its mean.
The paper's files: least sum of SLAY 2.7e-5, shares of negative sums TensorSketch 19.4 %, Random Maclaurin 18.9 %, in an unnamed
configuration. Here a sum that is not positive is floored at delta in magnitude, keeps its sign, and is counted in a run's
metrics; a clamp at +1e-6 instead would multiply such rows by up to a million.""")
    return page


# ---- quadrature

CUTS = (0.7, 0.9, 0.99, 1.0)
QUADRATURE_PAPER = {1: ".154", 2: ".047", 3: ".021", 5: ".006", 8: ".0012"}


def quadrature_errors(values):
    """{(R, cut): mean |error| over x from -1 to cut}"""
    exact = {row["x"]: row["kernel"] for row in values if row["R"] == 0}
    errors = {}
    for R in sorted({row["R"] for row in values} - {0}):
        for cut in CUTS:
            found = [abs(row["kernel"] - exact[row["x"]]) for row in values if row["R"] == R and row["x"] <= cut + 1e-9]
            errors[int(R), cut] = statistics.mean(found)
    return errors


def reconstruction_errors(data):
    """{(name, F, "all" or "beyond 30°"): the row}"""
    rows = data.read("reconstruction")
    texts = {text: key for key, text in made.reconstructions().items()}
    return {(*texts[row["attention"]], "all" if row["from"] < 30 else "beyond 30°"): row for row in rows}


def quadrature_tables(page, data):
    values, errors = data.read("quadrature_values"), quadrature_errors(data.read("quadrature_values"))
    page.text("Mean error over x from -1 to the column's value (401 points, eps 1e-3):")
    page.table(["R", *(f"x ≤ {cut:g}" for cut in CUTS), "value at x = 1", "the paper's (x cut before 1)"],
               [[R, *(short(errors[R, cut]) for cut in CUTS),
                 short(next(row["kernel"] for row in values if row["R"] == R and row["x"] == 1)), QUADRATURE_PAPER.get(R, "")]
                for R in sorted({R for R, _ in errors})])
    page.text("Nodes and weights (t, weight of Gauss and Laguerre; s = t / (2 + eps)):")
    page.table(["R", "node", "t", "weight", "s"],
               [[f"{row['R']:.0f}", f"{row['r']:.0f}", short(row["t"], 4), short(row["weight"], 4), short(row["s"], 4)]
                for row in data.read("quadrature_nodes") if row["R"] <= 3])
    shares = {}
    for row in data.read("quadrature_shares"):
        shares.setdefault(row["x"], []).append(row)
    page.text("What each node of R = 3 contributes to the kernel, at given x, and expected over independent unit vectors of 64 dimensions:")
    page.table(["x", "node 1", "node 2", "node 3"],
               [[x if isinstance(x, str) else f"{x:g}", *(percent(row["share"]) for row in rows)] for x, rows in shares.items()])


def variance_table(page, data):
    rows = [row for row in data.read("quadrature_variance") if row["x"] in (-0.5, 0, 0.5, 1)]
    draws = max(row["draws"] for row in rows)
    page.text(f"Relative variance of **one** random feature at a node: exp(4 s (1 + x)) - 1, and as measured from the library's features "
              f"(n = {draws:.0f}, seed 1; only where so many draws can tell). With M features it is divided by M:")
    page.table(["R", "node", "s", "x", "closed form", "measured"],
               [[f"{row['R']:.0f}", f"{row['node']:.0f}", short(row["s"]), f"{row['x']:g}", short(row["closed_form"]),
                 short(row["measured"]) if row["measured"] != "" else "-"] for row in rows])


def split_noise(nodes, split):
    """Standard deviation of the estimated fraction at x = 0 over its mean, with split[r] random features at node r of (weight, s)."""
    return math.sqrt(sum(weight ** 2 * math.expm1(4 * s) / count for (weight, s), count in zip(nodes, split)))


def best_split(nodes, features):
    """The features of each node that make the noise least: in proportion to what one feature there scatters by."""
    spreads = [weight * math.sqrt(math.expm1(4 * s)) for weight, s in nodes]
    return [features * spread / sum(spreads) for spread in spreads]


def split_table(page, data, features=48):
    rules = {}
    for row in data.read("quadrature_nodes"):
        rules.setdefault(int(row["R"]), []).append((row["weight"], row["s"]))
    page.text(f"Would more features at some nodes than at others help? The noise of the fraction at x = 0 (standard deviation over mean) with {features} "
              "random features in all, the same number for each node, and split as well as can be (in proportion to weight times the "
              "standard deviation of one feature). The best split is worth less than a node fewer:")
    page.table(["R", "M", "noise, equal", "noise, best split", "best split"],
               [[R, features // R, short(split_noise(rules[R], [features / R] * R)), short(split_noise(rules[R], best_split(rules[R], features))),
                 " + ".join(f"{count:.1f}" for count in best_split(rules[R], features))] for R in (1, 2, 3)])


def quadrature(data):
    values, errors = data.read("quadrature_values"), quadrature_errors(data.read("quadrature_values"))
    recon = reconstruction_errors(data)
    one = next(iter(recon.values()))
    at_one = {int(row["R"]): row["kernel"] for row in values if row["x"] == 1}
    shares = {(row["x"], row["node"]): row["share"] for row in data.read("quadrature_shares")}

    def rebuilt(cut, F):
        return short(recon["slay", F, cut]["median"], 2)

    page = Page("quadrature", "Quadrature, nodes, and the kernel rebuilt from features",
                f"Three nodes give the kernel to {short(errors[3, 0.7])} on average up to x = 0.7, and {short(at_one[3])} instead of {short(at_one[0])} at "
                f"x = 1; 64 nodes give {short(at_one[64])}. The third node is {percent(shares['mean', 3])} of the expected kernel, and "
                f"{percent(shares[1.0, 3])} of it at x = 1. Rebuilt from slay's features the kernel is wrong by {rebuilt('all', 64)} of its length with 64 of "
                f"them and by {rebuilt('all', 2048)} with 2048; without its peak, beyond 30°, by {rebuilt('beyond 30°', 64)} and {rebuilt('beyond 30°', 2048)}.")
    page.picture("quadrature_error", plots.lines("Mean error of the quadrature over R", "nodes R", [
        plots.Series(f"x ≤ {cut:g}", "", [(R, errors[R, cut]) for R in sorted({R for R, _ in errors})], plots.NEUTRAL[i])
        for i, cut in enumerate(CUTS)], x_log=True, y_log=True, y_range=(1e-6, 10)), "Error of the quadrature over the number of nodes")
    page.picture("quadrature_values", plots.lines("The kernel by R nodes", "x", [
        plots.Series("exact" if R == 0 else f"R = {R}", "", [(row["x"], row["kernel"]) for row in values if row["R"] == R],
                     "#1b1b1f" if R == 0 else plots.NEUTRAL[i - 1]) for i, R in enumerate((0, 1, 2, 3, 8, 64))],
        y_log=True, y_range=(1e-3, 1000)), "The kernel by several numbers of nodes, over x")
    quadrature_tables(page, data)
    for cut, name in (("all", "reconstruction"), ("beyond 30°", "reconstruction_beyond")):
        title = "Error of the rebuilt kernel over features, relative" + ("" if cut == "all" else ", beyond 30° (without the peak)")
        page.picture(name, plots.lines(title, "features F", [
            plots.Series(each, mechanism(each), [(F, recon[each, F, cut]["median"]) for F in made.WIDTHS]) for each in made.RECONSTRUCTIONS],
            x_log=True, y_range=(0, 1.05)), title)
    page.text(f"|scores - kernel| / |kernel| over angles 2° to 180°, with the best factor for each draw (factors cancel in the output): median over "
              f"n = {one['draws']:.0f} draws of plane and constants (seeds 1 to {one['draws']:.0f}), quartiles in brackets; d = {one['d']:.0f}; R = 2, P = 8 where a map has them. 1 is "
              "what predicting nothing has. The paper's files have .90 to 1.03 for 16 to 512 features.")
    page.table(["", *(f"F = {F}" for F in made.WIDTHS)],
               [[f"{name}, {cut}", *("{} ({} to {})".format(*(short(recon[name, F, cut][key], 2) for key in ("median", "first_quartile", "third_quartile")))
                                     for F in made.WIDTHS)] for name in made.RECONSTRUCTIONS for cut in ("all", "beyond 30°")])
    variance_table(page, data)
    split_table(page, data)
    floors_table(page, data)
    eps_table(page, data)
    return page


def floors_table(page, data):
    found = data.by_name("floors", made.FLOORS)
    one = next(iter(found.values()))[0]
    page.text(f"The polynomial part alone (d = {one['d']:.0f}, n = {one['draws']:.0f} draws, seeds from 1): score at x = 0 over score at x = 1. x² would "
              "have 0, anchors in expectation have 1/3; whitening (nystrom) removes the floor only when P approaches d (d + 1) / 2:")
    page.table(["", "x = 0 over x = 1"], [[name, short(at_angle(rows, 90)["mean"] / at_angle(rows, 0)["mean"], 2)] for name, rows in found.items()])


def eps_table(page, data):
    rows = data.read("quadrature_eps")
    value = {(row["eps"], row["R"], row["x"]): row["kernel"] for row in rows}
    page.text("What epsilon changes: it caps the exact kernel's peak, but the nodes hardly know it, and slay's outputs hardly depend on `--eps`:")
    page.table(["eps", "exact, x = 0.9", "x = 1", "R = 3, x = 0.9", "x = 1"],
               [[f"{eps:g}", *(short(value[eps, R, x]) for R in (0, 3) for x in (0.9, 1))] for eps in sorted({row["eps"] for row in rows})])


# ---- entropy


def entropy(data):
    found = data.by_name("entropy", made.POSITIVE)
    bins = data.by_name("entropy_distribution", made.POSITIVE)
    one = found["slay"][0]
    counts = f"{one['keys']:.0f} keys, d = {one['d']:.0f}, n = {one['draws']:.0f} draws of keys and constants (seeds from 1)"
    mean = {name: rows[0]["mean"] for name, rows in bins.items()}
    last = {name: rows[-1] for name, rows in found.items()}
    page = Page("entropy", "How evenly are weights spread?",
                f"When one key of {one['keys']:.0f} is the query itself, the exact spherical kernel gives it {percent(last['yat-spherical']['weight'])} of the weight, "
                f"softmax {percent(last['softmax']['weight'])}, slay {percent(last['slay']['weight'])}, elu {percent(last['elu']['weight'])} (uniform: "
                f"{percent(1 / one['keys'])}). On random tokens the mean entropy is {mean['yat-spherical']:.2f} for yat-spherical, {mean['softmax']:.2f} for softmax, "
                f"{mean['slay']:.2f} for slay and {mean['elu']:.2f} for elu, in units of plain averaging's.")
    page.picture("entropy_similarity", plots.lines("Entropy of a row over the cosine of one key (1: plain averaging)", "cosine of the query with that key", [
        plots.Series(name, mechanism(name), [(row["x"], row["entropy"]) for row in rows]) for name, rows in found.items()], y_range=(0, 1.05)),
        "Entropy over similarity for each mechanism")
    page.picture("entropy_weight", plots.lines("Weight of that key", "cosine of the query with that key", [
        plots.Series(name, mechanism(name), [(row["x"], row["weight"]) for row in rows]) for name, rows in found.items()], y_range=(0, 1.05)),
        "Weight of a key over its similarity for each mechanism")
    page.text(f"The other keys are random. {counts}.")
    page.picture("entropy_distribution", plots.ridges("Distribution of the rows' entropy on random tokens", "entropy, 1: plain averaging", [
        (name, mechanism(name), [(row["entropy"], row["share"]) for row in rows], f"{mean[name]:.2f}") for name, rows in bins.items()], 0, 1, note="mean"),
        "Histograms of the entropy of rows, one for each mechanism")
    page.text(f"Rows 16 to {one['keys']:.0f} of causal sequences, q and k ~ N(0,1); {counts}.")
    page.table(["", "entropy, cosine 0", "cosine 1", "± sd", "weight at cosine 1", "± sd", "mean entropy, random tokens"],
               [[name, *(short(row) for row in (min(rows, key=lambda row: abs(row["x"]))["entropy"], last[name]["entropy"], last[name]["entropy_sd"],
                                               last[name]["weight"], last[name]["weight_sd"], mean[name]))] for name, rows in found.items()])
    return page


# ---- the sphere


def log_colour(colour, value, least=1e-3):
    """In ten steps of the logarithm, white at `least`."""
    level = 0 if value <= least else math.ceil(10 * (1 - math.log(value) / math.log(least)))
    return plots.blend(colour, min(10, max(0, level)) / 10) if level else EMPTY


def grid_of(rows, key):
    """A mechanism's cells as rows from north to south."""
    lines = {}
    for row in rows:
        lines.setdefault(row["latitude"], []).append((row["longitude"], row[key]))
    return [[value for _, value in sorted(line)] for _, line in sorted(lines.items(), reverse=True)]


def unevenness(rows, key):
    """How much scores of keys at the same angle to the query differ: mean over fours of mirrored places, 30 to 90 degrees away,
    of standard deviation over mean."""
    fours = {}
    for row in rows:
        x = math.cos(math.radians(row["latitude"])) * math.cos(math.radians(row["longitude"]))
        if 30 <= math.degrees(math.acos(x)) <= 90:
            fours.setdefault((abs(row["latitude"]), abs(row["longitude"])), []).append(row[key])
    ratios = []
    for values in fours.values():
        mean = statistics.mean(values)
        ratios.append(math.sqrt(sum((value - mean)**2 for value in values) / (len(values) - 1)) / mean)
    return statistics.mean(ratios)


def sphere(data):
    found = data.by_name("sphere", made.ON_THE_SPHERE)
    draws = found["slay"][0]["draws"]
    uneven = {name: unevenness(rows, "first") for name, rows in found.items()}
    page = Page("sphere", "Responses on the sphere, and around the circle",
                f"Keys at the same angle to the query should score alike. In one draw of the features their scores differ by "
                f"{percent(uneven['slay'])} of their mean for slay ({percent(uneven['slay exact'])} with the exact polynomial, {percent(uneven['slay flat'])} flat), by "
                f"{percent(uneven['elu'])} for elu, and not at all for the exact kernels.")
    panels = []
    for name, rows in found.items():
        colour = plots.Series(name, mechanism(name), []).colour
        for key, words in (("first", "one draw"), ("mean", f"mean of {draws:.0f}")):
            is_fixed = all(row["first"] == row["mean"] for row in rows)
            if not (is_fixed and key == "mean"):
                panels.append((name if is_fixed else f"{name}, {words}", [[log_colour(colour, value) for value in line] for line in grid_of(rows, key)]))
    page.picture("sphere", plots.maps("Score of a query (in the middle) with keys all over the sphere", panels, 2),
                 "Maps of the sphere, coloured by the score of one query with keys at all places")
    page.text(f"Longitude to the right, latitude upwards; colours are logarithmic over three decades below the largest. Three dimensions, length sqrt(3); draw: seed 1; "
              f"mean: n = {draws:.0f} draws (seeds 1 to {draws:.0f}).")
    if data.has("response"):
        kernels = data.by_name("response", made.KERNELS)
        page.picture("polar", plots.polar("Score around the circle, aligned = 1", [
            plots.Series(name, mechanism(name), [(row["angle"], max(row["mean"] / rows[0]["mean"], 1e-4)) for row in rows])
            for name, rows in kernels.items() if name in ("softmax", "yat-spherical", "elu", "favor", "slay", "slay exact")], 1e-4),
            "Polar profiles of the kernels")
        one = kernels["slay"][0]
        page.text(f"Radius: logarithm of the mean score; d = {one['d']:.0f}, n = {one['draws']:.0f} draws (seeds from 1), as in [response](response.md).")
    page.text("Standard deviation over mean of the scores of four keys at the same angle, 30° to 90°, mean over such fours:")
    page.table(["", "one draw", f"mean of {draws:.0f} draws"],
               [[name, percent(uneven[name]), percent(unevenness(rows, "mean"))] for name, rows in found.items()])
    return page


# ---- a trained model


def weight_panels(data):
    rows = data.by_name("patterns_weights", made.PATTERNS)
    panels = []
    for name, lines in rows.items():
        colour = plots.Series(name, mechanism(name), []).colour
        head = [[max(0.0, float(value)) / 1000 for value in str(row["weights"]).split()] for row in lines if row["head"] == 1]
        size = len(head)
        panels.append((name, [[log_colour(colour, line[j]) if j < len(line) else EMPTY for j in range(size)] for line in head]))
    return panels


def patterns(data):
    outputs = data.read("patterns_outputs")
    bins = data.read("patterns_entropy")
    names = {text: name for name, text in made.PATTERNS.items()}
    error = {(row["model"], names[row["attention"]], int(row["layer"])): row for row in outputs}
    layers = sorted({int(row["layer"]) for row in outputs})
    one = outputs[0]

    def words(model):
        return ", ".join(f"{name} " + " / ".join(short(error[model, name, layer]["rel_l2"], 2) for layer in layers) for name in ("slay", "elu", "uniform"))

    page = Page("patterns", "On the queries and keys of trained models",
                f"Put in the place of the exact kernel in a model that was trained with it, slay's outputs are as far from the exact ones as this (Rel-L2 by layer): "
                f"{words('yat-spherical')}. In a model trained with slay itself: {words('slay')}.")
    page.picture("patterns", plots.maps("Weights of a trained model's first head, last layer, under each attention", weight_panels(data), 3),
                 "Attention weights of one head under several attentions")
    page.text("Queries downwards, keys to the right; colours are logarithmic over three decades. The model: yat-spherical, 2 layers of width 128, 2 heads of 64, context 128, "
              "1000 steps of 16 rows on the generated stories, seed 1; the other attentions are given its q and k (one draw, seed 1). One row of the validation set.")
    page.text("Distance of each attention's output to the exact kernel's, on the same q, k, v:")
    head = ["", "F", *(f"{model}, layer {layer}" for model in made.MODELS for layer in layers), "cosine, first of these"]
    first = (made.MODELS[0], layers[0])
    page.table(head, [[name, f"{error[first[0], name, first[1]]['F']:.0f}" if error[first[0], name, first[1]]["F"] else "-",
                       *(short(error[model, name, layer]["rel_l2"], 2) for model in made.MODELS for layer in layers),
                       short(error[first[0], name, first[1]]["cosine"])] for name in made.PATTERNS])
    page.text(f"n = {one['rows']:.0f} rows of the validation set x {one['heads']:.0f} heads x {one['draws']:.0f} draws of the constants (seeds from 1); one trained model each (seed 1). The draws "
              "are not the one that the slay model was trained with.")
    for model in made.MODELS:
        rows = {name: [row for row in bins if row["model"] == model and row["attention"] == text] for name, text in made.PATTERNS.items()}
        page.picture(f"patterns_entropy_{model}", plots.ridges(f"Entropy of the rows in the model trained with {model}", "entropy, 1: plain averaging", [
            (name, mechanism(name), [(row["entropy"], row["share"]) for row in each], f"{each[0]['mean']:.2f}") for name, each in rows.items()], 0, 1, note="mean"),
            f"Histograms of the entropy of rows, model trained with {model}")
    page.text(f"Rows from the sixteenth, all layers and heads, {one['rows']:.0f} rows of the validation set, one draw (seed 1).")
    return page


# ---- mechanisms

PAPER_OPTIONS = {"softmax": "", "yat": "eps=1e-3; its code: softmax over the kernel", "yat-spherical": "eps=1e-3", "elu": "", "cosformer": "horizon: the current length",
                 "favor": "M=64, relu", "rff": "M=64 (listed under SLAY, which has none)", "slay": "R=3 in the text, R=2 and R=1 in the code; M=16 P=8 eps=1e-3"}


def mechanisms(data):
    rows = data.read("mechanisms")
    one = rows[0]
    page = Page("mechanisms", "The mechanisms and their configurations",
                f"{len(rows)} mechanisms, read from the registry; width and state at a head of {one['d']:.0f} and {one['T']:.0f} tokens, at the defaults.")
    page.table(["", "time", "F", "state per head, numbers", "options", "the paper's", "what it is"],
               [[row["attention"], row["time"].replace("T^2", "T²"), f"{row['F']:.0f}" if row["F"] else "-", f"{row['state']:,.0f}",
                 f"`{row['options']}`" if row["options"] else "", PAPER_OPTIONS.get(row["attention"], ""), row["summary"]] for row in rows])
    page.text("The state is what decoding keeps: F (d + 1) numbers for linear attentions, two vectors for every token for quadratic ones. Windows, decay and "
              "trained features come on top of any of them: [attentions](../../attentions.md).")
    return page


# ---- extreme classification


def spread(values, scale=100, digits=2):
    deviation = math.sqrt(sum((value - statistics.mean(values))**2 for value in values) / (len(values) - 1)) if len(values) > 1 else None
    return f"{scale * statistics.mean(values):.{digits}f}" + (f" ± {scale * deviation:.{digits}f}" if deviation is not None else "")


def extreme(data):
    found = {}
    for row in data.read("extreme"):
        found.setdefault(row["classifier"], {}).setdefault(int(row["k"]), []).append(row)
    best = {name: statistics.mean([row["precision"] for row in by_k[1]]) for name, by_k in found.items() if "epochs" not in name}
    words = "; ".join(f"{name}: {100 * value:.1f}" for name, value in best.items())
    page = Page("extreme", "Extreme classification with the features",
                f"P@1 in %, on a generated set of Eurlex-4K's shape: {words}. The paper's Eurlex-4K: SLAY 49.78 (F = 4 x 1024), Performer 34.42 (F = 4 x 64): maps of "
                "different width, so the rows of equal width are the comparison.")
    rows = [(name, mechanism(name).strip(",").replace("performer", "favor").replace("popular", "uniform"),
             [statistics.mean([row["precision"] for row in by_k[k]]) for k in (1, 3, 5)]) for name, by_k in found.items()]
    page.picture("extreme", plots.dots("Precision at k on the generated set", "P@k", rows, ["k = 1", "k = 3", "k = 5"]),
                 "Precision at 1, 3 and 5 of each classifier")
    page.table(["", "F", "n", *(f"P@{k}" for k in (1, 3, 5)), *(f"PSP@{k}" for k in (1, 3, 5)), *(f"protocol's P@{k}" for k in (1, 3, 5)),
                *(f"protocol's PSP@{k}" for k in (1, 3, 5))],
               [[name, f"{by_k[1][0]['F']:.0f}" if by_k[1][0]["F"] else "-", len(by_k[1]),
                 *(spread([row[key] for row in by_k[k]]) for key in ("precision", "psp", "precision_protocol", "psp_protocol") for k in (1, 3, 5))]
                for name, by_k in found.items()])
    page.text("""In %, mean ± standard deviation over n seeds (0, 1, 2) of weights, features and order; F over 4 heads. Three epochs at one rate, as the
protocol has it, unless the row says otherwise. `popular` answers every
document with the most frequent labels. The set is generated (15539 documents to learn from, 3809 to label, 5000 features, 3993
labels, 5.3 of them a document by Zipf's law): its figures are not Eurlex-4K's. For the real files:

    build/dev/experiments/kernel/extreme --train eurlex_train.txt --test eurlex_test.txt --map slay

A document is the mean of its features' embeddings; a label's score is ⟨phi(document), phi(label)⟩. There is no attention in it. PSP@k
(propensities with A = 0.55, B = 1.5) is divided by the best that could be had; the protocol's own way divides P@k by the number of
documents rounded up to whole batches of 512, and PSP@k by nothing but that and k, which is how it can exceed P@k.""")
    return page


PAGES = (fidelity, response, quadrature, denominators, entropy, patterns, neurons, sphere, extreme, mechanisms)
NEEDS = {"patterns": "patterns_outputs", "quadrature": "reconstruction"}  # tables of another name


def index(pages):
    """The page that one looks at first."""
    text = """# The kernel: every table and figure of the paper, measured here

What slay's features do to the kernel that they stand for, by programs that ask the library's own attentions. `make experiments` runs all of it
again in a few minutes of one core and writes these pages; `dev/experiments/kernel/run --help` has the rest. Losing results are shown like
winning ones. Time and memory by length: [one attention layer by sequence length](../attention_scaling.md).
"""
    for page in pages:
        text += f"\n## [{page.title}]({page.name}.md)\n\n{page.finding}\n"
        for name, (_, words) in list(page.pictures.items())[:1]:
            text += f"\n[![{words}]({name})]({page.name}.md)\n"
    return text


def write(out, folder):
    """All pages whose tables are there."""
    data = Data(folder)
    pages = [make(data) for make in PAGES if data.has(NEEDS.get(make.__name__, make.__name__))]
    for page in pages:
        for name, (svg, _) in page.pictures.items():
            with open(os.path.join(out, name), "w", encoding="utf-8") as file:
                file.write(svg)
        with open(os.path.join(out, page.name + ".md"), "w", encoding="utf-8") as file:
            file.write(page.render())
    with open(os.path.join(out, "README.md"), "w", encoding="utf-8") as file:
        file.write(index(pages))
