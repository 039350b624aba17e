"""Collectives in virtual time: they begin when the last worker has joined and end for all at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

import torch
from torch import Tensor

from paceline.codecs.base import Codec, Reduction
from paceline.codecs.reduction import NotFinite, run_together
from paceline.collectives.traffic import Bucket, broadcast_bytes, plan_buckets
from paceline.costs.collectives import (
    AllReduceCosts,
    Price,
    Traffic,
    add_traffic,
    through_server,
    tree_broadcast,
)
from paceline.errors import RunFailed
from paceline.runtimes.flat import CONTROL
from paceline.runtimes.virtual.node import Node, describe
from paceline.runtimes.virtual.simulation import Simulation
from paceline.runtimes.virtual.timeline import Interval, run_transfers
from paceline.strategies.base import SyncPoint
from paceline.strategies.effects import AllReduce, Broadcast, BucketedMean, Gradient


@dataclass(frozen=True, slots=True, eq=False)
class Transfers:
    """What travels in a collective, one price after the other: the buckets of a gradient, or one tensor."""

    prices: tuple[Price, ...]
    traffic: Traffic
    parts: tuple[float, ...] = ()
    """The part of backward after which each but the last is ready; the last waits for the end of backward."""
    root: int = 0
    coded: tuple[Bucket, ...] = ()
    """What a codec reduces."""
    coding: float = 0.0
    """Seconds of each worker, which cannot compute meanwhile."""


class VirtualCollectives:
    """The group of workers that act together; those that have joined a collective wait until the last one has.

    Where workers synchronize on request, a worker belongs to the group from when server 0 first sends to it until it
    is gone, and what the workers exchange goes through server 0. Else all workers belong to it all the time.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        prepared = simulation.prepared
        self._open = prepared.strategy.sync_point is SyncPoint.ON_REQUEST and bool(simulation.servers)
        self._members: Sequence[Node] = [] if self._open else simulation.workers
        self._last_members = self._members
        self._joined: list[Node] = []
        self._call: Any = None
        self._bucket_transfers, self._coded_transfers = cache(self._plan_buckets), cache(self._plan_coded)
        self._rounds = 0
        """Of whole vectors that a codec reduced."""
        self._codes = simulation.coding.compresses and not self._open and simulation.topology.count > 1
        self._price_all_reduce, self._price_broadcast = self._price_served, self._price_served
        self._traffic: Callable[[int, int], Traffic] = self._traffic_served
        if not self._open:
            topology = simulation.topology
            self._costs = costs = AllReduceCosts(prepared.settings.collective, topology)
            self._price_all_reduce, self._traffic = cache(costs.price), cache(costs.traffic)
            self._price_broadcast = cache(lambda size, _: tree_broadcast(topology, size))

    def admit(self, node: Node) -> None:
        """Add a worker to the group; one that belongs to it already may be added again."""
        if self._open and node not in self._members and not node.gone:
            self._members = sorted([*self._members, node], key=lambda one: one.peer.rank)

    def includes(self, node: Node) -> bool:
        return not self._open or node in self._members

    def remove(self, node: Node) -> None:
        """Take a worker out of the group; if the others waited for no other worker, they go on."""
        if not self._open or node not in self._members:
            return
        self._members = [worker for worker in self._members if worker is not node]
        if node in self._joined:
            self._joined.remove(node)
        elif self._joined and len(self._joined) == len(self._members):
            self._begin()

    @property
    def awaited(self) -> list[Node]:
        return [worker for worker in self._members if worker not in self._joined] if self._joined else []

    def share(self, node: Node) -> tuple[int, int]:
        """A worker's share of work as (which one, of how many): among those that last acted together."""
        return self._last_members.index(node), len(self._last_members)

    def join(self, node: Node, effect: Gradient | AllReduce | Broadcast) -> bool:
        """A worker waits for the others; of a gradient, backward is under way, and the buckets wait for theirs."""
        if isinstance(effect, Gradient):
            if effect.reduce is not node.mean or self._codes:
                node.mean, node.buckets = effect.reduce, self._find_buckets(node, effect.reduce)
            call = node.buckets
        else:
            node.begun = node.ended = node.me.now
            call = self._find_coded(node, effect) or _call(node, effect)
        node.waits_for = effect
        if self._call is None:
            self._call = call
        elif call is not self._call and call != self._call:
            other = next(worker for worker in self._members if worker.waits_for and worker is not node)
            raise RunFailed(
                f"the workers disagree on what to do: {node} waits for {describe(effect)} "
                f"at step {node.me.clock}, {other} for {describe(other.waits_for)} at step {other.me.clock}"
            )
        self._joined.append(node)
        if len(self._joined) == len(self._members):
            self._begin()
        return True

    def _begin(self) -> None:
        workers, call = self._members, self._call
        self._joined, self._call, self._last_members = [], None, workers
        if isinstance(call, Transfers):
            transfers = call
            self._rounds += type(workers[0].waits_for) is AllReduce
        else:
            _, size, element, _ = call
            transfers = self._plan(workers[0].waits_for, size, element)
        last = max([worker.ended for worker in workers])
        # Many workers are equal: each pair of times is compared once.
        backwards = {(worker.begun, worker.ended) for worker in workers}
        ready = [max([begun + (end - begun) * part for begun, end in backwards]) for part in transfers.parts]
        run_transfers(
            self._simulation.timeline,
            list(zip([*ready, last], transfers.prices, strict=True)),
            partial(self._end, workers, transfers, last),
        )

    def _find_buckets(self, node: Node, mean: BucketedMean | None) -> Transfers:
        assert mean is not None, "only what is reduced joins the others"
        if self._codes:
            return self._coded_transfers(self._simulation.coding.at(node.me.clock), mean)
        return self._bucket_transfers(mean)

    def _find_coded(self, node: Node, effect: AllReduce | Broadcast) -> Transfers | None:
        """Of a mean of whole gradients or parameters; None where it is exact."""
        whole = effect.tensor is node.me.params or effect.tensor is node.me.grad
        if not self._codes or not whole or isinstance(effect, Broadcast) or effect.op == "sum":
            return None
        return self._coded_transfers(self._simulation.coding.at(self._rounds + 1), None)

    def _plan_coded(self, codec: Codec, mean: BucketedMean | None) -> Transfers:
        """The control elements have a sum of their own: after the buckets, and before whole parameters."""
        shape, coding, costs = self._simulation.shape, self._simulation.coding, self._costs
        element, control = shape.dtype.itemsize, CONTROL * shape.dtype.itemsize
        buckets = [Bucket(0, shape.size, range(len(shape.parameters)))]
        if mean is not None:
            buckets = plan_buckets(shape.parameters, element, mean.first_bucket, mean.bucket)
        layouts = [shape.layout.between(one.start, one.stop) for one in buckets]
        workers = self._simulation.topology.count
        reductions = [coding.reduction(layout, shape.dtype, workers, codec) for layout in layouts]
        parts = (1.0,) * len(buckets)
        if mean is not None and self._simulation.topology.hides:
            parts = shape.filled(buckets)
        traffic = [*map(costs.traffic_coded, reductions), self._traffic(control, element)]
        return Transfers(
            prices=(*map(costs.price_coded, reductions), self._price_all_reduce(control, element)),
            traffic=add_traffic(traffic),
            parts=parts,
            coded=tuple(buckets),
            coding=sum(one.coding for one in reductions),
        )

    def _plan(self, effect: AllReduce | Broadcast, size: int, element: int) -> Transfers:
        if isinstance(effect, AllReduce):
            return Transfers((self._price_all_reduce(size, element),), self._traffic(size, element))
        # A root that is gone is replaced by the first worker.
        count = len(self._members)
        root = next((place for place, one in enumerate(self._members) if one.peer.rank == effect.root), 0)
        traffic = [broadcast_bytes(size, count, place, root) for place in range(count)]
        return Transfers((self._price_broadcast(size, 1),), traffic, root=root)

    def _plan_buckets(self, mean: BucketedMean) -> Transfers:
        shape = self._simulation.shape
        element = shape.dtype.itemsize
        buckets = plan_buckets(shape.parameters, element, mean.first_bucket, mean.bucket)
        sizes = [(bucket.stop - bucket.start) * element for bucket in buckets]
        sizes[-1] += CONTROL * element
        parts = shape.filled(buckets) if self._simulation.topology.hides else (1.0,) * len(buckets)
        return Transfers(
            prices=tuple(self._price_all_reduce(size, element) for size in sizes),
            traffic=add_traffic([self._traffic(size, element) for size in sizes]),
            parts=parts[:-1],
        )

    def _end(
        self, workers: Sequence[Node], transfers: Transfers, last: float, intervals: Sequence[Interval]
    ) -> None:
        total, end = _combine(workers, transfers), max(intervals[-1][1], last + transfers.coding)
        # The last transfer begins when the slowest backward is over, so a single one hides behind nothing.
        several = len(intervals) > 1
        ready = self._simulation.ready
        begun = ended = -1.0
        for worker, (sent, received) in zip(workers, transfers.traffic, strict=True):
            if worker.gone:
                continue
            if several and (worker.begun != begun or worker.ended != ended):
                hidden = _overlaps(intervals, worker.begun, worker.ended)
            begun, ended = worker.begun, worker.ended
            ledger, me = worker.ledger, worker.me
            ledger.exchange(ended, last - ended, end - last, sent, received)
            if several:
                ledger.overlap(*hidden)
            if total is not None:
                me.total_weight = total
            me.now = end
            worker.waits_for = None
            ready.append(worker)

    def _price_served(self, size: int, element: int) -> Price:  # noqa: ARG002
        simulation = self._simulation
        hosts = [worker.host for worker in self._members]
        return through_server(simulation.topology, hosts, simulation.servers[0].host, size)

    def _traffic_served(self, size: int, element: int) -> Traffic:  # noqa: ARG002
        return [(size, size)] * len(self._members)


