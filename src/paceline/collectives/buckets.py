"""Gradient buckets: which part of the flat gradient is reduced when, in the order in which backward fills it."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bucket:
    """A contiguous part of the flat gradient, in elements, and the parameters that lie in it."""

    start: int
    stop: int
    parameters: range


def plan_buckets(sizes: Sequence[int], element: int, first: int, later: int) -> list[Bucket]:
    """Cut parameters of ``sizes`` elements into buckets, last parameter first, as backward produces gradients.

    The first bucket holds about ``first`` bytes and each later one ``later``; a parameter is never split, so a bucket
    may be larger than its limit by less than one parameter.
    """
    buckets: list[Bucket] = []
    stop = sum(sizes)
    start, high = stop, len(sizes)
    for index in range(len(sizes) - 1, -1, -1):
        start -= sizes[index]
        limit = later if buckets else first
        if (stop - start) * element >= limit or index == 0:
            buckets.append(Bucket(start, stop, range(index, high)))
            stop, high = start, index
    return buckets
