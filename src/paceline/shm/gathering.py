"""How the ranks of a host come to share memory: the first makes a segment, and the others map it."""

import os
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from mmap import mmap
from struct import Struct

from paceline.shm import futex, segment
from paceline.shm.allocations import Allocations
from paceline.shm.facts import MAPPED, MEMBER, OFFER
from paceline.shm.host import sharing_id
from paceline.shm.register import START, Register
from paceline.shm.table import Layout, Table
from paceline.shm.team import Team

Warn = Callable[[str, int], None]
"""Is told what is wrong, and how many calls lie between there and the line that asked."""

_CALLER = 10
"""Calls between a warning here and the line that asked for the tensor."""
_HANDLE = Struct(f"<qq{segment.TOKEN}s")
_NOTHING = bytes(_HANDLE.size)
"""In place of a handle: there is no segment, or another rank makes it."""
_MAPPED, _NOT_MAPPED = b"\1", b"\0"


@dataclass(frozen=True, slots=True)
class Member:
    """A rank of the group: what it is called outside of it, and its process."""

    rank: int
    name: int
    process: int
    host: str


def meet_members(register: Register, rank: int, names: Sequence[int]) -> list[Member]:
    """Everybody's process and host, by rank; from then on those of this host are watched."""
    mine = (os.getpid(), sharing_id())
    register.tell(MEMBER, rank, mine)
    members = []
    for other, name in enumerate(names):
        told = register.hear(MEMBER, other)
        if other == rank and told != mine:
            register.refuse(MEMBER, rank)
        members.append(Member(other, name, *told))
        if members[-1].host == mine[1] and other != rank and futex.supported():
            register.watch(other, members[-1].process)
    return members


def form_team(
    register: Register,
    rank: int,
    members: Sequence[Member],
    label: str,
    timeout: float,
    warn: Warn,
) -> Team:
    """Share memory among ``members``, who are all on this host; ``rank`` is one of them.

    Raises ``segment.NoRoom`` on all of them alike if there is too little memory, or if one cannot map it. ``label`` is
    what tools show as the memory's name.
    """
    size = Layout(len(members)).end
    if rank == members[0].rank:
        with closing(_make(register, rank, label, size)) as made:
            memory = _agree(register, members, made.memory)
    else:
        memory = _agree(register, members, _map(register, rank, members[0].rank, size))
    table = Table(
        memory,
        next(place for place, member in enumerate(members) if member.rank == rank),
        [member.process for member in members],
        [member.name for member in members],
        timeout,
    )
    _begin(table)
    return Team(table, Allocations(table.rank, len(members), _Maker(table, label, warn)))


def _make(register: Register, rank: int, label: str, size: int) -> segment.Made:
    """Make the segment, and tell the others where it is, or why there is none."""
    try:
        if not futex.supported():
            raise segment.NoRoom("shared memory needs Linux 5.3 or later on x86-64")
        made = segment.create(label, size)
    except segment.NoRoom as error:
        register.tell(OFFER, rank, str(error))
        raise
    handle = made.handle
    register.tell(OFFER, rank, [handle.process, handle.descriptor, handle.token.hex()])
    return made


def _map(register: Register, rank: int, first: int, size: int) -> mmap | None:
    """Map what the first rank made, and tell whether that could be."""
    offer = register.hear(OFFER, first)
    if isinstance(offer, str):
        register.tell(MAPPED, rank, offer)
        return None
    try:
        memory = segment.attach(offer, size)
    except segment.NoRoom as error:
        register.tell(MAPPED, rank, str(error))
        return None
    except segment.Foreign as error:
        register.check()  # whoever gives up closes what it has made
        register.refuse(OFFER, first, str(error))
    register.tell(MAPPED, rank, "")
    return memory


def _agree(register: Register, members: Sequence[Member], memory: mmap | None) -> mmap:
    """The memory, once all have mapped it; ``NoRoom`` on all of them if one could not.

    All are heard before: the first rank keeps the memory open as long as others may still look for it.
    """
    problems = [register.hear(MAPPED, member.rank) for member in members[1:]]
    for problem in filter(None, problems):
        raise segment.NoRoom(problem)
    assert memory is not None, "whoever has none has said so"
    return memory


def _begin(table: Table) -> None:
    try:
        table.meeting.doing = START
        table.meeting.meet()
    except BaseException:
        table.close()
        raise


class _Maker:
    """Makes the later segments of a group; their handles pass through the memory that is shared already."""

    def __init__(self, table: Table, label: str, warn: Warn) -> None:
        self._table, self._label, self._warn = table, label, warn

    def __call__(self, size: int) -> mmap | None:
        """The new segment, or None on every rank if one of them cannot have it; the first rank then warns."""
        if self._table.rank > 0:
            return self._take(size)
        memory, problem = self._make(size)
        if problem:
            self._warn(f"{problem}; sums go through slots instead", _CALLER)
        return memory

    def _make(self, size: int) -> tuple[mmap | None, str]:
        """The segment, or why there is none."""
        try:
            made = segment.create(self._label, size)
        except segment.NoRoom as error:
            self._table.exchange(_NOTHING)
            return None, str(error)
        with closing(made):
            handle = made.handle
            self._table.exchange(_HANDLE.pack(handle.process, handle.descriptor, handle.token))
            mapped = self._table.exchange(_MAPPED)
        if _NOT_MAPPED in mapped:
            return None, f"rank {self._table.names[mapped.index(_NOT_MAPPED)]} cannot map the shared memory"
        return made.memory, ""

    def _take(self, size: int) -> mmap | None:
        told, memory = self._table.exchange(_NOTHING)[0], None
        if told == _NOTHING:
            return None
        with suppress(segment.NoRoom, segment.Foreign):
            memory = segment.attach(segment.Handle(*_HANDLE.unpack(told)), size)
        mapped = self._table.exchange(_MAPPED if memory is not None else _NOT_MAPPED)
        return None if _NOT_MAPPED in mapped else memory
