"""Where the value of a setting may lie: ``lr: Positive = 0.05`` says it, and a spec is held to it when it is read."""

from collections.abc import Callable
from math import inf
from typing import Annotated, NamedTuple


class Range(NamedTuple):
    rule: str
    """As it follows "it must be"."""
    holds: Callable[[float], bool]


def at_least(least: float) -> Range:
    return Range(f"at least {least:g}", lambda value: least <= value < inf)


def from_1_to(most: int) -> Range:
    return Range(f"from 1 to {most:,}", lambda value: 1 <= value <= most)


Count = Annotated[int, at_least(1)]
NotNegative = Annotated[float, at_least(0)]
Positive = Annotated[float, Range("more than 0", lambda value: 0 < value < inf)]
Fraction = Annotated[float, Range("at least 0 and less than 1", lambda value: 0 <= value < 1)]
Ratio = Annotated[float, Range("more than 0 and at most 1", lambda value: 0 < value <= 1)]
