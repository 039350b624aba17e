"""What Paleo (Qi, Sparks and Talwalkar, 2017) counts for a layer: operations, and numbers that pass through memory.

Batch norm, activations, biases, softmax and concatenation are nothing here. A backward costs what its two gradients,
each written as a layer of its own, would; a convolution of the data itself needs no gradient of its inputs.
"""

from dataclasses import dataclass

from paceline.costs.trace.operator import Attention, Convolution, Operator, Product, Recurrence, Window

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
