"""From a store and a rank to a communicator: the ranks of a host share memory, and Gloo connects several hosts."""

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from mmap import mmap
from typing import Any

from torch.distributed import ProcessGroupGloo
from torch.distributed.distributed_c10d import PrefixStore

from paceline.shm.arena import ArenaLayout
from paceline.shm.barrier import supported
from paceline.shm.group_store import GroupStore
from paceline.shm.hierarchical_comm import HierarchicalComm
from paceline.shm.host import sharing_id
from paceline.shm.local_comm import LocalComm
from paceline.shm.segment import SharedMemoryUnavailable, map_together


@dataclass(frozen=True, kw_only=True)
class Options:
    """What ``pg_options`` of ``init_process_group`` and ``new_group`` may say."""

    run: str = "run"
    """What the shared memory is named after, besides the group."""
    warn: Callable[[str], None] = warnings.warn
    """Called on the first rank of a host that has too little memory to share."""


def join(options: Any, chosen: Options) -> LocalComm | HierarchicalComm:
    """Form a group with the other ranks that ask the store for it; ``options`` are those that torch gives a backend."""
    rank, names = options.group_rank, options.global_ranks_in_group or range(options.group_size)
    label, timeout = f"{chosen.run}-{options.group_id}", options.timeout.total_seconds()
    told = GroupStore(options.store, rank, names, timeout)
    members = _find_members(told, rank, len(names))
    here = [other for other, (_, host) in enumerate(members) if host == members[rank][1]]
    memory = None
    try:
        memory = _first_memory(told, rank, here, label)
    except SharedMemoryUnavailable as error:
        if rank == here[0]:
            chosen.warn(f"{error}; the ranks talk through Gloo instead")
    teams = _teams(told, [host for _, host in members])
    team = [rank] if memory is None else here
    processes, called = [members[other][0] for other in team], [names[other] for other in team]
    local = LocalComm(memory, team.index(rank), processes, called, timeout, label, chosen.warn)
    if len(teams) == 1:
        return local
    limit, firsts, leaders = options.timeout, [team[0] for team in teams], None
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
        raise SharedMemoryUnavailable(problem)
    exchange, refuse = partial(told.exchange, here), partial(told.refuse, "table", here[0])
    return map_together(rank == here[0], label, ArenaLayout(len(here)).end, exchange, refuse)


def _teams(told: GroupStore, hosts: Sequence[str]) -> list[list[int]]:
    split = {host for rank, host in enumerate(hosts) if told.read("mapped", rank)}
    teams: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        teams.setdefault(f"{host}/{rank}" if host in split else host, []).append(rank)
    return list(teams.values())
