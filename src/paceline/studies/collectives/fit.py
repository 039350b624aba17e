"""A straight line through measured times: seconds = latency + bytes x seconds a byte."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class AlphaBeta:
    """What a message, or a call, of so many bytes takes."""

    latency: float
    """Seconds at no bytes: alpha."""
    byte_seconds: float
    """Seconds a byte: beta."""

    def seconds(self, size: float) -> float:
        """The time for ``size`` bytes."""
        return self.latency + size * self.byte_seconds


def fit_line(points: Sequence[tuple[float, float]]) -> AlphaBeta:
    """The line through (bytes, seconds) with the least squares of relative errors; neither figure is negative.

    Small messages count as much as large ones: the error is relative because predictions are judged so.
    """
    assert len(points) >= 2
    weights = [1 / seconds**2 for _, seconds in points]
    w = sum(weights)
    wx = sum(weight * size for weight, (size, _) in zip(weights, points, strict=True))
    wxx = sum(weight * size * size for weight, (size, _) in zip(weights, points, strict=True))
    wy = sum(weight * seconds for weight, (_, seconds) in zip(weights, points, strict=True))
    wxy = sum(weight * size * seconds for weight, (size, seconds) in zip(weights, points, strict=True))
    slope = (w * wxy - wx * wy) / (w * wxx - wx * wx)
    latency = (wy - slope * wx) / w
    if latency < 0:
        return AlphaBeta(latency=0.0, byte_seconds=wxy / wxx)
    if slope <= 0:
        return AlphaBeta(latency=wy / w, byte_seconds=0.0)
    return AlphaBeta(latency=latency, byte_seconds=slope)
