"""Gradients that a server has received and not yet applied, and their weighted mean."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.records.servers import AppliedGradient


@dataclass(slots=True)
class PendingGradient:
    """What one worker has pushed since the last update."""

    grad: Tensor
    weight: float


class WeightedMean(NamedTuple):
    """What a mean was made of."""

    gradients: tuple[AppliedGradient, ...]
    used: float
    """The fraction of their weight that was used; what was left out makes the step smaller."""


class GradientBuffer:
    """One gradient per worker, so that memory is bounded and the mean does not depend on the order of arrival."""

    def __init__(self) -> None:
        self._pending: dict[int, PendingGradient] = {}
        self._gradients: list[AppliedGradient] = []
        self._weight = 0.0

    def __bool__(self) -> bool:
        return bool(self._gradients)

    def __contains__(self, worker: int) -> bool:
        return worker in self._pending

    def hold(self, grad: Tensor, credit: AppliedGradient, weight: float, share: float) -> None:
        """Take a gradient in without copying it; ``share`` of its weight is used, all of it is counted."""
        self._gradients.append(credit)
        self._weight += weight
        self._pending[credit.worker] = PendingGradient(grad, weight * share)

    @torch.no_grad()
    def accumulate(self, grad: Tensor, credit: AppliedGradient, weight: float, share: float) -> None:
        """Take a copy of a gradient in, averaged with what its worker has pushed before."""
        before = self._pending.get(credit.worker)
        self.hold(grad.clone(), credit, weight, share)
        if before is not None:
            pending = self._pending[credit.worker]
            # An epoch's last batch may have no samples for a worker.
            total = before.weight + pending.weight or 1.0
            pending.grad.mul_(pending.weight / total).add_(before.grad, alpha=before.weight / total)
            pending.weight = total

    @torch.no_grad()
    def reduce(self, out: Tensor) -> WeightedMean:
        """Write the mean, added in rank order, and forget the gradients; return whose they were."""
        used = sum(pending.weight for pending in self._pending.values())
        out.zero_()
        for worker in sorted(self._pending) if used else ():
            pending = self._pending[worker]
            out.add_(pending.grad, alpha=pending.weight / used)
        mean = WeightedMean(tuple(self._gradients), used / self._weight if self._weight else 1.0)
        self._pending.clear()
        self._gradients.clear()
        self._weight = 0.0
        return mean
