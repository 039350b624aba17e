"""What two tensors become: sum, mean, max, min and product."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from paceline.errors import Mistake, unknown

_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_COMPLEX = frozenset({torch.complex64, torch.complex128})
_BOOL = frozenset({torch.bool})


@dataclass(frozen=True, slots=True)
class Operation:
    """How tensors of many ranks become one. Sums and products of integers wrap around as torch's own do."""

    name: str
    combine: Callable[[Tensor, Tensor], object]
    """Change the first, the target, into the two combined; the second stays as it is."""
    types: frozenset[torch.dtype]
    """The types that it works on."""
    finish: Callable[[Tensor, int], object] = lambda _tensor, _workers: None
    """Make the result, in place, of what all tensors of so many workers were combined into."""

    def check(self, dtype: torch.dtype) -> None:
        """Refuse a type that has no such operation."""
        if dtype not in self.types:
            usable = ", ".join(name for name, operation in OPERATIONS.items() if dtype in operation.types)
            fix = f"it has {usable}" if usable else "convert the tensor to float32 first"
            raise Mistake(f"operation {self.name!r} does not work on {dtype}: {fix}")


def _larger(mine: Tensor, other: Tensor) -> None:
    torch.maximum(mine, other, out=mine)


def _smaller(mine: Tensor, other: Tensor) -> None:
    torch.minimum(mine, other, out=mine)


def _one_zero(tensor: Tensor, _: int) -> None:
    """Which of -0 and +0 is the larger one depends on their order, and that may differ among ranks: all take +0."""
    if tensor.is_floating_point():
        tensor.add_(0.0)


OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        operation.name: operation
        for operation in (
            Operation("sum", Tensor.add_, _INTEGERS | _FLOATS | _COMPLEX),
            Operation("mean", Tensor.add_, _FLOATS | _COMPLEX, Tensor.div_),
            Operation("max", _larger, _INTEGERS | _FLOATS | _BOOL, _one_zero),
            Operation("min", _smaller, _INTEGERS | _FLOATS | _BOOL, _one_zero),
            Operation("product", Tensor.mul_, _INTEGERS | _FLOATS | _COMPLEX),
        )
    }
)


def find_operation(name: str, dtype: torch.dtype) -> Operation:
    """The operation of that name, if there is one and tensors of this type have it."""
    if name not in OPERATIONS:
        raise unknown("operation", name, OPERATIONS)
    OPERATIONS[name].check(dtype)
    return OPERATIONS[name]
