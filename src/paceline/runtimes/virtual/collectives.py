"""Collectives in virtual time: they begin when the last worker has joined and end for all at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

import torch
from torch import Tensor

from paceline.collectives.traffic import broadcast_bytes, plan_buckets
from paceline.costs.collectives import AllReduceCosts, Price, through_server, tree_broadcast
from paceline.errors import RunFailed
from paceline.runtimes.flat import CONTROL
from paceline.runtimes.virtual.node import Node, describe
from paceline.runtimes.virtual.simulation import Simulation
from paceline.runtimes.virtual.timeline import Interval, run_transfers
from paceline.strategies.base import SyncPoint
from paceline.strategies.effects import AllReduce, Broadcast, BucketedMean, Gradient

Traffic = Sequence[tuple[int, int]]
"""Bytes that each worker (sends, receives)."""


@dataclass(frozen=True, slots=True, eq=False)
class BucketPrices:
    """The buckets of a gradient: the part of backward after which each is ready, and its price."""

    parts: tuple[float, ...]
    prices: tuple[Price, ...]
    traffic: Traffic


class VirtualCollectives:
    """The group of workers that act together; those that have joined a collective wait until the last one has.

    Where workers synchronize on request, a worker belongs to the group from when server 0 first sends to it until it
    is gone, and what the workers exchange goes through server 0. Else all workers belong to it all the time.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._open = simulation.strategy.sync_point is SyncPoint.ON_REQUEST and bool(simulation.servers)
        self._members: Sequence[Node] = [] if self._open else simulation.workers
        self._last_members = self._members
        self._joined: list[Node] = []
        self._missing = len(self._members)
        self._call: Any = None
        self._bucket_prices = cache(self._price_buckets)
        self._price_all_reduce, self._price_broadcast = self._price_served, self._price_served
        self._traffic: Callable[[int, int], Traffic] = self._traffic_served
        if not self._open:
            topology = simulation.topology
            costs = AllReduceCosts(simulation.settings.collective, topology, simulation.shape.compression)
            self._price_all_reduce, self._traffic = cache(costs.price), cache(costs.traffic)
            self._price_broadcast = cache(lambda size, _: tree_broadcast(topology, size))

    def admit(self, node: Node) -> None:
        """Add a worker to the group; one that belongs to it already may be added again."""
        if self._open and node not in self._members and not node.gone:
            self._members = sorted([*self._members, node], key=lambda one: one.peer.rank)
            self._missing += 1

    def includes(self, node: Node) -> bool:
        return not self._open or node in self._members

    def remove(self, node: Node) -> None:
        """Take a worker out of the group; if the others waited for no other worker, they go on."""
        if not self._open or node not in self._members:
            return
        self._members = [worker for worker in self._members if worker is not node]
        if node in self._joined:
            self._joined.remove(node)
            return
        self._missing -= 1
        if self._joined and not self._missing:
            self._reset()
            self._begin(self._members[0])

    @property
    def awaited(self) -> list[Node]:
        return [worker for worker in self._members if worker not in self._joined] if self._joined else []

    def share(self, node: Node) -> tuple[int, int]:
        """A worker's share of work as (which one, of how many): among those that last acted together."""
        if not self._open:
            return node.peer.rank, len(self._members)
        return self._last_members.index(node), len(self._last_members)

    def _price_buckets(self, mean: BucketedMean) -> BucketPrices:
        shape = self._simulation.shape
        element = shape.dtype.itemsize
        buckets = plan_buckets(shape.parameters, element, mean.first_bucket, mean.bucket)
        sizes = [(bucket.stop - bucket.start) * element for bucket in buckets]
        sizes[-1] += CONTROL * element
        traffic = [self._traffic(size, element) for size in sizes]
        return BucketPrices(
            parts=shape.filled(buckets) if self._simulation.topology.hides else (1.0,) * len(buckets),
            prices=tuple(self._price_all_reduce(size, element) for size in sizes),
            traffic=[
                (sum([sent for sent, _ in one]), sum([received for _, received in one]))
                for one in zip(*traffic, strict=True)
            ],
        )

    def join_gradient(self, node: Node, effect: Gradient) -> bool:
        """A worker's backward is under way; its buckets wait for those of the others. The worker has to wait."""
        if effect.reduce is not node.mean:
            node.mean, node.buckets = effect.reduce, self._bucket_prices(effect.reduce)
        if self._join(node, effect, node.buckets):
            self._reduce_gradients(node.buckets)
        return True

    def join(self, node: Node, effect: AllReduce | Broadcast) -> bool:
        tensor = effect.tensor
        if isinstance(effect, AllReduce):
            call: Any = ("all-reduce", _bytes_reduced(node, effect), tensor.itemsize, effect.op)
        else:
            call = ("broadcast", tensor.nbytes, effect.root)
        if self._join(node, effect, call):
            self._begin(node)
        return True

    def _begin(self, node: Node) -> None:
        workers, effect = self._members, node.waits_for
        last = max([worker.me.now for worker in workers])
        if type(effect) is AllReduce:
            size, element = _bytes_reduced(node, effect), effect.tensor.itemsize
            price, traffic, root = self._price_all_reduce(size, element), self._traffic(size, element), 0
        else:
            size, count = effect.tensor.nbytes, len(workers)
            # A root that is gone is replaced by the first worker.
            root = next((place for place, one in enumerate(workers) if one.peer.rank == effect.root), 0)
            price = self._price_broadcast(size, 1)
            traffic = [broadcast_bytes(size, count, place, root) for place in range(count)]
        run_transfers(
            self._simulation.timeline, [(last, price)], partial(self._end, workers, traffic, root, last)
        )

    def _join(self, node: Node, effect: Any, call: Any) -> bool:
        node.waits_for = effect
        if self._call is None:
            self._call = call
        elif call is not self._call and call != self._call:
            other = next(worker for worker in self._members if worker.waits_for and worker is not node)
            raise RunFailed(
                f"the workers disagree on what to do: {node} waits for {describe(effect)} "
                f"at step {node.me.clock}, {other} for {describe(other.waits_for)} at step {other.me.clock}"
            )
        if self._open:
            self._joined.append(node)
        self._missing -= 1
        if self._missing:
            return False
        self._reset()
        return True

    def _reset(self) -> None:
        self._missing, self._call = len(self._members), None
        if self._open:
            self._joined, self._last_members = [], self._members

    def _reduce_gradients(self, buckets: BucketPrices) -> None:
        last = max([worker.ended for worker in self._members])
        # Many workers are equal: each pair of times is looked at once.
        backwards = {(worker.begun, worker.ended) for worker in self._members}
        transfers = [
            (max([begun + (ended - begun) * part for begun, ended in backwards]), price)
            for part, price in zip(buckets.parts[:-1], buckets.prices, strict=False)
        ]
        transfers.append((last, buckets.prices[-1]))
        run_transfers(self._simulation.timeline, transfers, partial(self._end_gradients, buckets, last))

    def _end_gradients(self, buckets: BucketPrices, last: float, intervals: Sequence[Interval]) -> None:
        if self._members[0].replica is not None:
            reduce_into_all([worker.me.grad for worker in self._members], (), "sum")
        end = intervals[-1][1]
        total = float(sum([worker.me.samples for worker in self._members]))
        # The last bucket begins when the slowest backward is over, so a single one hides behind nothing.
        several = len(intervals) > 1
        begun = ended = -1.0
        for worker, (sent, received) in zip(self._members, buckets.traffic, strict=True):
            if several and (worker.begun != begun or worker.ended != ended):
                hidden = _overlaps(intervals, worker.begun, worker.ended)
            begun, ended = worker.begun, worker.ended
            ledger, me = worker.ledger, worker.me
            ledger.exchange(ended, last - ended, end - last, sent, received)
            if several:
                ledger.overlap(*hidden)
            me.total_weight = total
            me.now = end
            worker.waits_for = None
        self._simulation.ready.extend(self._members)

    def _end(
        self, workers: Sequence[Node], traffic: Traffic, root: int, last: float, intervals: Sequence[Interval]
    ) -> None:
        effects, end = [worker.waits_for for worker in workers], intervals[-1][1]
        tensors = [effect.tensor for effect in effects]
        if type(effects[0]) is AllReduce:
            weights = [effect.weight for effect in effects]
            total = sum(weights)
            reduce_into_all(tensors, weights, effects[0].op)
            for worker, tensor in zip(workers, tensors, strict=True):
                worker.me.total_weight = total
                if tensor is worker.me.params:
                    worker.me.samples_since_sync = 0
        else:
            broadcast(tensors, root)
        for worker, (sent, received) in zip(workers, traffic, strict=True):
            if not worker.gone:
                worker.ledger.exchange(worker.me.now, last - worker.me.now, end - last, sent, received)
                worker.me.now = end
                worker.waits_for = None
                self._simulation.ready.append(worker)

    def _price_served(self, size: int, element: int) -> Price:  # noqa: ARG002
        simulation = self._simulation
        hosts = [worker.host for worker in self._members]
        return through_server(simulation.topology, hosts, simulation.servers[0].host, size)

    def _traffic_served(self, size: int, element: int) -> Traffic:  # noqa: ARG002
        return [(size, size)] * len(self._members)


