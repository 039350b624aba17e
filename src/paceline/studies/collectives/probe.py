"""Small measurements of what prices are made of: messages over Gloo, reducing in memory, meetings in shared memory.

None of them is an all-reduce of a size that the table has, and none is made after the first cell.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from paceline.collectives.over_torch import TorchTransport
from paceline.shm.operations import Operation
from paceline.studies.collectives.fit import AlphaBeta, fit_line
from paceline.studies.collectives.request import PROBED
from paceline.studies.collectives.room import BenchGroup
from paceline.studies.collectives.sides import Side
from paceline.studies.collectives.timing import calls_within, quartiles, share, timed

MESSAGES = (1_000, 4_000, 1_000_000, 3_000_000, 10_000_000)
"""Bytes of the messages that the link's figures are fitted to: small ones tell the latency, large ones the bandwidth.
Those in between depend on what buffers, and shapers with their bursts, let through at once, and would bend the line."""
EXCHANGES = 2
"""How many of them follow each other in a call."""
TURNS = 5
REDUCED = 2**20
"""Bytes that are reduced at once, as much as a large message brings."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What the probes say."""

    across: AlphaBeta | None
    """A message between hosts while one comes the other way; None on one host."""
    inside: AlphaBeta | None
    """A message inside a host while every worker there sends one; None where hosts have one worker."""
    reduce_seconds: float
    """Seconds a byte to combine two tensors in memory, while all workers do."""
    shared: Mapping[str, "Bent"]
    """All-reduces through shared memory, in place and elsewhere."""
    measured: tuple[dict[str, object], ...]
    """Every measurement."""


@dataclass(frozen=True, kw_only=True)
class Bent:
    """A line up to a size, and another one from there on."""

    limit: int
    small: AlphaBeta
    large: AlphaBeta

    def seconds(self, size: int) -> float:
        """The time for ``size`` bytes."""
        return (self.small if size <= self.limit else self.large).seconds(size)


class Prober:
    """Measures, and keeps what it measured."""

    def __init__(self, room: BenchGroup, operation: Operation, dtype: torch.dtype, seconds: float) -> None:
        """Each size is measured for so many seconds."""
        self._room, self._operation, self._dtype, self._seconds = room, operation, dtype, seconds
        self._element = torch.empty(0, dtype=dtype).element_size()
        self.measured: list[dict[str, object]] = []

    def exchange(self, name: str, members: Sequence[int]) -> AlphaBeta:
        """Members stand in a circle; each sends to the right and receives from the left, as schedules do it.

        A call is several exchanges, each begun when the one before is over: so are the rounds of a schedule, and what
        a link carries faster at first than later is spread alike. All ranks call this; those who are no member only
        keep the time.
        """
        transport, room = TorchTransport(), self._room
        out, into = (torch.zeros(max(MESSAGES), dtype=torch.uint8) for _ in range(2))
        place = members.index(room.rank) if room.rank in members else None

        def swap(size: int) -> None:
            if place is None:
                return
            for _ in range(EXCHANGES):
                arriving = transport.receive(into[:size], members[place - 1])
                leaving = transport.send(out[:size], members[(place + 1) % len(members)])
                arriving.wait()
                leaving.wait()

        times = self._times(name, {size: partial(swap, size) for size in MESSAGES})
        return fit_line([(size, seconds / EXCHANGES) for size, seconds in times.items()])

    def reducing(self) -> float:
        """Seconds a byte to combine what has arrived with what is held."""
        length = REDUCED // self._element
        held, came = (torch.zeros(16 * length, dtype=self._dtype) for _ in range(2))

        def combine() -> None:
            for start in range(0, len(held), length):
                self._operation.combine(held[start : start + length], came[start : start + length])

        return self._times("reduce", {held.nbytes: combine})[held.nbytes] / held.nbytes

    def shared(self, side: Side, limit: int) -> Bent:
        """All-reduces in shared memory: up to the limit all ranks combine all, with one meeting; then in shares."""
        found = self._times(
            side.name, {size: partial(side.reduce, self._part(side, size)) for size in PROBED}
        )
        below = [(size, seconds) for size, seconds in found.items() if size <= limit]
        beyond = [(size, seconds) for size, seconds in found.items() if size > limit]
        return Bent(limit=limit, small=fit_line(below), large=fit_line(beyond))

    def _part(self, side: Side, size: int) -> Tensor:
        return side.buffer[: size // self._element]

    def _times(self, name: str, works: Mapping[int, Callable[[], object]]) -> dict[int, float]:
        """The first quartile of each size, after a few calls that do not count.

        It is the link that is asked for: whatever else goes on here only adds, and a late wake-up costs more than a
        message. All sizes have their turns, again and again: what disturbs for a second disturbs all of them.
        """
        calls = {
            size: calls_within(self._seconds, min(timed(self._room, work, 3))) for size, work in works.items()
        }
        found: dict[int, list[float]] = {size: [] for size in works}
        for turn in range(TURNS):
            for size, work in works.items():
                found[size] += timed(self._room, work, share(calls[size], turn, TURNS))
        typical = {size: quartiles(times)[0] for size, times in found.items()}
        for size, seconds in typical.items():
            self.measured.append(
                {"probe": name, "bytes": size, "seconds": seconds, "calls": len(found[size])}
            )
        return typical
