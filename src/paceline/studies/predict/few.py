"""A setup with its hosts folded into a few kinds, and what it would be with something better or worse."""

from dataclasses import dataclass, replace
from functools import cached_property

from paceline.clusters.cluster import Cluster, Host, Link
from paceline.clusters.times import StepTimes
from paceline.costs.compression import Coded
from paceline.costs.devices.base import StepCost
from paceline.costs.folded import Fold, Kind, Standing, fold, paces
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
    described: Fold
    """With links as they are described."""
    places: tuple[int, ...]
    """The kinds of hosts on which the servers stand; each such kind is one host."""
    paces: tuple[float, ...]
    """How fast a worker of each kind computes; one for each kind with workers."""
    updating: float = 1.0
    """How many times as long servers take for their updates."""
    cipher: float = 0.0
    """Bytes a second that a process encrypts, as a cluster's."""

    @cached_property
    def folding(self) -> Fold:
        """With links as messages find them: no faster than both ends encrypt where they go to servers."""
        kinds = self.described.kinds
        if not self.cipher:
            return self.described
        found = Cluster(hosts=tuple(kind.host for kind in kinds), cipher=self.cipher).encrypted(self.places)
        pairs = zip(kinds, found.hosts, strict=True)
        return replace(self.described, kinds=tuple(replace(kind, host=host) for kind, host in pairs))

    @property
    def kinds(self) -> list[Kind]:
        """Those with workers."""
        return [kind for kind in self.folding.kinds if kind.workers]

    @property
    def workers(self) -> int:
        """All of them."""
        return self.described.workers

    @property
    def times(self) -> StepTimes:
        """Of a step on a device of speed 1, without jitter."""
        return step_times(self.cost, self.setup.cluster.times)

    @property
    def costs(self) -> Standing:
        """Of one worker a kind."""
        return Standing(
            times=self.times,
            batch_sizes=(self.cost.samples,) * len(self.paces),
            speeds=self.paces,
            workers=self.workers,
            updating=self.updating,
        )


def few_of(setup: Setup) -> Few:
    """Fold the setup's cluster."""
    strategy = build_strategy(setup)
    places: tuple[int, ...] = ()
    hosts: tuple[int, ...] = ()
    cluster = setup.cluster
    if strategy.served:
        hosts = cluster.place_servers(setup.servers)
    folding = fold(cluster, set(hosts))
    if hosts:
        kinds = {kind.place: number for number, kind in enumerate(folding.kinds)}
        places = tuple(kinds[host] for host in hosts)
    return Few(
        setup=setup,
        strategy=strategy,
        cost=setup.cost,
        jitter=setup.jitter,
        described=folding,
        places=places,
        paces=paces(setup.cluster, folding),
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
    network: tuple[Where, ...] = ("network",) if sum(kind.hosts for kind in few.folding.kinds) > 1 else ()
    shared = bool(few.places) or any(kind.host.workers > 1 for kind in few.folding.kinds)
    return (*network, "inside") if shared else network


def with_links(few: Few, where: Where, bandwidth: float = 1.0, latency: float = 1.0) -> Few:
    """The links between hosts, or those inside, with so many times their bandwidth and latency."""
    everywhere = range(len(few.described.kinds))
    return _changed(few, everywhere, (where,), bandwidth, latency)


def with_coding(few: Few, factor: float) -> Few:
    """Gradients take ``factor`` times as long to encode and to decode."""
    shape = few.setup.shape
    coded = shape.compression
    if not isinstance(coded, Coded):
        return few
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
    workers = [kind.workers for kind in few.kinds]
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

    kinds = tuple(
        replace(kind, host=changed(kind.host)) if place in places else kind
        for place, kind in enumerate(few.described.kinds)
    )
    return replace(few, described=replace(few.described, kinds=kinds))
