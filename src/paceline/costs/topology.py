"""The cluster's links as the network model numbers them, and the ways through them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from paceline.clusters.cluster import Cluster, Device, Host
from paceline.clusters.company import company_factor


@dataclass(frozen=True, slots=True)
class Route:
    """From one process to another: the links it takes and how long the first byte needs."""

    crosses: Mapping[int, int]
    latency: float


class Row(NamedTuple):
    """So many hosts in a row that are alike, as far as a collective can tell."""

    host: Host
    """One of them, as ``seen`` has it."""
    many: int
    places: range
    """Which hosts of the topology they are; a single one where it stands for all of them."""
    part: float = 1.0
    """The part of its latency with which each counts for what passes through."""


class Topology:
    """Three links a host: out of it, into it, and inside it."""

    folded = False
    """Whether a host may stand for others."""

    def __init__(self, cluster: Cluster) -> None:
        self.hosts = cluster.hosts
        self.workers: Sequence[int] = cluster.place_workers()
        """The host of each worker."""
        self.capacities: list[float] = []
        for host in cluster.hosts:
            self.capacities += [host.link.bandwidth, host.link.bandwidth, host.inside.bandwidth]

    @property
    def count(self) -> int:
        """How many workers there are."""
        return len(self.workers)

    @cached_property
    def members(self) -> Mapping[int, int]:
        """How many workers each host has that has any; their ranks follow each other."""
        return Counter(self.workers)

    @property
    def inhabited(self) -> int:
        """How many hosts have workers."""
        return len(self.members)

    @property
    def shares_memory(self) -> bool:
        """Whether all workers are of one host and all-reduce in its memory."""
        return self.inhabited == 1 and self.hosts[self.workers[0]].backend == "shm"

    @cached_property
    def hides(self) -> bool:
        """Whether transfers go on behind computing: not where workers take all cores of the one host they are on."""
        if self.inhabited > 1:
            return True
        host = self.hosts[self.workers[0]]
        return company_factor(host.company, host.workers) == 1

    @cached_property
    def slowest_reduce(self) -> float:
        """The most seconds a byte that a worker takes to combine what it receives with what it holds."""
        return max(self.hosts[host].device.reduce_seconds for host in self.members)

    @cached_property
    def rows(self) -> Sequence[Row]:
        """The hosts that have workers, in the order of ranks."""
        found: list[Row] = []
        for place in self.members:
            host = seen(self.hosts[place])
            last = found[-1] if found else None
            if last is not None and last.places.stop == place and last.host == host:
                found[-1] = last._replace(many=last.many + 1, places=range(last.places.start, place + 1))
            else:
                found.append(Row(host, 1, range(place, place + 1)))
        return found

    @staticmethod
    def out_of(host: int) -> int:
        """The link from a host to the switch."""
        return 3 * host

    @staticmethod
    def into(host: int) -> int:
        """The link from the switch to a host."""
        return 3 * host + 1

    @staticmethod
    def inside(host: int) -> int:
        """What the processes of a host share."""
        return 3 * host + 2

    def reduce_seconds(self, rank: int) -> float:
        """Seconds a byte that a worker takes to combine what it receives with what it holds."""
        return self.hosts[self.workers[rank]].device.reduce_seconds

    def way(self, source: int, target: int) -> Route:
        """From a process on one host to a process on another, or on the same."""
        if source == target:
            return Route({self.inside(source): 1}, self.hosts[source].inside.latency)
        latency = max(self.hosts[source].link.latency, self.hosts[target].link.latency)
        return Route({self.out_of(source): 1, self.into(target): 1}, latency)

    def gather(self, source: int, target: int) -> Route:
        """From a worker's host to a server's."""
        return self.way(source, target)

    def spread(self, source: int, target: int) -> Route:
        """From a server's host to a worker's."""
        return self.way(source, target)


def seen(host: Host) -> Host:
    """All of a host that a collective's price depends on."""
    device = Device(reduce_seconds=host.device.reduce_seconds)
    return Host(name="", link=host.link, inside=host.inside, workers=host.workers, device=device)
