"""Sentences about an explanation, the same ones in the text, on the page and in the JSON."""

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

from paceline.collectives import find_schedule
from paceline.collectives.traffic import lower_bound_bytes
from paceline.reports.explain.explanation import ExplainedRound, Explanation, ShownMessage
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


def about(schedule: str) -> tuple[str, str]:
    what, *more = (inspect.getdoc(find_schedule(schedule)) or "").splitlines() or [""]
    return what, next(filter(None, more), "")


def number(value: float) -> str:
    """A value as people write it: 5, 2.5, 4.6667, 1e+20."""
    return f"{value:.4f}".rstrip("0").rstrip(".") if 1e-3 <= abs(value) < 1e15 else f"{value + 0:.4g}"


def numbers(values: Sequence[float]) -> str:
    """Values side by side; "-" where there are none, as in a chunk that is empty."""
    return " ".join(map(number, values)) or "-"


def cells(explanation: Explanation) -> list[list[list[str]]]:
    states = (explanation.start, *(step.after for step in explanation.steps))
    spans = [slice(*span) for span in pairwise(explanation.bounds)]
    return [[[numbers(row[span]) for span in spans] for row in state.values] for state in states]


def count(amount: int, what: str, many: str = "") -> str:
    return f"{amount:,} {what}" if amount == 1 else f"{amount:,} {many or what + 's'}"


def processes(amount: int) -> str:
    return count(amount, "process", "processes")


def opening(explanation: Explanation) -> str:
    schedule, segments = explanation.schedule, explanation.segments
    each = " each" if schedule.workers > 1 else ""
    cut = f" in {count(schedule.chunks, 'chunk')}" if schedule.chunks > 1 else ""
    cut += f", {schedule.chunks // segments} in each of {segments} segments" if segments > 1 else ""
    return f"{processes(schedule.workers)}, {count(explanation.bounds[-1], 'value')}{each}{cut}."


def placing(explanation: Explanation) -> str:
    hosts: dict[int, list[str]] = {}
    for rank, host in enumerate(explanation.hosts):
        hosts.setdefault(host, []).append(f"p{rank}")
    return "; ".join(f"host {host}: {', '.join(ranks)}" for host, ranks in hosts.items() if len(hosts) > 1)


def title(step: ExplainedRound) -> str:
    if not step.messages:
        return f"divide by {len(step.after.values)}"
    return f"{step.phase.replace(', ', ' and ')}, round {step.place} of {step.of}"


def sentence(explanation: Explanation, step: ExplainedRound) -> str:
    workers = explanation.schedule.workers
    if not step.messages:
        return f"Every process divides what it holds by {workers}: the sum becomes the mean."
    amount = _amount(explanation, step.messages)
    how = {message.on_receive for message in step.messages}
    does = [COMBINES[explanation.op]] * ("reduce" in how)
    does += ["puts {it} in the place of what it held"] * ("replace" in how)
    it = "them" if amount.endswith("chunks") else "it"
    return f"{_exchange(workers, step.messages, amount)}; the receiver {', or '.join(does).format(it=it)}."


def _exchange(workers: int, messages: Sequence[ShownMessage], amount: str) -> str:
    pairs = {(message.source, message.target) for message in messages}
    senders = len({source for source, _ in pairs})
    who = "Every process" if senders == workers else f"{senders} of {processes(workers)}"
    s = "s" if senders in (1, workers) else ""
    if all((target, source) in pairs for source, target in pairs):
        return f"{who} swap{s} {amount} with a partner"
    around = senders == workers and all(target == (source + 1) % workers for source, target in pairs)
    return f"{who} send{s} {amount}{' to its right neighbour' if around else ''}"


