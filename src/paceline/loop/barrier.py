"""A barrier of all workers' scripts, which says so where one of them goes on and will never come."""

import json
import threading
import time
from typing import Any, Protocol

from paceline.errors import RunFailed, UsageError
from paceline.runtimes.live.run_store import RunStore

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
                    f"{self._at([where, me.clock], me.rank)}, and rank {other} goes on with step {step}; {together}"
                )
            if time.monotonic() > late:
                raise RunFailed(
                    f"{self._at([where, me.clock], me.rank)}, and the others were not within {self._timeout:g} s"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LATEST)
        points = [json.loads(one) for one in found]
        for rank, point in enumerate(points):
            if point != points[0]:
                raise UsageError(f"{self._at(points[0], 0)}, and {self._at(point, rank)}; {together}")
        if self._number:
            self._store.delete_key(self._key(me.rank, self._number - 1))
        self._number += 1

    def close(self) -> None:
        self._closed.set()

    def _at(self, point: Any, rank: int) -> str:
        where, clock = point
        return f"rank {rank} is at {where} after step {clock}"

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
