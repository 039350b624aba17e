"""How sure a step time is: the two errors of a prediction, and the interval that follows from them."""

import math
from collections.abc import Callable, Mapping

from paceline.costs.trace.operator import is_known
from paceline.records.spans import StepBreakdown

NORMAL = 1.2815515655446004
"""80 % of a normal distribution lie within this many standard deviations."""
FOREIGN = 20.0
"""An operator of an unknown kind that was never measured may take this many times as long as guessed: the guess is one
pass over its memory, and a series, a transform or a decomposition takes many."""


def guessed_share(unmeasured: Mapping[str, float]) -> float:
    return sum(share for name, share in unmeasured.items() if not is_known(name.partition(" ")[0]))


def longest(unmeasured: Mapping[str, float]) -> float:
    """How many times as long computing takes if all such operators take as long as they may."""
    return 1 + (FOREIGN - 1) * guessed_share(unmeasured)


def interval(
    middle: float,
    seconds: Callable[[float, float], float],
    compute_spread: float,
    links_spread: float,
    longer: float = 1.0,
) -> tuple[float, float]:
    """The 10th and the 90th percentile of a step of ``middle`` seconds.

    Two independent errors, each a factor with a lognormal distribution: one on all of computing, one on all
    transfers. The step is worked out with each at its own percentiles (``seconds`` of both factors), so what hides
    behind backward counts as it really does, and the two deviations are added as squares. The interval always holds
    the step itself. Upwards, computing may also take ``longer`` times as long by what was guessed.
    """
    if middle <= 0:
        return middle, middle
    edges = []
    for sign in (-1.0, 1.0):
        compute = math.exp(sign * NORMAL * compute_spread) + (longer - 1 if sign > 0 else 0.0)
        links = math.exp(sign * NORMAL * links_spread)
        moves = [math.log(moved / middle) for moved in (seconds(compute, 1.0), seconds(1.0, links))]
        away = math.hypot(*(max(0.0, sign * move) for move in moves))  # against its side is no move
        edges.append(middle * math.exp(sign * away))
    return edges[0], edges[1]


def seconds_by_parts(parts: StepBreakdown, compute: float, links: float) -> float:
    """The step with both factors, from its breakdown alone: what hides behind backward stays hidden."""
    return parts.total + (compute - 1) * parts.compute + (links - 1) * (parts.communicate + parts.wait)
