"""A schedule message by message: every rank goes on as soon as it can, as ranks do when it is executed.

A rank with nothing to take in sends its next message at once, and messages of two rounds share a link. This is as slow
as it is exact, so ``schedules`` uses it for few messages only.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count

from paceline.collectives.execute import RankPlan, plan_rank
from paceline.collectives.schedule import Schedule, pipelined
from paceline.costs.network import FlowNetwork
from paceline.costs.topology import Route, Topology


def rank_plans(schedule: Schedule, length: int, segments: int) -> Sequence[RankPlan]:
    waves = pipelined(schedule, segments)
    return [plan_rank(waves, rank, length) for rank in range(schedule.workers)]


def simulate_messages(plans: Sequence[RankPlan], topology: Topology, element: int) -> float:
    return _MessageSimulation(plans, topology, element).run()


@dataclass(slots=True, eq=False)
class _Pair:
    """From one rank to another: messages pass in order, once both ends have asked for them."""

    route: Route
    sent: deque[int] = field(default_factory=deque)
    """Bytes of messages whose sender is ready."""
    awaited: deque[Callable[[], None]] = field(default_factory=deque)
    """What to do when they are there, for each that its receiver is ready for."""
    ready: deque[tuple[int, Callable[[], None]]] = field(default_factory=deque)
    busy: bool = False


@dataclass(slots=True, eq=False)
class _Rank:
    plan: RankPlan
    reduce: float
    step: int = -1
    arrived: set[tuple[int, int]] = field(default_factory=set)
    taken: int = 0
    busy: bool = False


class _MessageSimulation:
    def __init__(self, plans: Sequence[RankPlan], topology: Topology, element: int) -> None:
        self._topology, self._element = topology, element
        devices = (topology.hosts[place].device for place in topology.workers)
        self._ranks = [
            _Rank(plan, device.reduce_seconds * element) for plan, device in zip(plans, devices, strict=True)
        ]
        self._pairs: dict[tuple[int, int], _Pair] = {}
        self._network = FlowNetwork(topology.capacities)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._now = 0.0

    def run(self) -> float:
        for rank, state in enumerate(self._ranks):
            if state.plan.rounds:
                self._post(rank, 0, early=True)
                self._begin(rank)
        while self._events or not self._network.idle:
            ends = self._network.next_end()
            if self._events and self._events[0][0] <= ends:
                self._now, _, happen = heappop(self._events)
                happen()
            else:
                self._now = ends
                self._network.advance(ends)
        return self._now

    def _after(self, seconds: float, happen: Callable[[], None]) -> None:
        heappush(self._events, (self._now + seconds, next(self._numbers), happen))

    def _begin(self, rank: int) -> None:
        """The next step: await what could not be awaited before, send, and await what may come early."""
        state = self._ranks[rank]
        state.step, state.taken = state.step + 1, 0
        if state.step == len(state.plan.rounds):
            return
        self._post(rank, state.step, early=False)
        for sent in state.plan.rounds[state.step].outgoing:
            pair = self._pair(rank, sent.peer)
            pair.sent.append(sent.length * self._element)
            self._match(pair)
        if state.step + 1 < len(state.plan.rounds):
            self._post(rank, state.step + 1, early=True)
        self._take(rank)

    def _post(self, rank: int, step: int, *, early: bool) -> None:
        for place, one in enumerate(self._ranks[rank].plan.rounds[step].incoming):
            if one.early == early:
                pair = self._pair(one.peer, rank)
                pair.awaited.append(partial(self._arrive, rank, step, place))
                self._match(pair)

    def _pair(self, source: int, target: int) -> _Pair:
        if (source, target) not in self._pairs:
            places = self._topology.workers
            self._pairs[source, target] = _Pair(self._topology.between(places[source], places[target]))
        return self._pairs[source, target]

    def _match(self, pair: _Pair) -> None:
        """A message that both ends have asked for needs its latency, hidden where another is still passing."""
        while pair.sent and pair.awaited:
            message = (pair.sent.popleft(), pair.awaited.popleft())

            def ready(message: tuple[int, Callable[[], None]] = message) -> None:
                pair.ready.append(message)
                self._pass(pair)

            self._after(pair.route.latency, ready)

    def _pass(self, pair: _Pair) -> None:
        if pair.busy or not pair.ready:
            return
        size, arrive = pair.ready.popleft()
        pair.busy = True

        def done(now: float) -> None:
            self._now = now
            pair.busy = False
            arrive()
            self._pass(pair)

        self._network.start(self._now, size, pair.route.crosses, done)

    def _arrive(self, rank: int, step: int, place: int) -> None:
        self._ranks[rank].arrived.add((step, place))
        self._take(rank)

    def _take(self, rank: int) -> None:
        state = self._ranks[rank]
        while not state.busy and state.step < len(state.plan.rounds):
            incoming = state.plan.rounds[state.step].incoming
            if state.taken == len(incoming):
                self._begin(rank)
                return
            if (state.step, state.taken) not in state.arrived:
                return
            state.busy = True
            one = incoming[state.taken]
            self._after(state.reduce * one.length if one.reduce else 0.0, partial(self._combined, rank))

    def _combined(self, rank: int) -> None:
        state = self._ranks[rank]
        state.busy = False
        state.taken += 1
        self._take(rank)
