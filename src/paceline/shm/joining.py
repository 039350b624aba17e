"""From a store and a rank to a communicator: the ranks of a host share memory, and Gloo connects several hosts."""

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from mmap import mmap
from struct import Struct

from torch.distributed import ProcessGroupGloo
from torch.distributed.distributed_c10d import PrefixStore, Store

from paceline.shm import futex, segment
from paceline.shm.arena import ArenaLayout, SharedTensors, SlotArena
from paceline.shm.group_store import LEADER, MAPPED, MEMBER, OFFER, START, GroupStore
from paceline.shm.hierarchical_comm import HierarchicalComm
from paceline.shm.host import sharing_id
from paceline.shm.local_comm import LocalComm

Warn = Callable[[str, int], None]
"""Takes what is wrong, and how many calls lie between there and the line that asked."""

_FORMING, _MAKING = 5, 10
"""Calls between a warning here and the line that made the group, or asked for a tensor."""
_HANDLE = Struct(f"<qq{segment.TOKEN}s")
_NOTHING = bytes(_HANDLE.size)
"""In place of a handle: there is no segment, or another rank makes it."""
_MAPPED, _NOT_MAPPED = b"\1", b"\0"


def join(
    *, store: Store, rank: int, names: Sequence[int], run: str, group: str, timeout: float, warn: Warn
) -> LocalComm | HierarchicalComm:
    """Form a group with the other ranks that ask the store for it; ``names`` is what errors call them.

    ``warn`` is called on the first rank of a host that has too little memory to share. ``run`` and ``group`` name the
    memory. A store outlives groups, and torch uses their names again: each time that a group forms has keys of its
    own. All ranks must have tried as often as each other.
    """
    generation = GroupStore(store, names, timeout).count("formed", rank)
    fresh = PrefixStore(str(generation), store)
    joining = _Joining(fresh, GroupStore(fresh, names, timeout), rank, names, f"{run}-{group}", timeout, warn)
    members = joining.find_members()
    here = [other for other, (_, host) in enumerate(members) if host == members[rank][1]]
    local, shared = joining.share_memory(here, [members[other][0] for other in here])
    if len(shared) == len(names):
        return local
    return joining.connect_hosts(local, shared)


