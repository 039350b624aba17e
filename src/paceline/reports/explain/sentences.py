"""Sentences about a collective, the same ones in the text, on the page and in the JSON."""

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from paceline.collectives import find_schedule
from paceline.collectives.schedule import Schedule
from paceline.reports.text import counted
from paceline.units import show_bytes

COMBINES: Mapping[str, str] = MappingProxyType(
    {
        "sum": "adds {it} to what it holds",
        "mean": "adds {it} to what it holds",
        "max": "keeps the larger of {it} and what it holds",
        "min": "keeps the smaller of {it} and what it holds",
        "product": "multiplies what it holds by {it}",
    }
)
ELEMENT = 4
"""Bytes of a float32, in which gradients usually travel."""
SPELLED = 4
"""Values in a message up to which the arithmetic is spelled out; the cells show it anyway."""
Values = tuple[float, ...]


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
class Receipt:
    target: int
    text: str
    """Such as "p1 receives chunk 0 from p0: max(3, 5) = 5"."""


def about(schedule: str) -> tuple[str, str]:
    what, *more = (inspect.getdoc(find_schedule(schedule)) or "").splitlines() or [""]
    return what, next(filter(None, more), "")


def number(value: float) -> str:
    """A value as people write it: 5, 2.5, 4.6667, 1e+20."""
    return f"{value:.4f}".rstrip("0").rstrip(".") if 1e-3 <= abs(value) < 1e15 else f"{value + 0:.4g}"


def numbers(values: Sequence[float]) -> str:
    """Values side by side; "-" where there are none, as in a chunk that is empty."""
    return " ".join(map(number, values)) or "-"


def processes(amount: int) -> str:
    return "1 process" if amount == 1 else f"{amount:,} processes"


def opening(schedule: Schedule, segments: int, length: int) -> str:
    each = " each" if schedule.workers > 1 else ""
    cut = f" in {schedule.chunks:,} chunks" if schedule.chunks > 1 else ""
    cut += f", {schedule.chunks // segments} in each of {segments} segments" if segments > 1 else ""
    return f"{processes(schedule.workers)}, {counted(length, 'value')}{each}{cut}."


def sentence(schedule: Schedule, op: str, messages: Sequence[ShownMessage]) -> str:
    amount = _amount(schedule, messages)
    how = {message.on_receive for message in messages}
    does = [COMBINES[op]] * ("reduce" in how)
    does += ["puts {it} in the place of what it held"] * ("replace" in how)
    it = "them" if amount.endswith("chunks") else "it"
    return f"{_exchange(schedule, messages, amount)}; the receiver {', or '.join(does).format(it=it)}."


def _exchange(schedule: Schedule, messages: Sequence[ShownMessage], amount: str) -> str:
    workers, pairs = schedule.workers, {(message.source, message.target) for message in messages}
    senders = len({source for source, _ in pairs})
    who = "Every process" if senders == workers else f"{senders} of {processes(workers)}"
    s = "s" if senders in (1, workers) else ""
    if all((target, source) in pairs for source, target in pairs):
        return f"{who} swap{s} {amount} with a partner"
    around = senders == workers and all(target == (source + 1) % workers for source, target in pairs)
    return f"{who} send{s} {amount}{' to its right neighbour' if around else ''}"


def _amount(schedule: Schedule, messages: Sequence[ShownMessage]) -> str:
    """How much goes from one to another; a pipeline may send several chunks apart."""
    sizes: Counter[tuple[int, int]] = Counter()
    for message in messages:
        sizes[message.source, message.target] += message.stop - message.start
    least, most = min(sizes.values()), max(sizes.values())
    if least == most == schedule.chunks:
        return "everything"
    return f"{least} to {most} chunks" if least < most else "one chunk" if most == 1 else f"{most} chunks"


def progress(parts: Sequence[Sequence[Sequence[int]]]) -> str:
    chunks = [len(part) for row in parts for part in row]
    return f"afterwards {chunks.count(len(parts))} of {len(chunks)} chunks are finished"


def outcome(result: Values, workers: int) -> str:
    if workers == 1:
        return f"{numbers(result)}, held from the start: 1 process has nothing to send"
    return f"{numbers(result)}, held by all {workers} processes"


def traffic(totals: Mapping[str, Any], hosts: Sequence[int], length: int) -> list[str]:
    workers, least, sent = len(hosts), totals["lower_bound_values"], totals["values_sent"]
    crossing = f", {totals['messages_between_hosts']} of them between hosts" if max(hosts) else ""
    total = f"{counted(totals['rounds'], 'round')}, {counted(totals['messages'], 'message')}{crossing}"
    if workers == 1:
        return [total]
    most, fewest = max(sent), min(sent)
    who = "each process sends" if fewest == most else f"processes send {fewest} to"
    reached = ", the least possible for the busiest:" if most == least else "; the least possible is"
    size = f"{counted(most, 'value')} ({show_bytes(ELEMENT * most)} as float32)"
    bound = f"ceil(2 x {workers - 1}/{workers} x {length}) = {least}"
    return [total, f"{who} {size}{reached} {bound}"]


def received(
    op: str,
    bounds: Sequence[int],
    messages: Sequence[ShownMessage],
    before: Sequence[Values],
    after: Sequence[Values],
) -> tuple[Receipt, ...]:
    """What each rank receives; the same chunks from several are one receipt."""
    grouped: dict[tuple[int, int, int], list[ShownMessage]] = {}
    for message in sorted(messages, key=lambda m: (m.target, m.start)):
        grouped.setdefault((message.target, message.start, message.stop), []).append(message)
    found = []
    for (target, start, stop), some in grouped.items():
        part = slice(bounds[start], bounds[stop])
        result = _arithmetic(op, some, before[target][part], after[target][part])
        origin = ", ".join(f"p{message.source}" for message in some)
        what = chunk_words(start, stop, len(bounds) - 1)
        found.append(Receipt(target, f"p{target} receives {what} from {origin}{result}"))
    return tuple(found)


def chunk_words(start: int, stop: int, chunks: int) -> str:
    if stop - start == chunks:
        return "everything"
    return f"chunk {start}" if stop - start == 1 else f"chunks {start} to {stop - 1}"


def _arithmetic(op: str, messages: Sequence[ShownMessage], before: Values, after: Values) -> str:
    if not after:
        return ": it is empty"
    if len(after) > SPELLED:
        return ""
    if messages[0].on_receive == "replace":
        return f": {numbers(after)}"
    terms = ", ".join(map(numbers, (before, *(message.values for message in messages))))
    return f": {'sum' if op == 'mean' else op}({terms}) = {numbers(after)}"
