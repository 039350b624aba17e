"""Paleo's model of a training step (Qi, Sparks and Talwalkar, 2017): forward, backward, apply and communication.

A layer costs its operations and the numbers that pass through memory. Batch norm, activations, biases, softmax and
concatenation are nothing here. A backward costs what its two gradients, each written as a layer of its own, would; a
convolution of the data itself needs no gradient of its inputs.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from paceline.clusters.catalogue import DeviceSheet
from paceline.costs.trace.operator import Attention, Convolution, Operator, Product, Recurrence, Window
from paceline.costs.trace.trace import Trace
from paceline.errors import UsageError

DROPOUT = ("native_dropout", "bernoulli_", "dropout")
"""The operators that stand for dropout, of which one is called a layer."""


@dataclass(frozen=True, slots=True)
class PaleoWork:
    """Operations, and 4-byte numbers read or written."""

    flops: float = 0.0
    numbers: float = 0.0

    def __add__(self, other: "PaleoWork") -> "PaleoWork":
        return PaleoWork(self.flops + other.flops, self.numbers + other.numbers)


NOTHING = PaleoWork()


@dataclass(frozen=True, slots=True)
class LayerWork:
    """One layer, both ways."""

    layer: str
    """The module's dotted path, or the operator's name outside of any."""
    kind: str
    forward: PaleoWork
    backward: PaleoWork


def layer_work(operator: Operator, first: bool = False) -> LayerWork | None:
    """What Paleo counts for an operator of forward, the first layer or a later one; None where it counts nothing."""
    match operator.shape:
        case Convolution() as shape:
            forward, backward = convolution(shape), filter_gradient(shape)
            if not first:
                backward += data_gradient(shape)
        case Product() as shape:
            forward = product(shape)
            backward = forward + forward
        case Window() as shape if operator.kind == "pool":
            forward = backward = pooling(shape)
        case None if operator.name in DROPOUT:
            forward = backward = PaleoWork(operator.elements, 2 * operator.elements)
        case Attention() | Recurrence():  # after Paleo's time: products that are never written to memory
            forward = PaleoWork(operator.flops, (operator.read + operator.written) / 4)
            backward = forward + forward
        case _:
            return None
    return LayerWork(operator.module or operator.name, operator.kind, forward, backward)


def convolution(shape: Convolution) -> PaleoWork:
    """A matrix product over all windows; the padding of its inputs is read as well."""
    height, width = shape.height + 2 * shape.padding_height, shape.width + 2 * shape.padding_width
    return PaleoWork(
        2 * _filter(shape) * shape.out_height * shape.out_width * shape.batch,
        shape.batch * height * width * shape.inputs + _filter(shape) + _outputs(shape),
    )


def data_gradient(shape: Convolution) -> PaleoWork:
    """A convolution of stride 1 over the output's gradient, which is spread out by the stride.

    All windows are computed, gaps or not; where there are gaps, every number that is none is moved besides.
    """
    (rows, pad_rows), (columns, pad_columns) = _spread(shape)
    moved = 2 * _outputs(shape) if rows * columns > shape.out_height * shape.out_width else 0
    return PaleoWork(
        2 * _filter(shape) * shape.height * shape.width * shape.batch + moved,
        shape.batch * (rows + 2 * pad_rows) * (columns + 2 * pad_columns) * shape.outputs
        + _filter(shape)
        + shape.batch * shape.height * shape.width * shape.inputs,
    )


def filter_gradient(shape: Convolution) -> PaleoWork:
    """The inputs convolved with the spread-out gradient as their filter; its gaps are not counted."""
    (_, pad_rows), (_, pad_columns) = _spread(shape)
    if not (shape.padding_height or shape.padding_width):
        pad_rows = pad_columns = 0
    height, width = shape.height + 2 * pad_rows, shape.width + 2 * pad_columns
    return PaleoWork(
        2 * _filter(shape) * shape.out_height * shape.out_width * shape.batch,
        shape.inputs * height * width * shape.batch + _outputs(shape) + _filter(shape),
    )


def product(shape: Product) -> PaleoWork:
    """Inputs, weights and outputs, once each."""
    flops = 2 * shape.batch * shape.m * shape.n * shape.k
    return PaleoWork(flops, shape.batch * (shape.m * shape.k + shape.k * shape.n + shape.m * shape.n))


def pooling(shape: Window) -> PaleoWork:
    """Two operations a number under the window, maximum or mean."""
    planes = shape.batch * shape.channels
    out = shape.out_height * shape.out_width
    return PaleoWork(
        2 * shape.kernel_height * shape.kernel_width * out * planes,
        planes * (shape.height * shape.width + out),
    )


def _filter(shape: Convolution) -> int:
    return shape.kernel_height * shape.kernel_width * (shape.inputs // shape.groups) * shape.outputs


def _outputs(shape: Convolution) -> int:
    return shape.batch * shape.out_height * shape.out_width * shape.outputs


def _spread(shape: Convolution) -> tuple[tuple[int, int], tuple[int, int]]:
    """How tall and wide the output's gradient is when spread out by the stride, each with its padding."""
    return (
        _spread_side(
            shape.height, shape.out_height, shape.kernel_height, shape.stride_height, shape.padding_height
        ),
        _spread_side(
            shape.width, shape.out_width, shape.kernel_width, shape.stride_width, shape.padding_width
        ),
    )


