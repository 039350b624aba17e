"""What ranks tell each other through the store before they share memory; a rank that dies or never comes is noticed."""

import json
import os
import select
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

from torch.distributed import DistError
from torch.distributed.distributed_c10d import Store

from paceline.collectives.shm.peers import PeerLost

START = "the start of the group"
_SHORTEST, _LONGEST = 5e-4, 2e-2
"""Seconds between looks into the store, at first and after a while."""


class Register:
    """Facts by name and rank. Whoever waits for one also watches the processes that are known by then."""

    def __init__(self, store: Store, names: Sequence[int], timeout: float) -> None:
        """``names`` is what errors call the ranks."""
        self._store, self._names, self._timeout = store, names, timeout
        self._processes: dict[int, int] = {}

    def watch(self, rank: int, process: int) -> None:
        """From now on, do not wait for anything if this process of this host has died."""
        self._processes[rank] = process

    def tell(self, fact: str, rank: int, value: Any) -> None:
        """Say something about a rank, once."""
        with _store_or_loss():
            self._store.set(f"{fact}/{rank}", json.dumps(value))

    def hear(self, fact: str, rank: int) -> Any:
        """What was said; waits for it."""
        key, begun, pause = f"{fact}/{rank}", monotonic(), _SHORTEST
        with _store_or_loss():
            while not self._store.check([key]):
                self.check()
                if monotonic() - begun > self._timeout:
                    raise PeerLost(
                        f"rank {self._names[rank]} did not come within {self._timeout:g} s (during {START})"
                    )
                sleep(pause)
                pause = min(_LONGEST, 2 * pause)
            return json.loads(self._store.get(key))

    def check(self) -> None:
        """Raise if one that is watched has died."""
        for rank, process in self._processes.items():
            if _dead(process):
                raise PeerLost(f"rank {self._names[rank]} died (during {START})")


@contextmanager
def _store_or_loss() -> Iterator[None]:
    """The store lives in a rank, mostly the first; when that is gone there is nothing to form a group with."""
    try:
        yield
    except DistError as error:
        raise PeerLost(f"the rank that keeps the store, mostly rank 0, is lost (during {START})") from error


def _dead(process: int) -> bool:
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
