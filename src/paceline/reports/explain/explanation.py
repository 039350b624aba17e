"""What happens in a collective, round by round."""

import math
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from paceline.codecs import NO_CODEC, check_codec
from paceline.collectives import build_schedule
from paceline.collectives.schedule import Schedule, chunk_bounds, pipelined
from paceline.collectives.traffic import lower_bound_bytes
from paceline.errors import UsageError, unknown
from paceline.reports.explain import sentences
from paceline.reports.explain.document import (
    ExplainedRound,
    ExplainedStage,
    Explanation,
    RankValues,
    ShownMessage,
    Values,
    numbers_in,
)
from paceline.reports.explain.playing import ELEMENT, OPERATIONS, explained_rounds, in_chunks
from paceline.reports.explain.request import DisplayLimits, ExplainRequest, first_values, host_of_each


def explain(request: ExplainRequest, limits: DisplayLimits) -> Explanation:
    """Play what was asked for; a ``UsageError`` where it cannot be shown within the limits."""
    if request.op not in OPERATIONS:
        raise unknown("operation", request.op, OPERATIONS)
    hosts = host_of_each(request, limits)
    schedule = pipelined(whole := build_schedule(request.schedule, hosts), request.segments)
    if request.codec != NO_CODEC:
        check_codec(request.codec)
        from paceline.reports.explain.encoded import explain_encoded  # it needs torch

        return explain_encoded(request, limits, hosts, schedule)
    small = [float(number) for number in range(1, max(9, 2 * len(hosts)) + 1)]
    values = first_values(request, len(hosts), max(len(hosts), schedule.chunks), small)
    limits.check(len(hosts), length := len(values[0]))
    start = in_chunks(values, chunk_bounds(length, schedule.chunks).tolist())
    stage = ExplainedStage(
        columns=sentences.chunk_columns(schedule.chunks),
        start=start,
        steps=tuple(_steps(schedule, request.op, start)),
    )
    end = stage.states[-1].values
    check_result(request, end)
    about, how = sentences.about(request.schedule)
    totals = _totals(schedule, hosts, [message for step in stage.steps for message in step.messages], length)
    segments = schedule.chunks // whole.chunks
    return Explanation(
        schedule=schedule.name,
        op=request.op,
        workers=schedule.workers,
        hosts=hosts,
        segments=segments,
        about=about,
        how=how,
        opening=sentences.opening(schedule, segments, length),
        stages=(stage,),
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
    sent = [
        sum(len(numbers_in(m.cells)) for m in messages if m.source == rank)
        for rank in range(schedule.workers)
    ]
    least = lower_bound_bytes(length, 1, schedule.workers)
    return {
        **count_messages(hosts, messages),
        "rounds": schedule.round_count,
        "values_sent": sent,
        "lower_bound_values": least,
        "lower_bound_bytes": ELEMENT * least,
    }


def count_messages(hosts: Sequence[int], messages: Sequence[ShownMessage]) -> dict[str, Any]:
    return {
        "messages": len(messages),
        "messages_between_hosts": sum(hosts[m.source] != hosts[m.target] for m in messages),
        "bytes_sent": [sum(m.bytes for m in messages if m.source == rank) for rank, _ in enumerate(hosts)],
    }


def _steps(schedule: Schedule, op: str, start: RankValues) -> Iterator[ExplainedRound]:
    rounds = tuple(explained_rounds(schedule, op, start, count(1)))
    yield from rounds
    held, workers = (start, *rounds)[-1], schedule.workers
    if op == "mean" and workers > 1:
        divided = tuple(
            tuple(tuple(value / workers for value in numbers_in([cell])) for cell in row)
            for row in held.cells
        )
        yield ExplainedRound(
            phase="finish",
            title=f"divide by {workers}",
            sentence=f"Every process divides what it holds by {workers}: the sum becomes the mean.",
            cells=divided,
            parts=held.parts,
        )


def check_result(request: ExplainRequest, end: Sequence[Values], bits: int = 64) -> None:
    if not all(math.isfinite(value) for row in end for value in row):
        raise UsageError(
            f"the {request.op} of these values is too large for a {bits}-bit number: choose smaller ones"
        )
    if other := next((rank for rank, row in enumerate(end) if row != end[0]), None):
        raise UsageError(
            f"schedule {request.schedule!r} is wrong: its ranks 0 and {other} end with different values; "
            "send every rank's part to all others, or the result back to them"
        )
