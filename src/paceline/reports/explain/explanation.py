"""What happens in a collective, round by round, as data: the text, the page and the JSON are made from it."""

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType

from paceline.collectives import build_schedule
from paceline.collectives.schedule import Schedule, chunk_bounds, pipelined
from paceline.errors import UsageError, unknown
from paceline.reports.explain.request import DisplayLimits, ExplainRequest, Values, first_values, host_of_each

OPERATIONS: Mapping[str, Callable[[float, float], float]] = MappingProxyType(
    {"sum": operator.add, "mean": operator.add, "max": max, "min": min, "product": operator.mul}
)
"""What two numbers become; a mean is divided at the end."""


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """Chunks ``start`` to ``stop`` (excluded) from one rank to another."""

    source: int
    target: int
    start: int
    stop: int
    on_receive: str
    """What the target does: "reduce" or "replace"."""
    values: Values


@dataclass(frozen=True, slots=True)
class RankValues:
    """What every rank holds, between rounds."""

    values: tuple[Values, ...]
    parts: tuple[tuple[tuple[int, ...], ...], ...]
    """By rank and chunk, the ranks whose values are in it."""

    def finished(self, rank: int, chunk: int) -> bool:
        return len(self.parts[rank][chunk]) == len(self.parts)


@dataclass(frozen=True, slots=True)
class ExplainedRound:
    """A round, or what every rank does with its own result at the end; then there are no messages."""

    phase: str
    place: int
    """Which of the phase's rounds it is, from 1."""
    of: int
    messages: tuple[ShownMessage, ...]
    before: RankValues
    after: RankValues

    def sent(self, rank: int, chunk: int) -> bool:
        return any(m.source == rank and m.start <= chunk < m.stop for m in self.messages)

    def received(self, rank: int, chunk: int) -> bool:
        return any(m.target == rank and m.start <= chunk < m.stop for m in self.messages)


@dataclass(frozen=True, slots=True)
class Explanation:
    """A collective on values, from what each rank begins with to what all end with."""

    schedule: Schedule
    hosts: tuple[int, ...]
    op: str
    segments: int
    bounds: tuple[int, ...]
    """Where each chunk's values start, and the end."""
    start: RankValues
    steps: tuple[ExplainedRound, ...]

    @property
    def end(self) -> RankValues:
        return self.steps[-1].after if self.steps else self.start

    @property
    def messages(self) -> list[ShownMessage]:
        return [message for step in self.steps for message in step.messages]

    @property
    def across(self) -> int:
        return sum(self.hosts[m.source] != self.hosts[m.target] for m in self.messages)

    def sent(self, rank: int) -> int:
        return sum(len(m.values) for m in self.messages if m.source == rank)


def explain(request: ExplainRequest, limits: DisplayLimits) -> Explanation:
    """Play what was asked for; a ``UsageError`` where it cannot be shown within the limits."""
    if request.op not in OPERATIONS:
        raise unknown("operation", request.op, OPERATIONS)
    hosts = host_of_each(request, limits)
    schedule = pipelined(whole := build_schedule(request.schedule, hosts), request.segments)
    values = first_values(request, len(hosts), max(len(hosts), schedule.chunks))
    limits.check(len(hosts), len(values[0]))
    start = RankValues(values, tuple(((rank,),) * schedule.chunks for rank in range(len(hosts))))
    bounds = tuple(chunk_bounds(len(values[0]), schedule.chunks).tolist())
    steps = list(_steps(schedule, request.op, start, bounds))
    last = steps[-1].after if steps else start
    if not all(math.isfinite(value) for row in last.values for value in row):
        raise UsageError(
            f"the {request.op} of these values is too large for a 64-bit number: choose smaller ones"
        )
    if request.op == "mean" and len(hosts) > 1:
        means = tuple(tuple(value / len(hosts) for value in row) for row in last.values)
        steps.append(ExplainedRound("finish", 1, 1, (), last, RankValues(means, last.parts)))
    segments = schedule.chunks // whole.chunks
    return Explanation(schedule, hosts, request.op, segments, bounds, start, tuple(steps))


def _steps(schedule: Schedule, op: str, start: RankValues, bounds: Sequence[int]) -> Iterator[ExplainedRound]:
    before = start
    for phase, group in groupby(schedule.each_round(), key=lambda turn: turn.phase):
        rounds = list(group)
        for place, turn in enumerate(rounds, start=1):
            columns = (turn.sources, turn.targets, turn.starts, turn.stops, turn.reduces)
            messages = []
            for source, target, first, stop, reduces in zip(*(c.tolist() for c in columns), strict=True):
                sent = before.values[source][bounds[first] : bounds[stop]]
                how = "reduce" if reduces else "replace"
                messages.append(ShownMessage(source, target, first, stop, how, sent))
            after = _after(messages, before, op, bounds)
            yield ExplainedRound(phase, place, len(rounds), tuple(messages), before, after)
            before = after


def _after(
    messages: Sequence[ShownMessage], before: RankValues, op: str, bounds: Sequence[int]
) -> RankValues:
    values, parts = [list(row) for row in before.values], [list(row) for row in before.parts]
    for sent in messages:
        mine = slice(bounds[sent.start], bounds[sent.stop])
        held = values[sent.target]
        reduces = sent.on_receive == "reduce"
        held[mine] = map(OPERATIONS[op], held[mine], sent.values) if reduces else sent.values
        for chunk in range(sent.start, sent.stop):
            arrived, kept = before.parts[sent.source][chunk], parts[sent.target][chunk]
            parts[sent.target][chunk] = tuple(sorted({*kept, *arrived})) if reduces else arrived
    return RankValues(tuple(map(tuple, values)), tuple(map(tuple, parts)))
