"""What torch.distributed calls the operations."""

from collections.abc import Mapping
from types import MappingProxyType

from torch.distributed import ReduceOp

from paceline.collectives.operations import Operation

TORCH_OPS: Mapping[str, ReduceOp.RedOpType] = MappingProxyType(
    {
        "sum": ReduceOp.SUM,
        "mean": ReduceOp.AVG,
        "max": ReduceOp.MAX,
        "min": ReduceOp.MIN,
        "product": ReduceOp.PRODUCT,
        "and": ReduceOp.BAND,
        "or": ReduceOp.BOR,
        "xor": ReduceOp.BXOR,
    }
)


def combining(operation: Operation) -> ReduceOp.RedOpType:
    """What a backend does to combine; a mean is a sum that is divided afterwards, as Gloo has none."""
    return TORCH_OPS["sum" if operation.averages else operation.name]


def name_of(op: object) -> str:
    """The operation's name, of a name or of torch's own word for it; of anything else, that in words."""
    if isinstance(op, str):
        return op
    return next((name for name, known in TORCH_OPS.items() if op == known), str(op))
