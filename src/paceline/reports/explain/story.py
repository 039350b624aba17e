"""What happens in a collective, round by round, as data: the text, the page and the JSON are told from it."""

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Any

from paceline.collectives.schedule import Round, Schedule, chunk_bounds
from paceline.costs.bandwidth import lower_bound_bytes
from paceline.errors import UsageError
from paceline.reports.explain.request import Values

OPERATIONS: Mapping[str, Callable[[float, float], float]] = MappingProxyType(
    {"sum": operator.add, "mean": operator.add, "max": max, "min": min, "product": operator.mul}
)
"""What two numbers become; a mean is divided at the end."""

Parts = tuple[tuple[int, ...], ...]
"""Per chunk, the ranks whose values are in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """Chunks ``start`` to ``stop`` (excluded) from one rank to another."""

    source: int
    target: int
    start: int
    stop: int
    reduces: bool
    values: Values


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """What every rank holds, between rounds."""

    values: tuple[Values, ...]
    parts: tuple[Parts, ...]

    def finished(self, rank: int, chunk: int) -> bool:
        """Whether everybody's values are in this chunk of this rank."""
        return len(self.parts[rank][chunk]) == len(self.parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A round, or what every rank does with its own result at the end; then there are no messages."""

    phase: str
    place: int
    """Which of the phase's rounds it is, from 1."""
    of: int
    messages: tuple[Message, ...]
    before: Moment
    after: Moment

    def sent(self, rank: int, chunk: int) -> bool:
        """Whether the rank sends this chunk."""
        return any(m.source == rank and m.start <= chunk < m.stop for m in self.messages)

    def received(self, rank: int, chunk: int) -> bool:
        """Whether the rank receives this chunk."""
        return any(m.target == rank and m.start <= chunk < m.stop for m in self.messages)


@dataclass(frozen=True, kw_only=True, slots=True)
class Story:
    """A collective on values, from what each rank begins with to what all end with."""

    schedule: Schedule
    hosts: tuple[int, ...]
    op: str
    segments: int
    bounds: tuple[int, ...]
    """Where each chunk's values start, and the end."""
    start: Moment
    steps: tuple[Step, ...]

    @property
    def end(self) -> Moment:
        """What every rank holds at the end."""
        return self.steps[-1].after if self.steps else self.start

    @property
    def length(self) -> int:
        """Values a rank."""
        return self.bounds[-1]

    @property
    def agreed(self) -> bool:
        """Whether all ranks hold the same at the end."""
        return len(set(self.end.values)) == 1

    def sent(self, rank: int) -> int:
        """How many values a rank sends in all."""
        return sum(len(m.values) for step in self.steps for m in step.messages if m.source == rank)

    @property
    def messages(self) -> tuple[Message, ...]:
        """All of them, in order."""
        return tuple(message for step in self.steps for message in step.messages)

    @property
    def across(self) -> int:
        """How many messages go from one host to another."""
        return sum(self.hosts[m.source] != self.hosts[m.target] for m in self.messages)

    @property
    def least(self) -> int:
        """Values that the busiest rank of any all-reduce must send."""
        return lower_bound_bytes(self.length, 1, self.schedule.workers)

    def chunk(self, values: Values, start: int, stop: int | None = None) -> Values:
        """The values of one chunk, or of several."""
        return values[self.bounds[start] : self.bounds[start + 1 if stop is None else stop]]


def tell(
    schedule: Schedule,
    op: str,
    hosts: Sequence[int],
    values: Sequence[Values],
    segments: int = 1,
) -> Story:
    """Play the schedule on these values, a row a rank, and write down what happens."""
    bounds = tuple(chunk_bounds(len(values[0]), schedule.chunks).tolist())
    begin = _moments(schedule, op, values)
    start = next(begin)
    steps = list(_steps(schedule, start, begin, bounds))
    last = steps[-1].after if steps else start
    _check_finite(last.values, op)
    if op == "mean" and schedule.workers > 1:
        means = tuple(tuple(value / schedule.workers for value in row) for row in last.values)
        after = Moment(values=means, parts=last.parts)
        steps.append(Step(phase="finish", place=1, of=1, messages=(), before=last, after=after))
    return Story(
        schedule=schedule,
        hosts=tuple(hosts),
        op=op,
        segments=segments,
        bounds=bounds,
        start=start,
        steps=tuple(steps),
    )


def _moments(schedule: Schedule, op: str, values: Sequence[Values]) -> Iterator[Moment]:
    """The start, and what follows each round; whose values are where is played by the same schedule."""
    workers, chunks, of_two = schedule.workers, schedule.chunks, OPERATIONS[op]
    rows = [[float(value) for value in row] for row in values]
    # A mark for each chunk and rank, chunk by chunk, so that a chunk's marks travel with it.
    whose = [[other == rank for _ in range(chunks) for other in range(workers)] for rank in range(workers)]
    yield Moment(values=_rows(rows), parts=_parts(whose, chunks))
    moved = _play(schedule, rows, of_two)
    marked = _play(schedule, whose, operator.or_)
    for held, marks in zip(moved, marked, strict=True):
        yield Moment(values=_rows(held), parts=_parts(marks, chunks))


def _play(
    schedule: Schedule, rows: list[list[Any]], of_two: Callable[[Any, Any], Any]
) -> Iterator[list[list[Any]]]:
    """What every rank holds after each round."""
    bounds = chunk_bounds(len(rows[0]), schedule.chunks).tolist()
    for turn in schedule.each_round():
        before, rows = rows, [list(row) for row in rows]
        for source, target, start, stop, reduces in _each(turn):
            part = slice(bounds[start], bounds[stop])
            sent = before[source][part]
            rows[target][part] = map(of_two, rows[target][part], sent) if reduces else sent
        yield rows


def _each(turn: Round) -> Iterator[tuple[int, int, int, int, bool]]:
    columns = (turn.sources, turn.targets, turn.starts, turn.stops, turn.reduces)
    return zip(*(column.tolist() for column in columns), strict=True)


def _rows(held: Sequence[Sequence[float]]) -> tuple[Values, ...]:
    return tuple(map(tuple, held))


def _parts(marked: Sequence[Sequence[bool]], chunks: int) -> tuple[Parts, ...]:
    size = len(marked[0]) // chunks
    return tuple(
        tuple(
            tuple(rank for rank, there in enumerate(marks[chunk * size : (chunk + 1) * size]) if there)
            for chunk in range(chunks)
        )
        for marks in marked
    )


def _steps(
    schedule: Schedule, start: Moment, moments: Iterator[Moment], bounds: tuple[int, ...]
) -> Iterator[Step]:
    before = start
    for _, group in groupby(schedule.each_round(), key=lambda turn: turn.phase):
        rounds = list(group)
        for place, turn in enumerate(rounds, start=1):
            after = next(moments)
            yield Step(
                phase=turn.phase,
                place=place,
                of=len(rounds),
                messages=_messages(turn, before, bounds),
                before=before,
                after=after,
            )
            before = after


def _messages(turn: Round, before: Moment, bounds: tuple[int, ...]) -> tuple[Message, ...]:
    return tuple(
        Message(
            source=source,
            target=target,
            start=start,
            stop=stop,
            reduces=reduces,
            values=before.values[source][bounds[start] : bounds[stop]],
        )
        for source, target, start, stop, reduces in _each(turn)
    )


def _check_finite(rows: Sequence[Values], op: str) -> None:
    if not all(math.isfinite(value) for row in rows for value in row):
        raise UsageError(f"the {op} of these values is too large for a 64-bit number: choose smaller ones")
