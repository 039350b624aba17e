"""Finding the number of workers, or the bandwidth, at which something changes."""

import math
from collections.abc import Callable

from paceline.studies.predict.prediction import WorkerRange

PAYS = 1.5
PATIENCE = 3
"""After this many doublings in a row that do not pay off, no further one is tried."""


def _powers_of_two(limit: int) -> list[int]:
    return sorted({2**power for power in range(limit.bit_length())} | {limit})


def holds_up_to(holds: Callable[[int], bool], limit: int) -> WorkerRange:
    """The largest number for which it holds, as for the powers of two below it.

    Between two of them it is found by bisection, above a thousand to within a hundredth.
    """
    good = 0
    for rung in _powers_of_two(limit):
        if not holds(rung):
            return WorkerRange(workers=_between(holds, good, rung), searched=limit)
        good = rung
    return WorkerRange(workers=limit, searched=limit)


def pays_up_to(rate: Callable[[int], float], limit: int) -> tuple[WorkerRange, int | None]:

    def pays(workers: int) -> bool:
        return 2 * workers <= limit and rate(2 * workers) >= PAYS * rate(workers)

    rungs = _powers_of_two(max(1, limit // 2))
    paying: list[int] = []
    for place, rung in enumerate(rungs):
        if pays(rung):
            paying.append(rung)
        elif place >= PATIENCE and not set(rungs[place - PATIENCE : place]) & set(paying):
            break
    if not paying:
        return WorkerRange(workers=0, searched=limit), None
    last = paying[-1]
    weak = next((rung for rung in rungs if rung < last and rung not in paying), None)
    if last == rungs[-1]:
        return WorkerRange(workers=limit, searched=limit), weak
    return WorkerRange(workers=_between(pays, last, rungs[rungs.index(last) + 1]), searched=limit), weak


def _between(holds: Callable[[int], bool], good: int, bad: int) -> int:
    while bad - good > max(1, good // 100 if good > 1000 else 1):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good


def least_factor(
    enough: Callable[[float], bool], least: float = 1e-3, most: float = 1e3, *, precision: float = 0.02
) -> float | None:
    """The smallest factor in a range that is enough, to within the precision; None where the largest is not."""
    if not enough(most):
        return None
    low, high = math.log(least), math.log(most)
    while high - low > precision:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(math.exp(middle)) else (middle, high)
    return math.exp(high)
