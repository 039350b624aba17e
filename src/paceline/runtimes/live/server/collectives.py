"""Collectives among the workers that are connected, through server 0."""

from collections import deque
from collections.abc import Mapping, Sequence
from functools import reduce

import torch

from paceline.runtimes.live.wire.messages import Contribution, Result


class ElasticCollectives:
    """Over members that may join and leave, and that all contribute in the same order."""

    def __init__(self, members: Sequence[int] = ()) -> None:
        self._pending: dict[int, deque[Contribution]] = {member: deque() for member in members}
        self.members = self._pending.keys()

    def add(self, member: int) -> None:
        self._pending.setdefault(member, deque())

    def remove(self, member: int) -> None:
        self._pending.pop(member, None)

    def contribute(self, member: int, contribution: Contribution) -> None:
        if member in self._pending:
            self._pending[member].append(contribution)

    def completed(self) -> list[Result]:
        results = []
        while self._pending and all(self._pending.values()):
            results.append(_combine({one: self._pending[one].popleft() for one in sorted(self._pending)}))
        return results


def _combine(contributions: Mapping[int, Contribution]) -> Result:
    members, (first, *others) = tuple(contributions), contributions.values()
    if any(one.op != first.op for one in others):
        asked = ", ".join(f"rank {rank} {one.op}" for rank, one in contributions.items())
        raise RuntimeError(f"the workers do not agree on what to do together: {asked}")
    if first.op == "gather":
        return Result(members, documents=tuple(one.document for one in contributions.values()))
    if first.op == "broadcast":  # where the root is gone, of the lowest member
        return Result(members, contributions.get(first.root, first).tensor)
    if any(one.tensor.shape != first.tensor.shape for one in others):
        raise RuntimeError("the workers do not agree on what to do together: their tensors differ in length")
    combine_two = torch.add if first.op == "sum" else torch.minimum
    return Result(members, reduce(combine_two, (one.tensor for one in contributions.values())))
