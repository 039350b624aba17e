"""What an all-reduce costs and moves: by the backend's own way, or by a schedule."""

from collections.abc import Sequence
from typing import Protocol

from paceline.clusters.cluster import MEMORY, Cluster, Device, Host, Link
from paceline.collectives.choose import NATIVE, build_schedule, check_collective
from paceline.collectives.pipeline import segments_for
from paceline.collectives.schedule import Schedule
from paceline.collectives.traffic import ring_bytes, traffic_of_all
from paceline.costs.bulk import Bulk
from paceline.costs.folded import Folded
from paceline.costs.prices import Price, ring_all_reduce
from paceline.costs.schedules import SchedulePrices
from paceline.costs.topology import Topology


class AllReduceCosts(Protocol):
    """All-reduces of all workers of one cluster."""

    def price(self, size: int, element: int) -> Price:
        """The price of ``size`` bytes in elements of ``element`` bytes."""

    def traffic(self, size: int, element: int) -> Sequence[tuple[int, int]]:
        """Bytes that each rank (sends, receives)."""


class Native:
    """As the live runtime does it by itself: through shared memory on one host, by Gloo across hosts."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology

    def price(self, size: int, element: int) -> Price:  # noqa: ARG002
        """That of the backend which would be chosen."""
        return ring_all_reduce(self._topology, size)

    def traffic(self, size: int, element: int) -> Sequence[tuple[int, int]]:  # noqa: ARG002
        """The same for all."""
        return [(ring_bytes(size, self._topology.count),) * 2] * len(self._topology.workers)


class Scheduled:
    """By a schedule, in the segments in which it is carried out."""

    def __init__(self, schedule: Schedule, topology: Topology) -> None:
        self._schedule, self._prices = schedule, SchedulePrices(schedule, topology)

    def price(self, size: int, element: int) -> Price:
        """That of the schedule's rounds."""
        return self._prices.price(size, element, segments_for(self._schedule, size))

    def traffic(self, size: int, element: int) -> Sequence[tuple[int, int]]:
        """That of its transfers."""
        return traffic_of_all(self._schedule, size, element, segments_for(self._schedule, size))


def all_reduce_costs(collective: str, topology: Topology) -> AllReduceCosts:
    """``native``, or the schedule of that name among the cluster's workers; a Mistake where there is none."""
    check_collective(collective)
    if collective == NATIVE:
        return Native(topology)
    if isinstance(topology, Folded):
        return Bulk(collective, topology)
    return Scheduled(build_schedule(collective, topology.workers), topology)


def predict_all_reduce(collective: str, cluster: Cluster, size: int, element: int = 4) -> float:
    """Seconds that an all-reduce of ``size`` bytes takes among all workers of a cluster, with nothing else under way.

    ``collective`` is ``native`` or a schedule's name. Large tensors are cut into the segments that the live runtime
    cuts them into.
    """
    return all_reduce_costs(collective, Topology(cluster)).price(size, element).seconds


def uniform_cluster(
    hosts: int, link: Link, *, per_host: int = 1, inside: Link = MEMORY, reduce_seconds: float = 0.0
) -> Cluster:
    """Hosts that are all alike: alpha and 1 / beta of the links, and gamma, the seconds a byte to reduce.

    ``inside`` connects the workers of a host, who share its bandwidth; a single host uses only that.
    """
    device = Device(reduce_seconds=reduce_seconds)
    return Cluster(
        hosts=tuple(
            Host(name=f"host-{index}", link=link, workers=per_host, inside=inside, device=device)
            for index in range(hosts)
        )
    )
