"""A schedule message by message: every rank goes on as soon as it can, as ranks do when it is executed.

A rank with nothing to take in sends its next message at once, and messages of two rounds share a link. This is as slow
as it is exact, so ``schedules`` uses it for few messages only.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from paceline.collectives.execute import RankPlan, plan_rank
from paceline.collectives.schedule import Schedule, pipelined
from paceline.costs.network import FlowNetwork
from paceline.costs.topology import Route, Topology


def simulate_messages(
    schedule: Schedule, topology: Topology, size: int, element: int = 1, segments: int = 1
) -> float:
    """Seconds of one all-reduce of ``size`` bytes in whole elements."""
    waves = pipelined(schedule, segments)
    simulation = _MessageSimulation(topology, element)
    return simulation.run([plan_rank(waves, rank, size // element) for rank in range(schedule.workers)])


@dataclass(slots=True, eq=False)
class _Event:
    """A message that arrives, or a time that is over."""

    happened: bool = False
    waiting: list["_Process"] = field(default_factory=list)


_Process = Iterator[_Event]
"""What a rank does, or a message on its way: it yields what it waits for."""


@dataclass(slots=True, eq=False)
class _Pair:
    """From one rank to another: messages pass in order, once both ends have asked for them."""

    route: Route
    sent: deque[int] = field(default_factory=deque)
    """Bytes of messages whose sender is ready."""
    awaited: deque[_Event] = field(default_factory=deque)
    """The arrivals of messages whose receiver is ready."""
    last: _Event = field(default_factory=lambda: _Event(happened=True))
    """The arrival of the last message that both ends have asked for."""


class _MessageSimulation:
    def __init__(self, topology: Topology, element: int) -> None:
        self._topology, self._element = topology, element
        self._pairs: dict[tuple[int, int], _Pair] = {}
        self._network = FlowNetwork(topology.capacities)
        self._planned: list[tuple[float, int, _Event]] = []
        self._numbers = count()
        self._now = 0.0

    def run(self, plans: list[RankPlan]) -> float:
        for rank, plan in enumerate(plans):
            self._resume(self._execute(rank, plan))
        while self._planned or not self._network.idle:
            ends = self._network.next_end()
            if self._planned and self._planned[0][0] <= ends:
                self._now, _, event = heappop(self._planned)
                self._happen(event)
            else:
                self._now = ends
                self._network.advance(ends)
        return self._now

    def _execute(self, rank: int, plan: RankPlan) -> _Process:
        """What ``Execution.run`` does."""
        device = self._topology.hosts[self._topology.workers[rank]].device
        early = self._post(rank, plan, 0, early=True)
        for number, one in enumerate(plan.rounds):
            arriving = early | self._post(rank, plan, number, early=False)
            for sent in one.outgoing:
                pair = self._pair(rank, sent.peer)
                pair.sent.append(sent.length * self._element)
                self._match(pair)
            early = self._post(rank, plan, number + 1, early=True)
            for index, received in enumerate(one.incoming):
                yield arriving[index]
                if received.reduce:
                    yield self._after(device.reduce_seconds * self._element * received.length)

    def _post(self, rank: int, plan: RankPlan, number: int, *, early: bool) -> dict[int, _Event]:
        posted = {}
        for one in plan.rounds[number : number + 1]:
            for index, received in enumerate(one.incoming):
                if received.early == early:
                    posted[index] = _Event()
                    pair = self._pair(received.peer, rank)
                    pair.awaited.append(posted[index])
                    self._match(pair)
        return posted

    def _pair(self, source: int, target: int) -> _Pair:
        if (source, target) not in self._pairs:
            places = self._topology.workers
            self._pairs[source, target] = _Pair(self._topology.between(places[source], places[target]))
        return self._pairs[source, target]

    def _match(self, pair: _Pair) -> None:
        if pair.sent and pair.awaited:
            before, pair.last = pair.last, pair.awaited.popleft()
            self._resume(self._carry(pair.route, pair.sent.popleft(), before, pair.last))

    def _carry(self, route: Route, size: int, before: _Event, arrival: _Event) -> _Process:
        """A message that both ends have asked for; its latency is hidden where the one before is still passing."""
        yield self._after(route.latency)
        yield before
        self._network.start(self._now, size, route.crosses, lambda _: self._happen(arrival))

    def _after(self, seconds: float) -> _Event:
        event = _Event()
        heappush(self._planned, (self._now + seconds, next(self._numbers), event))
        return event

    def _happen(self, event: _Event) -> None:
        event.happened = True
        for process in event.waiting:
            self._resume(process)

    def _resume(self, process: _Process) -> None:
        for event in process:
            if not event.happened:
                event.waiting.append(process)
                return
