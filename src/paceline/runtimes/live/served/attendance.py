"""Which workers a live server counts on: expected, heard of, gone."""

import time
from collections.abc import Callable
from contextlib import suppress

SILENCE = 5.0
"""Seconds without a word, not even a beat, after which a worker counts as dead."""

STARTING = 120.0
"""Seconds that the workers of the start have until their first word; reading data may take a while."""

_GLANCE = 0.25


class Expected:
    """The workers that have not left; ``heard`` tells when one last said something, or raises KeyError."""

    def __init__(self, workers: int, heard: Callable[[int], float]) -> None:
        self.workers = set(range(workers))
        self._heard = heard
        self._newest = workers
        self._begun = self._looked = time.monotonic()

    def reserve(self) -> int:
        """A rank for a worker that comes late; no rank is ever given twice."""
        self._newest += 1
        return self._newest - 1

    def come(self, worker: int) -> None:
        """A worker is there."""
        self.workers.add(worker)
        self._newest = max(self._newest, worker + 1)

    def go(self, worker: int) -> None:
        """A worker is not expected any more."""
        self.workers.discard(worker)

    def silent(self) -> list[int]:
        """Those who have died, as far as their silence tells; looks a few times a second at most."""
        now = time.monotonic()
        if now - self._looked < _GLANCE:
            return []
        # A server that was held up itself reads first what has come meanwhile.
        late = now - self._looked > 4 * _GLANCE
        self._looked = now
        return [] if late else sorted(worker for worker in self.workers if self._is_silent(worker, now))

    def _is_silent(self, worker: int, now: float) -> bool:
        with suppress(KeyError):
            return now - self._heard(worker) > SILENCE
        return now - self._begun > STARTING
