"""Gradients that a server has received and not yet used, and their weighted mean."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.records.servers import AppliedGradient


@dataclass(slots=True)
class Pile:
    """What one worker has handed in since the last update."""

    grad: Tensor
    weight: float


class Gathered:
    """One pile a worker, so that memory is bounded and the mean does not depend on who came first."""

    def __init__(self) -> None:
        self._piles: dict[int, Pile] = {}
        self._gradients: list[AppliedGradient] = []
        self._weight = 0.0

    def __bool__(self) -> bool:
        return bool(self._gradients)

    def __contains__(self, worker: int) -> bool:
        return worker in self._piles

    def keep(self, grad: Tensor, credit: AppliedGradient, weight: float, share: float) -> None:
        """Take a gradient in without copying it; ``share`` of its weight is used, all of it is counted."""
        self._gradients.append(credit)
        self._weight += weight
        self._piles[credit.worker] = Pile(grad, weight * share)

    @torch.no_grad()
    def add(self, grad: Tensor, credit: AppliedGradient, weight: float, share: float) -> None:
        """Take a copy of a gradient in, on top of what its worker has handed in before."""
        before = self._piles.get(credit.worker)
        self.keep(grad.clone(), credit, weight, share)
        if before is not None:
            pile = self._piles[credit.worker]
            total = (
                before.weight + pile.weight or 1.0
            )  # an epoch's last batch may have no samples for a worker
            pile.grad.mul_(pile.weight / total).add_(before.grad, alpha=before.weight / total)
            pile.weight = total

    @torch.no_grad()
    def mean(self, out: Tensor) -> "Mean":
        """Write the mean, added in rank order, and forget the gradients; say whose they were."""
        used = sum(pile.weight for pile in self._piles.values())
        out.zero_()
        for worker in sorted(self._piles) if used else ():
            pile = self._piles[worker]
            out.add_(pile.grad, alpha=pile.weight / used)
        mean = Mean(tuple(self._gradients), used / self._weight if self._weight else 1.0)
        self._piles.clear()
        self._gradients.clear()
        self._weight = 0.0
        return mean


class Mean(NamedTuple):
    """What a mean was made of."""

    gradients: tuple[AppliedGradient, ...]
    used: float
    """The part of their weight that was used; what was left out makes the step smaller."""
