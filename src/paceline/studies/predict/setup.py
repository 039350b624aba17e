"""One strategy on one cluster, ready to be simulated, and what-ifs of it."""

from dataclasses import dataclass, replace
from functools import cached_property
from math import exp

from paceline.clusters.cluster import Cluster, Host, Link, StepTimes
from paceline.collectives import NATIVE
from paceline.costs.device import StepCost
from paceline.jobs.spec import JobSpec
from paceline.runtimes.prepare import Prepared
from paceline.runtimes.settings import Every, Settings
from paceline.runtimes.virtual.shape import JobShape
from paceline.strategies import build_strategy
from paceline.strategies.base import Strategy
from paceline.studies.predict.observe import ExchangePattern, observe
from paceline.studies.predict.prediction import Where


@dataclass(frozen=True, kw_only=True)
class Setup:
    strategy: str
    cluster: Cluster
    cost: StepCost
    """A step of one worker alone on a device of speed 1."""
    shape: JobShape
    collective: str = NATIVE
    servers: int = 1
    jitter: float = 0.0
    """Spread of each worker's compute times, as ``StepTimes.jitter``."""
    updating: float = 1.0
    """How many times as long servers take for their updates."""
    seed: int = 1

    @cached_property
    def program(self) -> Strategy:
        return build_strategy(self.strategy)

    @cached_property
    def server_hosts(self) -> tuple[int, ...]:
        """The host of each server, by its index in the cluster; none where the strategy has no servers."""
        return self.cluster.place_servers(self.servers) if self.program.served else ()

    @cached_property
    def pattern(self) -> ExchangePattern:
        alone = self.cost.step.compute / max(self.paces)
        return observe(self.program, self.cluster.workers, alone, self.strategy)

    @cached_property
    def paces(self) -> tuple[float, ...]:
        hosts = [group.host for group in self.cluster.groups if group.workers]
        return tuple(host.device.speed / self.cluster.slowdown(host) for host in hosts)

    @property
    def times(self) -> StepTimes:
        stated = self.cluster.times
        return StepTimes(step=self.cost.step, serve=stated.serve, aggregate=stated.aggregate)

    def run(self, workers: int, steps: int) -> Prepared[JobShape]:
        """So many steps of the strategy, with so much data that no epoch ends."""
        settings = Settings(
            job=JobSpec(),
            strategy=self.strategy,
            batch_sizes=(self.cost.samples,) * workers,
            iterations=steps,
            seed=self.seed,
            evaluate=Every(0),
            checkpoint=Every(0),
            collective=self.collective,
            servers=self.servers,
        )
        samples = sum(settings.batch_sizes) * (2 * steps + 1)
        shape = replace(self.shape, ready=self.shape.ready or self.cost.ready, train_samples=samples)
        return Prepared(settings=settings, job=shape, strategy=self.program)


@dataclass(frozen=True, kw_only=True)
class Change:
    """A what-if; every field is a factor, 1 where all is as described."""

    compute: float = 1.0
    transfers: float = 1.0
    """Of the time of all transfers and of encryption."""
    link: Where = "network"
    bandwidth: float = 1.0
    latency: float = 1.0


AS_DESCRIBED = Change()


def apply_change(setup: Setup, change: Change) -> Setup:
    def link(old: Link, where: Where) -> Link:
        bandwidth, latency = (change.bandwidth, change.latency) if change.link == where else (1.0, 1.0)
        return Link(
            bandwidth=old.bandwidth * bandwidth / change.transfers,
            latency=old.latency * latency * change.transfers,
        )

    def changed(host: Host) -> Host:
        return replace(host, link=link(host.link, "network"), inside=link(host.inside, "inside"))

    if change == AS_DESCRIBED:
        return setup
    cluster = setup.cluster.map_hosts(changed)
    cluster = replace(cluster, cipher=cluster.cipher / change.transfers)
    return replace(setup, cluster=cluster, cost=slower(setup.cost, change.compute))


def with_faster_servers(setup: Setup, factor: float) -> Setup:
    """With ``factor`` times the bandwidth of the servers' hosts and the rate of their updates."""
    cluster = setup.cluster.split(setup.server_hosts)
    servers = {cluster.group_at(place) for place in setup.server_hosts}

    def wider(link: Link) -> Link:
        return replace(link, bandwidth=link.bandwidth * factor)

    groups = [
        replace(group, host=replace(group.host, link=wider(group.host.link), inside=wider(group.host.inside)))
        if index in servers
        else group
        for index, group in enumerate(cluster.groups)
    ]
    cluster = replace(cluster, groups=tuple(groups))
    return replace(setup, cluster=cluster, updating=setup.updating / factor)


def with_even_workers(setup: Setup) -> Setup:
    """With workers that all take as long as they do in the mean."""
    workers = [group.workers for group in setup.cluster.groups if group.workers]
    mean = sum(many / pace for many, pace in zip(workers, setup.paces, strict=True)) / sum(workers)

    def even(host: Host) -> Host:
        return replace(host, device=replace(host.device, speed=setup.cluster.slowdown(host) / mean))

    cost = slower(setup.cost, mean_factor(setup.jitter))
    return replace(setup, cluster=setup.cluster.map_hosts(even), cost=cost, jitter=0.0)


def slower(cost: StepCost, factor: float) -> StepCost:
    return replace(cost, step=cost.step * factor)


def mean_factor(jitter: float) -> float:
    """The mean of the lognormal factor by which a step varies; its median is 1."""
    return exp(jitter**2 / 2)
