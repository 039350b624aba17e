"""A codec in virtual time: what its reductions cost and, where gradients are computed, the reductions themselves."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch

from paceline.codecs.base import Codec
from paceline.codecs.exchanges import Exchanges, Gathered, Reduction, exchange_all, run_programs
from paceline.codecs.reduction import NotFinite
from paceline.collectives.traffic import Bucket, plan_buckets
from paceline.costs.coding import CodedExchange, CodedReduction, exchange_of
from paceline.costs.collectives import AllReduceCosts, add_traffic
from paceline.runtimes.flat import CONTROL
from paceline.runtimes.virtual.node import Node, ReductionPart
from paceline.runtimes.virtual.simulation import Simulation
from paceline.runtimes.virtual.timeline import Transfers
from paceline.strategies.effects import AllReduce, Broadcast, BucketedMean, Gradient


@dataclass(frozen=True, slots=True, eq=False)
class CodedTransfers(Transfers):
    """Parts of the flat vector that are reduced, and then, where there are weights, their exact sum."""

    reductions: tuple[CodedReduction, ...] = ()


class CodedCollectives:
    """All workers reduce gradients, and the differences of parameters, by the programs of the run's codec."""

    def __init__(self, simulation: Simulation, costs: AllReduceCosts) -> None:
        self._simulation, self._costs = simulation, costs
        self._transfers = cache(self._plan)
        self._rounds = 0
        """Of whole vectors."""

    def buckets(self, node: Node, mean: BucketedMean) -> CodedTransfers:
        return self._transfers(self._simulation.coding.at(node.me.clock), mean)

    def whole(self, node: Node, effect: AllReduce | Broadcast) -> CodedTransfers | None:
        """Of a whole gradient, the mean of whole parameters, or a difference of them; None: it is sent exactly."""
        if isinstance(effect, Broadcast):
            return None
        me, mean = node.me, effect.op == "mean"
        whole = effect.tensor is me.grad or (mean and effect.tensor is me.params)
        if effect.offset is None and not whole:
            return None
        codec, start = self._simulation.coding.at(self._rounds + 1), effect.offset or 0
        return self._transfers(codec, None, mean, start, start + effect.tensor.numel())

    def _plan(
        self, codec: Codec, mean: BucketedMean | None, weighted: bool = True, start: int = 0, stop: int = 0
    ) -> CodedTransfers:
        """Of a gradient in buckets, or of the part of the vector from ``start`` to ``stop``."""
        shape, coding, topology = self._simulation.shape, self._simulation.coding, self._simulation.topology
        buckets = [Bucket(start, stop, range(0))]
        if mean is not None:
            buckets = plan_buckets(shape.parameters, shape.dtype.itemsize, mean.first_bucket, mean.bucket)
        hides = mean is not None and topology.hides
        parts = shape.filled(buckets) if hides else (1.0,) * len(buckets)
        layouts = [shape.layout.between(one.start, one.stop) for one in buckets]
        reductions = [coding.reduction(layout, shape.dtype, topology.count, codec) for layout in layouts]
        # The sum of the weights waits for backward, as the last bucket does.
        parts = parts if weighted else parts[:-1]
        return self._priced(CodedTransfers((), (), parts, buckets=tuple(buckets)), reductions)

    def _priced(self, transfers: CodedTransfers, reductions: Sequence[CodedReduction]) -> CodedTransfers:
        costs, element = self._costs, self._simulation.shape.dtype.itemsize
        prices, traffic = map(costs.price_coded, reductions), map(costs.traffic_coded, reductions)
        exact = [CONTROL * element] if len(transfers.parts) == len(transfers.buckets) else []
        return replace(
            transfers,
            prices=(*prices, *(costs.price(size, element) for size in exact)),
            traffic=add_traffic([*traffic, *(costs.traffic(size, element) for size in exact)]),
            computing=sum(one.coding for one in reductions),
            reductions=tuple(reductions),
        )

    def reduce(self, parts: Sequence[ReductionPart], transfers: CodedTransfers) -> CodedTransfers:
        """Reduce what the workers ask for, where it is computed; return the transfers, of which only data may tell."""
        self._rounds += isinstance(parts[0].effect, AllReduce)
        if parts[0].node.compressor is None:
            return transfers
        found = [_run(parts, bucket) for bucket in transfers.buckets]
        if not self._simulation.coding.codec.varies:
            return transfers
        pairs = zip(transfers.reductions, found, strict=True)
        return self._priced(transfers, [replace(one, exchanges=tuple(these)) for one, these in pairs])


@torch.no_grad()
def _run(parts: Sequence[ReductionPart], bucket: Bucket) -> list[CodedExchange]:
    """Reduce a bucket of all workers, in which a worker's weight is its share; return what each exchanges."""
    gradient = type(parts[0].effect) is Gradient
    weights = [part.node.me.samples if gradient else part.effect.weight for part in parts]
    programs = [
        _refusing(part, _program(part, bucket, weight / sum(weights)))
        for part, weight in zip(parts, weights, strict=True)
    ]
    found: list[CodedExchange] = []

    def exchange(exchanges: Exchanges) -> Gathered:
        assert exchanges[0] is not None
        found.append(exchange_of(exchanges[0]))
        return exchange_all(exchanges)

    run_programs(programs, exchange)
    return found


def _program(part: ReductionPart, bucket: Bucket, share: float) -> Reduction:
    me, compressor, effect = part.node.me, part.node.compressor, part.effect
    assert compressor is not None
    if type(effect) is Gradient:
        return compressor.reduce_gradient(bucket.start, bucket.stop)
    if effect.offset is not None:
        assert part.values is not None
        if effect.op == "mean":
            part.values.mul_(share)
        return compressor.reduce_update(part.values, effect.offset)
    if effect.tensor is me.params:
        return compressor.reduce_params(share)
    if effect.op == "mean":
        me.grad.mul_(share)
    return compressor.reduce_whole_gradient()


def _refusing(part: ReductionPart, program: Reduction) -> Reduction:
    try:
        yield from program
    except NotFinite as error:
        raise part.node.replica.not_finite(error, part.node.me, part.effect, part.clock) from error
