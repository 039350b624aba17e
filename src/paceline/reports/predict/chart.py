"""A prediction as a picture, on logarithmic axes: the speed-up in characters, the throughput as an SVG file."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from paceline.reports.predict.sentences import limit_words
from paceline.reports.text import counted
from paceline.studies.predict.prediction import Prediction, PredictionRow, StrategyPrediction

COLUMNS, LINES = 60, 16
MARKS, PLAIN_MARKS = "●▲■◆○△□◇", "o*x#+%@&"
WIDTH, PLOT = 760, 330
LEFT, RIGHT, BOTTOM = 64, 24, 56
LEGEND, LINE = 66, 18
"""Where the legend begins, and the height of one of its lines."""
LIGHT = ("#0b62a4", "#c2410c", "#15803d", "#7e22ce", "#b91c1c", "#0f766e", "#a16207", "#4b5563")
DARK = ("#60a5fa", "#fb923c", "#4ade80", "#c084fc", "#f87171", "#2dd4bf", "#facc15", "#9ca3af")
DASHES = ("none", "6 3", "2 3", "8 3 2 3")
"""Edges of intervals, so that those of several strategies can be told apart where they overlap."""


@dataclass(frozen=True)
class Axis:
    low: float
    high: float

    @classmethod
    def around(cls, values: Sequence[float]) -> "Axis":
        """From the smallest to the largest of the values, and a little where they are all equal."""
        low, high = min(values), max(values)
        return cls(low, high) if high > low * 1.01 else cls(low / 1.5, high * 1.5)

    def place(self, value: float) -> float:
        return math.log(value / self.low) / math.log(self.high / self.low)

    def at(self, place: float) -> float:
        return float(self.low * (self.high / self.low) ** place)

    def ticks(self, most: int) -> list[float]:
        """At most ``most`` powers of two, evenly thinned."""
        first, last = math.ceil(math.log2(self.low) - 1e-9), math.floor(math.log2(self.high) + 1e-9)
        stride = max(1, math.ceil((last - first + 1) / most))
        return [2.0**power for power in range(first, last + 1, stride)]

    def round_ticks(self, most: int) -> list[float]:
        """1, 2 and 5 times powers of ten, or powers of ten alone where those are too many."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        ticks = [step * 10.0**power for power in powers for step in (1, 2, 5)]
        inside = [tick for tick in ticks if self.low <= tick <= self.high]
        return inside if len(inside) <= most else [tick for tick in ticks[::3] if tick in inside]


