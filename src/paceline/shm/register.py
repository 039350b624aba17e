"""What ranks tell each other through the store before they share memory; a rank that dies or never comes is noticed."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any, NoReturn

from torch.distributed import DistError
from torch.distributed.distributed_c10d import Store

from paceline.shm.facts import Fact, T, plain
from paceline.shm.peers import PeerLost, died

START = "the start of the group"
_SHORTEST, _LONGEST = 5e-4, 2e-2
"""Seconds between looks into the store, at first and after a while."""


_LOSS = "loss"
_READING = 0.2
"""Seconds that others have to read why a rank ends."""


class StoreTampered(RuntimeError):
    """The store holds a value that no rank of the group has written."""


class Register:
    """Facts by rank. Whoever waits for one also watches the processes that are known by then.

    The time for all of them together begins with the first that is waited for. Anybody who reaches the store may write
    to it: a value that no rank would have written raises ``StoreTampered``.
    """

    def __init__(self, store: Store, names: Sequence[int], timeout: float) -> None:
        """``names`` is what errors call the ranks."""
        self._store, self._names, self._timeout = store, names, timeout
        self._processes: dict[int, int] = {}
        self._end = 0.0

    def watch(self, rank: int, process: int) -> None:
        """From now on, do not wait for anything if this process of this host has died."""
        self._processes[rank] = process

    def tell(self, fact: Fact[Any], rank: int, value: Any) -> None:
        """Say something about a rank, once; ``value`` is what the fact reads, as JSON has it."""
        with self._store_or_loss():
            self._store.set(f"{fact.key}/{rank}", json.dumps(value))

    def count(self, what: str, rank: int) -> int:
        """How often this was counted for the rank, this time included."""
        with self._store_or_loss():
            return int(self._store.add(f"{what}/{rank}", 1))

    def hear(self, fact: Fact[T], rank: int) -> T:
        """What was said; waits for it."""
        value = self._wait(fact.key, rank)
        try:
            return fact.parse(value)
        except ValueError:
            self.refuse(fact, rank)

    def refuse(self, fact: Fact[Any], rank: int, why: str = "") -> NoReturn:
        """Tell everybody that the store holds what no rank has said, and raise it; what was announced before stands."""
        if known := self.loss(0.0):
            raise PeerLost(known)
        detail = f" ({why})" if why else ""
        error = (
            f"the store holds something else than {fact.means} for rank {self._names[rank]} "
            f"under {fact.key}/{rank}{detail}: is somebody else writing to it?"
        )
        self.announce(error)
        raise StoreTampered(error)

    def _wait(self, fact: str, rank: int) -> bytes:
        key, pause = f"{fact}/{rank}", _SHORTEST
        self._end = self._end or monotonic() + self._timeout
        with self._store_or_loss():
            while not self._store.check([key]):
                if known := self.loss(0.0):
                    raise PeerLost(known)
                if seen := self._death() or self._lateness(fact):
                    self.announce(seen)
                    raise PeerLost(seen)
                sleep(pause)
                pause = min(_LONGEST, 2 * pause)
            return bytes(self._store.get(key))

    def announce(self, loss: str) -> None:
        """Tell everybody why this rank is about to end, and give them a moment: the store may end with it."""
        with self._store_or_loss():
            self._store.set(_LOSS, loss)
        sleep(_READING)

    def loss(self, seconds: float) -> str:
        """What another rank announced, if it is within so many seconds; else nothing."""
        end = monotonic() + seconds
        with self._store_or_loss():
            while not self._store.check([_LOSS]):
                if monotonic() >= end:
                    return ""
                sleep(_LONGEST)
            return plain(self._store.get(_LOSS).decode(errors="replace"))

    def _lateness(self, fact: str) -> str:
        if monotonic() <= self._end:
            return ""
        names = [
            str(name) for rank, name in enumerate(self._names) if not self._store.check([f"{fact}/{rank}"])
        ]
        ranks = f"rank{'s' if len(names) > 1 else ''} {', '.join(names)}"
        return f"{ranks} did not come within {self._timeout:g} s (during {START})"

    def _death(self) -> str:
        dead = (self._names[rank] for rank, process in self._processes.items() if died(process))
        return next((f"rank {name} died (during {START})" for name in dead), "")

    @contextmanager
    def _store_or_loss(self) -> Iterator[None]:
        """The store lives in a rank, mostly the first; without it there is nothing to form a group with."""
        try:
            yield
        except DistError as error:
            self.check()  # its keeper may have ended because of another
            raise PeerLost(
                f"the rank that keeps the store, mostly rank 0, is lost (during {START})"
            ) from error

    def check(self) -> None:
        """Raise if one that is watched has died."""
        if death := self._death():
            raise PeerLost(death)
