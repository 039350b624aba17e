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

import torch

from paceline.clusters.catalogue import DeviceSheet, all_devices
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
from paceline.costs.trace.trace import Trace
from paceline.errors import UsageError, unknown

TORCH = "torch"
"""What PyTorch does by default: convolutions in tf32 where the device has it, everything else in fp32."""
WIDTHS: Mapping[str, int] = {TORCH: 4, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}
FORMATS: Mapping[torch.dtype, str] = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float64: "fp64",
}
"""What data sheets call the types of tensors; the catalogue has no figure of fp64."""

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
    """What float32 tensors are computed in, as by autocast: a narrower one also moves fewer bytes.

    Tensors of another dtype are computed in their own.
    """
    threads: int = 0
    overhead: float = 5e-6
    spread: float = log(1.5)
    """Data sheets say little: two thirds of predictions are taken to be within a factor of 1.5."""

    def __post_init__(self) -> None:
        sheet = self.sheet
        if self.format not in WIDTHS:
            raise unknown("number format", self.format, WIDTHS)
        known = (TORCH, "fp32", *sheet.tensor_flops)
        if self.format not in known:
            raise UsageError(
                f"{sheet.name} has no matrix units for {self.format}; choose one of: {', '.join(known)}"
            )
        most = sheet.cores if sheet.kind == "cpu" else 0
        if not 0 <= self.threads <= most:
            fix = f"it must be 1 to {most}, its cores" if most else "it is no CPU; leave the threads out"
            raise UsageError(f"{self.threads} threads do not fit {sheet.name}: {fix}")

    def within(self, trace: Trace) -> "Roofline":
        """Refuse a step in a dtype of which the sheet says nothing, or that the chosen format is not for."""
        own = [dtype for dtype in trace.dtypes if dtype != torch.float32]
        for dtype in own:
            if FORMATS.get(dtype) not in self.sheet.tensor_flops:
                raise UsageError(self._no_peak(trace, dtype))
        chosen = self.format not in (TORCH, *map(FORMATS.get, own))
        if chosen and torch.float32 not in trace.dtypes:
            raise UsageError(
                f"precision {self.format} does not go with {trace.name!r}, whose own dtype is "
                f"{' and '.join(map(dtype_name, own))}; leave the precision out, or convert the model with "
                ".float()"
            )
        return self

    def _no_peak(self, trace: Trace, dtype: torch.dtype) -> str:
        name = FORMATS.get(dtype)
        able = next((one.name for one in all_devices().values() if name in one.tensor_flops), None)
        other = f", or choose a device that has matrix units for it, such as {able}" if able else ""
        if dtype == torch.float64:
            other = ", or train it on one worker and give that run as times"
        return (
            f"the catalogue has no {dtype_name(dtype)} peak of {self.sheet.name}, and {trace.place(dtype)} computes "
            f"in it; convert the model with .float(){other}"
        )

    def seconds(self, operator: Operator) -> float:
        share = SHARES[operator.kind][self.sheet.kind]
        # Libraries choose the quicker way: matrix units that are no better on paper are harder to keep busy.
        rate = self._part * max(self.sheet.flops * share.compute, self._matrix_peak(operator) * share.matrix)
        moved = (operator.read + operator.written) * self._narrowing(operator)
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
        return self.sheet.tensor_flops.get(self._format(operator), 0.0)

    @property
    def bandwidth(self) -> float:
        return self.sheet.bandwidth * min(1.0, _CORES_FOR_MEMORY * self._part)

    @property
    def _part(self) -> float:
        return self.threads / self.sheet.cores if self.threads else 1.0

    def _format(self, operator: Operator) -> str:
        if operator.dtype != torch.float32:
            return FORMATS.get(operator.dtype, "")
        if self.format != TORCH:
            return self.format
        return "tf32" if operator.kind == "convolution" else "fp32"

    def _narrowing(self, operator: Operator) -> float:
        """Mixed precision keeps the weights and the optimizer's state as they are, and narrows what flows between."""
        kept = operator.kind == "optimizer" or operator.dtype != torch.float32
        return 1.0 if kept else WIDTHS[self.format] / WIDTHS[TORCH]


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