def tick_label(value: float) -> str:
    """A round number in few characters: 0.5, 64, 1,024, 65k, 2M."""
    for scale, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 10 * scale or (value >= scale and scale > 1e3):
            return f"{value / scale:.0f}{letter}"
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def chart_lines(prediction: Prediction, *, unicode: bool = True) -> list[str]:
    """The speed-up by workers; the dotted line is the ideal one."""
    across = Axis.around(prediction.workers)
    speeds = [row.speed_up for series in prediction.series for row in series.rows]
    up = Axis.around([*speeds, float(min(prediction.workers)), float(max(prediction.workers))])
    marks, ideal = (MARKS, "·") if unicode else (PLAIN_MARKS, ".")
    canvas = [[" "] * COLUMNS for _ in range(LINES)]

    def put(column: int, speed_up: float, mark: str) -> None:
        height = up.place(speed_up)
        if 0 <= height <= 1.0001:
            canvas[LINES - 1 - round(min(height, 1.0) * (LINES - 1))][column] = mark

    for column in range(COLUMNS):
        put(column, across.at(column / (COLUMNS - 1)), ideal)
    for place, series in reversed(list(enumerate(prediction.series))):
        for row in series.rows:
            put(round(across.place(row.workers) * (COLUMNS - 1)), row.speed_up, marks[place % len(marks)])
    names = [f"{marks[place % len(marks)]} {one.strategy}" for place, one in enumerate(prediction.series)]
    labels = {
        LINES - 1 - round(up.place(tick) * (LINES - 1)): tick_label(tick) for tick in up.ticks(LINES // 2)
    }
    bar, corner, dash = "│└─" if unicode else "|+-"
    rows = [f"{labels.get(line, ''):>7} {bar}{''.join(cells)}" for line, cells in enumerate(canvas)]
    return [
        f"speed-up   {'   '.join(names)}   {ideal} ideal",
        *(row.rstrip() for row in rows),
        f"{'':8}{corner}{dash * COLUMNS}",
        f"{'':9}{_bottom(across)}  workers",
    ]


def _bottom(across: Axis) -> str:
    line = [" "] * (COLUMNS + 8)
    for tick in across.ticks(COLUMNS // 7):
        label = tick_label(tick)
        start = round(across.place(tick) * (COLUMNS - 1))
        if all(cell == " " for cell in line[max(0, start - 1) : start + len(label) + 1]):
            line[start : start + len(label)] = label
    return "".join(line).rstrip()


def picture(prediction: Prediction) -> str:
    """An SVG file, no scripts, light or dark as the reader prefers.

    A line a strategy with its 80 % interval, its knee and its limit; one worker, and what is ideal.
    """
    frame = _Frame(prediction)
    batch = f"batch {prediction.batch:,} {'a worker' if prediction.scaling == 'weak' else 'of all workers'}"
    title = f"{prediction.name}: predicted samples a second"
    basis = f"{batch}; {prediction.basis.level}: {prediction.basis.compute.partition(' (')[0]}"
    body = [
        _text(LEFT, 26, title, 'font-size="17" font-weight="600"'),
        _text(LEFT, 46, basis, 'class="grey"'),
        *_grid(frame),
        *_references(frame),
    ]
    for place, series in enumerate(prediction.series):
        body += [_curve(frame, place, series), _entry(place, series)]
    key, y = "shaded: 80 % interval; grey dashes: ideal; grey dots: one worker", frame.top - LINE
    body.append(_text(LEFT, y, key, 'class="grey"'))
    newline = "\n"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {frame.height}" width="{WIDTH}" '
        f'height="{frame.height}" font-family="system-ui, sans-serif" font-size="13">\n<style>\n'
        f"{_rules('#ffffff', '#1f2937', '#6b7280', '#e5e7eb', LIGHT)}\n@media (prefers-color-scheme: dark) {{\n"
        f"{_rules('#0f172a', '#e5e7eb', '#9ca3af', '#334155', DARK)}\n}}\n</style>\n"
        f'<rect class="paper" width="{WIDTH}" height="{frame.height}"/>\n{newline.join(body)}\n</svg>\n'
    )


def _rules(paper: str, ink: str, grey: str, grid: str, colours: Sequence[str]) -> str:
    fixed = (
        f".paper {{ fill: {paper} }} text {{ fill: {ink} }} text.grey {{ fill: {grey} }} "
        f".grid {{ stroke: {grid} }} .reference {{ stroke: {grey} }}"
    )
    curves = [f".c{place} {{ fill: {one}; stroke: {one} }}" for place, one in enumerate(colours)]
    return "\n".join([fixed, *curves])


class _Frame:
    def __init__(self, prediction: Prediction) -> None:
        self.top = LEGEND + LINE * (len(prediction.series) + 1)
        self.bottom = self.top + PLOT
        self.height = self.bottom + BOTTOM
        self.counts = [float(count) for count in prediction.workers]
        rows = [row for series in prediction.series for row in series.rows]
        self.alone = rows[0].rate / rows[0].speed_up
        self.across = Axis.around(self.counts)
        ideal = [self.alone * count for count in self.counts]
        self.up = Axis.around([self.alone, *ideal, *(edge for row in rows for edge in _band(row))])

    def x(self, workers: float) -> float:
        return LEFT + self.across.place(workers) * (WIDTH - LEFT - RIGHT)

    def y(self, rate: float) -> float:
        return self.bottom - self.up.place(rate) * PLOT


def _band(row: PredictionRow) -> tuple[float, float]:
    """The rates at which the step is as long, and as short, as its interval has it."""
    return row.rate * row.step / row.high, row.rate * row.step / row.low


def _grid(frame: _Frame) -> list[str]:
    lines = []
    for tick in frame.up.round_ticks(9):
        y = frame.y(tick)
        lines.append(_line(LEFT, y, WIDTH - RIGHT, y, "grid"))
        lines.append(_text(LEFT - 8, y + 4, tick_label(tick), 'text-anchor="end"'))
    for tick in frame.across.ticks(12):
        x = frame.x(tick)
        lines.append(_line(x, frame.top, x, frame.bottom, "grid"))
        lines.append(_text(x, frame.bottom + 20, tick_label(tick), 'text-anchor="middle"'))
    return [*lines, _text((LEFT + WIDTH - RIGHT) / 2, frame.height - 12, "workers", 'text-anchor="middle"')]


def _references(frame: _Frame) -> list[str]:
    """What would be ideal, and one worker: what is below it is slower than no distribution at all."""
    first, last = frame.counts[0], frame.counts[-1]
    ends = (frame.x(first), frame.y(frame.alone * first), frame.x(last), frame.y(frame.alone * last))
    one = frame.y(frame.alone)
    return [_line(*ends, "reference", "5 4"), _line(LEFT, one, WIDTH - RIGHT, one, "reference", "1 3")]


def _curve(frame: _Frame, place: int, series: StrategyPrediction) -> str:
    kind = f"c{place % len(LIGHT)}"
    points = [(frame.x(row.workers), frame.y(row.rate)) for row in series.rows]
    upper = [(frame.x(row.workers), frame.y(_band(row)[1])) for row in series.rows]
    lower = [(frame.x(row.workers), frame.y(_band(row)[0])) for row in reversed(series.rows)]
    dots = "".join(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in points)
    knee, reach = "", series.findings.knee.reach if series.findings else None
    if reach and not reach.open and frame.counts[0] <= reach.workers <= frame.counts[-1]:
        x = frame.x(reach.workers)
        knee = _line(x, frame.top, x, frame.bottom, kind, "3 3")
        knee += _text(x + 4, frame.bottom - 6, f"knee {reach.workers:,}")
    return (
        f'<polygon class="{kind}" points="{_points([*upper, *lower])}" fill-opacity="0.10" stroke-opacity="0.6" '
        f'stroke-dasharray="{DASHES[place % len(DASHES)]}"/>\n'
        f'<polyline class="{kind}" points="{_points(points)}" style="fill: none" stroke-width="2"/>\n{dots}{knee}'
    )


def _entry(place: int, series: StrategyPrediction) -> str:
    y, limit = LEGEND + LINE * place, series.findings.limit if series.findings else None
    why = "" if limit is None else f": {counted(limit.workers, 'worker')} limited by {limit_words(limit)}"
    circle = f'<circle class="c{place % len(LIGHT)}" cx="{LEFT + 5}" cy="{y - 4}" r="4"/>'
    return circle + _text(LEFT + 15, y, series.strategy + why)


def _points(pairs: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in pairs)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str, dashes: str = "none") -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke-dasharray="{dashes}"/>'


def _text(x: float, y: float, words: str, attributes: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{escape(words)}</text>'
