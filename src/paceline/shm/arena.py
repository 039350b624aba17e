"""What the ranks of a group share on one host: its layout, the boxes for messages in it, and tensors beside it."""

from collections import defaultdict, deque
from collections.abc import Callable
from mmap import mmap
from struct import Struct
from threading import Lock

import torch
from torch import Tensor

from paceline.shm.barrier import LINE, MASK, ROWS, Barrier, FutexWords
from paceline.shm.call import DTYPES, ELSEWHERE
from paceline.shm.operations import InvalidCall
from paceline.shm.segment import PAGE

PIECE = 2**20
"""Bytes of a slot: small enough to stay in the cache between ranks, large enough that a barrier does not matter."""
EXCHANGED = 512
"""Bytes that a rank can pass to the others at a barrier."""
BUDGET = 2**18
"""Bytes of a message's slot between two ranks; with more ranks they become smaller."""
SMALLEST = 2**12
_HEADER = Struct("<qqq")
"""The message's tag, type and bytes, in a line in front of a slot's data."""
_FILLED, _EMPTIED = 0, 1
"""The word that the sender writes, and that of the receiver: how many slots were filled, and emptied."""


def slot_bytes(size: int) -> int:
    return max(SMALLEST, BUDGET * 2 // size // SMALLEST * SMALLEST)


def box_bytes(size: int) -> int:
    return 2 * LINE + 2 * (LINE + slot_bytes(size))


class Mailbox:
    """One end of one direction between two ranks. Messages with another tag than that asked for are kept for later."""

    def __init__(self, memory: mmap, start: int, barrier: Barrier, other: int) -> None:
        self._memory, self._barrier, self._other = memory, barrier, other
        self._capacity = size = slot_bytes(barrier.size)
        self._words = FutexWords(memory, start, 2)
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
        self._barrier.wait(self._words, word, awaits, self._other, doing)

    def _advance(self, word: int) -> None:
        self._count += 1
        self._words.write(word, self._count)

    def send(self, tensor: Tensor, tag: int) -> None:
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
        while not self.offer(tensor, tag):
            self._wait(_FILLED, lambda: self._filled() or bool(self._kept[tag]), "recv")

    def offer(self, tensor: Tensor, tag: int) -> bool:
        """Receive if a message of that tag has begun to arrive, and return whether; those before it are kept."""
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
                f"recv expected {tensor.numel()} x {tensor.dtype} and rank {self._barrier.names[self._other]} sent "
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


class ArenaLayout:
    """Offsets in the memory that ``size`` ranks share, in bytes from its start, behind the barrier's words."""

    def __init__(self, size: int) -> None:
        self.calls = ROWS * size * LINE
        self.boxes = self.calls + 2 * size * EXCHANGED
        self.slots = -(-(self.boxes + size * size * box_bytes(size)) // PAGE) * PAGE
        self.end = self.slots + 2 * (size + 1) * PIECE


class SharedTensors:
    """Tensors in shared memory: a segment for each, in which every rank has a part, numbered alike on all ranks."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._memories: list[tuple[Tensor, int]] = []
        self._numbers: dict[int, int] = {}

    def zeros(self, length: int, dtype: torch.dtype, make: Callable[[int], mmap | None]) -> Tensor:
        """This rank's part of a new one, or memory of its own if none can be shared; called by all together.

        ``make`` maps a new segment of a size in bytes together with all other ranks; None where memory is short.
        """
        stride = -(-max(1, length * dtype.itemsize) // PAGE) * PAGE
        made = make(stride * self._size)
        if made is None:
            return torch.zeros(length, dtype=dtype)
        # Its storage is this rank's part alone: what is saved or pickled of it holds no other rank's data.
        mine = torch.frombuffer(made, dtype=dtype, offset=self._rank * stride, count=max(1, length))[:length]
        self._numbers[mine.untyped_storage().data_ptr()] = len(self._memories)
        self._memories.append((torch.frombuffer(made, dtype=torch.uint8), stride))
        return mine

    def find(self, tensor: Tensor) -> tuple[int, int]:
        """The number of the segment that a tensor lies in, and the bytes before it in this rank's part."""
        if not self._numbers:
            return ELSEWHERE, 0
        start = tensor.untyped_storage().data_ptr()
        number = self._numbers.get(start, ELSEWHERE)
        return number, 0 if number == ELSEWHERE else tensor.data_ptr() - start

    def view(self, number: int, rank: int, like: Tensor, offset: int) -> Tensor:
        memory, stride = self._memories[number]
        start = rank * stride + offset
        return memory[start : start + like.nbytes].view(like.dtype)
