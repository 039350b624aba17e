"""A worker's parameters and gradients in memory that servers on the same host map, verified by the token of a Hello."""

import os
from mmap import mmap
from pathlib import Path

import torch
from torch import Tensor

from paceline.runtimes.flat import CONTROL, own_memory
from paceline.runtimes.live.wire.messages import NO_TENSOR, Hello, MessageRefused
from paceline.shm import segment
from paceline.strategies.base import server_slices


class MappedFlat:
    """A mapped segment with two flat tensors: parameters, then gradients, each from a page's start on."""

    def __init__(self, mapped: mmap, length: int, dtype: torch.dtype) -> None:
        self._dtype, self._bytes = dtype, torch.frombuffer(mapped, dtype=torch.uint8)
        stride = _stride(length, dtype)
        self.tensors = [self.view(offset, length, dtype) for offset in (0, stride)]
        self.shard = self.tensors[0][CONTROL:]

    def view(self, offset: int, length: int, dtype: torch.dtype) -> Tensor:
        if dtype is not self._dtype:
            raise MessageRefused("wrong type")
        end = offset + length * dtype.itemsize
        if offset < 0 or length < 0 or offset % dtype.itemsize or end > self._bytes.numel():
            raise MessageRefused("outside of the shared memory")
        return self._bytes[offset:end].view(dtype)

    def find(self, tensor: Tensor) -> int | None:
        if tensor.untyped_storage().data_ptr() != self._bytes.data_ptr() or not tensor.is_contiguous():
            return None
        return tensor.data_ptr() - self._bytes.data_ptr() if tensor.dtype is self._dtype else None

    @torch.no_grad()
    def deposit(self, tensor: Tensor) -> int | None:
        self.shard.copy_(tensor)
        return self.find(self.shard)


class SharedFlat:
    def __init__(self) -> None:
        self.why = ""
        self.params = NO_TENSOR
        self.mapped: MappedFlat | None = None
        self._unused: list[Tensor] = []
        self._segment: segment.OwnedSegment | None = None
        self._size = 0

    def zeros(self, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        first = self.params is NO_TENSOR
        if first:
            self._share(length, dtype, device)
        made = self._unused.pop(0) if self._unused else own_memory(length, dtype, device)
        assert (length, dtype) == (made.numel(), made.dtype), "parameters and gradients are of one shape"
        if first:
            self.params = made[CONTROL:]
        return made

    def hello(self, rank: int) -> Hello:
        return Hello(rank, self._segment.handle, self._size) if self._segment else Hello(rank)

    def seal(self) -> None:
        """All servers have answered: no other process may map the segment from now on."""
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _share(self, length: int, dtype: torch.dtype, device: torch.device) -> None:
        if device.type != "cpu":
            self.why = f"the parameters lie on {device}"
            return
        try:
            self._segment = segment.create("served", 2 * _stride(length, dtype))
        except segment.SharedMemoryUnavailable as error:
            self.why = str(error)
            return
        self._size = length * dtype.itemsize
        self.mapped = MappedFlat(self._segment.memory, length, dtype)
        self._unused = [*self.mapped.tensors]


def attach(hello: Hello, shard: Tensor, rank: int, servers: int) -> MappedFlat | None:
    """Map the memory that a Hello describes; None where it is on another host or does not hold such a shard."""
    length, rest = divmod(hello.size, shard.dtype.itemsize)
    if hello.memory is None or rest or length < CONTROL:
        return None
    if server_slices(torch.empty(length - CONTROL, device="meta"), servers)[rank].numel() != shard.numel():
        return None
    try:
        # A process in another network namespace is on another host, even on the same machine.
        mine, other = (
            Path(f"/proc/{one}/ns/net").stat().st_ino for one in (os.getpid(), hello.memory.process)
        )
        if mine != other:
            return None
        memory = segment.attach(hello.memory, 2 * _stride(length, shard.dtype))
    except (OSError, ValueError):  # mmap raises ValueError
        return None
    mapped = MappedFlat(memory, length, shard.dtype)
    mapped.shard = server_slices(mapped.shard, servers)[rank]
    return mapped


def _stride(length: int, dtype: torch.dtype) -> int:
    return -(-length * dtype.itemsize // segment.PAGE) * segment.PAGE
