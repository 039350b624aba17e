"""Pictures of results as SVG: points and lines over a logarithmic axis, on a light page and on a dark one."""

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import pairwise

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 460, 70, 60, 40, 60


class Chart:
    """Percent against something that spans orders of magnitude; ``ticks`` are the places of its grid, in order."""

    def __init__(
        self,
        title: str,
        across: str,
        *,
        ticks: Sequence[float],
        tick: Callable[[float], str],
        floor: int,
        ceiling: int,
    ) -> None:
        self._first, self._last = math.log10(ticks[0]), math.log10(ticks[-1])
        self._floor, self._ceiling = floor, ceiling
        self._taken: list[tuple[float, float, float]] = []
        self._body = [_text(LEFT, 28, title, "title")]
        for place in ticks:
            self._body.append(_line(self.x(place), TOP, self.x(place), HEIGHT - BOTTOM, "grid"))
            self._body.append(_text(self.x(place), HEIGHT - BOTTOM + 20, tick(place), "middle"))
        for percent in range(floor, ceiling + 1, max(1, (ceiling - floor) // 8)):
            self._body.append(_line(LEFT, self.y(percent), WIDTH - RIGHT, self.y(percent), "grid"))
            self._body.append(_text(LEFT - 8, self.y(percent) + 4, f"{percent} %", "end"))
        self._body.append(_text((LEFT + WIDTH) / 2, HEIGHT - 14, across, "middle"))

    def x(self, value: float) -> float:
        part = (math.log10(value) - self._first) / (self._last - self._first)
        return LEFT + part * (WIDTH - LEFT - RIGHT)

    def y(self, percent: float) -> float:
        part = (self._ceiling - percent) / (self._ceiling - self._floor)
        return TOP + part * (HEIGHT - TOP - BOTTOM)

    def point(
        self, value: float, percent: float, low: float, high: float, kind: str, label: str = ""
    ) -> None:
        """A dot, a line from the lowest to the highest, and a label where none is yet."""
        across, at = self.x(value), self.y(percent)
        self._body.append(_line(across, self.y(low), across, self.y(high), kind))
        self._body.append(f'<circle class="{kind}" cx="{across:.1f}" cy="{at:.1f}" r="4"/>')
        if label:
            top = self._free_place(across, at, label)
            self._body.append(_line(across, at, across + 6, top - 4, "grid"))
            self._body.append(_text(across + 7, top, label, "label"))

    def connect(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        for (x1, y1), (x2, y2) in pairwise(points):
            self._body.append(_line(self.x(x1), self.y(y1), self.x(x2), self.y(y2), kind))

    def svg(self, colours: Mapping[str, str]) -> str:
        """The picture; ``colours`` are those of each kind of point."""
        lines = "\n".join(self._body)
        light = "svg{background:#fff}text{fill:#1f2937}.grid{stroke:#e5e7eb}"
        dark = "svg{background:#0f172a}text{fill:#e5e7eb}.grid{stroke:#334155}"
        kinds = "".join(f".{kind}{{stroke:{colour};fill:{colour}}}" for kind, colour in colours.items())
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
            f'height="{HEIGHT}" font-family="system-ui, sans-serif" font-size="12"><style>{light}'
            ".title{font-size:16px;font-weight:600}.middle{text-anchor:middle}.end{text-anchor:end}"
            f"{kinds}@media (prefers-color-scheme: dark){{{dark}}}</style>\n{lines}\n</svg>\n"
        )

    def _free_place(self, x: float, y: float, words: str) -> float:
        """Where a label stands on none of the others: just above its point, or a line or more below it."""
        width = 7 * len(words) + 10
        for top in (y - 6, *(y + 18 + 15 * line for line in range(20))):
            if all(abs(top - other) >= 14 or x >= end or x + width <= at for other, at, end in self._taken):
                break
        self._taken.append((top, x, x + width))
        return top


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'
