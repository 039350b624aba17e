"""A device that was measured: its times are learned from those of many operators that ran on it.

Curves are Gaussian-process regressions with a linear trend, over an operator's sizes as logarithms; what they learn is
how many times as long as at best a call takes.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import ceil, exp, hypot, log, log2, prod
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.clusters.profile import AGAIN, MeasuredNotNegative, MeasuredPositive
from paceline.costs.trace import operator as ops
from paceline.costs.trace.operator import PHASES, Convolution, Operator, OperatorKind, Phase, kind_of
from paceline.costs.trace.trace import Trace
from paceline.errors import UsageError

CALL = 5e-6
"""Seconds of a call that does next to nothing; keeps the logarithm of a tiny operator's time in range."""
WIDE = 8
"""Channels that kernels treat together, as are four times as many; fewer are padded."""
CACHED = (18.0, 30.0)
"""Powers of two: a step that moves fewer bytes leaves all in some cache, one that moves more leaves nothing."""


@dataclass(frozen=True, kw_only=True)
class DevicePeaks:
    flops: MeasuredPositive
    bandwidth: MeasuredPositive


def curve_name(operator: Operator) -> str:
    """Which curve the time of an operator follows: its name, and which convolution where kernels are others."""
    shape = operator.shape
    if not isinstance(shape, Convolution):
        return f"{operator.name} unrolled" if operator.unrolled else operator.name
    if shape.transposed:
        return f"{operator.name} transposed"
    if shape.dimensions == 3:
        return f"{operator.name} of volumes"
    return f"{operator.name} channels last" if shape.channels_last else operator.name


def bytes_moved(operators: Iterable[Operator]) -> float:
    return float(sum(operator.read + operator.written for operator in operators))


def features(operator: Operator, moved: float) -> list[float]:
    """Sizes as powers of two, and flags; of the same length for all operators of a kind.

    ``moved`` are the bytes that the whole step moves: in a small step, caches still hold what an operator needs.
    """
    flags: list[float] = []
    match operator.shape:
        case Convolution() as shape:
            sizes, flags = _convolution(shape)
        case ops.Product() as shape:
            sizes = [shape.batch, shape.m, shape.n, shape.k]
        case ops.Window() as shape:
            sizes = [shape.batch * shape.channels, prod(shape.out), prod(shape.size), prod(shape.kernel)]
        case ops.Attention() as shape:
            sizes = [shape.batch * shape.heads, shape.queries, shape.keys, shape.width]
            flags = [2.0 * shape.causal]
        case ops.Norm() as shape:
            sizes = [operator.elements, shape.places, shape.channels, shape.groups]
            flags = [4.0 * operator.scattered]
        case ops.Recurrence() as shape:
            sizes = [shape.batch, shape.length, shape.inputs, shape.hidden]
        case _:
            own, elements = operator.read + operator.written, max(operator.elements, 1)
            # The third is what is moved beyond one reading and one writing.
            sizes, flags = [elements, own / elements, own - 8 * elements], [4.0 * operator.scattered]
    logs = [log2(max(size, 1)) for size in (moved, *sizes)]
    return [min(CACHED[1], max(CACHED[0], logs[0])), *logs[1:], *flags]


def _convolution(shape: Convolution) -> tuple[list[float], list[float]]:
    ins, outs = shape.inputs / shape.groups, shape.outputs / shape.groups
    area = prod(shape.kernel)
    sizes = [shape.batch, ins, outs, shape.groups, prod(shape.out), shape.out[1], area, shape.kernel[1]]
    return [*sizes, max(shape.stride)], [
        -log2(_inside(shape)),
        *(log2(ceil(size / wide) * wide / size) for size in (ins, outs) for wide in (WIDE, 4 * WIDE)),
        3.0 * (area == 1 and prod(shape.stride) == 1),
        3.0 * (shape.groups > 1 and ins == 1),
        2.0 * (shape.groups == 1 and ins <= 3),
        2.0 * shape.data,
        2.0 * (shape.batch == 1),
    ]


