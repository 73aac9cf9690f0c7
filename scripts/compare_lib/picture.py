#!/usr/bin/env python3
"""The final losses of a comparison as a picture: scripts/compare_lib/picture.py RESULTS.json OUT.svg

One line per attention, in the report's colours: a ring for every seed, a dot and a bar for mean and standard error."""
import json
import math
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from compare_lib.page import ACCENTS, OTHER_ACCENT  # noqa: E402  (after the path is set)

WIDTH, LEFT, RIGHT, TOP, ROW = 640, 190, 24, 52, 27
STYLE = ("text{font:15px system-ui,sans-serif;fill:#1b1b1f}.soft{fill:#5d5d66}.title{font-weight:600;font-size:16px}"
         ".grid{stroke:#e3e3df}")


def picture(rows):
    values = [value for row in rows for value in row["loss"]["values"]]
    least, most = math.floor(10 * min(values)) / 10, math.ceil(10 * max(values)) / 10
    bottom = TOP + ROW * len(rows)

    def place(loss):
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (loss - least) / (most - least), 1)

    parts = [f'<rect width="{WIDTH}" height="{bottom + 34}" fill="#fdfdfc"/>',
             '<text x="16" y="28" class="title">Validation loss, nats per token: lower is better</text>']
    for tick in range(round(10 * least), round(10 * most) + 1):
        x = place(tick / 10)
        parts.append(f'<path class="grid" d="M{x} {TOP - 8}V{bottom}"/>'
                     f'<text x="{x}" y="{bottom + 22}" class="soft" text-anchor="middle">{tick / 10:.1f}</text>')
    for i, row in enumerate(rows):
        loss, y = row["loss"], TOP + ROW * i + ROW // 2
        colour = ACCENTS.get(row["attention"], OTHER_ACCENT)[0]
        error = loss["standard_error"] or 0
        parts.append(f'<text x="{LEFT - 14}" y="{y + 5}" text-anchor="end">{row["label"]}</text>')
        parts += [f'<circle cx="{place(value)}" cy="{y}" r="4.5" fill="none" stroke="{colour}"/>' for value in loss["values"]]
        parts.append(f'<path d="M{place(loss["mean"] - error)} {y}H{place(loss["mean"] + error)}" stroke="{colour}" '
                     f'stroke-width="3"/><circle cx="{place(loss["mean"])}" cy="{y}" r="5" fill="{colour}"/>')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 34}"><style>{STYLE}</style>'
            + "\n".join(parts) + "</svg>\n")


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    with open(sys.argv[1]) as file:
        compared = json.load(file)["rows"]
    with open(sys.argv[2], "w") as file:
        file.write(picture(compared))
