"""Fewer points that look the same: the ends, and of each stretch the highest and the lowest value of every series."""

from collections.abc import Callable, Sequence
from math import isfinite
from typing import TypeVar

T = TypeVar("T")
Measure = Callable[[T], float | None]

STRETCHES = 240
"""About as many as a chart has columns of pixels to tell apart on a phone."""


def thinned(points: Sequence[T], measures: Sequence[Measure[T]], stretches: int = STRETCHES) -> list[T]:
    """In their order; all of them where they are few."""
    if len(points) <= 2 * stretches:
        return list(points)
    kept = {0, len(points) - 1}
    for stretch in range(stretches):
        places = range(stretch * len(points) // stretches, (stretch + 1) * len(points) // stretches)
        for measure in measures:
            values = [
                (value, place) for place in places if (value := _finite(measure(points[place]))) is not None
            ]
            if values:
                kept |= {min(values)[1], max(values)[1]}
    return [points[place] for place in sorted(kept)]


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def evenly(points: Sequence[T], most: int) -> list[T]:
    """At most ``most`` of them, the first and the last included."""
    if len(points) <= most:
        return list(points)
    return [points[round(place * (len(points) - 1) / max(1, most - 1))] for place in range(most)]
