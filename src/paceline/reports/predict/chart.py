"""Speed-up by workers, drawn with characters."""

from collections.abc import Sequence

from paceline.reports.predict.scale import Axis, tick_label
from paceline.studies.predict.prediction import Prediction

WIDTH, HEIGHT = 60, 16
MARKS, PLAIN_MARKS = "●▲■◆○△□◇", "o*x#+%@&"
IDEAL, PLAIN_IDEAL = "·", "."


def chart_lines(prediction: Prediction, *, unicode: bool = True) -> list[str]:
    """The chart, both axes logarithmic; the dotted line is as many times as fast as there are workers."""
    across = Axis.around(prediction.workers)
    speeds = [row.speed_up for series in prediction.series for row in series.rows]
    up = Axis.around([*speeds, float(min(prediction.workers)), float(max(prediction.workers))])
    marks, ideal = (MARKS, IDEAL) if unicode else (PLAIN_MARKS, PLAIN_IDEAL)
    canvas = [[" "] * WIDTH for _ in range(HEIGHT)]
    for column in range(WIDTH):
        _put(canvas, column, up.place(across.at(column / (WIDTH - 1))), ideal)
    for place, series in reversed(list(enumerate(prediction.series))):
        for row in series.rows:
            column = round(across.place(row.workers) * (WIDTH - 1))
            _put(canvas, column, up.place(row.speed_up), marks[place % len(marks)])
    names = [f"{marks[place % len(marks)]} {one.strategy}" for place, one in enumerate(prediction.series)]
    return [
        f"speed-up   {'   '.join(names)}   {ideal} ideal",
        *_framed(canvas, up, "│" if unicode else "|"),
        *_bottom(across, "└─" if unicode else "+-"),
    ]


def _put(canvas: list[list[str]], column: int, height: float, mark: str) -> None:
    if 0 <= height <= 1.0001:
        canvas[HEIGHT - 1 - round(min(height, 1.0) * (HEIGHT - 1))][column] = mark


def _framed(canvas: Sequence[Sequence[str]], up: Axis, bar: str) -> list[str]:
    labels = {
        HEIGHT - 1 - round(up.place(tick) * (HEIGHT - 1)): tick_label(tick) for tick in up.ticks(HEIGHT // 2)
    }
    return [f"{labels.get(line, ''):>7} {bar}{''.join(cells)}".rstrip() for line, cells in enumerate(canvas)]


def _bottom(across: Axis, corner: str) -> list[str]:
    line = [" "] * (WIDTH + 8)
    for tick in across.ticks(WIDTH // 7):
        label = tick_label(tick)
        start = round(across.place(tick) * (WIDTH - 1))
        if all(cell == " " for cell in line[max(0, start - 1) : start + len(label) + 1]):
            line[start : start + len(label)] = label
    return [f"{'':8}{corner[0]}{corner[1] * WIDTH}", f"{'':9}{''.join(line).rstrip()}  workers"]
