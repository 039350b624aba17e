"""Messages as frames: a small typed header, then the raw tensors in pieces. Pure: it does no I/O and holds no state.

Whatever comes from outside is checked here against what may come; what does not fit is refused with a reason that can
be counted, and nothing else is ever raised.
"""

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, NamedTuple, Protocol, get_type_hints

import torch
from torch import Tensor

from paceline.runtimes.live.served import control
from paceline.runtimes.live.served.control import CONTROL_MESSAGES
from paceline.runtimes.live.served.shape import Shape
from paceline.strategies.messages import MESSAGES, Join, Model, Pull, Push, Rest

Frame = bytes | bytearray | memoryview

STOP = 1
"""The flag by which a worker says that it was asked to stop, and a server that everybody stops."""

PIECE = 2**20
"""Bytes of a tensor's frames but the last: while one is decrypted, the next is on its way."""
LONGEST_HEADER = 2**20
"""Bytes that a header may have, its texts included."""
KINDS: tuple[type, ...] = (*MESSAGES, *CONTROL_MESSAGES)
"""Every kind of message; its place here is its number on the wire."""
TO_SERVER = frozenset(
    {Join, Push, Rest, Pull, control.Hello, control.Beat, control.Goodbye}
    | {control.Contribution, control.Words, control.Keep}
)
TO_WORKER = frozenset(
    {Model, control.Welcome, control.Refusal, control.Result, control.AllWords, control.Kept}
)

_DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool)
_MAGIC, _VERSION = b"pace", 1
_HEAD = struct.Struct("<4sBBH")
_INT, _FLOAT, _BOOL, _LENGTH = (
    struct.Struct("<q"),
    struct.Struct("<d"),
    struct.Struct("<B"),
    struct.Struct("<I"),
)
_TENSOR = struct.Struct("<BBqq")
_FRAMES, _MEMORY = 0, 1


class Refused(ValueError):
    """What came is no message that may come; ``reason`` is one of a few words, for counting."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"refused: {reason}")
        self.reason = reason


class Letter(NamedTuple):
    """A message and its flags."""

    flags: int
    message: Any


class Memory(Protocol):
    """Memory that both ends map."""

    def view(self, offset: int, length: int, dtype: torch.dtype) -> Tensor:
        """The tensor that lies there, or Refused."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What may come at one end of a connection."""

    kinds: frozenset[type]
    length: int
    """Elements that the tensor of a Push or a Model must have."""
    dtype: torch.dtype
    """The type that it must be of."""
    limit: int
    """Bytes that any other tensor may have."""

    @classmethod
    def at_server(cls, shape: Shape, limit: int) -> "Expected":
        """What workers may tell the server that keeps this."""
        return cls(kinds=TO_SERVER, length=shape.length, dtype=shape.dtype, limit=limit)

    @classmethod
    def at_worker(cls, shape: Shape, limit: int) -> "Expected":
        """What the server that keeps this may tell a worker."""
        return cls(kinds=TO_WORKER, length=shape.length, dtype=shape.dtype, limit=limit)


Place = Callable[[Tensor], int | None]
"""Where in shared memory a tensor lies, or is put, in bytes from the start; None: it travels in frames."""
Landing = Callable[[type, int, torch.dtype], Tensor]
"""The memory that a message's tensor is received into, given its kind, length and type."""


def nowhere(_: Tensor) -> None:
    """No memory is shared."""


def new_memory(_: type, length: int, dtype: torch.dtype) -> Tensor:
    """Memory of its own for every tensor."""
    return torch.empty(length, dtype=dtype)


def pack(message: Any, flags: int = 0, place: Place = nowhere) -> list[Frame]:
    """The frames of a message: bytes, then views of its tensors, which must not change until they are sent."""
    kind: type = type(message)
    header = bytearray(_HEAD.pack(_MAGIC, _VERSION, KINDS.index(kind), flags))
    pieces: list[Frame] = []
    for name, type_ in _fields(kind):
        value = getattr(message, name)
        if type_ is Tensor:
            _pack_tensor(value, place(value), header, pieces)
        elif type_ is str:
            text = value.encode()
            header += _LENGTH.pack(len(text)) + text
        else:
            header += _NUMBERS[type_].pack(value)
    if len(header) > LONGEST_HEADER:
        raise ValueError(f"a {kind.__name__} of {len(header):,} bytes is longer than {LONGEST_HEADER:,}")
    return [bytes(header), *pieces]


def _pack_tensor(tensor: Tensor, offset: int | None, header: bytearray, pieces: list[Frame]) -> None:
    code = _DTYPES.index(tensor.dtype)
    if offset is not None:
        header += _TENSOR.pack(code, _MEMORY, tensor.numel(), offset)
        return
    header += _TENSOR.pack(code, _FRAMES, tensor.numel(), 0)
    plain = tensor.detach().cpu().contiguous().view(-1)
    if plain.numel():
        whole = plain.view(torch.uint8).numpy().data
        pieces += [whole[at : at + PIECE] for at in range(0, whole.nbytes, PIECE)]


