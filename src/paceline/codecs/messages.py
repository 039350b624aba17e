"""Messages: their bytes, how long they are, and the refusal of those that no encoder makes."""

from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.codecs.context import Context, Layout

if TYPE_CHECKING:
    from paceline.codecs.base import Codec

Message = tuple[Tensor, ...]
"""What is sent: its bytes are those of its tensors, which are vectors; of several messages, rows of matrices."""
Kinds = tuple[tuple[torch.dtype, int], ...]
"""Types and lengths of the tensors of a message."""


class CorruptMessage(ValueError):
    """Bytes that no encoder makes of such a vector; they may come from another version, or from an attacker."""


def blank(message: Message, context: Context) -> Tensor:
    """Memory for what a message stands for."""
    if not message:
        raise CorruptMessage("an empty message")
    return message[0].new_empty(context.layout.elements)


def check_message(message: Message, *lengths: int) -> None:
    """Raise CorruptMessage unless the tensors, or their rows, have these lengths and only finite elements."""
    found = tuple(tensor.shape[-1] for tensor in message)
    if found != lengths:
        raise CorruptMessage(f"a message of {found} elements, where {lengths} were expected")
    for tensor in message:
        if tensor.is_floating_point():
            total = tensor.sum()
            if total.is_meta or isfinite(total.item()):
                continue
            if not all(isfinite(end.item()) for end in tensor.aminmax()):  # else only their sum is infinite
                raise CorruptMessage("a message with an element that is not finite")


def to_bytes(message: Message, length: int | None = None) -> Tensor:
    """A message as bytes, the widest elements first, so that each tensor is aligned; zeros fill it up to ``length``.

    Of a message of rows, each row.
    """
    parts = [tensor.contiguous().view(torch.uint8) for tensor in _by_width(message)]
    missing = 0 if length is None else length - sum(part.shape[-1] for part in parts)
    if missing:
        parts.append(parts[0].new_zeros((*parts[0].shape[:-1], missing)))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def from_bytes(raw: Tensor, kinds: Kinds, *, varies: bool = False) -> Message:
    """The inverse of ``to_bytes``; CorruptMessage for another number of bytes, unless only the types are given."""
    if varies:
        many = raw.shape[-1] // sum(kind.itemsize for kind, _ in kinds)
        kinds = tuple((kind, many) for kind, _ in kinds)
    expected = bytes_of(kinds)
    if raw.shape[-1] != expected:
        raise CorruptMessage(f"a message of {raw.shape[-1]:,} bytes, where {expected:,} were expected")
    found: dict[int, Tensor] = {}
    start = 0
    for place in sorted(range(len(kinds)), key=lambda place: -kinds[place][0].itemsize):
        kind, count = kinds[place]
        stop = start + count * kind.itemsize
        if count:
            found[place] = _aligned(raw[..., start:stop], kind.itemsize).view(kind)
        else:
            found[place] = raw.new_empty((*raw.shape[:-1], 0), dtype=kind)
        start = stop
    return tuple(found[place] for place in range(len(kinds)))


def _aligned(raw: Tensor, width: int) -> Tensor:
    strides = raw.stride()
    aligned = strides[-1] == 1 and not any(one % width for one in (raw.storage_offset(), *strides[:-1]))
    return (
        raw
        if aligned and (raw.is_meta or not raw.data_ptr() % width)
        else raw.clone(memory_format=torch.contiguous_format)
    )


def _by_width(message: Message) -> list[Tensor]:
    return sorted(message, key=lambda tensor: -tensor.itemsize)


def kinds_of(message: Message) -> Kinds:
    return tuple((tensor.dtype, tensor.shape[-1]) for tensor in message)


def bytes_of(kinds: Kinds) -> int:
    return sum(kind.itemsize * count for kind, count in kinds)


@lru_cache(maxsize=4096)
def message_kinds(
    codec: "Codec", layout: Layout, dtype: torch.dtype, device: torch.device | str = "meta"
) -> Kinds:
    """Types and lengths of the tensors of a message, as an encoder makes them of a vector without memory.

    The first operation on the meta device takes a second: where there are data, name their device.
    """
    with torch.device(device):
        state = _zero_state(codec, layout)
        message = codec.encode(torch.zeros(layout.elements, dtype=dtype), Context(layout=layout, state=state))
    return kinds_of(message)


def _zero_state(codec: "Codec", layout: Layout) -> dict[str, Tensor]:
    sizes: dict[str, int] = {}
    for shape in layout.shapes:
        for name, tensor in codec.initial_state(shape, 0).items():
            sizes[name] = sizes.get(name, 0) + tensor.numel()
    return {name: torch.zeros(many) for name, many in sizes.items()}


def encoded_bytes(
    codec: "Codec", layout: Layout, dtype: torch.dtype, device: torch.device | str = "meta"
) -> int:
    return bytes_of(message_kinds(codec, layout, dtype, device))
