"""How sure a step time is: the errors of computing and of the links, carried through the step."""

import math
from collections.abc import Callable
from dataclasses import replace

from paceline.studies.predict.base import Step
from paceline.studies.predict.model import Case

NORMAL = 1.2815515655446004
"""Four fifths of a normal distribution lie within so many standard deviations."""


def interval(
    case: Case, seconds: Callable[[Case], float], compute_spread: float, links_spread: float
) -> tuple[float, float]:
    """The step time below which one in ten lies, and the one above which one in ten does.

    Two independent errors, each a factor with a lognormal distribution: one on all of computing, one on all
    transfers. The step is worked out with each at its own tenths, so what hides behind backward counts as it
    really does, and the two deviations are added as squares. The interval always holds the step itself.
    """
    middle = seconds(case)
    if middle <= 0:
        return middle, middle
    edges = []
    for side in (-NORMAL, NORMAL):
        compute = seconds(replace(case, compute=case.compute * math.exp(side * compute_spread)))
        links = seconds(replace(case, links=case.links * math.exp(side * links_spread)))
        away = math.hypot(*(_logarithm(moved, middle, side) for moved in (compute, links)))
        edges.append(middle * math.exp(math.copysign(away, side)))
    return edges[0], edges[1]


def interval_by_parts(step: Step, compute_spread: float, links_spread: float) -> tuple[float, float]:
    """The same from the step's parts alone: computing moves its part of the step, the links theirs and waiting."""
    compute = step.data + step.forward + step.backward + step.apply
    links = step.communicate + step.wait
    edges = []
    for side in (-NORMAL, NORMAL):
        parts = ((compute, compute_spread), (links, links_spread))
        moves = (part * (math.exp(side * spread) - 1) / step.step for part, spread in parts)
        away = math.hypot(*(math.log1p(move) for move in moves))
        edges.append(step.step * math.exp(math.copysign(away, side)))
    return edges[0], edges[1]


def _logarithm(moved: float, middle: float, side: float) -> float:
    """How far a step moved, in logarithms; against its side is no move."""
    return max(0.0, math.copysign(1.0, side) * math.log(moved / middle))
