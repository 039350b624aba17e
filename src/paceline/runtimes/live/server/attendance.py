"""Which workers a live server counts on: expected, heard of, gone."""

import time
from collections.abc import Callable
from contextlib import suppress

from paceline.runtimes.live.timeouts import ATTENDANCE, SILENCE, STARTING


class Expected:
    """The workers that have not left; ``heard`` tells when one last said something, or raises KeyError."""

    def __init__(self, workers: int, heard: Callable[[int], float], silence: float = SILENCE) -> None:
        """``silence`` is how many seconds a worker may say nothing, not even a beat."""
        self.workers = set(range(workers))
        self._heard, self._silence = heard, silence
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

    def silent(self) -> dict[int, float]:
        """Those who have died, as far as their silence tells, and how long it has lasted; looks seldom."""
        now = time.monotonic()
        if now - self._looked < ATTENDANCE:
            return {}
        # A server that was held up itself reads first what has come meanwhile.
        late = now - self._looked > 4 * ATTENDANCE
        self._looked = now
        lasted = {} if late else {worker: self._silence_of(worker, now) for worker in sorted(self.workers)}
        return {worker: seconds for worker, seconds in lasted.items() if seconds is not None}

    def _silence_of(self, worker: int, now: float) -> float | None:
        """How long a worker has been silent, where that is too long."""
        with suppress(KeyError):
            seconds = now - self._heard(worker)
            return seconds if seconds > self._silence else None
        seconds = now - self._begun
        return seconds if seconds > max(STARTING, self._silence) else None
