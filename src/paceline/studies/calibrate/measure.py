"""One network, measured: its whole steps, and each operator in its place."""

import resource
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from paceline.costs.trace.operator import Operator
from paceline.costs.trace.recorder import Recorder
from paceline.costs.trace.step import Step
from paceline.costs.trace.timing import PHASES
from paceline.studies.calibrate.networks import Network
from paceline.studies.calibrate.steps import Parts, PlainStep, typical

ENOUGH = 0.04
"""Seconds after which steps need not be run more often."""
MOST_STEPS = 12
LONG = 1.0
"""Seconds of a step that is run once only."""


@dataclass(frozen=True, slots=True)
class Timed:
    """An operator in its place."""

    operator: Operator
    seconds: float
    faults: float
    """Pages of memory that it was the first to touch; each costs it time that warm memory does not."""


class Whole(NamedTuple):
    """A step without a look at its operators."""

    parts: Parts
    pace: float


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A network's step."""

    name: str
    samples: int
    operators: tuple[Timed, ...]
    pace: float
    """Seconds of a fixed small task in between: a shared machine is not as fast at one moment as at the next."""
    whole: Whole | None
    """The step as it runs when nobody looks at its operators, for some networks."""


class Seconds(float):
    """A time, and how many pages of memory were touched first in it."""

    faults: int


class Probe:
    """A fixed task that takes about a millisecond."""

    def __init__(self) -> None:
        self._matrix = torch.randn(256, 256)

    def seconds(self) -> float:
        """Of the task, now."""
        times = []
        for _ in range(5):
            begin = perf_counter()
            torch.mm(self._matrix, self._matrix)
            times.append(perf_counter() - begin)
        return median(times)


def measure(network: Network, probe: Probe, whole: bool = True) -> Measured:
    """Run steps in which each operator is timed and, if ``whole``, steps in which none is.

    Steps of a kind run one after the other, as in a training, and quick ones more often.
    """
    recorder = Recorder(_run)
    step = Step(network.subject, network.samples, recorder)
    begin = perf_counter()
    with recorder:
        step.run()  # kernels are made, memory is got
    first = perf_counter() - begin
    repeats = min(MOST_STEPS, max(2 if first < LONG else 1, int(ENOUGH / first)))
    pace, runs = [probe.seconds()], []
    for _ in range(repeats):
        with recorder:
            step.run()
        runs.append([call for phase in PHASES for call in recorder.calls[phase]])
        pace.append(probe.seconds())
    operators = tuple(_typical(calls) for calls in zip(*runs, strict=True))
    del step, runs
    return Measured(
        name=network.subject.name,
        samples=network.samples,
        operators=operators,
        pace=median(pace),
        whole=_whole(network, probe, repeats) if whole else None,
    )


def _whole(network: Network, probe: Probe, repeats: int) -> Whole:
    plain = PlainStep(network.subject, network.samples)
    plain.run()
    pace = [probe.seconds()]
    parts = [plain.run() for _ in range(repeats)]
    pace.append(probe.seconds())
    return Whole(typical(parts), sum(pace) / 2)


def _typical(calls: tuple[tuple[Operator, float], ...]) -> Timed:
    """The medians of an operator's runs."""
    times = [seconds for _, seconds in calls]
    pages = [seconds.faults for seconds in times if isinstance(seconds, Seconds)]
    return Timed(calls[0][0], median(times), median(pages))


def _run(function: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, float]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    begin = perf_counter()
    result = function(*args, **kwargs)
    seconds = Seconds(perf_counter() - begin)
    seconds.faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return result, seconds
