"""What a collective costs: stages, one after the other, each a delay and bytes over some links at once.

Alone on the network a price is a number of seconds; among other traffic its stages run as flows.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from paceline.collectives import NATIVE, algorithms, build_schedule, check_collective
from paceline.collectives.traffic import ring_bytes, swaps, traffic_of_all
from paceline.costs.coding import CodedExchange, CodedReduction
from paceline.costs.schedules import EXACT, ScheduleTimer, priced_as, schedule_seconds, timer_for
from paceline.costs.topology import Topology

Traffic = Sequence[tuple[int, int]]
"""Bytes that each worker (sends, receives)."""


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
        """What is free stays free."""
        if not self.stages:
            return self
        first, *others = self.stages
        later = replace(first, latency=first.latency + seconds, seconds=first.seconds + seconds)
        return Price((later, *others))


FREE = Price()


class AllReduceCosts:
    """All-reduces among all workers of one cluster.

    ``collective`` is the name of a schedule, or ``native``: what the live runtime does by itself.
    """

    def __init__(self, collective: str, topology: Topology, *, exact: int = EXACT) -> None:
        check_collective(collective)
        self._collective, self._topology, self._exact = collective, topology, exact

    def price(self, size: int, element: int) -> Price:
        topology = self._topology
        if topology.count == 1 or not size:
            return FREE
        if self._collective != NATIVE:
            seconds = schedule_seconds(self._collective, topology.rows, size, element, exact=self._exact)
            return self._priced(self._timer, size, seconds)
        if self._shares_memory:
            return shared_memory(topology, size)
        if swaps(topology.count, size):
            return self._priced(timer_for(algorithms.butterfly, topology.rows), size)
        return self.gloo_ring(size)

    def traffic(self, size: int, element: int) -> Traffic:
        topology, ranks = self._topology, len(self._topology.workers)
        if self._collective == NATIVE:
            return [(ring_bytes(size, topology.count),) * 2] * ranks
        if topology.by_group:
            return [(self._timer.mean_traffic(size),) * 2] * ranks
        schedule = build_schedule(self._collective, topology.workers)
        return traffic_of_all(schedule, size, element, schedule.segments(size))

    def price_coded(self, reduction: CodedReduction) -> Price:
        """Of a codec's exchanges, one after the other, and of its coding."""
        prices = (self._price_exchange(exchange) for exchange in reduction.exchanges)
        return Price(tuple(stage for price in prices for stage in price.stages)).delayed(reduction.coding)

    def traffic_coded(self, reduction: CodedReduction) -> Traffic:
        return add_traffic([self._exchange_traffic(exchange) for exchange in reduction.exchanges])

    def _price_exchange(self, exchange: CodedExchange) -> Price:
        """Sums go by the collective; each rank's vector goes round a ring, or to one other rank after the other."""
        kind, size, element = exchange
        if kind == "sum":
            return self.price(size, element)
        if self._shares_memory and self._collective == NATIVE:
            return through_memory(self._topology, size)
        schedule = algorithms.all_gather if kind == "all-gather" else algorithms.all_to_all
        return self._priced(timer_for(schedule, self._topology.rows), size * self._topology.count)

    def _exchange_traffic(self, exchange: CodedExchange) -> Traffic:
        kind, size, element = exchange
        if kind == "sum":
            return self.traffic(size, element)
        return [((self._topology.count - 1) * size,) * 2] * len(self._topology.workers)

    @property
    def _shares_memory(self) -> bool:
        topology = self._topology
        return topology.inhabited == 1 and topology.hosts[topology.workers[0]].backend == "shm"

    def gloo_ring(self, size: int) -> Price:
        """Gloo's own all-reduce: a ring through all ranks, which reduces a piece while the next one travels."""
        return self._priced(timer_for(algorithms.ring, self._topology.rows, hides=True), size)

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
        return timer_for(priced_as(self._collective), self._topology.rows)


def shared_memory(topology: Topology, size: int) -> Price:
    """Workers of one host: a barrier, each reduces its share of all tensors in place, and a barrier."""
    workers = topology.count
    if workers == 1 or size == 0:
        return FREE
    (place,) = topology.members
    host, moved = topology.hosts[place], (workers - 1) * size / workers
    delay = 2 * host.inside.latency + host.device.reduce_seconds * moved
    return Price((Stage.of(topology, delay, 2 * moved, {topology.inside(place): workers}),))


def through_memory(topology: Topology, size: int) -> Price:
    """Workers of one host: a barrier, each copies what each other one has for it, and a barrier."""
    if topology.count == 1 or size == 0:
        return FREE
    ((place, workers),) = topology.members.items()
    delay = 2 * topology.hosts[place].inside.latency
    return Price((Stage.of(topology, delay, (workers - 1) * size, {topology.inside(place): workers}),))


def add_traffic(parts: Sequence[Traffic]) -> Traffic:
    """What each worker sends and receives in all of them."""
    return [
        (sum([sent for sent, _ in one]), sum([received for _, received in one]))
        for one in zip(*parts, strict=True)
    ]


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
