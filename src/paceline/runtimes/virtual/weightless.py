"""Tensors that have a size and no contents, for runs of which only the time is wanted."""

from functools import cache
from typing import Any, Self

import torch
from torch import Tensor


class Weightless(Tensor):
    """A vector on torch's meta device with which strategies calculate at no cost.

    Torch works the shape of every sum out anew, in Python; here it is known that nothing comes of it.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def _unchanged(self, *_: Any, **__: Any) -> Self:
        return self

    add_ = sub_ = mul_ = div_ = zero_ = copy_ = _unchanged

    def clone(self, *_: Any, **__: Any) -> Tensor:
        """Another one: who sends what is told apart by it."""
        return weightless(self.numel(), self.dtype)

    def tensor_split(self, sections: int) -> tuple[Tensor, ...]:  # type: ignore[override]
        """The parts, of the same kind."""
        return _split(self.numel(), self.dtype, sections)


def weightless(elements: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """So many elements, and no memory."""
    return torch.empty(elements, dtype=dtype, device="meta").as_subclass(Weightless)


@cache
def _split(elements: int, dtype: torch.dtype, sections: int) -> tuple[Tensor, ...]:
    parts = torch.empty(elements, device="meta").tensor_split(sections)
    return tuple(weightless(part.numel(), dtype) for part in parts)
