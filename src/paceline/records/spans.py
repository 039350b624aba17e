"""Where a worker's time went: named spans that add up, step by step."""

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import Any, NamedTuple, Self

KINDS = ("data", "forward", "backward", "communicate", "wait", "apply", "evaluate", "checkpoint", "other")
"""Every moment of a worker belongs to exactly one of these. "wait" is for slower workers, "communicate" is
what the transfer itself costs while nothing else goes on; traffic behind backward is kept apart: hidden."""


class Span(NamedTuple):
    """A named interval of one worker's time, in seconds since the run began."""

    kind: str
    start: float
    length: float


@dataclass(frozen=True, slots=True)
class StepBreakdown:
    """Where one worker's step went, in seconds: recorded, simulated or predicted.

    Every part but ``hidden`` belongs to the step; they add up to ``total``.
    """

    data: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    communicate: float = 0.0
    """Transfers while nothing else goes on."""
    wait: float = 0.0
    """For slower workers, or for a server."""
    apply: float = 0.0
    other: float = 0.0
    hidden: float = 0.0
    """Transfers that ran behind backward; part of no sum."""

    @property
    def total(self) -> float:
        return self.compute + self.communicate + self.wait + self.other

    @property
    def compute(self) -> float:
        """What the worker does by itself."""
        return self.data + self.forward + self.backward + self.apply

    def __add__(self, more: "StepBreakdown") -> "StepBreakdown":
        return StepBreakdown(*(one + two for one, two in zip(astuple(self), astuple(more), strict=True)))

    def __mul__(self, factor: float) -> "StepBreakdown":
        return StepBreakdown(*(factor * part for part in astuple(self)))


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
    warm_up: bool = False
    """Whether this is the first step of a process, in which memory is allocated and kernels are chosen."""
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
        if self.warm_up:
            line["warm_up"] = True
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
            warm_up=line.get("warm_up", False),
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


def _no_time() -> dict[str, float]:
    return dict.fromkeys(KINDS, 0.0)


@dataclass(slots=True)
class Totals:
    """One worker's time by kind, its traffic and its work, over a whole run; ``TimeLedger`` adds them up.

    ``seconds`` is all of its time: that of its steps, of the first step of each of its processes, and outside of steps.
    """

    seconds: dict[str, float] = field(default_factory=_no_time)
    hidden: float = 0.0
    """Seconds of communication behind backward; part of no sum."""
    sent: int = 0
    received: int = 0
    steps: int = 0
    """Finished ones, the first included."""
    samples: int = 0
    """Of finished steps."""
    damaged: int = 0
    """Lines of the record that could not be read when the run resumed; what they said is in no sum."""
    step_seconds: dict[str, float] = field(default_factory=_no_time)
    """By kind, in all steps but the first of each process."""
    step_sent: int = 0
    """Bytes sent in steps."""
    warm_up_steps: int = 0
    """How many steps were the first of a process; a run that resumed has one more."""
    warm_up_seconds: dict[str, float] = field(default_factory=_no_time)
    warm_up_samples: int = 0
    outside: dict[str, float] = field(default_factory=dict)
    """Seconds outside of steps, by kind; "start" is all before the first step, "unfinished" steps that were cut off."""
    typical: dict[str, float] = field(default_factory=_no_time)
    """A typical step by kind: the mean over the middle half of the steps by length; see ``TimeLedger``."""
    typical_hidden: float = 0.0
