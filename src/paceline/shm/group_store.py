"""What ranks tell each other through the store before they share memory; a rank that dies or never arrives is noticed.

A store takes values from any process that reaches it, so each is checked for type, range and length before it is used.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic, sleep
from types import MappingProxyType
from typing import Annotated, Any, NoReturn

from msgspec import DecodeError, Meta
from msgspec.json import Decoder, encode
from torch.distributed import DistError
from torch.distributed.distributed_c10d import PrefixStore, Store

from paceline.shm.barrier import START, PeerLost, died
from paceline.shm.segment import Handle

KEYS: Mapping[str, tuple[str, Decoder[Any]]] = MappingProxyType(
    {
        "member": ("a process and its host", Decoder(tuple[Annotated[int, Meta(ge=1, le=2**22)], str])),
        "table": ("a handle of shared memory", Decoder(Handle | str)),
        "mapped": ("whether the memory is mapped", Decoder(str)),
    }
)
"""The values that ranks write: what each is in an error's words, and what reads it. A sentence in place of a handle
says why there is no memory; one under "mapped" says why it cannot be mapped."""
_LONGEST, _LONGEST_TEXT = 4096, 1000
"""Bytes of a value, and characters of a text that is shown; what ranks write takes a few hundred."""
_SHORT_PAUSE, _LONG_PAUSE = 5e-4, 2e-2
"""Seconds between looks into the store, at first and after a while."""
_LOSS = "loss"
_READING = 0.2
"""Seconds that others have to read why a rank ends."""


class StoreTampered(RuntimeError):
    """The store holds a value that no rank of the group has written."""


class GroupStore:
    """Values by rank. While a rank waits for one it also watches the processes that are known by then.

    A store outlives groups, and torch uses their names again: each time that a group forms has keys of its own.
    """

    def __init__(self, store: Store, rank: int, names: Sequence[int], timeout: float) -> None:
        self._rank, self._names, self._timeout = rank, names, timeout
        self.processes: dict[int, int] = {}
        """Of ranks on this host."""
        self._end = 0.0
        with self._store_or_loss():
            self.keys = PrefixStore(str(store.add(f"formed/{rank}", 1)), store)

    def exchange(self, ranks: Sequence[int], name: str, value: Any) -> list[Any]:
        self.write(name, value)
        return [self.read(name, other) for other in ranks]

    def write(self, name: str, value: Any) -> None:
        with self._store_or_loss():
            self.keys.set(f"{name}/{self._rank}", encode(value).decode())

    def read(self, name: str, rank: int) -> Any:
        value = self._wait(name, rank)
        try:
            if len(value) > _LONGEST:
                self.refuse(name, rank)
            found = KEYS[name][1].decode(value)
        except (DecodeError, RecursionError):
            self.refuse(name, rank)
        return printable(found) if isinstance(found, str) else found

    def refuse(self, name: str, rank: int, why: str = "") -> NoReturn:
        """Tell all ranks that the store holds what no rank has written, and raise it, or what was announced before."""
        self.check()
        if known := self.loss(0.0):
            raise PeerLost(known)
        detail = f" ({why})" if why else ""
        error = (
            f"the store holds something other than {KEYS[name][0]} for rank {self._names[rank]} "
            f"under {name}/{rank}{detail}; another process may be writing to it"
        )
        self.announce(error)
        raise StoreTampered(error)

    def _wait(self, name: str, rank: int) -> bytes:
        key, pause = f"{name}/{rank}", _SHORT_PAUSE
        self._end = self._end or monotonic() + self._timeout
        with self._store_or_loss():
            while not self.keys.check([key]):
                if known := self.loss(0.0):
                    raise PeerLost(known)
                if seen := self._death() or self._lateness(name):
                    self.announce(seen)
                    raise PeerLost(seen)
                sleep(pause)
                pause = min(_LONG_PAUSE, 2 * pause)
            return bytes(self.keys.get(key))

    def announce(self, loss: str) -> None:
        """Tell all ranks why this one is about to end, and wait a moment: the store may end with it."""
        with self._store_or_loss():
            self.keys.set(_LOSS, loss)
        sleep(_READING)

    def loss(self, seconds: float) -> str:
        """What another rank announces within ``seconds`` seconds; else ""."""
        end = monotonic() + seconds
        with self._store_or_loss():
            while not self.keys.check([_LOSS]):
                if monotonic() >= end:
                    return ""
                sleep(_LONG_PAUSE)
            return printable(self.keys.get(_LOSS).decode(errors="replace"))

    def _lateness(self, name: str) -> str:
        if monotonic() <= self._end:
            return ""
        late = [str(of) for rank, of in enumerate(self._names) if not self.keys.check([f"{name}/{rank}"])]
        ranks = f"rank{'s' if len(late) > 1 else ''} {', '.join(late)}"
        return f"{ranks} did not arrive within {self._timeout:g} s (during {START})"

    def _death(self) -> str:
        dead = (self._names[rank] for rank, process in self.processes.items() if died(process))
        return next((f"rank {name} died (during {START})" for name in dead), "")

    @contextmanager
    def _store_or_loss(self) -> Iterator[None]:
        """The store lives in a rank, mostly the first; without it there is nothing to form a group with."""
        try:
            yield
        except DistError as error:
            self.check()  # the rank that holds it may have ended because of another
            raise PeerLost(
                f"the rank that keeps the store, mostly rank 0, is lost (during {START})"
            ) from error

    def check(self) -> None:
        if death := self._death():
            raise PeerLost(death)


def printable(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text[:_LONGEST_TEXT])
