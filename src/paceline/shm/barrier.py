"""A barrier in shared memory among the processes of one host, and which of them are still there.

Processes sleep on words in that memory through the kernel's own futex call; no compiled code is needed. A word is
written by one process only, with a plain aligned store. On x86-64 stores become visible in the order in which they
were made, so data written before a word is visible to a process that has read the word.
"""

import ctypes
import os
import platform
import select
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from ctypes import addressof, c_char, c_int, c_long, c_uint32, c_void_p
from functools import cache
from mmap import mmap
from threading import Lock
from time import monotonic, perf_counter

LINE = 64
"""Bytes from one word to the next, so that they do not share a cache line."""
ROWS = 3
"""Words of a rank that the barrier has."""
MASK = 2**32 - 1
SPIN = 3e-4
"""Seconds that a rank looks again and again before it sleeps, which is longer than waking takes: ranks that arrive
nearly together never sleep. Between two looks it gives its core to any process that wants to compute."""
START = "the start of the group"
HAS_LEFT = "has left"
_FOUND = "is lost, as another rank found"
_FUTEX = 202
_WAIT, _WAKE = 0, 1
_ALL_WAITERS = 2**31 - 1
_ASLEEP, _LOOKING = 1, 2
"""How a rank waits; one that looks adds the number of its core."""


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", c_long), ("nanoseconds", c_long))


_NAP = _Timespec(0, 100_000_000)
"""Sleep after which a rank looks whether the others are still there."""


@cache
def _kernel() -> Callable[..., int]:
    """The call itself, found when it is first needed: not every system has it, and all may import this."""
    if platform.system() != "Linux":
        return lambda *_: 0  # a rank that shares no memory has nothing to wake
    found = ctypes.CDLL(None).syscall
    found.argtypes = (c_long, c_void_p, c_int, c_uint32, c_void_p, c_void_p, c_uint32)
    found.restype = c_long
    return found


@cache
def _core() -> Callable[[], int]:
    """The call that tells on which core this thread is."""
    found: Callable[[], int] = ctypes.CDLL(None).sched_getcpu
    return found


def _looking() -> int:
    return _LOOKING + _core()()


