"""The cluster's links as the network model numbers them, and the routes through them."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from paceline.clusters.cluster import Cluster, Device, Host, HostGroup, contention_factor


class Route(NamedTuple):
    crosses: Mapping[int, int]
    latency: float


class HostRow(NamedTuple):
    """Hosts in the order of ranks that a collective cannot tell apart."""

    host: Host
    hosts: int
    places: range
    """Where their links are; a single place where it stands for all of them."""
    part: float = 1.0
    """The part of its latency with which each counts for what passes through."""


class Topology:
    """Three links a place: out of a host, into it, and inside it.

    Either every host is a place and every worker a rank; or, ``by_group``, every group of equal hosts is one place with
    one rank. What one worker of a group does all do at the same time: its messages cross a link that they share as
    often as there are workers of the group.
    """

    def __init__(self, cluster: Cluster, *, by_group: bool = False) -> None:
        self.by_group = by_group
        self.groups = cluster.groups if by_group else tuple(map(HostGroup, cluster.hosts))
        self.hosts = tuple(group.host for group in self.groups)
        ranks = (min(1, host.workers) if by_group else host.workers for host in self.hosts)
        self.workers: Sequence[int] = tuple(place for place, many in enumerate(ranks) for _ in range(many))
        self.count = cluster.workers
        self.capacities: list[float] = []
        for host in self.hosts:
            self.capacities += [host.link.bandwidth, host.link.bandwidth, host.inside.bandwidth]

    @cached_property
    def members(self) -> Mapping[int, int]:
        """How many workers a host at each place has, where it has any; their ranks follow each other."""
        return {place: host.workers for place, host in enumerate(self.hosts) if host.workers}

    @cached_property
    def inhabited(self) -> int:
        return sum(self.groups[place].count for place in self.members)

    @cached_property
    def hides(self) -> bool:
        """Whether transfers go on behind computing: not where workers take all cores of the one host they are on."""
        host = self.hosts[self.workers[0]]
        return self.inhabited > 1 or contention_factor(host.contention, host.workers) == 1

    @cached_property
    def rows(self) -> tuple[HostRow, ...]:
        found: list[HostRow] = []
        for place in self.members:
            one, count = self.hosts[place], self.groups[place].count
            # All of a host that a collective's price depends on.
            device = Device(reduce_seconds=one.device.reduce_seconds)
            host = Host(name="", link=one.link, inside=one.inside, workers=one.workers, device=device)
            last = found[-1] if found and not self.by_group else None
            if last is not None and last.places.stop == place and last.host == host:
                found[-1] = last._replace(hosts=last.hosts + 1, places=range(last.places.start, place + 1))
            else:
                found.append(HostRow(host, count, range(place, place + 1)))
        return tuple(found)

    @staticmethod
    def out_of(place: int) -> int:
        return 3 * place

    @staticmethod
    def into(place: int) -> int:
        return 3 * place + 1

    @staticmethod
    def inside(place: int) -> int:
        return 3 * place + 2

    def to_server(self, source: int, target: int) -> Route:
        """From a worker, and all that it stands for, to a server, whose host is a place of its own."""
        return self._route(source, target, *self._stands_for(source))

    def from_server(self, source: int, target: int) -> Route:
        return self._route(source, target, *reversed(self._stands_for(target)))

    def between(self, source: int, target: int) -> Route:
        assert not self.by_group, "which worker of a group sends to which of another is not known"
        return self._route(source, target, 1, 1)

    def _stands_for(self, place: int) -> tuple[int, int]:
        group = self.groups[place]
        return (group.host.workers, group.workers) if self.by_group else (1, 1)

    def _route(self, source: int, target: int, leaving: int, entering: int) -> Route:
        """``leaving`` messages share the link out of the source's host, ``entering`` that into the target's."""
        if source == target:
            return Route({self.inside(source): min(leaving, entering)}, self.hosts[source].inside.latency)
        latency = max(self.hosts[source].link.latency, self.hosts[target].link.latency)
        return Route({self.out_of(source): leaving, self.into(target): entering}, latency)
