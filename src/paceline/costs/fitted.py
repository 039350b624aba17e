"""A device that was measured: its times are learned from those of many operators that ran on it.

Curves are Gaussian-process regressions with a linear trend.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import exp, hypot, isfinite, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.costs.features import (
    DevicePeaks,
    at_best,
    bytes_moved,
    curve_name,
    features,
    scales,
    weight_bytes,
)
from paceline.costs.trace.kinds import kind_of
from paceline.costs.trace.operator import Convolution, Kind, Operator, Phase
from paceline.costs.trace.trace import Trace
from paceline.errors import UsageError

Array = NDArray[np.float64]

LEVEL = 5.0
"""Prior standard deviation of the trend's level, in the unit of the values; wide."""
SLOPE = 0.15
"""Prior standard deviation of the trend's slopes; narrow, so that few points do not tilt it."""
STRETCHES = (0.7, 1.0, 1.6)
VARIANCES = (0.1, 0.3)
NOISES = (0.003, 0.01, 0.03, 0.1)


@dataclass(frozen=True, eq=False)
class FittedCurve:
    """The curve; outside of the points it stays as it is at their edge."""

    points: Array
    """One a row."""
    weights: Array
    """One a point."""
    scales: Array
    """How far a point reaches in each dimension."""
    variance: float

    def __call__(self, where: Sequence[Sequence[float]]) -> Array:
        low, high = self.points.min(axis=0), self.points.max(axis=0)
        places = np.clip(np.asarray(where, dtype=np.float64), low, high)
        result: Array = _covariance(places, self.points, self.scales, self.variance) @ self.weights
        return result

    def to_json(self) -> dict[str, Any]:
        return {
            "points": [[_short(value) for value in point] for point in self.points],
            "weights": [float(f"{weight:.9g}") for weight in self.weights],
            "scales": [round(float(scale), 3) for scale in self.scales],
            "variance": self.variance,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "FittedCurve":
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
class Smoothness:
    """How smooth a curve is taken to be."""

    stretch: float = 1.0
    variance: float = 0.3
    noise: float = 0.03


def fit_curve(
    points: Array, values: Array, scales: Array, choice: Smoothness, doubts: Array | None = None
) -> tuple[FittedCurve, Array]:
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
    return FittedCurve(points, weights, reach, choice.variance), weights / np.diag(inverse)


def best_smoothness(points: Array, values: Array, scales: Array, doubts: Array | None = None) -> Smoothness:
    """Of a few, the one whose curve misses the left-out value least; one that is in doubt counts less."""
    choices = [
        Smoothness(stretch=stretch, variance=variance, noise=noise)
        for stretch in STRETCHES
        for variance in VARIANCES
        for noise in NOISES
    ]
    trust = np.ones(len(points)) if doubts is None else 1 / np.sqrt(doubts)

    def missed(choice: Smoothness) -> float:
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


SIZES = (2**18, 2**22, 2**25)
"""Bytes that part pieces of memory by what an allocator does with them: from the last on, they are given back at once,
so that each result is made in memory never touched."""
PAGE = 4096


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """From the sum of a phase's operators to the phase as it runs."""

    ratio: float = 1.0
    call: float = 0.0
    """Seconds a call that the operators' own times do not show: Python, modules, autograd."""
    unrolled: float = 0.0
    """The same of a call by a recurrent layer, in addition."""


@dataclass(frozen=True, kw_only=True)
class FreshMemory:
    """Memory that is touched for the first time."""

    page: float = 0.0
    """Seconds a page."""
    shares: tuple[float, ...] = (0.0, 0.0, 0.0, 1.0)
    """How much of a result lies in such memory, 0 to 1: of those below each of ``SIZES``, and of the others."""

    def seconds(self, operator: Operator) -> float:
        pieces = results(operator)
        return self.page * sum(self.shares[bisect_right(SIZES, size)] * size for size in pieces) / PAGE


def results(operator: Operator) -> list[float]:
    """Bytes of the pieces of memory that a call asks for; one that works in place asks for none.

    A convolution keeps its weights, which may be large, in another order as well, and their gradient too; one of
    single pixels is a matrix product, which does not.
    """
    if operator.name.endswith("_"):
        return []
    shape = operator.shape
    if not isinstance(shape, Convolution) or shape.kernel_height * shape.kernel_width == 1:
        return [operator.written]
    weights = weight_bytes(shape)
    copies = (shape.data + 2 * shape.filter) if operator.name.endswith("_backward") else 1
    return [max(0.0, operator.written - weights * (copies > 1)), *[weights] * copies]


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedDevice:
    """Seconds = what the device could do at best, times a learned factor of the operator's sizes, and overheads."""

    limits: DevicePeaks
    """What curves are relative to."""
    peak: float
    """Floating-point operations a second that nothing exceeds."""
    curves: Mapping[str, FittedCurve]
    """By operator: the logarithm of (measured / at best)."""
    kinds: Mapping[Kind, FittedCurve]
    """For operators that were not measured: by what they do."""
    overheads: Mapping[Phase, Overhead]
    fresh: FreshMemory = FreshMemory()
    spread: float
    doubts: Mapping[str, float] = field(default_factory=lambda: {"": 0.0})
    """Standard deviation of the logarithm of (measured / predicted) of an operator that is priced by its kind, by kind;
    and under "" that of one whose kind was never measured either, which is priced at best."""
    unmeasured: Mapping[str, float] = field(default_factory=dict)
    """In the midst of a step: the operators that no curve knows, and their share of the step's time."""
    moved: float = 2.0**27
    """Bytes that the step moves in which an operator runs."""
    _known: dict[tuple[object, ...], float] = field(default_factory=dict)

    def within(self, trace: Trace) -> "FittedDevice":
        """The device in the midst of this step: its size decides what caches hold, its operators how sure all is.

        Calls of one operator that was never measured are all off alike, and such operators independently of each other
        and of the rest of the step.
        """
        operators = [*trace.forward, *trace.backward, *trace.apply]
        there = replace(self, moved=bytes_moved(operators), _known={})
        if not self.curves:
            return there
        total, unmeasured, kinds = 0.0, dict[str, float](), dict[str, Kind]()
        for operator in operators:
            seconds, name = there.seconds(operator), curve_name(operator)
            total += seconds
            if name not in self.curves:
                unmeasured[name], kinds[name] = unmeasured.get(name, 0.0) + seconds, operator.kind
        shares = {name: seconds / total for name, seconds in unmeasured.items()}
        off = (share * self._doubt(kinds[name]) for name, share in shares.items())
        return replace(there, spread=hypot(self.spread, *off), unmeasured=shares)

    def _doubt(self, kind: Kind) -> float:
        return self.doubts[kind if kind in self.kinds else ""]

    def seconds(self, operator: Operator) -> float:
        key = (
            operator.name,
            operator.phase,
            operator.read,
            operator.written,
            operator.elements,
            operator.shape,
            operator.scattered,
            operator.unrolled,
        )
        if key not in self._known:
            self._known[key] = self._seconds(operator)
        return self._known[key]

    def warm(self, operator: Operator) -> float:
        """The time of a call alone, in memory that is in use already."""
        best = at_best(operator, self.limits)
        curve = self.curves.get(curve_name(operator)) or self._nearest(operator)
        factor = exp(float(curve([features(operator, self.moved)])[0])) if curve else 1.0
        return max(best * factor, operator.flops / self.peak)

    def _nearest(self, operator: Operator) -> FittedCurve | None:
        return self.curves.get(operator.name) or self.kinds.get(operator.kind)

    def _seconds(self, operator: Operator) -> float:
        overhead = self.overheads[operator.phase]
        seconds = overhead.ratio * (self.warm(operator) + self.fresh.seconds(operator)) + overhead.call
        seconds += overhead.unrolled * operator.unrolled
        return max(seconds, operator.flops / self.peak, 1e-7)

    def to_json(self) -> dict[str, Any]:
        return {
            "limits": self.limits._asdict(),
            "peak": self.peak,
            "curves": {name: curve.to_json() for name, curve in self.curves.items()},
            "kinds": {kind: curve.to_json() for kind, curve in self.kinds.items()},
            "overheads": {phase: asdict(one) for phase, one in self.overheads.items()},
            "fresh": {"page": self.fresh.page, "shares": list(self.fresh.shares)},
            "spread": self.spread,
            "doubts": dict(self.doubts),
        }


def read_fitted(document: Mapping[str, Any], where: str) -> FittedDevice:
    """The device of a profile; a UsageError names the file, ``where``, and what is wrong with it."""
    try:
        device = FittedDevice(
            limits=DevicePeaks(**document["limits"]),
            peak=float(document["peak"]),
            curves={name: FittedCurve.from_json(curve) for name, curve in document["curves"].items()},
            kinds={kind: FittedCurve.from_json(curve) for kind, curve in document["kinds"].items()},
            overheads={phase: Overhead(**one) for phase, one in document["overheads"].items()},
            fresh=FreshMemory(page=document["fresh"]["page"], shares=tuple(document["fresh"]["shares"])),
            spread=float(document["spread"]),
            doubts={kind: float(doubt) for kind, doubt in document["doubts"].items()},
        )
        _check(device)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise UsageError(
            f"the device in the profile {where} cannot be used: {what}; make it again with 'paceline calibrate'"
        ) from error
    return device


def _check(device: FittedDevice) -> None:
    """Refuse what no measurement gives."""
    for name, curve in device.curves.items():
        _check_width(name, kind_of(name.partition(" ")[0]), curve)
    for kind, curve in device.kinds.items():
        _check_width(kind, kind, curve)
    if set(device.overheads) != {"forward", "backward", "apply"}:
        raise ValueError("its overheads must be those of forward, backward and apply")
    positive = [*device.limits, device.peak, *(one.ratio for one in device.overheads.values())]
    if not {"", *device.kinds} <= device.doubts.keys():
        raise ValueError("its doubts must be of all of its kinds")
    if len(device.fresh.shares) != len(SIZES) + 1:
        raise ValueError(f"its shares of fresh memory must be {len(SIZES) + 1}")
    others = [device.spread, device.fresh.page, *device.fresh.shares, *device.doubts.values()]
    others += [abs(one.call) + abs(one.unrolled) for one in device.overheads.values()]
    if not all(isfinite(value) and value > 0 for value in positive):
        raise ValueError("its peak, bandwidth and ratios must be finite and more than 0")
    if not all(isfinite(value) and value >= 0 for value in others):
        raise ValueError("its spread and overheads must be finite and not negative")


def _check_width(name: str, kind: Kind, curve: FittedCurve) -> None:
    """A curve over other features than ours is another paceline's."""
    found, needed = len(curve.scales), len(scales(kind))
    if found != needed:
        raise ValueError(f"its curve of {name!r} has {found} dimensions and needs {needed}")


def logarithm(operator: Operator, seconds: float, limits: DevicePeaks) -> float:
    """What a curve learns from a measured call."""
    return log(seconds / at_best(operator, limits))
