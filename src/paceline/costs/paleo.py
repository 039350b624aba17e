"""Paleo's model of a training step (Qi, Sparks and Talwalkar, 2017): forward, backward, apply and communication.

A layer costs its operations and the numbers that pass through memory. Batch norm, activations, biases, softmax and
concatenation are nothing here. A backward costs what its two gradients, each written as a layer of its own, would; a
convolution of the data itself needs no gradient of its inputs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import NamedTuple

from paceline.clusters.catalogue import DeviceSheet
from paceline.costs.trace.operator import Attention, Convolution, Operator, Product, Recurrence, Window
from paceline.costs.trace.trace import Trace
from paceline.errors import UsageError
from paceline.records.spans import StepBreakdown

DROPOUT = ("native_dropout", "bernoulli_", "dropout")
"""The operators that stand for dropout, of which one is called a layer."""
NUMBER = 4
"""Bytes of a number; Paleo knows no other."""
UNIT = 2**30 / 1e9
"""Paleo takes the GB/s of a memory for GiB/s; those of a network are decimal."""
VARIANTS: Mapping[str, str] = MappingProxyType(
    {"inception-v3": "inception-v3:version=paleo", "vgg16": "vgg16:dense=convolution"}
)
"""The networks that Paleo ships, where it writes them in another way than usual."""


def _height(workers: int) -> int:
    return (workers - 1).bit_length()


SCHEMES: Mapping[str, Callable[[int], float]] = MappingProxyType(
    {
        "one-to-all": lambda workers: 2 * (workers - 1),
        "tree": lambda workers: 2 * _height(workers),
        "butterfly": _height,
    }
)
"""Ways to add gradients up, and how many times all of them cross a link, by the number of workers."""


class PaleoWork(NamedTuple):
    flops: float
    numbers: float


class PaleoLayer(NamedTuple):
    layer: str
    kind: str
    forward: float
    backward: float


@dataclass(frozen=True, kw_only=True)
class Paleo:
    """A device and a network, each at one platform percentage of its peak."""

    device: DeviceSheet
    bandwidth: float
    compute: float = 1.0
    network: float = 1.0

    def __post_init__(self) -> None:
        for setting, share in (("ppp-comp", self.compute), ("ppp-comm", self.network)):
            if not 0 < share <= 1:
                raise UsageError(
                    f"{setting} {share:g} is out of range: a part of the peak is above 0 and at most 1, such as 0.62"
                )

    def at_peak(self, *works: PaleoWork) -> float:
        flops, numbers = sum(work.flops for work in works), sum(work.numbers for work in works)
        return flops / self.device.flops + numbers * NUMBER / (self.device.bandwidth * UNIT)


def paleo_step(model: Paleo, trace: Trace, workers: int = 1, scheme: str = "butterfly") -> StepBreakdown:
    """One step of ``workers``, each on the traced batch; nothing overlaps."""
    layers = paleo_layers(model, trace)
    crossings = SCHEMES[scheme](workers) if workers > 1 else 0.0
    return StepBreakdown(
        forward=sum(layer.forward for layer in layers),
        backward=sum(layer.backward for layer in layers),
        apply=model.at_peak(PaleoWork(2 * trace.size, 3 * trace.size)),
        communicate=crossings * NUMBER * trace.size / model.bandwidth / model.network,
    )


def paleo_layers(model: Paleo, trace: Trace) -> list[PaleoLayer]:
    # Only the backward of a convolution of the data itself gives no gradient of its input.
    backward = (one for one in trace.backward if isinstance(one.shape, Convolution) and not one.shape.data)
    firsts = {operator.module for operator in backward}
    found = []
    for operator in trace.forward:
        if works := _work(operator, operator.module in firsts):
            forward, *gradients = works
            seconds = model.at_peak(forward) / model.compute, model.at_peak(*gradients) / model.compute
            found.append(PaleoLayer(operator.module or operator.name, operator.kind, *seconds))
    return found


def _work(operator: Operator, first: bool) -> list[PaleoWork]:
    match operator.shape:
        case Convolution() as shape:
            works = [_convolution(shape), _filter_gradient(shape), _data_gradient(shape)]
            return works[:2] if first else works
        case Product() as shape:  # inputs, weights and outputs, once each
            numbers = shape.m * shape.k + shape.k * shape.n + shape.m * shape.n
            return 3 * [PaleoWork(2 * shape.batch * shape.m * shape.n * shape.k, shape.batch * numbers)]
        case Window() as shape if operator.kind == "pool":  # two operations a number under the window
            planes, out = shape.batch * shape.channels, prod(shape.out)
            return 2 * [PaleoWork(2 * prod(shape.kernel) * out * planes, planes * (prod(shape.size) + out))]
        case None if operator.name in DROPOUT:
            return 2 * [PaleoWork(operator.elements, 2 * operator.elements)]
        case Attention() | Recurrence():  # after Paleo's time: products that are never written to memory
            return 3 * [PaleoWork(operator.flops, (operator.read + operator.written) / 4)]
    return []


def _convolution(shape: Convolution) -> PaleoWork:
    padded = prod(size + 2 * pad for size, pad in zip(shape.size, shape.padding, strict=True))
    numbers = shape.batch * padded * shape.inputs + _filter(shape) + _outputs(shape)
    return PaleoWork(2 * _filter(shape) * prod(shape.out) * shape.batch, numbers)


def _data_gradient(shape: Convolution) -> PaleoWork:
    """A convolution of stride 1 over the output's gradient, which is spread out by the stride.

    All windows are computed, gaps or not; where there are gaps, every number that is none is moved besides.
    """
    spread = _spread(shape)
    moved = 2 * _outputs(shape) if prod(side for side, _ in spread) > prod(shape.out) else 0
    padded = prod(side + 2 * pad for side, pad in spread)
    size = shape.batch * prod(shape.size)
    numbers = shape.batch * padded * shape.outputs + _filter(shape) + size * shape.inputs
    return PaleoWork(2 * _filter(shape) * size + moved, numbers)


def _filter_gradient(shape: Convolution) -> PaleoWork:
    """The inputs convolved with the spread-out gradient as their filter; its gaps are not counted."""
    pads = [pad for _, pad in _spread(shape)] if any(shape.padding) else [0, 0]
    padded = prod(size + 2 * pad for size, pad in zip(shape.size, pads, strict=True))
    numbers = shape.inputs * padded * shape.batch + _outputs(shape) + _filter(shape)
    return PaleoWork(2 * _filter(shape) * prod(shape.out) * shape.batch, numbers)


def _filter(shape: Convolution) -> int:
    return prod(shape.kernel) * (shape.inputs // shape.groups) * shape.outputs


def _outputs(shape: Convolution) -> int:
    return shape.batch * prod(shape.out) * shape.outputs


def _spread(shape: Convolution) -> list[tuple[int, int]]:
    """How tall and wide the output's gradient is when spread out by the stride, each with its padding."""
    found = []
    for size, out, kernel, stride, padding in zip(
        shape.size, shape.out, shape.kernel, shape.stride, shape.padding, strict=True
    ):
        spread = (out - 1) * stride + 1
        before = kernel - 1 - padding
        after = size + kernel - 1 - spread - before
        if abs(before - after) == 1:
            spread += 1  # the gradient itself is made longer, so that both sides are padded alike
        found.append((spread, max(0, min(before, after))))
    return found


def as_paleo(model: str) -> str:
    return VARIANTS.get(model, model)
