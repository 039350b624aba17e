"""A device by its data sheet alone: an operator is bound by computing or by memory (Williams et al., 2009).

How much of a data sheet's peak an operator gets, by rule of thumb: large matrix products reach 0.88 of a V100's plain
peak, and 0.74 to 0.76 of the peak of its and an A100's matrix units, in the measurements of
github.com/mli/transformers-benchmarks; Paleo (Qi et al., ICLR 2017) takes 0.62 for a K40; streaming kernels reach about
0.8 of a GPU's memory bandwidth and 0.7 of a CPU's. The rest is judgement, checked against NVIDIA's published training
rates of ResNet-50. All of it is what a calibration replaces.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log, prod
from typing import NamedTuple, get_args

from paceline.clusters.catalogue import DeviceSheet
from paceline.costs.device import DeviceModel
from paceline.costs.trace.operator import (
    Convolution,
    MatrixKind,
    Operator,
    OperatorKind,
    Product,
    Recurrence,
    Shape,
)
from paceline.errors import UsageError, unknown

TORCH = "torch"
"""What PyTorch does by default: convolutions in tf32 where the device has it, everything else in fp32."""
WIDTHS: Mapping[str, int] = {TORCH: 4, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}

_MATRIX: tuple[OperatorKind, ...] = get_args(MatrixKind)
_CORES_FOR_MEMORY = 4


class PeakShare(NamedTuple):
    """Of what the data sheet promises, at large sizes: each above 0 and at most 1."""

    compute: float
    memory: float
    matrix: float = 1.0
    """Of the peak of matrix units, for kinds that use them: harder to keep busy."""


SHARES: Mapping[OperatorKind, Mapping[str, PeakShare]] = {
    "convolution": {"gpu": PeakShare(0.75, 0.8, 0.5), "cpu": PeakShare(0.6, 0.7)},
    "product": {"gpu": PeakShare(0.88, 0.8, 0.75), "cpu": PeakShare(0.75, 0.7)},
    "attention": {"gpu": PeakShare(0.5, 0.7, 0.4), "cpu": PeakShare(0.35, 0.6)},
    "recurrence": {"gpu": PeakShare(0.5, 0.7, 0.4), "cpu": PeakShare(0.5, 0.6)},
    "norm": {"gpu": PeakShare(0.3, 0.6), "cpu": PeakShare(0.1, 0.5)},
    "pool": {"gpu": PeakShare(0.3, 0.5), "cpu": PeakShare(0.05, 0.4)},
    "elementwise": {"gpu": PeakShare(0.3, 0.8), "cpu": PeakShare(0.1, 0.7)},
    "reduction": {"gpu": PeakShare(0.3, 0.6), "cpu": PeakShare(0.1, 0.5)},
    "embedding": {"gpu": PeakShare(0.3, 0.4), "cpu": PeakShare(0.1, 0.3)},
    "copy": {"gpu": PeakShare(0.3, 0.8), "cpu": PeakShare(0.1, 0.7)},
    "optimizer": {"gpu": PeakShare(0.3, 0.8), "cpu": PeakShare(0.1, 0.7)},
}

_HALF_WIDTH = 8
"""Columns of a product that get half of what many columns get: tiles are about so wide, and padded."""
_HALF_DEPTH = 32
"""Likewise terms of each sum: loading and storing a tile takes as long as this many terms."""


def fullness(shape: Shape) -> float:
    """What is left of the share because a product is narrow or shallow: 1 for a large one, little if depthwise."""
    match shape:
        case Product():
            width, depth = min(shape.m, shape.n), shape.k
        case Convolution():
            width, depth = shape.outputs // shape.groups, shape.inputs // shape.groups * prod(shape.kernel)
        case Recurrence():
            width, depth = 4 * shape.hidden, shape.hidden
        case _:
            return 1.0
    width, depth = max(width, 1), max(depth, 1)  # an empty product takes its overhead
    return width / (width + _HALF_WIDTH) * depth / (depth + _HALF_DEPTH)


@dataclass(frozen=True, kw_only=True)
class Roofline(DeviceModel):
    """Seconds = overhead + max(operations / (peak x share), bytes / (bandwidth x share))."""

    sheet: DeviceSheet
    format: str = TORCH
    traced: str = "fp32"
    """The format of the tensors that the operators were traced with; a narrower ``format`` moves fewer bytes."""
    threads: int = 0
    overhead: float = 5e-6
    spread: float = log(1.5)
    """Data sheets say little: two thirds of predictions are taken to be within a factor of 1.5."""

    def __post_init__(self) -> None:
        sheet = self.sheet
        for name in (self.format, self.traced):
            if name not in WIDTHS:
                raise unknown("number format", name, WIDTHS)
        known = (TORCH, "fp32", *sheet.tensor_flops)
        if self.format not in known:
            raise UsageError(
                f"{sheet.name} has no matrix units for {self.format}; choose one of: {', '.join(known)}"
            )
        most = sheet.cores if sheet.kind == "cpu" else 0
        if not 0 <= self.threads <= most:
            fix = f"it must be 1 to {most}, its cores" if most else "it is no CPU; leave the threads out"
            raise UsageError(f"{self.threads} threads do not fit {sheet.name}: {fix}")

    def seconds(self, operator: Operator) -> float:
        share = SHARES[operator.kind][self.sheet.kind]
        # Libraries choose the quicker way: matrix units that are no better on paper are harder to keep busy.
        rate = self._part * max(self.sheet.flops * share.compute, self._matrix_peak(operator) * share.matrix)
        moved = (operator.read + operator.written) * self._narrowing(operator.kind)
        computed = operator.flops / (rate * fullness(operator.shape))
        shape = operator.shape
        steps = shape.length if isinstance(shape, Recurrence) else 1  # one after the other
        return steps * self.overhead + max(computed, moved / (self.bandwidth * share.memory))

    def peak(self, operator: Operator) -> float:
        return self._part * max(self.sheet.flops, self._matrix_peak(operator))

    def _matrix_peak(self, operator: Operator) -> float:
        shape = operator.shape
        side = _HALF_WIDTH
        if isinstance(shape, Product):
            side = min(shape.m, shape.n, shape.k)
        elif isinstance(shape, Convolution):
            side = shape.outputs // shape.groups
        if operator.kind not in _MATRIX or side < _HALF_WIDTH:
            return 0.0
        return self.sheet.tensor_flops.get(self._format(operator.kind), 0.0)

    @property
    def bandwidth(self) -> float:
        return self.sheet.bandwidth * min(1.0, _CORES_FOR_MEMORY * self._part)

    @property
    def _part(self) -> float:
        return self.threads / self.sheet.cores if self.threads else 1.0

    def _format(self, kind: OperatorKind) -> str:
        if self.format != TORCH:
            return self.format
        if WIDTHS[self.traced] < WIDTHS[TORCH]:
            return self.traced
        return "tf32" if kind == "convolution" else "fp32"

    def _narrowing(self, kind: OperatorKind) -> float:
        """Mixed precision keeps the weights and the optimizer's state as they are, and narrows what flows between."""
        return 1.0 if kind == "optimizer" else min(1.0, WIDTHS[self.format] / WIDTHS[self.traced])
