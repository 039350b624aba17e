"""Speed-up by workers, drawn with characters, and the logarithmic axes of both pictures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.studies.predict.prediction import Prediction

WIDTH, HEIGHT = 60, 16
MARKS, PLAIN_MARKS = "●▲■◆○△□◇", "o*x#+%@&"
IDEAL, PLAIN_IDEAL = "·", "."


@dataclass(frozen=True)
class Axis:
    """From ``low`` to ``high``, both above 0, onto 0 to 1."""

    low: float
    high: float

    @classmethod
    def around(cls, values: Sequence[float]) -> "Axis":
        """From the smallest to the largest of the values, and a little where they are all the same."""
        low, high = min(values), max(values)
        return cls(low, high) if high > low * 1.01 else cls(low / 1.5, high * 1.5)

    def place(self, value: float) -> float:
        return math.log(value / self.low) / math.log(self.high / self.low)

    def at(self, place: float) -> float:
        return float(self.low * (self.high / self.low) ** place)

    def ticks(self, most: int) -> list[float]:
        """At most so many powers of two, or of four or more where those are too many."""
        first, last = math.ceil(math.log2(self.low) - 1e-9), math.floor(math.log2(self.high) + 1e-9)
        stride = max(1, math.ceil((last - first + 1) / most))
        return [2.0**power for power in range(first, last + 1, stride)]

    def round_ticks(self, most: int) -> list[float]:
        """At most so many of 1, 2 and 5 times powers of ten, or powers of ten alone."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        for steps in ((1, 2, 5), (1, 3), (1,)):
            found = [step * 10.0**power for power in range(first, last + 1) for step in steps]
            inside = [tick for tick in found if self.low <= tick <= self.high]
            if len(inside) <= most:
                return inside
        return inside[:: -(-len(inside) // most)]


def tick_label(value: float) -> str:
    """A round number in few characters: 0.5, 64, 1,024, 65k, 2M."""
    for scale, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 10 * scale or (value >= scale and scale > 1e3):
            return f"{value / scale:.0f}{letter}"
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def chart_lines(prediction: Prediction, *, unicode: bool = True) -> list[str]:
    """The chart, both axes logarithmic; the dotted line is the ideal speed-up."""
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
