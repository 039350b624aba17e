"""The workers of a benchmark as one of them reaches the others, and calls that all of them time together."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from statistics import quantiles
from typing import Any, Self

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

MOST_CALLS = 200
"""Timed calls at most, however short they are."""
FEWEST_CALLS = 3


class BenchInterrupted(Exception):
    """A rank was asked to stop; raised on all ranks at the same place."""


class BenchGroup:
    """A Gloo group of all ranks and, beside it, one over shared memory; documents travel through the store.

    A context: it is left in agreement with the other ranks or, after an exception, without waiting for them.
    """

    def __init__(self, place: ProcessInfo, stopping: Callable[[], bool]) -> None:
        self.rank, self.workers, self._stopping = place.rank, place.workers, stopping
        self._store = MemberStore(place, _TIMEOUT)
        dist.init_process_group(
            "gloo",
            store=PrefixStore("bench", self._store),
            rank=place.rank,
            world_size=place.workers,
            timeout=_TIMEOUT,
        )
        self.hosts = _contiguous(number_hosts(self.exchange(host_id())))
        """The host of every rank."""
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
        """Whether it is right on all ranks."""
        shared = torch.tensor([int(right)])
        dist.all_reduce(shared, dist.ReduceOp.MIN)
        return bool(shared.item())

    def exchange(self, document: Any) -> list[Any]:
        """Every rank's JSON document, by rank."""
        return self._store.exchange(document)

    def first_of_each_host(self) -> list[int]:
        return [self.hosts.index(host) for host in sorted(set(self.hosts))]


def _contiguous(hosts: Sequence[int]) -> tuple[int, ...]:
    """Prices fill hosts in order, so a launcher that deals ranks out in turn is refused."""
    if sorted(hosts) != list(hosts):
        raise UsageError(
            f"the ranks stand on hosts {', '.join(map(str, hosts))}: those of one host must follow each other; "
            "tell the launcher to fill host by host"
        )
    return tuple(hosts)


def timed(group: BenchGroup, work: Callable[[], object], calls: int) -> list[float]:
    """Seconds of each call, by the slowest rank; each begins when all ranks are ready."""
    found = []
    for _ in range(calls):
        group.align()
        begun = time.perf_counter()
        work()
        found.append(time.perf_counter() - begun)
    return group.slowest(found)


def calls_within(budget: float, once: float) -> int:
    """How many calls fit into so many seconds."""
    return max(FEWEST_CALLS, min(MOST_CALLS, int(budget / max(once, 1e-9))))


def share(calls: int, turn: int, turns: int) -> int:
    """How many of the calls fall into a turn."""
    return calls * (turn + 1) // turns - calls * turn // turns


def quartiles(times: Sequence[float]) -> tuple[float, float]:
    """The first and the third."""
    if len(times) < 2:
        return times[0], times[0]
    low, _, high = quantiles(times, n=4, method="inclusive")
    return low, high
