"""Messages as bytes: a small header in MessagePack, then the raw tensor as the body. Pure: no I/O, no state.

Whatever is received is checked against what may arrive here, before any memory is allocated for it. What does not fit
raises ``MessageRefused`` with a reason that can be counted, and nothing else is ever raised.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Protocol

import msgspec
import torch
from torch import Tensor

from paceline.runtimes.live.wire.channel import Channel, Packet
from paceline.runtimes.live.wire.messages import KINDS, TO_SERVER, Hello
from paceline.strategies.messages import Model, Push

DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool)
"""What tensors may be made of; the index is the number on the wire."""
MAX_TENSOR = 2**28
"""Bytes of a collective's tensor."""
MAX_REQUEST, MAX_REPLY = 2**18, 2**25
"""Bytes of a header with its texts: of one worker, and of a server, which may hold the texts of all workers."""
MAX_NUMBER = 2**40
"""Sums of many such numbers still fit into 64 bits."""
_NOTHING = memoryview(b"")
_STOP = 1
_NO_TENSOR = torch.empty(0)


class Envelope(NamedTuple):
    """A message, where it came from and what came with it."""

    message: Any
    stop: bool
    """From a worker: it was asked to stop. From a server: all workers stop."""
    sender: int = -1
    """The rank of the server or worker; -1 where the connection belongs to no worker."""
    depth: int = 1
    """Messages that were waiting when this one was taken, itself included."""
    channel: Channel | None = None
    """The connection, for a reply to a sender without a rank."""


class MessageRefused(ValueError):
    """What arrived is no message that may arrive; ``reason`` is one of a few, for counting."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"refused: {reason}")
        self.reason = reason


class SharedMemory(Protocol):
    """Memory that both ends map."""

    def view(self, offset: int, length: int, dtype: torch.dtype) -> Tensor:
        """The tensor at this offset in bytes, or MessageRefused."""


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """What may arrive at one end of a connection."""

    kinds: frozenset[type]
    length: int
    """Elements that the tensor of a Push or a Model must have."""
    dtype: torch.dtype
    limit: int = MAX_TENSOR
    """Bytes that any other tensor may have."""

    def check(self, kind: type, place: "_TensorHeader") -> None:
        dtype = DTYPES[place.dtype]
        if kind not in (Push, Model):
            if place.length * dtype.itemsize > self.limit:
                raise MessageRefused("too large")
        elif dtype is not self.dtype:
            raise MessageRefused("wrong type")
        elif place.length != self.length:
            raise MessageRefused("wrong length")


class _TensorHeader(NamedTuple):
    dtype: int
    shared: bool
    length: int
    offset: int
    """Bytes from the start of the shared memory; 0 where the tensor is the body."""


Allocate = Callable[[type, int, torch.dtype], Tensor]
"""The memory that a message's tensor is received into, given its kind, length and type."""


def new_memory(_: type, length: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(length, dtype=dtype)


def pack(
    message: Any, *, stop: bool = False, find: Callable[[Tensor], int | None] = lambda _: None
) -> Packet:
    """Encode a message; its tensor must not change until it is sent.

    ``find`` returns the offset of a tensor in shared memory; None: it travels as the body.
    """
    body = _NOTHING

    def describe(tensor: Tensor) -> _TensorHeader:
        nonlocal body
        offset = find(tensor)
        if offset is None:
            body = bytes_of(tensor.detach().cpu().contiguous())
        return _TensorHeader(DTYPES.index(tensor.dtype), offset is not None, tensor.numel(), offset or 0)

    kind = type(message)
    encoded = msgspec.msgpack.encode(message, enc_hook=describe)
    header = bytes((KINDS.index(kind), _STOP if stop else 0)) + encoded
    if len(header) > max_header(kind):
        raise ValueError(f"a {kind.__name__} of {len(header):,} bytes is longer than {max_header(kind):,}")
    return Packet(header, body)


def unpack(
    header: bytes | bytearray | memoryview,
    size: int,
    accepted: Accepted,
    memory: SharedMemory | None = None,
    allocate: Allocate = new_memory,
) -> tuple[Envelope, Tensor]:
    """The message of a header whose body has ``size`` bytes, and the tensor that the body is to be received into."""
    kind = kind_of(header)
    if kind not in accepted.kinds:
        raise MessageRefused("unexpected kind")
    if len(header) > max_header(kind):
        raise MessageRefused("too large")
    if header[1] & ~_STOP:
        raise MessageRefused("malformed")
    message, field, place = _decode(kind, header[2:])
    body = _NO_TENSOR
    if field is not None and place is not None:
        accepted.check(kind, place)
        tensor = _receive_into(kind, place, size, memory, allocate)
        body = _NO_TENSOR if place.shared else tensor
        message = replace(message, **{field: tensor})
    if size != body.nbytes:
        raise MessageRefused("wrong length")
    return Envelope(message, bool(header[1])), body


def kind_of(header: bytes | bytearray | memoryview) -> type:
    if len(header) < 2:
        raise MessageRefused("malformed")
    if header[0] >= len(KINDS):
        raise MessageRefused("unknown kind")
    kind: type = KINDS[header[0]]
    return kind


def check_body(body: Tensor) -> None:
    """Refuse a received body that is no tensor: torch would not notice bytes that are neither true nor false."""
    if body.dtype is torch.bool and bool((body.view(torch.uint8) > 1).any()):
        raise MessageRefused("malformed")


def bytes_of(tensor: Tensor) -> memoryview:
    """A contiguous tensor's memory."""
    return tensor.view(-1).view(torch.uint8).numpy().data if tensor.numel() else _NOTHING


def max_header(kind: type) -> int:
    return MAX_REQUEST if kind in TO_SERVER else MAX_REPLY


def least(kind: type, name: str) -> int:
    """The smallest number in a field: clocks, ranks and seconds start at 0; a Hello may ask for a rank with -1."""
    return -1 if kind is Hello and name == "rank" else 0


def _decode(
    kind: type, header: bytes | bytearray | memoryview
) -> tuple[Any, str | None, "_TensorHeader | None"]:
    """The message without its tensor, the name of its tensor field, and what the header says of the tensor."""
    places: list[_TensorHeader] = []

    def read_place(_: type, raw: Any) -> Tensor:
        places.append(msgspec.convert(raw, _TensorHeader))
        return _NO_TENSOR

    try:
        message: Any = msgspec.msgpack.decode(header, type=kind, dec_hook=read_place)
    except (ValueError, RecursionError):  # of msgspec: also UnicodeDecodeError
        raise MessageRefused("malformed") from None
    tensor = None
    for field in fields(kind):
        value = getattr(message, field.name)
        if value is _NO_TENSOR:
            tensor = field.name
        elif isinstance(value, int | float) and not least(kind, field.name) <= value <= MAX_NUMBER:
            raise MessageRefused("out of range")
    if len(places) != (tensor is not None):
        raise MessageRefused("malformed")
    place = places[0] if places else None
    if place is not None and not (0 <= place.dtype < len(DTYPES) and 0 <= place.length <= MAX_NUMBER):
        raise MessageRefused("malformed")
    return message, tensor, place


def _receive_into(
    kind: type, place: _TensorHeader, size: int, memory: SharedMemory | None, allocate: Allocate
) -> Tensor:
    dtype = DTYPES[place.dtype]
    if place.shared:
        if memory is None:
            raise MessageRefused("no shared memory")
        return memory.view(place.offset, place.length, dtype)
    if place.offset:
        raise MessageRefused("malformed")
    if size != place.length * dtype.itemsize:
        raise MessageRefused("wrong length")
    return allocate(kind, place.length, dtype)
