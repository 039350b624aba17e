"""Flows that share links fairly, as fluids do.

No link carries more than it can, and nobody can be given more without taking from somebody who has less (max-min
fairness; Bertsekas and Gallager, Data Networks, section 6.5).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

Done = Callable[[float], None]
"""Told the time at which a flow's last byte left."""


@dataclass(slots=True, eq=False)
class Flow:
    """Bytes under way over some links at once; a link that it crosses k times counts k times."""

    left: float
    crosses: Mapping[int, float]
    """Link to how often it is crossed."""
    done: Done
    rate: float = 0.0
    ends: float = inf


class Network:
    """Flows over links of given capacities, in virtual time.

    The caller keeps the clock: times never go back, and ``advance`` is called with ``next_end()`` before
    anything later happens. Flows that end together are reported in the order in which they started.
    """

    def __init__(self, capacities: Sequence[float]) -> None:
        self._capacities = capacities
        self._flows: list[Flow] = []
        self._now = 0.0
        self._next = inf

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._flows

    @property
    def flows(self) -> Sequence[Flow]:
        """What is under way, by start; for looking only."""
        return self._flows

    def start(self, now: float, size: float, crosses: Mapping[int, float], done: Done) -> Flow:
        """Send ``size`` bytes from now on; ``done`` is called from ``advance`` when the last has left."""
        flow = Flow(size, crosses, done)
        self._move(now)
        self._flows.append(flow)
        self._share()
        return flow

    def drop(self, now: float, flow: Flow) -> None:
        """Forget a flow that nobody waits for any more."""
        self._move(now)
        self._flows.remove(flow)
        self._share()

    def next_end(self) -> float:
        """When the next flow ends if nothing else happens; infinity where there is none."""
        return self._next

    def advance(self, now: float) -> None:
        """Let time pass up to the next end, and report what ended."""
        ended = [flow for flow in self._flows if flow.ends <= now]
        self._move(now)
        if ended:
            self._flows = [flow for flow in self._flows if flow.ends > now]
            self._share()
        for flow in ended:
            flow.done(now)

    def _move(self, now: float) -> None:
        passed = now - self._now
        self._now = now
        if passed > 0:
            for flow in self._flows:
                flow.left -= flow.rate * passed

    def _share(self) -> None:
        """Give every flow its fair rate: fill all alike until a link is full, freeze its flows, go on."""
        if len(self._flows) == 1:
            only = self._flows[0]
            only.rate = min(
                (self._capacities[link] / times for link, times in only.crosses.items()), default=inf
            )
        else:
            self._fill()
        self._next = inf
        for flow in self._flows:
            flow.ends = self._now + max(0.0, flow.left) / flow.rate
            self._next = min(self._next, flow.ends)

    def _fill(self) -> None:
        demand: dict[int, float] = {}
        users: dict[int, list[Flow]] = {}
        for flow in self._flows:
            flow.rate = inf
            for link, times in flow.crosses.items():
                demand[link] = demand.get(link, 0) + times
                users.setdefault(link, []).append(flow)
        room = {link: self._capacities[link] for link in demand}
        while demand:
            tightest = min(demand, key=lambda link: room[link] / demand[link])
            level = room[tightest] / demand[tightest]
            for flow in users[tightest]:
                if flow.rate == inf:
                    self._freeze(flow, level, room, demand)
            demand.pop(tightest, None)

    @staticmethod
    def _freeze(flow: Flow, rate: float, room: dict[int, float], demand: dict[int, float]) -> None:
        flow.rate = rate
        for link, times in flow.crosses.items():
            if link in demand:
                room[link] = max(0.0, room[link] - rate * times)
                demand[link] -= times
                if demand[link] <= 0:
                    del demand[link]
