"""A smooth curve through noisy points in several dimensions: Gaussian-process regression with a linear trend."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LEVEL = 5.0
"""Prior standard deviation of the trend's level, in the unit of the values; wide."""
SLOPE = 0.15
"""Prior standard deviation of the trend's slopes; narrow, so that few points do not tilt it."""
STRETCHES = (0.7, 1.0, 1.6)
VARIANCES = (0.1, 0.3)
NOISES = (0.003, 0.01, 0.03, 0.1)


@dataclass(frozen=True, eq=False)
class Curve:
    """The curve; outside of the points it stays as it is at their edge."""

    points: Array
    """One a row."""
    weights: Array
    """One a point."""
    scales: Array
    """How far a point reaches in each dimension."""
    variance: float

    def __call__(self, where: Sequence[Sequence[float]]) -> Array:
        """The values at some places."""
        low, high = self.points.min(axis=0), self.points.max(axis=0)
        places = np.clip(np.asarray(where, dtype=np.float64), low, high)
        result: Array = _covariance(places, self.points, self.scales, self.variance) @ self.weights
        return result

    def to_json(self) -> dict[str, Any]:
        """A plain document."""
        return {
            "points": [[_short(value) for value in point] for point in self.points],
            "weights": [float(f"{weight:.9g}") for weight in self.weights],
            "scales": [round(float(scale), 3) for scale in self.scales],
            "variance": self.variance,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Curve":
        """The inverse of ``to_json``; ValueError, KeyError or TypeError where it cannot be."""
        points, weights, scales = (
            np.asarray(document[key], dtype=np.float64) for key in ("points", "weights", "scales")
        )
        if points.ndim != 2 or not len(points) or points.shape != (len(weights), len(scales)):
            raise ValueError("its points, weights and scales do not fit together")
        curve = cls(points, weights, scales, float(document["variance"]))
        numbers = (points, weights, scales, np.asarray(curve.variance))
        if not all(np.isfinite(part).all() for part in numbers) or scales.min() <= 0 or curve.variance <= 0:
            raise ValueError("it holds numbers that are not finite or not positive")
        return curve


@dataclass(frozen=True, kw_only=True)
class Choice:
    """How smooth a curve is taken to be."""

    stretch: float = 1.0
    variance: float = 0.3
    noise: float = 0.03


def fit_curve(
    points: Array, values: Array, scales: Array, choice: Choice, doubts: Array | None = None
) -> tuple[Curve, Array]:
    """The curve, and by how much each value is missed by the curve through all others.

    ``doubts`` say how many times as noisy as others each value is, as a variance.
    """
    # As they are written to a file and read again, so that both predict the same.
    points = np.round(points, 2)
    reach = np.round(scales * choice.stretch, 3)
    covariance = _covariance(points, points, reach, choice.variance)
    noise = choice.noise * (np.ones(len(points)) if doubts is None else doubts)
    inverse = np.linalg.inv(covariance + np.diag(noise))
    weights = inverse @ values
    return Curve(points, weights, reach, choice.variance), weights / np.diag(inverse)


def best_choice(points: Array, values: Array, scales: Array, doubts: Array | None = None) -> Choice:
    """Of a few, the one whose curve misses the left-out value least; one that is in doubt counts less."""
    choices = [
        Choice(stretch=stretch, variance=variance, noise=noise)
        for stretch in STRETCHES
        for variance in VARIANCES
        for noise in NOISES
    ]
    trust = np.ones(len(points)) if doubts is None else 1 / np.sqrt(doubts)

    def missed(choice: Choice) -> float:
        return float((trust * np.abs(fit_curve(points, values, scales, choice, doubts)[1])).mean())

    return min(choices, key=missed)


def _short(value: float) -> float | int:
    rounded = round(float(value), 2)
    return int(rounded) if rounded.is_integer() else rounded


def _covariance(left: Array, right: Array, scales: Array, variance: float) -> Array:
    """Matern's with smoothness 5/2, and that of the trend."""
    a, b = left / scales, right / scales
    squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None] - 2 * a @ b.T
    apart = np.sqrt(5 * np.maximum(squares, 0))
    local = variance * (1 + apart + apart**2 / 3) * np.exp(-apart)
    result: Array = local + LEVEL**2 + SLOPE**2 * left @ right.T
    return result
