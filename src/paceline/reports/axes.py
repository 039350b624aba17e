"""Axes of charts, in characters or as SVG: where a value stands between the ends, and which values are marked."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self


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
