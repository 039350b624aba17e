"""Reduction operations: sum, mean, max, min, product, and those on bits, with what torch.distributed calls them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor
from torch.distributed import ReduceOp

_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool})
_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_COMPLEX = frozenset({torch.complex64, torch.complex128})
_BITS = _INTEGERS | {torch.uint16, torch.uint32, torch.uint64}


class InvalidCall(ValueError):
    """A call that cannot be carried out as it was made: the message names the value, the rule and the fix."""


@dataclass(frozen=True, slots=True)
class Operation:
    """How tensors of many ranks become one: what torch's own function makes of two, again and again."""

    name: str
    into: Callable[..., Tensor]
    """``into(left, right, out=target)`` makes the target, which may be one of them, the two combined."""
    types: frozenset[torch.dtype]
    torch_op: ReduceOp.RedOpType
    averages: bool = False
    """Whether a sum is divided by the number of workers at the end."""
    by_order: bool = False
    """Whether the sign of a zero depends on the order of combining."""

    @property
    def combining_op(self) -> ReduceOp.RedOpType:
        """What a backend does to combine; a mean is a sum that is divided afterwards, as Gloo has none."""
        return ReduceOp.SUM if self.averages else self.torch_op

    def combine(self, mine: Tensor, other: Tensor) -> None:
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


_ALL = (
    Operation("sum", torch.add, _INTEGERS | _FLOATS | _COMPLEX, ReduceOp.SUM),
    Operation("mean", torch.add, _FLOATS | _COMPLEX, ReduceOp.AVG, averages=True),
    Operation("max", torch.maximum, _INTEGERS | _FLOATS, ReduceOp.MAX, by_order=True),
    Operation("min", torch.minimum, _INTEGERS | _FLOATS, ReduceOp.MIN, by_order=True),
    Operation("product", torch.mul, _INTEGERS | _FLOATS | _COMPLEX, ReduceOp.PRODUCT),
    Operation("and", torch.bitwise_and, _BITS, ReduceOp.BAND),
    Operation("or", torch.bitwise_or, _BITS, ReduceOp.BOR),
    Operation("xor", torch.bitwise_xor, _BITS, ReduceOp.BXOR),
)
OPERATIONS: Mapping[str, Operation] = MappingProxyType({one.name: one for one in _ALL})
_NAMES = {one.torch_op: one.name for one in _ALL}


def find_operation(name: str, dtype: torch.dtype) -> Operation:
    """Of a name in ``OPERATIONS``."""
    if dtype not in OPERATIONS[name].types:
        usable = ", ".join(other.name for other in _ALL if dtype in other.types)
        fix = f"it has {usable}" if usable else "convert the tensor to float32 first"
        raise InvalidCall(f"operation {name!r} does not work on {dtype}: {fix}")
    return OPERATIONS[name]


def operation_name(op: object) -> str:
    return op if isinstance(op, str) else _NAMES.get(op) or str(op)  # type: ignore[call-overload]
