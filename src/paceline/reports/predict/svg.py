"""Throughput by workers as an SVG picture: one file, no scripts, readable on white."""

from collections.abc import Sequence
from html import escape

from paceline.records.prediction import Prediction, Row, Series
from paceline.reports.predict.scale import Axis, tick_label

WIDTH, HEIGHT = 760, 460
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 78, 56
COLOURS = ("#0b62a4", "#c2410c", "#15803d", "#7e22ce", "#b91c1c", "#0f766e", "#a16207", "#4b5563")
INK, GRID = "#1f2937", "#e5e7eb"


def picture(prediction: Prediction) -> str:
    """The picture: a line a strategy with its 80 % interval, and what would be ideal."""
    frame = _Frame(prediction)
    shown = [_curve(frame, place, series) for place, series in enumerate(prediction.series)]
    body = "\n".join([_titles(prediction), _grid(frame), _ideal(frame), *shown, _legend(prediction)])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="{INK}">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


class _Frame:
    """Where things go."""

    def __init__(self, prediction: Prediction) -> None:
        self.counts = [float(count) for count in prediction.workers]
        rows = [row for series in prediction.series for row in series.rows]
        self.alone = rows[0].rate / rows[0].speed_up
        """Samples a second of one worker."""
        self.across = Axis.around(self.counts)
        ideal = [self.alone * count for count in self.counts]
        self.up = Axis.around([*ideal, *(edge for row in rows for edge in _band(row))])

    def x(self, workers: float) -> float:
        return LEFT + self.across.place(workers) * (WIDTH - LEFT - RIGHT)

    def y(self, rate: float) -> float:
        return HEIGHT - BOTTOM - self.up.place(rate) * (HEIGHT - TOP - BOTTOM)


def _band(row: Row) -> tuple[float, float]:
    """The rates at which the step is as long, and as short, as its interval has it."""
    return row.rate * row.step / row.high, row.rate * row.step / row.low


def _titles(prediction: Prediction) -> str:
    batch = f"batch {prediction.batch:,} {'a worker' if prediction.scaling == 'weak' else 'of all workers'}"
    return (
        f'<text x="{LEFT}" y="26" font-size="17" font-weight="600">{escape(prediction.name)}: '
        f"predicted samples a second</text>\n"
        f'<text x="{LEFT}" y="46" fill="#6b7280">{escape(batch)}; {escape(prediction.known.level)}: '
        f"{escape(prediction.known.compute.partition(' (')[0])}</text>"
    )


def _grid(frame: _Frame) -> str:
    lines = []
    for tick in frame.up.round_ticks(9):
        y = frame.y(tick)
        lines.append(_line(LEFT, y, WIDTH - RIGHT, y, GRID))
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick_label(tick)}</text>')
    for tick in frame.across.ticks(12):
        x = frame.x(tick)
        lines.append(_line(x, TOP, x, HEIGHT - BOTTOM, GRID))
        lines.append(
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{tick_label(tick)}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    lines.append(f'<text x="{middle:.0f}" y="{HEIGHT - 12}" text-anchor="middle">workers</text>')
    return "\n".join(lines)


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, more: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{more}/>'


def _ideal(frame: _Frame) -> str:
    first, last = frame.counts[0], frame.counts[-1]
    return _line(
        frame.x(first),
        frame.y(frame.alone * first),
        frame.x(last),
        frame.y(frame.alone * last),
        "#9ca3af",
        ' stroke-dasharray="5 4"',
    )


def _curve(frame: _Frame, place: int, series: Series) -> str:
    colour = COLOURS[place % len(COLOURS)]
    points = [(frame.x(row.workers), frame.y(row.rate)) for row in series.rows]
    upper = [(frame.x(row.workers), frame.y(_band(row)[1])) for row in series.rows]
    lower = [(frame.x(row.workers), frame.y(_band(row)[0])) for row in reversed(series.rows)]
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in points)
    return (
        f'<polygon points="{_points([*upper, *lower])}" fill="{colour}" fill-opacity="0.12"/>\n'
        f'<polyline points="{_points(points)}" fill="none" stroke="{colour}" stroke-width="2"/>\n{dots}'
    )


def _points(pairs: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in pairs)


def _legend(prediction: Prediction) -> str:
    entries, x = [], float(LEFT)
    for place, series in enumerate(prediction.series):
        colour, name = COLOURS[place % len(COLOURS)], series.strategy
        entries.append(f'<circle cx="{x + 5:.0f}" cy="62" r="4" fill="{colour}"/>')
        entries.append(f'<text x="{x + 15:.0f}" y="66">{escape(name)}</text>')
        x += 15 + 7.2 * len(name) + 18
    entries.append(f'<text x="{x:.0f}" y="66" fill="#6b7280">shaded: 80 % interval; dashed: ideal</text>')
    return "\n".join(entries)
