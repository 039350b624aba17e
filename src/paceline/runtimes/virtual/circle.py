"""Collectives in virtual time: they begin when the last worker has come and end for all at once."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from paceline.collectives.traffic import broadcast_bytes, plan_buckets
from paceline.costs.prices import Price
from paceline.costs.through_server import through_server
from paceline.errors import RunFailed
from paceline.runtimes.flat import CONTROL
from paceline.runtimes.virtual.books import Hidden
from paceline.runtimes.virtual.node import Node
from paceline.runtimes.virtual.stuck import describe
from paceline.runtimes.virtual.timeline import Interval, Timeline, run_transfers
from paceline.runtimes.virtual.world import World
from paceline.strategies.base import SyncPoint
from paceline.strategies.effects import AllReduce, Broadcast, BucketedMean, Gradient

Traffic = Sequence[tuple[int, int]]
"""Bytes that each worker (sends, receives)."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The buckets of a gradient: the part of backward after which each is ready, and its price."""

    parts: tuple[float, ...]
    prices: tuple[Price, ...]
    traffic: Traffic


class VirtualCollectives:
    """The workers that act together; holds those who have come until the last one has.

    Where parameters are kept on servers, a worker is one of them from when server 0 first sends to it until it goes,
    and what they exchange goes through server 0. Else all are, from the beginning to the end.
    """

    def __init__(self, world: World, timeline: Timeline, ready: deque[Node]) -> None:
        """``ready`` is where workers are put that may go on."""
        self._timeline, self._ready = timeline, ready
        self._open = world.strategy.sync_point is SyncPoint.ON_REQUEST and bool(world.servers)
        self._workers: Sequence[Node] = [] if self._open else world.workers
        self._came: list[Node] = []
        self.met: Sequence[Node] = self._workers
        """Those who last acted together, by rank."""
        self._shape, self._mathematics, self._hides = world.shape, world.mathematics, world.topology.hides
        if self._open:
            self._price_all_reduce, self._price_broadcast = self._price_served, self._price_served
            self._traffic: Callable[[int, int], Traffic] = self._traffic_served
            self._topology, self._server = world.topology, world.servers[0].host
        else:
            self._price_all_reduce = cache(world.all_reduce.price)
            self._traffic = cache(world.all_reduce.traffic)
            self._price_broadcast = cache(partial(_priced_broadcast, world))
        self._plans: dict[BucketedMean, Plan] = {}
        self._call: Any = None
        self._missing = len(self._workers)

    def admit(self, node: Node) -> None:
        """A worker belongs to the others from now on; one that does already may be admitted again."""
        if self._open and node not in self._workers and not node.gone:
            self._workers = sorted([*self._workers, node], key=lambda one: one.peer.rank)
            self._missing += 1

    def includes(self, node: Node) -> bool:
        """Whether a worker belongs to the others now."""
        return not self._open or node in self._workers

    def dismiss(self, node: Node) -> None:
        """A worker is gone; if the others have waited for nobody else, they go on."""
        if not self._open or node not in self._workers:
            return
        self._workers = [worker for worker in self._workers if worker is not node]
        if node in self._came:
            self._came.remove(node)
            return
        self._missing -= 1
        if self._came and not self._missing:
            self._close()
            self._begin(self._workers[0])

    @property
    def awaited(self) -> list[Node]:
        """Whom those who have come still wait for; nobody where none has come."""
        return [worker for worker in self._workers if worker not in self._came] if self._came else []

    def share(self, node: Node) -> tuple[int, int]:
        """Which share of work a worker has, and among how many: of those who last acted together."""
        if not self._open:
            return node.peer.rank, len(self._workers)
        return self.met.index(node), len(self.met)

    def plan(self, mean: BucketedMean) -> Plan:
        """The buckets of a way to average, as backward fills them."""
        if mean not in self._plans:
            element = self._shape.dtype.itemsize
            buckets = plan_buckets(self._shape.parameters, element, mean.first_bucket, mean.bucket)
            sizes = [(bucket.stop - bucket.start) * element for bucket in buckets]
            sizes[-1] += CONTROL * element
            self._plans[mean] = Plan(
                parts=self._shape.filled(buckets) if self._hides else (1.0,) * len(buckets),
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
        if self._come(node, effect, ("all-reduce", size, element, effect.op)):
            self._begin(node)
        return True

    def join_broadcast(self, node: Node, effect: Broadcast) -> bool:
        """A worker has come to a broadcast."""
        if self._come(node, effect, ("broadcast", effect.tensor.nbytes, effect.root)):
            self._begin(node)
        return True

    def _begin(self, node: Node) -> None:
        """All have come: carry out what this one, and so everybody, has asked for."""
        workers, effect = self._workers, node.waits_for
        last = max([worker.me.now for worker in workers])
        if type(effect) is AllReduce:
            size, element = _bytes_reduced(node, effect), effect.tensor.itemsize
            price = self._price_all_reduce(size, element)
            end = partial(self._end_all_reduce, workers, self._traffic(size, element), last)
        else:
            price = self._price_broadcast(effect.tensor.nbytes, 1)
            end = partial(self._end_broadcast, workers, last)
        run_transfers(self._timeline, [(last, price)], end)

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
        if self._open:
            self._came.append(node)
        self._missing -= 1
        if self._missing:
            return False
        self._close()
        return True

    def _close(self) -> None:
        """The last one has come; whoever comes now comes for the next time."""
        self._missing, self._call = len(self._workers), None
        if self._open:
            self._came, self.met = [], self._workers

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

    def _end_all_reduce(
        self, workers: Sequence[Node], traffic: Traffic, last: float, intervals: Sequence[Interval]
    ) -> None:
        effects: list[AllReduce] = [worker.waits_for for worker in workers]
        weights = [effect.weight for effect in effects]
        self._mathematics.reduce([effect.tensor for effect in effects], weights, effects[0].op)
        total = sum(weights)
        for worker, effect, (sent, received) in zip(workers, effects, traffic, strict=True):
            worker.me.total_weight = total
            if effect.tensor is worker.me.params:
                worker.me.samples_since_sync = 0
            worker.books.moved(sent, received)
        self._end(workers, last, intervals[-1][1])

    def _end_broadcast(self, workers: Sequence[Node], last: float, intervals: Sequence[Interval]) -> None:
        effects: list[Broadcast] = [worker.waits_for for worker in workers]
        root = next((place for place, one in enumerate(workers) if one.peer.rank == effects[0].root), 0)
        self._mathematics.broadcast([effect.tensor for effect in effects], root)
        size = effects[0].tensor.nbytes
        for place, worker in enumerate(workers):
            worker.books.moved(*broadcast_bytes(size, len(effects), place, root))
        self._end(workers, last, intervals[-1][1])

    def _end(self, workers: Sequence[Node], last: float, end: float) -> None:
        for worker in workers:
            if not worker.gone:
                worker.books.exchange(worker.me.now, last - worker.me.now, end - last, 0, 0)
                worker.me.now = end
                worker.waits_for = None
                self._ready.append(worker)

    def _price_served(self, size: int, element: int) -> Price:  # noqa: ARG002
        hosts = [worker.host for worker in self._workers]
        return through_server(self._topology, hosts, self._server, size)

    def _traffic_served(self, size: int, element: int) -> Traffic:  # noqa: ARG002
        return [(size, size)] * len(self._workers)


def _priced_broadcast(world: World, size: int, element: int) -> Price:  # noqa: ARG001
    return world.broadcast(world.topology, size)


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
