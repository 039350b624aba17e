"""Sentences about an explanation, the same ones in the text, on the page and in the JSON."""

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from paceline.collectives import SCHEDULES
from paceline.reports.explain.explanation import ExplainedRound, Explanation, ShownMessage
from paceline.reports.explain.request import Values
from paceline.specs import find
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
SIGNS: Mapping[str, str] = MappingProxyType({"sum": " + ", "mean": " + ", "product": " x "})
"""Operations that people write between two values; the others are written as functions."""

SPELLED = 4
"""Values in a message up to which the arithmetic is spelled out; the cells show it anyway."""


def about(schedule: str) -> str:
    """What a schedule is: the first line of its documentation."""
    return _documentation(schedule)[0]


def how(schedule: str) -> str:
    """How it works: the first line after that."""
    return next(filter(None, _documentation(schedule)[1:]), "")


def _documentation(schedule: str) -> list[str]:
    return (inspect.getdoc(find(SCHEDULES[schedule])) or "").splitlines() or [""]


def entries() -> dict[str, dict[str, str]]:
    return {name: {"help": about(name), "how": how(name)} for name in SCHEDULES}


def number(value: float) -> str:
    """A value as people write it: 5, 2.5, 4.6667, 1e+20."""
    return f"{value:.4f}".rstrip("0").rstrip(".") if 1e-3 <= abs(value) < 1e15 else f"{value + 0:.4g}"


def numbers(values: Sequence[float]) -> str:
    """Values side by side; "-" where there are none, as in a chunk that is empty."""
    return " ".join(map(number, values)) or "-"


def count(amount: int, what: str, many: str = "") -> str:
    """So many of something: "1 process", "4 processes"."""
    return f"{amount:,} {what}" if amount == 1 else f"{amount:,} {many or what + 's'}"


def processes(amount: int) -> str:
    return count(amount, "process", "processes")


def opening(explanation: Explanation) -> str:
    """How many processes take part, and what each has."""
    chunks, segments = explanation.schedule.chunks, explanation.segments
    cut = f" in {count(chunks, 'chunk')}" if chunks > 1 else ""
    piped = f", {segments} segments of {chunks // segments} one behind the other" if segments > 1 else ""
    each = " each" if explanation.schedule.workers > 1 else ""
    return (
        f"{processes(explanation.schedule.workers)}, {count(explanation.length, 'value')}{each}{cut}{piped}."
    )


def placing(explanation: Explanation) -> str:
    """Which processes run on which host; "" where all share one."""
    if max(explanation.hosts) == 0:
        return ""
    members = {
        host: [r for r, h in enumerate(explanation.hosts) if h == host]
        for host in dict.fromkeys(explanation.hosts)
    }
    return "; ".join(f"host {host}: {', '.join(f'p{r}' for r in ranks)}" for host, ranks in members.items())


def title(step: ExplainedRound, workers: int) -> str:
    if not step.messages:
        return f"divide by {workers}"
    return f"{step.phase.replace(', ', ' and ')}, round {step.place} of {step.of}"


def sentence(explanation: Explanation, step: ExplainedRound) -> str:
    workers = explanation.schedule.workers
    if not step.messages:
        return f"Every process divides what it holds by {workers}: the sum becomes the mean."
    combines = COMBINES.get(explanation.op, f"combines {{it}} with what it holds by {explanation.op}")
    does = [combines] * any(message.reduces for message in step.messages)
    does += ["puts {it} in the place of what it held"] * (
        not all(message.reduces for message in step.messages)
    )
    it = "them" if _amount(explanation, step.messages).endswith("chunks") else "it"
    return f"{_exchange(explanation, step.messages)}; the receiver {', or '.join(does).format(it=it)}."


def _exchange(explanation: Explanation, messages: Sequence[ShownMessage]) -> str:
    """Which processes send how much to which, as briefly as possible."""
    workers, amount = explanation.schedule.workers, _amount(explanation, messages)
    ways = list(dict.fromkeys((message.source, message.target) for message in messages))
    sources, targets = ({way[end] for way in ways} for end in (0, 1))
    if all((target, source) in ways for source, target in ways):
        if len(sources) == 2:
            return f"{_who(sources, workers)} swap {amount}"
        return f"{_who(sources, workers)} {'swaps' if len(sources) == workers else 'swap'} {amount} with a partner"
    if len(ways) <= 2:
        return " and ".join(f"p{source} sends {amount} to p{target}" for source, target in ways)
    whom = ""
    if len(targets) == 1:
        whom = f" to p{min(targets)}"
    elif len(sources) == 1:
        whom = f" to {'each' if len(targets) == workers - 1 else f'{len(targets)}'} of the others"
    elif len(ways) == workers and all(target == (source + 1) % workers for source, target in ways):
        whom = " to its right neighbour"
    return f"{_who(sources, workers)} {'sends' if len(sources) in (1, workers) else 'send'} {amount}{whom}"


def _who(ranks: set[int], workers: int) -> str:
    if len(ranks) <= 2:
        return " and ".join(f"p{rank}" for rank in sorted(ranks))
    return "Every process" if len(ranks) == workers else f"{len(ranks)} of {processes(workers)}"


def _amount(explanation: Explanation, messages: Sequence[ShownMessage]) -> str:
    """How much goes from one to another; a pipeline may send several chunks apart."""
    sizes: Counter[tuple[int, int]] = Counter()
    for message in messages:
        sizes[message.source, message.target] += message.stop - message.start
    least, most = min(sizes.values()), max(sizes.values())
    if least < most:
        return f"{least} to {most} chunks"
    if most == explanation.schedule.chunks:
        return "everything"
    return "one chunk" if most == 1 else f"{most} chunks"


