"""The event clock: what happens when, and transfers that take their time."""

import heapq
from collections.abc import Callable, Sequence
from itertools import count
from math import inf

from paceline.costs.network import Network
from paceline.costs.prices import Price

Action = Callable[[float], None]
"""Something that happens; told the time."""
Transfer = tuple[float, Price]
"""A collective that may start at a time, and what it costs."""
Interval = tuple[float, float]
"""From when to when."""


class Timeline:
    """Actions in order of time, those of one moment in the order in which they were asked for."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.now = 0.0
        """The last moment at which something happened."""
        self._heap: list[tuple[float, int, Action]] = []
        self._number = count()

    def at(self, time: float, action: Action) -> None:
        """Do something at a time that is not over yet."""
        heapq.heappush(self._heap, (time, next(self._number), action))

    def step(self) -> bool:
        """Go to the next moment at which something happens; False where nothing will."""
        arrival = self.network.next_end()
        planned = self._heap[0][0] if self._heap else inf
        if arrival == planned == inf:
            return False
        if arrival <= planned:
            self.now = arrival
            self.network.advance(arrival)
        else:
            self.now = planned
            _, _, action = heapq.heappop(self._heap)
            action(planned)
        return True

    @property
    def planned(self) -> int:
        """How many actions are still to come, apart from transfers that end."""
        return len(self._heap)

    def is_quiet_until(self, time: float) -> bool:
        """Whether nothing is under way and nothing is planned before a time."""
        return self.network.idle and (not self._heap or self._heap[0][0] >= time)


def run_transfers(
    timeline: Timeline, transfers: Sequence[Transfer], done: Callable[[Sequence[Interval]], None]
) -> None:
    """Run collectives one after the other, each not before its time, and tell when each began and ended.

    Where nothing else happens in the meantime the answer is known at once; else they share the links with the
    others. Both give the same times.
    """
    alone = []
    free = 0.0
    for ready, price in transfers:
        begun = ready if ready > free else free
        free = begun + price.seconds
        alone.append((begun, free))
    if timeline.is_quiet_until(free):
        done(alone)
    else:
        Convoy(timeline, transfers, done).proceed(0.0)


class Convoy:
    """Collectives under way among other traffic."""

    def __init__(
        self, timeline: Timeline, transfers: Sequence[Transfer], done: Callable[[Sequence[Interval]], None]
    ) -> None:
        self._timeline, self._transfers, self._done = timeline, transfers, done
        self._intervals: list[Interval] = []

    def proceed(self, now: float) -> None:
        """Start the next collective as soon as it may, or report that all are done."""
        if len(self._intervals) == len(self._transfers):
            self._done(self._intervals)
            return
        ready, price = self._transfers[len(self._intervals)]
        self._timeline.at(max(now, ready), lambda begun: self._stage(begun, begun, price, 0))

    def _stage(self, now: float, begun: float, price: Price, number: int) -> None:
        if number == len(price.stages):
            self._intervals.append((begun, now))
            self.proceed(now)
            return
        stage = price.stages[number]

        def sent(time: float) -> None:
            self._timeline.at(time + stage.latency, lambda end: self._stage(end, begun, price, number + 1))

        self._timeline.network.start(now, stage.size, stage.crosses, sent)
