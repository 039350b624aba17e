"""How two parts become one: each operation as torch's own function with an ``out`` argument."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from paceline.errors import Mistake

Combine = Callable[..., Tensor]
"""combine(left, right, out=target)."""


_STORED_ONLY = (torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2)
"""Types that torch can keep and move, and not calculate with."""


def _any(dtype: torch.dtype) -> bool:
    return dtype not in _STORED_ONLY


def _whole(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex


def _ordered(dtype: torch.dtype) -> bool:
    return _any(dtype) and not dtype.is_complex


def _divisible(dtype: torch.dtype) -> bool:
    return _any(dtype) and (dtype.is_floating_point or dtype.is_complex)


@dataclass(frozen=True, slots=True)
class Reducer:
    """An operation, which types have it, and whether the sum is divided by the number of ranks at the end."""

    combine: Combine
    suits: Callable[[torch.dtype], bool]
    averages: bool = False

    def finish(self, tensor: Tensor, ranks: int) -> None:
        """Make the combined values the result."""
        if self.averages:
            tensor.div_(ranks)


REDUCERS: Mapping[str, Reducer] = MappingProxyType(
    {
        "sum": Reducer(torch.add, _any),
        "mean": Reducer(torch.add, _divisible, averages=True),
        "product": Reducer(torch.mul, _any),
        "min": Reducer(torch.minimum, _ordered),
        "max": Reducer(torch.maximum, _ordered),
        "and": Reducer(torch.bitwise_and, _whole),
        "or": Reducer(torch.bitwise_or, _whole),
        "xor": Reducer(torch.bitwise_xor, _whole),
    }
)


def reducer(op: str, dtype: torch.dtype) -> Reducer:
    """The operation, if this type has it."""
    found = REDUCERS[op]
    if not found.suits(dtype):
        fitting = ", ".join(name for name, other in REDUCERS.items() if other.suits(dtype)) or "none"
        raise Mistake(f"{op!r} is no operation on {dtype} tensors; choose one of: {fitting}")
    return found
