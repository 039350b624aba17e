"""Meta tensors of a wanted shape and layout."""

from collections.abc import Sequence

import torch
from torch import Tensor

_META = torch.device("meta")
_empty = torch.ops.aten.empty.memory_format
_empty_strided = torch.ops.aten.empty_strided.default


def empty(shape: Sequence[int], dtype: torch.dtype, channels_last: bool = False) -> Tensor:
    """Contiguous."""
    form = torch.channels_last if channels_last else None
    made: Tensor = _empty(shape, dtype=dtype, device=_META, memory_format=form)
    return made


def like(tensor: Tensor) -> Tensor:
    """Of the same shape, and of the same strides where no element lies apart or twice."""
    return empty(tensor.shape, tensor.dtype) if tensor.is_contiguous() else ordered(tensor)


def ordered(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Of the same shape, without gaps, its dimensions in the order in which the tensor's lie in memory."""
    dtype = dtype or tensor.dtype
    if tensor.is_contiguous():
        return empty(tensor.shape, dtype)
    made, step = [0] * tensor.dim(), 1
    for place in _inmost_first(tensor):
        made[place] = step
        step *= max(tensor.shape[place], 1)
    result: Tensor = _empty_strided(tensor.shape, made, dtype=dtype, device=_META)
    return result


def is_channels_last(images: Tensor) -> bool:
    """Whether the channels of a place lie next to each other, and their places do not."""
    if images.dim() != 4 or images.is_contiguous():
        return False
    return images.is_contiguous(memory_format=torch.channels_last)


def is_expanded(tensor: Tensor) -> bool:
    """Whether a dimension repeats the same memory, which says nothing about where it belongs."""
    return 0 in tensor.stride() and any(
        size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


def _inmost_first(tensor: Tensor) -> list[int]:
    """Dimensions by stride; one that is repeated keeps its place among them, as torch has it."""
    shape, strides = tensor.shape, tensor.stride()
    order = list(reversed(range(tensor.dim())))
    for end in range(1, len(order)):
        place = end
        for before in reversed(range(end)):
            one, other = strides[order[before]], strides[order[place]]
            if not (one and other) or (one == other and shape[order[before]] <= shape[order[place]]):
                continue
            if one < other:
                break
            order[before], order[place] = order[place], order[before]
            place = before
    return order
