"""What charts are made of: axes, and pieces of SVG that need no script and follow the reader's light or dark page."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Self

LIGHT = ("#0b62a4", "#c2410c", "#15803d", "#7e22ce", "#b91c1c", "#0f766e", "#a16207", "#4b5563")
DARK = ("#60a5fa", "#fb923c", "#4ade80", "#c084fc", "#f87171", "#2dd4bf", "#facc15", "#9ca3af")
DASHES = ("none", "6 3", "2 3", "8 3 2 3")
"""Tell apart what overlaps, or what has the same colour."""


@dataclass(frozen=True)
class Axis:
    """Logarithmic: equal ratios are equally far apart; both ends are above 0."""

    low: float
    high: float

    @classmethod
    def around(cls, values: Sequence[float]) -> Self:
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


@dataclass(frozen=True)
class LinearAxis(Axis):
    """Equal differences are equally far apart."""

    def place(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)

    def at(self, place: float) -> float:
        return self.low + (self.high - self.low) * place

    def round_ticks(self, most: int) -> list[float]:
        """Multiples of 1, 2 or 5 times a power of ten, as many as there is room for."""
        step = round_step((self.high - self.low) / most)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [step * number for number in range(first, last + 1)]


def round_step(least: float) -> float:
    """The smallest of 1, 2 and 5 times powers of ten that is not below ``least``."""
    power: float = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= least * (1 - 1e-9))


def tick_label(value: float) -> str:
    """A round number in few characters: 0.5, 64, 1,024, 65k, 2M."""
    for scale, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 10 * scale or (value >= scale and scale > 1e3):
            return f"{value / scale:.0f}{letter}"
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def svg_page(width: float, height: float, body: Sequence[str]) -> str:
    """A whole file; elements of class c0, c1, ... have the colours, "grid" and "reference" the greys."""
    newline = "\n"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="system-ui, sans-serif" font-size="13">\n<style>\n'
        f"{_rules('#ffffff', '#1f2937', '#6b7280', '#e5e7eb', LIGHT)}\n@media (prefers-color-scheme: dark) {{\n"
        f"{_rules('#0f172a', '#e5e7eb', '#9ca3af', '#334155', DARK)}\n}}\n</style>\n"
        f'<rect class="paper" width="{width}" height="{height}"/>\n{newline.join(body)}\n</svg>\n'
    )


def _rules(paper: str, ink: str, grey: str, grid: str, colours: Sequence[str]) -> str:
    fixed = (
        f".paper {{ fill: {paper} }} text {{ fill: {ink} }} text.grey {{ fill: {grey} }} "
        f".grid {{ stroke: {grid} }} .reference {{ stroke: {grey} }}"
    )
    curves = [f".c{place} {{ fill: {one}; stroke: {one} }}" for place, one in enumerate(colours)]
    return "\n".join([fixed, *curves])


def colour_class(place: int) -> str:
    return f"c{place % len(LIGHT)}"


def svg_points(pairs: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in pairs)


def svg_line(x1: float, y1: float, x2: float, y2: float, kind: str, dashes: str = "none") -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke-dasharray="{dashes}"/>'


def svg_circle(x: float, y: float, kind: str, radius: float = 3.5) -> str:
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"/>'


def svg_text(x: float, y: float, words: str, attributes: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{escape(words)}</text>'