def progress(explanation: Explanation, step: ExplainedRound) -> str:
    workers, chunks = explanation.schedule.workers, explanation.schedule.chunks
    done = sum(step.after.finished(rank, chunk) for rank in range(workers) for chunk in range(chunks))
    if chunks == 1:
        return f"afterwards {done} of {workers} processes {'has' if done == 1 else 'have'} the result"
    return f"afterwards {done} of {workers * chunks} chunks {'is' if done == 1 else 'are'} finished"


def result(explanation: Explanation) -> str:
    workers = explanation.schedule.workers
    values = numbers(explanation.end.values[0])
    if workers == 1:
        return f"{values}, held from the start: 1 process has nothing to send"
    assert explanation.agreed
    return f"{values}, held by all {workers} processes"


def traffic(explanation: Explanation) -> list[str]:
    """How many rounds and messages it took, and what the busiest process sent against the least possible."""
    workers = explanation.schedule.workers
    crossing = f", {explanation.across} of them between hosts" if max(explanation.hosts) else ""
    rounds, messages = explanation.schedule.round_count, len(explanation.messages)
    total = f"{count(rounds, 'round')}, {count(messages, 'message')}{crossing}"
    if workers == 1:
        return [total]
    sent = [explanation.sent(rank) for rank in range(workers)]
    reached = (
        ", the least possible for the busiest:"
        if max(sent) == explanation.least
        else "; the least possible for the busiest is"
    )
    return [
        total,
        f"{_busiest(sent)}{reached} ceil(2 x {workers - 1}/{workers} x {explanation.length}) = {explanation.least}",
    ]


def _busiest(sent: Sequence[int]) -> str:
    most = max(sent)
    size = f"{count(most, 'value')} ({show_bytes(ELEMENT * most)} as float32)"
    if min(sent) == most:
        return f"each process sends {size}"
    busy = [rank for rank, amount in enumerate(sent) if amount == most]
    others = sorted({amount for amount in sent if amount < most})
    rest = f"the others {others[0]}" + (f" to {others[-1]}" if len(others) > 1 else "")
    who = f"p{busy[0]} sends" if len(busy) == 1 else f"{len(busy)} processes send"
    return f"{who} {size}, {rest}"


@dataclass(frozen=True, slots=True)
class ReceivedChunks:
    """What one rank makes of the same chunks from one or more others, in a sentence's second half."""

    target: int
    start: int
    stop: int
    sources: tuple[int, ...]
    arithmetic: str
    """Such as "max(3, 5) = 5", or nothing where it would be too long."""

    def words(self, explanation: Explanation) -> str:
        """Such as "receives chunk 0 from p0: max(3, 5) = 5"."""
        origin = ", ".join(f"p{rank}" for rank in self.sources)
        ending = f": {self.arithmetic}" if self.arithmetic else ""
        return f"receives {chunk_name(explanation, self.start, self.stop)} from {origin}{ending}"


def chunk_name(explanation: Explanation, start: int, stop: int) -> str:
    if stop - start == explanation.schedule.chunks:
        return "everything"
    return f"chunk {start}" if stop - start == 1 else f"chunks {start} to {stop - 1}"


def received(explanation: Explanation, step: ExplainedRound) -> list[ReceivedChunks]:
    """All that is received in a step, in the order of ranks; messages of the same chunks to one rank are one."""
    grouped: dict[tuple[int, int, int], list[ShownMessage]] = {}
    for message in sorted(step.messages, key=lambda m: (m.target, m.start)):
        grouped.setdefault((message.target, message.start, message.stop), []).append(message)
    return [
        ReceivedChunks(*place, tuple(m.source for m in messages), _arithmetic(explanation, step, messages))
        for place, messages in grouped.items()
    ]


def _arithmetic(explanation: Explanation, step: ExplainedRound, messages: list[ShownMessage]) -> str:
    first = messages[0]
    before, after = (
        explanation.chunk(moment.values[first.target], first.start, first.stop)
        for moment in (step.before, step.after)
    )
    if not after:
        return "it is empty"
    if len(after) > SPELLED:
        return ""
    if not first.reduces:
        return numbers(after)
    terms: list[Values] = [before, *(message.values for message in messages)]
    if explanation.op not in SIGNS:
        return f"{explanation.op}({', '.join(map(numbers, terms))}) = {numbers(after)}"
    return f"{SIGNS[explanation.op].join(map(_term, terms))} = {_term(after)}"


def _term(values: Values) -> str:
    """A value between signs: several are held together, and so is a minus."""
    return f"({numbers(values)})" if len(values) > 1 or values[0] < 0 else numbers(values)


def sending(explanation: Explanation, step: ExplainedRound, rank: int) -> str:
    """Such as "sends chunk 0 -> p1", or nothing."""
    to: dict[tuple[int, int], list[int]] = {}
    for message in step.messages:
        if message.source == rank:
            to.setdefault((message.start, message.stop), []).append(message.target)
    alike: dict[tuple[int, ...], list[str]] = {}
    for chunks, targets in to.items():
        alike.setdefault(tuple(targets), []).append(chunk_name(explanation, *chunks))
    return ",  ".join(
        f"sends {' and '.join(names)} -> {', '.join(f'p{target}' for target in targets)}"
        for targets, names in alike.items()
    )
