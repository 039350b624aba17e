"""Sentences about a story, the same ones in the text, on the page and in the JSON."""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from paceline.reports.explain.story import Message, Step, Story
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
    """So many processes."""
    return count(amount, "process", "processes")


def opening(story: Story) -> str:
    """Who takes part, and what each has."""
    chunks, segments = story.schedule.chunks, story.segments
    cut = f" in {count(chunks, 'chunk')}" if chunks > 1 else ""
    piped = f", {segments} segments of {chunks // segments} one behind the other" if segments > 1 else ""
    each = " each" if story.schedule.workers > 1 else ""
    return f"{processes(story.schedule.workers)}, {count(story.length, 'value')}{each}{cut}{piped}."


def placing(story: Story) -> str:
    """Who runs on which host; nothing where all share one."""
    if max(story.hosts) == 0:
        return ""
    members = {
        host: [r for r, h in enumerate(story.hosts) if h == host] for host in dict.fromkeys(story.hosts)
    }
    return "; ".join(f"host {host}: {', '.join(f'p{r}' for r in ranks)}" for host, ranks in members.items())


def title(step: Step, workers: int) -> str:
    """What a step is called."""
    if not step.messages:
        return f"divide by {workers}"
    return f"{step.phase.replace(', ', ' and ')}, round {step.place} of {step.of}"


def sentence(story: Story, step: Step) -> str:
    """What happens in a step."""
    workers = story.schedule.workers
    if not step.messages:
        return f"Every process divides what it holds by {workers}: the sum becomes the mean."
    combines = COMBINES.get(story.op, f"combines {{it}} with what it holds by {story.op}")
    does = [combines] * any(message.reduces for message in step.messages)
    does += ["puts {it} in the place of what it held"] * (
        not all(message.reduces for message in step.messages)
    )
    it = "them" if _amount(story, step.messages).endswith("chunks") else "it"
    return f"{_exchange(story, step.messages)}; the receiver {', or '.join(does).format(it=it)}."


def _exchange(story: Story, messages: Sequence[Message]) -> str:
    """Who sends how much to whom, as shortly as it can be said."""
    workers, amount = story.schedule.workers, _amount(story, messages)
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


def _amount(story: Story, messages: Sequence[Message]) -> str:
    """How much goes from one to another; a pipeline may send several chunks apart."""
    sizes: Counter[tuple[int, int]] = Counter()
    for message in messages:
        sizes[message.source, message.target] += message.stop - message.start
    least, most = min(sizes.values()), max(sizes.values())
    if least < most:
        return f"{least} to {most} chunks"
    if most == story.schedule.chunks:
        return "everything"
    return "one chunk" if most == 1 else f"{most} chunks"


def progress(story: Story, step: Step) -> str:
    """How much of the work is done after a step."""
    workers, chunks = story.schedule.workers, story.schedule.chunks
    done = sum(step.after.finished(rank, chunk) for rank in range(workers) for chunk in range(chunks))
    if chunks == 1:
        return f"afterwards {done} of {workers} processes {'has' if done == 1 else 'have'} the result"
    return f"afterwards {done} of {workers * chunks} chunks {'is' if done == 1 else 'are'} finished"


def result(story: Story) -> str:
    """What all hold at the end."""
    workers = story.schedule.workers
    values = numbers(story.end.values[0])
    if workers == 1:
        return f"{values}, held from the start: 1 process has nothing to send"
    assert story.agreed
    return f"{values}, held by all {workers} processes"


def traffic(story: Story) -> list[str]:
    """How many rounds and messages it took, and what the busiest process sent against the least possible."""
    workers = story.schedule.workers
    crossing = f", {story.across} of them between hosts" if max(story.hosts) else ""
    total = f"{count(story.schedule.round_count, 'round')}, {count(len(story.messages), 'message')}{crossing}"
    if workers == 1:
        return [total]
    sent = [story.sent(rank) for rank in range(workers)]
    reached = (
        ", the least possible for the busiest:"
        if max(sent) == story.least
        else "; the least possible for the busiest is"
    )
    return [
        total,
        f"{_busiest(sent)}{reached} ceil(2 x {workers - 1}/{workers} x {story.length}) = {story.least}",
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
