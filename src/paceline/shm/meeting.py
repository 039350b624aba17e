"""Where the ranks of one host meet: everybody arrives, and goes on when all have arrived."""

import os
from mmap import mmap
from time import monotonic, perf_counter

from paceline.shm import futex
from paceline.shm.peers import LINE, WORD, PeerLost, Peers, address_of

SPIN = 3e-4
"""Seconds that a rank looks again and again before it sleeps, which is longer than waking takes: ranks that come
nearly together never sleep. Between two looks it gives its core to whoever wants to compute."""
NAP = 0.1
"""Seconds of sleep after which a rank looks whether the others are still there."""
_MASK = 2**32 - 1


class Meeting:
    """Counts beats: one word a rank, which holds the number of beats that it has arrived at.

    A rank is never more than one beat ahead of another, so what was written before beat b and is read after it may be
    overwritten from beat b + 2 on: two buffers, used in turn, are always enough. Not for several threads at once.
    """

    def __init__(self, memory: mmap, start: int, peers: Peers, timeout: float) -> None:
        """The words lie in ``memory`` from ``start`` on; a rank waits ``timeout`` seconds for another."""
        rank, size = peers.rank, peers.size
        self.beat = 0
        self.doing = "a collective"
        """What the rank is at, for errors."""
        self.timeout = timeout
        self._peers = peers
        self._words = memoryview(memory)[start : start + size * LINE].cast("I")
        self._address = address_of(memory) + start
        self._others = [(other, other * LINE // WORD) for other in range(size) if other != rank]
        self._mine = rank * LINE // WORD
        self._lost = ""

    def meet(self) -> None:
        """Arrive, and return when all have; raises ``PeerLost`` if one cannot come any more."""
        if self._lost:
            raise PeerLost(self._lost)
        words = self._words
        self.beat = beat = (self.beat + 1) & _MASK
        words[self._mine] = beat
        futex.wake(self._address + self._mine * WORD)
        for other, place in self._others:
            if (words[place] - beat) & _MASK > 1:
                self._wait(other, place, beat)

    def _wait(self, other: int, place: int, beat: int) -> None:
        words = self._words
        end = perf_counter() + SPIN
        while perf_counter() < end:
            if (words[place] - beat) & _MASK <= 1:
                return
            os.sched_yield()
        begun = monotonic()
        while ((seen := words[place]) - beat) & _MASK > 1:
            if self._lost:  # closed meanwhile, by another thread
                raise PeerLost(self._lost)
            self._check(beat)
            if monotonic() - begun > self.timeout:
                self._give_up(other, f"did not come within {self.timeout:g} s")
            futex.sleep(self._address + place * WORD, seen, NAP)

    def _check(self, beat: int) -> None:
        """Whoever is gone and had not arrived will never come."""
        for other, (culprit, fate) in self._peers.gone().items():
            if (self._words[other * LINE // WORD] - beat) & _MASK > 1:
                self._give_up(culprit, fate)

    def _give_up(self, culprit: int, fate: str) -> None:
        error = self._peers.loss(culprit, fate, self.doing)
        self._lost = str(error)
        self.wake()
        raise error

    def wake(self) -> None:
        """Make those who wait for this rank look up."""
        futex.wake(self._address + self._mine * WORD)

    def close(self) -> None:
        """Never come again; whoever waits for this rank is told at once."""
        self._peers.leave(self._peers.rank)
        self._lost = self._lost or "this group was closed"
        self.wake()
