"""Who may go on: the rules of consistency as pure logic, without time, tensors or messages."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol


class Rule(Protocol):
    """Decides whether a worker that has handed in a gradient may go on."""

    def lets_go(self, clock: int, slowest: int, present: int, waiting: int) -> bool:
        """``clock`` is the worker's own; ``slowest``, ``present`` and ``waiting`` are of all workers that count."""


@dataclass(frozen=True)
class Bound:
    """Stale-synchronous: nobody gets more than so many clocks ahead of the slowest (Ho et al., 2013)."""

    staleness: float

    def lets_go(self, clock: int, slowest: int, present: int, waiting: int) -> bool:  # noqa: ARG002
        """A worker at clock c may go on while c - slowest <= s."""
        return clock - slowest <= self.staleness


@dataclass(frozen=True)
class Quorum:
    """Synchronous: a round is over when all but the back-up workers have handed in (Chen et al., 2016)."""

    backup: int

    def lets_go(self, clock: int, slowest: int, present: int, waiting: int) -> bool:  # noqa: ARG002
        """Everybody who waits goes on at once."""
        return waiting >= max(1, present - self.backup)


@dataclass(slots=True)
class Attendance:
    """One worker that counts."""

    clock: int
    """Gradients handed in, on top of the slowest worker's clock when this one came."""
    waits: bool = False
    """It has handed in, and the rule decides when it goes on."""
    rests: bool = False
    """It is at a meeting and holds nobody back."""
    meets: bool = False
    """It is at a meeting, or has not handed in since."""


class Gate:
    """Lets workers pass by a rule, whoever comes, rests, leaves or dies in between.

    Those with whom a run begins pass together, when all of them have come: the first round is a whole one.
    """

    def __init__(self, rule: Rule, awaited: Collection[int] = ()) -> None:
        self._rule = rule
        self.workers: dict[int, Attendance] = {}
        self._awaited = set(awaited)
        self._newcomers: set[int] = set()
        self._excused: set[int] = set()

    def join(self, worker: int) -> None:
        """A worker comes. It passes when no meeting is under way, and holds nobody back before."""
        self.leave(worker)
        self._newcomers.add(worker)

    def enter(self, worker: int) -> None:
        """A worker comes that another gate has let in: it passes whoever meets, for they may wait for it."""
        self.leave(worker)
        if self._awaited:
            self._newcomers.add(worker)
        else:
            self.excuse(worker)

    def hand_in(self, worker: int) -> None:
        """A worker has finished a step and waits; one that was given up in the meantime is taken back."""
        one = self._attendance(worker)
        one.clock += 1
        one.waits, one.rests, one.meets = True, False, False

    def excuse(self, worker: int) -> None:
        """A worker passes at once, whatever the rule says."""
        self._attendance(worker).waits = False
        self._excused.add(worker)

    def rest(self, worker: int) -> None:
        """A worker goes to a meeting, which is over when all who went have handed in again."""
        one = self._attendance(worker)
        one.waits, one.rests, one.meets = False, True, True

    def wake(self, worker: int) -> None:
        """A worker counts again, and passes at once."""
        self._attendance(worker).rests = False
        self._excused.add(worker)

    def leave(self, worker: int) -> None:
        """A worker is gone, wherever it was."""
        self.workers.pop(worker, None)
        self._awaited.discard(worker)
        self._newcomers.discard(worker)
        self._excused.discard(worker)

    @property
    def present(self) -> int:
        """How many workers are there; at least 1, for the last one's gradient may outlive it."""
        return max(1, len(self.workers))

    def let_pass(self) -> list[int]:
        """Those who may go on now, by rank; each is named once."""
        # Whoever may go on does so before a newcomer counts, or the newcomer would hold back a whole round.
        passing = {*self._excused, *self._released()}
        passing |= self._let_in()
        self._excused.clear()
        for worker in passing:
            self.workers[worker].waits = False
        return sorted(passing)

    def _released(self) -> list[int]:
        waiting = [worker for worker, one in self.workers.items() if one.waits]
        if not waiting:
            return []
        clocks = [one.clock for one in self.workers.values() if not one.rests]
        slowest, present = min(clocks), len(clocks)
        return [
            worker
            for worker in waiting
            if self._rule.lets_go(self.workers[worker].clock, slowest, present, len(waiting))
        ]

    def _let_in(self) -> set[int]:
        if self._awaited or any(one.meets for one in self.workers.values()):
            return set()
        coming, self._newcomers = self._newcomers, set()
        for worker in coming:
            self._attendance(worker)
        return coming

    def _attendance(self, worker: int) -> Attendance:
        """What is known of a worker; one that was unknown counts from now on, as far as the slowest who counts."""
        if worker not in self.workers:
            counted = [one for one in self.workers.values() if not one.rests] or self.workers.values()
            self.workers[worker] = Attendance(min((one.clock for one in counted), default=0))
        return self.workers[worker]
