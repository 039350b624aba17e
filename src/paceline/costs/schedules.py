"""What a schedule costs on a cluster's links: round by round, in chunks first and in bytes at the end.

A round takes the longest latency of its messages, then the bytes over the link that needs longest for its share, then
what is left of reducing (``overlapped``). Every chunk counts as long as the longest; they differ by an element at most.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby, pairwise
from typing import NamedTuple

from paceline.collectives.schedule import Round, Schedule, Then
from paceline.collectives.turns import alike
from paceline.costs.closed_forms import overlapped
from paceline.costs.prices import FREE, Price, Stage, price_stages, stage
from paceline.costs.topology import Topology


class Inflow(NamedTuple):
    """What one rank takes in during a round, in chunks; a tuple, for there are many of them."""

    links: frozenset[int]
    """Those that its messages cross."""
    total: int
    reduced: int
    largest: int
    """The longest message among those that it reduces."""


@dataclass(frozen=True, slots=True)
class Load:
    """One round on the links, in chunks."""

    latency: float
    links: Mapping[int, int]
    """Chunks over each link."""
    inflows: Mapping[int, Inflow]
    """By rank, of those whose reducing takes time."""


Repeated = tuple[Load, int]
"""A load, and how many rounds in a row have it."""


class SchedulePrices:
    """Prices all-reduces by one schedule on one cluster. What is worked out is kept: each new size is cheap."""

    def __init__(self, schedule: Schedule, topology: Topology) -> None:
        assert schedule.workers == len(topology.workers)
        self._schedule, self._topology = schedule, topology
        self._rounds: list[Repeated] = _merged(
            (_load(turn, topology), times) for turn, times in alike(schedule.rounds)
        )
        self._waves = cache(self._pipelined)

    def price(self, size: int, element: int = 1, segments: int = 1) -> Price:
        """The price of ``size`` bytes in whole elements, in so many segments one behind the other."""
        if not self._rounds or size == 0:
            return FREE
        chunk = element * -(-size // (element * self._schedule.chunks * segments))
        return price_stages(
            [_stage(self._topology, load, times, chunk) for load, times in self._waves(segments)]
        )

    def _pipelined(self, segments: int) -> list[Repeated]:
        """The waves that ``pipelined`` makes of the schedule: wave w is the rounds w - segments + 1 to w in one."""
        ends = [0]
        for _, times in self._rounds:
            ends.append(ends[-1] + times)
        spans = list(pairwise(ends))

        def under_way(wave: int) -> tuple[int, ...]:
            """How many rounds of each kind."""
            return tuple(max(0, min(wave + 1, end) - max(wave - segments + 1, begin)) for begin, end in spans)

        loads = [load for load, _ in self._rounds]
        waves = groupby(range(ends[-1] + segments - 1), key=under_way)
        return _merged((_sum(loads, counts), len(list(same))) for counts, same in waves)


def price_schedule(
    schedule: Schedule, topology: Topology, size: int, element: int = 1, segments: int = 1
) -> Price:
    """The price of one all-reduce of ``size`` bytes; see ``SchedulePrices`` for several."""
    return SchedulePrices(schedule, topology).price(size, element, segments)


def _load(turn: Round, topology: Topology) -> Load:
    hosts, latency = topology.workers, 0.0
    links: Counter[int] = Counter()
    flows: dict[int, list[Inflow]] = {}
    for sent in turn.transfers:
        way, chunks = topology.way(hosts[sent.source], hosts[sent.target]), sent.stop - sent.start
        latency = max(latency, way.latency)
        for link, times in way.crosses.items():
            links[link] += times * chunks
        if topology.reduce_seconds(sent.target):
            reduced = chunks if sent.then is Then.REDUCE else 0
            one = Inflow(frozenset(way.crosses), chunks, reduced, reduced)
            flows.setdefault(sent.target, []).append(one)
    return Load(latency, links, _joined(flows))


def _sum(loads: Sequence[Load], counts: Sequence[int]) -> Load:
    """Several rounds at the same time, of different segments."""
    chosen = [(load, times) for load, times in zip(loads, counts, strict=True) if times]
    if [times for _, times in chosen] == [1]:
        return chosen[0][0]
    links: Counter[int] = Counter()
    flows: dict[int, list[Inflow]] = {}
    for load, times in chosen:
        for link, chunks in load.links.items():
            links[link] += times * chunks
        for rank, flow in load.inflows.items():
            many = (
                flow._replace(total=times * flow.total, reduced=times * flow.reduced) if times > 1 else flow
            )
            flows.setdefault(rank, []).append(many)
    return Load(max(load.latency for load, _ in chosen), links, _joined(flows))


def _joined(flows: Mapping[int, list[Inflow]]) -> dict[int, Inflow]:
    """What each rank takes in, in all."""
    found = {}
    for rank, parts in flows.items():
        links, totals, reduced, largest = zip(*parts, strict=True)
        found[rank] = Inflow(frozenset().union(*links), sum(totals), sum(reduced), max(largest))
    return found


def _merged(loads: Iterable[Repeated]) -> list[Repeated]:
    """Equal loads that follow each other as one."""
    found: list[Repeated] = []
    for load, times in loads:
        if found and found[-1][0] == load:
            found[-1] = (load, found[-1][1] + times)
        else:
            found.append((load, times))
    return found


def _stage(topology: Topology, load: Load, times: int, chunk: int) -> Stage:
    """``times`` rounds of this load. What reducing adds to the carrying is a delay, for it needs no link.

    The unit that crosses the links is what the idlest one carries, so that a link with k messages counts k times.
    """
    pace = {link: chunks / topology.capacities[link] for link, chunks in load.links.items()}
    done = max(
        (_taken_in(flow, pace, topology.reduce_seconds(rank)) for rank, flow in load.inflows.items()),
        default=0.0,
    )
    delay = load.latency + max(0.0, done - max(pace.values())) * chunk
    unit = min(load.links.values())
    crosses = {link: chunks / unit for link, chunks in load.links.items()}
    return stage(topology, times * delay, times * unit * chunk, crosses)


def _taken_in(flow: Inflow, pace: Mapping[int, float], reduce_seconds: float) -> float:
    """When a rank has received and reduced all, in seconds a byte of a chunk."""
    byte_seconds = max(pace[link] for link in flow.links) / flow.total
    return overlapped(flow.total, flow.reduced, flow.largest, byte_seconds, reduce_seconds)
