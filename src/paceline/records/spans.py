"""Where a worker's time went: named spans that add up, step by step."""

from dataclasses import astuple, dataclass, field
from typing import Literal, NamedTuple, get_args

import msgspec

Kind = Literal[
    "data", "forward", "backward", "communicate", "wait", "apply", "evaluate", "checkpoint", "other"
]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""Every moment of a worker belongs to exactly one of these. "wait" is for slower workers, "communicate" is
what the transfer itself costs while nothing else goes on; traffic behind backward is kept apart: hidden."""


class Span(NamedTuple):
    """A named interval of one worker's time, in seconds since the run began."""

    kind: Kind
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


class StepRecord(msgspec.Struct, omit_defaults=True):
    """One step of one worker, or what lies between two: an evaluation, a checkpoint, the first broadcast.

    A line of ``events/rank-N.jsonl``. The spans follow each other without a gap from ``spans[0].start``; the next
    record starts where they end.
    """

    step: int
    """The worker's clock when the record ends."""
    samples: int = 0
    """Samples trained on; a step may have none, where an epoch ends unevenly."""
    spans: list[Span] = []
    hidden: list[Span] = []
    """Communication that ran behind backward: it is part of no sum."""
    sent: int = 0
    """Bytes of tensors handed to the network by this worker."""
    received: int = 0
    is_step: bool = True
    warm_up: bool = False
    """Whether this is the first step of a process, in which memory is allocated and kernels are chosen."""
    damaged: int = 0
    """Lines for which this record stands, which could not be read when the run resumed."""


def _no_time() -> dict[str, float]:
    return dict.fromkeys(KINDS, 0.0)


@dataclass(slots=True)
class Totals:
    """One worker's time by kind, its traffic and its work, over a whole run; ``TimeLedger`` adds them up.

    ``seconds`` is all of its time: that of its steps, of the first step of each of its processes, and outside of steps.
    """

    seconds: dict[str, float] = field(default_factory=_no_time)
    sent: int = 0
    received: int = 0
    steps: int = 0
    """Finished ones, the first included."""
    samples: int = 0
    """Of finished steps."""
    damaged: int = 0
    """Lines of the record that could not be read when the run resumed; what they said is in no sum."""
    in_steps: StepBreakdown = StepBreakdown()
    """The sum over all steps but the first of each process."""
    step_sent: int = 0
    """Bytes sent in steps."""
    warm_up_steps: int = 0
    """How many steps were the first of a process; a run that resumed has one more."""
    in_warm_up: StepBreakdown = StepBreakdown()
    warm_up_samples: int = 0
    outside: dict[str, float] = field(default_factory=dict)
    """Seconds outside of steps, by kind; "start" is all before the first step, "unfinished" steps that were cut off."""
    typical: StepBreakdown = StepBreakdown()
    """The mean over the middle half of the steps by length; see ``TimeLedger``."""
