"""Messages as frames: a small typed header, then the raw tensors in pieces. Pure: it does no I/O and holds no state.

Whatever comes from outside is checked against what may come; what does not fit is refused with a reason that can be
counted, and nothing else is ever raised.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.runtimes.live.served import layout
from paceline.runtimes.live.served.kinds import DTYPES, KINDS, Expected, Refused, longest_header, typed_fields
from paceline.runtimes.live.served.layout import PIECE, STOP
from paceline.runtimes.live.served.reading import (
    Frame,
    Landing,
    Letter,
    Memory,
    Reader,
    kind_of,
    new_memory,
)

__all__ = [
    "PIECE",
    "STOP",
    "Expected",
    "Frame",
    "Letter",
    "Refused",
    "kind_of",
    "new_memory",
    "nowhere",
    "pack",
    "unpack",
]

Place = Callable[[Tensor], int | None]
"""Where in shared memory a tensor lies, or is put, in bytes from the start; None: it travels in frames."""


def nowhere(_: Tensor) -> None:
    """No memory is shared."""


def pack(message: Any, flags: int = 0, place: Place = nowhere) -> list[Frame]:
    """The frames of a message: bytes, then views of its tensors, which must not change until they are sent."""
    kind: type = type(message)
    header = bytearray(layout.HEAD.pack(layout.MAGIC, layout.VERSION, KINDS.index(kind), flags))
    pieces: list[Frame] = []
    for name, type_ in typed_fields(kind):
        value = getattr(message, name)
        if type_ is Tensor:
            _pack_tensor(value, place(value), header, pieces)
        elif type_ is str:
            text = value.encode()
            header += layout.LENGTH.pack(len(text)) + text
        else:
            header += layout.NUMBERS[type_].pack(value)
    if len(header) > longest_header(kind):
        raise ValueError(
            f"a {kind.__name__} of {len(header):,} bytes is longer than {longest_header(kind):,}"
        )
    return [bytes(header), *pieces]


def unpack(
    frames: Sequence[Frame], expected: Expected, memory: Memory | None = None, landing: Landing = new_memory
) -> Letter:
    """The message in frames that came, or Refused.

    Tensors that travelled in frames are copied into memory of ``landing``; the others are views of ``memory``.
    """
    if not frames:
        raise Refused("malformed")
    return Reader(memoryview(frames[0]), list(frames[1:]), expected, memory, landing).letter()


def _pack_tensor(tensor: Tensor, offset: int | None, header: bytearray, pieces: list[Frame]) -> None:
    code = DTYPES.index(tensor.dtype)
    if offset is not None:
        header += layout.TENSOR.pack(code, layout.IN_MEMORY, tensor.numel(), offset)
        return
    header += layout.TENSOR.pack(code, layout.IN_FRAMES, tensor.numel(), 0)
    plain = tensor.detach().cpu().contiguous().view(-1)
    if plain.numel():
        whole = plain.view(torch.uint8).numpy().data
        pieces += [whole[at : at + PIECE] for at in range(0, whole.nbytes, PIECE)]
