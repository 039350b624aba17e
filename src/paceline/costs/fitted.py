"""A device that was measured: its times are learned from those of many operators that ran on it.

Curves are Gaussian-process regressions with a linear trend.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import exp, hypot, prod
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.clusters.profile import AGAIN, NotNegative, Positive
from paceline.costs.features import (
    DevicePeaks,
    at_best,
    bytes_moved,
    curve_name,
    features,
    scales,
    weight_bytes,
)
from paceline.costs.trace.operator import PHASES, Convolution, Kind, Operator, Phase, kind_of
from paceline.costs.trace.trace import Trace
from paceline.errors import UsageError

Array = NDArray[np.float64]
Finite = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]

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
    variance: Positive

    def __post_init__(self) -> None:
        if not self.points.size or self.points.shape != (len(self.weights), len(self.scales)):
            raise ValueError("its points, weights and scales do not fit together")
        numbers = (self.points, self.weights, self.scales)
        if not all(np.isfinite(part).all() for part in numbers) or self.scales.min() <= 0:
            raise ValueError("it holds numbers that are not finite or not positive")

    def __call__(self, where: Sequence[Sequence[float]]) -> Array:
        low, high = self.points.min(axis=0), self.points.max(axis=0)
        places = np.clip(np.asarray(where, dtype=np.float64), low, high)
        result: Array = _covariance(places, self.points, self.scales, self.variance) @ self.weights
        return result


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
    # Rounded as they are in a profile, so that both predict the same.
    points, reach = np.round(points, 2), np.round(scales * choice.stretch, 3)
    covariance = _covariance(points, points, reach, choice.variance)
    noise = choice.noise * (np.ones(len(points)) if doubts is None else doubts)
    inverse = np.linalg.inv(covariance + np.diag(noise))
    weights = inverse @ values
    return FittedCurve(points, np.round(weights, 9), reach, choice.variance), weights / np.diag(inverse)


def best_smoothness(points: Array, values: Array, scales: Array, doubts: Array | None = None) -> Smoothness:
    """Of a few, the one whose curve misses the left-out value least; one that is in doubt counts less."""
    trust = np.ones(len(points)) if doubts is None else 1 / np.sqrt(doubts)

    def missed(choice: Smoothness) -> float:
        return float((trust * np.abs(fit_curve(points, values, scales, choice, doubts)[1])).mean())

    choices = product(STRETCHES, VARIANCES, NOISES)
    return min((Smoothness(stretch=s, variance=v, noise=n) for s, v, n in choices), key=missed)


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

    ratio: Positive = 1.0
    call: Finite = 0.0
    """Seconds a call that the operators' own times do not show: Python, modules, autograd."""
    unrolled: Finite = 0.0
    """The same of a call by a recurrent layer, in addition."""


