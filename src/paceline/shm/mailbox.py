"""Messages from one rank to another on the same host: a box for each pair and direction, with two slots in turn."""

from collections import defaultdict, deque
from collections.abc import Callable
from mmap import mmap
from struct import Struct
from threading import Lock
from time import monotonic

import torch
from torch import Tensor

from paceline.shm import futex
from paceline.shm.call import DTYPES
from paceline.shm.meeting import NAP
from paceline.shm.operations import InvalidCall
from paceline.shm.peers import LINE, WORD, PeerLost, Peers, address_of

BUDGET = 2**18
"""Bytes of a slot between two ranks; with more ranks the slots become smaller, as there are more of them."""
SMALLEST = 2**12
_HEADER = Struct("<qqq")
_HEAD = LINE
"""Bytes in front of a slot's data: the message's tag, type and bytes."""
FILLED, EMPTIED = 0, 1
"""Which word the sender writes, and which the receiver."""
_MASK = 2**32 - 1


def slot_bytes(size: int) -> int:
    """Bytes of data in a slot."""
    return max(SMALLEST, BUDGET * 2 // size // SMALLEST * SMALLEST)


def box_bytes(size: int) -> int:
    """Bytes of one box: two words and two slots."""
    return 2 * LINE + 2 * (_HEAD + slot_bytes(size))


class _Box:
    """One direction between two ranks: a count of slots filled, and one of slots emptied."""

    def __init__(self, memory: mmap, start: int, peers: Peers, other: int, timeout: float) -> None:
        size = slot_bytes(peers.size)
        self._memory, self._peers, self._other, self._timeout = memory, peers, other, timeout
        self.capacity = size
        self._words = memoryview(memory)[start : start + 2 * LINE].cast("I")
        self._address = address_of(memory) + start
        self._starts = [start + 2 * LINE + turn * (_HEAD + size) for turn in range(2)]
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        self.slots = [whole[at + _HEAD : at + _HEAD + size] for at in self._starts]
        self.filled = self.emptied = 0

    def write_head(self, turn: int, tag: int, dtype: torch.dtype, size: int) -> None:
        _HEADER.pack_into(self._memory, self._starts[turn], tag, DTYPES.index(dtype), size)

    def read_head(self, turn: int) -> tuple[int, torch.dtype, int]:
        tag, dtype, size = _HEADER.unpack_from(self._memory, self._starts[turn])
        return tag, DTYPES[dtype], size

    def advance(self, word: int, value: int) -> None:
        self._words[word * LINE // WORD] = value & _MASK
        futex.wake(self._address + word * LINE)

    def seen(self, word: int) -> int:
        return self._words[word * LINE // WORD]

    def wait(self, word: int, ready: Callable[[], bool], doing: str) -> None:
        """Sleep until ``ready``, which depends on a word that the other rank writes."""
        begun = monotonic()
        while True:
            value = self.seen(word)
            if ready():
                return
            if self._peers.closed:
                raise PeerLost(f"this group was closed (during {doing})")
            gone = self._peers.gone().get(self._other)
            if gone and not ready():
                raise self._peers.loss(*gone, doing)
            if monotonic() - begun > self._timeout:
                raise self._peers.loss(self._other, f"did not come within {self._timeout:g} s", doing)
            futex.sleep(self._address + word * LINE, value, NAP)


class Outbox(_Box):
    """The sender's side."""

    def room(self) -> bool:
        """Whether a slot is free."""
        return (self.filled - self.seen(EMPTIED)) & _MASK < 2

    def send(self, tensor: Tensor, tag: int) -> None:
        """Return when the tensor has left; the other rank need not have taken all of it."""
        data = tensor.view(-1).view(torch.uint8)
        for start in range(0, max(1, len(data)), self.capacity):
            part = data[start : start + self.capacity]
            self.wait(EMPTIED, self.room, "send")
            turn = self.filled & 1
            self.write_head(turn, tag, tensor.dtype, len(data))
            self.slots[turn][: len(part)].copy_(part)
            self.filled += 1
            self.advance(FILLED, self.filled)


class Inbox(_Box):
    """The receiver's side; messages with another tag than the one that is asked for are kept for later."""

    def __init__(self, memory: mmap, start: int, peers: Peers, other: int, timeout: float) -> None:
        super().__init__(memory, start, peers, other, timeout)
        self._kept: dict[int, deque[tuple[torch.dtype, Tensor]]] = defaultdict(deque)
        self._lock = Lock()
        """Held by who takes a message out: several may be waited for, with different tags or from anybody."""

    def waiting(self) -> bool:
        """Whether a slot is full."""
        return (self.seen(FILLED) - self.emptied) & _MASK > 0

    def receive(self, tensor: Tensor, tag: int) -> None:
        """Fill the tensor with the next message of that tag; refused if its size or type is another."""
        while not self.offer(tensor, tag):
            self.wait(FILLED, lambda: self.waiting() or bool(self._kept[tag]), "recv")

    def offer(self, tensor: Tensor, tag: int) -> bool:
        """Receive if a message of that tag has begun to come in, and say so; those before it are kept."""
        with self._lock:
            while not self._kept[tag]:
                if not self.waiting():
                    return False
                head, dtype, size = self.read_head(self.emptied & 1)
                fits = head == tag and dtype == tensor.dtype and size == tensor.nbytes
                target = tensor.view(-1).view(torch.uint8) if fits else torch.empty(size, dtype=torch.uint8)
                self._take(target)
                if fits:
                    return True
                self._kept[head].append((dtype, target))
            dtype, data = self._kept[tag].popleft()
        self._fill(tensor, dtype, data)
        return True

    def _fill(self, tensor: Tensor, dtype: torch.dtype, data: Tensor) -> None:
        if dtype != tensor.dtype or len(data) != tensor.nbytes:
            raise InvalidCall(
                f"recv expected {tensor.numel()} x {tensor.dtype} and rank {self._peers.name(self._other)} sent "
                f"{len(data) // dtype.itemsize} x {dtype}; both sides need the same size and type"
            )
        tensor.view(-1).view(torch.uint8).copy_(data)

    def _take(self, target: Tensor) -> None:
        for start in range(0, max(1, len(target)), self.capacity):
            part = target[start : start + self.capacity]
            self.wait(FILLED, self.waiting, "recv")
            part.copy_(self.slots[self.emptied & 1][: len(part)])
            self.emptied += 1
            self.advance(EMPTIED, self.emptied)
