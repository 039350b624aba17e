"""What the time of an operator is learned from: its sizes as logarithms, and how long it would take at best."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil, log, log2, prod

from paceline.clusters.profile import Positive
from paceline.costs.trace.operator import (
    Attention,
    Convolution,
    Kind,
    Norm,
    Operator,
    Product,
    Recurrence,
    Window,
)

CALL = 5e-6
"""Seconds of a call that does next to nothing; keeps the logarithm of a tiny operator's time in range."""
WIDE = 8
"""Channels that kernels treat together, as are four times as many; fewer are padded."""
CACHED = (18.0, 30.0)
"""Powers of two: a step that moves fewer bytes leaves all in some cache, one that moves more leaves nothing."""


@dataclass(frozen=True, kw_only=True)
class DevicePeaks:
    """What the device can do at best: operations a second, and bytes a second of memory."""

    flops: Positive
    bandwidth: Positive


def curve_name(operator: Operator) -> str:
    """Which curve the time of an operator follows: its name, and which convolution where kernels are others.

    What a recurrent layer calls step by step works on the same memory again and again, which stays in caches.
    """
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
        case Product() as shape:
            sizes = [shape.batch, shape.m, shape.n, shape.k]
        case Window() as shape:
            sizes = [shape.batch * shape.channels, prod(shape.out), prod(shape.size), prod(shape.kernel)]
        case Attention() as shape:
            sizes = [shape.batch * shape.heads, shape.queries, shape.keys, shape.width]
            flags = [2.0 * shape.causal]
        case Norm() as shape:
            sizes = [operator.elements, shape.places, shape.channels, shape.groups]
            flags = [4.0 * operator.scattered]
        case Recurrence() as shape:
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


_SCALES: Mapping[Kind, list[float]] = {
    "convolution": [6.0, 9.0, 9.0, 4.5, 6.0, 4.5, 2.25, 9.0, 3.0, 1.5, 1.5, 3.0, 1.5, 3.0, *[4.5] * 5],
    "product": [5.0, 4.0, 4.0, 4.0],
    "pool": [5.0, 4.0, 4.0, 2.0],
    "attention": [4.0, 4.0, 4.0, 3.0, 4.0],
    "norm": [4.0, 3.0, 4.0, 4.0, 3.0],
    "recurrence": [4.0, 4.0, 4.0, 4.0],
}


def scales(kind: Kind) -> list[float]:
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
    """What a curve learns from a measured call."""
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