_SCALES: Mapping[OperatorKind, list[float]] = {
    "convolution": [6.0, 9.0, 9.0, 4.5, 6.0, 4.5, 2.25, 9.0, 3.0, 1.5, 1.5, 3.0, 1.5, 3.0, *[4.5] * 5],
    "product": [5.0, 4.0, 4.0, 4.0],
    "pool": [5.0, 4.0, 4.0, 2.0],
    "attention": [4.0, 4.0, 4.0, 3.0, 4.0],
    "norm": [4.0, 3.0, 4.0, 4.0, 3.0],
    "recurrence": [4.0, 4.0, 4.0, 4.0],
}


def scales(kind: OperatorKind) -> list[float]:
    """How far two operators may lie apart in each feature and still say something about each other."""
    return [6.0, *_SCALES.get(kind, [4.0, 4.0, 8.0, 3.0])]


def at_best(operator: Operator, peaks: DevicePeaks) -> float:
    """Seconds of computing, then of moving, then of the call, one after the other: a smooth roofline."""
    flops, moved = operator.flops, float(operator.read + operator.written)
    if isinstance(operator.shape, Convolution):
        flops *= _inside(operator.shape)
        moved += 2 * weight_bytes(operator.shape)  # reordered for the kernel, which does not stream
    return flops / peaks.flops + moved / peaks.bandwidth + CALL


def logarithm(operator: Operator, seconds: float, limits: DevicePeaks) -> float:
    return log(seconds / at_best(operator, limits))


def weight_bytes(shape: Convolution) -> float:
    return 4.0 * shape.inputs * shape.outputs // shape.groups * prod(shape.kernel)


def _inside(shape: Convolution) -> float:
    """The part of a convolution's operations that fall on the image; those on its padding are skipped."""
    if shape.dimensions == 3:
        return 1.0
    sizes, outs = (shape.out, shape.size) if shape.transposed else (shape.size, shape.out)
    part = 1.0
    for size, out, kernel, stride, padding in zip(
        sizes, outs, shape.kernel, shape.stride, shape.padding, strict=True
    ):
        if padding:  # dilation is left aside
            starts = (place * stride - padding for place in range(out))
            taps = sum(max(0, min(start + kernel, size) - max(start, 0)) for start in starts)
            part *= max(taps, 1) / (out * kernel)
    return part


FloatArray = NDArray[np.float64]
Finite = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]
FourParts = Annotated[tuple[MeasuredNotNegative, ...], msgspec.Meta(min_length=4, max_length=4)]

LEVEL = 5.0
"""Prior standard deviation of the trend's level, in the unit of the values; wide."""
SLOPE = 0.15
"""Prior standard deviation of the trend's slopes; narrow, so that few points do not tilt it."""
CERTAIN = np.ones(1)
STRETCHES = (0.7, 1.0, 1.6)
VARIANCES = (0.1, 0.3)
NOISES = (0.003, 0.01, 0.03, 0.1)


@dataclass(frozen=True, eq=False)
class FittedCurve:
    """The curve; outside of the points it stays as it is at their edge."""

    points: FloatArray
    weights: FloatArray
    scales: FloatArray
    variance: MeasuredPositive

    def __post_init__(self) -> None:
        if not self.points.size or self.points.shape != (len(self.weights), len(self.scales)):
            raise ValueError("its points, weights and scales do not fit together")
        numbers = (self.points, self.weights, self.scales)
        if not all(np.isfinite(part).all() for part in numbers) or self.scales.min() <= 0:
            raise ValueError("it holds numbers that are not finite or not positive")

    def __call__(self, where: Sequence[Sequence[float]]) -> FloatArray:
        low, high = self.points.min(axis=0), self.points.max(axis=0)
        places = np.clip(np.asarray(where, dtype=np.float64), low, high)
        result: FloatArray = _covariance(places, self.points, self.scales, self.variance) @ self.weights
        return result


@dataclass(frozen=True, kw_only=True)
class Smoothness:
    stretch: float = 1.0
    variance: float = 0.3
    noise: float = 0.03


