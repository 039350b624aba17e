"""What an all-reduce costs and moves: by the backend's own way, or by a schedule."""

from collections.abc import Sequence
from functools import cache
from typing import Protocol

from paceline.clusters.cluster import MEMORY, Cluster, Device, Host, HostGroup, Link
from paceline.collectives import NATIVE, algorithms, build_schedule, check_collective
from paceline.collectives.traffic import ring_bytes, swaps, traffic_of_all
from paceline.costs.prices import FREE, Price, shared_memory
from paceline.costs.schedules import SchedulePrices, Timer, timer_for
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
        self._rows = cache(lambda: tuple(topology.rows))

    def price(self, size: int, element: int) -> Price:  # noqa: ARG002
        """That of the backend which would be chosen: shared memory, a swap of what is small between two, or a ring."""
        topology = self._topology
        if topology.shares_memory:
            return shared_memory(topology, size)
        if swaps(topology.count, size):
            return self._priced(timer_for(algorithms.butterfly, self._rows()), size)
        return self.ring(size)

    def ring(self, size: int) -> Price:
        """Gloo's own: a ring through all ranks in order, which reduces a piece while the next one travels."""
        return self._priced(timer_for(algorithms.ring, self._rows(), hides=True), size)

    def gather(self, size: int) -> Price:
        """Everybody's ``size`` bytes go round a ring through all ranks, until all have all."""
        whole = size * self._topology.count
        return self._priced(timer_for(algorithms.all_gather, self._rows()), whole)

    def traffic(self, size: int, element: int) -> Sequence[tuple[int, int]]:  # noqa: ARG002
        """The same for all."""
        return [(ring_bytes(size, self._topology.count),) * 2] * len(self._topology.workers)

    def _priced(self, timer: Timer, size: int) -> Price:
        if not size or not timer.outline.rounds:
            return FREE
        return timer.priced(self._topology, timer.seconds(size), size / timer.outline.chunks)


class Scheduled:
    """By a schedule, in the segments in which it is carried out."""

    def __init__(self, collective: str, topology: Topology) -> None:
        self._topology, self._prices = topology, SchedulePrices(collective, topology)
        self._schedule = cache(lambda: build_schedule(collective, topology.workers))

    def price(self, size: int, element: int) -> Price:
        """That of the schedule as it is carried out."""
        return self._prices.price(size, element)

    def traffic(self, size: int, element: int) -> Sequence[tuple[int, int]]:
        """That of its transfers; the mean of all ranks where one stands for others, for they differ."""
        if self._topology.by_group:
            return [(self._prices.mean_traffic(size),) * 2] * len(self._topology.workers)
        schedule = self._schedule()
        return traffic_of_all(schedule, size, element, schedule.segments(size))


def all_reduce_costs(collective: str, topology: Topology) -> AllReduceCosts:
    """``native``, or the schedule of that name among the cluster's workers; a UsageError where there is none."""
    check_collective(collective)
    return Native(topology) if collective == NATIVE else Scheduled(collective, topology)


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
    host = Host(name="host", link=link, workers=per_host, inside=inside, device=device)
    return Cluster(groups=(HostGroup(host, hosts),))
