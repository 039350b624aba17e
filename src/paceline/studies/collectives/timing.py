"""Timed calls: each begins when all ranks are there, and takes as long as it takes the slowest of them."""

import time
from collections.abc import Callable, Sequence
from statistics import quantiles

from paceline.studies.collectives.room import BenchGroup

MOST = 200
"""Timed calls at most, however short they are."""
LEAST = 3


def timed(room: BenchGroup, work: Callable[[], object], calls: int) -> list[float]:
    """Seconds of each call, by the slowest rank."""
    found = []
    for _ in range(calls):
        room.align()
        begun = time.perf_counter()
        work()
        found.append(time.perf_counter() - begun)
    return room.slowest(found)


def calls_within(budget: float, once: float) -> int:
    """How many calls fit into so many seconds."""
    return max(LEAST, min(MOST, int(budget / max(once, 1e-9))))


def share(calls: int, turn: int, turns: int) -> int:
    """How many of the calls fall into a turn."""
    return calls * (turn + 1) // turns - calls * turn // turns


def quartiles(times: Sequence[float]) -> tuple[float, float]:
    """Between them lies the middle half."""
    if len(times) < 2:
        return times[0], times[0]
    low, _, high = quantiles(times, n=4, method="inclusive")
    return low, high
