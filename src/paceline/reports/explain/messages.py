"""What each rank sends and receives in a step, in words and in arithmetic."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from paceline.reports.explain.request import Values
from paceline.reports.explain.story import Message, Step, Story
from paceline.reports.explain.words import numbers

SIGNS: Mapping[str, str] = MappingProxyType({"sum": " + ", "mean": " + ", "product": " x "})
"""Operations that people write between two values; the others are written as functions."""

SPELLED = 4
"""Values in a message up to which the arithmetic is spelled out; the cells show it anyway."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one rank makes of the same chunks from one or more others, in a sentence's second half."""

    target: int
    start: int
    stop: int
    sources: tuple[int, ...]
    arithmetic: str
    """Such as "max(3, 5) = 5", or nothing where it would be too long."""

    def words(self, story: Story) -> str:
        """Such as "receives chunk 0 from p0: max(3, 5) = 5"."""
        origin = ", ".join(f"p{rank}" for rank in self.sources)
        ending = f": {self.arithmetic}" if self.arithmetic else ""
        return f"receives {chunk_name(story, self.start, self.stop)} from {origin}{ending}"


def chunk_name(story: Story, start: int, stop: int) -> str:
    """What people call these chunks."""
    if stop - start == story.schedule.chunks:
        return "everything"
    return f"chunk {start}" if stop - start == 1 else f"chunks {start} to {stop - 1}"


def receipts(story: Story, step: Step) -> list[Receipt]:
    """All that is received in a step, in the order of ranks; messages of the same chunks to one rank are one."""
    grouped: dict[tuple[int, int, int], list[Message]] = {}
    for message in sorted(step.messages, key=lambda m: (m.target, m.start)):
        grouped.setdefault((message.target, message.start, message.stop), []).append(message)
    return [
        Receipt(*place, tuple(m.source for m in messages), _arithmetic(story, step, messages))
        for place, messages in grouped.items()
    ]


def _arithmetic(story: Story, step: Step, messages: list[Message]) -> str:
    first = messages[0]
    before, after = (
        story.chunk(moment.values[first.target], first.start, first.stop)
        for moment in (step.before, step.after)
    )
    if not after:
        return "it is empty"
    if len(after) > SPELLED:
        return ""
    if not first.reduces:
        return numbers(after)
    terms: list[Values] = [before, *(message.values for message in messages)]
    if story.op not in SIGNS:
        return f"{story.op}({', '.join(map(numbers, terms))}) = {numbers(after)}"
    return f"{SIGNS[story.op].join(map(_term, terms))} = {_term(after)}"


def _term(values: Values) -> str:
    """A value between signs: several are held together, and so is a minus."""
    return f"({numbers(values)})" if len(values) > 1 or values[0] < 0 else numbers(values)


def sending(story: Story, step: Step, rank: int) -> str:
    """Such as "sends chunk 0 -> p1", or nothing."""
    to: dict[tuple[int, int], list[int]] = {}
    for message in step.messages:
        if message.source == rank:
            to.setdefault((message.start, message.stop), []).append(message.target)
    alike: dict[tuple[int, ...], list[str]] = {}
    for chunks, targets in to.items():
        alike.setdefault(tuple(targets), []).append(chunk_name(story, *chunks))
    return ",  ".join(
        f"sends {' and '.join(names)} -> {', '.join(f'p{target}' for target in targets)}"
        for targets, names in alike.items()
    )
