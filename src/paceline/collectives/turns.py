"""Rounds that are alike, written once: a ring of 1,000 ranks is two rounds and a rule, not two million transfers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from paceline.collectives.schedule import Round, Transfer


@dataclass(frozen=True, slots=True)
class Turns(Sequence[Round]):
    """The same messages again and again; each time they carry the chunk before, counted round.

    In ``first`` every message is one chunk; round i carries chunk c - i, modulo ``chunks``, where ``first`` carries c.
    """

    first: Round
    times: int
    chunks: int

    def __len__(self) -> int:
        return self.times

    @overload
    def __getitem__(self, index: int) -> Round: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Round]: ...
    def __getitem__(self, index: int | slice) -> Round | Sequence[Round]:
        """The round, made when it is asked for."""
        if isinstance(index, slice):
            return tuple(self._turn(turn) for turn in range(self.times)[index])
        return self._turn(range(self.times)[index])

    def __iter__(self) -> Iterator[Round]:
        return map(self._turn, range(self.times))

    def _turn(self, turn: int) -> Round:
        if turn == 0:
            return self.first
        return Round(self.first.phase, tuple(self._carry(sent, turn) for sent in self.first.transfers))

    def _carry(self, sent: Transfer, turn: int) -> Transfer:
        chunk = (sent.start - turn) % self.chunks
        return Transfer(sent.source, sent.target, chunk, chunk + 1, sent.then)


@dataclass(frozen=True, slots=True)
class Joined(Sequence[Round]):
    """Parts of a schedule, one after the other."""

    parts: tuple[Sequence[Round], ...]

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    @overload
    def __getitem__(self, index: int) -> Round: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Round]: ...
    def __getitem__(self, index: int | slice) -> Round | Sequence[Round]:
        """The round, wherever it lies."""
        if isinstance(index, slice):
            return tuple(self[place] for place in range(len(self))[index])
        place = range(len(self))[index]
        for part in self.parts:
            if place < len(part):
                return part[place]
            place -= len(part)
        raise AssertionError("unreachable")

    def __iter__(self) -> Iterator[Round]:
        return (turn for part in self.parts for turn in part)


def alike(rounds: Sequence[Round]) -> Iterator[tuple[Round, int]]:
    """Each round with how many of its like follow in a row, itself counted; only ``Turns`` say so, nobody compares."""
    match rounds:
        case Turns(first, times):
            if times:
                yield first, times
        case Joined(parts):
            for part in parts:
                yield from alike(part)
        case _:
            yield from ((turn, 1) for turn in rounds)
