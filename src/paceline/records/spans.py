"""Where a worker's time went: named spans that add up, step by step, and their totals over a run."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import astuple, dataclass, field, replace
from math import floor, log2
from typing import Literal, NamedTuple, get_args

import msgspec

SpanKind = Literal[
    "data", "forward", "backward", "communicate", "wait", "apply", "evaluate", "checkpoint", "other"
]
KINDS: tuple[SpanKind, ...] = get_args(SpanKind)
"""Every moment of a worker belongs to exactly one of these. "wait" is for slower workers, "communicate" is
what the transfer itself costs while nothing else goes on; traffic behind backward is kept apart: hidden."""


class Span(NamedTuple):
    """A named interval of one worker's time, in seconds since the run began."""

    kind: SpanKind
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
    wait: float = 0.0
    apply: float = 0.0
    other: float = 0.0
    hidden: float = 0.0
    """Transfers that ran behind backward; part of no sum."""

    @property
    def total(self) -> float:
        return self.compute + self.communicate + self.wait + self.other

    @property
    def compute(self) -> float:
        return self.data + self.forward + self.backward + self.apply

    def __add__(self, more: "StepBreakdown") -> "StepBreakdown":
        return StepBreakdown(*(one + two for one, two in zip(astuple(self), astuple(more), strict=True)))

    def __mul__(self, factor: float) -> "StepBreakdown":
        return StepBreakdown(*(factor * part for part in astuple(self)))


class StepRecord(msgspec.Struct, omit_defaults=True, gc=False):
    """One step of one worker, or what lies between two: an evaluation, a checkpoint, the first broadcast.

    A line of ``events/rank-N.jsonl``. The spans follow each other without a gap from ``spans[0].start``; the next
    record starts where they end.
    """

    step: int
    """The worker's clock when the record ends."""
    samples: int = 0
    spans: list[Span] = []
    hidden: list[Span] = []
    sent: int = 0
    """Bytes of tensors handed to the network by this worker."""
    received: int = 0
    is_step: bool = True
    warm_up: bool = False
    """Whether this is the first step of a process, in which memory is allocated and kernels are chosen."""
    damaged: int = 0


