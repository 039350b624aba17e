"""One strategy on one cluster, ready to be simulated, and what-ifs of it."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import exp

from paceline.clusters.cluster import Cluster, Host, Link, StepTimes
from paceline.collectives import NATIVE
from paceline.costs.coding import UNCODED, CodecCosts
from paceline.costs.device import StepCost
from paceline.errors import UsageError
from paceline.jobs.spec import JobSpec
from paceline.runtimes.prepare import Prepared, prepare_job
from paceline.runtimes.settings import Cadence, Settings
from paceline.runtimes.virtual.shape import JobShape
from paceline.strategies import build_strategy
from paceline.strategies.base import Strategy
from paceline.studies.predict.observe import ExchangePattern, observe
from paceline.studies.predict.prediction import Where

PERFECT = 1e-9
"""Of the time that transfers take, where they take none."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    strategy: str
    cluster: Cluster
    cost: StepCost = field(hash=False)
    """A step of one worker alone on a device of speed 1, with all its learners."""
    shape: JobShape
    coding: CodecCosts = UNCODED
    collective: str = NATIVE
    servers: int = 1
    jitter: float = 0.0
    """Spread of each worker's compute times, as ``StepTimes.jitter``."""
    slow: tuple[tuple[int, float], ...] = ()
    """Ranks that compute so many times as long as the others, as ``Settings.slow``."""
    updating: float = 1.0
    """How many times as long servers take for their updates."""
    seed: int = 1
    samples: int | None = None
    """Of the training data; None: not known, which only matters where the strategy divides them among clients."""

    @cached_property
    def program(self) -> Strategy:
        return build_strategy(self.strategy)

    @property
    def learners(self) -> int:
        """Models of each worker; ``cost`` is a step of all of them."""
        return self.program.learner_plan.count or 1

    @cached_property
    def server_hosts(self) -> tuple[int, ...]:
        """The host of each server, by its index in the cluster; none where the strategy has no servers."""
        return self.cluster.place_servers(self.servers) if self.program.served else ()

    @cached_property
    def server_groups(self) -> list[int]:
        return [self.cluster.group_at(host) for host in self.server_hosts]

    def apart(self) -> "Setup":
        """With the hosts of servers as groups of their own, and links no faster than their processes encrypt."""
        cluster, servers = self.cluster.split(self.server_hosts), self.server_hosts
        if servers:
            cluster = cluster.encrypted(servers, inside=self.coding.compresses)
        return replace(self, cluster=cluster)

    @cached_property
    def pattern(self) -> ExchangePattern:
        if self.has_clients:  # nothing repeats, and no two workers are alike
            return ExchangePattern(cycle=1, bucket=None, uniform=False)
        alone = self.cost.step.compute / max(self.paces)
        return observe(self.program, self.cluster.workers, alone, self.strategy)

    @cached_property
    def paces(self) -> tuple[float, ...]:
        hosts = [group.host for group in self.cluster.groups if group.workers]
        return tuple(host.device.speed / self.cluster.slowdown(host) for host in hosts)

    @property
    def has_clients(self) -> bool:
        """Whether workers train clients, which differ in size: then none can stand for another."""
        return self.program.partition(self.cluster.workers).clients > 0

    def _known_samples(self) -> int:
        if self.samples is None:
            raise UsageError(
                f"strategy {self.strategy!r} divides the training data among clients, and how many samples there are "
                "is not known; give epochs and samples, or a job"
            )
        return self.samples

    @property
    def times(self) -> StepTimes:
        stated = self.cluster.times
        return StepTimes(step=self.cost.step, serve=stated.serve, aggregate=stated.aggregate)

    def prepared(self, workers: int, steps: int) -> Prepared[JobShape]:
        """``steps`` steps of the strategy once it has settled; no epoch ends, but of the clients' own data."""
        last = self.program.settled + steps
        settings = Settings(
            job=JobSpec(),
            strategy=self.strategy,
            batch_sizes=(self.cost.samples // self.learners,) * workers,
            iterations=last,
            seed=self.seed,
            evaluate=Cadence(0),
            checkpoint=Cadence(0),
            collective=self.collective,
            servers=self.servers,
        )
        samples = self.cost.samples * workers * (2 * last + 1)
        if self.has_clients:
            samples = self._known_samples()
        shape = replace(self.shape, ready=self.shape.ready or self.cost.ready, train_samples=samples)
        return replace(prepare_job(settings, shape, self.program), codec=self.coding.codec)


def with_link(setup: Setup, where: Where, *, bandwidth: float = 1.0, latency: float = 1.0) -> Setup:
    """With the bandwidth and latency of these links multiplied by the given factors."""

    def changed(link: Link) -> Link:
        return Link(bandwidth=link.bandwidth * bandwidth, latency=link.latency * latency)

    def host_with(host: Host) -> Host:
        if where == "network":
            return replace(host, link=changed(host.link))
        return replace(host, inside=changed(host.inside))

    return replace(setup, cluster=setup.cluster.map_hosts(host_with))


def with_slower(setup: Setup, *, compute: float = 1.0, transfers: float = 1.0) -> Setup:
    """With computing, and all transfers and encryption, slowed down by these factors."""
    coding = replace(setup.coding, scale=setup.coding.scale * compute)
    setup = replace(setup, cost=slower(setup.cost, compute), coding=coding)
    for where in ("network", "inside"):
        setup = with_link(setup, where, bandwidth=1 / transfers, latency=transfers)
    return replace(setup, cluster=replace(setup.cluster, cipher=setup.cluster.cipher / transfers))


def with_faster_servers(setup: Setup, factor: float) -> Setup:
    """With ``factor`` times the bandwidth of the servers' hosts and the rate of their updates."""

    def wider(link: Link) -> Link:
        return replace(link, bandwidth=link.bandwidth * factor)

    setup = setup.apart()
    groups = list(setup.cluster.groups)
    for index in {*setup.server_groups}:
        host = groups[index].host
        host = replace(host, link=wider(host.link), inside=wider(host.inside))
        groups[index] = replace(groups[index], host=host)
    cluster = replace(setup.cluster, groups=tuple(groups))
    return replace(setup, cluster=cluster, updating=setup.updating / factor)


def with_even_workers(setup: Setup) -> Setup:
    """With workers that all take as long as they do in the mean."""
    slowed = sum(factor - 1 for _, factor in setup.slow) / setup.cluster.workers
    workers = [group.workers for group in setup.cluster.groups if group.workers]
    mean = sum(many / pace for many, pace in zip(workers, setup.paces, strict=True)) / sum(workers)

    def even(host: Host) -> Host:
        return replace(host, device=replace(host.device, speed=setup.cluster.slowdown(host) / mean))

    cost = slower(setup.cost, mean_factor(setup.jitter) * (1 + slowed))
    return replace(setup, cluster=setup.cluster.map_hosts(even), cost=cost, jitter=0.0, slow=())


def slower(cost: StepCost, factor: float) -> StepCost:
    return replace(cost, step=cost.step * factor)


def mean_factor(jitter: float) -> float:
    """The mean of the lognormal factor by which a step varies; its median is 1."""
    return exp(jitter**2 / 2)
