"""What a rank asks for, compared with what the others ask for: no data moves before all agree."""

from collections.abc import Callable, Sequence
from itertools import product
from struct import Struct
from typing import NoReturn, SupportsIndex

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
_OPS = ("", *OPERATIONS)
UNKNOWN = "unknown"
"""The kind of a call that this backend does not have: its rank says so to all, and no rank waits for it."""
ELSEWHERE = -1
"""The allocation of a tensor that does not live in shared memory."""
_MISFIT = -1
"""The length that a rank asks for whose own tensors do not fit together: so all ranks raise, and none waits."""
_MOST_BYTES = 2**48

_KIND = {kind: number for number, kind in enumerate(KINDS)}
_DTYPE = {dtype: number for number, dtype in enumerate(DTYPES)}
_OP = {op: number for number, op in enumerate(_OPS)}


def pack(
    kind: str,
    dtype: torch.dtype,
    length: int,
    op: str = "",
    root: int = -1,
    allocation: int = ELSEWHERE,
    offset: int = 0,
    *,
    fits: bool = True,
) -> bytes:
    """A call as bytes: the same on all ranks up to ``root``, then where this rank's tensor lies.

    ``fits`` is whether the rank's own tensors fit together; see ``check_fits``.
    """
    length = length if fits else _MISFIT
    return _LAYOUT.pack(_KIND[kind], _DTYPE[dtype], length, _OP[op], root, allocation, offset)


def place_of(packed: bytes) -> tuple[int, int]:
    """The allocation and the offset of a rank's tensor."""
    *_, allocation, offset = _LAYOUT.unpack_from(packed)
    return allocation, offset


def check_agreement(asked: Sequence[bytes], names: Sequence[int]) -> None:
    """Raise the same ``InvalidCall`` on every rank if what the ranks ask for, by rank, is not the same."""
    for rank, other in enumerate(asked):
        if other[:_SAME] != asked[0][:_SAME]:
            raise InvalidCall(
                f"the ranks do not ask for the same: rank {names[0]} called {_describe(asked[0])}, "
                f"rank {names[rank]} {_describe(other)}; "
                "a collective needs the same call with the same sizes and types on every rank"
            )


def _describe(packed: bytes) -> str:
    kind, dtype, length, op, root, *_ = _LAYOUT.unpack_from(packed)
    if KINDS[kind] == UNKNOWN:
        return "something that shm cannot do"
    if KINDS[kind] == "barrier":
        return "barrier()"
    if length == _MISFIT:
        return f"{KINDS[kind]}(with tensors that do not fit together)"
    by = f", {_OPS[op]}" if op else ""
    at = f", root {root}" if root >= 0 else ""
    return f"{KINDS[kind]}({length} x {str(DTYPES[dtype]).removeprefix('torch.')}{by}{at})"


def refuse(agree: Callable[[str, torch.dtype, int], None], problem: InvalidCall) -> NoReturn:
    """Take part in the others' call, whatever it is, and raise: what the ranks differ in, or the problem of all."""
    try:
        agree(UNKNOWN, torch.uint8, 0)
    except InvalidCall as error:
        raise error from problem
    raise problem


def problem_with(tensor: Tensor) -> str:
    """Why a tensor cannot be moved, in a sentence; "" if it can."""
    if not tensor.is_cpu:
        return f"shm moves CPU tensors and this one is on {tensor.device}; move it or use nccl"
    if tensor.layout != torch.strided:
        return _cannot_move(tensor.layout)
    return "" if tensor.dtype in _DTYPE else _cannot_move(tensor.dtype)


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
        return _cannot_move(dtype)
    if not 0 <= length.__index__() * dtype.itemsize < _MOST_BYTES:
        return f"a tensor cannot have {length} elements; give a length from 0 on"
    return ""


def _cannot_move(kind: object) -> str:
    return f"shm cannot move {str(kind).removeprefix('torch.')} tensors; use gloo for them or convert them"


def fit(parts: Sequence[Tensor], like: Tensor, ranks: int) -> bool:
    """Whether there is a part for each rank, all like that tensor."""
    return len(parts) == ranks and all(
        part.numel() == like.numel() and part.dtype == like.dtype for part in parts
    )


def check_fits(kind: str, fits: bool) -> None:
    """Once all have agreed: raise if this rank's own tensors do not fit together, and so no rank's do."""
    if not fits:
        raise InvalidCall(f"{kind} needs one tensor for each rank, of the size and type of the other side's")


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
