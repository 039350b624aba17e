"""A prediction as a picture, on logarithmic axes: the speed-up in characters, the throughput as an SVG file."""

from paceline.reports.predict.sentences import limit_words
from paceline.reports.svg import (
    DASHES,
    Axis,
    colour_class,
    svg_circle,
    svg_line,
    svg_page,
    svg_points,
    svg_text,
    tick_label,
)
from paceline.reports.text import counted
from paceline.studies.predict.prediction import Prediction, PredictionRow, StrategyPrediction

COLUMNS, LINES = 60, 16
MARKS, PLAIN_MARKS = "●▲■◆○△□◇", "o*x#+%@&"
WIDTH, PLOT = 760, 330
LEFT, RIGHT, BOTTOM = 64, 24, 56
LEGEND, LINE = 66, 18
"""Where the legend begins, and the height of one of its lines."""


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
        svg_text(LEFT, 26, title, 'font-size="17" font-weight="600"'),
        svg_text(LEFT, 46, basis, 'class="grey"'),
        *_grid(frame),
        *_references(frame),
    ]
    for place, series in enumerate(prediction.series):
        body += [_curve(frame, place, series), _entry(place, series)]
    key, y = "shaded: 80 % interval; grey dashes: ideal; grey dots: one worker", frame.top - LINE
    body.append(svg_text(LEFT, y, key, 'class="grey"'))
    return svg_page(WIDTH, frame.height, body)


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
        lines.append(svg_line(LEFT, y, WIDTH - RIGHT, y, "grid"))
        lines.append(svg_text(LEFT - 8, y + 4, tick_label(tick), 'text-anchor="end"'))
    for tick in frame.across.ticks(12):
        x = frame.x(tick)
        lines.append(svg_line(x, frame.top, x, frame.bottom, "grid"))
        lines.append(svg_text(x, frame.bottom + 20, tick_label(tick), 'text-anchor="middle"'))
    return [
        *lines,
        svg_text((LEFT + WIDTH - RIGHT) / 2, frame.height - 12, "workers", 'text-anchor="middle"'),
    ]


def _references(frame: _Frame) -> list[str]:
    """What would be ideal, and one worker: what is below it is slower than no distribution at all."""
    first, last = frame.counts[0], frame.counts[-1]
    ends = (frame.x(first), frame.y(frame.alone * first), frame.x(last), frame.y(frame.alone * last))
    one = frame.y(frame.alone)
    return [svg_line(*ends, "reference", "5 4"), svg_line(LEFT, one, WIDTH - RIGHT, one, "reference", "1 3")]


def _curve(frame: _Frame, place: int, series: StrategyPrediction) -> str:
    kind = colour_class(place)
    points = [(frame.x(row.workers), frame.y(row.rate)) for row in series.rows]
    upper = [(frame.x(row.workers), frame.y(_band(row)[1])) for row in series.rows]
    lower = [(frame.x(row.workers), frame.y(_band(row)[0])) for row in reversed(series.rows)]
    dots = "".join(svg_circle(x, y, kind) for x, y in points)
    knee, reach = "", series.findings.knee.reach if series.findings else None
    if reach and not reach.open and frame.counts[0] <= reach.workers <= frame.counts[-1]:
        x = frame.x(reach.workers)
        knee = svg_line(x, frame.top, x, frame.bottom, kind, "3 3")
        knee += svg_text(x + 4, frame.bottom - 6, f"knee {reach.workers:,}")
    return (
        f'<polygon class="{kind}" points="{svg_points([*upper, *lower])}" fill-opacity="0.10" stroke-opacity="0.6" '
        f'stroke-dasharray="{DASHES[place % len(DASHES)]}"/>\n'
        f'<polyline class="{kind}" points="{svg_points(points)}" style="fill: none" stroke-width="2"/>\n{dots}{knee}'
    )


def _entry(place: int, series: StrategyPrediction) -> str:
    y, limit = LEGEND + LINE * place, series.findings.limit if series.findings else None
    why = "" if limit is None else f": {counted(limit.workers, 'worker')} limited by {limit_words(limit)}"
    return svg_circle(LEFT + 5, y - 4, colour_class(place), 4) + svg_text(LEFT + 15, y, series.strategy + why)
