"""Meta tensors of a wanted shape and layout."""

from collections.abc import Sequence

import torch
from torch import Tensor

_META = torch.device("meta")
_empty = torch.ops.aten.empty.memory_format
_empty_strided = torch.ops.aten.empty_strided.default


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Contiguous."""
    made: Tensor = _empty(shape, dtype=dtype, device=_META)
    return made


def like(tensor: Tensor) -> Tensor:
    """Of the same shape, and of the same strides where no element lies apart or twice."""
    return empty(tensor.shape, tensor.dtype) if tensor.is_contiguous() else ordered(tensor)


def ordered(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Of the same shape, without gaps, its dimensions in the order in which the tensor's lie in memory."""
    dtype = dtype or tensor.dtype
    if tensor.is_contiguous():
        return empty(tensor.shape, dtype)
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda place: (strides[place], -place))
    made, step = [0] * tensor.dim(), 1
    for place in order:
        made[place] = step
        step *= max(tensor.shape[place], 1)
    result: Tensor = _empty_strided(tensor.shape, made, dtype=dtype, device=_META)
    return result
