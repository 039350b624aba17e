"""Collectives in virtual time: they begin when the last worker has come and end for all at once."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate
from typing import Any

from paceline.collectives.buckets import plan_buckets
from paceline.collectives.traffic import broadcast_bytes
from paceline.costs.prices import Price
from paceline.errors import RunFailed
from paceline.runtimes.flat import CONTROL
from paceline.runtimes.virtual.books import Hidden
from paceline.runtimes.virtual.node import Node
from paceline.runtimes.virtual.stuck import describe
from paceline.runtimes.virtual.timeline import Interval, Timeline, run_transfers
from paceline.runtimes.virtual.world import World
from paceline.strategies.effects import AllReduce, Broadcast, Gradient, Mean

Traffic = Sequence[tuple[int, int]]
"""Bytes that each worker (sends, receives)."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The buckets of a gradient: the part of backward after which each is ready, and its price."""

    parts: tuple[float, ...]
    prices: tuple[Price, ...]
    traffic: Traffic


class Circle:
    """All workers; holds those who have come until the last one has."""

    def __init__(self, world: World, timeline: Timeline, ready: deque[Node]) -> None:
        """``ready`` is where workers are put that may go on."""
        self._workers, self._timeline, self._ready = world.workers, timeline, ready
        self._shape, self._mathematics = world.shape, world.mathematics
        self._price_all_reduce: Callable[[int, int], Price] = cache(world.all_reduce.price)
        self._traffic: Callable[[int, int], Traffic] = cache(world.all_reduce.traffic)
        self._price_broadcast: Callable[[int], Price] = cache(partial(world.broadcast, world.topology))
        self._plans: dict[Mean, Plan] = {}
        self._call: Any = None
        self._missing = len(world.workers)

    def plan(self, mean: Mean) -> Plan:
        """The buckets of a way to average; backward fills them at an even pace in bytes."""
        if mean not in self._plans:
            element = self._shape.dtype.itemsize
            buckets = plan_buckets(self._shape.parameters, element, mean.first_bucket, mean.bucket)
            sizes = [(bucket.stop - bucket.start) * element for bucket in buckets]
            parts = tuple(done / sum(sizes) for done in accumulate(sizes))
            sizes[-1] += CONTROL * element
            self._plans[mean] = Plan(
                parts=parts,
                prices=tuple(self._price_all_reduce(size, element) for size in sizes),
                traffic=_added([self._traffic(size, element) for size in sizes]),
            )
        return self._plans[mean]

    def join_gradient(self, node: Node, effect: Gradient) -> bool:
        """A worker's backward is under way; its buckets wait for those of the others."""
        if effect.reduce is not node.mean:
            assert effect.reduce is not None
            node.mean, node.plan = effect.reduce, self.plan(effect.reduce)
        plan = node.plan
        if self._come(node, effect, plan):
            self._reduce_gradients(plan)
        return True

    def join_all_reduce(self, node: Node, effect: AllReduce) -> bool:
        """A worker has come to an all-reduce."""
        size, element = _bytes_reduced(node, effect), effect.tensor.itemsize
        if self._come(node, effect, ("all-reduce", size, effect.op)):
            traffic = self._traffic(size, element)
            self._run(self._price_all_reduce(size, element), partial(self._end_all_reduce, traffic))
        return True

    def join_broadcast(self, node: Node, effect: Broadcast) -> bool:
        """A worker has come to a broadcast."""
        size = effect.tensor.nbytes
        if self._come(node, effect, ("broadcast", size, effect.root)):
            self._run(self._price_broadcast(size), self._end_broadcast)
        return True

    def _come(self, node: Node, effect: Any, call: Any) -> bool:
        """Whether this worker is the last to come; all must have come for the same."""
        node.waits_for = effect
        if self._call is None:
            self._call = call
        elif call is not self._call and call != self._call:
            other = next(worker for worker in self._workers if worker.waits_for and worker is not node)
            raise RunFailed(
                f"the workers do not agree on what to do: {node} waits for {describe(effect)} "
                f"at step {node.me.clock}, {other} for {describe(other.waits_for)} at step {other.me.clock}"
            )
        self._missing -= 1
        if self._missing:
            return False
        self._missing, self._call = len(self._workers), None
        return True

    def _run(self, price: Price, end: Callable[[float, Sequence[Interval]], None]) -> None:
        last = max([worker.me.now for worker in self._workers])
        run_transfers(self._timeline, [(last, price)], partial(end, last))

    def _reduce_gradients(self, plan: Plan) -> None:
        last = max([worker.ended for worker in self._workers])
        if len(plan.parts) == 1:
            transfers = [(last, plan.prices[0])]
        else:
            # Many workers are alike: each pair of times is looked at once.
            backwards = {(worker.begun, worker.ended) for worker in self._workers}
            transfers = [
                (max([begun + (ended - begun) * part for begun, ended in backwards]), price)
                for part, price in zip(plan.parts, plan.prices, strict=True)
            ]
        run_transfers(self._timeline, transfers, partial(self._end_gradients, plan, last))

    def _end_gradients(self, plan: Plan, last: float, intervals: Sequence[Interval]) -> None:
        self._mathematics.sum_gradients()
        end = intervals[-1][1]
        total = float(sum([worker.me.samples for worker in self._workers]))
        communicate = end - last
        # The last bucket begins when the slowest backward is over, so a single one hides behind nothing.
        several = len(intervals) > 1
        begun = ended = -1.0
        for worker, (sent, received) in zip(self._workers, plan.traffic, strict=True):
            if several and (worker.begun != begun or worker.ended != ended):
                hidden = _overlaps(intervals, worker.begun, worker.ended)
            begun, ended = worker.begun, worker.ended
            books, me = worker.books, worker.me
            books.exchange(ended, last - ended, communicate, sent, received)
            if several:
                books.behind(hidden)
            me.total_weight = total
            me.now = end
            worker.waits_for = None
        self._ready.extend(self._workers)

    def _end_all_reduce(self, traffic: Traffic, last: float, intervals: Sequence[Interval]) -> None:
        effects: list[AllReduce] = [worker.waits_for for worker in self._workers]
        weights = [effect.weight for effect in effects]
        self._mathematics.reduce([effect.tensor for effect in effects], weights, effects[0].op)
        total = sum(weights)
        for worker, effect, (sent, received) in zip(self._workers, effects, traffic, strict=True):
            worker.me.total_weight = total
            if effect.tensor is worker.me.params:
                worker.me.samples_apart = 0
            worker.books.moved(sent, received)
        self._end(last, intervals[-1][1])

    def _end_broadcast(self, last: float, intervals: Sequence[Interval]) -> None:
        effects: list[Broadcast] = [worker.waits_for for worker in self._workers]
        self._mathematics.broadcast([effect.tensor for effect in effects], effects[0].root)
        size = effects[0].tensor.nbytes
        for worker in self._workers:
            worker.books.moved(*broadcast_bytes(size, len(effects), worker.peer.rank, effects[0].root))
        self._end(last, intervals[-1][1])

    def _end(self, last: float, end: float) -> None:
        for worker in self._workers:
            worker.books.exchange(worker.me.now, last - worker.me.now, end - last, 0, 0)
            worker.me.now = end
            worker.waits_for = None
        self._ready.extend(self._workers)


def _bytes_reduced(node: Node, effect: AllReduce) -> int:
    """What is sent live: a mean travels with its weight, the flat vectors with their control elements."""
    tensor, me = effect.tensor, node.me
    if effect.op == "sum":
        return tensor.nbytes
    extra = CONTROL if tensor is me.params or tensor is me.grad else 1
    return tensor.nbytes + extra * tensor.itemsize


def _added(traffic: Sequence[Traffic]) -> Traffic:
    """What each worker moves in all."""
    return [
        (sum([sent for sent, _ in one]), sum([received for _, received in one]))
        for one in zip(*traffic, strict=True)
    ]


def _overlaps(intervals: Sequence[Interval], begun: float, ended: float) -> Hidden:
    """The parts of the intervals that lie between two times, and their length in all."""
    cut = [(max(start, begun), min(stop, ended)) for start, stop in intervals]
    found = [(start, stop) for start, stop in cut if stop > start]
    return found, sum(stop - start for start, stop in found)
