"""Messages as bytes: a small typed header, then the raw tensor as the body. Pure: it does no I/O and holds no state.

Whatever comes from outside is checked against what may come; what does not fit is refused with a reason that can be
counted, and nothing else is ever raised.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paceline.runtimes.live.wire import layout
from paceline.runtimes.live.wire.kinds import DTYPES, KINDS, Expected, Refused, longest_header, typed_fields
from paceline.runtimes.live.wire.layout import STOP
from paceline.runtimes.live.wire.reading import (
    Announced,
    Frame,
    Landing,
    Letter,
    Memory,
    Reader,
    kind_of,
    new_memory,
)

__all__ = [
    "STOP",
    "Announced",
    "Expected",
    "Letter",
    "Packet",
    "Refused",
    "announce",
    "bytes_of",
    "kind_of",
    "new_memory",
    "nowhere",
    "pack",
]

LIMIT = 2**28
"""Bytes of a collective's tensor, the most that either end takes."""
_NOTHING = memoryview(b"")
Place = Callable[[Tensor], int | None]
"""Where in shared memory a tensor lies, or is put, in bytes from the start; None: it travels in frames."""


def nowhere(_: Tensor) -> None:
    """No memory is shared."""


class Packet(NamedTuple):
    """A message as it travels."""

    header: bytes
    body: memoryview
    """The bytes of its tensor where they lie; empty where it has none, or where it is in shared memory."""


def pack(message: Any, flags: int = 0, place: Place = nowhere) -> Packet:
    """The bytes of a message; its tensor must not change until they are sent."""
    kind: type = type(message)
    header = bytearray(layout.HEAD.pack(layout.MAGIC, layout.VERSION, KINDS.index(kind), flags))
    body = _NOTHING
    for name, type_ in typed_fields(kind):
        value = getattr(message, name)
        if type_ is Tensor:
            body = _pack_tensor(value, place(value), header)
        elif type_ is str:
            text = value.encode()
            header += layout.LENGTH.pack(len(text)) + text
        else:
            header += layout.NUMBERS[type_].pack(value)
    if len(header) > longest_header(kind):
        raise ValueError(
            f"a {kind.__name__} of {len(header):,} bytes is longer than {longest_header(kind):,}"
        )
    return Packet(bytes(header), body)


def announce(
    header: Frame, size: int, expected: Expected, memory: Memory | None = None, landing: Landing = new_memory
) -> Announced:
    """The message whose header has come and whose body has so many bytes, or Refused.

    The body is to be received into memory of ``landing``; a tensor that does not travel is a view of ``memory``.
    """
    return Reader(header, size, expected, memory, landing).announced()


def bytes_of(tensor: Tensor) -> memoryview:
    """A contiguous tensor's memory."""
    return tensor.view(-1).view(torch.uint8).numpy().data if tensor.numel() else _NOTHING


def _pack_tensor(tensor: Tensor, offset: int | None, header: bytearray) -> memoryview:
    code = DTYPES.index(tensor.dtype)
    if offset is not None:
        header += layout.TENSOR.pack(code, layout.IN_MEMORY, tensor.numel(), offset)
        return _NOTHING
    header += layout.TENSOR.pack(code, layout.IN_BODY, tensor.numel(), 0)
    return bytes_of(tensor.detach().cpu().contiguous())
