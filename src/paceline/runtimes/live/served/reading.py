"""Reads a message that came from outside, and trusts nothing in it."""

from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from paceline.runtimes.live.served import layout
from paceline.runtimes.live.served.kinds import (
    DTYPES,
    KINDS,
    Expected,
    Refused,
    longest_header,
    lowest,
    typed_fields,
)
from paceline.runtimes.live.served.layout import PIECE, STOP

Frame = bytes | bytearray | memoryview


class Letter(NamedTuple):
    """A message and its flags."""

    flags: int
    message: Any


class Memory(Protocol):
    """Memory that both ends map."""

    def view(self, offset: int, length: int, dtype: torch.dtype) -> Tensor:
        """The tensor that lies there, or Refused."""


LARGEST = 2**40
"""What a number may be: sums of many of them still fit into 64 bits."""

Landing = Callable[[type, int, torch.dtype], Tensor]
"""The memory that a message's tensor is received into, given its kind, length and type."""


def new_memory(_: type, length: int, dtype: torch.dtype) -> Tensor:
    """Memory of its own for every tensor."""
    return torch.empty(length, dtype=dtype)


def kind_of(header: Frame) -> type:
    """The kind of message that a first frame announces, or Refused."""
    if len(header) < layout.HEAD.size:
        raise Refused("malformed")
    magic, version, number, _ = layout.HEAD.unpack_from(header)
    if magic != layout.MAGIC:
        raise Refused("malformed")
    if version != layout.VERSION:
        raise Refused("other version")
    if number >= len(KINDS):
        raise Refused("unknown kind")
    kind: type = KINDS[number]
    return kind


class Reader:
    """Reads one message, field by field."""

    def __init__(
        self,
        header: memoryview,
        pieces: list[Frame],
        expected: Expected,
        memory: Memory | None,
        landing: Landing,
    ) -> None:
        self._header, self._pieces, self._at = header, pieces, layout.HEAD.size
        self._expected, self._memory, self._landing = expected, memory, landing

    def letter(self) -> Letter:
        """The message, or Refused."""
        kind = kind_of(self._header)
        if kind not in self._expected.kinds:
            raise Refused("unexpected kind")
        if len(self._header) > longest_header(kind) or any(len(piece) > PIECE for piece in self._pieces):
            raise Refused("too large")
        flags = layout.HEAD.unpack_from(self._header)[3]
        values = [self._value(kind, name, type_) for name, type_ in typed_fields(kind)]
        if self._at != len(self._header) or self._pieces or flags & ~STOP:
            raise Refused("malformed")
        return Letter(flags, kind(*values))

    def _value(self, kind: type, name: str, type_: type) -> Any:
        if type_ is Tensor:
            return self._tensor(kind)
        if type_ is str:
            return self._text()
        (value,) = self._take(layout.NUMBERS[type_])
        if type_ is bool:
            if value > 1:
                raise Refused("malformed")
            return bool(value)
        if not lowest(kind, name) <= value <= LARGEST:
            raise Refused("out of range")
        return value

    def _text(self) -> str:
        (length,) = self._take(layout.LENGTH)
        text = bytes(self._header[self._at : self._at + length])
        self._at += length
        if len(text) != length:
            raise Refused("malformed")
        try:
            return text.decode()
        except UnicodeDecodeError:
            raise Refused("malformed") from None

    def _tensor(self, kind: type) -> Tensor:
        code, where, length, offset = self._take(layout.TENSOR)
        if code >= len(DTYPES) or where not in (layout.IN_FRAMES, layout.IN_MEMORY) or length < 0:
            raise Refused("malformed")
        dtype = DTYPES[code]
        self._expected.check(kind, length, dtype)
        if where == layout.IN_FRAMES:
            if offset:
                raise Refused("malformed")
            return self._gather(length, dtype, kind)
        if self._memory is None:
            raise Refused("no shared memory")
        return self._memory.view(offset, length, dtype)

    def _gather(self, length: int, dtype: torch.dtype, kind: type) -> Tensor:
        """One tensor of the next pieces."""
        size = length * dtype.itemsize
        count = -(-size // PIECE)
        pieces, self._pieces = self._pieces[:count], self._pieces[count:]
        if [len(piece) for piece in pieces] != [min(PIECE, size - at) for at in range(0, size, PIECE)]:
            raise Refused("wrong length")
        if dtype is torch.bool and any(max(piece) > 1 for piece in pieces):
            raise Refused("malformed")  # such bytes are neither true nor false, and torch would not notice
        tensor = self._landing(kind, length, dtype)
        if size:
            whole = tensor.view(torch.uint8).numpy().data
            for number, piece in enumerate(pieces):
                whole[number * PIECE : number * PIECE + len(piece)] = piece
        return tensor

    def _take(self, form: Struct) -> tuple[Any, ...]:
        if self._at + form.size > len(self._header):
            raise Refused("malformed")
        values = form.unpack_from(self._header, self._at)
        self._at += form.size
        return values
