"""Throughput by workers as an SVG picture: one file, no scripts, light or dark as the reader prefers."""

from collections.abc import Sequence
from html import escape

from paceline.reports.predict.chart import Axis, tick_label
from paceline.reports.predict.sentences import limit_words
from paceline.reports.text import counted
from paceline.studies.predict.prediction import Prediction, PredictionRow, StrategyPrediction

WIDTH, PLOT = 760, 330
LEFT, RIGHT, BOTTOM = 64, 24, 56
LEGEND, LINE = 66, 18
"""Where the legend begins, and the height of one of its lines."""

LIGHT = ("#0b62a4", "#c2410c", "#15803d", "#7e22ce", "#b91c1c", "#0f766e", "#a16207", "#4b5563")
DARK = ("#60a5fa", "#fb923c", "#4ade80", "#c084fc", "#f87171", "#2dd4bf", "#facc15", "#9ca3af")
DASHES = ("none", "6 3", "2 3", "8 3 2 3")
"""Edges of intervals, so that those of several strategies can be told apart where they overlap."""


def picture(prediction: Prediction) -> str:
    """The picture: a line a strategy with its 80 % interval, its knee and its limit, one worker, and what is ideal."""
    frame = _Frame(prediction)
    curves = [_curve(frame, place, series) for place, series in enumerate(prediction.series)]
    legend = [_entry(place, series) for place, series in enumerate(prediction.series)]
    body = "\n".join(
        [_titles(prediction), _grid(frame), _references(frame), *curves, *legend, _key(prediction)]
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {frame.height}" width="{WIDTH}" '
        f'height="{frame.height}" font-family="system-ui, sans-serif" font-size="13">\n{_style()}\n'
        f'<rect class="paper" width="{WIDTH}" height="{frame.height}"/>\n{body}\n</svg>\n'
    )


def _style() -> str:
    """Colours for both backgrounds."""
    light = _rules("#ffffff", "#1f2937", "#6b7280", "#e5e7eb", LIGHT)
    dark = _rules("#0f172a", "#e5e7eb", "#9ca3af", "#334155", DARK)
    return f"<style>\n{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n</style>"


def _rules(paper: str, ink: str, grey: str, grid: str, colours: Sequence[str]) -> str:
    curves = [f".c{place} {{ fill: {one}; stroke: {one} }}" for place, one in enumerate(colours)]
    fixed = [
        f".paper {{ fill: {paper} }}",
        f"text {{ fill: {ink} }}",
        f"text.grey {{ fill: {grey} }}",
        f".grid {{ stroke: {grid} }}",
        f".reference {{ stroke: {grey} }}",
    ]
    return "\n".join([*fixed, *curves])


class _Frame:
    """Where things go."""

    def __init__(self, prediction: Prediction) -> None:
        self.top = LEGEND + LINE * (len(prediction.series) + 1)
        self.bottom = self.top + PLOT
        self.height = self.bottom + BOTTOM
        self.counts = [float(count) for count in prediction.workers]
        rows = [row for series in prediction.series for row in series.rows]
        self.alone = rows[0].rate / rows[0].speed_up
        """Samples a second of one worker."""
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


def _titles(prediction: Prediction) -> str:
    batch = f"batch {prediction.batch:,} {'a worker' if prediction.scaling == 'weak' else 'of all workers'}"
    return (
        f'<text x="{LEFT}" y="26" font-size="17" font-weight="600">{escape(prediction.name)}: '
        f"predicted samples a second</text>\n"
        f'<text class="grey" x="{LEFT}" y="46">{escape(batch)}; {escape(prediction.basis.level)}: '
        f"{escape(prediction.basis.compute.partition(' (')[0])}</text>"
    )


def _grid(frame: _Frame) -> str:
    lines = []
    for tick in frame.up.round_ticks(9):
        y = frame.y(tick)
        lines.append(_line(LEFT, y, WIDTH - RIGHT, y, "grid"))
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick_label(tick)}</text>')
    for tick in frame.across.ticks(12):
        x = frame.x(tick)
        lines.append(_line(x, frame.top, x, frame.bottom, "grid"))
        lines.append(
            f'<text x="{x:.1f}" y="{frame.bottom + 20}" text-anchor="middle">{tick_label(tick)}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    lines.append(f'<text x="{middle:.0f}" y="{frame.height - 12}" text-anchor="middle">workers</text>')
    return "\n".join(lines)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str, dashes: str = "none") -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke-dasharray="{dashes}"/>'


def _references(frame: _Frame) -> str:
    """What would be ideal, and one worker: what is below it is slower than no distribution at all."""
    first, last = frame.counts[0], frame.counts[-1]
    ends = (frame.x(first), frame.y(frame.alone * first), frame.x(last), frame.y(frame.alone * last))
    one = frame.y(frame.alone)
    return "\n".join(
        [_line(*ends, "reference", "5 4"), _line(LEFT, one, WIDTH - RIGHT, one, "reference", "1 3")]
    )


def _curve(frame: _Frame, place: int, series: StrategyPrediction) -> str:
    kind = f"c{place % len(LIGHT)}"
    points = [(frame.x(row.workers), frame.y(row.rate)) for row in series.rows]
    upper = [(frame.x(row.workers), frame.y(_band(row)[1])) for row in series.rows]
    lower = [(frame.x(row.workers), frame.y(_band(row)[0])) for row in reversed(series.rows)]
    dots = "".join(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in points)
    return (
        f'<polygon class="{kind}" points="{_points([*upper, *lower])}" fill-opacity="0.10" stroke-opacity="0.6" '
        f'stroke-dasharray="{DASHES[place % len(DASHES)]}"/>\n'
        f'<polyline class="{kind}" points="{_points(points)}" style="fill: none" stroke-width="2"/>\n'
        f"{dots}{_knee(frame, kind, series)}"
    )


def _knee(frame: _Frame, kind: str, series: StrategyPrediction) -> str:
    """A line down from the curve, where the knee is among the numbers that are shown."""
    if series.findings is None:
        return ""
    reach = series.findings.knee.reach
    if reach.open or not frame.counts[0] <= reach.workers <= frame.counts[-1]:
        return ""
    x = frame.x(reach.workers)
    return (
        f"\n{_line(x, frame.top, x, frame.bottom, kind, '3 3')}"
        f'<text x="{x + 4:.1f}" y="{frame.bottom - 6}">knee {reach.workers:,}</text>'
    )


def _points(pairs: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in pairs)


def _entry(place: int, series: StrategyPrediction) -> str:
    """A strategy, and what limits it."""
    y, limit = LEGEND + LINE * place, series.findings.limit if series.findings else None
    why = "" if limit is None else f": {counted(limit.workers, 'worker')} limited by {limit_words(limit)}"
    return (
        f'<circle class="c{place % len(LIGHT)}" cx="{LEFT + 5}" cy="{y - 4}" r="4"/>'
        f'<text x="{LEFT + 15}" y="{y}">{escape(series.strategy + why)}</text>'
    )


def _key(prediction: Prediction) -> str:
    y = LEGEND + LINE * len(prediction.series)
    words = "shaded: 80 % interval; grey dashes: ideal; grey dots: one worker"
    return f'<text class="grey" x="{LEFT}" y="{y}">{words}</text>'
