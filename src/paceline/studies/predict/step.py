"""How long a step takes, for one strategy on one cluster, and what bounds it."""

from dataclasses import replace

from paceline.strategies.base import SyncPoint
from paceline.studies.predict.approximation import approximate_bounded, approximate_rounds, by_slowest
from paceline.studies.predict.prediction import Bound, PredictedStep, StepBounds, Where
from paceline.studies.predict.setup import Setup, slower, with_even_workers, with_faster_servers, with_link
from paceline.studies.predict.simulation import by_events, by_groups

WITH_ONE, WITH_SEVERAL = 64, 16
"""Pairs of a worker and a server, with one server and with several, up to which training with servers is simulated
where workers vary or do not wait for all. That takes seconds; beyond, it is approximated."""
SERVERS = 0.9
"""Fraction of what better links would gain that better servers alone must gain to be what bounds a step."""


def predict_step(setup: Setup) -> PredictedStep:
    """The step of a worker in the long run. A UsageError says what cannot be predicted.

    One worker of each group of equal hosts is simulated where it does what all of its group do at the same time; else
    every worker is, or a large run with servers is approximated.
    """
    if setup.slow:  # no worker stands for another
        return by_events(setup)
    strategy, pairs = setup.program, setup.cluster.workers * setup.servers
    varies = strategy.served and (setup.jitter or strategy.staleness_bound != 0)
    small = varies and pairs <= (WITH_ONE if setup.servers == 1 else WITH_SEVERAL)
    return (None if small else _without_events(setup)) or by_events(setup)


def acts_in_step(setup: Setup) -> bool:
    """Whether all workers of a group do the same at the same time, so that one of them can stand for all."""
    strategy = setup.program
    if strategy.served:
        # What a server spends on each message depends on the order in which they arrive.
        return strategy.staleness_bound == 0 and not setup.times.serve and not setup.coding.compresses
    # Between averages by the clock, workers that vary take different numbers of steps.
    # So they do where they measure their own times, and a wait that is put off hides how much they vary.
    by_step = strategy.sync_point is SyncPoint.EVERY_STEP and strategy.regular and not setup.pattern.overlaps
    return (by_step or not setup.jitter) and setup.pattern.uniform


def _without_events(setup: Setup) -> PredictedStep | None:
    strategy = setup.program
    if acts_in_step(setup):
        if not setup.jitter:
            return by_groups(setup)
        return approximate_rounds(setup) if strategy.served else by_slowest(setup)
    if not strategy.served or strategy.staleness_bound is None:
        return None
    return approximate_bounded(setup)


def find_bounds(setup: Setup) -> StepBounds:
    """What bounds the step, what would if computing stayed as it is, and the link.

    Whatever, twice as good, would make it shortest: computing twice as fast, a link of twice the bandwidth or half the
    latency, a codec that takes half the time, processes that encrypt twice as fast, servers' hosts of twice the
    bandwidth that update twice as fast, or half as long a wait for slower workers. Where nothing helps it is compute.
    """
    now, served = quick_seconds(setup), setup.program.served
    cluster, cost, coding = setup.cluster, setup.cost, setup.coding

    def gain(other: Setup) -> float:
        return now - quick_seconds(other)

    links: dict[Where, dict[Bound, float]] = {
        where: {
            "bandwidth": gain(with_link(setup, where, bandwidth=2.0)),
            "latency": gain(with_link(setup, where, latency=0.5)),
        }
        for where in _links_in_use(setup)
    }
    where: Where = max(links, key=lambda one: max(links[one].values()), default="network")
    faster = replace(setup, cost=slower(cost, 0.5), updating=2 * setup.updating)
    gains: dict[Bound, float] = {"compute": gain(faster), **links.get(where, {})}
    if coding.compresses:
        gains["codec"] = gain(replace(setup, coding=replace(coding, scale=coding.scale / 2)))
    if setup.jitter or setup.slow or len(set(setup.paces)) > 1:
        gains["straggler"] = gain(with_even_workers(setup)) / 2
        # A worker that computes twice as fast is waited for half as long; that part is counted once.
        gains["compute"] -= gains["straggler"]
    if served and cluster.cipher:
        gains["encryption"] = gain(replace(setup, cluster=replace(cluster, cipher=2 * cluster.cipher)))
    if served:
        server, carried = gain(with_faster_servers(setup, 2.0)), gains.get("bandwidth", 0.0)
        if server >= SERVERS * carried:
            gains["server"] = max(server, carried)
            gains.pop("bandwidth", None)
    order = [name for name in sorted(gains, key=lambda one: -gains[one]) if gains[name] > 1e-9 * now]
    besides: Bound = next((name for name in order if name != "compute"), "compute")
    return StepBounds(order[0] if order else "compute", besides, where, cluster.cipher if served else 0.0)


def quick_seconds(setup: Setup) -> float:
    """Of a step, where it is compared with another one: without simulating every worker, unless all of them differ."""
    if setup.has_clients or setup.slow:
        return by_events(replace(setup, jitter=0.0)).seconds
    return (_without_events(setup) or by_groups(replace(setup, jitter=0.0))).seconds


def _links_in_use(setup: Setup) -> tuple[Where, ...]:
    cluster, servers = setup.cluster, {*setup.server_hosts}
    hosts = sum(group.count for group in cluster.groups if group.workers)
    hosts += sum(1 for place in servers if not cluster.groups[cluster.group_at(place)].workers)
    network: tuple[Where, ...] = ("network",) if hosts > 1 else ()
    shared = bool(servers) or any(group.host.workers > 1 for group in cluster.groups)
    return (*network, "inside") if shared else network
