"""The cluster's links as the network model numbers them, and the ways through them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.clusters.cluster import Cluster


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