def _call(node: Node, effect: AllReduce | Broadcast) -> tuple[type, int, int, str | int]:
    """What all workers must ask for alike, with the bytes that the live runtime sends.

    A mean travels with its weight, a flat vector with its control elements.
    """
    tensor, me = effect.tensor, node.me
    if isinstance(effect, Broadcast):
        return Broadcast, tensor.nbytes, tensor.itemsize, effect.root
    extra = 0 if effect.op == "sum" else CONTROL if tensor is me.params or tensor is me.grad else 1
    return AllReduce, tensor.nbytes + extra * tensor.itemsize, tensor.itemsize, effect.op


def _combine(workers: Sequence[Node], transfers: Transfers) -> float | None:
    """Do to the tensors what the workers wait for; return the total of their weights, where they have any."""
    effects = [worker.waits_for for worker in workers]
    first, coded = effects[0], transfers.coded and workers[0].compressor
    if type(first) is Gradient:
        if coded:
            _reduce_buckets(workers, transfers.coded)
        elif workers[0].replica is not None:
            reduce_into_all([worker.me.grad for worker in workers], (), "sum")
        return float(sum([worker.me.samples for worker in workers]))
    tensors = [effect.tensor for effect in effects]
    if type(first) is Broadcast:
        broadcast(tensors, transfers.root)
        for worker, tensor in zip(workers, tensors, strict=True):
            if worker.compressor and tensor is worker.me.params:
                worker.compressor.take_reference()
        return None
    weights: list[float] = [effect.weight for effect in effects]
    if coded:
        _reduce_whole(workers, weights)
    else:
        reduce_into_all(tensors, weights, first.op)
    for worker, tensor in zip(workers, tensors, strict=True):
        if tensor is worker.me.params:
            worker.me.samples_since_sync = 0
    return sum(weights)


