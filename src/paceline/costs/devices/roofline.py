"""A device by its data sheet alone: an operator is bound by computing or by memory (Williams et al., 2009)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log

from paceline.clusters.catalogue import DeviceSheet
from paceline.costs.devices.shares import SHARES, Share, fits_matrix_units, fullness
from paceline.costs.trace.operator import Kind, Operator, Recurrence
from paceline.errors import UsageError, unknown

TORCH = "torch"
"""What PyTorch does unless it is told: convolutions in tf32 where the device has it, everything else in fp32."""
WIDTHS: Mapping[str, int] = {TORCH: 4, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}
"""Number formats, and the bytes of an element in memory."""

_MATRIX: tuple[Kind, ...] = ("convolution", "product", "attention", "recurrence")
_CORES_FOR_MEMORY = 4
"""A fourth of a CPU's cores can use all of its memory bandwidth, by rule of thumb."""


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """Seconds = overhead + max(operations / (peak x share), bytes / (bandwidth x share)).

    The shares are rules of thumb at most 1, so that no operator beats the data sheet.
    """

    sheet: DeviceSheet
    format: str = TORCH
    """In which matrix products are computed: torch, fp32, tf32, fp16 or bf16."""
    traced: str = "fp32"
    """The format of the tensors that the operators were traced with; a narrower ``format`` moves fewer bytes."""
    threads: int = 0
    """Of a CPU's cores, those that a worker uses; 0 is all."""
    overhead: float = 5e-6
    """Seconds a call: launching a kernel, dispatching an operator."""
    spread: float = log(1.5)
    """Data sheets say little: two thirds of predictions are taken to be within a factor of 1.5."""
    shares: Mapping[Kind, Share] = field(default_factory=dict, hash=False)
    """Instead of the usual ones of GPUs and CPUs, for the kinds that are in it."""

    def __post_init__(self) -> None:
        for name in (self.format, self.traced):
            if name not in WIDTHS:
                raise unknown("number format", name, WIDTHS)
        known = (TORCH, "fp32", *self.sheet.tensor_flops)
        if self.format not in known:
            raise UsageError(
                f"{self.sheet.name} has no matrix units for {self.format}; choose one of: {', '.join(known)}"
            )
        if self.threads and self.sheet.kind != "cpu":
            raise UsageError(
                f"{self.threads} threads have no place on {self.sheet.name}, which is no CPU; leave --threads out"
            )
        if not 0 <= self.threads <= self.sheet.cores:
            raise UsageError(
                f"{self.threads} threads do not fit {self.sheet.name}: it must be 1 to {self.sheet.cores}, its cores"
            )

    def seconds(self, operator: Operator) -> float:
        """How long one call takes."""
        share = self.shares.get(operator.kind) or SHARES[self.sheet.kind][operator.kind]
        # Libraries choose the quicker way: matrix units that are no better on paper are harder to keep busy.
        rate = self._part * max(self.sheet.flops * share.compute, self._matrix_peak(operator) * share.matrix)
        moved = (operator.read + operator.written) * self._narrowing(operator.kind)
        computed = operator.flops / (rate * fullness(operator.shape))
        shape = operator.shape
        steps = shape.length if isinstance(shape, Recurrence) else 1  # one after the other
        return steps * self.overhead + max(computed, moved / (self.bandwidth * share.memory))

    def peak(self, operator: Operator) -> float:
        """Operations a second that the data sheet promises for an operator, at most."""
        return self._part * max(self.sheet.flops, self._matrix_peak(operator))

    def _matrix_peak(self, operator: Operator) -> float:
        """Of the matrix units; 0 where they are not used."""
        if operator.kind not in _MATRIX or not fits_matrix_units(operator.shape):
            return 0.0
        return self.sheet.tensor_flops.get(self._format(operator.kind), 0.0)

    @property
    def bandwidth(self) -> float:
        """Bytes a second that a worker's threads can move at most."""
        return self.sheet.bandwidth * min(1.0, _CORES_FOR_MEMORY * self._part)

    @property
    def _part(self) -> float:
        """Of the cores."""
        return self.threads / self.sheet.cores if self.threads else 1.0

    def _format(self, kind: Kind) -> str:
        if self.format != TORCH:
            return self.format
        if WIDTHS[self.traced] < WIDTHS[TORCH]:
            return self.traced
        return "tf32" if kind == "convolution" else "fp32"

    def _narrowing(self, kind: Kind) -> float:
        """Mixed precision keeps the weights and the optimizer's state as they are, and narrows what flows between."""
        return 1.0 if kind == "optimizer" else min(1.0, WIDTHS[self.format] / WIDTHS[self.traced])