def unpack(
    frames: Sequence[Frame], expected: Expected, memory: Memory | None = None, landing: Landing = new_memory
) -> Letter:
    """The message in frames that came, or Refused.

    Tensors that travelled in frames are copied into memory of ``landing``; the others are views of ``memory``.
    """
    if not frames:
        raise Refused("malformed")
    reader = _Reader(memoryview(frames[0]), list(frames[1:]), expected, memory, landing)
    return reader.letter()


def kind_of(header: Frame) -> type:
    """The kind of message that a first frame announces, or Refused."""
    if len(header) < _HEAD.size:
        raise Refused("malformed")
    magic, version, number, _ = _HEAD.unpack_from(header)
    if magic != _MAGIC:
        raise Refused("malformed")
    if version != _VERSION:
        raise Refused("other version")
    if number >= len(KINDS):
        raise Refused("unknown kind")
    kind: type = KINDS[number]
    return kind


class _Reader:
    """Reads one message, field by field."""

    def __init__(
        self,
        header: memoryview,
        pieces: list[Frame],
        expected: Expected,
        memory: Memory | None,
        landing: Landing,
    ) -> None:
        self._header, self._pieces, self._at = header, pieces, _HEAD.size
        self._expected, self._memory, self._landing = expected, memory, landing

    def letter(self) -> Letter:
        if len(self._header) > LONGEST_HEADER or any(len(piece) > PIECE for piece in self._pieces):
            raise Refused("too large")
        kind = kind_of(self._header)
        if kind not in self._expected.kinds:
            raise Refused("unexpected kind")
        flags = _HEAD.unpack_from(self._header)[3]
        values = [self._value(kind, name, type_) for name, type_ in _fields(kind)]
        if self._at != len(self._header) or self._pieces or flags & ~STOP:
            raise Refused("malformed")
        return Letter(flags, kind(*values))

    def _value(self, kind: type, name: str, type_: type) -> Any:
        if type_ is Tensor:
            return self._tensor(kind)
        if type_ is str:
            return self._text()
        (value,) = self._take(_NUMBERS[type_])
        if type_ is bool:
            if value > 1:
                raise Refused("malformed")
            return bool(value)
        if not (value >= _lowest(kind, name) and math.isfinite(value)):
            raise Refused("out of range")
        return value

    def _text(self) -> str:
        (length,) = self._take(_LENGTH)
        text = bytes(self._header[self._at : self._at + length])
        self._at += length
        if len(text) != length:
            raise Refused("malformed")
        try:
            return text.decode()
        except UnicodeDecodeError:
            raise Refused("malformed") from None

    def _tensor(self, kind: type) -> Tensor:
        code, where, length, offset = self._take(_TENSOR)
        if code >= len(_DTYPES) or where > _MEMORY or length < 0 or offset < 0:
            raise Refused("malformed")
        dtype = _DTYPES[code]
        self._check(kind, length, dtype)
        if where == _FRAMES:
            if offset:
                raise Refused("malformed")
            return self._gather(length, dtype, kind)
        if self._memory is None:
            raise Refused("no shared memory")
        return self._memory.view(offset, length, dtype)

    def _check(self, kind: type, length: int, dtype: torch.dtype) -> None:
        """Before any memory is taken, is this a tensor that may come?"""
        expected = self._expected
        if kind not in (Push, Model):
            if length * dtype.itemsize > expected.limit:
                raise Refused("too large")
        elif dtype is not expected.dtype:
            raise Refused("wrong type")
        elif length != expected.length:
            raise Refused("wrong length")

    def _gather(self, length: int, dtype: torch.dtype, kind: type) -> Tensor:
        size = length * dtype.itemsize
        count = -(-size // PIECE)
        pieces, self._pieces = self._pieces[:count], self._pieces[count:]
        if [len(piece) for piece in pieces] != [min(PIECE, size - at) for at in range(0, size, PIECE)]:
            raise Refused("wrong length")
        if dtype is torch.bool and any(max(piece) > 1 for piece in pieces):
            raise Refused("malformed")
        tensor = self._landing(kind, length, dtype)
        if size:
            whole = tensor.view(torch.uint8).numpy().data
            for number, piece in enumerate(pieces):
                whole[number * PIECE : number * PIECE + len(piece)] = piece
        return tensor

    def _take(self, form: struct.Struct) -> tuple[Any, ...]:
        if self._at + form.size > len(self._header):
            raise Refused("malformed")
        values = form.unpack_from(self._header, self._at)
        self._at += form.size
        return values


_NUMBERS: dict[type, struct.Struct] = {int: _INT, float: _FLOAT, bool: _BOOL}


@cache
def _fields(kind: type) -> tuple[tuple[str, type], ...]:
    hints = get_type_hints(kind)
    return tuple((field.name, hints[field.name]) for field in fields(kind))


def _lowest(kind: type, name: str) -> int:
    """Counts, ranks, clocks and seconds start at 0; a Hello may ask for a rank with -1."""
    return -1 if kind is control.Hello and name == "rank" else 0
