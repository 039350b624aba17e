"""Where the time of a step goes, before anybody asks what bounds it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

from paceline.records.spans import StepRecord
from paceline.studies.predict.base import Step

COMPUTING = ("data", "forward", "backward", "apply")
"""What a worker does itself."""

KINDS = (*COMPUTING, "communicate", "wait")
"""What a step consists of, evaluation and checkpoints apart."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A worker's step in the long run, in seconds, as ``Step`` has it."""

    data: float
    forward: float
    backward: float
    apply: float
    communicate: float
    wait: float
    hidden: float
    sent: float
    rate: float

    @property
    def step(self) -> float:
        """All of it."""
        return self.data + self.forward + self.backward + self.apply + self.communicate + self.wait

    def as_step(self, path: Literal["closed", "events"]) -> Step:
        """The step, before it is known what bounds it."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return Step(step=self.step, **parts, bound="compute", path=path)


class Noted(NamedTuple):
    """One simulated step of one worker."""

    seconds: tuple[float, ...]
    """By kind, as ``KINDS``."""
    hidden: float
    sent: int
    samples: int
    end: float
    after: float
    """Seconds of computing that follow the step's exchange; 0 where there is none."""

    @classmethod
    def of(cls, record: StepRecord) -> "Noted":
        """Add the spans of a record up."""
        seconds = dict.fromkeys(KINDS, 0.0)
        after, exchanged = 0.0, False
        for kind, _, length in record.spans:
            seconds[kind] += length
            if kind == "communicate":
                after, exchanged = 0.0, True
            elif exchanged and kind in COMPUTING:
                after += length
        end = record.spans[-1].start + record.spans[-1].length if record.spans else 0.0
        hidden = sum(span.length for span in record.hidden)
        return cls(tuple(seconds.values()), hidden, record.sent, record.samples, end, after)

    @property
    def computing(self) -> float:
        """What the worker does itself."""
        return sum(self.seconds[: len(COMPUTING)])

    @property
    def length(self) -> float:
        """All of it."""
        return sum(self.seconds)


def mean_step(workers: Iterable[tuple[Sequence[Noted], int]]) -> Parts:
    """The mean step of many workers: each one's steps, and how many workers it stands for.

    A worker that takes more steps in a second counts with more of them, so that all workers' samples over the mean
    step are the rate.
    """
    many = steps = rate = hidden = sent = 0.0
    shares = [0.0] * len(KINDS)
    for noted, count in workers:
        time = sum(one.length for one in noted)
        many += count
        steps += count * len(noted) / time
        rate += count * sum(one.samples for one in noted) / time
        hidden += count * sum(one.hidden for one in noted) / time
        sent += count * sum(one.sent for one in noted) / time
        for place in range(len(KINDS)):
            shares[place] += count * sum(one.seconds[place] for one in noted) / time
    seconds = {kind: share / steps for kind, share in zip(KINDS, shares, strict=True)}
    return Parts(**seconds, hidden=hidden / steps, sent=sent / steps, rate=rate)
