"""How the ranks of a host come to share memory: one makes a segment, the others map it, and its name goes."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from mmap import mmap

from paceline.collectives.hosts import host_id
from paceline.collectives.shm import futex, segment
from paceline.collectives.shm.allocations import Allocations
from paceline.collectives.shm.peers import PeerLost
from paceline.collectives.shm.register import START, Register
from paceline.collectives.shm.table import Layout, Table
from paceline.collectives.shm.team import Team

Warn = Callable[[str, int], None]
"""Is told what is wrong, and how many calls lie between there and the line that asked."""

_CALLER = 11
"""Calls between a warning here and the line that asked for the tensor."""


@dataclass(frozen=True, slots=True)
class Member:
    """A rank of the group: what it is called outside of it, and its process."""

    rank: int
    name: int
    process: int
    host: str


def meet_members(register: Register, rank: int, names: Sequence[int]) -> list[Member]:
    """Everybody's process and host, by rank; from then on those of this host are watched."""
    here = sharing_id()
    register.tell("member", rank, [os.getpid(), here])
    members = []
    for other, name in enumerate(names):
        members.append(Member(other, name, *register.hear("member", other)))
        if members[-1].host == here and other != rank and futex.supported():
            register.watch(other, members[-1].process)
    return members


def sharing_id() -> str:
    """The same for processes of one host that can share memory and watch each other: what else that needs."""
    if not (futex.supported() and segment.ROOM.exists()):
        return host_id()
    return f"{host_id()}/{segment.ROOM.stat().st_dev}/{segment.process_space()}/{os.getuid()}"


def form_team(
    register: Register,
    rank: int,
    members: Sequence[Member],
    label: tuple[str, str],
    timeout: float,
    warn: Warn,
) -> Team:
    """Share memory among ``members``, who are all on this host; ``rank`` is one of them, ``label`` the run and group.

    Raises ``segment.NoRoom`` on all of them alike if there is too little memory to share.
    """
    try:
        table, name = _share(register, rank, members, label, timeout)
    except PeerLost:
        segment.sweep()  # its maker may have died before anybody heard of it
        raise
    return Team(table, Allocations(table.rank, len(members), _Maker(table, name, warn)))


def _share(
    register: Register, rank: int, members: Sequence[Member], label: tuple[str, str], timeout: float
) -> tuple[Table, str]:
    """The table in the shared memory, and the name that the memory had."""
    first, size = members[0], Layout(len(members)).end
    place = next(index for index, member in enumerate(members) if member.rank == rank)
    makes = rank == first.rank
    name = _choose_name(register, rank, label) if makes else _hear_name(register, first)
    try:
        memory = _make(register, rank, name, size) if makes else _map(register, first, name, size)
        table = Table(
            memory,
            place,
            [member.process for member in members],
            [member.name for member in members],
            timeout,
        )
        _begin(table)
    finally:  # also if this rank was interrupted before anybody heard of the name
        segment.remove(name)
    return table, name


def _begin(table: Table) -> None:
    try:
        table.meeting.doing = START
        table.meeting.meet()
    except BaseException:
        table.close()
        raise


def _choose_name(register: Register, rank: int, label: tuple[str, str]) -> str:
    if futex.supported():
        return segment.segment_name(*label, 0)
    error = segment.NoRoom("shared memory needs Linux 5.3 or later on x86-64")
    register.tell("table", rank, {"refused": str(error)})
    raise error


def _make(register: Register, rank: int, name: str, size: int) -> mmap:
    segment.sweep()
    try:
        memory = segment.create(name, size)
    except segment.NoRoom as error:
        register.tell("table", rank, {"refused": str(error)})
        raise
    register.tell("table", rank, {"name": name})
    return memory


def _hear_name(register: Register, first: Member) -> str:
    offer = register.hear("table", first.rank)
    if "refused" in offer:
        raise segment.NoRoom(offer["refused"])
    return str(offer["name"])


def _map(register: Register, first: Member, name: str, size: int) -> mmap:
    try:
        return segment.attach(name, size)
    except FileNotFoundError:  # somebody gave up, which takes the name away
        register.check()
        raise PeerLost(f"rank {first.name} or another one gave up (during {START})") from None


class _Maker:
    """Makes the later segments of a group: the first rank creates, all map, the name goes."""

    def __init__(self, table: Table, name: str, warn: Warn) -> None:
        self._table, self._name, self._warn, self._serial = table, name, warn, 0

    def __call__(self, size: int) -> mmap | None:
        """The new segment, or None on every rank if there is too little room; the first rank then warns."""
        self._serial += 1
        stem, space, process = self._name.rsplit(".", 2)
        name = f"{stem.rpartition('-')[0]}-{self._serial}.{space}.{process}"
        try:
            return self._share(name, size)
        finally:
            segment.remove(name)

    def _share(self, name: str, size: int) -> mmap | None:
        table, memory, problem = self._table, None, ""
        if table.rank == 0:
            try:
                memory = segment.create(name, size)
            except segment.NoRoom as error:
                problem = f"{error}; sums go through slots instead"
        table.meeting.meet()
        if table.rank > 0 and (segment.ROOM / name).exists():
            memory = segment.attach(name, size)
        table.meeting.meet()
        if problem:
            self._warn(problem, _CALLER)
        return memory
