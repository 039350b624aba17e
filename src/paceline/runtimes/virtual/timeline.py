"""The event clock: scheduled actions, and transfers that share links."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from math import inf

from paceline.collectives.traffic import Bucket
from paceline.costs.collectives import Price, Traffic
from paceline.costs.network import FlowNetwork

Action = Callable[[float], None]
"""Called with the time at which it happens."""
Transfer = tuple[float, Price]
"""The earliest time at which a collective may start, and what it costs."""
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, eq=False)
class Transfers:
    """What travels in a collective, one price after the other: the buckets of a gradient, or one tensor."""

    prices: tuple[Price, ...]
    traffic: Traffic
    parts: tuple[float, ...] = ()
    """The part of backward after which each but the last is ready; the last waits for the end of backward."""
    root: int = 0
    buckets: tuple[Bucket, ...] = ()
    """The parts of the flat vector that travel, where these are several."""
    computing: float = 0.0
    """Seconds of each worker that do not hide behind backward, which computes as well."""


class Timeline:
    """Actions in order of time, those of one moment in the order in which they were scheduled."""

    def __init__(self, network: FlowNetwork) -> None:
        self.network = network
        self.now = 0.0
        self.planned: list[tuple[float, int, Action]] = []
        """Scheduled actions, as a heap; ends of transfers are the network's."""
        self._number = count()

    def at(self, time: float, action: Action) -> None:
        """Schedule an action; the time must not be over yet."""
        heapq.heappush(self.planned, (time, next(self._number), action))

    def step(self) -> bool:
        arrival = self.network.next_end()
        planned = self.planned[0][0] if self.planned else inf
        if arrival == planned == inf:
            return False
        self.now = min(arrival, planned)
        if arrival <= planned:
            self.network.advance(arrival)
        else:
            heapq.heappop(self.planned)[2](planned)
        return True


def run_transfers(
    timeline: Timeline, transfers: Sequence[Transfer], done: Callable[[Sequence[Interval]], None]
) -> None:
    """Run collectives one after the other, each not before its time; ``done`` is given when each began and ended.

    Where nothing else happens in the meantime the result is known at once; else they share the links with the other
    traffic. Both give the same times.
    """
    alone = []
    free = 0.0
    for ready, price in transfers:
        begun = ready if ready > free else free
        free = begun + price.seconds
        alone.append((begun, free))
    if timeline.network.idle and (not timeline.planned or timeline.planned[0][0] >= free):
        done(alone)
    else:
        _share_links(timeline, transfers, done)


def _share_links(
    timeline: Timeline, transfers: Sequence[Transfer], done: Callable[[Sequence[Interval]], None]
) -> None:
    intervals: list[Interval] = []

    def start(place: int, now: float) -> None:
        if place == len(transfers):
            done(intervals)
        else:
            timeline.at(max(now, transfers[place][0]), lambda begun: stage(place, 0, begun, begun))

    def stage(place: int, number: int, begun: float, now: float) -> None:
        stages = transfers[place][1].stages
        if number == len(stages):
            intervals.append((begun, now))
            start(place + 1, now)
            return
        one = stages[number]

        def sent(time: float) -> None:
            timeline.at(time + one.latency, lambda end: stage(place, number + 1, begun, end))

        timeline.network.start(now, one.size, one.crosses, sent)

    start(0, 0.0)
