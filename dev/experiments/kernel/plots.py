"""Pictures of the kernel experiments as SVG, in the style of the report's: lines, dots, ridges, maps of cells, polar plots.

They are narrow, with the legend below the title, so that they can be read on a telephone too."""
import math
from html import escape

from compare_lib.page import ACCENTS, OTHER_ACCENT
from compare_lib.picture import STYLE
from dev.experiments.chart import DASHES, ticks

WIDTH, LEFT, RIGHT, BOTTOM, LINE = 560, 66, 18, 48, 22
LETTER, BOLD = 8.2, 9.6  # pixels, on average, of the style's font
MORE_DASHES = (*DASHES, "12 4", "1 5")
# Five that differ in lightness too, for things that are no attentions.
NEUTRAL = ("#d1490c", "#3f9fdb", "#00876a", "#e5b93c", "#7a4f9e")


class Series:
    """Points of one curve; the mechanism gives the colour, how many of it came before the dashes."""

    def __init__(self, label, attention, points, colour=None):
        self.label, self.attention, self.points = label, attention, points
        self.colour = colour or ACCENTS.get(attention, OTHER_ACCENT)[0]


class Scale:
    """From values to pixels, linear or logarithmic."""

    def __init__(self, low, high, start, end, is_log=False):
        self.low, self.high, self.start, self.end, self.is_log = low, high, start, end, is_log

    def __call__(self, value):
        low, high = self.low, self.high
        if self.is_log:
            value, low, high = math.log(max(value, low)), math.log(low), math.log(high)
        value = min(max(value, min(low, high)), max(low, high))
        return round(self.start + (self.end - self.start) * (value - low) / ((high - low) or 1), 1)

    def ticks(self):
        """(value, text) of the lines behind the curves."""
        if not self.is_log:
            return [(tick, f"{tick:.4g}") for tick in ticks(min(self.low, self.high), max(self.low, self.high))]
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        step = max(1, math.ceil((last - first) / 7))
        found = [(10.0**power, f"{10.0**power:g}") for power in range(first, last + 1, step)]
        if len(found) > 2:
            return found
        every = [factor * 10.0**power for power in range(first - 1, last + 1) for factor in (1, 2, 5)]
        return [(value, f"{value:g}") for value in every if self.low <= value <= self.high]


def text(x, y, words, style="", anchor="start"):
    return f'<text x="{x}" y="{y}" {style} text-anchor="{anchor}">{escape(str(words))}</text>'


def wrapped(words, width):
    """A title's lines, of at most `width` pixels."""
    lines = [""]
    for word in words.split():
        if lines[-1] and BOLD * (len(lines[-1]) + len(word) + 1) > width:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return lines


def head(title):
    """Title, over several lines where it has to be; (parts, the y below)."""
    lines = wrapped(title, WIDTH - 32)
    return [text(16, 28 + 20 * i, line, 'class="title"') for i, line in enumerate(lines)], 20 + 20 * len(lines)


def legend(entries, y):
    """Marks with words, (svg of a mark at 0,0 that is 26 wide, words); (parts, the y below)."""
    parts, x = [], 16
    for mark, words in entries:
        room = 34 + LETTER * len(words) + 14
        if x > 16 and x + room > WIDTH:
            x, y = 16, y + LINE
        parts.append(f'<g transform="translate({round(x, 1)} {y + 12})">{mark}</g>' + text(round(x + 32, 1), y + 17, words))
        x += room
    return parts, y + LINE + 8


def finish(parts, height):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"><style>{STYLE}</style>'
            f'<rect width="{WIDTH}" height="{height}" fill="#fdfdfc"/>\n' + "\n".join(parts) + "</svg>\n")


