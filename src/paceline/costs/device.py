"""From operators to seconds on one device: a worker's step, and what a codec adds to it."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import prod
from typing import Protocol

import torch

from paceline.codecs.base import Codec


def elements(shapes):
    return sum(map(prod, shapes))


from paceline.costs.trace.operator import Operator
from paceline.costs.trace.trace import Trace, trace_function
from paceline.records.spans import StepBreakdown

PIECE = 2**30


class DeviceModel(Protocol):
    @property
    def spread(self) -> float:
        """Standard deviation of the logarithm of (measured / predicted) of a whole step, from its own residuals."""

    @property
    def unmeasured(self) -> Mapping[str, float]:
        """Within a step: its operators that were never measured, and their share of the step's time."""
        return {}

    def within(self, trace: Trace) -> "DeviceModel":  # noqa: ARG002
        """The device in the midst of this step, where that makes a difference to it."""
        return self

    def seconds(self, operator: Operator) -> float:
        """How long one call takes, its overhead included; never less than the device's peak allows."""


@dataclass(frozen=True, kw_only=True)
class StepCost:
    samples: int
    step: StepBreakdown
    ready: tuple[float, ...]
    """One a parameter, in the model's order: the part of backward after which its gradient is complete, 0 to 1."""
    spread: float
    unmeasured: Mapping[str, float] = field(default_factory=dict)
    """Operators that the device model never saw, by name: their share of the step's time."""


def accumulated(cost: StepCost, times: int) -> StepCost:
    """A step of ``times`` mini-batches, of which ``cost`` is one: only the last one's gradients are complete."""
    return replace(
        cost,
        samples=cost.samples * times,
        step=replace(cost.step * times, apply=cost.step.apply),
        ready=tuple((times - 1 + part) / times for part in cost.ready),
    )


def step_cost(trace: Trace, device: DeviceModel) -> StepCost:
    device = device.within(trace)
    done = list(accumulate(map(device.seconds, trace.backward), initial=0.0))
    total = done[-1] or 1.0
    return StepCost(
        samples=trace.samples,
        step=StepBreakdown(
            forward=sum(map(device.seconds, trace.forward)),
            backward=done[-1],
            apply=sum(map(device.seconds, trace.apply)),
        ),
        ready=tuple(done[parameter.ready] / total for parameter in trace.parameters),
        spread=device.spread,
        unmeasured=device.unmeasured,
    )


@dataclass(frozen=True, kw_only=True)
class Compression:
    """A codec on one model and one device; its bytes and its time are spread evenly over the model's bytes."""

    sums: bool = True
    ratio: float = 1.0
    """Bytes sent for a byte of the gradient; the rates are of such a byte too."""
    encode_rate: float = 0.0
    decode_rate: float = 0.0
    held_rate: float = 0.0
    """Bytes of memory a byte of the gradient that encoding or decoding takes, message and result included."""

    def message(self, size: int, element: int) -> int:
        """Bytes sent for ``size``, at least one element; a codec may send more than it was given."""
        return max(element, round(size * self.ratio)) if size else 0

    def coding(self, size: int, decoded: int = 1) -> float:
        """Seconds to encode one message and to decode some."""
        return size * (self.encode_rate + decoded * self.decode_rate)

    def held(self, size: int) -> int:
        return round(size * self.held_rate)


UNCOMPRESSED = Compression()


def compression_of(
    codec: Codec, shapes: Sequence[Sequence[int]], dtype: torch.dtype, timed: Callable[[Operator], float]
) -> Compression:
    """Trace the codec's own code on a model's parameters of these shapes, and time its operators."""
    total = elements(shapes) * dtype.itemsize
    asked = _as_seen(codec, shapes)
    encode = decode = held = 0.0
    for shape, many in Counter(map(tuple, asked)).items():
        message, encoding = trace_function(lambda: codec.encode(torch.empty(shape, dtype=dtype)))  # noqa: B023
        encode += many * sum(map(timed, encoding))
        _, decoding = trace_function(lambda: codec.decode(message, shape))  # noqa: B023
        decode += many * sum(map(timed, decoding))
        held += many * max((one.held for one in (*encoding, *decoding)), default=0)
    return Compression(
        sums=codec.sums,
        ratio=codec.message_bytes(asked, dtype.itemsize) / total,
        encode_rate=encode / total,
        decode_rate=decode / total,
        held_rate=held / total,
    )


def _as_seen(codec: Codec, shapes: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
    """As they are where a message of a matrix is another size than that of its numbers in a row; else in pieces."""
    largest = max(shapes, key=prod)
    if codec.message_bytes([largest], 4) != codec.message_bytes([(prod(largest),)], 4):
        return shapes
    whole, rest = divmod(elements(shapes), PIECE)
    return [(PIECE,)] * whole + [(rest,)] * (rest > 0)
