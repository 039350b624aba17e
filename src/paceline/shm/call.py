"""What a rank asks for, compared with what the others ask for: no data moves before all agree."""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct

import torch
from torch import Tensor

from paceline.shm.operations import InvalidCall

Tensors = Sequence[Tensor]
ELSEWHERE = -1
"""The allocation of a tensor that does not live in shared memory."""
DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16, torch.int32,
    torch.int64, torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64,
    torch.float8_e4m3fn, torch.float8_e5m2,
)  # fmt: skip
"""What can be moved."""
_TEXT, _PLACE = 96, Struct("<qq")
_MISFIT = "with tensors that do not fit together"


@dataclass(slots=True)
class Call:
    """A collective as a rank asks for it: ``outputs`` change, ``inputs`` do not. All are flat, contiguous, on the CPU.

    The kind "unknown" is a call that this backend does not have: its rank says so to all, and no rank waits for it.
    """

    kind: str
    outputs: Tensors = ()
    inputs: Tensors = ()
    op: str = ""
    root: int = -1

    def pack(self, rank: int, size: int) -> bytes:
        """A text that must be the same on all ranks, and that this rank's tensor is not in shared memory."""
        return self._text(rank, size).encode().ljust(_TEXT) + _PLACE.pack(ELSEWHERE, 0)

    def _text(self, rank: int, size: int) -> str:
        """Such as "reduce(10 x float32, sum, root 0)"; says so if the rank's own tensors do not fit together."""
        if self.kind == "unknown":
            return "something that shm cannot do"
        whole, parts = self.outputs, self.inputs
        if self.kind in ("all_gather", "gather"):
            whole, parts = parts, whole
        if not whole:
            return f"{self.kind}()"
        length, dtype = len(whole[0]), whole[0].dtype
        if self.kind == "all_to_all":  # of any lengths that match
            length, fits = 0, len(parts) == len(whole) == size
        else:
            has_parts = self.kind.endswith(("gather", "scatter")) and self.root in (-1, rank)
            fits = len(parts) == (size if has_parts else 0)
            fits = fits and all(len(part) == length and part.dtype == dtype for part in parts)
        by = f", {self.op}" if self.op else ""
        at = f", root {self.root}" if self.root >= 0 else ""
        what = f"{length} x {str(dtype).removeprefix('torch.')}{by}{at}"
        return f"{self.kind}({what if fits else _MISFIT})"


def with_place(packed: bytes, allocation: int, offset: int) -> bytes:
    """The same request of a tensor that lies there."""
    return packed[:_TEXT] + _PLACE.pack(allocation, offset)


def place_of(packed: bytes) -> tuple[int, int]:
    allocation, offset = _PLACE.unpack_from(packed, _TEXT)
    return allocation, offset


def check_agreement(asked: Sequence[bytes], names: Sequence[int]) -> None:
    """Raise the same ``InvalidCall`` on every rank if what the ranks ask for, by rank, is not the same or no call."""
    texts = [packed[:_TEXT].decode().rstrip() for packed in asked]
    for rank, text in enumerate(texts):
        if text != texts[0]:
            raise InvalidCall(
                f"the ranks do not ask for the same: rank {names[0]} called {texts[0]}, rank {names[rank]} {text}; "
                "a collective needs the same call with the same sizes and types on every rank"
            )
    kind, _, what = texts[0].partition("(")
    if what.startswith(_MISFIT):
        raise InvalidCall(f"{kind} needs one tensor for each rank, of the size and type of the other side's")


def problem_with(tensor: Tensor) -> str:
    """Why a tensor cannot be moved, in a sentence."""
    here = tensor.is_cpu or tensor.is_meta
    if here and tensor.dtype in DTYPES and tensor.layout == torch.strided:
        return ""
    if not here:
        return f"shm moves CPU tensors and this one is on {tensor.device}; move it or use nccl"
    kind = tensor.layout if tensor.dtype in DTYPES else tensor.dtype
    return f"shm cannot move {str(kind).removeprefix('torch.')} tensors; use gloo for them or convert them"
