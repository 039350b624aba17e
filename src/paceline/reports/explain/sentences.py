"""Sentences about a collective, the same ones in the text, on the page and in the JSON."""

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from math import floor, log10
from types import MappingProxyType
from typing import Any

from paceline.collectives import find_schedule
from paceline.collectives.schedule import Schedule
from paceline.reports.explain.document import (
    Cell,
    Encoded,
    ExplainedRound,
    Parts,
    RankValues,
    Receipt,
    ShownMessage,
    Values,
    numbers_in,
)
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
SPELLED = 4
"""Values in a message up to which the arithmetic is spelled out; the cells show it anyway."""


def about(schedule: str) -> tuple[str, str]:
    what, *more = (inspect.getdoc(find_schedule(schedule)) or "").splitlines() or [""]
    return what, next(filter(None, more), "")


def number(value: float) -> str:
    """A value as people write it, with four digits where it is no whole number: 5, 2.5, 4.667, 1e+20."""
    if not 1e-3 <= abs(value) < 1e15:
        return f"{value + 0:.3g}"
    decimals = min(4, max(2, 3 - floor(log10(abs(value)))))
    return f"{value:.{decimals}f}".rstrip("0").rstrip(".")


def numbers(values: Sequence[float]) -> str:
    """Values side by side; "-" where there are none, as in a chunk that is empty."""
    return " ".join(map(number, values)) or "-"


def cell(held: Cell) -> str:
    """Values, or a message: "3: 9.1, 5: -7", "step 0.2: 127 -3", "mean 4.5: + - -"."""
    if not isinstance(held, Encoded):
        return numbers(held)
    contents = dict(held.contents)
    indices = contents.pop("indices", None)
    last, values = contents.popitem()
    shown = ["+" if value > 0 else "-" for value in values] if last == "signs" else [*map(number, values)]
    if indices is not None:
        words = ", ".join(f"{index:.0f}: {value}" for index, value in zip(indices, shown, strict=True))
    else:
        words = " ".join(shown)
    return ": ".join([*(f"{name} {numbers(some)}" for name, some in contents.items()), words or "nothing"])


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


def progress(parts: Parts) -> str:
    chunks = [len(part) for row in parts for part in row]
    return f"afterwards {chunks.count(len(parts))} of {len(chunks)} chunks are finished"


def outcome(result: Values, workers: int) -> str:
    if workers == 1:
        return f"{numbers(result)}, held from the start: 1 process has nothing to send"
    return f"{numbers(result)}, held by all {workers} processes"


def rounds_and_messages(totals: Mapping[str, Any], hosts: Sequence[int]) -> str:
    crossing = f", {totals['messages_between_hosts']} of them between hosts" if max(hosts) else ""
    return f"{counted(totals['rounds'], 'round')}, {counted(totals['messages'], 'message')}{crossing}"


def traffic(totals: Mapping[str, Any], hosts: Sequence[int], length: int) -> list[str]:
    workers, least, sent = len(hosts), totals["lower_bound_values"], totals["values_sent"]
    total = rounds_and_messages(totals, hosts)
    if workers == 1:
        return [total]
    most, fewest = max(sent), min(sent)
    who = "each process sends" if fewest == most else f"processes send {fewest} to"
    reached = ", the least possible for the busiest:" if most == least else "; the least possible is"
    size = f"{counted(most, 'value')} ({show_bytes(max(totals['bytes_sent']))} as float32)"
    bound = f"ceil(2 x {workers - 1}/{workers} x {length}) = {least}"
    return [total, f"{who} {size}{reached} {bound}"]


def received(op: str, before: RankValues, after: ExplainedRound) -> tuple[Receipt, ...]:
    """What each rank receives; the same chunks from several are one receipt."""
    grouped: dict[tuple[int, int, int], list[ShownMessage]] = {}
    for message in sorted(after.messages, key=lambda m: (m.target, m.start)):
        grouped.setdefault((message.target, message.start, message.stop), []).append(message)
    found = []
    for (target, start, stop), some in grouped.items():
        had, has = (numbers_in(state.cells[target][start:stop]) for state in (before, after))
        origin = ", ".join(f"p{message.source}" for message in some)
        what = column_words(start, stop, chunk_columns(len(before.cells[target])))
        found.append(
            Receipt(target, f"p{target} receives {what} from {origin}{_arithmetic(op, some, had, has)}")
        )
    return tuple(found)


def chunk_columns(chunks: int) -> tuple[str, ...]:
    return tuple(f"chunk {chunk}" for chunk in range(chunks)) if chunks > 1 else ("values",)


def column_words(start: int, stop: int, columns: Sequence[str]) -> str:
    if stop - start == len(columns):
        return "everything"
    return columns[start] if stop - start == 1 else f"chunks {start} to {stop - 1}"


def _arithmetic(op: str, messages: Sequence[ShownMessage], before: Values, after: Values) -> str:
    if not after:
        return ": it is empty"
    if len(after) > SPELLED:
        return ""
    if messages[0].on_receive == "replace":
        return f": {numbers(after)}"
    terms = ", ".join(map(numbers, (before, *(numbers_in(message.cells) for message in messages))))
    return f": {'sum' if op == 'mean' else op}({terms}) = {numbers(after)}"
