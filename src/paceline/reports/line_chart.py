"""Line charts as one SVG file: panels side by side that share their vertical axis and one legend above."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.reports.svg import (
    DASHES,
    LIGHT,
    Axis,
    colour_class,
    svg_circle,
    svg_line,
    svg_page,
    svg_points,
    svg_text,
)

LEFT, RIGHT, GAP, BOTTOM = 60, 24, 30, 56
PLOT, WIDE, NARROW = 320, 676, 312
"""The height of a panel, and its width alone and beside others."""
LEGEND, LINE, LETTER = 68, 18, 7.2
"""Where the legend begins, the height of one of its lines, and the width of a letter."""
Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A line with the range of its values around it."""

    points: tuple[Point, ...]
    name: str = ""
    """In the legend; a curve without a name is not in it."""
    band: tuple[Point, ...] = ()
    """The lowest and the highest value at each point; empty draws no band."""
    colour: int = 0
    """The place among the colours; beyond the last, dashes begin."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One value with its range, and its name, if it has one, beside it."""

    point: Point
    low: float
    high: float
    name: str = ""
    colour: int = 0


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes."""

    label: str
    """What the horizontal axis shows, with its unit."""
    across: Axis
    up: Axis
    across_tick: Callable[[float], str]
    up_tick: Callable[[float], str]
    ticks: tuple[float, ...] = ()
    """Values on the horizontal axis that are marked; none marks round ones."""
    curves: tuple[Curve, ...] = ()
    marks: tuple[Mark, ...] = ()
    level: float | None = None
    """A value on the vertical axis that a dashed line marks."""


@dataclass(frozen=True)
class Place:
    """Where a panel stands on the page."""

    panel: Panel
    left: float
    top: float
    width: float

    def x(self, value: float) -> float:
        return self.left + self.panel.across.place(value) * self.width

    def y(self, value: float) -> float:
        return self.top + (1 - self.panel.up.place(value)) * PLOT

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def bottom(self) -> float:
        return self.top + PLOT


def line_chart(title: str, subtitle: str, panels: Sequence[Panel]) -> str:
    """An SVG file. The legend names the curves of the first panel, which all panels share."""
    each = WIDE if len(panels) == 1 else NARROW
    width = LEFT + len(panels) * each + (len(panels) - 1) * GAP + RIGHT
    entries = [curve for curve in panels[0].curves if curve.name]
    columns = legend_columns([one.name for one in entries], width - LEFT - RIGHT)
    top = LEGEND + LINE * math.ceil(len(entries) / columns) + 4
    body = [
        svg_text(LEFT, 26, title, 'font-size="17" font-weight="600"'),
        svg_text(LEFT, 46, subtitle, 'class="grey"'),
        *_legend(entries, columns, (width - LEFT - RIGHT) / columns),
    ]
    for number, panel in enumerate(panels):
        place = Place(panel, LEFT + number * (each + GAP), top, each)
        body += [*_grid(place, first=number == 0), *_contents(place, number)]
    return svg_page(width, top + PLOT + BOTTOM, body)


def legend_columns(names: Sequence[str], width: float) -> int:
    """As many columns as the longest name leaves room for."""
    longest = max(map(len, names), default=0) * LETTER + 40
    return max(1, min(len(names), int(width // longest)))


def _legend(entries: Sequence[Curve], columns: int, width: float) -> list[str]:
    lines = []
    for number, curve in enumerate(entries):
        row, column = divmod(number, columns)
        x, y = LEFT + column * width, LEGEND + LINE * row
        lines.append(
            f'<line class="{colour_class(curve.colour)}" x1="{x:.1f}" y1="{y - 4}" x2="{x + 22:.1f}" y2="{y - 4}" '
            f'stroke-width="3" stroke-dasharray="{_dashes(curve)}"/>{svg_text(x + 29, y, curve.name)}'
        )
    return lines


def _dashes(curve: Curve) -> str:
    return DASHES[curve.colour // len(LIGHT) % len(DASHES)]


def _grid(place: Place, *, first: bool) -> list[str]:
    """Only the first panel has labels on its vertical axis: the others share it."""
    panel, lines = place.panel, []
    for tick in panel.up.round_ticks(9):
        y = place.y(tick)
        lines.append(svg_line(place.left, y, place.right, y, "grid"))
        if first:
            lines.append(svg_text(place.left - 8, y + 4, panel.up_tick(tick), 'text-anchor="end"'))
    for tick in panel.ticks or panel.across.round_ticks(int(place.width // 60)):
        x = place.x(tick)
        lines.append(svg_line(x, place.top, x, place.bottom, "grid"))
        lines.append(svg_text(x, place.bottom + 20, panel.across_tick(tick), 'text-anchor="middle"'))
    if panel.level is not None:
        y = place.y(panel.level)
        lines.append(svg_line(place.left, y, place.right, y, "reference", "5 4"))
    middle = (place.left + place.right) / 2
    return [*lines, svg_text(middle, place.bottom + 42, panel.label, 'text-anchor="middle"')]


def _contents(place: Place, number: int) -> list[str]:
    """Curves may leave the panel, and are cut off at its edge."""
    clip = f'<clipPath id="panel-{number}"><rect x="{place.left}" y="{place.top - 3}" width="{place.width}" height="{PLOT + 6}"/></clipPath>'  # noqa: E501
    curves = "\n".join(_curve(place, one) for one in place.panel.curves)
    dots = [(place.x(one.point[0]), place.y(one.point[1])) for one in place.panel.marks]
    taken = [(y + 4, x - 5, x + 5) for x, y in dots]
    marks = [piece for one in place.panel.marks for piece in _mark(place, one, taken)]
    return [clip, f'<g clip-path="url(#panel-{number})">\n{curves}\n</g>', *marks]


def _curve(place: Place, curve: Curve) -> str:
    kind = colour_class(curve.colour)
    points = [(place.x(x), place.y(y)) for x, y in curve.points]
    lower = [(x, place.y(low)) for (x, _), (low, _) in zip(points, curve.band, strict=False)]
    upper = [(x, place.y(high)) for (x, _), (_, high) in zip(points, curve.band, strict=False)]
    edge = svg_points([*lower, *reversed(upper)])
    band = (
        f'<polygon class="{kind}" points="{edge}" fill-opacity="0.13" style="stroke: none"/>\n'
        if edge
        else ""
    )
    return (
        f'{band}<polyline class="{kind}" points="{svg_points(points)}" style="fill: none" stroke-width="2" '
        f'stroke-dasharray="{_dashes(curve)}"/>'
    )


def _mark(place: Place, mark: Mark, taken: list[tuple[float, float, float]]) -> list[str]:
    kind, (across, up) = colour_class(mark.colour), mark.point
    x, y = place.x(across), place.y(up)
    drawn = [svg_line(x, place.y(mark.low), x, place.y(mark.high), kind), svg_circle(x, y, kind)]
    if mark.name:
        top = free_place(x, y, mark.name, taken)
        drawn += [svg_line(x, y, x + 6, top - 4, "grid"), svg_text(x + 7, top, mark.name)]
    return drawn


def free_place(x: float, y: float, words: str, taken: list[tuple[float, float, float]]) -> float:
    """Where a label beside a point stands on no other label or point: just above it, or a line or more below it.

    ``taken`` are the lines of what is there, each with its left and right end; the label is added to them.
    """
    left, right = x + 7, x + 7 + LETTER * len(words)
    for top in (y - 6, *(y + 18 + 15 * line for line in range(20))):
        if all(abs(top - other) >= 14 or left >= end or right <= start for other, start, end in taken):
            break
    taken.append((top, left, right))
    return top
