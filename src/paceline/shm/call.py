"""What a rank asks for, laid beside what the others ask for: nobody moves data before all agree."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from struct import Struct
from typing import SupportsIndex

import torch
from torch import Tensor

from paceline.shm.operations import OPERATIONS, InvalidCall

_LAYOUT = Struct("<iiqiiqq")
_SAME = 24
"""How many of its bytes must be the same on all ranks; the rest says where a rank's own memory is."""
SIZE = 64

KINDS = (
    "barrier", "all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all",
    "zeros", "unknown",
)  # fmt: skip
DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16, torch.int32,
    torch.int64, torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64,
    torch.float8_e4m3fn, torch.float8_e5m2,
)  # fmt: skip
OPS = ("", *OPERATIONS)
UNKNOWN = "unknown"
"""The kind of a call that this backend does not have: its rank says so to all, and nobody waits for it."""
ELSEWHERE = -1
"""The allocation of a tensor that does not live in shared memory."""
MISFIT = -1
"""The length that a rank asks for whose own tensors do not fit together: so all hear of it, and nobody waits."""
_MOST = 2**48
"""Bytes beyond which no machine has memory."""
_DENSE = torch.strided

_KIND = {kind: number for number, kind in enumerate(KINDS)}
_DTYPE = {dtype: number for number, dtype in enumerate(DTYPES)}
_OP = {op: number for number, op in enumerate(OPS)}


@dataclass(frozen=True, slots=True)
class Call:
    """One rank's call: the same on all ranks up to ``root``, then where this rank's tensor lies."""

    kind: str
    dtype: torch.dtype
    length: int
    op: str = ""
    root: int = -1
    allocation: int = ELSEWHERE
    offset: int = 0

    def pack(self) -> bytes:
        """As bytes, in the order of the fields."""
        return pack(self.kind, self.dtype, self.length, self.op, self.root, self.allocation, self.offset)

    def __str__(self) -> str:
        if self.kind == "barrier":
            return "barrier()"
        if self.kind == UNKNOWN:
            return "something that shm cannot do"
        if self.length == MISFIT:
            return f"{self.kind}(with tensors that do not fit together)"
        op = f", {self.op}" if self.op else ""
        root = f", root {self.root}" if self.root >= 0 else ""
        return f"{self.kind}({self.length} x {str(self.dtype).removeprefix('torch.')}{op}{root})"


def pack(
    kind: str, dtype: torch.dtype, length: int, op: str, root: int, allocation: int, offset: int
) -> bytes:
    """A call as bytes; ``same`` compares the part that ranks must agree on."""
    return _LAYOUT.pack(_KIND[kind], _DTYPE[dtype], length, _OP[op], root, allocation, offset)


def unpack(packed: bytes) -> Call:
    """The call behind the bytes."""
    kind, dtype, length, op, root, allocation, offset = _LAYOUT.unpack_from(packed)
    return Call(KINDS[kind], DTYPES[dtype], length, OPS[op], root, allocation, offset)


def agrees(one: bytes, other: bytes) -> bool:
    """Whether two ranks ask for the same."""
    return one[:_SAME] == other[:_SAME]


def place_of(packed: bytes) -> tuple[int, int]:
    """The allocation and the offset of a rank's tensor."""
    *_, allocation, offset = _LAYOUT.unpack_from(packed)
    return allocation, offset


def problem_with(tensor: Tensor) -> str:
    """Why a tensor cannot travel, in a sentence; nothing if it can."""
    if tensor.is_cpu and tensor.layout == _DENSE and tensor.dtype in _DTYPE:
        return ""
    if not tensor.is_cpu:
        return f"shm moves CPU tensors and this one is on {tensor.device}; move it or use nccl"
    return _stranger(tensor.dtype if tensor.layout == _DENSE else tensor.layout)


def problem_with_zeros(length: object, dtype: object) -> str:
    """The same of a tensor that is about to be made; callers may have given anything."""
    if not isinstance(length, SupportsIndex) or isinstance(length, Tensor):
        given = " ".join(repr(length).split())[:60]
        return (
            f"zeros takes a length, a whole number, not {given}; for a shape, view the result of its length"
        )
    if not isinstance(dtype, torch.dtype):
        return f"zeros takes a dtype such as torch.float32, not {dtype!r}"
    if dtype not in _DTYPE:
        return _stranger(dtype)
    if not 0 <= length.__index__() * dtype.itemsize < _MOST:
        return f"a tensor cannot have {length} elements; give a length from 0 on"
    return ""


def _stranger(kind: object) -> str:
    name = str(kind).removeprefix("torch.")
    return f"shm cannot move {name} tensors; use gloo for them or convert them"


def fit(parts: Sequence[Tensor], like: Tensor, ranks: int) -> bool:
    """Whether there is a part for each rank, all like that tensor."""
    return len(parts) == ranks and all(
        part.numel() == like.numel() and part.dtype == like.dtype for part in parts
    )


def misfit(kind: str) -> InvalidCall:
    """What to say where a rank's own tensors do not fit together."""
    return InvalidCall(f"{kind} needs one tensor for each rank, of the size and type of the other side's")


def check_exchange(
    gives: Sequence[Sequence[int]], takes: Sequence[Sequence[int]], names: Sequence[int]
) -> None:
    """Raise the same error on all ranks if what one gives is not what another expects; elements, by rank."""
    for (one, row), (other, column) in product(enumerate(gives), enumerate(takes)):
        if row[other] != column[one]:
            raise InvalidCall(
                f"all_to_all does not fit: rank {names[one]} gives {row[other]} elements to rank {names[other]}, "
                f"which expects {column[one]}"
            )


def disagreement(first: int, one: Call, second: int, other: Call) -> str:
    """What to say of two ranks that ask for different things."""
    return (
        f"the ranks do not ask for the same: rank {first} called {one}, rank {second} {other}; "
        "a collective needs the same call with the same sizes and types on every rank"
    )
