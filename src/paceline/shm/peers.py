"""Who of a group is still there: a process that died is seen by the kernel, one that leaves says so."""

import os
import select
from collections.abc import Sequence
from ctypes import addressof, c_char
from mmap import mmap
from threading import Lock

LINE = 64
"""Bytes between words of different ranks, so that they do not share a cache line."""
WORD = 4


HAS_LEFT = "has left"
FOUND = "is lost, as another rank found"


class PeerLost(RuntimeError):
    """Another rank died, left or did not come; the message names it."""

    seen = False
    """Whether this rank saw it itself, and not only what followed."""


class Peers:
    """The processes of a group on one host, each with a word that is 0 as long as it stays.

    A rank that leaves writes there on whose account, counted from 1: its own, or that of the rank that it lost.
    """

    def __init__(
        self, memory: mmap, start: int, rank: int, processes: Sequence[int], names: Sequence[int]
    ) -> None:
        """The words lie in ``memory`` from ``start`` on; ``names`` is what errors call the ranks."""
        self.rank, self.size = rank, len(processes)
        self.closed = False
        self._names = names
        self._words = memoryview(memory)[start : start + space(self.size)].cast("I")
        self._watched: dict[int, int] = {}
        self._dead: list[int] = []
        for other, process in enumerate(processes):
            if other != rank:
                self._watch(other, process)
        self._poll, self._lock = select.poll(), Lock()
        for descriptor in self._watched:
            self._poll.register(descriptor, select.POLLIN)

    def _watch(self, other: int, process: int) -> None:
        try:
            self._watched[os.pidfd_open(process)] = other
        except ProcessLookupError:
            self._dead.append(other)

    def gone(self) -> dict[int, tuple[int, str]]:
        """The ranks that will do nothing more, each with the rank that is to blame and what became of it."""
        with self._lock:  # several threads may wait, and poll is for one at a time
            dead = self._dead + [self._watched[descriptor] for descriptor, _ in self._poll.poll(0)]
        found = {other: (other, "died") for other in dead}
        for other in range(self.size):
            culprit = self._words[other * LINE // WORD] - 1
            if culprit >= 0 and other != self.rank:
                found[other] = (culprit, HAS_LEFT if culprit == other else FOUND)
        return found

    def name(self, rank: int) -> int:
        """What errors call a rank."""
        return self._names[rank]

    def loss(self, culprit: int, fate: str, doing: str) -> PeerLost:
        """The error to raise for a rank that is gone; from now on this rank counts as gone, too, on its account."""
        self.leave(culprit)
        error = PeerLost(f"rank {self._names[culprit]} {fate} (during {doing})")
        error.seen = fate not in (HAS_LEFT, FOUND)
        return error

    def leave(self, culprit: int) -> None:
        """Let the others know that this rank does nothing more, on ``culprit``'s account."""
        mine = self.rank * LINE // WORD
        if not self._words[mine]:
            self._words[mine] = culprit + 1

    def close(self) -> None:
        """Watch nobody any more; threads of this process that still wait give up."""
        self.closed = True
        with self._lock:
            for descriptor in self._watched:
                self._poll.unregister(descriptor)
                os.close(descriptor)
            self._watched = {}


def died(process: int) -> bool:
    """Whether a process of this host has ended, be it that its parent has not looked yet."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(0))
    finally:
        os.close(descriptor)


def space(size: int) -> int:
    """Bytes that the words of so many ranks take."""
    return size * LINE


def address_of(memory: mmap) -> int:
    """Where a mapping lies in this process."""
    return addressof(c_char.from_buffer(memory))
