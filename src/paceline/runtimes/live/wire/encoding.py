"""Messages as bytes: a header in MessagePack, then the raw tensor; what arrives is checked before it takes memory."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from paceline.runtimes.envelope import Envelope
from paceline.runtimes.live.wire.channel import Channel, MessageLimits, Packet
from paceline.runtimes.live.wire.messages import KINDS, NO_TENSOR, TO_SERVER, InitialParams, MessageRefused
from paceline.runtimes.served_compression import SliceCodec, is_encoded
from paceline.strategies.messages import Model, Push

DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8)
MAX_TENSOR = 2**28
MAX_REQUEST, MAX_REPLY = 2**18, 2**25
"""Bytes of a header with its texts: of one worker, and of a server, which may hold the texts of all workers."""
MAX_NUMBER = 2**40
"""Sums of many such numbers still fit into 64 bits."""
_STOP = 1
_Bytes = bytes | bytearray | memoryview


class _TensorHeader(NamedTuple):
    dtype: Annotated[int, msgspec.Meta(ge=0, lt=len(DTYPES))]
    length: Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
    offset: int | None
    """Bytes from the start of the shared memory; None where the tensor is the body."""


@dataclass(frozen=True, kw_only=True)
class AcceptedMessages:
    """What may arrive at one end of a connection: a Push, a Model or InitialParams must have a tensor like ``shard``.

    With a codec, a Push must be encoded and a Model may be. A Model that is not is received right into ``shard`` where
    that is in the CPU's memory.
    """

    kinds: frozenset[type]
    shard: Tensor
    codec: SliceCodec | None = None

    @property
    def limits(self) -> MessageLimits:
        """Twice what is accepted: up to there a message is refused, beyond it the connection ends."""
        return MessageLimits(2 * max(map(_max_header, self.kinds)), 2 * max(MAX_TENSOR, self.shard.nbytes))

    def check_kind(self, kind: type, header: int) -> None:
        if kind not in self.kinds:
            raise MessageRefused("unexpected kind")
        if header > _max_header(kind):
            raise MessageRefused("too large")

    def check_tensor(self, kind: type, length: int, dtype: torch.dtype) -> None:
        if kind not in (Push, Model, InitialParams):
            if length * dtype.itemsize > MAX_TENSOR:
                raise MessageRefused("too large")
        elif self.codec is not None and kind is not InitialParams and (kind is Push or dtype is torch.uint8):
            self._check_encoded(length, dtype)
        elif dtype is not self.shard.dtype:
            raise MessageRefused("wrong type")
        elif length != self.shard.numel():
            raise MessageRefused("wrong length")

    def _check_encoded(self, length: int, dtype: torch.dtype) -> None:
        if dtype is not torch.uint8:
            raise MessageRefused("wrong type")
        if 2 * length > self.limits.body:
            raise MessageRefused("too large")

    def check_length(self, message: Any) -> None:
        """Of an encoded tensor, once the numbers that it depends on are known; nothing has been received yet."""
        if self.codec is None or not isinstance(message, Push | Model) or not is_encoded(message):
            return
        if not self.codec.fits(message):
            raise MessageRefused("wrong length")


def pack(message: Any, *, stop: bool = False, find: Callable[[Tensor], int | None] | None = None) -> Packet:
    """The tensor must not change until it is sent; ``find`` returns its offset in shared memory, or None."""
    body = memoryview(b"")

    def describe(tensor: Tensor) -> _TensorHeader:
        nonlocal body
        offset = find(tensor) if find else None
        if offset is None:
            body = _bytes_of(tensor.detach().cpu().contiguous())
        return _TensorHeader(DTYPES.index(tensor.dtype), tensor.numel(), offset)

    kind = type(message)
    header = bytes((KINDS.index(kind), stop * _STOP)) + msgspec.msgpack.encode(message, enc_hook=describe)
    if len(header) > _max_header(kind):
        raise ValueError(f"a {kind.__name__} of {len(header):,} bytes is longer than {_max_header(kind):,}")
    return Packet(header, body)


def unpack(
    header: _Bytes, size: int, accepted: AcceptedMessages, channel: Channel
) -> tuple[Envelope, memoryview]:
    """The message of a header whose body has ``size`` bytes, and the memory that the body is to be received into."""
    kind = kind_of(header)
    accepted.check_kind(kind, len(header))
    body: Tensor | None = None

    def place_tensor(_: type, raw: Any) -> Tensor:
        nonlocal body
        number, length, offset = msgspec.convert(raw, _TensorHeader)
        dtype = DTYPES[number]
        if body is not None:
            raise MessageRefused("malformed")
        accepted.check_tensor(kind, length, dtype)
        if offset is not None:
            if channel.memory is None:
                raise MessageRefused("no shared memory")
            body = NO_TENSOR
            return channel.memory.view(offset, length, dtype)
        if size != length * dtype.itemsize:
            raise MessageRefused("wrong length")
        in_place = kind is Model and dtype is accepted.shard.dtype and accepted.shard.is_cpu
        body = accepted.shard if in_place else torch.empty(length, dtype=dtype)
        return body

    try:
        message: Any = msgspec.msgpack.decode(header[2:], type=kind, dec_hook=place_tensor)
    except (ValueError, RecursionError):  # of msgspec: also UnicodeDecodeError
        raise MessageRefused("malformed") from None
    _check_numbers(message)
    accepted.check_length(message)
    memory = _bytes_of(NO_TENSOR if body is None else body)
    if size != len(memory):
        raise MessageRefused("wrong length")
    return Envelope(message, channel.peer, stop=bool(header[1]), connection=channel), memory


def _check_numbers(message: Any) -> None:
    for field in fields(message):
        value = getattr(message, field.name)
        if isinstance(value, int | float) and not 0 <= value <= MAX_NUMBER:
            raise MessageRefused("out of range")


def kind_of(header: _Bytes) -> type:
    if len(header) < 2 or header[1] & ~_STOP:
        raise MessageRefused("malformed")
    if header[0] >= len(KINDS):
        raise MessageRefused("unknown kind")
    return KINDS[header[0]]


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.view(-1).view(torch.uint8).numpy().data if tensor.numel() else memoryview(b"")


def _max_header(kind: type) -> int:
    return MAX_REQUEST if kind in TO_SERVER else MAX_REPLY
