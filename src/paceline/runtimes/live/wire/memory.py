"""A worker's parameters and gradients in memory that servers on the same host map.

The segment holds the two flat tensors. A server that finds the token of a Hello in it has that worker's memory before
it and no other.
"""

import os
from mmap import mmap
from pathlib import Path

import torch
from torch import Tensor

from paceline.runtimes.flat import CONTROL, own_memory
from paceline.runtimes.live.wire.control import Hello
from paceline.runtimes.live.wire.kinds import Refused
from paceline.runtimes.live.wire.shape import Shape, span_of
from paceline.shm import segment
from paceline.shm.segment import PAGE


class Area:
    """A mapped segment, as both ends look into it."""

    def __init__(self, mapped: mmap, length: int, dtype: torch.dtype) -> None:
        """``length`` counts the elements of each of the two tensors, those in front included."""
        self._stride = _stride(length, dtype)
        self._length, self._dtype = length, dtype
        self._bytes = torch.frombuffer(mapped, dtype=torch.uint8)

    def tensor(self, number: int) -> Tensor:
        """The first (parameters) or the second (gradients) flat tensor, with the elements in front."""
        return self.view(number * self._stride, self._length, self._dtype)

    def view(self, offset: int, length: int, dtype: torch.dtype) -> Tensor:
        """The tensor that lies there, or Refused: it must be of the segment's type."""
        if dtype is not self._dtype:
            raise Refused("wrong type")
        end = offset + length * dtype.itemsize
        if offset < 0 or length < 0 or offset % dtype.itemsize or end > self._bytes.numel():
            raise Refused("outside of the shared memory")
        return self._bytes[offset:end].view(dtype)

    def find(self, tensor: Tensor) -> int | None:
        """Where a contiguous tensor lies, or None if it lies elsewhere."""
        if tensor.untyped_storage().data_ptr() != self._bytes.data_ptr() or not tensor.is_contiguous():
            return None
        return tensor.data_ptr() - self._bytes.data_ptr() if tensor.dtype is self._dtype else None


class SharedFlat:
    """The memory of a worker's flat tensors: ``zeros`` is called for the parameters, then for the gradients.

    It is shared where it can be; else it is the worker's own, and ``why`` says why. ``params`` are the flat
    parameters in it, wherever it lies, once they are there.
    """

    def __init__(self, run: str) -> None:
        """``run`` is what the segment is named after."""
        self.why = ""
        """Why the memory is not shared, in a sentence."""
        self.params: Tensor | None = None
        self._run = run
        self._area: Area | None = None
        self._segment: segment.Made | None = None
        self._size = self._made = 0

    def zeros(self, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """So many zeros; the first two calls must ask for the same."""
        if not self._made:
            self._share(length, dtype, device)
        if self._area is None or self._made > 1:
            made = own_memory(length, dtype, device)
        else:
            made = self._area.tensor(self._made)
            assert (length, dtype) == (made.numel(), made.dtype), "parameters and gradients are of one shape"
        if not self._made:
            self.params = made[CONTROL:]
        self._made += 1
        return made

    def find(self, tensor: Tensor) -> int | None:
        """Where a tensor lies in the segment, or None if it lies elsewhere."""
        return self._area.find(tensor) if self._area else None

    def view(self, offset: int, length: int, dtype: torch.dtype) -> Tensor:
        """The tensor that lies there, or Refused."""
        if self._area is None:
            raise Refused("no shared memory")
        return self._area.view(offset, length, dtype)

    def hello(self, rank: int) -> Hello:
        """The first word to servers, by which those on this host can map the segment."""
        if self._segment is None:
            return Hello(rank)
        handle = self._segment.handle
        return Hello(rank, handle.process, handle.descriptor, self._size, handle.token.hex())

    def publish_over(self) -> None:
        """All servers have answered: let nobody else map the segment."""
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _share(self, length: int, dtype: torch.dtype, device: torch.device) -> None:
        if device.type != "cpu":
            self.why = f"the parameters lie on {device}"
            return
        try:
            self._segment = segment.create(f"{self._run}-served", 2 * _stride(length, dtype))
        except segment.NoRoom as error:
            self.why = str(error)
            return
        self._size = length * dtype.itemsize
        self._area = Area(self._segment.memory, length, dtype)


class Mapped:
    """A worker's memory as a server sees it."""

    def __init__(self, area: Area, part: Tensor) -> None:
        self._area, self._part = area, part

    def view(self, offset: int, length: int, dtype: torch.dtype) -> Tensor:
        """What the worker says lies there, or Refused."""
        return self._area.view(offset, length, dtype)

    @torch.no_grad()
    def deposit(self, tensor: Tensor) -> int | None:
        """Write the server's part of the parameters where the worker has its own; say where that is."""
        self._part.copy_(tensor)
        return self._area.find(self._part)


def attach(hello: Hello, shape: Shape, rank: int, servers: int) -> Mapped | None:
    """Map the memory that a Hello tells of; None where it is not on this host or not what it should be."""
    length, rest = divmod(hello.size, shape.dtype.itemsize)
    if rest or length < CONTROL:
        return None
    span = span_of(length - CONTROL, servers, rank)
    if span.length != shape.length:
        return None
    try:
        if not _on_this_host(hello.process):
            return None
        handle = segment.Handle(hello.process, hello.descriptor, bytes.fromhex(hello.token))
        mapped = segment.attach(handle, 2 * _stride(length, shape.dtype))
    except (OSError, ValueError):  # fromhex and mmap say ValueError
        return None
    area = Area(mapped, length, shape.dtype)
    return Mapped(area, area.tensor(0)[CONTROL:][span.start : span.start + span.length])


def _on_this_host(process: int) -> bool:
    """A process that a network lies in between is on another host, be it on the same machine."""
    mine, other = (Path("/proc", str(one), "ns", "net").stat().st_ino for one in (os.getpid(), process))
    return mine == other


def _stride(length: int, dtype: torch.dtype) -> int:
    """Bytes from one tensor to the next: whole pages."""
    return -(-length * dtype.itemsize // PAGE) * PAGE
