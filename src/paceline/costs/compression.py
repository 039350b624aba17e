"""What a codec changes: fewer bytes on the links, and time to encode and decode them."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

import torch

from paceline.codecs.base import Codec, elements
from paceline.costs.trace.operator import Operator
from paceline.costs.trace.trace import trace_function

PIECE = 2**30
"""Numbers of a gradient that are encoded at once."""


class Compression(Protocol):
    """What becomes of a tensor of a model on its way."""

    @property
    def sums(self) -> bool:
        """As the codec's."""

    def message(self, size: int, element: int) -> int:
        """Bytes that stand for ``size`` bytes in elements of ``element`` bytes."""

    def encode(self, size: int) -> float:
        """Seconds to encode so many bytes."""

    def decode(self, size: int) -> float:
        """Seconds to decode what stands for so many bytes."""

    def held(self, size: int) -> int:
        """Bytes of memory that encoding or decoding so many takes, the message and the result among them."""


class Whole:
    """Nothing is encoded."""

    sums = True

    def message(self, size: int, element: int) -> int:  # noqa: ARG002
        """All of it."""
        return size

    def encode(self, size: int) -> float:  # noqa: ARG002
        """None."""
        return 0.0

    def decode(self, size: int) -> float:  # noqa: ARG002
        """None."""
        return 0.0

    def held(self, size: int) -> int:  # noqa: ARG002
        """None."""
        return 0


@dataclass(frozen=True, kw_only=True)
class Coded:
    """A codec on one model and one device; its bytes and its time are spread evenly over the model's bytes."""

    sums: bool
    ratio: float
    """Bytes sent for a byte of the gradient."""
    encode_rate: float
    """Seconds a byte of the gradient."""
    decode_rate: float
    held_rate: float
    """Bytes of memory a byte of the gradient."""

    def message(self, size: int, element: int) -> int:
        """At least one element; a codec may send more than it was given, and then it does."""
        return max(element, round(size * self.ratio)) if size else 0

    def encode(self, size: int) -> float:
        """In proportion."""
        return size * self.encode_rate

    def decode(self, size: int) -> float:
        """In proportion."""
        return size * self.decode_rate

    def held(self, size: int) -> int:
        """In proportion."""
        return round(size * self.held_rate)


def compression_of(
    codec: Codec, shapes: Sequence[Sequence[int]], dtype: torch.dtype, timed: Callable[[Operator], float]
) -> Coded:
    """Trace the codec's own code on a model's parameters of these shapes, and time its operators.

    Codecs that see a gradient as one vector are given it so, in pieces where it is very long; those that see matrices
    get each parameter in its shape.
    """
    total = elements(shapes) * dtype.itemsize
    asked = shapes if _sees_matrices(codec, shapes) else _pieces(elements(shapes))
    encode = decode = held = 0.0
    for shape, many in Counter(map(tuple, asked)).items():
        message, encoding = trace_function(lambda: codec.encode(torch.empty(shape, dtype=dtype)))  # noqa: B023
        encode += many * sum(map(timed, encoding))
        _, decoding = trace_function(lambda: codec.decode(message, shape))  # noqa: B023
        decode += many * sum(map(timed, decoding))
        held += many * max((one.held for one in (*encoding, *decoding)), default=0)
    return Coded(
        sums=codec.sums,
        ratio=codec.message_bytes(asked, dtype.itemsize) / total,
        encode_rate=encode / total,
        decode_rate=decode / total,
        held_rate=held / total,
    )


def _pieces(count: int) -> list[tuple[int]]:
    whole, rest = divmod(count, PIECE)
    return [(PIECE,)] * whole + [(rest,)] * (rest > 0)


def _sees_matrices(codec: Codec, shapes: Sequence[Sequence[int]]) -> bool:
    """Whether a message of a matrix is another size than that of its numbers in a row."""
    largest = max(shapes, key=prod)
    return codec.message_bytes([largest], 4) != codec.message_bytes([(prod(largest),)], 4)
