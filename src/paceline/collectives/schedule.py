"""A collective as data: rounds of messages among ranks, as arrays. Executed, priced and drawn from this one object."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt

from paceline.errors import UsageError

Ranks = npt.NDArray[np.int64]
"""One entry a message, or a rank."""

MESSAGE = 2**20
"""Bytes of the largest message that is not cut."""
MOST_SEGMENTS = 16
"""Each segment more costs every rank its messages of all rounds."""


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """Messages that leave at the same time; each carries what its source held before the round.

    ``sources[i]`` sends its chunks ``starts[i]`` to ``stops[i]`` (excluded) to ``targets[i]``. A rank takes in what it
    receives in the order of the arrays.
    """

    phase: str
    """What this part of the collective does, for people: "share-reduce"."""
    sources: Ranks
    targets: Ranks
    starts: Ranks
    stops: Ranks
    reduces: npt.NDArray[np.bool_]
    """Whether the target combines a message with what it holds (target op= source), or replaces what it holds."""
    times: int = 1
    """Rounds in a row: messages of one chunk each, and each round carries the chunk before, modulo all chunks."""

    @property
    def columns(self) -> tuple[Ranks, Ranks, Ranks, Ranks, npt.NDArray[np.bool_]]:
        return self.sources, self.targets, self.starts, self.stops, self.reduces

    @property
    def lengths(self) -> Ranks:
        return self.stops - self.starts


def _round(
    reduces: bool,
    phase: str,
    sources: Ranks,
    targets: Ranks,
    starts: Ranks | int,
    stops: Ranks | int,
    times: int = 1,
) -> Round:
    shape = np.broadcast(sources, targets).shape
    columns = [np.broadcast_to(np.asarray(one, np.int64), shape) for one in (sources, targets, starts, stops)]
    return Round(phase, columns[0], columns[1], columns[2], columns[3], np.full(shape, reduces), times)


reducing = partial(_round, True)
"""A round in which the targets combine what they receive with what they hold."""
replacing = partial(_round, False)
"""A round in which the targets put what they receive in the place of what they hold."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """An all-reduce among ``workers`` ranks whose tensors are cut into ``chunks`` equal parts."""

    name: str
    workers: int
    chunks: int
    rounds: tuple[Round, ...]
    """Like rounds in a row are written once: a ring of 1,000 ranks is two of them, not two million messages."""

    @property
    def round_count(self) -> int:
        return sum(turn.times for turn in self.rounds)

    @property
    def description(self) -> str:
        return f"{self.name} ({self.workers} workers, {self.chunks} chunks, {self.round_count} rounds)"

    def each_round(self) -> Iterator[Round]:
        for turn in self.rounds:
            for later in range(turn.times):
                starts = (turn.starts - later) % self.chunks
                yield turn if turn.times == 1 else replace(turn, starts=starts, stops=starts + 1, times=1)

    def segments(self, nbytes: int) -> int:
        """In how many segments a tensor of ``nbytes`` travels: messages of 1 MiB at most, up to 16 segments.

        Segments use links that would be idle meanwhile (``benchmarks/segments.py``), so a schedule in which every rank
        sends in every round goes in one piece.
        """
        busy, widest = self._busy_and_widest
        return 1 if busy else max(1, min(MOST_SEGMENTS, -(-(nbytes * widest // self.chunks) // MESSAGE)))

    @cached_property
    def _busy_and_widest(self) -> tuple[bool, int]:
        """Whether every rank sends in every round, and the chunks of the largest message."""
        busy = all(len(np.unique(turn.sources)) == self.workers for turn in self.rounds)
        return busy, max((int(turn.lengths.max(initial=0)) for turn in self.rounds), default=0)


def pipelined(schedule: Schedule, segments: int) -> Schedule:
    """Cut the tensor into segments that are pipelined through the schedule.

    Wave w carries segment s through round w - s: one segment is reduced while the next one travels. Chunk c of segment
    s becomes chunk s * chunks + c. The messages of a pair stay apart, the segment that started first in front.
    """
    if segments < 1:
        raise UsageError(f"{segments} segments cannot hold a tensor: there must be at least 1")
    if segments == 1 or not schedule.rounds:
        return schedule
    rounds = list(schedule.each_round())
    waves = []
    for wave in range(len(rounds) + segments - 1):
        later = range(max(0, wave - len(rounds) + 1), min(segments, wave + 1))
        waves.append(_joined([(rounds[wave - segment], segment * schedule.chunks) for segment in later]))
    return replace(schedule, chunks=segments * schedule.chunks, rounds=tuple(waves))


def _joined(under_way: Sequence[tuple[Round, int]]) -> Round:
    phases = dict.fromkeys(turn.phase for turn, _ in reversed(under_way))
    shifted = [
        replace(turn, starts=turn.starts + by, stops=turn.stops + by).columns for turn, by in under_way
    ]
    sources, targets, starts, stops, reduces = map(np.concatenate, zip(*shifted, strict=True))
    return Round(", ".join(phases), sources, targets, starts, stops, reduces)


def chunk_bounds(length: int, chunks: int) -> Ranks:
    """Where each chunk of ``length`` elements starts, and the end: sizes differ by at most one, some may be empty."""
    return np.arange(chunks + 1) * length // chunks


def number_hosts(names: Sequence[str]) -> list[int]:
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return [numbers[name] for name in names]
