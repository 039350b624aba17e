"""What ranks tell each other through the store before they share memory; a rank that dies or never comes is noticed."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

from torch.distributed import DistError
from torch.distributed.distributed_c10d import Store

from paceline.collectives.shm.peers import PeerLost, died

START = "the start of the group"
_SHORTEST, _LONGEST = 5e-4, 2e-2
"""Seconds between looks into the store, at first and after a while."""


class Register:
    """Facts by name and rank. Whoever waits for one also watches the processes that are known by then.

    The time for all of them together begins with the first that is waited for.
    """

    def __init__(self, store: Store, names: Sequence[int], timeout: float) -> None:
        """``names`` is what errors call the ranks."""
        self._store, self._names, self._timeout = store, names, timeout
        self._processes: dict[int, int] = {}
        self._end = 0.0

    def watch(self, rank: int, process: int) -> None:
        """From now on, do not wait for anything if this process of this host has died."""
        self._processes[rank] = process

    def tell(self, fact: str, rank: int, value: Any) -> None:
        """Say something about a rank, once."""
        with self._store_or_loss():
            self._store.set(f"{fact}/{rank}", json.dumps(value))

    def hear(self, fact: str, rank: int) -> Any:
        """What was said; waits for it."""
        key, pause = f"{fact}/{rank}", _SHORTEST
        self._end = self._end or monotonic() + self._timeout
        with self._store_or_loss():
            while not self._store.check([key]):
                self.check()
                if monotonic() > self._end:
                    raise PeerLost(
                        f"{self._missing(fact)} did not come within {self._timeout:g} s (during {START})"
                    )
                sleep(pause)
                pause = min(_LONGEST, 2 * pause)
            return json.loads(self._store.get(key))

    def glance(self, fact: str, rank: int, seconds: float) -> Any:
        """What was said, if it is within so many seconds; else None."""
        end = monotonic() + seconds
        with self._store_or_loss():
            while not self._store.check([f"{fact}/{rank}"]):
                if monotonic() > end:
                    return None
                sleep(_LONGEST)
            return json.loads(self._store.get(f"{fact}/{rank}"))

    def _missing(self, fact: str) -> str:
        names = [
            str(name) for rank, name in enumerate(self._names) if not self._store.check([f"{fact}/{rank}"])
        ]
        return f"rank{'s' if len(names) > 1 else ''} {', '.join(names)}"

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
        for rank, process in self._processes.items():
            if died(process):
                raise PeerLost(f"rank {self._names[rank]} died (during {START})")
