"""Steps of a simulated run, and which of them say how long a step takes in the long run."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from math import ceil, inf
from typing import NamedTuple

from paceline.errors import UsageError
from paceline.records.spans import StepBreakdown, StepRecord
from paceline.runtimes.virtual.recording import SimulationRecorder
from paceline.studies.predict.prediction import PredictedStep
from paceline.studies.predict.setup import Setup

PARTS = tuple(part.name for part in fields(StepBreakdown))
COMPUTING = ("data", "forward", "backward", "apply")

MOST = 1_000_000
"""Steps of all simulated workers together for one answer: some ten seconds."""

DRAWS = 16_384
"""Steps of all workers together from which a mean is taken where they vary."""

SERVED = 16
"""Steps with which a run with servers begins, times 1 + its staleness bound: a fast worker reaches it after a while."""

AGREE = 0.005
"""Fraction by which two spans of a run with servers may differ before a longer one is simulated."""

LONG = 1_024
"""Steps of all workers together after which the later span of a run with servers is the answer, steady or not."""

VARYING = 4_096
"""Steps of all workers together, over the number of servers, of a run with servers in which workers vary."""


class StepSample(NamedTuple):
    """One simulated step of one worker."""

    parts: tuple[float, ...]
    """Seconds, as ``PARTS``."""
    sent: int
    samples: int
    end: float
    after: float
    """Seconds of computing that follow the step's exchange; 0 where there is none."""
    exchanged: bool

    @classmethod
    def of(cls, record: StepRecord) -> "StepSample":
        seconds = dict.fromkeys(PARTS, 0.0)
        after, exchanged = 0.0, False
        for kind, _, length in record.spans:
            seconds[kind] += length
            if kind == "communicate":
                after, exchanged = 0.0, True
            elif exchanged and kind in COMPUTING:
                after += length
        end = record.spans[-1].start + record.spans[-1].length if record.spans else 0.0
        seconds["hidden"] = sum(span.length for span in record.hidden)
        return cls(tuple(seconds.values()), record.sent, record.samples, end, after, exchanged)

    @property
    def seconds(self) -> float:
        return sum(self.parts[:-1])

    @property
    def computing(self) -> float:
        return sum(self.parts[PARTS.index(part)] for part in COMPUTING)


Weighted = Sequence[tuple[Sequence[StepSample], int]]
"""Steps of simulated workers, and how many workers each of them stands for."""

Simulation = Callable[[int], Weighted]
"""From the number of steps a worker to all of them."""


@dataclass
class StepSamples(SimulationRecorder):
    """Keeps every step of every worker; evaluations and checkpoints are no steps."""

    detailed: bool = True
    steps: dict[int, list[StepSample]] = field(default_factory=dict)

    def stepped(self, rank: int, record: StepRecord) -> None:
        if record.is_step:
            self.steps.setdefault(rank, []).append(StepSample.of(record))


def mean_step(workers: Iterable[tuple[Sequence[StepSample], int]]) -> PredictedStep:
    """The mean step of many workers.

    A worker that takes more steps in a second counts with more of them, so that all workers' samples over the mean
    step are the rate.
    """
    steps = rate = sent = 0.0
    shares = [0.0] * len(PARTS)
    for taken, count in workers:
        weight = count / sum(one.seconds for one in taken)
        steps += weight * len(taken)
        rate += weight * sum(one.samples for one in taken)
        sent += weight * sum(one.sent for one in taken)
        for place in range(len(PARTS)):
            shares[place] += weight * sum(one.parts[place] for one in taken)
    return PredictedStep(
        breakdown=StepBreakdown(*(share / steps for share in shares)), sent=sent / steps, rate=rate
    )


def whole_cycles(simulate: Simulation, setup: Setup, workers: int, jitter: float = 0.0) -> Weighted:
    """Whole cycles after the first one: one where workers do not vary, as many as a mean needs where they do."""
    cycle = setup.pattern.cycle
    times = ceil(min(512, max(64, DRAWS // workers)) / cycle) if jitter else 1
    last = cycle * (1 + times)
    _check(last, workers, setup.strategy)
    return [(_between_exchanges(steps, cycle), many) for steps, many in simulate(last)]


def steady_step(simulate: Simulation, setup: Setup, workers: int) -> PredictedStep:
    """The mean step with servers: twice as many steps until two spans of the run are equally fast."""
    bound, jitter, name = setup.program.staleness_bound, setup.jitter, setup.strategy
    steps = SERVED * (1 + int(min(7, bound))) if bound not in (None, inf) else SERVED
    if jitter:
        steps = max(steps, VARYING // (workers * setup.servers))
    while True:
        _check(steps, workers, name)
        found = simulate(steps)
        # The first worker to finish leaves the others more bandwidth: the run's end does not count.
        end = min(taken[-1].end for taken, _ in found)
        if jitter and (mean := _between(found, end * 0.2, end * 0.95)) is not None:
            return mean
        before, later = (_between(found, end * part, end * (part + 0.35)) for part in (0.25, 0.6))
        steps *= 2
        if before is not None and later is not None:
            steady = abs(before.rate / later.rate - 1) <= AGREE
            if steady or steps * workers > LONG:
                return later


def _check(steps: int, workers: int, name: str) -> None:
    if steps * workers > MOST:
        raise UsageError(
            f"strategy {name!r} cannot be predicted here: {workers:,} workers would have to be simulated for "
            f"{steps:,} steps each, and {MOST:,} steps is the limit; ask for fewer workers or a shorter period"
        )


def _between_exchanges(steps: Sequence[StepSample], cycle: int) -> Sequence[StepSample]:
    """From the first exchange to the last one, where there are any."""
    ends = [place + 1 for place, one in enumerate(steps) if one.exchanged]
    return steps[ends[0] : ends[-1]] if len(ends) > 1 else steps[cycle:]


def _between(workers: Weighted, begin: float, end: float) -> PredictedStep | None:
    """The mean of the steps that ended between two times; None where a worker has too few."""
    found = [([one for one in steps if begin < one.end <= end], many) for steps, many in workers]
    return mean_step(found) if min(len(steps) for steps, _ in found) >= 4 else None