def grid(x, y, top, bottom, left, x_label):
    """Lines behind the curves with their numbers."""
    parts = [f'<path class="grid" d="M{x(value)} {top}V{bottom}"/>' + text(x(value), bottom + 19, words, 'class="soft"', "middle")
             for value, words in x.ticks()]
    if y:
        parts += [f'<path class="grid" d="M{left} {y(value)}H{WIDTH - RIGHT}"/>'
                  + text(left - 8, y(value) + 5, words, 'class="soft"', "end") for value, words in y.ticks()]
    return parts + [text((left + WIDTH - RIGHT) // 2, bottom + 40, x_label, 'class="soft"', "middle")]


def styled(series):
    """(series, dashes): curves of one colour get different ones."""
    used = {}
    for each in series:
        number = used[each.colour] = used.get(each.colour, -1) + 1
        yield each, MORE_DASHES[number % len(MORE_DASHES)]


def stroke(colour, dashes):
    return f'fill="none" stroke="{colour}" stroke-width="2"' + (f' stroke-dasharray="{dashes}"' if dashes else "")


def line_marks(series):
    return [(f'<path d="M0 0H26" {stroke(each.colour, dashes)}/>', each.label) for each, dashes in styled(series)]


def value_range(values, is_log, given):
    if given:
        return given
    low, high = min(values), max(values)
    margin = 0 if is_log else 0.05 * (high - low) or 0.05
    return low - margin, high + margin


def lines(title, x_label, series, x_log=False, y_log=False, y_range=None):
    """Curves."""
    series = [each for each in series if each.points]
    parts, top = head(title)
    more, top = legend(line_marks(series), top)
    bottom = top + 280
    xs = [x for each in series for x, _ in each.points]
    ys = [y for each in series for _, y in each.points if y > 0 or not y_log]
    x = Scale(min(xs), max(xs), LEFT, WIDTH - RIGHT, x_log)
    y = Scale(*value_range(ys, y_log, y_range), bottom, top, y_log)
    parts += more + grid(x, y, top, bottom, LEFT, x_label)
    for each, dashes in styled(series):
        parts += [f'<polyline points="{" ".join(f"{x(a)},{y(b)}" for a, b in piece)}" {stroke(each.colour, dashes)}/>'
                  for piece in pieces(each.points, y.low)]
    return finish(parts, bottom + BOTTOM)


def pieces(points, least):
    """The parts of a curve that are not below the picture; the first point below ends a part at its edge."""
    found = [[]]
    for i, (x, y) in enumerate(points):
        near = [points[k][1] for k in (i - 1, i + 1) if 0 <= k < len(points)]
        if y >= least or any(value >= least for value in near):
            found[-1].append((x, y))
        elif found[-1]:
            found.append([])
    return [piece for piece in found if len(piece) > 1]


SHAPES = ('<circle cx="{x}" cy="{y}" r="5" fill="{c}"/>', '<circle cx="{x}" cy="{y}" r="5" fill="#fdfdfc" stroke="{c}" stroke-width="2"/>',
          '<path d="M{x} {y}m-5 5h10l-5 -10z" fill="{c}"/>')


def dots(title, x_label, rows, kinds, mark=None, most=math.inf):
    """A line for each of rows, (label, attention, values), with one mark for each of `kinds` (words); `mark`: (value,
    words) of a vertical line. Values beyond `most` are written at the edge instead."""
    parts, top = head(title)
    more, top = legend([(SHAPES[i].format(x=12, y=0, c="#5d5d66"), words) for i, words in enumerate(kinds)]
                       + ([('<path d="M12 -8V8" stroke="#1b1b1f" stroke-width="2"/>', mark[1])] if mark else []), top)
    left = 24 + round(LETTER * max(len(label) for label, _, _ in rows))
    bottom = top + 26 * len(rows)
    values = [value for _, _, each in rows for value in each if value <= most] + ([mark[0]] if mark else [])
    x = Scale(0, 1.05 * max(values), left, WIDTH - RIGHT - 8)
    parts += more + grid(x, None, top, bottom, left, x_label)
    if mark:
        parts.append(f'<path d="M{x(mark[0])} {top}V{bottom}" stroke="#1b1b1f" stroke-width="2"/>')
    for i, (label, attention, each) in enumerate(rows):
        y, colour = top + 26 * i + 13, ACCENTS.get(attention, OTHER_ACCENT)[0]
        parts.append(text(left - 12, y + 5, label, "", "end"))
        parts += [SHAPES[k].format(x=x(value), y=y, c=colour) for k, value in enumerate(each) if value <= most]
        beyond = [f"{value:.3g}" for value in each if value > most]
        if beyond:
            parts.append(text(WIDTH - RIGHT - 8, y + 5, f"{' / '.join(beyond)} →", f'style="fill:{colour};stroke:#fdfdfc;stroke-width:5;paint-order:stroke"',
                              "end"))
    return finish(parts, bottom + BOTTOM)


def ridges(title, x_label, rows, low, high, note=None):
    """A histogram for each of rows, (label, attention, [(middle, share)], words at the right end)."""
    parts, top = head(title)
    if note:
        parts.append(text(WIDTH - RIGHT, top + 14, note, 'class="soft"', "end"))
        top += 24
    left, right = 24 + round(LETTER * max(len(row[0]) for row in rows)), WIDTH - RIGHT - (64 if note else 0)
    bottom, height = top + 40 * len(rows), 34
    x = Scale(low, high, left, right)
    parts += grid(x, None, top, bottom, left, x_label)
    for i, (label, attention, bins, words) in enumerate(rows):
        base, colour = top + 40 * (i + 1), ACCENTS.get(attention, OTHER_ACCENT)[0]
        most = max([share for _, share in bins] + [1e-9])
        width = max(1.5, (right - left) * min([b - a for (a, _), (b, _) in zip(bins, bins[1:])] + [0.2]) / (high - low))
        parts.append(text(left - 12, base - 8, label, "", "end") + text(WIDTH - RIGHT, base - 8, words or "", 'class="soft"', "end"))
        path = "".join(f"M{round(x(middle) - width / 2, 1)} {base}v{round(-height * share / most, 1)}h{round(width, 1)}V{base}z"
                       for middle, share in bins if share > 0)
        parts.append(f'<path class="grid" d="M{left} {base}H{right}"/><path d="{path}" fill="{colour}"/>')
    return finish(parts, bottom + BOTTOM)


def blend(colour, share):
    """Between the background and the colour."""
    back, front = (0xfd, 0xfd, 0xfc), [int(colour[i:i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(b + (f - b) * share):02x}" for b, f in zip(back, front))


def cells(rows):
    """{colour: path} of a picture of cells, rows of colours or None, in units of a cell."""
    paths = {}
    for y, row in enumerate(rows):
        start = 0
        for x in range(1, len(row) + 1):
            if x == len(row) or row[x] != row[start]:
                if row[start]:
                    paths[row[start]] = paths.get(row[start], "") + f"M{start} {y}h{x - start}v1h{start - x}z"
                start = x
    return paths


def maps(title, panels, columns, entries=(), overlay=""):
    """Small pictures of cells side by side: panels are (label, rows of colours); `overlay`: SVG in units of a panel's
    width, drawn over each."""
    parts, top = head(title)
    more, top = legend(entries, top) if entries else ([], top + 4)
    parts += more
    width = (WIDTH - 32 - 14 * (columns - 1)) / columns
    height = width * len(panels[0][1]) / len(panels[0][1][0])
    for i, (label, rows) in enumerate(panels):
        x, y = 16 + (width + 14) * (i % columns), top + (height + 34) * (i // columns)
        size = width / len(rows[0])
        body = "".join(f'<path d="{path}" fill="{colour}"/>' for colour, path in cells(rows).items())
        parts.append(text(round(x, 1), round(y + 16, 1), label)
                     + f'<g transform="translate({x:.1f} {y + 24:.1f}) scale({size:.4f})" shape-rendering="crispEdges">{body}</g>'
                     + f'<g transform="translate({x:.1f} {y + 24:.1f}) scale({width:.1f})">{overlay}</g>'
                     + f'<rect x="{x:.1f}" y="{y + 24:.1f}" width="{width:.1f}" height="{height:.1f}" fill="none" stroke="#5d5d66"/>')
    return finish(parts, round(top + (height + 34) * -(-len(panels) // columns) + 16))


def polar(title, series, least):
    """Curves of (degrees, value up to 1) around a point, on a logarithmic radius that begins at `least`; drawn to both
    sides."""
    parts, top = head(title)
    more, top = legend(line_marks(series), top)
    radius = 230
    x0, y0 = WIDTH // 2, top + radius + 16
    r = Scale(least, 1, 0, radius, True)
    parts += more
    for power in range(0, round(-math.log10(least)) + 1):
        size = r(10.0**-power)
        parts.append(f'<circle class="grid" cx="{x0}" cy="{y0}" r="{size}" fill="none"/>'
                     + text(x0 + 4, y0 - size - 3, f"{10.0**-power:g}", 'class="soft"'))
    for degrees in range(0, 180, 30):
        a, b = radius * math.cos(math.radians(degrees)), radius * math.sin(math.radians(degrees))
        parts.append(f'<path class="grid" d="M{x0 - a:.1f} {y0 + b:.1f}L{x0 + a:.1f} {y0 - b:.1f}"/>')
    for words, x, y, anchor in (("0°", x0 + radius + 6, y0 + 5, "start"), ("180°", x0 - radius - 6, y0 + 5, "end")):
        parts.append(text(x, y, words, 'class="soft"', anchor))
    for each, dashes in styled(series):
        half = [(r(value) * math.cos(math.radians(angle)), r(value) * math.sin(math.radians(angle))) for angle, value in each.points]
        path = " ".join(f"{x0 + a:.1f},{y0 - b:.1f}" for a, b in half + [(a, -b) for a, b in reversed(half)])
        parts.append(f'<polyline points="{path}" {stroke(each.colour, dashes)}/>')
    return finish(parts, y0 + radius + 20)
