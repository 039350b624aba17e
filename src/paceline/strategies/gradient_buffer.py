"""Gradients that a server has received and not yet applied, and their weighted mean."""

import torch
from torch import Tensor

from paceline.records.servers import AppliedGradient


class GradientBuffer:
    """One gradient per worker, so that memory is bounded and the mean does not depend on the order of arrival."""

    def __init__(self) -> None:
        self._pending: dict[int, tuple[Tensor, float]] = {}
        """Of each worker: its gradient, and the weight of it that is used."""
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
        self._pending[credit.worker] = grad, weight * share

    @torch.no_grad()
    def accumulate(self, grad: Tensor, credit: AppliedGradient, weight: float, share: float) -> None:
        """Take a copy of a gradient in, averaged with what its worker has pushed before."""
        before = self._pending.get(credit.worker)
        mean, added = grad.clone(), weight * share
        self.hold(mean, credit, weight, share)
        if before is not None:
            total = before[1] + added or 1.0  # an epoch's last batch may have no samples for a worker
            mean.mul_(added / total).add_(before[0], alpha=before[1] / total)
            self._pending[credit.worker] = mean, total

    @torch.no_grad()
    def reduce(self, out: Tensor) -> tuple[tuple[AppliedGradient, ...], float]:
        """Write the mean, added in rank order, and forget the gradients.

        Return whose they were, and the fraction of their weight that was used: the rest makes the step smaller.
        """
        used = sum(weight for _, weight in self._pending.values())
        out.zero_()
        for _, (grad, weight) in sorted(self._pending.items()) if used else ():
            out.add_(grad, alpha=weight / used)
        reduced = tuple(self._gradients), used / self._weight if self._weight else 1.0
        self._pending.clear()
        self._gradients.clear()
        self._weight = 0.0
        return reduced
