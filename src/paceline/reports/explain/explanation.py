"""What happens in a collective, round by round: the JSON document, from which the text and the page are made."""

import math
import operator
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, groupby
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from paceline.collectives import build_schedule
from paceline.collectives.schedule import Round, Schedule, chunk_bounds, pipelined
from paceline.collectives.traffic import lower_bound_bytes
from paceline.errors import UsageError, unknown
from paceline.reports.explain import sentences
from paceline.reports.explain.sentences import ELEMENT, Receipt, ShownMessage, Values

OPERATIONS: Mapping[str, Callable[[float, float], float]] = MappingProxyType(
    {"sum": operator.add, "mean": operator.add, "max": max, "min": min, "product": operator.mul}
)
"""What two numbers become; a mean is divided at the end."""
FINISH = "finish"
"""The phase in which every rank divides its own result, without messages."""
Parts = tuple[tuple[tuple[int, ...], ...], ...]
"""By rank and chunk, the ranks whose values are in it."""


class DisplayLimits(NamedTuple):
    """How much a way of showing can take before it cannot be read."""

    workers: int
    length: int
    what: str

    def check(self, workers: int, length: int = 0) -> None:
        for number, what, most, written in (
            (workers, "workers", self.workers, WRITTEN.workers),
            (length, "values per worker", self.length, WRITTEN.length),
        ):
            if number > most:
                larger = f"; as JSON, up to {written}" if written > most else ""
                raise UsageError(f"{number} {what} are too many {self.what}: choose at most {most}{larger}")


DRAWN = DisplayLimits(16, 64, "to draw")
WRITTEN = DisplayLimits(32, 256, "for one JSON document")


