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
from paceline.shm.barrier import LINE, MASK, NAP, WORD, PeerLost, Peers, address_of
from paceline.shm.call import DTYPES
from paceline.shm.operations import InvalidCall

BUDGET = 2**18
"""Bytes of a slot between two ranks; with more ranks the slots become smaller, as there are more of them."""
SMALLEST = 2**12
_HEADER = Struct("<qqq")
"""The message's tag, type and bytes, in a line in front of a slot's data."""
_FILLED, _EMPTIED = 0, 1
"""Which word the sender writes, and which the receiver."""


def slot_bytes(size: int) -> int:
    return max(SMALLEST, BUDGET * 2 // size // SMALLEST * SMALLEST)


def box_bytes(size: int) -> int:
    """Bytes of one box: two words and two slots."""
    return 2 * LINE + 2 * (LINE + slot_bytes(size))


class _Box:
    """One direction between two ranks: a count of slots filled, and one of slots emptied."""

    def __init__(self, memory: mmap, start: int, peers: Peers, other: int, timeout: float) -> None:
        self._memory, self._peers, self._other, self._timeout = memory, peers, other, timeout
        self._capacity = size = slot_bytes(peers.size)
        self._words = memoryview(memory)[start : start + 2 * LINE].cast("I")
        self._address = address_of(memory) + start
        self._starts = [start + 2 * LINE + turn * (LINE + size) for turn in range(2)]
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        self._slots = [whole[at + LINE : at + LINE + size] for at in self._starts]
        self._count = 0
        """Slots that this side has filled, or emptied."""

    def _seen(self, word: int) -> int:
        return self._words[word * LINE // WORD]

    def _advance(self, word: int) -> None:
        self._count += 1
        self._words[word * LINE // WORD] = self._count & MASK
        futex.wake(self._address + word * LINE)

    def _wait(self, word: int, ready: Callable[[], bool], doing: str) -> None:
        """Sleep until ``ready``, which depends on a word that the other rank writes."""
        begun = monotonic()
        while True:
            value = self._seen(word)
            if ready():
                return
            if self._peers.closed:
                raise PeerLost(f"this group was closed (during {doing})")
            gone = self._peers.gone().get(self._other)
            if gone and not ready():
                raise self._peers.loss(*gone, doing)
            if monotonic() - begun > self._timeout:
                raise self._peers.loss(self._other, f"did not arrive within {self._timeout:g} s", doing)
            futex.sleep(self._address + word * LINE, value, NAP)


class Outbox(_Box):
    """The sender's side."""

    def send(self, tensor: Tensor, tag: int) -> None:
        """Return when the tensor has left; the other rank need not have taken all of it."""
        data = tensor.view(-1).view(torch.uint8)
        for start in range(0, max(1, len(data)), self._capacity):
            part = data[start : start + self._capacity]
            self._wait(_EMPTIED, lambda: (self._count - self._seen(_EMPTIED)) & MASK < 2, "send")
            turn = self._count & 1
            _HEADER.pack_into(self._memory, self._starts[turn], tag, DTYPES.index(tensor.dtype), len(data))
            self._slots[turn][: len(part)].copy_(part)
            self._advance(_FILLED)


class Inbox(_Box):
    """The receiver's side; messages with another tag than the one that is asked for are kept for later."""

    def __init__(self, memory: mmap, start: int, peers: Peers, other: int, timeout: float) -> None:
        super().__init__(memory, start, peers, other, timeout)
        self._kept: dict[int, deque[tuple[torch.dtype, Tensor]]] = defaultdict(deque)
        self._lock = Lock()
        """Held while a message is taken out: several threads may wait, for different tags or any source."""

    def _waiting(self) -> bool:
        return (self._seen(_FILLED) - self._count) & MASK > 0

    def receive(self, tensor: Tensor, tag: int) -> None:
        """Fill the tensor with the next message of that tag; refused if its size or type is another."""
        while not self.offer(tensor, tag):
            self._wait(_FILLED, lambda: self._waiting() or bool(self._kept[tag]), "recv")

    def offer(self, tensor: Tensor, tag: int) -> bool:
        """Receive if a message of that tag has begun to come in, and say so; those before it are kept."""
        with self._lock:
            while not self._kept[tag]:
                if not self._waiting():
                    return False
                head, number, size = _HEADER.unpack_from(self._memory, self._starts[self._count & 1])
                fits = head == tag and DTYPES[number] == tensor.dtype and size == tensor.nbytes
                target = tensor.view(-1).view(torch.uint8) if fits else torch.empty(size, dtype=torch.uint8)
                self._take(target)
                if fits:
                    return True
                self._kept[head].append((DTYPES[number], target))
            dtype, data = self._kept[tag].popleft()
        if dtype != tensor.dtype or len(data) != tensor.nbytes:
            raise InvalidCall(
                f"recv expected {tensor.numel()} x {tensor.dtype} and rank {self._peers.names[self._other]} sent "
                f"{len(data) // dtype.itemsize} x {dtype}; both sides need the same size and type"
            )
        tensor.view(-1).view(torch.uint8).copy_(data)
        return True

    def _take(self, target: Tensor) -> None:
        for start in range(0, max(1, len(target)), self._capacity):
            part = target[start : start + self._capacity]
            self._wait(_FILLED, self._waiting, "recv")
            part.copy_(self._slots[self._count & 1][: len(part)])
            self._advance(_EMPTIED)
