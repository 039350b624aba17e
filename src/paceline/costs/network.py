"""Flows that share links fairly, as fluids do.

No link carries more than it can, and no flow can be given more without taking from one that has less (max-min
fairness; Bertsekas and Gallager, Data Networks, section 6.5).
"""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter

Done = Callable[[float], None]


@dataclass(slots=True, eq=False)
class FlowGroup:
    """Flows that share the same links with others, and so are equally fast."""

    cap: float
    shared: tuple[tuple[int, float], ...]
    """The links that others use too, and how often each is crossed."""
    rate: float = 0.0
    end: float = inf
    sent: float = 0.0
    """Bytes that a flow has sent which was there from the beginning."""
    flows: int = 0
    order: list[tuple[float, int, "Flow"]] = field(default_factory=list)
    """A heap by where each flow ends; those that have left the group are still in it."""

    def first(self) -> float:
        order = self.order
        while order and (order[0][2].group is not self or order[0][2].ends_at != order[0][0]):
            heapq.heappop(order)
        return order[0][0] if order else inf

    def pop_first(self) -> list["Flow"]:
        first, found = self.first(), []
        while self.order and self.order[0][0] <= first:
            at, _, flow = heapq.heappop(self.order)
            if flow.group is self and flow.ends_at == at:
                found.append(flow)
        return found


@dataclass(slots=True, eq=False)
class Flow:
    number: int
    crosses: Mapping[int, float]
    done: Done
    group: FlowGroup
    ends_at: float = 0.0
    """The bytes that its group has sent when it ends."""


NOWHERE = FlowGroup(inf, ())
"""The group of flows that have ended or not begun."""


class FlowNetwork:
    """Flows over links of given capacities, in virtual time.

    The caller keeps the clock: times never go back, and ``advance`` is called with ``next_end()`` before
    anything later happens. Flows that end together are reported in the order in which they started.
    """

    def __init__(self, capacities: Sequence[float]) -> None:
        self._capacities = capacities
        self._users: dict[int, dict[int, Flow]] = {}
        self._groups: dict[tuple[float, tuple[tuple[int, float], ...]], FlowGroup] = {}
        self._number = 0
        self._now = 0.0
        self._next = inf
        self._settled = True

    @property
    def idle(self) -> bool:
        return not self._groups

    def start(self, now: float, size: float, crosses: Mapping[int, float], done: Done) -> Flow:
        """Send ``size`` bytes from now on; ``done`` is called from ``advance`` when the last has left."""
        self._move(now)
        self._number += 1
        flow = Flow(self._number, crosses, done, NOWHERE)
        alone: list[Flow] = []
        for link in crosses:
            users = self._users.setdefault(link, {})
            if len(users) == 1:
                alone += users.values()
            users[flow.number] = flow
        self._join(flow, size)
        self._regroup(alone)
        self._settled = False
        return flow

    def next_end(self) -> float:
        self._settle()
        return self._next

    def advance(self, now: float) -> None:
        self._settle()
        due = [group for group in self._groups.values() if group.end <= now]
        self._move(now)
        # A flow that has left its group and come back may be in its heap twice.
        ended = {flow.number: flow for group in due for flow in group.pop_first()}
        if ended:
            self._remove(ended)
            self._settled = False
        for number in sorted(ended):
            ended[number].done(now)

    def _move(self, now: float) -> None:
        passed = now - self._now
        if passed > 0:
            self._settle()
            for group in self._groups.values():
                group.sent += group.rate * passed
        self._now = now

    def _join(self, flow: Flow, left: float) -> None:
        """Put a flow with ``left`` bytes to go into the group that shares the same links."""
        cap, shared = inf, []
        for link, times in flow.crosses.items():
            if len(self._users[link]) > 1:
                shared.append((link, times))
            else:
                cap = min(cap, self._capacities[link] / times)
        key = (cap, tuple(shared))
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = FlowGroup(*key)
        group.flows += 1
        flow.group, flow.ends_at = group, group.sent + left
        heapq.heappush(group.order, (flow.ends_at, flow.number, flow))

    def _quit(self, flow: Flow) -> float:
        group, flow.group = flow.group, NOWHERE
        group.flows -= 1
        if not group.flows:
            del self._groups[group.cap, group.shared]
        return max(0.0, flow.ends_at - group.sent)

    def _regroup(self, flows: Iterable[Flow]) -> None:
        """Flows that share a link now and did not before, or the other way round."""
        for flow in flows:
            self._join(flow, self._quit(flow))

    def _remove(self, flows: Mapping[int, Flow]) -> None:
        alone: dict[int, Flow] = {}
        for number, flow in flows.items():
            self._quit(flow)
            for link in flow.crosses:
                users = self._users[link]
                del users[number]
                if len(users) == 1:
                    alone |= users
        self._regroup(flow for number, flow in alone.items() if number not in flows)

    def _settle(self) -> None:
        """Share the links anew if flows have started or ended since; many often do so at the same moment."""
        if self._settled:
            return
        self._settled = True
        sharing: dict[int, list[FlowGroup]] = {}
        demand: dict[int, float] = {}
        for group in self._groups.values():
            if not group.shared:
                group.rate = group.cap
            for link, times in group.shared:
                sharing.setdefault(link, []).append(group)
                demand[link] = demand.get(link, 0.0) + times * group.flows
        if demand:
            self._fill(sharing, demand)
        now, soonest = self._now, inf
        for group in self._groups.values():
            left = group.first() - group.sent
            group.end = end = now + left / group.rate if left > 0 else now
            if end < soonest:
                soonest = end
        self._next = soonest

    def _fill(self, sharing: dict[int, list[FlowGroup]], demand: dict[int, float]) -> None:
        """Fill all alike until a link is full or a group at its own limit, freeze those, go on."""
        waiting = {id(group): group for groups in sharing.values() for group in groups}
        slowest = sorted(waiting.values(), key=attrgetter("cap"), reverse=True)
        room = {link: self._capacities[link] for link in demand}
        while waiting:
            level, tightest = min([(room[link] / wanted, link) for link, wanted in demand.items()])
            while slowest and id(slowest[-1]) not in waiting:
                slowest.pop()
            limited = slowest[-1].cap <= level
            for group in [slowest[-1]] if limited else sharing[tightest]:
                if waiting.pop(id(group), None) is None:
                    continue
                group.rate = group.cap if limited else level
                for link, times in group.shared:
                    weight = times * group.flows
                    room[link] = max(0.0, room[link] - group.rate * weight)
                    demand[link] -= weight
                    if demand[link] <= 1e-9:
                        del demand[link]
