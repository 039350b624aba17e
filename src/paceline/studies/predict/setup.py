"""One strategy on one cluster, ready to be simulated, and what-ifs of it."""

from dataclasses import dataclass, replace
from functools import cached_property

from paceline.clusters.cluster import Cluster, Host, Link, StepTimes
from paceline.collectives import NATIVE
from paceline.costs.device import StepCost
from paceline.jobs.spec import JobSpec
from paceline.runtimes.settings import Every, Settings
from paceline.runtimes.virtual.shape import JobShape
from paceline.strategies import build_strategy
from paceline.strategies.base import Strategy
from paceline.studies.predict.extremes import mean_factor
from paceline.studies.predict.observe import ExchangePattern, observe
from paceline.studies.predict.prediction import Where


@dataclass(frozen=True, kw_only=True)
class Setup:
    """All that the step of one strategy on one cluster depends on."""

    strategy: str
    """A spec, such as "local-sgd:period=16"."""
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

    @property
    def alone(self) -> float:
        """Seconds of the fastest worker's step by itself."""
        return self.cost.step.compute / max(self.paces)

    @cached_property
    def pattern(self) -> ExchangePattern:
        """What the workers exchange; of a strategy without servers."""
        return observe(self.program, self.cluster.workers, self.alone, self.strategy)

    @cached_property
    def paces(self) -> tuple[float, ...]:
        """How fast a worker of each group of hosts with workers computes."""
        return tuple(self._pace(group.host) for group in self.cluster.groups if group.workers)

    def _pace(self, host: Host) -> float:
        return host.device.speed / self.cluster.slowdown(host)

    @property
    def times(self) -> StepTimes:
        """A worker's from its cost, and a server's as the cluster states them; without jitter."""
        return StepTimes(
            step=self.cost.step,
            serve=self.cluster.times.serve,
            aggregate=self.cluster.times.aggregate,
        )

    def settings(self, workers: int, steps: int) -> Settings:
        """A run without evaluations and checkpoints."""
        return Settings(
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

    def shape_for(self, settings: Settings) -> JobShape:
        """The job's shape, with so much data that no epoch ends."""
        ready = self.shape.ready or self.cost.ready
        samples = sum(settings.batch_sizes) * (2 * (settings.iterations or 1) + 1)
        return replace(self.shape, ready=ready, train_samples=samples)


@dataclass(frozen=True, kw_only=True)
class Change:
    """A what-if; every field is a factor, 1 where all is as described."""

    compute: float = 1.0
    """Of the time of all computing."""
    transfers: float = 1.0
    """Of the time of all transfers and of encryption."""
    link: Where = "network"
    bandwidth: float = 1.0
    """Of that link."""
    latency: float = 1.0
    """Of that link."""
    coding: float = 1.0
    """Of the time to encode and decode."""
    cipher: float = 1.0
    """Of the rate at which processes encrypt."""
    servers: float = 1.0
    """Of the bandwidth of the servers' hosts and the rate of their updates."""
    updating: float = 1.0
    """Of the time of the servers' updates."""
    even: bool = False
    """Whether every worker takes as long as workers do in the mean."""


AS_DESCRIBED = Change()


def apply_change(setup: Setup, change: Change) -> Setup:
    if change == AS_DESCRIBED:
        return setup
    if change.even:
        setup = _even(setup)
    compression = setup.shape.compression
    if change.coding != 1:
        compression = replace(
            compression,
            encode_rate=compression.encode_rate * change.coding,
            decode_rate=compression.decode_rate * change.coding,
        )
    return replace(
        setup,
        cluster=_changed_cluster(setup, change),
        cost=slower(setup.cost, change.compute),
        shape=replace(setup.shape, compression=compression),
        updating=setup.updating * change.updating / change.servers,
    )


def _changed_cluster(setup: Setup, change: Change) -> Cluster:
    def changed(host: Host) -> Host:
        return replace(
            host,
            link=_changed_link(host.link, change, "network"),
            inside=_changed_link(host.inside, change, "inside"),
        )

    cluster = setup.cluster.map_hosts(changed)
    if change.servers != 1:
        cluster = cluster.split(setup.server_hosts)
        hosts = {cluster.group_at(place) for place in setup.server_hosts}
        groups = [
            replace(group, host=_wider(group.host, change.servers)) if index in hosts else group
            for index, group in enumerate(cluster.groups)
        ]
        cluster = replace(cluster, groups=tuple(groups))
    return replace(cluster, cipher=cluster.cipher * change.cipher / change.transfers)


def _changed_link(link: Link, change: Change, where: Where) -> Link:
    bandwidth, latency = (change.bandwidth, change.latency) if change.link == where else (1.0, 1.0)
    return Link(
        bandwidth=link.bandwidth * bandwidth / change.transfers,
        latency=link.latency * latency * change.transfers,
    )


def _wider(host: Host, factor: float) -> Host:
    link, inside = (replace(one, bandwidth=one.bandwidth * factor) for one in (host.link, host.inside))
    return replace(host, link=link, inside=inside)


def _even(setup: Setup) -> Setup:
    workers = [group.workers for group in setup.cluster.groups if group.workers]
    mean = sum(many / pace for many, pace in zip(workers, setup.paces, strict=True)) / sum(workers)

    def even(host: Host) -> Host:
        return replace(host, device=replace(host.device, speed=setup.cluster.slowdown(host) / mean))

    return replace(
        setup,
        cluster=setup.cluster.map_hosts(even),
        cost=slower(setup.cost, mean_factor(setup.jitter)),
        jitter=0.0,
    )


def slower(cost: StepCost, factor: float) -> StepCost:
    """A step that takes ``factor`` times as long."""
    return replace(cost, step=cost.step * factor)


def links_in_use(setup: Setup) -> tuple[Where, ...]:
    """Those that a step may cross."""
    hosts = {*setup.server_hosts}
    with_workers = sum(group.count for group in setup.cluster.groups if group.workers)
    apart = sum(1 for place in hosts if not setup.cluster.groups[setup.cluster.group_at(place)].workers)
    network: tuple[Where, ...] = ("network",) if with_workers + apart > 1 else ()
    shared = bool(hosts) or any(group.host.workers > 1 for group in setup.cluster.groups)
    return (*network, "inside") if shared else network
