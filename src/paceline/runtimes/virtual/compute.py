"""What effects do to tensors, and the tensors of a run in which only time is simulated."""

import dataclasses
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, Self

import torch
from torch import Tensor


@torch.no_grad()
def reduce_into_all(tensors: Sequence[Tensor], weights: Sequence[float], op: Literal["mean", "sum"]) -> None:
    """Weigh, add up in rank order, divide: in the live runtime's order, so that both agree to the last bit."""
    first, *others = tensors
    if not others or first.is_meta:
        return
    if op == "mean":
        for tensor, weight in zip(tensors, weights, strict=True):
            tensor.mul_(weight)
    for tensor in others:
        first.add_(tensor)
    if op == "mean" and sum(weights) != 1.0:
        first.div_(sum(weights))
    for tensor in others:
        tensor.copy_(first)


@torch.no_grad()
def broadcast(tensors: Sequence[Tensor], root: int) -> None:
    for rank, tensor in enumerate(tensors):
        if rank != root and not tensor.is_meta:
            tensor.copy_(tensors[root])


def copy_message(message: Any) -> Any:
    """The message as it is now: its sender may change its tensors later."""
    tensors = {
        field.name: value.clone()
        for field in dataclasses.fields(message)
        if isinstance(value := getattr(message, field.name), Tensor)
    }
    return dataclasses.replace(message, **tensors) if tensors else message


class SizeOnlyTensor(Tensor):
    """A vector on torch's meta device with which strategies compute at no cost.

    Torch infers the shape of every result anew, in Python; here it is known that no result is looked at.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def _unchanged(self, *_: Any, **__: Any) -> Self:
        return self

    add_ = sub_ = mul_ = div_ = zero_ = copy_ = _unchanged

    def clone(self, *_: Any, **__: Any) -> Tensor:
        """Another object: what is sent is told apart by identity."""
        return sizes_only(self.numel(), self.dtype)

    def tensor_split(self, sections: int) -> tuple[Tensor, ...]:  # type: ignore[override]
        return _split(self.numel(), self.dtype, sections)


def sizes_only(elements: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(elements, dtype=dtype, device="meta").as_subclass(SizeOnlyTensor)


@cache
def _split(elements: int, dtype: torch.dtype, sections: int) -> tuple[Tensor, ...]:
    split = torch.empty(elements, device="meta").tensor_split(sections)
    return tuple(sizes_only(part.numel(), dtype) for part in split)