def _amount(explanation: Explanation, messages: Sequence[ShownMessage]) -> str:
    """How much goes from one to another; a pipeline may send several chunks apart."""
    sizes: Counter[tuple[int, int]] = Counter()
    for message in messages:
        sizes[message.source, message.target] += message.stop - message.start
    least, most = min(sizes.values()), max(sizes.values())
    if least == most == explanation.schedule.chunks:
        return "everything"
    return f"{least} to {most} chunks" if least < most else "one chunk" if most == 1 else f"{most} chunks"


def progress(step: ExplainedRound) -> str:
    chunks = [len(part) for row in step.after.parts for part in row]
    return f"afterwards {chunks.count(len(step.after.parts))} of {len(chunks)} chunks are finished"


def result(explanation: Explanation) -> str:
    workers, values = explanation.schedule.workers, numbers(explanation.end.values[0])
    if workers == 1:
        return f"{values}, held from the start: 1 process has nothing to send"
    assert len(set(explanation.end.values)) == 1
    return f"{values}, held by all {workers} processes"


def least_values(explanation: Explanation) -> int:
    return lower_bound_bytes(explanation.bounds[-1], 1, explanation.schedule.workers)


def traffic(explanation: Explanation) -> list[str]:
    workers, least = explanation.schedule.workers, least_values(explanation)
    crossing = f", {explanation.across} of them between hosts" if max(explanation.hosts) else ""
    rounds, messages = explanation.schedule.round_count, len(explanation.messages)
    total = f"{count(rounds, 'round')}, {count(messages, 'message')}{crossing}"
    if workers == 1:
        return [total]
    sent = [explanation.sent(rank) for rank in range(workers)]
    most, fewest = max(sent), min(sent)
    who = "each process sends" if fewest == most else f"processes send {fewest} to"
    reached = ", the least possible for the busiest:" if most == least else "; the least possible is"
    size = f"{count(most, 'value')} ({show_bytes(ELEMENT * most)} as float32)"
    bound = f"ceil(2 x {workers - 1}/{workers} x {explanation.bounds[-1]}) = {least}"
    return [total, f"{who} {size}{reached} {bound}"]


def received(explanation: Explanation, step: ExplainedRound) -> list[tuple[int, str]]:
    """What each rank receives: "receives chunk 0 from p0: max(3, 5) = 5"; the same chunks from several are one."""
    grouped: dict[tuple[int, int, int], list[ShownMessage]] = {}
    for message in sorted(step.messages, key=lambda m: (m.target, m.start)):
        grouped.setdefault((message.target, message.start, message.stop), []).append(message)
    found = []
    for (target, start, stop), messages in grouped.items():
        origin = ", ".join(f"p{message.source}" for message in messages)
        result = _arithmetic(explanation, step, messages)
        found.append((target, f"receives {_chunks(explanation, start, stop)} from {origin}{result}"))
    return found


def _chunks(explanation: Explanation, start: int, stop: int) -> str:
    if stop - start == explanation.schedule.chunks:
        return "everything"
    return f"chunk {start}" if stop - start == 1 else f"chunks {start} to {stop - 1}"


def _arithmetic(explanation: Explanation, step: ExplainedRound, messages: list[ShownMessage]) -> str:
    first = messages[0]
    part = slice(explanation.bounds[first.start], explanation.bounds[first.stop])
    before, after = step.before.values[first.target][part], step.after.values[first.target][part]
    if not after:
        return ": it is empty"
    if len(after) > SPELLED:
        return ""
    if first.on_receive == "replace":
        return f": {numbers(after)}"
    terms = ", ".join(map(numbers, (before, *(message.values for message in messages))))
    return f": {'sum' if explanation.op == 'mean' else explanation.op}({terms}) = {numbers(after)}"


def sending(explanation: Explanation, step: ExplainedRound, rank: int) -> list[str]:
    targets: dict[tuple[int, int], list[str]] = {}
    for message in step.messages:
        if message.source == rank:
            targets.setdefault((message.start, message.stop), []).append(f"p{message.target}")
    return [f"sends {_chunks(explanation, *chunks)} -> {', '.join(to)}" for chunks, to in targets.items()]
