"""Reads a message that came from outside, and trusts nothing in it."""

from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from paceline.runtimes.live.wire import layout
from paceline.runtimes.live.wire.kinds import (
    DTYPES,
    KINDS,
    Expected,
    Refused,
    longest_header,
    lowest,
    typed_fields,
)
from paceline.runtimes.live.wire.layout import STOP

Frame = bytes | bytearray | memoryview


class Letter(NamedTuple):
    """A message and its flags."""

    flags: int
    message: Any


class Announced(NamedTuple):
    """A message whose header has come; what comes after the header belongs into ``body``."""

    letter: Letter
    body: Tensor

    def check(self) -> None:
        """Refuse what has come into ``body`` if it is no tensor."""
        if self.body.dtype is torch.bool and bool((self.body.view(torch.uint8) > 1).any()):
            raise Refused("malformed")  # such bytes are neither true nor false, and torch would not notice


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
    """Reads one message's header, field by field."""

    def __init__(
        self, header: Frame, size: int, expected: Expected, memory: Memory | None, landing: Landing
    ) -> None:
        """``size`` is how many bytes come after the header."""
        self._header, self._size, self._at = header, size, layout.HEAD.size
        self._expected, self._memory, self._landing = expected, memory, landing
        self._body = torch.empty(0, dtype=torch.uint8)

    def announced(self) -> Announced:
        """The message, or Refused."""
        kind = kind_of(self._header)
        if kind not in self._expected.kinds:
            raise Refused("unexpected kind")
        if len(self._header) > longest_header(kind):
            raise Refused("too large")
        flags = layout.HEAD.unpack_from(self._header)[3]
        values = [self._value(kind, name, type_) for name, type_ in typed_fields(kind)]
        if self._at != len(self._header) or flags & ~STOP:
            raise Refused("malformed")
        if self._size != self._body.nbytes:
            raise Refused("wrong length")
        return Announced(Letter(flags, kind(*values)), self._body)

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
        if code >= len(DTYPES) or where not in (layout.IN_BODY, layout.IN_MEMORY) or length < 0:
            raise Refused("malformed")
        dtype = DTYPES[code]
        self._expected.check(kind, length, dtype)
        if where == layout.IN_BODY:
            if offset:
                raise Refused("malformed")
            if self._size != length * dtype.itemsize:
                raise Refused("wrong length")
            self._body = self._landing(kind, length, dtype)
            return self._body
        if self._memory is None:
            raise Refused("no shared memory")
        return self._memory.view(offset, length, dtype)

    def _take(self, form: Struct) -> tuple[Any, ...]:
        if self._at + form.size > len(self._header):
            raise Refused("malformed")
        values = form.unpack_from(self._header, self._at)
        self._at += form.size
        return values
