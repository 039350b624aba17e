"""A schedule played on what ranks hold, a round at a time."""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from types import MappingProxyType

from paceline.collectives.schedule import Round, Schedule
from paceline.reports.explain import sentences
from paceline.reports.explain.document import (
    Cell,
    Cells,
    ExplainedRound,
    Parts,
    RankValues,
    ShownMessage,
    Values,
    numbers_in,
)

Combine = Callable[[float, float], float]
MessageSize = Callable[[Sequence[Cell]], int]
"""Bytes of a message of these cells."""

OPERATIONS: Mapping[str, Combine] = MappingProxyType(
    {"sum": operator.add, "mean": operator.add, "max": max, "min": min, "product": operator.mul}
)
"""What two numbers become; a mean is divided at the end."""
ELEMENT = 4
"""Bytes of a float32, in which gradients usually travel."""


def as_float32(cells: Sequence[Cell]) -> int:
    return ELEMENT * len(numbers_in(cells))


def play(
    schedule: Schedule, start: RankValues, numbers: Iterator[int], combine: Combine, size: MessageSize
) -> Iterator[tuple[RankValues, ExplainedRound]]:
    """Each round, still without words, and what ranks held before it."""
    held = start
    for phase, group in groupby(schedule.each_round(), key=lambda turn: turn.phase):
        rounds = list(group)
        for place, turn in enumerate(rounds, start=1):
            messages = tuple(_messages(turn, held, size))
            cells, parts = _after(messages, held, combine)
            after = ExplainedRound(
                round=next(numbers),
                phase=phase,
                title=f"{phase.replace(', ', ' and ')}, round {place} of {len(rounds)}",
                messages=messages,
                cells=cells,
                parts=parts,
            )
            yield held, after
            held = after


def explained_rounds(
    schedule: Schedule,
    op: str,
    start: RankValues,
    numbers: Iterator[int],
    combine: Combine | None = None,
    size: MessageSize = as_float32,
) -> Iterator[ExplainedRound]:
    """The rounds of a schedule that reduces numbers, in words."""
    for before, after in play(schedule, start, numbers, combine or OPERATIONS[op], size):
        yield replace(
            after,
            sentence=sentences.sentence(schedule, op, after.messages),
            progress=sentences.progress(after.parts),
            received=sentences.received(op, before, after),
        )


def in_chunks(rows: Sequence[Values], bounds: Sequence[int]) -> RankValues:
    """What ranks hold at first, in chunks with these bounds."""
    spans = [slice(start, stop) for start, stop in pairwise(bounds)]
    return RankValues(
        cells=tuple(tuple(row[span] for span in spans) for row in rows),
        parts=tuple(((rank,),) * len(spans) for rank in range(len(rows))),
    )


def _messages(turn: Round, held: RankValues, size: MessageSize) -> Iterator[ShownMessage]:
    columns = (column.tolist() for column in turn.columns)
    for source, target, start, stop, reduces in zip(*columns, strict=True):
        sent = held.cells[source][start:stop]
        yield ShownMessage(source, target, start, stop, "reduce" if reduces else "replace", sent, size(sent))


def _after(messages: Sequence[ShownMessage], before: RankValues, combine: Combine) -> tuple[Cells, Parts]:
    cells, parts = [list(row) for row in before.cells], [list(row) for row in before.parts]
    for sent in messages:
        for column, cell in zip(range(sent.start, sent.stop), sent.cells, strict=True):
            held, arrived = cells[sent.target], before.parts[sent.source][column]
            kept = parts[sent.target][column]
            if sent.on_receive == "reduce":
                both = zip(numbers_in([held[column]]), numbers_in([cell]), strict=True)
                held[column] = tuple(combine(one, other) for one, other in both)
                parts[sent.target][column] = tuple(sorted({*kept, *arrived}))
            else:
                held[column] = cell
                parts[sent.target][column] = arrived
    return tuple(map(tuple, cells)), tuple(map(tuple, parts))
