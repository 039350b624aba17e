"""How sure a step time is: the errors of computing and of the links, carried through the step."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from paceline.costs.trace.kinds import KINDS, kind_of
from paceline.studies.predict.model import Case
from paceline.studies.predict.prediction import PredictedStep
from paceline.studies.predict.setup import Change

NORMAL = 1.2815515655446004
"""80 % of a normal distribution lie within so many standard deviations."""

FOREIGN = 20.0
"""An operator of an unknown kind that was never measured may take so many times as long as guessed: the guess is one
pass over its memory, and a series, a transform or a decomposition takes many."""


def guessed_share(unmeasured: Mapping[str, float]) -> float:
    """The share of computing, as guessed, in operators that have no measured relative."""
    names = {name: name.partition(" ")[0] for name in unmeasured}
    known = {name for name, one in names.items() if one in KINDS or kind_of(one) != "elementwise"}
    return sum(share for name, share in unmeasured.items() if name not in known)


def longest(unmeasured: Mapping[str, float]) -> float:
    """How many times as long computing takes if all such operators take as long as they may."""
    return 1 + (FOREIGN - 1) * guessed_share(unmeasured)


def interval(
    case: Case,
    seconds: Callable[[Case], float],
    compute_spread: float,
    links_spread: float,
    longer: float = 1.0,
) -> tuple[float, float]:
    """The 10th and the 90th percentile of the step time.

    Two independent errors, each a factor with a lognormal distribution: one on all of computing, one on all
    transfers. The step is worked out with each at its own percentiles, so what hides behind backward counts as it
    really does, and the two deviations are added as squares. The interval always holds the step itself. Upwards,
    computing may also take ``longer`` times as long by what was guessed.
    """
    middle = seconds(case)
    if middle <= 0:
        return middle, middle
    edges = []
    for side in (-NORMAL, NORMAL):
        compute = Change(compute=_factor(side, compute_spread, longer))
        links = Change(transfers=math.exp(side * links_spread))
        moved = (seconds(replace(case, change=change)) for change in (compute, links))
        away = math.hypot(*(_logarithm(one, middle, side) for one in moved))
        edges.append(middle * math.exp(math.copysign(away, side)))
    return edges[0], edges[1]


def interval_by_parts(
    step: PredictedStep, compute_spread: float, links_spread: float, longer: float = 1.0
) -> tuple[float, float]:
    """The same from the breakdown alone: computing moves its part of the step, the links theirs and waiting."""
    links = step.breakdown.communicate + step.breakdown.wait
    edges = []
    for side in (-NORMAL, NORMAL):
        parts = ((step.breakdown.compute, compute_spread, longer), (links, links_spread, 1.0))
        moves = (part * (_factor(side, *doubt) - 1) / step.seconds for part, *doubt in parts)
        away = math.hypot(*(math.log1p(move) for move in moves))
        edges.append(step.seconds * math.exp(math.copysign(away, side)))
    return edges[0], edges[1]


def _factor(side: float, spread: float, longer: float) -> float:
    """By how much a part of a step differs at one end of its interval."""
    return math.exp(side * spread) + (longer - 1 if side > 0 else 0.0)


def _logarithm(moved: float, middle: float, side: float) -> float:
    """How far a step moved, in logarithms; against its side is no move."""
    return max(0.0, math.copysign(1.0, side) * math.log(moved / middle))
