"""The memory that the ranks of a group share on one host: who is here, what each asks for, and slots for data."""

from collections.abc import Sequence
from mmap import mmap
from time import monotonic

import torch
from torch import Tensor

from paceline.shm import call
from paceline.shm.mailbox import Inbox, Outbox, box_bytes
from paceline.shm.meeting import Meeting
from paceline.shm.operations import InvalidCall
from paceline.shm.peers import HAS_LEFT, LINE, PeerLost, Peers
from paceline.shm.segment import PAGE

PIECE = 2**20
"""Bytes of a slot. Tensors that live elsewhere pass through slots piece by piece: small enough to stay in the cache
between the one who writes and those who read, large enough that meeting once a piece does not matter."""


class Layout:
    """What lies where in the memory of a group of so many ranks, in bytes from its start."""

    def __init__(self, size: int) -> None:
        self.peers = 0
        self.meeting = self.peers + size * LINE
        self.calls = self.meeting + size * LINE
        self.boxes = self.calls + 2 * size * call.SIZE
        self.slots = -(-(self.boxes + size * size * box_bytes(size)) // PAGE) * PAGE
        self.end = self.slots + 2 * (size + 1) * PIECE


class Table:
    """Two slots a rank and two for results, used in turn: what is laid down before a beat is read after it."""

    def __init__(
        self, memory: mmap, rank: int, processes: Sequence[int], names: Sequence[int], timeout: float
    ) -> None:
        """``memory`` is all zeros; ``names`` is what errors call the ranks, whose process ids are ``processes``."""
        self.rank, self.size, self.names = rank, len(processes), names
        self._memory, self._layout, self._timeout = memory, Layout(self.size), timeout
        self._peers = Peers(memory, self._layout.peers, rank, processes, names)
        self.meeting = Meeting(memory, self._layout.meeting, self._peers, timeout)
        self._slots = torch.frombuffer(memory, dtype=torch.uint8)[self._layout.slots : self._layout.end]
        self._places = [[self._place(turn, other) for other in range(self.size)] for turn in range(2)]
        self._typed: dict[torch.dtype, list[list[Tensor]]] = {}

    @property
    def turn(self) -> int:
        """Which of the two slots the next beat makes readable."""
        return (self.meeting.beat + 1) & 1

    def slots(self, dtype: torch.dtype) -> list[list[Tensor]]:
        """By turn and rank; the last of each turn is for results."""
        if dtype not in self._typed:
            turns = self._slots.view(2, self.size + 1, PIECE)
            self._typed[dtype] = [[slot.view(dtype) for slot in turn] for turn in turns]
        return self._typed[dtype]

    def exchange(self, packed: bytes) -> list[bytes]:
        """Meet, and return what every rank gave, by rank: as many bytes, no more than a call takes."""
        self.ask(packed)
        self.meeting.meet()
        return self._asked(len(packed))

    def ask(self, packed: bytes) -> None:
        """Lay down what this rank is about to ask for at the next beat."""
        start = self._places[(self.meeting.beat + 1) & 1][self.rank]
        self._memory[start : start + len(packed)] = packed

    def expect(self, packed: bytes) -> None:
        """After the beat: make sure that everybody asked for the very same. Raises as ``answers`` does."""
        size = len(packed)
        for start in self._places[self.meeting.beat & 1]:
            if self._memory[start : start + size] != packed:
                self.answers(packed)

    def answers(self, packed: bytes) -> list[bytes]:
        """After the beat: what each rank asked for. Raises the same error on all ranks if they do not agree."""
        asked = self._asked(len(packed))
        for other in asked:
            if not call.agrees(packed, other):
                raise InvalidCall(self._disagreement(asked))
        return asked

    def _asked(self, size: int) -> list[bytes]:
        return [self._memory[start : start + size] for start in self._places[self.meeting.beat & 1]]

    def _place(self, turn: int, rank: int) -> int:
        return self._layout.calls + (2 * rank + turn) * call.SIZE

    def _disagreement(self, asked: Sequence[bytes]) -> str:
        """The first rank against the first that differs: the same words on every rank."""
        other = next(rank for rank in range(self.size) if not call.agrees(asked[0], asked[rank]))
        one, two = call.unpack(asked[0]), call.unpack(asked[other])
        return call.disagreement(self.names[0], one, self.names[other], two)

    def outbox(self, other: int) -> Outbox:
        """Where messages for another rank are laid."""
        return Outbox(self._memory, self._box(self.rank, other), self._peers, other, self._timeout)

    def inbox(self, other: int) -> Inbox:
        """Where messages of another rank come in."""
        return Inbox(self._memory, self._box(other, self.rank), self._peers, other, self._timeout)

    def check_senders(self, begun: float) -> None:
        """Raise if a message from anybody may never come: a rank is lost, all have left, or it takes too long."""
        if self._peers.closed:
            raise PeerLost("this group was closed (during recv)")
        gone = list(self._peers.gone().values())
        lost = [(culprit, fate) for culprit, fate in gone if fate != HAS_LEFT]
        for culprit, fate in lost or (gone if len(gone) == self.size - 1 else []):
            raise self._peers.loss(culprit, fate, "recv")
        if monotonic() - begun > self._timeout:
            raise PeerLost(f"nobody sent anything within {self._timeout:g} s (during recv)")

    def _box(self, source: int, target: int) -> int:
        return self._layout.boxes + (source * self.size + target) * box_bytes(self.size)

    def close(self) -> None:
        """Leave; whoever still waits for this rank is told."""
        self.meeting.close()
        self._peers.close()
