"""What a rank asks for, compared with what the others ask for: no data moves before all agree."""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct

import torch
from torch import Tensor

from paceline.shm.operations import OPERATIONS, InvalidCall

_LAYOUT = Struct("<iiqiiqq")
_SAME = 24
"""How many of its bytes must be the same on all ranks; the rest says where a rank's own memory is."""
ELSEWHERE = -1
"""The allocation of a tensor that does not live in shared memory."""
_MISFIT = -1
"""The length that a rank asks for whose own tensors do not fit together: so all ranks raise, and none waits."""

DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16, torch.int32,
    torch.int64, torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64,
    torch.float8_e4m3fn, torch.float8_e5m2,
)  # fmt: skip
_KINDS = (
    "barrier", "all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all",
    "zeros", "unknown",
)  # fmt: skip
_OPS = ("", *OPERATIONS)
_KIND = {kind: number for number, kind in enumerate(_KINDS)}
_DTYPE = {dtype: number for number, dtype in enumerate(DTYPES)}
_OP = {op: number for number, op in enumerate(_OPS)}
_NOTHING = torch.empty(0, dtype=torch.uint8)


@dataclass(slots=True)
class Call:
    """A collective as a rank asks for it: ``outputs`` change, ``inputs`` do not. All are flat, contiguous, on the CPU.

    The kind "unknown" is a call that this backend does not have: its rank says so to all, and no rank waits for it.
    """

    kind: str
    outputs: Sequence[Tensor] = ()
    inputs: Sequence[Tensor] = ()
    op: str = ""
    root: int = -1

    def pack(self, rank: int, size: int, allocation: int = ELSEWHERE, offset: int = 0) -> bytes:
        """The call as bytes: the same on all ranks up to ``root``, then where this rank's tensor lies."""
        length = self._length(rank, size)
        tensor = next(iter((*self.inputs, *self.outputs)), _NOTHING)
        op, dtype = _OP[self.op], _DTYPE[tensor.dtype]
        return _LAYOUT.pack(_KIND[self.kind], dtype, length, op, self.root, allocation, offset)

    def _length(self, rank: int, size: int) -> int:
        """Elements of what each rank has, or gets, if the part for each rank beside it is of that length and type."""
        if self.kind == "all_to_all":
            return 0 if len(self.inputs) == len(self.outputs) == size else _MISFIT
        whole, parts = self.outputs, self.inputs
        if self.kind in ("all_gather", "gather"):
            whole, parts = parts, whole
        if not whole:
            return 0
        has_parts = self.kind.endswith(("gather", "scatter")) and self.root in (-1, rank)
        fits = len(parts) == (size if has_parts else 0) and all(
            len(part) == len(whole[0]) and part.dtype == whole[0].dtype for part in parts
        )
        return len(whole[0]) if fits else _MISFIT


def place_of(packed: bytes) -> tuple[int, int]:
    """The allocation and the offset of a rank's tensor."""
    *_, allocation, offset = _LAYOUT.unpack_from(packed)
    return allocation, offset


def check_agreement(asked: Sequence[bytes], names: Sequence[int]) -> None:
    """Raise the same ``InvalidCall`` on every rank if what the ranks ask for, by rank, is not the same or no call."""
    for rank, other in enumerate(asked):
        if other[:_SAME] != asked[0][:_SAME]:
            raise InvalidCall(
                f"the ranks do not ask for the same: rank {names[0]} called {_describe(asked[0])}, "
                f"rank {names[rank]} {_describe(other)}; "
                "a collective needs the same call with the same sizes and types on every rank"
            )
    kind, _, length, *_ = _LAYOUT.unpack_from(asked[0])
    if length == _MISFIT:
        raise InvalidCall(
            f"{_KINDS[kind]} needs one tensor for each rank, of the size and type of the other side's"
        )


def _describe(packed: bytes) -> str:
    kind, dtype, length, op, root, *_ = _LAYOUT.unpack_from(packed)
    if _KINDS[kind] == "unknown":
        return "something that shm cannot do"
    if _KINDS[kind] == "barrier":
        return "barrier()"
    if length == _MISFIT:
        return f"{_KINDS[kind]}(with tensors that do not fit together)"
    by = f", {_OPS[op]}" if op else ""
    at = f", root {root}" if root >= 0 else ""
    return f"{_KINDS[kind]}({length} x {str(DTYPES[dtype]).removeprefix('torch.')}{by}{at})"


def problem_with(tensor: Tensor) -> str:
    """Why a tensor cannot be moved, in a sentence; "" if it can."""
    if tensor.dtype in _DTYPE and tensor.layout == torch.strided and (tensor.is_cpu or tensor.is_meta):
        return ""
    if not (tensor.is_cpu or tensor.is_meta):
        return f"shm moves CPU tensors and this one is on {tensor.device}; move it or use nccl"
    kind = tensor.layout if tensor.dtype in _DTYPE else tensor.dtype
    return f"shm cannot move {str(kind).removeprefix('torch.')} tensors; use gloo for them or convert them"
