"""The step of a worker in the long run by simulation: of one worker for each group of equal hosts, or of every one."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from math import ceil, inf
from typing import NamedTuple

from paceline.clusters.cluster import Cluster
from paceline.costs.stated import StatedCosts, stated_costs
from paceline.errors import UsageError
from paceline.records.spans import StepBreakdown, StepRecord
from paceline.runtimes.virtual.recording import SimulationRecorder
from paceline.runtimes.virtual.simulate import simulate
from paceline.runtimes.virtual.simulation import Simulation
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
    def seconds(self) -> float:
        return sum(self.parts[:-1])

    @property
    def computing(self) -> float:
        return sum(self.parts[PARTS.index(part)] for part in COMPUTING)


WorkerSteps = Sequence[tuple[Sequence[StepSample], int]]
"""Steps of simulated workers, and how many workers each of them stands for."""
Simulate = Callable[[int], WorkerSteps]
"""From the number of steps a worker to all of them."""


@dataclass
class StepSamples(SimulationRecorder):
    """Keeps every step of every worker; evaluations and checkpoints are no steps."""

    detailed: bool = True
    steps: dict[int, list[StepSample]] = field(default_factory=dict)

    def recorded(self, rank: int, record: StepRecord) -> None:
        if record.is_step:
            self.steps.setdefault(rank, []).append(StepSample.of(record))


def by_groups(setup: Setup) -> PredictedStep:
    if setup.program.served:
        return _steady_step(_grouped(setup), setup, len(setup.paces))
    return mean_step(cycles_by_groups(setup))


def cycles_by_groups(setup: Setup) -> WorkerSteps:
    return _whole_cycles(_grouped(setup), setup, len(setup.paces))


def by_events(setup: Setup) -> PredictedStep:
    cluster = replace(setup.cluster, times=replace(setup.times, jitter=setup.jitter))
    workers = cluster.workers

    def simulated(steps: int) -> WorkerSteps:
        costs = stated_costs(cluster, (setup.cost.samples,) * workers, {}, setup.seed)
        return _simulated(setup, cluster, costs, steps, [1] * workers)

    if setup.program.served:
        step = _steady_step(simulated, setup, workers)
    else:
        step = mean_step(_whole_cycles(simulated, setup, workers, setup.jitter))
    return replace(step, path="events")


def _grouped(setup: Setup) -> Simulate:
    """Of one worker for each group of equal hosts; the hosts of servers are groups of their own."""
    cluster = setup.cluster.split(setup.server_hosts)
    if setup.server_hosts:
        cluster = cluster.encrypted(setup.server_hosts)
    places = [cluster.group_at(host) for host in setup.server_hosts]
    counts = [group.workers for group in cluster.groups if group.workers]
    setup = replace(setup, cluster=cluster)
    costs = StatedCosts(
        times=setup.times,
        batch_sizes=(setup.cost.samples,) * len(counts),
        speeds=setup.paces,
        updating=setup.updating,
        gradients=cluster.workers,
    )
    return lambda steps: _simulated(setup, cluster, costs, steps, counts, places)


def _simulated(
    setup: Setup,
    cluster: Cluster,
    costs: StatedCosts,
    steps: int,
    counts: Sequence[int],
    server_groups: Sequence[int] | None = None,
) -> WorkerSteps:
    samples, run = StepSamples(), setup.run(len(counts), steps)
    simulate(Simulation(run, cluster, costs, gradients=False, recorder=samples, server_groups=server_groups))
    return [(samples.steps[rank], count) for rank, count in enumerate(counts)]


def mean_step(workers: Iterable[tuple[Sequence[StepSample], int]]) -> PredictedStep:
    """The mean step of many workers, weighted so that all workers' samples over the mean step are the rate."""
    steps = rate = sent = 0.0
    shares = [0.0] * len(PARTS)
    for taken, count in workers:
        weight = count / sum(one.seconds for one in taken)
        steps += weight * len(taken)
        rate += weight * sum(one.samples for one in taken)
        sent += weight * sum(one.sent for one in taken)
        for place in range(len(PARTS)):
            shares[place] += weight * sum(one.parts[place] for one in taken)
    breakdown = StepBreakdown(*(share / steps for share in shares))
    return PredictedStep(breakdown=breakdown, sent=sent / steps, rate=rate)


def _whole_cycles(simulated: Simulate, setup: Setup, workers: int, jitter: float = 0.0) -> WorkerSteps:
    """Whole cycles after the first one: one where workers do not vary, as many as a mean needs where they do."""
    cycle = setup.pattern.cycle
    times = ceil(min(512, max(64, DRAWS // workers)) / cycle) if jitter else 1
    last = cycle * (1 + times)
    _check_steps(last, workers, setup.strategy)
    found = []
    for steps, many in simulated(last):
        ends = [place + 1 for place, one in enumerate(steps) if one.exchanged]
        found.append((steps[ends[0] : ends[-1]] if len(ends) > 1 else steps[cycle:], many))
    return found


def _steady_step(simulated: Simulate, setup: Setup, workers: int) -> PredictedStep:
    """The mean step with servers: twice as many steps until two spans of the run are equally fast."""
    bound, jitter = setup.program.staleness_bound, setup.jitter
    steps = SERVED * (1 + int(min(7, bound))) if bound not in (None, inf) else SERVED
    if jitter:
        steps = max(steps, VARYING // (workers * setup.servers))
    while True:
        _check_steps(steps, workers, setup.strategy)
        found = simulated(steps)
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


def _check_steps(steps: int, workers: int, name: str) -> None:
    if steps * workers > MOST:
        raise UsageError(
            f"strategy {name!r} cannot be predicted here: {workers:,} workers would have to be simulated for "
            f"{steps:,} steps each, and {MOST:,} steps is the limit; ask for fewer workers or a shorter period"
        )
