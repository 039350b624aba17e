"""Tensors that live in shared memory, and where the other ranks' parts of them lie."""

from collections.abc import Callable
from mmap import mmap

import torch
from torch import Tensor

from paceline.shm.call import ELSEWHERE
from paceline.shm.segment import PAGE

Make = Callable[[int], mmap | None]
"""Make or map the next segment of so many bytes together with all other ranks; None where there is no room."""


class Allocations:
    """One segment an allocation, in which every rank has a part; they are numbered alike on all ranks."""

    def __init__(self, rank: int, size: int, make: Make) -> None:
        self._rank, self._size, self._make = rank, size, make
        self._memories: list[tuple[Tensor, int]] = []
        self._numbers: dict[int, int] = {}

    def zeros(self, length: int, dtype: torch.dtype) -> Tensor:
        """This rank's part of a new allocation, or memory of its own if none can be shared; called by all together."""
        stride = -(-max(1, length * dtype.itemsize) // PAGE) * PAGE
        made = self._make(stride * self._size)
        if made is None:
            return torch.zeros(length, dtype=dtype)
        start = self._rank * stride
        # Its storage is this rank's part alone: what is saved or pickled of it holds nobody else's data.
        mine = torch.frombuffer(made, dtype=dtype, offset=start, count=max(1, length))[:length]
        self._numbers[mine.untyped_storage().data_ptr()] = len(self._memories)
        self._memories.append((torch.frombuffer(made, dtype=torch.uint8), stride))
        return mine

    def find(self, tensor: Tensor) -> tuple[int, int]:
        """The allocation that a tensor lies in, and the bytes before it in this rank's part."""
        if not self._numbers:
            return ELSEWHERE, 0
        start = tensor.untyped_storage().data_ptr()
        number = self._numbers.get(start, ELSEWHERE)
        return number, 0 if number == ELSEWHERE else tensor.data_ptr() - start

    def look(self, number: int, rank: int, like: Tensor, offset: int) -> Tensor:
        """Another rank's tensor, of the type and length of this rank's."""
        memory, stride = self._memories[number]
        start = rank * stride + offset
        return memory[start : start + like.nbytes].view(like.dtype)
