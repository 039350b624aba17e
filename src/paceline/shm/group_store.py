"""What ranks tell each other through the store before they share memory; a rank that dies or never arrives is noticed.

A store takes values from any process that reaches it, so each is checked for type, range and length before it is used.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Annotated, Any, Generic, NoReturn, TypeVar, cast

from msgspec import DecodeError, Meta
from msgspec.json import Decoder, encode
from torch.distributed import DistError
from torch.distributed.distributed_c10d import Store

from paceline.shm.barrier import PeerLost, died
from paceline.shm.segment import Handle

T = TypeVar("T")

START = "the start of the group"
_LONGEST, _LONGEST_TEXT = 4096, 1000
"""Bytes of a value, and characters of a text that is shown; what ranks write takes a few hundred."""
_SHORT_PAUSE, _LONG_PAUSE = 5e-4, 2e-2
"""Seconds between looks into the store, at first and after a while."""
_LOSS = "loss"
_READING = 0.2
"""Seconds that others have to read why a rank ends."""


@dataclass(frozen=True)
class StoreKey(Generic[T]):
    """A value that each rank writes: the key, what it is in an error's words, and what reads it."""

    name: str
    means: str
    decoder: Decoder[T]


MEMBER = StoreKey(
    "member", "a process and its host", Decoder(tuple[Annotated[int, Meta(ge=1, le=2**22)], str])
)
OFFER: StoreKey[Handle | str] = StoreKey("table", "a handle of shared memory", Decoder(Handle | str))
"""A handle, or a sentence that says why there is no memory."""
MAPPED = StoreKey("mapped", "whether the memory is mapped", Decoder(str))
"""Nothing, or a sentence that says why the memory cannot be mapped."""
LEADER = StoreKey("team", "the first rank of its host", Decoder(Annotated[int, Meta(ge=0, le=2**31)]))


class StoreTampered(RuntimeError):
    """The store holds a value that no rank of the group has written."""


class GroupStore:
    """Values by rank. While a rank waits for one it also watches the processes that are known by then.

    The time for all of them together begins with the first wait.
    """

    def __init__(self, store: Store, names: Sequence[int], timeout: float) -> None:
        """``names`` is what errors call the ranks."""
        self._store, self._names, self._timeout = store, names, timeout
        self._processes: dict[int, int] = {}
        self._end = 0.0

    def watch(self, rank: int, process: int) -> None:
        """From now on, do not wait for anything if this process of this host has died."""
        self._processes[rank] = process

    def write(self, key: StoreKey[Any], rank: int, value: Any) -> None:
        with self._store_or_loss():
            self._store.set(f"{key.name}/{rank}", encode(value).decode())

    def count(self, what: str, rank: int) -> int:
        """How often this was counted for the rank, this time included."""
        with self._store_or_loss():
            return int(self._store.add(f"{what}/{rank}", 1))

    def read(self, key: StoreKey[T], rank: int) -> T:
        """Wait for a rank's value; raises ``StoreTampered`` for one that no rank would have written."""
        value = self._wait(key.name, rank)
        try:
            if len(value) > _LONGEST:
                self.refuse(key, rank)
            found = key.decoder.decode(value)
        except (DecodeError, RecursionError):
            self.refuse(key, rank)
        return cast("T", printable(found)) if isinstance(found, str) else found

    def refuse(self, key: StoreKey[Any], rank: int, why: str = "") -> NoReturn:
        """Tell all ranks that the store holds what no rank has written, and raise it, or what was announced before."""
        if known := self.loss(0.0):
            raise PeerLost(known)
        detail = f" ({why})" if why else ""
        error = (
            f"the store holds something else than {key.means} for rank {self._names[rank]} "
            f"under {key.name}/{rank}{detail}: is somebody else writing to it?"
        )
        self.announce(error)
        raise StoreTampered(error)

    def _wait(self, name: str, rank: int) -> bytes:
        key, pause = f"{name}/{rank}", _SHORT_PAUSE
        self._end = self._end or monotonic() + self._timeout
        with self._store_or_loss():
            while not self._store.check([key]):
                if known := self.loss(0.0):
                    raise PeerLost(known)
                if seen := self._death() or self._lateness(name):
                    self.announce(seen)
                    raise PeerLost(seen)
                sleep(pause)
                pause = min(_LONG_PAUSE, 2 * pause)
            return bytes(self._store.get(key))

    def announce(self, loss: str) -> None:
        """Tell all ranks why this one is about to end, and wait a moment: the store may end with it."""
        with self._store_or_loss():
            self._store.set(_LOSS, loss)
        sleep(_READING)

    def loss(self, seconds: float) -> str:
        """What another rank announced, if it does within so many seconds; else ""."""
        end = monotonic() + seconds
        with self._store_or_loss():
            while not self._store.check([_LOSS]):
                if monotonic() >= end:
                    return ""
                sleep(_LONG_PAUSE)
            return printable(self._store.get(_LOSS).decode(errors="replace"))

    def _lateness(self, name: str) -> str:
        if monotonic() <= self._end:
            return ""
        late = [str(of) for rank, of in enumerate(self._names) if not self._store.check([f"{name}/{rank}"])]
        ranks = f"rank{'s' if len(late) > 1 else ''} {', '.join(late)}"
        return f"{ranks} did not arrive within {self._timeout:g} s (during {START})"

    def _death(self) -> str:
        dead = (self._names[rank] for rank, process in self._processes.items() if died(process))
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
        """Raise if a process that is watched has died."""
        if death := self._death():
            raise PeerLost(death)


def printable(text: str) -> str:
    """A text from outside as it may be shown: of bounded length, and without control characters."""
    return "".join(char if char.isprintable() else " " for char in text[:_LONGEST_TEXT])