def supported() -> bool:
    """Whether this machine keeps the promises above."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))  # by which ranks watch each other
    except OSError:
        return False
    return True


class FutexWords:
    """Words in shared memory that processes can sleep on; each is written by one process only."""

    def __init__(self, memory: mmap, start: int, count: int) -> None:
        self._view = memoryview(memory)[start : start + count * LINE].cast("I")
        self._address = addressof(c_char.from_buffer(memory)) + start

    def __getitem__(self, place: int) -> int:
        return self._view[place * LINE // 4]

    def write(self, place: int, value: int) -> None:
        self._view[place * LINE // 4] = value & MASK
        self.wake(place)

    def wake(self, place: int) -> None:
        _kernel()(_FUTEX, self._address + place * LINE, _WAKE, _ALL_WAITERS, None, None, 0)

    def nap(self, place: int, value: int) -> bool:
        """Sleep until the word is woken, but not long, and return whether it was; not if it has changed already."""
        found = _kernel()(_FUTEX, self._address + place * LINE, _WAIT, value, ctypes.byref(_NAP), None, 0)
        return found == 0


class PeerLost(RuntimeError):
    """Another rank died, left or did not arrive; the message names it."""

    seen = False
    """Whether this rank saw it itself, and not only what followed."""


class Barrier:
    """The processes of a group on one host, each with a word that holds the number of times that it has arrived.

    A rank is never more than one beat ahead of another, so what was written before beat b and is read after it may be
    overwritten from beat b + 2 on: two buffers, used in turn, are always enough. Not for several threads at once.

    Another word is 0 as long as a rank stays. One that leaves writes which rank is the cause, counted from 1: itself,
    or the rank that it lost. A third tells how a rank waits until another arrives: asleep, and then that one wakes
    it, or looking, and on which core, which that one then leaves.
    """

    def __init__(
        self, memory: mmap, rank: int, processes: Sequence[int], names: Sequence[int], timeout: float
    ) -> None:
        self.rank, self.size, self.names, self._timeout = rank, len(processes), names, timeout
        self.lost = ""
        """Why this rank can do nothing more, in a sentence."""
        self.beat, self.doing = 0, START
        self._causes, self._beats = (
            FutexWords(memory, row * self.size * LINE, self.size) for row in range(2)
        )
        self._others = [other for other in range(self.size) if other != rank]
        self._words = memoryview(memory)[: ROWS * self.size * LINE].cast("I")
        places = [tuple((row * self.size + one) * LINE // 4 for row in (1, 2)) for one in range(self.size)]
        self._mine, self._peers = places[rank], [(other, *places[other]) for other in self._others]
        """Where in the words the beat of a rank is and how it waits: without calls, as this is done most."""
        self._fence = Lock()
        self._watched: dict[int, int] = {}
        self._dead: list[int] = []
        self._poll, self._lock = select.poll(), Lock()
        for other in self._others:
            self._watch(other, processes[other])

    def _watch(self, other: int, process: int) -> None:
        try:
            descriptor = os.pidfd_open(process)
        except ProcessLookupError:
            self._dead.append(other)
        else:
            self._watched[descriptor] = other
            self._poll.register(descriptor, select.POLLIN)

    def arrive(self) -> None:
        if self.lost:
            raise PeerLost(self.lost)
        self.beat = beat = (self.beat + 1) & MASK
        words = self._words
        words[self._mine[0]] = beat
        self.rouse()
        for other, word, _ in self._peers:
            if (words[word] - beat) & MASK > 1:
                self._wait_for(other, beat)

    def rouse(self) -> None:
        """Wake the ranks that sleep until this one arrives: then, or before it copies what it brings.

        A rank notes that it sleeps, and the kernel looks at the beat once more; here the beat is written first and the
        note read then. Taking a lock keeps the processor from doing it the other way round.
        """
        with self._fence:
            words = self._words
        crowded = False
        for _, _, waits in self._peers:
            how = words[waits]
            if how == _ASLEEP:
                self._beats.wake(self.rank)  # which wakes all
                break
            crowded = crowded or (how >= _LOOKING and how == _looking())
        if crowded:
            _leave_core(self.size)

    def _wait_for(self, other: int, beat: int) -> None:
        words, waits = self._words, self._mine[1]
        awaits = lambda rank: (self._beats[rank] - beat) & MASK > 1  # noqa: E731
        words[waits] = _looking()
        try:
            if _spin(awaits, other):
                words[waits] = _ASLEEP
                self.wait(self._beats, other, awaits, other, self.doing, spins=True)
        except PeerLost as error:
            self.lost = str(error)
            self._beats.wake(self.rank)
            raise
        finally:
            words[waits] = 0

    def gone(self) -> dict[int, tuple[int, str]]:
        """The ranks that will do nothing more, each with the rank that is the cause and what became of that."""
        with self._lock:  # several threads may wait, and poll is for one at a time
            dead = self._dead + [self._watched[descriptor] for descriptor, _ in self._poll.poll(0)]
        found = {other: (other, "died") for other in dead}
        for other in self._others:
            culprit = self._causes[other] - 1
            if culprit >= 0:
                found[other] = (culprit, HAS_LEFT if culprit == other else _FOUND)
        return found

    def wait(
        self,
        words: FutexWords,
        word: int,
        awaits: Callable[[int], bool],
        other: int,
        doing: str,
        *,
        spins: bool = False,
    ) -> None:
        """Sleep until a word of the ``other`` rank says that it arrived; ``awaits`` tells whether a rank did not.

        With ``spins``, a rank that is woken expects that soon, and looks for a while before it sleeps again.
        """
        begun = monotonic()
        while True:
            value = words[word]
            if not awaits(other):
                return
            if self.lost:
                raise PeerLost(self.lost)
            for late, (culprit, fate) in self.gone().items():
                if awaits(late):
                    raise self.loss(culprit, fate, doing)
            if monotonic() - begun > self._timeout:
                raise self.loss(other, f"did not arrive within {self._timeout:g} s", doing)
            if words.nap(word, value) and spins:
                _spin(awaits, other)

    def check_senders(self, gone: Mapping[int, tuple[int, str]], begun: float) -> None:
        """Raise if a message from any source may never arrive: a rank is lost, all have left, or the time is over."""
        if self.lost:
            raise PeerLost(self.lost)
        lost = [(culprit, fate) for culprit, fate in gone.values() if fate != HAS_LEFT]
        for culprit, fate in lost or (gone.values() if len(gone) == self.size - 1 else ()):
            raise self.loss(culprit, fate, "recv")
        if monotonic() - begun > self._timeout:
            raise PeerLost(f"no rank sent anything within {self._timeout:g} s (during recv)")

    def loss(self, culprit: int, fate: str, doing: str) -> PeerLost:
        """The error to raise for a rank that is gone; from now on this rank counts as gone too, because of it."""
        self._leave(culprit)
        error = PeerLost(f"rank {self.names[culprit]} {fate} (during {doing})")
        error.seen = fate not in (HAS_LEFT, _FOUND)
        return error

    def _leave(self, culprit: int) -> None:
        if not self._causes[self.rank]:
            self._causes.write(self.rank, culprit + 1)

    def close(self) -> None:
        self._leave(self.rank)
        self.lost = self.lost or "this group was closed"
        with self._lock:
            for descriptor in self._watched:
                self._poll.unregister(descriptor)
                os.close(descriptor)
            self._watched = {}
        self._beats.wake(self.rank)


def _leave_core(ranks: int) -> None:
    """Go to another core, as one that waits for this rank has this one, unless the ranks outnumber the cores.

    The system does so after a millisecond or more: until then one of the two would not run.
    """
    allowed = os.sched_getaffinity(0)
    if len(allowed) >= ranks:
        with suppress(OSError):  # where a container forbids it, the system moves one of them later
            try:
                os.sched_setaffinity(0, allowed - {_core()()})
            finally:
                os.sched_setaffinity(0, allowed)


def _spin(awaits: Callable[[int], bool], other: int) -> bool:
    """Look for a while whether a rank arrives, and return whether it is still awaited."""
    end = perf_counter() + SPIN
    while perf_counter() < end:
        if not awaits(other):
            return False
        os.sched_yield()
    return True


def died(process: int) -> bool:
    """Whether a process of this host has ended, even if its parent has not collected it yet."""
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