@dataclass(slots=True)
class Totals:
    """One worker's time by kind, its traffic and its work, over a whole run."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    """All of its time: in steps, in the first step of each of its processes, and outside of steps."""
    sent: int = 0
    received: int = 0
    steps: int = 0
    samples: int = 0
    damaged: int = 0
    in_steps: StepBreakdown = StepBreakdown()
    step_sent: int = 0
    warm_up_steps: int = 0
    """How many steps were the first of a process; a run that resumed has one more."""
    in_warm_up: StepBreakdown = StepBreakdown()
    warm_up_samples: int = 0
    outside: dict[str, float] = field(default_factory=dict)
    """Seconds outside of steps, by kind; "start" is all before the first step, "unfinished" steps that were cut off."""
    typical: StepBreakdown = StepBreakdown()
    """The mean over the middle half of the steps by length."""


def mean_typical_step(workers: Iterable[Totals]) -> StepBreakdown:
    """The mean over those that finished a step; of none, no time."""
    steps = [one.typical for one in workers if one.steps]
    return sum(steps, StepBreakdown()) * (1 / max(1, len(steps)))


def sent_a_step(workers: Collection[Totals]) -> float:
    """Bytes that a worker sends in a step."""
    return sum(one.step_sent for one in workers) / max(1, sum(one.steps for one in workers))


PLACE = {kind: place for place, kind in enumerate(KINDS)}
COMPUTING = slice(PLACE["data"], PLACE["backward"] + 1)
WIDTH = len(KINDS)

_CLASSES_PER_OCTAVE = 16
"""Steps whose lengths differ by less than 4 % may be in one class."""

_StepClass = list[float]
"""A number of steps, then their seconds by kind and their hidden communication in sum."""


class TimeLedger:
    """Adds one worker's records up, recorded or simulated.

    Its memory does not grow with the run: steps of about the same length that exchanged about as much are one class.
    """

    __slots__ = ("_classes", "_outside", "_sums", "_totals", "_warm_up", "starting")

    def __init__(self) -> None:
        self.starting = True
        """Whether records before the next step belong to the start; set again where a run resumes."""
        self._classes: dict[int, dict[int, _StepClass]] = {}
        self._warm_up = [0.0] * (WIDTH + 1)
        self._sums = [0.0] * WIDTH
        self._outside: dict[str, float] = {}
        self._totals = Totals()

    def add(self, record: StepRecord) -> None:
        self._totals.damaged += record.damaged
        seconds = [0.0] * WIDTH
        for kind, _, length in record.spans:
            seconds[PLACE[kind]] += length
        self.count(record, seconds, sum([span.length for span in record.hidden]))

    def count(self, record: StepRecord, seconds: Sequence[float], hidden: float = 0.0) -> None:
        """Count a record whose spans add up to these seconds by kind."""
        totals, sent, received = self._totals, record.sent, record.received
        totals.sent += sent
        totals.received += received
        if not record.is_step:
            self._count_outside(seconds)
            return
        totals.steps += 1
        totals.samples += record.samples
        totals.step_sent += sent
        self.starting = False
        if record.warm_up:
            totals.warm_up_steps += 1
            totals.warm_up_samples += record.samples
            self._warm_up = [one + more for one, more in zip(self._warm_up, [*seconds, hidden], strict=True)]
            return
        classes = self._classes.setdefault((sent + received).bit_length(), {})
        length = sum(seconds)
        key = floor(_CLASSES_PER_OCTAVE * log2(length)) if length > 0 else -(10**6)
        if key not in classes:
            classes[key] = [1.0, *seconds, hidden]
            return
        found = classes[key]
        found[0] += 1
        for place, more in enumerate(seconds, start=1):
            found[place] += more
        found[-1] += hidden

    def _count_outside(self, seconds: Sequence[float]) -> None:
        """What is no step: the start, an evaluation, a checkpoint, a step that was never finished."""
        whole = "unfinished" if any(seconds[COMPUTING]) else "start" if self.starting else None
        for place, length in enumerate(seconds):
            if length:
                cause = whole or KINDS[place]
                self._outside[cause] = self._outside.get(cause, 0.0) + length
                self._sums[place] += length

    def totals(self) -> Totals:
        every = [one for classes in self._classes.values() for one in classes.values()]
        many, *steps = [sum(column) for column in zip(*every, strict=True)] or [0.0] * (WIDTH + 2)
        typical = self._typical() if many else [one / max(1, self._totals.steps) for one in self._warm_up]
        sums = zip(steps[:WIDTH], self._warm_up[:WIDTH], self._sums, strict=True)
        return replace(
            self._totals,
            seconds=dict(zip(KINDS, map(sum, sums), strict=True)),
            in_steps=breakdown(steps),
            in_warm_up=breakdown(self._warm_up),
            outside=dict(self._outside),
            typical=breakdown(typical),
        )

    def _typical(self) -> list[float]:
        """The mean over the middle half by length of the steps that exchange as much, weighted by how many these are.

        All parts are means over the same steps, so they add up; local SGD keeps the share of the steps that exchange.
        """
        found, many = [0.0] * (WIDTH + 1), 0.0
        for classes in self._classes.values():
            ordered = [classes[key] for key in sorted(classes)]
            count = sum(one[0] for one in ordered)
            many += count
            before = 0.0
            for number, *sums in ordered:
                inside = max(0.0, min(before + number, 0.75 * count) - max(before, 0.25 * count))
                before += number
                # The middle half, count / 2 steps, stands for all count steps.
                weight = 2 * inside / number
                found = [one + weight * more for one, more in zip(found, sums, strict=True)]
        return [one / many for one in found]


def breakdown(seconds: Sequence[float]) -> StepBreakdown:
    data, forward, backward, communicate, wait, apply, *others, hidden = seconds
    return StepBreakdown(data, forward, backward, communicate, wait, apply, sum(others), hidden)
