"""Logarithmic axes: where a value falls, and which values deserve a label."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


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
        """0 at the low end, 1 at the high one."""
        return math.log(value / self.low) / math.log(self.high / self.low)

    def at(self, place: float) -> float:
        """The value of a place."""
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
