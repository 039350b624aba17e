"""The workers that a server counts on, and the collectives of those that are connected."""

import json
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from paceline.runtimes.live.timeouts import ATTENDANCE, SILENCE, STARTING
from paceline.runtimes.live.wire.messages import AllDocuments, Contribution, Document, Result


class Membership:
    """The workers that have not left; ``heard`` returns when one was last heard of, or raises KeyError."""

    def __init__(self, workers: int, heard: Callable[[int], float], silence: float = SILENCE) -> None:
        """``silence`` is how many seconds may pass without any message of a worker, not even that it is alive."""
        self.workers = set(range(workers))
        self._heard, self._silence = heard, silence
        self._next_rank = workers
        self._begun = self._checked = time.monotonic()

    def reserve(self) -> int:
        """A rank for a worker that joins; no rank is ever given twice."""
        self._next_rank += 1
        return self._next_rank - 1

    def add(self, worker: int) -> None:
        self.workers.add(worker)
        self._next_rank = max(self._next_rank, worker + 1)

    def remove(self, worker: int) -> None:
        self.workers.discard(worker)

    def silent(self) -> dict[int, float]:
        """The workers that have been silent for too long, and for how many seconds; checks at intervals only."""
        now = time.monotonic()
        if now - self._checked < ATTENDANCE:
            return {}
        # A server that was held up itself reads first what has arrived meanwhile.
        late = now - self._checked > 4 * ATTENDANCE
        self._checked = now
        lasted = {} if late else {worker: self._silence_of(worker, now) for worker in sorted(self.workers)}
        return {worker: seconds for worker, seconds in lasted.items() if seconds is not None}

    def _silence_of(self, worker: int, now: float) -> float | None:
        with suppress(KeyError):
            seconds = now - self._heard(worker)
            return seconds if seconds > self._silence else None
        seconds = now - self._begun
        return seconds if seconds > max(STARTING, self._silence) else None


class ElasticCollectives:
    """Collectives over members that may join and leave: server 0 gathers contributions and answers all alike.

    Pure logic. Every member contributes in the same order, so a collective needs no number: it is complete when each
    member has contributed once more. A member that leaves is not waited for, and its contributions do not count.
    """

    def __init__(self, members: Sequence[int] = ()) -> None:
        self._pending: dict[int, deque[Contribution | Document]] = {member: deque() for member in members}

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(sorted(self._pending))

    def add(self, member: int) -> None:
        """A worker takes part from the next collective on."""
        self._pending.setdefault(member, deque())

    def remove(self, member: int) -> None:
        self._pending.pop(member, None)

    def contribute(self, member: int, contribution: Contribution | Document) -> None:
        if member in self._pending:
            self._pending[member].append(contribution)

    def completed(self) -> list[tuple[tuple[int, ...], Result | AllDocuments]]:
        """The collectives that can end now, in order: who took part, and what each of them is sent."""
        results = []
        while self._pending and all(self._pending.values()):
            members = self.members
            results.append((members, _combine({one: self._pending[one].popleft() for one in members})))
        return results


def _combine(contributions: Mapping[int, Contribution | Document]) -> Result | AllDocuments:
    """What is sent to all members. Members that do not do the same are a bug of ours, or of a strategy."""
    ops = {
        rank: one.op if isinstance(one, Contribution) else "exchange" for rank, one in contributions.items()
    }
    if len(set(ops.values())) > 1:
        asked = ", ".join(f"rank {rank} {op}" for rank, op in ops.items())
        raise RuntimeError(f"the workers do not agree on what to do together: {asked}")
    documents = {rank: one.document for rank, one in contributions.items() if isinstance(one, Document)}
    if documents:
        return AllDocuments(json.dumps(documents))
    tensors = {rank: one for rank, one in contributions.items() if isinstance(one, Contribution)}
    op = COLLECTIVES[next(iter(ops.values()))]
    return Result(",".join(map(str, tensors)), op(tensors))


def _sum(contributions: Mapping[int, Contribution]) -> Tensor:
    return _reduce(contributions, torch.add)


def _minimum(contributions: Mapping[int, Contribution]) -> Tensor:
    return _reduce(contributions, torch.minimum)


def _reduce(
    contributions: Mapping[int, Contribution], combine_two: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    first, *others = (one.tensor for one in contributions.values())
    result = first.clone()
    for tensor in others:
        if tensor.shape != result.shape:
            raise RuntimeError(
                "the workers do not agree on what to do together: their tensors differ in length"
            )
        result = combine_two(result, tensor)
    return result


def _broadcast(contributions: Mapping[int, Contribution]) -> Tensor:
    """The root's tensor; where the root is gone, that of the lowest member."""
    first = next(iter(contributions))
    root = contributions[first].root
    return contributions[root if root in contributions else first].tensor.clone()


COLLECTIVES: Mapping[str, Callable[[Mapping[int, Contribution]], Tensor]] = {
    "sum": _sum,
    "min": _minimum,
    "broadcast": _broadcast,
}
