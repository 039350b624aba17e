"""The cluster's links as the network model numbers them, and the ways through them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from paceline.clusters.cluster import Cluster
from paceline.clusters.company import company_factor


@dataclass(frozen=True, slots=True)
class Way:
    """From one process to another: the links it takes and how long the first byte needs."""

    crosses: Mapping[int, int]
    latency: float


class Topology:
    """Three links a host: out of it, into it, and inside it."""

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
    def circle(self) -> Way:
        """From every rank to the next one, the last to the first: how often links are crossed, the longest delay."""
        if self.inhabited == 1:
            ((host, workers),) = self.members.items()
            return Way({self.inside(host): workers}, self.hosts[host].inside.latency)
        crosses: dict[int, int] = {}
        latency = 0.0
        for host, workers in self.members.items():
            crosses[self.out_of(host)] = crosses[self.into(host)] = 1
            latency = max(latency, self.hosts[host].link.latency)
            if workers > 1:
                crosses[self.inside(host)] = workers - 1
                latency = max(latency, self.hosts[host].inside.latency)
        return Way(crosses, latency)

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

    def way(self, source: int, target: int) -> Way:
        """From a process on one host to a process on another, or on the same."""
        if source == target:
            return Way({self.inside(source): 1}, self.hosts[source].inside.latency)
        latency = max(self.hosts[source].link.latency, self.hosts[target].link.latency)
        return Way({self.out_of(source): 1, self.into(target): 1}, latency)

    def gather(self, source: int, target: int) -> Way:
        """From a worker's host to a server's."""
        return self.way(source, target)

    def spread(self, source: int, target: int) -> Way:
        """From a server's host to a worker's."""
        return self.way(source, target)