def _spread_side(size: int, out: int, kernel: int, stride: int, padding: int) -> tuple[int, int]:
    spread = (out - 1) * stride + 1
    before = kernel - 1 - padding
    after = size + kernel - 1 - spread - before
    if (
        abs(before - after) == 1
    ):  # the gradient itself is made one longer, so that both sides are padded alike
        spread += 1
    return spread, max(0, min(before, after))


NUMBER = 4
"""Bytes of a number; Paleo knows no other."""
UNIT = 2**30 / 1e9
"""Paleo takes the GB/s of a memory for GiB/s; those of a network are decimal."""


@dataclass(frozen=True, kw_only=True)
class Paleo:
    """A device and a network, each at one platform percentage of its peak."""

    device: DeviceSheet
    bandwidth: float
    """The network's, bytes a second."""
    compute: float = 1.0
    """Part of the device's peak, operations and memory alike, that is reached; higher is faster."""
    network: float = 1.0
    """Part of the network's peak that is reached."""

    def __post_init__(self) -> None:
        for setting, share in (("ppp-comp", self.compute), ("ppp-comm", self.network)):
            if not 0 < share <= 1:
                raise UsageError(
                    f"{setting} {share:g} is out of range: a part of the peak is above 0 and at most 1, such as 0.62"
                )

    def seconds(self, work: PaleoWork) -> float:
        """How long the device needs: operations, then memory."""
        return self._at_peak(work) / self.compute

    def apply(self, size: int) -> float:
        """Two operations and three passes a parameter, at the device's peak."""
        return self._at_peak(PaleoWork(2 * size, 3 * size))

    def exchange(self, scheme: str, workers: int, size: int) -> float:
        """How long it takes to add up the gradients of ``size`` parameters."""
        return SCHEMES[scheme](workers) * NUMBER * size / self.bandwidth / self.network

    def _at_peak(self, work: PaleoWork) -> float:
        return work.flops / self.device.flops + work.numbers * NUMBER / (self.device.bandwidth * UNIT)


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


@dataclass(frozen=True, kw_only=True)
class PaleoLayer:
    """A row of Paleo's per-layer table."""

    layer: str
    kind: str
    forward: float
    backward: float


@dataclass(frozen=True, kw_only=True)
class PaleoStep:
    """A row of Paleo's table, in seconds."""

    workers: int
    batch: int
    """Samples a worker."""
    forward: float
    backward: float
    apply: float
    communication: Mapping[str, float]
    """By scheme."""

    @property
    def compute(self) -> float:
        return self.forward + self.backward + self.apply

    def step(self, scheme: str) -> float:
        """All of it: nothing overlaps."""
        return self.compute + self.communication[scheme]


def paleo_step(model: Paleo, trace: Trace, workers: int) -> PaleoStep:
    """One step of ``workers``, each on the traced batch."""
    layers = list(_layers(trace))
    return PaleoStep(
        workers=workers,
        batch=trace.samples,
        forward=sum(model.seconds(layer.forward) for layer in layers),
        backward=sum(model.seconds(layer.backward) for layer in layers),
        apply=model.apply(trace.size),
        communication={scheme: model.exchange(scheme, workers, trace.size) for scheme in SCHEMES},
    )


def paleo_layers(model: Paleo, trace: Trace) -> list[PaleoLayer]:
    """The layers in order; those that cost nothing are left out."""
    return [
        PaleoLayer(
            layer=layer.layer,
            kind=layer.kind,
            forward=model.seconds(layer.forward),
            backward=model.seconds(layer.backward),
        )
        for layer in _layers(trace)
    ]


def _layers(trace: Trace) -> Iterable[LayerWork]:
    firsts = {operator.module for operator in trace.backward if _takes_data(operator)}
    works = (layer_work(operator, operator.module in firsts) for operator in trace.forward)
    return (work for work in works if work is not None)


def _takes_data(operator: Operator) -> bool:
    """Whether a backward is that of a convolution of the data itself."""
    return isinstance(operator.shape, Convolution) and not operator.shape.data


VARIANTS: Mapping[str, str] = MappingProxyType(
    {"inception-v3": "inception-v3:version=paleo", "vgg16": "vgg16:dense=convolution"}
)
"""The networks that come with Paleo and are there written another way than usual."""


def as_paleo(model: str) -> str:
    """A model's spec, in Paleo's own version where it has one and no settings ask for another."""
    return VARIANTS.get(model, model)
