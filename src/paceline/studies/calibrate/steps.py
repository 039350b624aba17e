"""Plain training steps of a subject, as the live runtime does them, timed by part."""

from itertools import repeat
from statistics import median
from time import perf_counter
from typing import NamedTuple

from paceline.jobs.step import StepHooks, StepPhase
from paceline.jobs.subject import Subject
from paceline.runtimes.flat import FlatModel


class Parts(NamedTuple):
    """Seconds of one step."""

    forward: float
    backward: float
    apply: float

    @property
    def step(self) -> float:
        """All of it."""
        return sum(self)


class PlainStep(StepHooks):
    """A subject's model on flat buffers, with one mini-batch that it is trained on again and again."""

    def __init__(self, subject: Subject, samples: int) -> None:
        self._model = FlatModel(subject, subject.model())
        self._batch = subject.batch(samples)
        self._ends: list[float] = []

    def end(self, phase: StepPhase) -> None:  # noqa: ARG002
        self._ends.append(perf_counter())

    def run(self) -> Parts:
        """One step."""
        self._ends = []
        self._model.accumulate(repeat(self._batch), [1.0], self)
        begin, forward, backward = self._ends
        self._model.optimizer.step()
        return Parts(forward - begin, backward - forward, perf_counter() - backward)


def typical(steps: list[Parts]) -> Parts:
    """The medians of the parts."""
    return Parts(*(median(part) for part in zip(*steps, strict=True)))
