"""The step of a worker in the long run by simulation: of one worker for each group of equal hosts, or of every one."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from math import ceil, inf
from typing import NamedTuple

import numpy as np

from paceline.costs.stated import StatedCosts
from paceline.errors import UsageError
from paceline.records.spans import StepBreakdown, StepRecord
from paceline.runtimes.virtual.recording import SimulationRecorder
from paceline.runtimes.virtual.simulate import execute, simulate
from paceline.runtimes.virtual.simulation import Simulation
from paceline.strategies.base import SyncPoint
from paceline.studies.predict.prediction import Method, PredictedStep
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
ENOUGH_ROUNDS = 16
"""From which a mean is taken where rounds differ."""
LONG = 1_024
"""Steps of all workers together after which the later span of a run with servers is the answer, steady or not."""
STEADY_ROUNDS, VARYING_ROUNDS = 2, 16
"""Rounds of which a mean is taken where they find their own length, and where workers vary as well."""
ALIKE = 0.05
"""Fraction by which the steps of these rounds may differ."""
ADAPTING = 2**16
"""Steps of all simulated workers together in which rounds find their length; else the last of them are taken."""
VARYING = 4_096
"""Steps of all workers together, over the number of servers, of a run with servers in which workers vary."""


class StepSample(NamedTuple):
    parts: tuple[float, ...]
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
    def computing(self) -> float:
        return sum(self.parts[PARTS.index(part)] for part in COMPUTING)


WorkerSteps = Sequence[tuple[Sequence[StepSample], int]]
"""Steps of simulated workers, and how many workers each of them stands for."""


@dataclass
class StepSamples(SimulationRecorder):
    """Keeps every step of every worker; evaluations and checkpoints are no steps."""

    detailed: bool = True
    steps: dict[int, list[StepSample]] = field(default_factory=dict)

    def recorded(self, rank: int, record: StepRecord) -> None:
        if record.is_step:
            self.steps.setdefault(rank, []).append(StepSample.of(record))


class Steady(Exception):
    """Enough has been simulated."""


@dataclass
class SteadyRounds(StepSamples):
    """Ends a simulation when the latest rounds of the last worker, which all others are ahead of, are alike."""

    last: int = 0
    rounds: int = STEADY_ROUNDS
    ends: list[int] = field(default_factory=list)

    def recorded(self, rank: int, record: StepRecord) -> None:
        super().recorded(rank, record)
        if rank != self.last or not record.is_step or not record.sent:
            return
        self.ends.append(record.step)
        lengths = [later - earlier for earlier, later in pairwise(self.ends[-1 - self.rounds :])]
        # The first two rounds have the length with which the search begins.
        if len(self.ends) > self.rounds + 2 and max(lengths) <= (1 + ALIKE) * min(lengths):
            raise Steady


def by_groups(setup: Setup) -> PredictedStep:
    """Of one worker for each group of equal hosts; the hosts of servers are groups of their own."""
    return _simulated_step(setup, "groups")


def by_events(setup: Setup) -> PredictedStep:
    """Of every worker."""
    return replace(_simulated_step(setup, "events"), path="events")


def _simulated_step(setup: Setup, path: Method) -> PredictedStep:
    if setup.has_clients:
        return mean_step(_whole_rounds(setup, path))
    if setup.program.served:
        return _steady_step(setup, path)
    repeats = setup.program.regular or setup.cluster.workers == 1  # which exchanges nothing
    return mean_step(whole_cycles(setup, path) if repeats else _steady_rounds(setup, path))


def _simulated(setup: Setup, steps: int, path: Method, samples: StepSamples | None = None) -> WorkerSteps:
    """``samples`` may end the simulation with ``Steady`` before its last step."""
    if path == "groups":
        setup = replace(setup.apart(), jitter=0.0)
    cluster = setup.cluster
    groups = [group.workers for group in cluster.groups if group.workers]
    counts, speeds = groups, setup.paces
    if path == "events":
        counts = [1] * cluster.workers
        speeds = tuple(pace for pace, many in zip(setup.paces, groups, strict=True) for _ in range(many))
    if steps * len(counts) > MOST:
        raise UsageError(
            f"strategy {setup.strategy!r} cannot be predicted here: {len(counts):,} workers would have to be simulated "
            f"for {steps:,} steps each, and {MOST:,} steps is the limit; ask for fewer workers or a shorter period"
        )
    samples, prepared = samples or StepSamples(), setup.prepared(len(counts), steps)
    costs = StatedCosts(
        times=replace(setup.times, jitter=setup.jitter),
        batch_sizes=prepared.shards.batch_sizes,
        speeds=speeds,
        slow=dict(setup.slow) if path == "events" else {},
        seed=setup.seed,
        updating=setup.updating,
        gradients=cluster.workers if path == "groups" else None,
    )
    servers = setup.server_groups if path == "groups" else None
    simulation = Simulation(
        prepared,
        cluster,
        costs,
        gradients=False,
        recorder=samples,
        server_groups=servers,
        coding=setup.coding,
        begun=setup.program.settled,
    )
    with suppress(Steady):
        if path == "groups":
            execute(simulation)  # of fewer workers than the cluster has, which ``simulate`` refuses
        else:
            simulate(simulation)
    return [(samples.steps[rank], count) for rank, count in enumerate(counts)]


def mean_step(workers: WorkerSteps) -> PredictedStep:
    """The mean step of many workers, weighted so that all workers' samples over the mean step are the rate."""
    steps = rate = sent = 0.0
    shares = np.zeros(len(PARTS))
    for taken, count in workers:
        parts = np.sum([one.parts for one in taken], axis=0)
        weight = count / float(parts[:-1].sum())  # hidden transfers are part of no sum
        steps += weight * len(taken)
        rate += weight * sum(one.samples for one in taken)
        sent += weight * sum(one.sent for one in taken)
        shares += weight * parts
    breakdown = StepBreakdown(*(shares / steps).tolist())
    return PredictedStep(breakdown=breakdown, sent=round(sent / steps, 3), rate=rate)