@dataclass(frozen=True, kw_only=True)
class ExplainRequest:
    """None means that it was not asked for; the texts are as people write them."""

    schedule: str
    op: str = "sum"
    workers: int | None = None
    hosts: str | None = None
    """Workers a host: "2,2"."""
    values: str | None = None
    """A row a worker: "5 2; 3 8"."""
    length: int | None = None
    seed: int | None = None
    segments: int = 1

    def __post_init__(self) -> None:
        for setting, least, most in (("workers", 1, 0), ("length", 1, 0), ("seed", 0, 0), ("segments", 1, 8)):
            number = getattr(self, setting)
            if number is not None and (number < least or 0 < most < number):
                allowed = f"{least} to {most}" if most else f"at least {least}"
                raise UsageError(f"{setting} {number} is out of range: choose {allowed}")
        for setting in ("length", "seed"):
            if self.values is not None and (given := getattr(self, setting)) is not None:
                raise UsageError(
                    f"{setting} {given} cannot be used with values, which say it all; leave one of them out"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankValues:
    """What every rank holds, between rounds."""

    values: tuple[Values, ...]
    parts: Parts

    def finished(self, rank: int, chunk: int) -> bool:
        return len(self.parts[rank][chunk]) == len(self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedRound(RankValues):
    """A round, and what every rank holds after it."""

    round: int | None
    phase: str
    title: str
    sentence: str
    progress: str
    messages: tuple[ShownMessage, ...] = ()
    received: tuple[Receipt, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A collective on values, from what each rank begins with to what all end with; ``asdict`` is the JSON document."""

    schema: int = 2
    schedule: str
    op: str
    workers: int
    hosts: tuple[int, ...]
    segments: int
    chunks: int
    bounds: tuple[int, ...]
    """Where each chunk's values start, and the end."""
    about: str
    how: str
    opening: str
    start: RankValues
    steps: tuple[ExplainedRound, ...]
    result: Values
    agreed: Literal[True] = True
    """For readers of this schema: a schedule whose ranks end with different values is refused."""
    totals: Mapping[str, Any]
    summary: Sequence[str]

    @property
    def states(self) -> tuple[RankValues, ...]:
        return (self.start, *self.steps)


def explain(request: ExplainRequest, limits: DisplayLimits) -> Explanation:
    """Play what was asked for; a ``UsageError`` where it cannot be shown within the limits."""
    if request.op not in OPERATIONS:
        raise unknown("operation", request.op, OPERATIONS)
    hosts = _host_of_each(request, limits)
    schedule = pipelined(whole := build_schedule(request.schedule, hosts), request.segments)
    values = _first_values(request, len(hosts), max(len(hosts), schedule.chunks))
    limits.check(len(hosts), length := len(values[0]))
    parts = tuple(((rank,),) * schedule.chunks for rank in range(len(hosts)))
    start = RankValues(values=values, parts=parts)
    bounds = tuple(chunk_bounds(length, schedule.chunks).tolist())
    steps = tuple(_play(schedule, request.op, start, bounds))
    end = (start, *steps)[-1].values
    _check_result(request, end)
    about, how = sentences.about(request.schedule)
    totals = _totals(schedule, hosts, [message for step in steps for message in step.messages], length)
    segments = schedule.chunks // whole.chunks
    return Explanation(
        schedule=schedule.name,
        op=request.op,
        workers=schedule.workers,
        hosts=hosts,
        segments=segments,
        chunks=schedule.chunks,
        bounds=bounds,
        about=about,
        how=how,
        opening=sentences.opening(schedule, segments, length),
        start=start,
        steps=steps,
        result=end[0],
        totals=totals,
        summary=[
            f"{request.op}: {sentences.outcome(end[0], len(hosts))}",
            *sentences.traffic(totals, hosts, length),
        ],
    )


def _totals(
    schedule: Schedule, hosts: Sequence[int], messages: Sequence[ShownMessage], length: int
) -> dict[str, Any]:
    sent = [sum(len(m.values) for m in messages if m.source == rank) for rank in range(schedule.workers)]
    least = lower_bound_bytes(length, 1, schedule.workers)
    return {
        "rounds": schedule.round_count,
        "messages": len(messages),
        "messages_between_hosts": sum(hosts[m.source] != hosts[m.target] for m in messages),
        "values_sent": sent,
        "bytes_sent": [ELEMENT * values for values in sent],
        "lower_bound_values": least,
        "lower_bound_bytes": ELEMENT * least,
    }


def _play(schedule: Schedule, op: str, start: RankValues, bounds: Sequence[int]) -> Iterator[ExplainedRound]:
    held, numbers = start, count(1)
    for phase, group in groupby(schedule.each_round(), key=lambda turn: turn.phase):
        rounds = list(group)
        for place, turn in enumerate(rounds, start=1):
            messages = tuple(_messages(turn, held, bounds))
            values, parts = _after(messages, held, op, bounds)
            held = ExplainedRound(
                round=next(numbers),
                phase=phase,
                title=f"{phase.replace(', ', ' and ')}, round {place} of {len(rounds)}",
                sentence=sentences.sentence(schedule, op, messages),
                progress=sentences.progress(parts),
                messages=messages,
                received=sentences.received(op, bounds, messages, held.values, values),
                values=values,
                parts=parts,
            )
            yield held
    if op == "mean" and schedule.workers > 1:
        yield ExplainedRound(
            round=None,
            phase=FINISH,
            title=f"divide by {schedule.workers}",
            sentence=f"Every process divides what it holds by {schedule.workers}: the sum becomes the mean.",
            progress=sentences.progress(held.parts),
            values=tuple(tuple(value / schedule.workers for value in row) for row in held.values),
            parts=held.parts,
        )


def _messages(turn: Round, held: RankValues, bounds: Sequence[int]) -> Iterator[ShownMessage]:
    columns = (column.tolist() for column in turn.columns)
    for source, target, start, stop, reduces in zip(*columns, strict=True):
        sent = held.values[source][bounds[start] : bounds[stop]]
        yield ShownMessage(source, target, start, stop, "reduce" if reduces else "replace", sent)


def _after(
    messages: Sequence[ShownMessage], before: RankValues, op: str, bounds: Sequence[int]
) -> tuple[tuple[Values, ...], Parts]:
    values, parts = [list(row) for row in before.values], [list(row) for row in before.parts]
    for sent in messages:
        mine = slice(bounds[sent.start], bounds[sent.stop])
        held = values[sent.target]
        reduces = sent.on_receive == "reduce"
        held[mine] = map(OPERATIONS[op], held[mine], sent.values) if reduces else sent.values
        for chunk in range(sent.start, sent.stop):
            arrived, kept = before.parts[sent.source][chunk], parts[sent.target][chunk]
            parts[sent.target][chunk] = tuple(sorted({*kept, *arrived})) if reduces else arrived
    return tuple(map(tuple, values)), tuple(map(tuple, parts))


def _check_result(request: ExplainRequest, end: Sequence[Values]) -> None:
    if not all(math.isfinite(value) for row in end for value in row):
        raise UsageError(
            f"the {request.op} of these values is too large for a 64-bit number: choose smaller ones"
        )
    if other := next((rank for rank, row in enumerate(end) if row != end[0]), None):
        raise UsageError(
            f"schedule {request.schedule!r} is wrong: its ranks 0 and {other} end with different values; "
            "send every rank's part to all others, or the result back to them"
        )


def _host_of_each(request: ExplainRequest, limits: DisplayLimits) -> tuple[int, ...]:
    """The host of every worker; how many there are is said by workers, hosts or values, which must agree.

    Too many to show are refused before anything is made of them.
    """
    pieces = request.hosts.split(",") if request.hosts is not None else ()
    counts = [int(piece) if piece.strip().isdecimal() else 0 for piece in pieces]
    if 0 in counts:
        raise UsageError(
            f"hosts {request.hosts}: write how many workers each host has, at least 1, such as 2,2"
        )
    workers = request.workers or sum(counts) or (4 if request.values is None else len(_rows(request.values)))
    limits.check(workers, request.length or 0)
    if not counts:
        halves = request.schedule == "hierarchical" and workers > 1
        return tuple(2 * rank // workers if halves else 0 for rank in range(workers))
    if sum(counts) != workers:
        raise UsageError(
            f"hosts {request.hosts} have {sum(counts)} workers and {workers} workers were asked for; "
            "make them agree, or leave the number of workers out"
        )
    return tuple(host for host, count in enumerate(counts) for _ in range(count))


def _first_values(request: ExplainRequest, workers: int, usual_length: int) -> tuple[Values, ...]:
    """What each worker begins with: the user's own values, or small ones drawn from the seed.

    No two workers draw the same value in the same place, so that it shows whose values are largest.
    """
    if request.values is not None:
        return _own_values(request.values, workers)
    drawn = random.Random(1 if request.seed is None else request.seed)  # noqa: S311
    choices = range(1, max(9, 2 * workers) + 1)
    columns = [drawn.sample(choices, workers) for _ in range(request.length or usual_length)]
    return tuple(tuple(float(column[rank]) for column in columns) for rank in range(workers))


def _own_values(text: str, workers: int) -> tuple[Values, ...]:
    rows = _rows(text)
    wrong = [word for row in rows for word in row if not _is_number(word)]
    if len(rows) != workers:
        problem = f"{len(rows)} rows for {workers} workers"
    elif len({len(row) for row in rows}) > 1:
        problem = f"rows of {', '.join(str(len(row)) for row in rows)} values"
    elif wrong:
        problem = f"{wrong[0]!r} is not a number"
    elif not rows[0]:
        problem = "there is no value"
    else:
        return tuple(tuple(map(float, row)) for row in rows)
    raise UsageError(f"values {text!r}: {problem}; write as many numbers for each worker, such as '5 2; 3 8'")


def _rows(text: str) -> list[list[str]]:
    """The words of each row; a last semicolon may be there or not, and commas may stand between values."""
    return [row.replace(",", " ").split() for row in text.strip().removesuffix(";").split(";")]


def _is_number(word: str) -> bool:
    try:
        return math.isfinite(float(word))
    except ValueError:
        return False
