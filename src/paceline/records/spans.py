"""Where a worker's time went: named spans that add up, step by step."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

KINDS = ("data", "forward", "backward", "communicate", "wait", "apply", "evaluate", "checkpoint", "other")
"""Every moment of a worker belongs to exactly one of these. "wait" is for slower workers, "communicate" is
what the transfer itself costs while nothing else goes on; traffic behind backward is kept apart: hidden."""


class Span(NamedTuple):
    """A named interval of one worker's time, in seconds since the run began."""

    kind: str
    start: float
    length: float


@dataclass(slots=True)
class StepRecord:
    """One step of one worker, or one meeting (evaluation, checkpoint) between two steps.

    The spans follow each other without a gap from ``spans[0].start``; the next record starts where they end.
    """

    step: int
    """The worker's clock when the record ends."""
    samples: int = 0
    """Samples trained on; a step may have none, where an epoch ends unevenly."""
    spans: list[Span] = field(default_factory=list)
    hidden: list[Span] = field(default_factory=list)
    """Communication that ran behind backward: it is part of no sum."""
    sent: int = 0
    """Bytes of tensors handed to the network by this worker."""
    received: int = 0
    meeting: bool = False
    """Whether this is no step but what lies between two: an evaluation, a checkpoint, the first broadcast."""
    damaged: int = 0
    """Lines for which this record stands, which could not be read when the run resumed."""

    def to_json(self) -> dict[str, Any]:
        """One line of ``events/rank-N.jsonl``, times to the nanosecond; ``from_json`` reads it."""
        line: dict[str, Any] = {"step": self.step, "samples": self.samples, "spans": _rounded(self.spans)}
        if self.hidden:
            line["hidden"] = _rounded(self.hidden)
        line["sent"], line["received"] = self.sent, self.received
        if self.meeting:
            line["meeting"] = True
        if self.damaged:
            line["damaged"] = self.damaged
        return line

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Self:
        """Read what ``to_json`` wrote."""
        return cls(
            step=line["step"],
            samples=line["samples"],
            spans=[Span(*span) for span in line["spans"]],
            hidden=[Span(*span) for span in line.get("hidden", [])],
            sent=line["sent"],
            received=line["received"],
            meeting=line.get("meeting", False),
            damaged=line.get("damaged", 0),
        )

    def check(self) -> None:
        """Raise ValueError unless every field is of its kind; ``from_json`` takes what it is given."""
        numbers = (self.step, self.samples, self.sent, self.received, self.damaged)
        sound = all(type(number) is int for number in numbers) and all(
            span.kind in KINDS
            and isinstance(span.start, float | int)
            and isinstance(span.length, float | int)
            for span in (*self.spans, *self.hidden)
        )
        if not sound:
            raise ValueError("not a record of a step")


def _rounded(spans: list[Span]) -> list[list[Any]]:
    return [[kind, round(start, 9), round(length, 9)] for kind, start, length in spans]


@dataclass(slots=True)
class Totals:
    """One worker's time by kind, its traffic and its work, over a whole run."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    hidden: float = 0.0
    """Seconds of communication behind backward; part of no sum."""
    sent: int = 0
    received: int = 0
    steps: int = 0
    samples: int = 0
    damaged: int = 0
    """Lines of the record that could not be read when the run resumed; what they said is in no sum."""

    def add(self, record: StepRecord) -> None:
        """Count one record."""
        for kind, _, length in record.spans:
            self.seconds[kind] += length
        self.hidden += sum(span.length for span in record.hidden)
        self.sent += record.sent
        self.received += record.received
        self.samples += record.samples
        self.damaged += record.damaged
        self.steps += not record.meeting
