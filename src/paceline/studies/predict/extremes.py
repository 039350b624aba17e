"""What waiting for the slowest costs: the expected maximum of many workers' times, where each varies by itself.

A worker's step varies by a lognormal factor. The time between two exchanges is a sum of a few such; it is taken to be
lognormal itself, with the same mean and variance (Fenton, 1960), which is exact for a single step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, expm1, log, log1p, sqrt

import torch

POINTS = 4096
"""Of the integral: enough for six digits."""

LEAST = 1e-9
"""The smallest spread: less changes no digit of an answer, and is lost where logarithms are subtracted."""


@dataclass(frozen=True, slots=True)
class Lognormal:
    """A time whose logarithm is normal."""

    mean_log: float
    spread: float

    def quantiles(self, parts: torch.Tensor) -> torch.Tensor:
        return torch.exp(self.mean_log + self.spread * torch.special.ndtri(parts))


def mean_factor(jitter: float) -> float:
    """The mean of the factor by which a step varies; its median is 1."""
    return exp(jitter**2 / 2)


def sum_of(times: Sequence[float], jitter: float) -> Lognormal:
    """The sum of times that vary independently, each by a factor of this jitter."""
    total = sum(times)
    part = sum(time**2 for time in times) / total**2
    variance = log1p(part * expm1(jitter**2))
    return Lognormal(log(total) + jitter**2 / 2 - variance / 2, max(LEAST, sqrt(variance)))


def expected_maximum(groups: Sequence[tuple[Lognormal, int]]) -> float:
    """The mean of the largest of independent times, given as distributions and how many times have each.

    The largest is below x where all are: the product of their distributions. Its mean is integrated in the logarithm,
    where the density is smooth.
    """
    spread = max(time.spread for time, _ in groups)
    middle = max(time.mean_log for time, _ in groups)
    at = torch.linspace(middle - 9 * spread, middle + 12 * spread, POINTS, dtype=torch.float64)
    below = torch.zeros_like(at)
    for time, many in groups:
        below += many * torch.special.log_ndtr((at - time.mean_log) / time.spread)
    chances = torch.exp(below).diff()
    centres = torch.exp((at[1:] + at[:-1]) / 2)
    return float((chances * centres).sum())
