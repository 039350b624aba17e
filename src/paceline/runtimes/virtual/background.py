"""Reductions in virtual time that go on while workers compute: each begins when the last worker has started it."""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from paceline.errors import RunFailed
from paceline.runtimes.virtual.node import Node, ReductionPart, describe
from paceline.runtimes.virtual.simulation import Simulation
from paceline.runtimes.virtual.timeline import Interval, Transfers, run_transfers
from paceline.strategies.effects import AllReduce, Wait


@dataclass(slots=True, eq=False)
class BackgroundReduction:
    call: Any
    """What all workers must have started alike."""
    parts: dict[int, ReductionPart] = field(default_factory=dict)
    """By rank."""
    waiting: list[Node] = field(default_factory=list)
    transfers: Transfers = Transfers((), ())
    interval: Interval | None = None
    total_weight: float | None = None


Carry = Callable[[Sequence[ReductionPart]], tuple[Transfers, float | None]]
"""Reduces the parts of all workers in place; returns what that costs, and the sum of the weights."""


class BackgroundReductions:
    """They follow each other, and workers that wait for one go on when it and those before it are over."""

    def __init__(self, simulation: Simulation, carry: Carry) -> None:
        self._simulation, self._carry = simulation, carry
        self._started: Counter[int] = Counter()
        self._incomplete: dict[int, BackgroundReduction] = {}
        self._queue: deque[BackgroundReduction] = deque()
        self._free = 0.0

    def start(self, node: Node, effect: AllReduce, call: Any) -> bool:
        rank = node.me.rank
        number = self._started[rank]
        self._started[rank] += 1
        reduction = self._incomplete.setdefault(number, BackgroundReduction(call))
        if call != reduction.call:
            other = next(iter(reduction.parts.values()))
            raise RunFailed(
                f"the workers disagree on what to start: {node} {describe(effect)} at step {node.me.clock}, "
                f"{other.node} {describe(other.effect)} at step {other.clock}"
            )
        part = ReductionPart.of(node, effect, effect.tensor.clone())
        reduction.parts[rank] = part
        node.started.append(reduction)
        if effect.offset is not None:
            node.me.samples_since_sync = 0
        if len(reduction.parts) == len(self._simulation.workers):
            del self._incomplete[number]
            self._begin(reduction)
        return False

    def _begin(self, reduction: BackgroundReduction) -> None:
        parts = [part for _, part in sorted(reduction.parts.items())]
        reduction.transfers, reduction.total_weight = self._carry(parts)
        self._queue.append(reduction)
        if len(self._queue) == 1:
            self._run_first()

    def _run_first(self) -> None:
        reduction = self._queue[0]
        ready = max(self._free, *(part.at for part in reduction.parts.values()))
        run_transfers(
            self._simulation.timeline,
            [(ready, price) for price in reduction.transfers.prices],
            partial(self._end, reduction),
        )

    def _end(self, reduction: BackgroundReduction, intervals: Sequence[Interval]) -> None:
        reduction.interval = intervals[0][0], intervals[-1][1]
        self._free = reduction.interval[1]
        self._queue.popleft()
        for node in reduction.waiting:
            if node.started[-1] is reduction:
                self._deliver(node)
                self._simulation.ready.append(node)
        if self._queue:
            self._run_first()

    def wait(self, node: Node, effect: Wait) -> bool:
        """Whether the worker has to wait for others; else its clock has moved on to the end of the reductions."""
        if not node.started:
            return False
        if node.started[-1].interval is not None:
            self._deliver(node)
            return False
        node.waits_for = effect
        node.started[-1].waiting.append(node)
        return True

    def _deliver(self, node: Node) -> None:
        me = node.me
        for reduction in node.started:
            part = reduction.parts[me.rank]
            assert part.values is not None
            part.effect.tensor.copy_(part.values)
            if reduction.total_weight is not None:
                me.total_weight = reduction.total_weight
            self._account(node, reduction)
        node.started.clear()
        node.waits_for = None

    def _account(self, node: Node, reduction: BackgroundReduction) -> None:
        """What is left of the transfer when the worker waits for it is its own time; the rest has been hidden.

        Nothing is hidden that takes the cores with which the worker computes.
        """
        me, transfers = node.me, reduction.transfers
        assert reduction.interval is not None
        begun, ended = reduction.interval
        hides = self._simulation.topology.hides
        computing = transfers.computing if hides else ended - begun
        wait = max(0.0, begun - me.now)
        end = max(ended, me.now + wait + computing)
        exposed = end - me.now - wait
        sent, received = transfers.traffic[me.rank]
        node.ledger.exchange(me.now, wait, exposed, sent, received)
        if (hidden := ended - begun - exposed) > 0:
            node.ledger.overlap([(begun, begun + hidden)], hidden)
        me.now = end