def _reduce_buckets(workers: Sequence[Node], buckets: Sequence[Bucket]) -> None:
    total = sum([worker.me.samples for worker in workers])
    for bucket in buckets:
        programs = []
        for worker in workers:
            assert worker.compressor is not None
            share = worker.me.samples / total
            programs.append(worker.compressor.reduce_gradient(bucket.start, bucket.stop, share))
        _run_coded(workers, programs)


@torch.no_grad()
def _reduce_whole(workers: Sequence[Node], weights: Sequence[float]) -> None:
    programs = []
    for worker, weight in zip(workers, weights, strict=True):
        assert worker.compressor is not None
        share = weight / sum(weights)
        if worker.waits_for.tensor is worker.me.params:
            programs.append(worker.compressor.reduce_params(share))
        else:
            worker.me.grad.mul_(share)
            programs.append(worker.compressor.reduce_whole_gradient(share))
    _run_coded(workers, programs)


def _run_coded(workers: Sequence[Node], programs: Sequence[Reduction]) -> None:
    run_together([_refusing(worker, program) for worker, program in zip(workers, programs, strict=True)])


def _refusing(worker: Node, program: Reduction) -> Reduction:
    try:
        yield from program
    except NotFinite as error:
        me = worker.me
        raise worker.replica.diverged(f"on rank {me.rank} {error}", me.clock + 1) from error


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