@dataclass(frozen=True, kw_only=True)
class FreshMemory:
    """Memory that is touched for the first time."""

    page: NotNegative = 0.0
    """Seconds a page."""
    shares: Annotated[tuple[NotNegative, ...], msgspec.Meta(min_length=4, max_length=4)] = (
        0.0,
        0.0,
        0.0,
        1.0,
    )
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
    if not isinstance(shape, Convolution) or prod(shape.kernel) == 1:
        return [operator.written]
    weights = weight_bytes(shape)
    copies = (shape.data + 2 * shape.filter) if operator.name.endswith("_backward") else 1
    return [max(0.0, operator.written - weights * (copies > 1)), *[weights] * copies]


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedDevice:
    """Seconds = what the device could do at best, times a learned factor of the operator's sizes, and overheads."""

    limits: DevicePeaks
    """What curves are relative to."""
    peak: Positive
    """Floating-point operations a second that nothing exceeds."""
    curves: Mapping[str, FittedCurve]
    """By operator: the logarithm of (measured / at best)."""
    kinds: Mapping[Kind, FittedCurve]
    """For operators that were not measured: by what they do."""
    overheads: Mapping[Phase, Overhead]
    fresh: FreshMemory = FreshMemory()
    spread: NotNegative
    doubts: Mapping[str, NotNegative] = field(default_factory=lambda: {"": 0.0})
    """Standard deviation of the logarithm of (measured / predicted) of an operator that is priced by its kind, by kind;
    and under "" that of one whose kind was never measured either, which is priced at best."""
    unmeasured: Mapping[str, float] = field(default_factory=dict)
    """Within a step: the operators that no curve knows, and their share of the step's time."""
    moved: float = 2.0**27
    """Bytes that the step moves in which an operator runs."""
    _known: dict[tuple[object, ...], float] = field(default_factory=dict)

    def within(self, trace: Trace) -> "FittedDevice":
        """The device in the midst of this step: its size decides what caches hold, its operators how sure all is.

        Calls of one operator that was never measured are all off alike, and such operators independently of each other
        and of the rest of the step.
        """
        there = replace(self, moved=bytes_moved(trace.operators), _known={})
        if not self.curves:
            return there
        total, unmeasured, kinds = 0.0, dict[str, float](), dict[str, Kind]()
        for operator in trace.operators:
            seconds, name = there.seconds(operator), curve_name(operator)
            total += seconds
            if name not in self.curves:
                unmeasured[name], kinds[name] = unmeasured.get(name, 0.0) + seconds, operator.kind
        shares = {name: seconds / total for name, seconds in unmeasured.items()}
        doubts = {name: self.doubts[kind if kind in self.kinds else ""] for name, kind in kinds.items()}
        off = (share * doubts[name] for name, share in shares.items())
        return replace(there, spread=hypot(self.spread, *off), unmeasured=shares)

    def seconds(self, operator: Operator) -> float:
        key = (
            *(operator.name, operator.phase, operator.read, operator.written, operator.elements),
            *(operator.shape, operator.scattered, operator.unrolled),
        )
        if key not in self._known:
            overhead = self.overheads[operator.phase]
            seconds = overhead.ratio * (self.warm(operator) + self.fresh.seconds(operator)) + overhead.call
            seconds += overhead.unrolled * operator.unrolled
            self._known[key] = max(seconds, operator.flops / self.peak, 1e-7)
        return self._known[key]

    def warm(self, operator: Operator) -> float:
        """The time of a call alone, in memory that is in use already."""
        curves, name = self.curves, operator.name
        curve = curves.get(curve_name(operator)) or curves.get(name) or self.kinds.get(operator.kind)
        factor = exp(float(curve([features(operator, self.moved)])[0])) if curve else 1.0
        return max(at_best(operator, self.limits) * factor, operator.flops / self.peak)

    def to_json(self) -> dict[str, Any]:
        """Without what belongs to a step."""
        kept = {
            key: value for key, value in vars(self).items() if key not in ("unmeasured", "moved", "_known")
        }
        document: dict[str, Any] = msgspec.to_builtins(kept, enc_hook=lambda numbers: numbers.tolist())
        return document


def read_fitted(document: Mapping[str, Any], where: str) -> FittedDevice:
    """The device of a profile; a UsageError names the file, ``where``, and what is wrong with it."""
    try:
        device = msgspec.convert(
            document, FittedDevice, dec_hook=lambda _, value: np.asarray(value, dtype=np.float64)
        )
        _check(device)
    except (msgspec.ValidationError, ValueError) as error:
        raise UsageError(f"the device in the profile {where} cannot be used: {error}; {AGAIN}") from error
    return device


def _check(device: FittedDevice) -> None:
    """Refuse what no measurement gives; a curve over other features than ours is another paceline's."""
    if set(device.overheads) != set(PHASES):
        raise ValueError("its overheads must be those of forward, backward and apply")
    if not {"", *device.kinds} <= device.doubts.keys():
        raise ValueError("its doubts must be of all of its kinds")
    curves = [(name, kind_of(name.partition(" ")[0]), curve) for name, curve in device.curves.items()]
    for name, kind, curve in (*curves, *((kind, kind, curve) for kind, curve in device.kinds.items())):
        found, needed = len(curve.scales), len(scales(kind))
        if found != needed:
            raise ValueError(f"its curve of {name!r} has {found} dimensions and needs {needed}")
