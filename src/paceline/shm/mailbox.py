"""Messages from one rank to another on the same host: a box for each pair and direction, with two slots in turn."""

from collections import defaultdict, deque
from collections.abc import Callable
from mmap import mmap
from struct import Struct
from threading import Lock

import torch
from torch import Tensor

from paceline.shm import futex
from paceline.shm.barrier import LINE, MASK, WORD, Peers, address_of
from paceline.shm.call import DTYPES
from paceline.shm.operations import InvalidCall

BUDGET = 2**18
"""Bytes of a slot between two ranks; with more ranks the slots become smaller, as there are more of them."""
SMALLEST = 2**12
_HEADER = Struct("<qqq")
"""The message's tag, type and bytes, in a line in front of a slot's data."""
_FILLED, _EMPTIED = 0, LINE // WORD
"""The word that the sender writes, and that of the receiver: how many slots were filled, and emptied."""


def slot_bytes(size: int) -> int:
    return max(SMALLEST, BUDGET * 2 // size // SMALLEST * SMALLEST)


def box_bytes(size: int) -> int:
    """Bytes of one box: two words and two slots."""
    return 2 * LINE + 2 * (LINE + slot_bytes(size))


class Mailbox:
    """One end of one direction between two ranks. Messages with another tag than that asked for are kept for later."""

    def __init__(self, memory: mmap, start: int, peers: Peers, other: int) -> None:
        self._memory, self._peers, self._other = memory, peers, other
        self._capacity = size = slot_bytes(peers.size)
        self._words = memoryview(memory)[start : start + 2 * LINE].cast("I")
        self._address = address_of(memory) + start
        self._starts = [start + 2 * LINE + turn * (LINE + size) for turn in range(2)]
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        self._slots = [whole[at + LINE : at + LINE + size] for at in self._starts]
        self._count = 0
        """Slots that this end has filled, or emptied."""
        self._kept: dict[int, deque[tuple[torch.dtype, Tensor]]] = defaultdict(deque)
        self._lock = Lock()
        """Held while a message is taken out: several threads may wait, for different tags or any source."""

    def _wait(self, word: int, ready: Callable[[], bool], doing: str) -> None:
        awaits = lambda rank: rank == self._other and not ready()  # noqa: E731
        self._peers.wait(self._words, word, self._address, awaits, self._other, doing)

    def _advance(self, word: int) -> None:
        self._count += 1
        self._words[word] = self._count & MASK
        futex.wake(self._address + word * WORD)

    def send(self, tensor: Tensor, tag: int) -> None:
        """Return when the tensor has left; the other rank need not have taken all of it."""
        data, words = tensor.view(-1).view(torch.uint8), self._words
        for start in range(0, max(1, len(data)), self._capacity):
            part = data[start : start + self._capacity]
            self._wait(_EMPTIED, lambda: (self._count - words[_EMPTIED]) & MASK < 2, "send")
            turn = self._count & 1
            _HEADER.pack_into(self._memory, self._starts[turn], tag, DTYPES.index(tensor.dtype), len(data))
            self._slots[turn][: len(part)].copy_(part)
            self._advance(_FILLED)

    def _filled(self) -> bool:
        return (self._words[_FILLED] - self._count) & MASK > 0

    def receive(self, tensor: Tensor, tag: int) -> None:
        """Fill the tensor with the next message of that tag; refused if its size or type is another."""
        while not self.offer(tensor, tag):
            self._wait(_FILLED, lambda: self._filled() or bool(self._kept[tag]), "recv")

    def offer(self, tensor: Tensor, tag: int) -> bool:
        """Receive if a message of that tag has begun to come in, and say so; those before it are kept."""
        with self._lock:
            while not self._kept[tag]:
                if not self._filled():
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
            self._wait(_FILLED, self._filled, "recv")
            part.copy_(self._slots[self._count & 1][: len(part)])
            self._advance(_EMPTIED)