def fit_curve(
    points: FloatArray,
    values: FloatArray,
    scales: FloatArray,
    choice: Smoothness,
    doubts: FloatArray = CERTAIN,
) -> tuple[FittedCurve, FloatArray]:
    """The curve, and by how much each value is missed by the curve through all others.

    ``doubts`` say how many times as noisy as others each value is, as a variance.
    """
    # Rounded as they are in a profile, so that both predict the same.
    points, reach = np.round(points, 2), np.round(scales * choice.stretch, 3)
    noise = np.eye(len(points)) * choice.noise * doubts
    inverse = np.linalg.inv(_covariance(points, points, reach, choice.variance) + noise)
    weights = inverse @ values
    return FittedCurve(points, np.round(weights, 9), reach, choice.variance), weights / np.diag(inverse)


def best_smoothness(
    points: FloatArray, values: FloatArray, scales: FloatArray, doubts: FloatArray = CERTAIN
) -> Smoothness:
    """Of a few, the one whose curve misses the left-out value least; one that is in doubt counts less."""

    def missed(choice: Smoothness) -> float:
        return float((np.abs(fit_curve(points, values, scales, choice, doubts)[1]) / np.sqrt(doubts)).mean())

    choices = product(STRETCHES, VARIANCES, NOISES)
    return min((Smoothness(stretch=s, variance=v, noise=n) for s, v, n in choices), key=missed)


def _covariance(left: FloatArray, right: FloatArray, scales: FloatArray, variance: float) -> FloatArray:
    """Matern's with smoothness 5/2, and that of the trend."""
    a, b = left / scales, right / scales
    squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None] - 2 * a @ b.T
    apart = np.sqrt(5 * np.maximum(squares, 0))
    local = variance * (1 + apart + apart**2 / 3) * np.exp(-apart)
    result: FloatArray = local + LEVEL**2 + SLOPE**2 * left @ right.T
    return result


SIZES = (2**18, 2**22, 2**25)
"""Bytes that part pieces of memory by what an allocator does with them: from the last on, they are given back at once,
so that each result is made in memory never touched."""
PAGE = 4096


@dataclass(frozen=True, kw_only=True)
class Overhead:
    ratio: MeasuredPositive = 1.0
    call: Finite = 0.0
    """Seconds a call that the operators' own times do not show: Python, modules, autograd."""
    unrolled: Finite = 0.0


@dataclass(frozen=True, kw_only=True)
class FreshMemory:
    page: MeasuredNotNegative = 0.0
    shares: FourParts = (0.0, 0.0, 0.0, 1.0)
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
    peak: MeasuredPositive
    curves: Mapping[str, FittedCurve]
    """By operator: the logarithm of (measured / at best)."""
    kinds: Mapping[OperatorKind, FittedCurve]
    overheads: Mapping[Phase, Overhead]
    fresh: FreshMemory = FreshMemory()
    spread: MeasuredNotNegative
    doubts: Mapping[str, MeasuredNotNegative] = field(default_factory=lambda: {"": 0.0})
    """Standard deviation of the logarithm of (measured / predicted) of an operator that is priced by its kind, by kind;
    and under "" that of one whose kind was never measured either, which is priced at best."""
    unmeasured: Mapping[str, float] = field(default_factory=dict)
    """Within a step: the operators that no curve knows, and their share of the step's time."""
    moved: float = 2.0**27
    _known: dict[tuple[object, ...], float] = field(default_factory=dict)

    def within(self, trace: Trace) -> "FittedDevice":
        """The device in the midst of this step: its size decides what caches hold, its operators how sure all is."""
        there = replace(self, moved=bytes_moved(trace.operators), _known={})
        if not self.curves:
            return there
        total, unmeasured, kinds = 0.0, dict[str, float](), dict[str, OperatorKind]()
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
        curves, name = self.curves, operator.name
        curve = curves.get(curve_name(operator)) or curves.get(name) or self.kinds.get(operator.kind)
        factor = exp(float(curve([features(operator, self.moved)])[0])) if curve else 1.0
        return max(at_best(operator, self.limits) * factor, operator.flops / self.peak)

    def to_json(self) -> dict[str, Any]:
        kept = {
            key: value for key, value in vars(self).items() if key not in ("unmeasured", "moved", "_known")
        }
        document: dict[str, Any] = msgspec.to_builtins(kept, enc_hook=lambda numbers: numbers.tolist())
        return document


def read_fitted(document: Mapping[str, Any], where: str) -> FittedDevice:
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
