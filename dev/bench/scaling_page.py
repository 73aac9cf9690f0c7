#!/usr/bin/env python3
"""Table, plot and JSON of what build/dev/bench/bench_attention_scaling measured.

    dev/bench/scaling_page.py MEASURED.tsv... --out docs/results/attention_scaling

writes attention_scaling.md (tables of time, tokens per second and memory by length with each one's feature width, growth,
crossovers with softmax, the paper's figures), .svg (time and memory against length on logarithmic axes) and .json (the rows,
for scripts/report). Of two measurements of one thing the later file's counts.
"""
import argparse
import json
import math
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts"))
from compare_lib.page import ACCENTS, OTHER_ACCENT  # noqa: E402  (after the path is set)

FIELDS = ("forward_ms", "forward_backward_ms", "forward_mb", "forward_backward_mb", "F")
QUADRATIC = ("softmax", "yat", "yat-spherical")
# An A100: milliseconds and MB at 16384 / 131072 tokens.
PAPER = {"softmax": ("85.6 / out of memory", "16746 / -"), "yat-spherical": ("141.4 / out of memory", "41323 / -"),
         "elu": ("18.8 / 147.6", "1642 / 13066"), "cosformer": ("35.3 / 291", "2746 / 21900"),
         "favor": ("19.4 / 155", "2267 / 18062"), "slay": ("19.0 / 149.6", "314 / 2442")}


def colour(name):
    return ACCENTS.get(name, OTHER_ACCENT)[0]


def read_measurements(paths):
    """{attention: {T: {field: number or None}}}, in the order of the files."""
    rows = {}
    for path in paths:
        with open(path) as lines:
            for number, line in enumerate(lines, 1):
                parts = line.rstrip("\n").split("\t")
                if len(parts) != 2 + len(FIELDS):
                    sys.exit(f"{path}:{number}: expected {2 + len(FIELDS)} columns with tabs, found {len(parts)}")
                values = [None if part == "-" else float(part) for part in parts[2:]]
                rows.setdefault(parts[0], {})[int(parts[1])] = dict(zip(FIELDS, values))
    return rows


def crossover(rows, name, field):
    """The length from which `name` is cheaper than softmax for good, interpolated on logarithmic axes; None: never seen."""
    lengths = [T for T in sorted(rows["softmax"]) if T in rows[name] and rows["softmax"][T][field] and rows[name][T][field]]
    gaps = [math.log(rows[name][T][field] / rows["softmax"][T][field]) for T in lengths]
    if not gaps or gaps[-1] > 0:
        return None
    i = len(gaps) - 1
    while i > 0 and gaps[i - 1] <= 0:
        i -= 1
    if i == 0:
        return lengths[0]
    share = gaps[i - 1] / (gaps[i - 1] - gaps[i])
    return round(math.exp(math.log(lengths[i - 1]) + share * math.log(lengths[i] / lengths[i - 1])))


def number(value):
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def width(row):
    """F; "-" for quadratic attentions, which have none."""
    found = next(iter(row.values()), {}).get("F")
    return "-" if found is None else f"{found:.0f}"


def table(rows, title, value):
    """`value` of (length, measurements) for each attention and length."""
    lengths = sorted({T for row in rows.values() for T in row})
    text = f"**{title}**\n\n| | F | " + " | ".join(str(T) for T in lengths) + " |\n|---|---:|" + "---:|" * len(lengths) + "\n"
    for name, row in rows.items():
        text += f"| {name} | {width(row)} | " + " | ".join(number(value(T, row[T]) if T in row else None) for T in lengths) + " |\n"
    return text


def rate(T, measured):
    """Thousands of tokens per second."""
    return T / measured["forward_backward_ms"] if measured["forward_backward_ms"] else None


def growth_table(rows, start=16384, end=131072):
    """How many times as long `end` tokens take as `start`: 8 would be linear, 64 quadratic."""
    text = f"**Time of {end} tokens over that of {start}** (linear would be {end // start}, quadratic {(end // start) ** 2})\n\n"
    text += "| | F | forward | forward + backward |\n|---|---:|---:|---:|\n"
    for name, row in rows.items():
        pairs = [(row.get(start, {}).get(field), row.get(end, {}).get(field)) for field in FIELDS[:2]]
        if any(all(pair) for pair in pairs):
            text += f"| {name} | {width(row)} | " + " | ".join(number(b / a) if a and b else "-" for a, b in pairs) + " |\n"
    return text


def paper_table(rows):
    """The paper's figures beside these, which are of another machine."""
    text = "**The paper's layer on an A100, 16384 / 131072 tokens, beside this machine's** (forward)\n\n"
    text += "| | F | the paper's ms | ms here | the paper's MB | MB here |\n|---|---:|---:|---:|---:|---:|\n"
    for name, (ms, megabytes) in PAPER.items():
        here = [" / ".join(number(rows.get(name, {}).get(T, {}).get(field)) for T in (16384, 131072)) for field in ("forward_ms", "forward_mb")]
        text += f"| {name} | {width(rows.get(name, {}))} | {ms} | {here[0]} | {megabytes} | {here[1]} |\n"
    return text + "\nThe paper's SLAY has F = 1024 there and FAVOR+ 64; its quadratic attentions store the T x T matrix, ours do not.\n"


def crossover_table(rows):
    text = "**The length from which it is cheaper than softmax** (between the measured lengths: interpolated)\n\n"
    text += "| | forward | forward + backward |\n|---|---:|---:|\n"
    for name in rows:
        if name not in QUADRATIC:
            lengths = [crossover(rows, name, field) for field in FIELDS[:2]]
            words = ["not seen" if T is None else f"from the shortest, {T}" if T == min(rows[name]) else str(T) for T in lengths]
            text += f"| {name} | {words[0]} | {words[1]} |\n"
    return text


