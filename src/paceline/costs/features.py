"""What the time of an operator is learned from: its sizes as logarithms, and how long it would take at best."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import ceil, log2
from typing import NamedTuple

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


class DevicePeaks(NamedTuple):
    """What the device can do at best."""

    flops: float
    """Operations a second."""
    bandwidth: float
    """Bytes a second, of memory."""


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


def features(operator: Operator, moved: float) -> list[float]:
    """Sizes as powers of two, and flags; of the same length for all operators of a kind.

    ``moved`` are the bytes that the whole step moves: in a small step, caches still hold what an operator needs.
    """
    return [min(CACHED[1], max(CACHED[0], _log(moved))), *_own(operator)]


def bytes_moved(operators: Iterable[Operator]) -> float:
    return float(sum(operator.read + operator.written for operator in operators))


def _own(operator: Operator) -> list[float]:
    match operator.shape:
        case Convolution() as shape:
            return _convolution(shape)
        case Product() as shape:
            sizes = [shape.batch, shape.m, shape.n, shape.k]
            return [*map(_log, sizes)]
        case Window() as shape:
            return [
                _log(shape.batch * shape.channels),
                _log(shape.out_height * shape.out_width),
                _log(shape.height * shape.width),
                _log(shape.kernel_height * shape.kernel_width),
            ]
        case Attention() as shape:
            sizes = [shape.batch * shape.heads, shape.queries, shape.keys, shape.width]
            return [*map(_log, sizes), 2.0 * shape.causal]
        case Norm() as shape:
            sizes = [operator.elements, shape.places, shape.channels, shape.groups]
            return [*map(_log, sizes), 4.0 * operator.scattered]
        case Recurrence() as shape:
            return [*map(_log, (shape.batch, shape.length, shape.inputs, shape.hidden))]
    moved, elements = operator.read + operator.written, max(operator.elements, 1)
    # The third is what is moved beyond one reading and one writing.
    own = [elements, moved / elements, moved - 8 * elements]
    return [*map(_log, own), 4.0 * operator.scattered]


def scales(kind: Kind) -> list[float]:
    """How far two operators may lie apart in each feature and still say something about each other; one each."""
    return [6.0, *_SCALES.get(kind, [4.0, 4.0, 8.0, 3.0])]


def at_best(operator: Operator, peaks: DevicePeaks) -> float:
    """Seconds of computing, then of moving, then of the call, one after the other: a smooth roofline."""
    flops, moved = operator.flops, float(operator.read + operator.written)
    if isinstance(operator.shape, Convolution):
        flops *= inside(operator.shape)
        moved += 2 * weight_bytes(operator.shape)  # reordered for the kernel, which does not stream
    return flops / peaks.flops + moved / peaks.bandwidth + CALL


def inside(shape: Convolution) -> float:
    """The part of a convolution's operations that fall on the image; those on its padding are skipped."""
    if shape.dimensions == 3:
        return 1.0
    if shape.transposed:  # the other way round
        shape = replace(
            shape,
            transposed=False,
            height=shape.out_height,
            width=shape.out_width,
            out_height=shape.height,
            out_width=shape.width,
        )
    tall = _inside(
        shape.height, shape.out_height, shape.kernel_height, shape.stride_height, shape.padding_height
    )
    return tall * _inside(
        shape.width, shape.out_width, shape.kernel_width, shape.stride_width, shape.padding_width
    )


def _inside(size: int, out: int, kernel: int, stride: int, padding: int) -> float:
    """Along one side; dilation is left aside."""
    if not padding:
        return 1.0
    starts = (place * stride - padding for place in range(out))
    taps = sum(max(0, min(start + kernel, size) - max(start, 0)) for start in starts)
    return max(taps, 1) / (out * kernel)


_SCALES: Mapping[Kind, list[float]] = {
    "convolution": [6.0, 9.0, 9.0, 4.5, 6.0, 4.5, 2.25, 9.0, 3.0, 1.5, 1.5, 3.0, 1.5, 3.0, *[4.5] * 5],
    "product": [5.0, 4.0, 4.0, 4.0],
    "pool": [5.0, 4.0, 4.0, 2.0],
    "attention": [4.0, 4.0, 4.0, 3.0, 4.0],
    "norm": [4.0, 3.0, 4.0, 4.0, 3.0],
    "recurrence": [4.0, 4.0, 4.0, 4.0],
}


def _convolution(shape: Convolution) -> list[float]:
    ins, outs = shape.inputs / shape.groups, shape.outputs / shape.groups
    area = shape.kernel_height * shape.kernel_width
    pointwise = area == 1 and shape.stride_height * shape.stride_width == 1
    return [
        _log(shape.batch),
        _log(ins),
        _log(outs),
        _log(shape.groups),
        _log(shape.out_height * shape.out_width),
        _log(shape.out_width),
        _log(area),
        _log(shape.kernel_width),
        _log(max(shape.stride_height, shape.stride_width)),
        -log2(inside(shape)),
        *(log2(ceil(size / wide) * wide / size) for size in (ins, outs) for wide in (WIDE, 4 * WIDE)),
        3.0 * pointwise,
        3.0 * (shape.groups > 1 and ins == 1),
        2.0 * (shape.groups == 1 and ins <= 3),
        2.0 * shape.data,
        2.0 * (shape.batch == 1),
    ]


def weight_bytes(shape: Convolution) -> float:
    return 4.0 * shape.inputs * shape.outputs // shape.groups * shape.kernel_height * shape.kernel_width


def _log(size: float) -> float:
    return log2(max(size, 1))
