"""What a codec changes: fewer bytes on the links, and time to encode and decode them."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch

from paceline.codecs.base import Codec, elements
from paceline.costs.trace.operator import Operator
from paceline.costs.trace.trace import trace_function

PIECE = 2**30


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
