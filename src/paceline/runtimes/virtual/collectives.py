"""Collectives in virtual time: they begin when the last worker has joined and end for all at once."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Literal

import torch
from torch import Tensor

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
from paceline.runtimes.noise_scale import in_buckets, squared_norm
from paceline.runtimes.virtual.background import BackgroundReductions
from paceline.runtimes.virtual.coded import CodedCollectives, CodedTransfers
from paceline.runtimes.virtual.node import Node, ReductionPart, describe
from paceline.runtimes.virtual.simulation import Simulation
from paceline.runtimes.virtual.timeline import Interval, Transfers, run_transfers
from paceline.strategies.base import SyncPoint
from paceline.strategies.effects import (
    AllReduce,
    Broadcast,
    BucketedMean,
    Gradient,
    StartAllReduce,
    Wait,
)


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
        self._bucket_transfers = cache(self._plan_buckets)
        self._background = BackgroundReductions(simulation, self._carry_out)
        self._coded: CodedCollectives | None = None
        """Where workers have a codec, and others to send messages to."""
        self._price_all_reduce, self._price_broadcast = self._price_served, self._price_served
        self._traffic: Callable[[int, int], Traffic] = self._traffic_served
        if not self._open:
            topology = simulation.topology
            costs = AllReduceCosts(prepared.settings.collective, topology)
            self._price_all_reduce, self._traffic = cache(costs.price), cache(costs.traffic)
            self._price_broadcast = cache(lambda size, _: tree_broadcast(topology, size))
            if simulation.coding.compresses and topology.count > 1:
                self._coded = CodedCollectives(simulation, costs)

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
            assert effect.reduce is not None, "what is not reduced waits for nobody"
            if self._coded is not None:
                node.buckets = self._coded.buckets(node, effect.reduce)
            elif effect.reduce is not node.mean:
                node.mean, node.buckets = effect.reduce, self._bucket_transfers(effect.reduce)
            call = node.buckets
        else:
            node.begun = node.ended = node.me.now
            call = (self._coded and self._coded.whole(node, effect)) or _call(node, effect)
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

    def start(self, node: Node, effect: StartAllReduce) -> bool:
        return self._background.start(node, effect, _call(node, effect))

    def wait(self, node: Node, effect: Wait) -> bool:
        return self._background.wait(node, effect)

    def _carry_out(self, parts: Sequence[ReductionPart]) -> tuple[Transfers, float]:
        """Reduce what the workers have started."""
        effect, weights = parts[0].effect, [part.effect.weight for part in parts]
        transfers = self._coded and self._coded.whole(parts[0].node, effect)
        if self._coded and transfers and effect.offset is not None:
            return self._coded.reduce(parts, transfers), sum(weights)
        _reduce_exactly([part.values for part in parts if part.values is not None], weights, effect)
        _, size, element, _ = _call(parts[0].node, effect)
        return self._plan(effect, size, element), sum(weights)

    def _begin(self) -> None:
        workers, call = self._members, self._call
        self._joined, self._call, self._last_members = [], None, workers
        if isinstance(call, Transfers):
            transfers = call
            if isinstance(call, CodedTransfers) and self._coded is not None:
                parts = [ReductionPart.of(one, one.waits_for, _tensor(one.waits_for)) for one in workers]
                transfers = self._coded.reduce(parts, call)
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

    def _plan(self, effect: AllReduce | Broadcast, size: int, element: int) -> Transfers:
        if isinstance(effect, AllReduce):
            # The weights of differences go first: a worker sends its share of the mean.
            weighted = effect.offset is not None and effect.op == "mean"
            sizes = (CONTROL * element, size) if weighted else (size,)
            return Transfers(
                tuple(self._price_all_reduce(one, element) for one in sizes),
                add_traffic([self._traffic(one, element) for one in sizes]),
                parts=(1.0,) * weighted,
            )
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
            buckets=tuple(buckets),
        )

    def _end(
        self, workers: Sequence[Node], transfers: Transfers, last: float, intervals: Sequence[Interval]
    ) -> None:
        total, end = _combine(workers, transfers), max(intervals[-1][1], last + transfers.computing)
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


def _call(node: Node, effect: AllReduce | Broadcast) -> tuple[type, int, int, object]:
    """What all workers must ask for alike, with the bytes that the live runtime sends.

    A mean travels with its weight, a flat vector with its control elements; those of a difference go first.
    """
    tensor, me = effect.tensor, node.me
    if isinstance(effect, Broadcast):
        return Broadcast, tensor.nbytes, tensor.itemsize, effect.root
    flat = type(effect) is AllReduce and (tensor is me.params or tensor is me.grad)
    extra = 0 if effect.op == "sum" or effect.offset is not None else CONTROL if flat else 1
    return AllReduce, tensor.nbytes + extra * tensor.itemsize, tensor.itemsize, (effect.op, effect.offset)


def _tensor(effect: Gradient | AllReduce) -> Tensor | None:
    return None if isinstance(effect, Gradient) else effect.tensor


def _combine(workers: Sequence[Node], transfers: Transfers) -> float | None:
    """Do to the tensors what the workers wait for; return the total of their weights, where they have any.

    What is encoded has been reduced already.
    """
    effects = [worker.waits_for for worker in workers]
    first, coded = effects[0], isinstance(transfers, CodedTransfers)
    if type(first) is Gradient:
        if workers[0].replica is not None and not coded:
            _reduce_gradients(workers, transfers.buckets)
        return float(sum([worker.me.samples for worker in workers]))
    tensors = [effect.tensor for effect in effects]
    if type(first) is Broadcast:
        broadcast(tensors, transfers.root)
        for worker, tensor in zip(workers, tensors, strict=True):
            if worker.compressor and tensor is worker.me.params:
                worker.compressor.take_reference()
        return None
    weights: list[float] = [effect.weight for effect in effects]
    if not coded:
        _reduce_exactly(tensors, weights, first)
    for worker, tensor in zip(workers, tensors, strict=True):
        if tensor is worker.me.params or first.offset is not None:
            worker.me.samples_since_sync = 0
    return sum(weights)


def _reduce_gradients(workers: Sequence[Node], buckets: Sequence[Bucket]) -> None:
    """Add up the workers' shares of the mean; in some steps the first worker compares them with it."""
    grads = [worker.me.grad for worker in workers]
    first = workers[0]
    if len(workers) < 2 or not first.replica.noise.due(first.me.clock):
        reduce_into_all(grads, (), "sum")
        return
    total = sum([worker.me.samples for worker in workers])
    pairs = zip(workers, grads, strict=True)
    # One tensor each, and added as the gradients are, so that live workers get the same to the last bit.
    squares = [
        squared_norm(in_buckets(grad, buckets)) / (worker.me.samples / total) ** 2 for worker, grad in pairs
    ]
    reduce_into_all([*grads], (), "sum")
    reduce_into_all(squares, (), "sum")
    first.replica.noise.compare_workers(float(squares[0]), first.me.grad)


def _overlaps(intervals: Sequence[Interval], begun: float, ended: float) -> tuple[Sequence[Interval], float]:
    cut = [(max(start, begun), min(stop, ended)) for start, stop in intervals]
    found = [(start, stop) for start, stop in cut if stop > start]
    return found, sum(stop - start for start, stop in found)


@torch.no_grad()
def _reduce_exactly(tensors: Sequence[Tensor], weights: Sequence[float], effect: AllReduce) -> None:
    if effect.offset is None or effect.op == "sum" or len(tensors) == 1:
        reduce_into_all(tensors, weights, effect.op)
        return
    for tensor, weight in zip(tensors, weights, strict=True):
        tensor.mul_(weight / sum(weights))
    reduce_into_all(tensors, (), "sum")


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
