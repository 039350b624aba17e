"""Hosts that are alike, folded into one: a cluster of 100,000 workers with the links of two or three hosts.

What one worker of a kind does all of its kind do at the same time, so one of them stands for all: its messages cross
a link that they share as often as there are workers of the kind.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

from paceline.clusters.cluster import Cluster, Host
from paceline.costs.given import StatedCosts
from paceline.costs.topology import Route, Row, Topology, seen


@dataclass(frozen=True, slots=True)
class Kind:
    """Hosts that are alike."""

    host: Host
    """One of them."""
    place: int
    """The first one's among all hosts."""
    hosts: int

    @property
    def workers(self) -> int:
        """Of all these hosts."""
        return self.hosts * self.host.workers


class Run(NamedTuple):
    """So many hosts of a kind that follow each other."""

    kind: int
    hosts: int


@dataclass(frozen=True)
class Fold:
    """The kinds of hosts, and in which order they stand; hosts without workers or servers are left out."""

    kinds: tuple[Kind, ...]
    order: tuple[Run, ...]

    @property
    def workers(self) -> int:
        """Of all hosts."""
        return sum(kind.workers for kind in self.kinds)


def fold(cluster: Cluster, apart: Collection[int] = ()) -> Fold:
    """Put hosts that are alike together, except those at the places ``apart``."""
    kinds: list[Kind] = []
    counts: list[int] = []
    order: list[Run] = []
    known: dict[object, int] = {}
    last: object = None
    look = attrgetter(*(field.name for field in fields(Host) if field.name != "name"))
    for place, host in enumerate(cluster.hosts):
        if place in apart:
            number = len(kinds)
            last = None
        elif not host.workers:
            continue
        elif (
            looks := look(host)
        ) == last:  # quick where the parts are the same objects, as of many neighbours
            number = order[-1].kind
        else:
            number, last = known.setdefault(looks, len(kinds)), looks
        if number == len(kinds):
            kinds.append(Kind(host, place, 1))
            counts.append(0)
        counts[number] += 1
        if order and order[-1].kind == number:
            order[-1] = Run(number, order[-1].hosts + 1)
        else:
            order.append(Run(number, 1))
    found = (replace(kind, hosts=count) for kind, count in zip(kinds, counts, strict=True))
    return Fold(tuple(found), tuple(order))


class Folded(Topology):
    """Three links a kind of host, and one worker a kind that stands for all of its kind."""

    folded = True

    def __init__(self, folding: Fold) -> None:
        self.folding = folding
        self.kinds = folding.kinds
        self.hosts = tuple(kind.host for kind in folding.kinds)
        self.workers: Sequence[int] = [place for place, host in enumerate(self.hosts) if host.workers]
        self.capacities = []
        for host in self.hosts:
            self.capacities += [host.link.bandwidth, host.link.bandwidth, host.inside.bandwidth]

    @property
    def count(self) -> int:
        """All workers, not only those who stand for the others."""
        return self.folding.workers

    @cached_property
    def members(self) -> Mapping[int, int]:
        """How many workers each host of a kind has."""
        return {place: self.hosts[place].workers for place in self.workers}

    @property
    def inhabited(self) -> int:
        """How many hosts have workers."""
        return sum(self.kinds[place].hosts for place in self.workers)

    @cached_property
    def rows(self) -> Sequence[Row]:
        """The hosts that have workers, in the order of ranks."""
        order = ((self.hosts[kind], kind, hosts) for kind, hosts in self.folding.order)
        return [Row(seen(host), hosts, range(kind, kind + 1)) for host, kind, hosts in order if host.workers]

    def gather(self, source: int, target: int) -> Route:
        """All messages of a kind of workers to a server, whose host stands for no other."""
        one = self.kinds[source]
        if source == target:
            return Route({self.inside(source): one.host.workers}, one.host.inside.latency)
        latency = max(one.host.link.latency, self.hosts[target].link.latency)
        return Route({self.out_of(source): one.host.workers, self.into(target): one.workers}, latency)

    def spread(self, source: int, target: int) -> Route:
        """The same in the other direction."""
        other = self.kinds[target]
        if source == target:
            return Route({self.inside(target): other.host.workers}, other.host.inside.latency)
        latency = max(self.hosts[source].link.latency, other.host.link.latency)
        return Route({self.out_of(source): other.workers, self.into(target): other.host.workers}, latency)

    def way(self, source: int, target: int) -> Route:
        """Not known: it depends on who stands for whom."""
        raise AssertionError(f"from {source} to {target}: no worker sends to one other worker here")


@dataclass(frozen=True, kw_only=True)
class Standing(StatedCosts):
    """Stated times of workers who stand for others."""

    workers: int
    """All of them."""
    updating: float = 1.0
    """How many times as long servers take for an update."""

    def update(self, rank: int, share: float, gradients: int) -> float:  # noqa: ARG002
        """With everybody's gradient."""
        return self.updating * super().update(rank, share, self.workers)


def paces(cluster: Cluster, folding: Fold) -> tuple[float, ...]:
    """How fast a worker of each kind of host computes, in its company; one for each kind with workers."""
    return tuple(
        kind.host.device.speed / cluster.slowdown(kind.place) for kind in folding.kinds if kind.workers
    )
