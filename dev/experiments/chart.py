"""Line charts as SVG, in the style of the report's pictures."""
import math

from compare_lib.page import ACCENTS, OTHER_ACCENT
from compare_lib.picture import STYLE

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 62, 190, 52, 50
DASHES = ("", "6 3", "2 3", "8 3 2 3")  # rows of one mechanism share its colour


def ticks(least, most):
    """Round numbers, about five of them."""
    step = 10 ** math.floor(math.log10(max(most - least, 1e-9)))
    step = next(step * f for f in (0.1, 0.2, 0.5, 1, 2, 5) if (most - least) / (step * f) <= 6)
    return [i * step for i in range(math.ceil(least / step - 1e-9), math.floor(most / step + 1e-9) + 1)]


def short(number):
    """4096 as 4K: neighbouring powers of two have to fit beside each other."""
    return f"{number // 1024}K" if number >= 1024 else str(number)


class Series:
    """A row's points, with its mechanism for the colour."""

    def __init__(self, label, attention, points):
        self.label, self.attention, self.points = label, attention, points


class Chart:
    """One picture; x is logarithmic."""

    def __init__(self, title, x_label, series):
        self.title, self.x_label = title, x_label
        self.series = [each for each in series if each.points]
        xs = [x for each in self.series for x, _ in each.points]
        ys = [y for each in self.series for _, y in each.points]
        self.x_range = min(xs), max(max(xs), 2 * min(xs))
        margin = 0.05 * (max(ys) - min(ys)) or 0.05
        self.y_range = min(ys) - margin, max(ys) + margin

    def x(self, value):
        low, high = map(math.log, self.x_range)
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (math.log(value) - low) / (high - low), 1)

    def y(self, value):
        low, high = self.y_range
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low), 1)

    def axes(self):
        right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
        parts = [f'<text x="16" y="28" class="title">{self.title}</text>',
                 f'<text x="{(LEFT + right) // 2}" y="{HEIGHT - 12}" class="soft" text-anchor="middle">{self.x_label}</text>']
        power = math.ceil(math.log2(self.x_range[0]))
        while 2 ** power <= self.x_range[1]:
            x = self.x(2 ** power)
            parts.append(f'<path class="grid" d="M{x} {TOP}V{bottom}"/>'
                         f'<text x="{x}" y="{bottom + 20}" class="soft" text-anchor="middle">{short(2 ** power)}</text>')
            power += 1
        for tick in ticks(*self.y_range):
            y = self.y(tick)
            parts.append(f'<path class="grid" d="M{LEFT} {y}H{right}"/>'
                         f'<text x="{LEFT - 8}" y="{y + 5}" class="soft" text-anchor="end">{tick:.3g}</text>')
        return parts

    def names(self, ends):
        """Beside the plot, each with a line to its curve's end; apart from each other, and none below the picture."""
        gap, parts, places = min(16, (HEIGHT - TOP) / max(1, len(ends))), [], []
        for y, _, _, _ in sorted(ends):
            places.append(max(y, places[-1] + gap if places else TOP))
        for i in reversed(range(len(places))):
            places[i] = min(places[i], HEIGHT - 8 - gap * (len(places) - 1 - i))
        for place, (y, x, label, colour) in zip(places, sorted(ends)):
            left = WIDTH - RIGHT + 22
            parts.append(f'<path d="M{x + 5} {y}L{left - 4} {place:.1f}" fill="none" stroke="{colour}" stroke-width="0.6" opacity="0.6"/>'
                         f'<text x="{left}" y="{place + 5:.1f}" style="fill:{colour}">{label}</text>')
        return parts

    def render(self):
        parts, ends, used = self.axes(), [], {}
        for each in self.series:
            colour = ACCENTS.get(each.attention, OTHER_ACCENT)[0]
            dash = DASHES[used.get(each.attention, 0) % len(DASHES)]
            used[each.attention] = used.get(each.attention, 0) + 1
            points = [(self.x(x), self.y(y)) for x, y in sorted(each.points)]
            parts += [f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"/>' for x, y in points]
            path = " ".join(f"{x},{y}" for x, y in points)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" '
                         f'stroke-dasharray="{dash}"/>')
            ends.append((points[-1][1], points[-1][0], each.label, colour))
        body = "\n".join([f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fdfdfc"/>', *parts, *self.names(ends)])
        return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"><style>{STYLE}</style>{body}</svg>\n'
