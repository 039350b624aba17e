"""From a store and a rank to a communicator: the ranks of a host share memory, and Gloo connects several hosts."""

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from mmap import mmap

from msgspec.json import Decoder, encode
from torch.distributed import ProcessGroupGloo
from torch.distributed.distributed_c10d import PrefixStore, Store

from paceline.shm.arena import EXCHANGED, ArenaLayout, SharedTensors, SlotArena
from paceline.shm.barrier import supported
from paceline.shm.group_store import START, GroupStore
from paceline.shm.hierarchical_comm import HierarchicalComm
from paceline.shm.host import sharing_id
from paceline.shm.local_comm import LocalComm
from paceline.shm.segment import Handle, NoRoom, map_together

Warn = Callable[[str], None]
_OFFER = Decoder(Handle | str)


def join(
    *, store: Store, rank: int, names: Sequence[int], label: str, timeout: float, warn: Warn
) -> LocalComm | HierarchicalComm:
    """Form a group with the other ranks that ask the store for it; ``names`` is what errors call them."""
    told = GroupStore(store, rank, names, timeout)
    members = _find_members(told, rank, len(names))
    here = [other for other, (_, host) in enumerate(members) if host == members[rank][1]]
    memory = None
    try:
        memory = _first_memory(told, rank, here, label)
    except NoRoom as error:
        if rank == here[0]:
            warn(f"{error}; the ranks talk through Gloo instead")
    teams = _teams(told, [host for _, host in members])
    if memory is None:
        local = alone(names[rank], timeout)
    else:
        processes = [members[other][0] for other in here]
        arena = SlotArena(memory, here.index(rank), processes, [names[other] for other in here], timeout)
        local = _start(arena, label, warn)
    if len(teams) == 1:
        return local
    limit, firsts, leaders = timedelta(seconds=timeout), [team[0] for team in teams], None
    everyone = ProcessGroupGloo(PrefixStore("everybody", told.keys), rank, len(names), limit)
    if rank in firsts:
        leaders = ProcessGroupGloo(PrefixStore("leaders", told.keys), firsts.index(rank), len(firsts), limit)
    return HierarchicalComm(rank, names, teams, local, leaders, everyone, told)


def _find_members(told: GroupStore, rank: int, size: int) -> list[tuple[int, str]]:
    mine = (os.getpid(), sharing_id())
    told.write("member", mine)
    members: list[tuple[int, str]] = []
    for other in range(size):
        members.append(told.read("member", other))
        if other == rank and members[-1] != mine:
            told.refuse("member", other)
        if members[-1][1] == mine[1] and other != rank and supported():
            told.processes[other] = members[-1][0]
    return members


def _first_memory(told: GroupStore, rank: int, here: Sequence[int], label: str) -> mmap | None:
    """The memory that the ranks of this host share, None for one alone; handles pass through the store."""
    problem = "" if supported() else "shared memory needs Linux 5.3 or later on x86-64"
    if problem or len(here) == 1:
        told.write("mapped", problem)
        if len(here) == 1:
            return None
        raise NoRoom(problem)
    exchange, refuse = partial(told.exchange, here), partial(told.refuse, "table", here[0])
    return map_together(rank == here[0], label, ArenaLayout(len(here)).end, exchange, refuse)


def _start(arena: SlotArena, label: str, warn: Warn) -> LocalComm:
    try:
        arena.barrier.doing = START
        arena.barrier.wait()
    except BaseException:
        arena.close()
        raise
    return LocalComm(arena, SharedTensors(arena.rank, arena.size, partial(_more_memory, arena, label, warn)))


def alone(name: int, timeout: float) -> LocalComm:
    """A group of one: nothing is shared, and the same calls work."""
    arena = SlotArena(mmap(-1, ArenaLayout(1).end), 0, [os.getpid()], [name], timeout)
    return LocalComm(arena, SharedTensors(0, 1, lambda size: mmap(-1, size)))


def _more_memory(arena: SlotArena, label: str, warn: Warn, size: int) -> mmap | None:
    """A further segment on all ranks, or None on all if one cannot have it; handles pass through the arena."""

    def exchange(_: str, value: Handle | str) -> list[Handle | str]:
        packed = encode(value if isinstance(value, Handle) else value[: EXCHANGED // 2])
        return [_OFFER.decode(given) for given in arena.exchange(packed.ljust(EXCHANGED))]

    try:
        return map_together(arena.rank == 0, label, size, exchange)
    except NoRoom as error:
        if arena.rank == 0:
            warn(f"{error}; sums go through slots instead")
        return None


def _teams(told: GroupStore, hosts: Sequence[str]) -> list[list[int]]:
    split = {host for rank, host in enumerate(hosts) if told.read("mapped", rank)}
    teams: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        teams.setdefault(f"{host}/{rank}" if host in split else host, []).append(rank)
    return list(teams.values())
