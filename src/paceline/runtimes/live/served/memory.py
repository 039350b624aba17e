"""A worker's parameters and gradients in memory that servers on the same host map.

The segment starts with a page that says what it is: a random token and the length and type of the two flat tensors
behind it. A server that finds the token of a Hello there has mapped that worker's memory and no other.
"""

import re
import secrets
import struct
from contextlib import suppress
from hmac import compare_digest
from mmap import mmap

import torch
from torch import Tensor

from paceline.collectives.shm import segment
from paceline.collectives.shm.segment import PAGE
from paceline.runtimes.flat import CONTROL, own_memory
from paceline.runtimes.live.served.kinds import Refused
from paceline.runtimes.live.served.shape import Shape, span_of

_HEAD = struct.Struct("<8s32sqq")
_MAGIC = b"paceline"
_NAME = re.compile(rf"{segment.PREFIX}[A-Za-z0-9._-]{{1,200}}")


class Area:
    """A mapped segment, as both ends look into it."""

    def __init__(self, mapped: mmap, length: int, dtype: torch.dtype) -> None:
        """``length`` counts the elements of each of the two tensors, those in front included."""
        self._stride = _stride(length, dtype)
        self._length, self._dtype = length, dtype
        self._bytes = torch.frombuffer(mapped, dtype=torch.uint8)

    def tensor(self, number: int) -> Tensor:
        """The first (parameters) or the second (gradients) flat tensor, with the elements in front."""
        return self.view(PAGE + number * self._stride, self._length, self._dtype)

    def view(self, offset: int, length: int, dtype: torch.dtype) -> Tensor:
        """The tensor that lies there, or Refused: it must be of the segment's type and behind its first page."""
        if dtype is not self._dtype:
            raise Refused("wrong type")
        end = offset + length * dtype.itemsize
        if offset < PAGE or offset % dtype.itemsize or end > self._bytes.numel():
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
        self.name = ""
        """Under which servers find the segment; empty where there is none."""
        self.token = ""
        self.why = ""
        """Why the memory is not shared, in a sentence."""
        self.params: Tensor | None = None
        self._run = run
        self._area: Area | None = None
        self._made = 0

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

    def publish_over(self) -> None:
        """All servers have answered: take the name away; the memory stays while somebody maps it."""
        if self.name:
            segment.remove(self.name)

    def _share(self, length: int, dtype: torch.dtype, device: torch.device) -> None:
        if device.type != "cpu":
            self.why = f"the parameters lie on {device}"
            return
        name, size = segment.segment_name(self._run, "served", 0), PAGE + 2 * _stride(length, dtype)
        with suppress(OSError):
            segment.sweep()
        try:
            mapped = segment.create(name, size)
        except segment.NoRoom as error:
            self.why = str(error)
            return
        token = secrets.token_bytes(32)
        _HEAD.pack_into(mapped, 0, _MAGIC, token, length, dtype.itemsize)
        self.name, self.token = name, token.hex()
        self._area = Area(mapped, length, dtype)


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


def attach(name: str, token: str, shape: Shape, rank: int, servers: int) -> Mapped | None:
    """Map the memory that a Hello names; None where it is not on this host or not what it should be."""
    if not _NAME.fullmatch(name):
        return None
    try:
        return _attach(name, bytes.fromhex(token), shape, rank, servers)
    except (OSError, ValueError):  # fromhex and mmap say ValueError
        return None


def _attach(name: str, token: bytes, shape: Shape, rank: int, servers: int) -> Mapped | None:
    magic, found, length, itemsize = _HEAD.unpack_from(segment.attach(name, PAGE))
    if magic != _MAGIC or not compare_digest(found, token) or itemsize != shape.dtype.itemsize:
        return None
    size = PAGE + 2 * _stride(length, shape.dtype)
    if length < CONTROL or size != (segment.ROOM / name).stat().st_size:
        return None
    span = span_of(length - CONTROL, servers, rank)
    if span.length != shape.length:
        return None
    area = Area(segment.attach(name, size), length, shape.dtype)
    return Mapped(area, area.tensor(0)[CONTROL:][span.start : span.start + span.length])


def _stride(length: int, dtype: torch.dtype) -> int:
    """Bytes from one tensor to the next: whole pages."""
    return -(-length * dtype.itemsize // PAGE) * PAGE