def _bytes_reduced(node: Node, effect: AllReduce) -> int:
    """What the live runtime sends: a mean travels with its weight, a flat vector with its control elements."""
    tensor, me = effect.tensor, node.me
    if effect.op == "sum":
        return tensor.nbytes
    extra = CONTROL if tensor is me.params or tensor is me.grad else 1
    return tensor.nbytes + extra * tensor.itemsize


def _overlaps(intervals: Sequence[Interval], begun: float, ended: float) -> tuple[Sequence[Interval], float]:
    cut = [(max(start, begun), min(stop, ended)) for start, stop in intervals]
    found = [(start, stop) for start, stop in cut if stop > start]
    return found, sum(stop - start for start, stop in found)


@torch.no_grad()
def reduce_into_all(tensors: Sequence[Tensor], weights: Sequence[float], op: Literal["mean", "sum"]) -> None:
    """Weigh, add up in rank order, divide: in the live runtime's order, so that both agree to the last bit."""
    first, *others = tensors
    if not others or first.is_meta:
        return
    if op == "mean":
        for tensor, weight in zip(tensors, weights, strict=True):
            tensor.mul_(weight)
    for tensor in others:
        first.add_(tensor)
    if op == "mean" and sum(weights) != 1.0:
        first.div_(sum(weights))
    for tensor in others:
        tensor.copy_(first)


@torch.no_grad()
def broadcast(tensors: Sequence[Tensor], root: int) -> None:
    for rank, tensor in enumerate(tensors):
        if rank != root and not tensor.is_meta:
            tensor.copy_(tensors[root])
