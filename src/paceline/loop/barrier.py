"""A barrier of all workers' scripts, which says so where one of them goes on and will never come."""

import json
import threading
import time
from typing import Any, Protocol

from paceline.errors import UsageError
from paceline.runtimes.live.run_store import RunStore
from paceline.runtimes.live.worker.recorder import show_ranks
from paceline.shm import PeerLost

_POLL = 0.5
"""Seconds between two looks whether others wait; where nobody does, that is all that it costs."""
_SOONEST, _LATEST = 0.001, 0.05


class Training(Protocol):
    """What a worker is at, as read from another thread."""

    @property
    def rank(self) -> int: ...

    @property
    def workers(self) -> int: ...

    @property
    def clock(self) -> int:
        """The steps that it has taken."""

    @property
    def waits(self) -> bool:
        """Whether it waits for the others in the next step already."""


class LoopBarrier:
    """All workers must wait at the same points of their scripts; steps are counted alike on all.

    A worker that waits says so in the run's store. The others' threads look there: whoever has begun a step that the
    waiting one has not taken tells it, and it raises instead of waiting for ever.
    """

    def __init__(self, store: RunStore, training: Training, timeout: float) -> None:
        self._store, self._training, self._timeout = store, training, timeout
        self._number, self._closed = 0, threading.Event()
        threading.Thread(target=self._listen, name="loop-barrier", daemon=True).start()

    def wait(self, where: str, together: str) -> None:
        """``where`` is what the script does here; ``together`` says how to have all workers do it at the same step."""
        me, pause, late = self._training, _SOONEST, time.monotonic() + self._timeout
        self._store.set(self._key(me.rank), json.dumps([where, me.clock]))
        self._store.set(self._key("waits"), str(me.clock))
        everyone = [self._key(rank) for rank in range(me.workers)]
        while (found := self._store.peek(everyone)) is None:
            if past := self._store.peek([self._key("past")]):
                other, step = json.loads(past[0])
                raise UsageError(
                    f"{_at([where, me.clock], me.rank)}, and rank {other} goes on with step {step}; {together}"
                )
            if time.monotonic() > late:
                missing = [rank for rank, key in enumerate(everyone) if not self._store.check([key])]
                raise PeerLost(
                    f"{_at([where, me.clock], me.rank)}, and {show_ranks(missing)} did not get there within "
                    f"{self._timeout:g} s"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LATEST)
        points = [json.loads(one) for one in found]
        for rank, point in enumerate(points):
            if point != points[0]:
                raise UsageError(f"{_at(points[0], 0)}, and {_at(point, rank)}; {together}")
        if self._number:
            self._store.delete_key(self._key(me.rank, self._number - 1))
        self._number += 1

    def close(self) -> None:
        self._closed.set()

    def _key(self, name: object, number: int | None = None) -> str:
        return f"loop/{self._number if number is None else number}/{name}"

    def _listen(self) -> None:
        me = self._training
        try:
            while not self._closed.wait(_POLL):
                number = self._number
                waits = self._store.peek([self._key("waits", number)])
                if waits and (me.clock > int(waits[0]) or (me.clock == int(waits[0]) and me.waits)):
                    past = json.dumps([me.rank, int(waits[0]) + 1])
                    self._store.set(self._key("past", number), past)
        except RuntimeError:  # the store is closed at the end, or lost: then the worker notices too
            return


class ServedPlaces:
    """Workers with servers synchronize at the same places of their scripts, each after as many steps as it has taken.

    There the servers wait for the workers that are left, so this only compares.
    """

    def __init__(self, store: RunStore, training: Training) -> None:
        self._store, self._training, self._number = store, training, 0

    def wait(self, where: str, together: str) -> None:  # noqa: ARG002
        me = self._training
        self._store.set(self._key(me.rank), json.dumps([where, me.clock]))
        for rank in range(me.workers):
            if (found := self._store.peek([self._key(rank)])) and (point := json.loads(found[0]))[0] != where:
                here = _at([where, me.clock], me.rank)
                raise UsageError(f"{_at(point, rank)}, and {here}; all workers must get to the same places")
        self._number += 1

    def close(self) -> None:
        """The store is the workers'."""

    def _key(self, rank: int) -> str:
        return f"loop/{self._number}/{rank}"


def _at(point: Any, rank: int) -> str:
    where, clock = point
    return f"rank {rank} is at {where} after step {clock}"
