"""The workers that a server counts on, and the collectives of those that are connected."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import reduce

import torch

from paceline.runtimes.live.heartbeat import SilenceWatch
from paceline.runtimes.live.timeouts import ATTENDANCE, SILENCE, STARTING
from paceline.runtimes.live.wire.messages import Contribution, Result


class Membership:
    """The workers that have not left; ``heard`` returns when one was last heard of, or None."""

    def __init__(self, workers: int, heard: Callable[[int], float | None], silence: float = SILENCE) -> None:
        self.workers = set(range(workers))
        self._heard, self._watch = heard, SilenceWatch(silence)
        self._next_rank = workers
        self._checked = time.monotonic()
        self._first_by = self._checked + max(0.0, STARTING - silence)  # a first message may come late

    def reserve(self) -> int:
        """A rank for a worker that joins; no rank is ever given twice."""
        self._next_rank += 1
        return self._next_rank - 1

    def add(self, worker: int) -> None:
        self.workers.add(worker)
        self._next_rank = max(self._next_rank, worker + 1)

    def silent(self) -> dict[int, float]:
        """The workers that have been silent for too long, and for how many seconds; checks at intervals only."""
        if time.monotonic() - self._checked < ATTENDANCE:
            return {}
        self._checked = time.monotonic()
        heard = {worker: self._heard(worker) for worker in sorted(self.workers)}
        return self._watch.silent(
            {worker: self._first_by if at is None else at for worker, at in heard.items()}
        )


class ElasticCollectives:
    """Collectives over members that may join and leave: server 0 gathers contributions and answers all alike.

    Every member contributes in the same order, so a collective needs no number: it is complete when each member has
    contributed once more. A member that leaves is not waited for, and its contributions do not count.
    """

    def __init__(self, members: Sequence[int] = ()) -> None:
        self._pending: dict[int, deque[Contribution]] = {member: deque() for member in members}

    def add(self, member: int) -> None:
        self._pending.setdefault(member, deque())

    def remove(self, member: int) -> None:
        self._pending.pop(member, None)

    def contribute(self, member: int, contribution: Contribution) -> None:
        if member in self._pending:
            self._pending[member].append(contribution)

    def completed(self) -> list[Result]:
        """What the members of each collective that can end now are sent, in order."""
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
