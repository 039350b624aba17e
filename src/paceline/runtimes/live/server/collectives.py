"""Collectives over workers that may come and go: server 0 gathers what each gives and answers all alike."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Gift:
    """What one worker gives to a collective."""

    op: str
    """"sum", "min", "broadcast" or "words"."""
    content: Any
    """A tensor, or a JSON document as text."""
    root: int = 0


@dataclass(frozen=True)
class Outcome:
    """A collective that all members have given to."""

    members: tuple[int, ...]
    content: Any
    """What all of them get: a tensor, or the members' documents by rank."""


class ElasticCollectives:
    """Pure logic: members, what they have given, and what comes of it.

    Every member gives in the same order, so a collective needs no number: it is whole when each member has given
    once more. Whoever leaves is not waited for, and what it has given does not count.
    """

    def __init__(self, members: Sequence[int] = ()) -> None:
        self._members = set(members)
        self._given: dict[int, deque[Gift]] = {member: deque() for member in members}

    @property
    def members(self) -> tuple[int, ...]:
        """Those who take part, by rank."""
        return tuple(sorted(self._members))

    def add(self, member: int) -> None:
        """A worker takes part from the next collective on."""
        self._members.add(member)
        self._given.setdefault(member, deque())

    def drop(self, member: int) -> None:
        """A worker is gone."""
        self._members.discard(member)
        self._given.pop(member, None)

    def give(self, member: int, gift: Gift) -> None:
        """A worker has come to its next collective."""
        if member in self._members:
            self._given[member].append(gift)

    def whole(self) -> list[Outcome]:
        """The collectives that can end now, in order."""
        outcomes = []
        while self._members and all(self._given[member] for member in self._members):
            gifts = {member: self._given[member].popleft() for member in self.members}
            outcomes.append(Outcome(self.members, combine(gifts)))
        return outcomes


def combine(gifts: Mapping[int, Gift]) -> Any:
    """What comes of the gifts, by rank. Members that do not do the same are a mistake of ours, or of a strategy."""
    first = next(iter(gifts.values()))
    if any(gift.op != first.op for gift in gifts.values()):
        asked = ", ".join(f"rank {rank} {gift.op}" for rank, gift in gifts.items())
        raise RuntimeError(f"the workers do not agree on what to do together: {asked}")
    return _WAYS[first.op](gifts)


def _sum(gifts: Mapping[int, Gift]) -> Tensor:
    return _reduce(gifts, torch.add)


def _minimum(gifts: Mapping[int, Gift]) -> Tensor:
    return _reduce(gifts, torch.minimum)


def _reduce(gifts: Mapping[int, Gift], combine_two: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    tensors = [gift.content for gift in gifts.values()]
    result: Tensor = tensors[0].clone()
    for tensor in tensors[1:]:
        if tensor.shape != result.shape:
            raise RuntimeError(
                "the workers do not agree on what to do together: their tensors differ in length"
            )
        result = combine_two(result, tensor)
    return result


def _broadcast(gifts: Mapping[int, Gift]) -> Tensor:
    """The root's; where that is gone, the lowest member's."""
    root = next(iter(gifts.values())).root
    chosen: Tensor = gifts[root if root in gifts else next(iter(gifts))].content
    return chosen.clone()


def _words(gifts: Mapping[int, Gift]) -> dict[int, str]:
    return {rank: gift.content for rank, gift in gifts.items()}


OPERATIONS = frozenset({"sum", "min", "broadcast"})
"""What workers may do with tensors."""

_WAYS: Mapping[str, Callable[[Mapping[int, Gift]], Any]] = {
    "sum": _sum,
    "min": _minimum,
    "broadcast": _broadcast,
    "words": _words,
}
