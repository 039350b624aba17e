"""From a store and a rank to the party that the ranks make: one host's team, or several hosts."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from mmap import mmap

from torch.distributed import ProcessGroupGloo
from torch.distributed.distributed_c10d import PrefixStore, Store

from paceline.shm.allocations import Allocations
from paceline.shm.facts import TEAM
from paceline.shm.gathering import Member, Warn, form_team, meet_members
from paceline.shm.hosts import Hosts
from paceline.shm.party import Party
from paceline.shm.register import Register
from paceline.shm.segment import NoRoom
from paceline.shm.table import Layout, Table
from paceline.shm.team import Team


def join(
    *, store: Store, rank: int, names: Sequence[int], run: str, group: str, timeout: float, warn: Warn
) -> Party:
    """Form a group with the other ranks that ask the store for it; ``names`` is what errors call them.

    ``warn`` is called on the first rank of a host that has too little memory to share.

    A store outlives groups, and torch uses their names again: each time that a group forms has keys of its own. All
    ranks must have tried as often as each other.
    """
    generation = Register(store, names, timeout).count("formed", rank)
    fresh = PrefixStore(str(generation), store)
    return Joining(
        store=fresh,
        register=Register(fresh, names, timeout),
        rank=rank,
        names=names,
        run=run,
        group=group,
        timeout=timeout,
        warn=warn,
    ).join()


@dataclass(frozen=True, kw_only=True)
class Joining:
    """One rank of a group that is about to form."""

    store: Store
    """Where nobody has said anything before."""
    register: Register
    """What is said there."""
    rank: int
    names: Sequence[int]
    """What errors call the ranks: their ranks in the whole job."""
    run: str
    group: str
    timeout: float
    warn: Warn

    @property
    def size(self) -> int:
        """How many ranks the group has."""
        return len(self.names)

    def join(self) -> Party:
        """Find who shares this host, share memory with them, and connect to the other hosts if there are any."""
        members = meet_members(self.register, self.rank, self.names)
        here = [member for member in members if member.host == members[self.rank].host]
        team, leader = self._team(here)
        if team.size == self.size:
            return team
        teams = self._teams(leader, [member.rank for member in here] if team.size > 1 else [self.rank])
        everybody = self._gloo("everybody", self.rank, self.size)
        return Hosts(self.rank, teams, team, self._leaders(teams), everybody, self.names, self.register)

    def _team(self, here: Sequence[Member]) -> tuple[Team, int]:
        """This host's team and its first rank; where memory cannot be shared every rank is a host of its own."""
        if len(here) == 1:
            return alone(self.names[self.rank], self.timeout), self.rank
        try:
            label = f"{self.run}-{self.group}"
            team = form_team(self.register, self.rank, here, label, self.timeout, self.warn)
            return team, here[0].rank
        except NoRoom as error:
            if self.rank == here[0].rank:
                self.warn(f"{error}; the ranks talk through Gloo instead", 6)
            return alone(self.names[self.rank], self.timeout), self.rank

    def _teams(self, leader: int, mine: Sequence[int]) -> list[list[int]]:
        """The ranks of every team, as all tell it; of its own team a rank knows better."""
        self.register.tell(TEAM, self.rank, leader)
        found: dict[int, list[int]] = {}
        for rank in range(self.size):
            first = self.register.hear(TEAM, rank)
            if (first == leader) != (rank in mine):
                self.register.refuse(TEAM, rank)
            found.setdefault(first, []).append(rank)
        return list(found.values())

    def _leaders(self, teams: Sequence[Sequence[int]]) -> ProcessGroupGloo | None:
        firsts = [ranks[0] for ranks in teams]
        return self._gloo("leaders", firsts.index(self.rank), len(firsts)) if self.rank in firsts else None

    def _gloo(self, name: str, rank: int, size: int) -> ProcessGroupGloo:
        store = PrefixStore(name, self.store)
        return ProcessGroupGloo(store, rank, size, timedelta(seconds=self.timeout))


def alone(name: int, timeout: float) -> Team:
    """A team of one: nothing is shared, and the same calls work."""
    memory = mmap(-1, Layout(1).end)
    table = Table(memory, 0, [os.getpid()], [name], timeout)
    return Team(table, Allocations(0, 1, lambda size: mmap(-1, size)))
