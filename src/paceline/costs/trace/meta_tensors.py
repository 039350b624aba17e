"""Tensors without values: how they lie in memory; and whether a rule for an operator's result holds."""

from collections.abc import Sequence

import torch
from torch import Tensor

Ints = Sequence[int]

_META = torch.device("meta")
_empty = torch.ops.aten.empty.memory_format
_empty_strided = torch.ops.aten.empty_strided.default


class NotPlain(Exception):
    """No rule is for this case."""


def only_if(*plain: bool) -> None:
    if not all(plain):
        raise NotPlain


def empty(shape: Ints, dtype: torch.dtype, channels_last: bool = False) -> Tensor:
    form = torch.channels_last if channels_last else None
    made: Tensor = _empty(shape, dtype=dtype, device=_META, memory_format=form)
    return made


def contiguous(like: Tensor) -> Tensor:
    return empty(like.shape, like.dtype)


def ordered(tensor: Tensor) -> Tensor:
    """Of the same shape, without gaps, its dimensions in the order in which the tensor's lie in memory."""
    if tensor.is_contiguous():
        return contiguous(tensor)
    strides, step = [0] * tensor.dim(), 1
    for place in _inmost_first(tensor):
        strides[place] = step
        step *= max(tensor.shape[place], 1)
    return strided(tensor.shape, strides, tensor.dtype)


def strided(shape: Ints, strides: Ints, dtype: torch.dtype) -> Tensor:
    made: Tensor = _empty_strided(shape, strides, dtype=dtype, device=_META)
    return made


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


def is_channels_last(images: Tensor) -> bool:
    if images.dim() != 4 or images.is_contiguous():
        return False
    return images.is_contiguous(memory_format=torch.channels_last)


def into(out: Tensor | None, shape: Ints, dtype: torch.dtype) -> Tensor:
    """The tensor that is to hold a result, or a new one."""
    if out is None:
        return empty(shape, dtype)
    only_if([*out.shape] == [*shape], out.dtype == dtype)
    return out


def broadcasts(tensor: Tensor, to: Tensor) -> bool:
    if tensor.shape == to.shape:
        return True
    pairs = zip(reversed(tensor.shape), reversed(to.shape), strict=False)
    return tensor.dim() <= to.dim() and all(one in (1, size) for one, size in pairs)
