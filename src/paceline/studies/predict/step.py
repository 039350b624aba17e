"""How long a step takes, for one strategy on one cluster, and what bounds it."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from paceline.costs.compression import UNCOMPRESSED
from paceline.costs.stated import StatedCosts, stated_costs
from paceline.runtimes.virtual.simulate import simulate
from paceline.strategies.base import SyncPoint
from paceline.studies.predict.extremes import expected_maximum, mean_factor, sum_of
from paceline.studies.predict.prediction import Bound, PredictedStep, Where
from paceline.studies.predict.samples import (
    COMPUTING,
    Simulation,
    StepSample,
    StepSamples,
    Weighted,
    mean_step,
    steady_step,
    whole_cycles,
)
from paceline.studies.predict.servers import approximate_bounded, approximate_rounds
from paceline.studies.predict.setup import Change, Setup, apply_change, links_in_use, slower

WITH_ONE, WITH_SEVERAL = 64, 16
"""Pairs of a worker and a server, with one server and with several, up to which training with servers is simulated
where workers vary or do not wait for all. That takes seconds; beyond, it is approximated (``servers.py``)."""

SERVERS = 0.9
"""Fraction of what better links would gain that better servers alone must gain to be what bounds a step."""


def predict_step(setup: Setup) -> PredictedStep:
    """The step of a worker in the long run. A UsageError says what cannot be predicted.

    One worker of each group of equal hosts is simulated where it does what all of its group do at the same time; else
    every worker is, or a large run with servers is approximated.
    """
    step = None if _is_small(setup) else _without_events(setup)
    return by_events(setup) if step is None else step


def explain_step(setup: Setup) -> PredictedStep:
    """The same with what bounds it, which takes several times as long."""
    bound, besides, link = find_bounds(setup, _seconds)
    return replace(predict_step(setup), bound=bound, besides=besides, link=link, cipher=_cipher(setup))


def acts_in_step(setup: Setup) -> bool:
    """Whether all workers of a group do the same at the same time, so that one of them can stand for all."""
    strategy = setup.program
    if any(group.host.churn for group in setup.cluster.groups):
        return False
    if strategy.served:
        # What a server spends on each message depends on the order in which they arrive.
        return strategy.staleness_bound == 0 and not setup.times.serve
    # Between averages by the clock, workers that vary take different numbers of steps.
    steady = not setup.jitter or strategy.sync_point is SyncPoint.EVERY_STEP
    return steady and setup.pattern.uniform


def by_groups(setup: Setup) -> PredictedStep:
    """The step of workers that do not vary."""
    if setup.program.served:
        return steady_step(_grouped(setup), setup, len(setup.paces))
    return mean_step(_cycles(setup))


def by_slowest(setup: Setup) -> PredictedStep:
    """The step of workers that vary and wait for all others in collectives: all are as fast as the slowest.

    The slowest takes the expected maximum from one exchange to the next. A worker's own time is the mean, and it waits
    for the rest. Transfers are hidden behind the slowest worker's backward, also while others already wait for it.
    """
    longest = _stretch(setup, _cycles(setup))
    step = mean_step(_cycles(replace(setup, cost=slower(setup.cost, longest))))
    own, parts = mean_factor(setup.jitter) / longest, step.breakdown
    shorter = {part: own * getattr(parts, part) for part in COMPUTING}
    return replace(step, breakdown=replace(parts, **shorter, wait=parts.wait + (1 - own) * parts.compute))


def by_events(setup: Setup) -> PredictedStep:
    """Simulate every worker. A UsageError says where that would take too long."""
    cluster = replace(setup.cluster, times=replace(setup.times, jitter=setup.jitter))

    def simulated(steps: int) -> Weighted:
        samples, settings = StepSamples(), setup.settings(cluster.workers, steps)
        simulate(
            settings,
            setup.shape_for(settings),
            cluster,
            stated_costs(cluster, settings.batch_sizes, {}, setup.seed),
            gradients=False,
            strategy=setup.program,
            recorder=samples,
        )
        return [(samples.steps[rank], 1) for rank in range(cluster.workers)]

    if setup.program.served:
        step = steady_step(simulated, setup, cluster.workers)
    else:
        step = mean_step(whole_cycles(simulated, setup, cluster.workers, setup.jitter))
    return replace(step, path="events")


def _without_events(setup: Setup) -> PredictedStep | None:
    """The step without simulating every worker; None where that is not known to be right."""
    strategy = setup.program
    if acts_in_step(setup):
        if not setup.jitter:
            return by_groups(setup)
        return approximate_rounds(setup, by_groups) if strategy.served else by_slowest(setup)
    leaves = any(group.host.churn for group in setup.cluster.groups)
    if not strategy.served or strategy.staleness_bound is None or leaves:
        return None
    return approximate_bounded(setup)


def _is_small(setup: Setup) -> bool:
    """Whether it is simulated although it could be approximated."""
    strategy = setup.program
    if not strategy.served or (not setup.jitter and strategy.staleness_bound == 0):
        return False
    return setup.cluster.workers * setup.servers <= (WITH_ONE if setup.servers == 1 else WITH_SEVERAL)


def _seconds(setup: Setup) -> float:
    """Without events, for comparisons: exactly, or as if workers did not vary."""
    step = _without_events(setup) or by_groups(replace(setup, jitter=0.0))
    return step.seconds


def _cycles(setup: Setup) -> Weighted:
    """Of workers that do not vary."""
    return whole_cycles(_grouped(setup), setup, len(setup.paces))


def _grouped(setup: Setup) -> Simulation:
    """Of one worker for each group of equal hosts; the hosts of servers are groups of their own."""
    cluster = setup.cluster.split(setup.server_hosts)
    if setup.server_hosts:
        cluster = cluster.encrypted(setup.server_hosts)
    places = [cluster.group_at(host) for host in setup.server_hosts]
    setup = replace(setup, cluster=cluster)
    groups = [group for group in cluster.groups if group.workers]

    def simulated(steps: int) -> Weighted:
        samples, settings = StepSamples(), setup.settings(len(groups), steps)
        costs = StatedCosts(
            times=setup.times,
            batch_sizes=settings.batch_sizes,
            speeds=setup.paces,
            updating=setup.updating,
            gradients=cluster.workers,
        )
        simulate(
            settings,
            setup.shape_for(settings),
            cluster,
            costs,
            gradients=False,
            strategy=setup.program,
            recorder=samples,
            server_groups=places,
        )
        return [(samples.steps[rank], group.workers) for rank, group in enumerate(groups)]

    return simulated


def _stretch(setup: Setup, cycles: Weighted) -> float:
    """How many times as long as without jitter the slowest worker computes from one exchange to the next."""
    groups = [(_stretches(steps), many) for steps, many in cycles]
    if not groups[0][0]:
        return mean_factor(setup.jitter)
    still = slowest = 0.0
    for exchange in range(len(groups[0][0])):
        still += max(sum(found[exchange]) for found, _ in groups)
        slowest += expected_maximum([(sum_of(found[exchange], setup.jitter), many) for found, many in groups])
    return slowest / still


def _stretches(steps: Sequence[StepSample]) -> list[list[float]]:
    """What a worker computes before each of its exchanges, step by step: each varies by itself."""
    found: list[list[float]] = []
    current: list[float] = []
    for one in steps:
        current.append(one.computing - one.after)
        if one.exchanged:
            found.append(current)
            current = [one.after] if one.after else []
    # What follows the last exchange comes before the first one of the next cycle.
    if found:
        found[0] = current + found[0]
    return found


def find_bounds(setup: Setup, step: Callable[[Setup], float]) -> tuple[Bound, Bound, Where]:
    """What bounds the step, what would if computing stayed as it is, and the link; ``step`` answers in seconds.

    Whatever, twice as good, would make it shortest: computing twice as fast, a link of twice the bandwidth or half the
    latency, a codec that takes half the time, processes that encrypt twice as fast, servers' hosts of twice the
    bandwidth that update twice as fast, or half as long a wait for slower workers. Where nothing helps it is compute.
    """
    now = step(setup)

    def gain(change: Change) -> float:
        return now - step(apply_change(setup, change))

    links: dict[Where, dict[Bound, float]] = {
        where: {
            "bandwidth": gain(Change(link=where, bandwidth=2.0)),
            "latency": gain(Change(link=where, latency=0.5)),
        }
        for where in links_in_use(setup)
    }
    where: Where = max(links, key=lambda one: max(links[one].values()), default="network")
    gains: dict[Bound, float] = {"compute": gain(Change(compute=0.5, updating=2.0)), **links.get(where, {})}
    if setup.shape.compression != UNCOMPRESSED:
        gains["codec"] = gain(Change(coding=0.5))
    if setup.jitter or len(set(setup.paces)) > 1:
        gains["straggler"] = gain(Change(even=True)) / 2
        # A worker that computes twice as fast is waited for half as long; that part is counted once.
        gains["compute"] -= gains["straggler"]
    if _cipher(setup):
        gains["encryption"] = gain(Change(cipher=2.0))
    if setup.program.served:
        server, carried = gain(Change(servers=2.0)), gains.get("bandwidth", 0.0)
        if server >= SERVERS * carried:
            gains["server"] = max(server, carried)
            gains.pop("bandwidth", None)
    besides: dict[Bound, float] = {name: value for name, value in gains.items() if name != "compute"}
    return _largest(gains, now), _largest(besides, now), where


def _largest(gains: dict[Bound, float], now: float) -> Bound:
    helps = [name for name, value in gains.items() if value > 1e-9 * now]
    return max(helps, key=lambda name: gains[name], default="compute")


def _cipher(setup: Setup) -> float:
    return setup.cluster.cipher if setup.program.served else 0.0
