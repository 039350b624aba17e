"""The workers of a benchmark, as one of them reaches the others."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from paceline import shm
from paceline.collectives.hosts import host_id, number_hosts
from paceline.errors import UsageError
from paceline.runtimes.live.run_store import MemberStore
from paceline.runtimes.live.process_info import ProcessInfo

_TIMEOUT = timedelta(seconds=120)


class Interrupted(Exception):
    """Somebody was asked to stop; raised on all ranks at the same place."""


class BenchGroup:
    """A Gloo group of all ranks and, beside it, one over shared memory; documents travel through the store."""

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
        self.hosts = _in_a_row(number_hosts(self.exchange(host_id())))
        """The host of every rank."""
        run = place.launch.name if place.launch else f"bench-{place.port}"
        self.shm: Any = dist.new_group(backend="shm", pg_options=shm.Options(run=run))

    def align(self) -> None:
        """Return on all ranks as near to the same moment as there is a way to."""
        dist.barrier(self.shm if len(self.shm.party.teams) == 1 else None)

    def slowest(self, seconds: Sequence[float]) -> list[float]:
        """The longest of all ranks' times, one by one; raises Interrupted on all if anybody was asked to stop."""
        told = torch.tensor([*seconds, float(self._stopping())], dtype=torch.float64)
        dist.all_reduce(told, dist.ReduceOp.MAX)
        *times, stop = told.tolist()
        if stop:
            raise Interrupted
        return times

    def agree(self, right: bool) -> bool:
        """Whether it is right on all ranks."""
        told = torch.tensor([int(right)])
        dist.all_reduce(told, dist.ReduceOp.MIN)
        return bool(told.item())

    def exchange(self, document: Any) -> list[Any]:
        """Every rank's JSON document, by rank."""
        return self._store.exchange(document)

    def leave(self) -> None:
        """End in agreement."""
        self._store.leave()
        dist.destroy_process_group()
        self._store.close()

    def abandon(self) -> None:
        """End after a failure, without waiting for anybody; Gloo's connections close with the process."""
        with suppress(RuntimeError, AttributeError):
            self.shm.abort()
        self._store.close()


def _in_a_row(hosts: Sequence[int]) -> tuple[int, ...]:
    """Prices fill hosts in order; a launcher that deals ranks out like cards is refused."""
    if sorted(hosts) != list(hosts):
        raise UsageError(
            f"the ranks stand on hosts {', '.join(map(str, hosts))}: those of one host must follow each other; "
            "tell the launcher to fill host by host"
        )
    return tuple(hosts)
