"""What two tensors become: sum, mean, max, min, product, and the operations on bits."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from paceline.errors import UsageError, unknown

_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_COMPLEX = frozenset({torch.complex64, torch.complex128})
_BOOL = frozenset({torch.bool})
_STORED = frozenset({torch.uint16, torch.uint32, torch.uint64})
"""Types that torch can keep and not add."""

_NUMBERS = _INTEGERS | _FLOATS | _COMPLEX | _BOOL
_ORDERED = _INTEGERS | _FLOATS | _BOOL
_BITS = _INTEGERS | _BOOL | _STORED


@dataclass(frozen=True, slots=True)
class Operation:
    """How tensors of many ranks become one: what torch's own function makes of two, again and again.

    So sums and products of integers wrap around, and those of booleans are "or" and "and".
    """

    name: str
    into: Callable[..., Tensor]
    """``into(left, right, out=target)`` makes the target, which may be one of them, the two combined."""
    types: frozenset[torch.dtype]
    """The types that it works on."""
    averages: bool = False
    """Whether a sum is divided by the number of workers at the end."""
    by_order: bool = False
    """Whether the sign of a zero depends on the order of combining."""

    def combine(self, mine: Tensor, other: Tensor) -> None:
        """Change the first, the target, into the two combined; the second stays as it is."""
        self.into(mine, other, out=mine)

    def average(self, tensor: Tensor, workers: int) -> None:
        """Make the result, in place, of what all workers' tensors were combined into, in one order for all ranks."""
        if self.averages:
            tensor.div_(workers)

    def finish(self, tensor: Tensor, workers: int) -> None:
        """The same where the order may differ among ranks: of -0 and +0, all take +0."""
        self.average(tensor, workers)
        if self.by_order and tensor.is_floating_point():
            tensor.add_(0.0)

    def check(self, dtype: torch.dtype) -> None:
        """Refuse a type that has no such operation."""
        if dtype not in self.types:
            usable = ", ".join(name for name, operation in OPERATIONS.items() if dtype in operation.types)
            fix = f"it has {usable}" if usable else "convert the tensor to float32 first"
            raise UsageError(f"operation {self.name!r} does not work on {dtype}: {fix}")


OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        operation.name: operation
        for operation in (
            Operation("sum", torch.add, _NUMBERS),
            Operation("mean", torch.add, _FLOATS | _COMPLEX, averages=True),
            Operation("max", torch.maximum, _ORDERED, by_order=True),
            Operation("min", torch.minimum, _ORDERED, by_order=True),
            Operation("product", torch.mul, _NUMBERS),
            Operation("and", torch.bitwise_and, _BITS),
            Operation("or", torch.bitwise_or, _BITS),
            Operation("xor", torch.bitwise_xor, _BITS),
        )
    }
)


def find_operation(name: str, dtype: torch.dtype) -> Operation:
    """The operation of that name, if there is one and tensors of this type have it."""
    operation = OPERATIONS.get(name)
    if operation is None:
        raise unknown("operation", name, OPERATIONS)
    operation.check(dtype)
    return operation
