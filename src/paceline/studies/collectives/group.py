"""The workers of a benchmark as one of them reaches the others, and calls that all of them time together."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from statistics import quantiles
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from paceline import shm
from paceline.collectives.schedule import number_hosts
from paceline.errors import UsageError
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.run_store import MemberStore
from paceline.shm.host import host_id

_TIMEOUT = timedelta(seconds=120)

FEWEST_CALLS, MOST_CALLS = 3, 200
TURNS = 5
"""Of each work that is timed beside others: what disturbs for a second then disturbs all of them."""

Key = TypeVar("Key")


class BenchInterrupted(Exception):
    """A rank was asked to stop; raised on all ranks at the same place."""


class BenchGroup:
    """A Gloo group of all ranks and, beside it, one over shared memory; documents travel through the store.

    A context: it is left in agreement with the other ranks or, after an exception, without waiting for them.
    """

    def __init__(self, place: ProcessInfo, stopping: Callable[[], bool]) -> None:
        self.rank, self.workers, self._stopping = place.rank, place.workers, stopping
        self._store = MemberStore(place, _TIMEOUT)
        self.exchange = self._store.exchange
        """Every rank's JSON document, by rank."""
        dist.init_process_group(
            "gloo",
            store=PrefixStore("bench", self._store),
            rank=place.rank,
            world_size=place.workers,
            timeout=_TIMEOUT,
        )
        self.hosts = tuple(number_hosts(self.exchange(host_id())))
        """The host of every rank."""
        if sorted(self.hosts) != list(self.hosts):  # prices fill hosts in order
            raise UsageError(
                f"the ranks stand on hosts {', '.join(map(str, self.hosts))}: those of one host must follow each "
                "other; tell the launcher to fill host by host"
            )
        run = place.launch.name if place.launch else f"bench-{place.port}"
        self.shm: Any = dist.new_group(backend="shm", pg_options=shm.Options(run=run))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._store.leave()
            dist.destroy_process_group()
        else:  # Gloo's connections close with the process
            with suppress(RuntimeError, AttributeError):
                self.shm.abort()
        self._store.close()

    def align(self) -> None:
        """Return on all ranks as near to the same moment as possible."""
        dist.barrier(self.shm if len(self.shm.comm.team_sizes) == 1 else None)

    def slowest(self, seconds: Sequence[float]) -> list[float]:
        """The longest of all ranks' times, one by one; raises BenchInterrupted on all if any was asked to stop."""
        shared = torch.tensor([*seconds, float(self._stopping())], dtype=torch.float64)
        dist.all_reduce(shared, dist.ReduceOp.MAX)
        *times, stop = shared.tolist()
        if stop:
            raise BenchInterrupted
        return times

    def agree(self, right: bool) -> bool:
        return not self.slowest([float(not right)])[0]

    def first_of_each_host(self) -> list[int]:
        return [self.hosts.index(host) for host in sorted(set(self.hosts))]


def timed(group: BenchGroup, work: Callable[[], object], calls: int) -> list[float]:
    """Seconds of each call, by the slowest rank; each begins when all ranks are ready."""
    found = []
    for _ in range(calls):
        group.align()
        begun = time.perf_counter()
        work()
        found.append(time.perf_counter() - begun)
    return group.slowest(found)


def timed_in_turn(
    group: BenchGroup,
    works: Mapping[Key, Callable[[], object]],
    calls: Mapping[Key, int],
    tick: Callable[[Key], None] = lambda _: None,
) -> dict[Key, list[float]]:
    """Time so many calls of each work, in several turns; the order changes, so that none always follows the same one.

    ``tick`` is called after each turn.
    """
    found: dict[Key, list[float]] = {name: [] for name in works}
    names = list(works)
    for turn in range(TURNS):
        first = turn % len(names)
        order = [*names[first:], *names[:first]]
        for name in order if turn % 2 else order[::-1]:
            share = calls[name] * (turn + 1) // TURNS - calls[name] * turn // TURNS
            found[name] += timed(group, works[name], share)
            tick(name)
    return found


def calls_within(budget: float, once: float) -> int:
    return max(FEWEST_CALLS, min(MOST_CALLS, int(budget / max(once, 1e-9))))


def quartiles(times: Sequence[float]) -> tuple[float, float]:
    if len(times) < 2:
        return times[0], times[0]
    low, _, high = quantiles(times, n=4, method="inclusive")
    return low, high
