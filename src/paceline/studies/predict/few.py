"""A setup of a few groups of equal hosts, and what it would be with something better or worse."""

from dataclasses import dataclass, replace
from functools import cached_property

from paceline.clusters.cluster import Cluster, Host, HostGroup, Link, StepTimes
from paceline.costs.device import StepCost
from paceline.costs.stated import StatedCosts
from paceline.strategies.base import Strategy
from paceline.studies.predict.base import Setup, Where
from paceline.studies.predict.events import build_strategy, step_times


@dataclass(frozen=True, kw_only=True)
class Few:
    """All that the closed path needs; nothing in it is as long as the cluster is large."""

    setup: Setup
    """Of its cluster only what is said of all hosts is looked at."""
    strategy: Strategy
    cost: StepCost
    jitter: float
    described: Cluster
    """With links as they are described; each server's host is a group of its own."""
    places: tuple[int, ...]
    """The groups of the servers' hosts."""
    paces: tuple[float, ...]
    """How fast a worker of each group computes; one for each group with workers."""
    updating: float = 1.0
    """How many times as long servers take for their updates."""
    cipher: float = 0.0
    """Bytes a second that a process encrypts, as a cluster's."""

    @cached_property
    def cluster(self) -> Cluster:
        """With links as messages find them: no faster than both ends encrypt where they go to servers."""
        counts = [group.count for group in self.described.groups]
        hosts = [sum(counts[:place]) for place in self.places]
        return replace(self.described, cipher=self.cipher).encrypted(hosts)

    @property
    def groups(self) -> list[HostGroup]:
        """Those with workers."""
        return [group for group in self.cluster.groups if group.workers]

    @property
    def workers(self) -> int:
        """All of them."""
        return self.described.workers

    @property
    def times(self) -> StepTimes:
        """Of a step on a device of speed 1, without jitter."""
        return step_times(self.cost, self.setup.cluster.times)

    @property
    def costs(self) -> StatedCosts:
        """Of one worker a group."""
        return StatedCosts(
            times=self.times,
            batch_sizes=(self.cost.samples,) * len(self.paces),
            speeds=self.paces,
            gradients=self.workers,
            updating=self.updating,
        )


def few_of(setup: Setup) -> Few:
    """Groups with workers or servers, each server's host by itself."""
    strategy = build_strategy(setup)
    cluster = setup.cluster
    hosts = cluster.place_servers(setup.servers) if strategy.served else ()
    apart = cluster.split(set(hosts))
    places = tuple(map(apart.group_at, hosts))
    kept = [index for index, group in enumerate(apart.groups) if group.workers or index in places]
    described = replace(apart, groups=tuple(apart.groups[index] for index in kept))
    return Few(
        setup=setup,
        strategy=strategy,
        cost=setup.cost,
        jitter=setup.jitter,
        described=described,
        places=tuple(map(kept.index, places)),
        paces=tuple(
            group.host.device.speed / cluster.slowdown(group.host)
            for group in described.groups
            if group.workers
        ),
        cipher=cluster.cipher if hosts else 0.0,
    )


def with_compute(few: Few, factor: float) -> Few:
    """Every worker takes ``factor`` times as long to compute, and servers as long as before."""
    return replace(few, cost=slower(few.cost, factor), updating=few.updating / factor)


def slower(cost: StepCost, factor: float) -> StepCost:
    """A step that takes ``factor`` times as long."""
    return replace(
        cost,
        data=cost.data * factor,
        forward=cost.forward * factor,
        backward=cost.backward * factor,
        apply=cost.apply * factor,
    )


def links_in_use(few: Few) -> tuple[Where, ...]:
    """Those that a step may cross."""
    network: tuple[Where, ...] = ("network",) if few.described.host_count > 1 else ()
    shared = bool(few.places) or any(group.host.workers > 1 for group in few.described.groups)
    return (*network, "inside") if shared else network


def with_links(few: Few, where: Where, bandwidth: float = 1.0, latency: float = 1.0) -> Few:
    """The links between hosts, or those inside, with so many times their bandwidth and latency."""
    everywhere = range(len(few.described.groups))
    return _changed(few, everywhere, (where,), bandwidth, latency)


def with_coding(few: Few, factor: float) -> Few:
    """Gradients take ``factor`` times as long to encode and to decode."""
    shape = few.setup.shape
    coded = shape.compression
    changed = replace(coded, encode_rate=coded.encode_rate * factor, decode_rate=coded.decode_rate * factor)
    return replace(few, setup=replace(few.setup, shape=replace(shape, compression=changed)))


def with_cipher(few: Few, factor: float) -> Few:
    """Every process encrypts ``factor`` times as fast."""
    return replace(few, cipher=few.cipher * factor)


def with_servers(few: Few, factor: float) -> Few:
    """The hosts of servers have ``factor`` times the bandwidth, and update as many times as fast."""
    faster = _changed(few, few.places, ("network", "inside"), factor, 1.0)
    return replace(faster, updating=few.updating / factor)


def without_stragglers(few: Few) -> Few:
    """Everybody takes as long as workers do in the mean."""
    workers = [group.workers for group in few.groups]
    mean = sum(many / pace for many, pace in zip(workers, few.paces, strict=True)) / sum(workers)
    return replace(few, jitter=0.0, paces=(1 / mean,) * len(few.paces))


def _changed(
    few: Few, places: range | tuple[int, ...], links: tuple[Where, ...], bandwidth: float, latency: float
) -> Few:
    def better(link: Link) -> Link:
        return Link(bandwidth=link.bandwidth * bandwidth, latency=link.latency * latency)

    def changed(host: Host) -> Host:
        return replace(
            host,
            link=better(host.link) if "network" in links else host.link,
            inside=better(host.inside) if "inside" in links else host.inside,
        )

    groups = tuple(
        replace(group, host=changed(group.host)) if place in places else group
        for place, group in enumerate(few.described.groups)
    )
    return replace(few, described=replace(few.described, groups=groups))
