"""The memory that the ranks of a group share on one host: which are alive, what each asks for, and slots for data."""

from collections.abc import Callable, Sequence
from mmap import mmap
from time import monotonic

import torch
from torch import Tensor

from paceline.shm.barrier import HAS_LEFT, LINE, Barrier, PeerLost, Peers
from paceline.shm.call import ELSEWHERE
from paceline.shm.mailbox import Mailbox, box_bytes
from paceline.shm.segment import PAGE

PIECE = 2**20
"""Bytes of a slot. Tensors that live elsewhere pass through slots piece by piece: small enough to stay in the cache
between the rank that writes and those that read, large enough that a barrier for each piece does not matter."""
EXCHANGED = 512
"""Bytes that a rank can give the others at a barrier."""


class ArenaLayout:
    """What lies where in the memory of a group of so many ranks, in bytes from its start; words of peers come first."""

    def __init__(self, size: int) -> None:
        self.barrier = size * LINE
        self.calls = self.barrier + size * LINE
        self.boxes = self.calls + 2 * size * EXCHANGED
        self.slots = -(-(self.boxes + size * size * box_bytes(size)) // PAGE) * PAGE
        self.end = self.slots + 2 * (size + 1) * PIECE


class SlotArena:
    """Two slots a rank and two for results, used in turn: what is written before a beat is read after it."""

    def __init__(
        self, memory: mmap, rank: int, processes: Sequence[int], names: Sequence[int], timeout: float
    ) -> None:
        """``memory`` is all zeros; ``names`` is what errors call the ranks, whose process ids are ``processes``."""
        self.rank, self.size, self.names = rank, len(processes), names
        self._memory, self._timeout = memory, timeout
        layout = self._layout = ArenaLayout(self.size)
        self._peers = Peers(memory, rank, processes, names, timeout)
        self.barrier = Barrier(memory, layout.barrier, self._peers)
        self._calls = [
            [layout.calls + (2 * other + turn) * EXCHANGED for other in range(self.size)] for turn in range(2)
        ]
        self._typed: dict[torch.dtype, list[list[Tensor]]] = {}

    @property
    def turn(self) -> int:
        """Which of the two slots the next beat makes readable."""
        return (self.barrier.beat + 1) & 1

    def slots(self, dtype: torch.dtype) -> list[list[Tensor]]:
        """By turn and rank; the last of each turn is for results."""
        if dtype not in self._typed:
            whole = torch.frombuffer(self._memory, dtype=torch.uint8)[self._layout.slots : self._layout.end]
            turns = whole.view(2, self.size + 1, PIECE)
            self._typed[dtype] = [[slot.view(dtype) for slot in turn] for turn in turns]
        return self._typed[dtype]

    def exchange(self, packed: bytes) -> list[bytes]:
        """Wait for all ranks, and return what each gave, by rank; all give as many bytes."""
        memory, starts, size = self._memory, self._calls[(self.barrier.beat + 1) & 1], len(packed)
        memory[starts[self.rank] : starts[self.rank] + size] = packed
        self.barrier.wait()
        return [memory[start : start + size] for start in starts]

    def box(self, source: int, target: int) -> Mailbox:
        """This rank's end of what goes from one rank to another."""
        start = self._layout.boxes + (source * self.size + target) * box_bytes(self.size)
        return Mailbox(self._memory, start, self._peers, target if source == self.rank else source)

    def check_senders(self, begun: float) -> None:
        """Raise if a message from any source may never arrive: a rank is lost, all have left, or the time is over."""
        if self._peers.lost:
            raise PeerLost(self._peers.lost)
        gone = list(self._peers.gone().values())
        lost = [(culprit, fate) for culprit, fate in gone if fate != HAS_LEFT]
        for culprit, fate in lost or (gone if len(gone) == self.size - 1 else []):
            raise self._peers.loss(culprit, fate, "recv")
        if monotonic() - begun > self._timeout:
            raise PeerLost(f"no rank sent anything within {self._timeout:g} s (during recv)")

    def close(self) -> None:
        """Leave; ranks that still wait for this one notice."""
        self._peers.close()
        self.barrier.wake()


class SharedTensors:
    """Tensors in shared memory: a segment for each, in which every rank has a part, numbered alike on all ranks."""

    def __init__(self, rank: int, size: int, make: Callable[[int], mmap | None]) -> None:
        """``make`` maps a new segment of so many bytes together with all other ranks; None where there is no room."""
        self._rank, self._size, self._make = rank, size, make
        self._memories: list[tuple[Tensor, int]] = []
        self._numbers: dict[int, int] = {}

    def zeros(self, length: int, dtype: torch.dtype) -> Tensor:
        """This rank's part of a new one, or memory of its own if none can be shared; called by all together."""
        stride = -(-max(1, length * dtype.itemsize) // PAGE) * PAGE
        made = self._make(stride * self._size)
        if made is None:
            return torch.zeros(length, dtype=dtype)
        # Its storage is this rank's part alone: what is saved or pickled of it holds no other rank's data.
        mine = torch.frombuffer(made, dtype=dtype, offset=self._rank * stride, count=max(1, length))[:length]
        self._numbers[mine.untyped_storage().data_ptr()] = len(self._memories)
        self._memories.append((torch.frombuffer(made, dtype=torch.uint8), stride))
        return mine

    def find(self, tensor: Tensor) -> tuple[int, int]:
        """The number of the segment that a tensor lies in, and the bytes before it in this rank's part."""
        start = tensor.untyped_storage().data_ptr()
        number = self._numbers.get(start, ELSEWHERE)
        return number, 0 if number == ELSEWHERE else tensor.data_ptr() - start

    def view(self, number: int, rank: int, like: Tensor, offset: int) -> Tensor:
        """Another rank's tensor, of the type and length of this rank's."""
        memory, stride = self._memories[number]
        start = rank * stride + offset
        return memory[start : start + like.nbytes].view(like.dtype)
