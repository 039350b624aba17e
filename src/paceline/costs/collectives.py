"""What a collective costs: stages, one after the other, each a delay and bytes over some links at once.

Alone on the network a price is a number of seconds; among other traffic its stages run as flows.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from paceline.collectives import NATIVE, algorithms, build_schedule, check_collective, find_schedule
from paceline.collectives.traffic import ring_bytes, swaps, traffic_of_all
from paceline.costs.device import UNCOMPRESSED, Compression
from paceline.costs.schedules import EXACT, ScheduleTimer, schedule_seconds, timer_for
from paceline.costs.topology import Topology


@dataclass(frozen=True, slots=True)
class Stage:
    """``size`` bytes over all of these links in step, the slowest setting the pace, and a delay."""

    latency: float
    size: float
    crosses: Mapping[int, float]
    seconds: float
    """How long it takes when nothing else is under way."""

    @classmethod
    def of(cls, topology: Topology, latency: float, size: float, crosses: Mapping[int, float]) -> Self:
        return cls(latency, size, crosses, latency + size * _slowest(topology, crosses))


def _slowest(topology: Topology, crosses: Mapping[int, float]) -> float:
    """Seconds a byte over all of these links."""
    return max(times / topology.capacities[link] for link, times in crosses.items())


@dataclass(frozen=True, slots=True)
class Price:
    stages: tuple[Stage, ...] = ()

    @property
    def seconds(self) -> float:
        """How long it takes when nothing else is under way."""
        return sum(stage.seconds for stage in self.stages)

    def delayed(self, seconds: float) -> "Price":
        first, *others = self.stages
        later = replace(first, latency=first.latency + seconds, seconds=first.seconds + seconds)
        return Price((later, *others))


FREE = Price()


class AllReduceCosts:
    """All-reduces among all workers of one cluster.

    ``collective`` is the name of a schedule, or ``native``: what the live runtime does by itself. Messages of a codec
    that can be added are all-reduced as any tensor; others are gathered by every rank, which decodes and adds them.
    """

    def __init__(
        self,
        collective: str,
        topology: Topology,
        compression: Compression = UNCOMPRESSED,
        *,
        exact: int = EXACT,
    ) -> None:
        check_collective(collective)
        self._collective, self._topology, self._compression = collective, topology, compression
        self._exact = exact

    def price(self, size: int, element: int) -> Price:
        compression, workers = self._compression, self._topology.count
        if workers == 1 or not size:
            return FREE
        message = compression.message(size, element)
        if compression.sums:
            moved, decoded = self._uncompressed(message, min(element, message)), 1
        else:
            timer = timer_for(algorithms.all_gather, self._topology.rows)
            moved, decoded = self._priced(timer, message * workers), workers
        return moved.delayed(compression.coding(size, decoded))

    def traffic(self, size: int, element: int) -> Sequence[tuple[int, int]]:
        topology, ranks = self._topology, len(self._topology.workers)
        message = self._compression.message(size, element)
        if not self._compression.sums:
            return [((topology.count - 1) * message,) * 2] * ranks
        if self._collective == NATIVE:
            return [(ring_bytes(message, topology.count),) * 2] * ranks
        if topology.by_group:
            return [(self._timer.mean_traffic(message),) * 2] * ranks
        schedule = build_schedule(self._collective, topology.workers)
        return traffic_of_all(schedule, message, min(element, message), schedule.segments(message))

    def gloo_ring(self, size: int) -> Price:
        """Gloo's own all-reduce: a ring through all ranks, which reduces a piece while the next one travels."""
        return self._priced(timer_for(algorithms.ring, self._topology.rows, hides=True), size)

    def _uncompressed(self, size: int, element: int) -> Price:
        topology = self._topology
        if self._collective != NATIVE:
            seconds = schedule_seconds(
                self._collective, self._topology.rows, size, element, exact=self._exact
            )
            return self._priced(self._timer, size, seconds)
        if topology.inhabited == 1 and topology.hosts[topology.workers[0]].backend == "shm":
            return shared_memory(topology, size)
        if swaps(topology.count, size):
            return self._priced(timer_for(algorithms.butterfly, self._topology.rows), size)
        return self.gloo_ring(size)

    def _priced(self, timer: ScheduleTimer, size: int, seconds: float | None = None) -> Price:
        """One stage: among other traffic its bytes share the links, and the rest of its time is a delay."""
        if not timer.schedule.rounds:
            return FREE
        seconds = timer.seconds(size) if seconds is None else seconds
        unit, crosses = timer.carried
        moved = unit * size / timer.schedule.chunks
        delay = max(0.0, seconds - moved * _slowest(self._topology, crosses))
        return Price((Stage(delay, moved, crosses, seconds),))

    @cached_property
    def _timer(self) -> ScheduleTimer:
        return timer_for(find_schedule(self._collective), self._topology.rows)


def shared_memory(topology: Topology, size: int) -> Price:
    """Workers of one host: a barrier, each reduces its share of all tensors in place, and a barrier."""
    workers = topology.count
    if workers == 1 or size == 0:
        return FREE
    (place,) = topology.members
    host, moved = topology.hosts[place], (workers - 1) * size / workers
    delay = 2 * host.inside.latency + host.device.reduce_seconds * moved
    return Price((Stage.of(topology, delay, 2 * moved, {topology.inside(place): workers}),))


def tree_broadcast(topology: Topology, size: int) -> Price:
    """A binomial tree over the hosts, then one inside each host; each that has it sends it to one more a round."""
    if topology.count == 1 or size == 0:
        return FREE
    members = topology.members
    stages = []
    if topology.inhabited > 1:
        rounds = (topology.inhabited - 1).bit_length()
        latency = max(topology.hosts[host].link.latency for host in members)
        crosses = {link: rounds for host in members for link in (topology.out_of(host), topology.into(host))}
        stages.append(Stage.of(topology, rounds * latency, size, crosses))
    most = max(members.values())
    if most > 1:
        rounds = (most - 1).bit_length()
        latency = max(topology.hosts[host].inside.latency for host in members if members[host] > 1)
        inside = {topology.inside(host): count - 1 for host, count in members.items() if count > 1}
        stages.append(Stage.of(topology, rounds * latency, size, inside))
    return Price(tuple(stages))


def through_server(topology: Topology, workers: Sequence[int], server: int, size: int) -> Price:
    """Every worker's tensor goes to the server, then the result goes to every worker; all given by their hosts."""
    if not size:
        return FREE
    stages = []
    there = [topology.to_server(host, server) for host in workers]
    back = [topology.from_server(server, host) for host in workers]
    for routes in (there, back):
        crosses = Counter[int]()
        for route in routes:
            crosses.update(route.crosses)
        stages.append(Stage.of(topology, max(route.latency for route in routes), size, crosses))
    return Price(tuple(stages))