def whole_cycles(setup: Setup, path: Method) -> WorkerSteps:
    """Whole cycles after the first one: one where workers do not vary, as many as a mean needs where they do."""
    cycle, times = setup.pattern.cycle, 1
    if setup.jitter and path == "events":
        times = ceil(min(512, max(64, DRAWS // setup.cluster.workers)) / cycle)
    found = []
    by_step = setup.program.sync_point is SyncPoint.EVERY_STEP
    more = (
        cycle * setup.pattern.overlaps
    )  # the run's last step waits for what would be hidden behind the next ones
    for steps, many in _simulated(setup, cycle * (1 + times) + more, path):
        ends = [place + 1 for place, one in enumerate(steps) if one.exchanged]
        # By the clock, a round has not the same steps for all workers.
        by_round = len(ends) > 1 and not by_step
        found.append((steps[ends[0] : ends[-1]] if by_round else steps[cycle : cycle * (1 + times)], many))
    return found


def _whole_rounds(setup: Setup, path: Method) -> WorkerSteps:
    """Rounds after the first one: two where they are alike, else as many as a mean needs; twice the steps until then.

    One worker alone exchanges nothing, and has no rounds.
    """
    steps = SERVED if setup.cluster.workers > 1 else LONG
    while True:
        found, ends = [], [0]
        for taken, many in _simulated(setup, steps, path):
            ends = [place + 1 for place, one in enumerate(taken) if one.exchanged] or [0]
            found.append((taken[ends[0] : ends[-1]] or taken, many))
        rounds, lengths = len(ends) - 1, _round_lengths(taken, ends)
        alike = rounds > 1 and max(lengths) <= min(lengths) * (1 + AGREE)
        varied = rounds and sum(len(taken) for taken, _ in found) > VARYING
        if alike or varied or rounds >= ENOUGH_ROUNDS or setup.cluster.workers == 1:
            return found
        steps *= 2


def _round_lengths(taken: Sequence[StepSample], ends: Sequence[int]) -> list[float]:
    """Seconds from the end of each exchange of a worker to that of the next; these places follow the exchanges."""
    return [taken[later - 1].end - taken[end - 1].end for end, later in pairwise(ends)]


def _steady_rounds(setup: Setup, path: Method) -> WorkerSteps:
    """The last rounds of a run whose rounds have become equally long, or of the longest that is simulated."""
    rounds = VARYING_ROUNDS if setup.jitter else STEADY_ROUNDS
    workers = setup.cluster.workers if path == "events" else len(setup.paces)
    most = max(ADAPTING // workers, 4 * rounds * setup.pattern.cycle)
    found = _simulated(setup, most, path, SteadyRounds(last=workers - 1, rounds=rounds))
    ends = [place for place, one in enumerate(found[-1][0], start=1) if one.sent][-1 - rounds :]
    return [(taken[ends[0] : ends[-1]], many) for taken, many in found]


def _steady_step(setup: Setup, path: Method) -> PredictedStep:
    """The mean step with servers: twice as many steps until two spans of the run are equally fast."""
    bound, jitter = setup.program.staleness_bound, setup.jitter
    workers = setup.cluster.workers if path == "events" else len(setup.paces)
    steps = SERVED * (1 + int(min(7, bound))) if bound not in (None, inf) else SERVED
    if jitter:
        steps = max(steps, VARYING // (workers * setup.servers))
    while True:
        found = _simulated(setup, steps, path)
        # The first worker to finish leaves the others more bandwidth: the run's end does not count.
        end = min(taken[-1].end for taken, _ in found)
        if jitter and (mean := _mean_between(found, end * 0.2, end * 0.95)) is not None:
            return mean
        before, later = (_mean_between(found, end * part, end * (part + 0.35)) for part in (0.25, 0.6))
        steps *= 2
        if before is None or later is None:
            continue
        if abs(before.rate / later.rate - 1) <= AGREE or steps * workers > LONG:
            return later


def _mean_between(workers: WorkerSteps, begin: float, end: float) -> PredictedStep | None:
    """The mean of the steps that ended between two times; None where a worker has too few."""
    found = [([one for one in steps if begin < one.end <= end], many) for steps, many in workers]
    return mean_step(found) if min(len(steps) for steps, _ in found) >= 4 else None