class Panel:
    """One log-log plot in the picture."""

    WIDTH, HEIGHT = 430, 330

    def __init__(self, left, title, unit, rows, field):
        self.left, self.title, self.unit, self.rows, self.field = left, title, unit, rows, field
        points = [(T, v[field]) for row in rows.values() for T, v in row.items() if v[field]]
        self.lengths = min(T for T, _ in points), max(T for T, _ in points)
        self.values = min(v for _, v in points) / 1.3, max(v for _, v in points) * 1.3

    def x(self, T):
        low, high = map(math.log, self.lengths)
        return self.left + (math.log(T) - low) / (high - low) * self.WIDTH

    def y(self, value):
        low, high = map(math.log, self.values)
        return 60 + self.HEIGHT * (1 - (math.log(value) - low) / (high - low))

    def axes(self):
        bottom, right = 60 + self.HEIGHT, self.left + self.WIDTH
        svg = f'<text x="{self.left}" y="40" class="title">{self.title}</text>'
        T = self.lengths[0]
        while T <= self.lengths[1]:
            label = str(T) if T < 1024 else f"{T // 1024}K"
            svg += f'<line x1="{self.x(T):.1f}" x2="{self.x(T):.1f}" y1="60" y2="{bottom}" class="grid"/>'
            svg += f'<text x="{self.x(T):.1f}" y="{bottom + 18}" class="tick" text-anchor="middle">{label}</text>'
            T *= 2
        power = math.ceil(math.log10(self.values[0]))
        while 10**power <= self.values[1]:
            y, label = self.y(10**power), f"{10**power:g}"
            svg += f'<line x1="{self.left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
            svg += f'<text x="{self.left - 6}" y="{y + 4:.1f}" class="tick" text-anchor="end">{label}</text>'
            power += 1
        return svg + f'<text x="{right}" y="{bottom + 36}" class="tick" text-anchor="end">tokens</text>'

    def curves(self):
        svg, labels = "", []
        for name, row in self.rows.items():
            points = [(self.x(T), self.y(v[self.field])) for T, v in sorted(row.items()) if v[self.field]]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            dash = ' stroke-dasharray="5 3"' if name == "uniform" else ""
            width = 3 if name in ("slay", "softmax") else 1.6
            svg += f'<polyline points="{path}" fill="none" stroke="{colour(name)}" stroke-width="{width}"{dash}/>'
            labels.append((points[-1][1], points[-1][0], name))
        return svg + self.labels(labels)

    def labels(self, labels):
        """Names at the curves' ends, pushed apart where they would overlap."""
        svg, groups = "", {}
        for y, x, name in sorted(labels):
            groups.setdefault(round(x), []).append((y, name))
        for x, names in groups.items():
            previous = -math.inf
            for y, name in names:
                previous = max(y, previous + 13)
                svg += f'<text x="{x + 6}" y="{previous + 4:.1f}" class="name" style="fill:{colour(name)}">{name}</text>'
        return svg


STYLE = """text{font:12px system-ui,sans-serif;fill:#333}.title{font-weight:600;font-size:14px}.tick{fill:#666;font-size:11px}
.name{font-size:11px}.grid{stroke:#ddd;stroke-width:1}"""


def picture(rows):
    panels = [Panel(60, "Time, forward and backward (ms)", "ms", rows, "forward_backward_ms"),
              Panel(640, "Peak memory, forward and backward (MB)", "MB", rows, "forward_backward_mb")]
    body = "".join(panel.axes() + panel.curves() for panel in panels)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1170 450" width="1170" height="450"><style>{STYLE}</style>'
            f'<rect width="1170" height="450" fill="#fff"/>{body}</svg>\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("measured", nargs="+")
    parser.add_argument("--out", required=True, help="path without its ending")
    parser.add_argument("--machine", default="", help="a line about the machine")
    options = parser.parse_args()
    rows = read_measurements(options.measured)
    os.makedirs(os.path.dirname(options.out) or ".", exist_ok=True)
    name = os.path.basename(options.out)
    with open(options.out + ".json", "w") as file:
        flat = [{"attention": a, "T": T, **v} for a, row in rows.items() for T, v in sorted(row.items())]
        file.write("[\n" + ",\n".join(json.dumps(row) for row in flat) + "\n]\n")
    with open(options.out + ".svg", "w") as file:
        file.write(picture(rows))
    with open(options.out + ".md", "w") as file:
        file.write("# One attention layer by sequence length\n\nEmbed 256 in 8 heads, batch 1, causal, projections included, "
                   "default options, fp32; F is the feature width. A time is the median of the passes of half a second behind one to warm "
                   "up, or a single pass where one takes longer; memory is of one process (n = 1). Made by "
                   "`build/dev/bench/bench_attention_scaling` and `dev/bench/scaling_page.py`. "
                   f"{options.machine}\n\n![time and memory against length]({name}.svg)\n\n"
                   + table(rows, "Forward, ms", lambda T, v: v["forward_ms"]) + "\n"
                   + table(rows, "Forward and backward, ms", lambda T, v: v["forward_backward_ms"]) + "\n"
                   + table(rows, "Forward and backward, thousands of tokens per second", rate) + "\n"
                   + table(rows, "Peak memory of the process, forward, MB", lambda T, v: v["forward_mb"]) + "\n"
                   + table(rows, "Peak memory of the process, forward and backward, MB", lambda T, v: v["forward_backward_mb"]) + "\n"
                   + growth_table(rows) + "\n" + crossover_table(rows) + "\n" + paper_table(rows))


if __name__ == "__main__":
    main()