@dataclass(frozen=True)
class _Joining:
    """One rank of a group that is about to form."""

    torch_store: Store
    store: GroupStore
    rank: int
    names: Sequence[int]
    label: str
    timeout: float
    warn: Warn

    def find_members(self) -> list[tuple[int, str]]:
        """The process and the host of every rank; from then on those of this host are watched."""
        mine = (os.getpid(), sharing_id())
        self.store.write(MEMBER, self.rank, mine)
        members = []
        for other in range(len(self.names)):
            members.append(self.store.read(MEMBER, other))
            if other == self.rank and members[-1] != mine:
                self.store.refuse(MEMBER, other)
            if members[-1][1] == mine[1] and other != self.rank and futex.supported():
                self.store.watch(other, members[-1][0])
        return members

    def share_memory(self, here: Sequence[int], processes: Sequence[int]) -> tuple[LocalComm, Sequence[int]]:
        """Share memory among the ranks of this host; with the ranks that share: this one alone if that cannot be."""
        if len(here) == 1:
            return alone(self.names[self.rank], self.timeout), here
        try:
            memory = self._map_together(here)
        except segment.NoRoom as error:
            if self.rank == here[0]:
                self.warn(f"{error}; the ranks talk through Gloo instead", _FORMING)
            return alone(self.names[self.rank], self.timeout), [self.rank]
        names = [self.names[rank] for rank in here]
        arena = SlotArena(memory, here.index(self.rank), processes, names, self.timeout)
        try:
            arena.barrier.doing = START
            arena.barrier.wait()
        except BaseException:
            arena.close()
            raise
        make = partial(_make_together, arena, self.label, self.warn)
        return LocalComm(arena, SharedTensors(arena.rank, arena.size, make)), here

    def _map_together(self, here: Sequence[int]) -> mmap:
        """The memory, once all have mapped it; ``NoRoom`` on all of them if one could not."""
        size = ArenaLayout(len(here)).end
        if self.rank != here[0]:
            return self._agreed(here, self._attach(here[0], size))
        try:
            if not futex.supported():
                raise segment.NoRoom("shared memory needs Linux 5.3 or later on x86-64")
            made = segment.create(self.label, size)
        except segment.NoRoom as error:
            self.store.write(OFFER, self.rank, str(error))
            raise
        with closing(made):  # open as long as others may still look for it
            self.store.write(OFFER, self.rank, made.handle)
            return self._agreed(here, made.memory)

    def _attach(self, first: int, size: int) -> mmap | None:
        """Map what the first rank made, and tell the others whether that could be."""
        offer = self.store.read(OFFER, first)
        memory, problem = None, offer if isinstance(offer, str) else ""
        if isinstance(offer, segment.Handle):
            try:
                memory = segment.attach(offer, size)
            except segment.NoRoom as error:
                problem = str(error)
            except segment.Foreign as error:
                self.store.check()  # a rank that gives up closes what it has made
                self.store.refuse(OFFER, first, str(error))
        self.store.write(MAPPED, self.rank, problem)
        return memory

    def _agreed(self, here: Sequence[int], memory: mmap | None) -> mmap:
        problems = [self.store.read(MAPPED, rank) for rank in here[1:]]
        for problem in filter(None, problems):
            raise segment.NoRoom(problem)
        assert memory is not None, "a rank without it has written why"
        return memory

    def connect_hosts(self, local: LocalComm, shared: Sequence[int]) -> HierarchicalComm:
        hosts = self._hosts(shared)
        firsts = [ranks[0] for ranks in hosts]
        everyone = self._gloo("everybody", self.rank, len(self.names))
        leads = self.rank in firsts
        leaders = self._gloo("leaders", firsts.index(self.rank), len(firsts)) if leads else None
        return HierarchicalComm(self.rank, hosts, local, leaders, everyone, self.names, self.store)

    def _hosts(self, shared: Sequence[int]) -> list[list[int]]:
        """The ranks of every host, as all write it; of its own host a rank knows better."""
        self.store.write(LEADER, self.rank, shared[0])
        found: dict[int, list[int]] = {}
        for rank in range(len(self.names)):
            first = self.store.read(LEADER, rank)
            if (first == shared[0]) != (rank in shared):
                self.store.refuse(LEADER, rank)
            found.setdefault(first, []).append(rank)
        return list(found.values())

    def _gloo(self, name: str, rank: int, size: int) -> ProcessGroupGloo:
        store = PrefixStore(name, self.torch_store)
        return ProcessGroupGloo(store, rank, size, timedelta(seconds=self.timeout))


def alone(name: int, timeout: float) -> LocalComm:
    """A group of one: nothing is shared, and the same calls work."""
    arena = SlotArena(mmap(-1, ArenaLayout(1).end), 0, [os.getpid()], [name], timeout)
    return LocalComm(arena, SharedTensors(0, 1, lambda size: mmap(-1, size)))


def _make_together(arena: SlotArena, label: str, warn: Warn, size: int) -> mmap | None:
    """A further segment on all ranks, or None on all if one cannot have it; the first rank then warns.

    Its handle passes through the memory that is shared already.
    """
    memory, problem = _offer(arena, label, size) if arena.rank == 0 else (_take(arena, size), "")
    if problem:
        warn(f"{problem}; sums go through slots instead", _MAKING)
    return memory


def _offer(arena: SlotArena, label: str, size: int) -> tuple[mmap | None, str]:
    """The segment, or why there is none."""
    try:
        made = segment.create(label, size)
    except segment.NoRoom as error:
        arena.exchange(_NOTHING)
        return None, str(error)
    with closing(made):
        handle = made.handle
        arena.exchange(_HANDLE.pack(handle.process, handle.descriptor, handle.token))
        mapped = arena.exchange(_MAPPED)
    if _NOT_MAPPED in mapped:
        return None, f"rank {arena.names[mapped.index(_NOT_MAPPED)]} cannot map the shared memory"
    return made.memory, ""


def _take(arena: SlotArena, size: int) -> mmap | None:
    offered = arena.exchange(_NOTHING)[0]
    if offered == _NOTHING:
        return None
    try:
        memory = segment.attach(segment.Handle(*_HANDLE.unpack(offered)), size)
    except (segment.NoRoom, segment.Foreign):
        memory = None
    mapped = arena.exchange(_MAPPED if memory is not None else _NOT_MAPPED)
    return None if _NOT_MAPPED in mapped else memory
