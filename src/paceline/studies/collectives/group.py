"""The workers of a benchmark, the all-reduces that they time together, and how results are checked."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from paceline import shm
from paceline.collectives import NATIVE, build_schedule
from paceline.collectives.execute import Reducer, TorchTransport
from paceline.collectives.schedule import number_hosts
from paceline.errors import UsageError
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.request import LiveOptions
from paceline.runtimes.live.worker.comm import ProcessGroupComm
from paceline.shm.host import host_id
from paceline.shm.operations import Operation
from paceline.studies.collectives.request import ELSEWHERE, GLOO, SHM, BenchRequest

FEWEST_CALLS, MOST_CALLS = 3, 200
TURNS = 5
"""Of each work that is timed beside others: what disturbs for a second then disturbs all of them."""

PROBED = (2_016, 20_032, 300_032, 700_032, 3_000_064, 30_000_064)
"""Bytes of the all-reduces that shared memory's figures are fitted to: odd sizes that no table has."""
PERIOD = 131_071
"""Elements until the values of a pattern repeat; a prime, so that no chunk begins where another does."""

Key = TypeVar("Key")


class BenchInterrupted(Exception):
    """A rank was asked to stop; raised on all ranks at the same place."""


class BenchGroup(ProcessGroupComm):
    """All ranks over Gloo and, beside it, over shared memory."""

    def __init__(self, info: ProcessInfo, stopping: Callable[[], bool]) -> None:
        options = LiveOptions(backend="gloo", timeout=120.0)
        super().__init__(info, options, NATIVE, lambda _: None)
        self._stopping = stopping
        self.hosts = tuple(number_hosts(self.exchange(host_id())))
        if sorted(self.hosts) != list(self.hosts):  # prices fill hosts in order
            raise UsageError(
                f"the ranks are on hosts {', '.join(map(str, self.hosts))}: those of one host must follow each "
                "other; tell the launcher to fill host by host"
            )
        run = info.launch.name if info.launch else f"bench-{info.port}"
        self.shm: Any = dist.new_group(backend="shm", pg_options=shm.Options(run=run))

    def close(self, *, failed: bool = False) -> None:
        if failed:
            with suppress(RuntimeError, AttributeError):
                self.shm.abort()
        super().close(failed=failed)

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

    def timed(self, work: Callable[[], object], calls: int) -> list[float]:
        found = []
        for _ in range(calls):
            self.align()
            begun = time.perf_counter()
            work()
            found.append(time.perf_counter() - begun)
        return self.slowest(found)

    def timed_in_turn(
        self,
        works: Mapping[Key, Callable[[], object]],
        calls: Mapping[Key, int],
        tick: Callable[[Key], None] = lambda _: None,
    ) -> dict[Key, list[float]]:
        """Time ``calls`` calls of each work, in several turns; the order changes, so none always follows the same one.

        ``tick`` is called after each turn.
        """
        found: dict[Key, list[float]] = {name: [] for name in works}
        names = list(works)
        for turn in range(TURNS):
            first = turn % len(names)
            order = [*names[first:], *names[:first]]
            for name in order if turn % 2 else order[::-1]:
                share = calls[name] * (turn + 1) // TURNS - calls[name] * turn // TURNS
                found[name] += self.timed(works[name], share)
                tick(name)
        return found


def calls_within(budget: float, once: float) -> int:
    return max(FEWEST_CALLS, min(MOST_CALLS, int(budget / max(once, 1e-9))))


@dataclass(frozen=True)
class BenchBackend:
    """One backend or schedule, which all-reduces the first part of its buffer, in place."""

    buffer: Tensor
    reduce: Callable[[Tensor], object]

    def work(self, size: int) -> Callable[[], object]:
        return partial(self.reduce, self.part(size))

    def part(self, size: int) -> Tensor:
        return self.buffer[: size // self.buffer.element_size()]


def build_backends(
    asked: BenchRequest, group: BenchGroup, operation: Operation, dtype: torch.dtype
) -> dict[str, BenchBackend]:
    """All that were asked for; the schedules and Gloo share one buffer, as they never run at the same time."""
    length = max(*asked.sizes, *PROBED) // dtype.itemsize
    ordinary = torch.zeros(length if set(asked.only) != {SHM} else 0, dtype=dtype)
    shared = shm.zeros(length if SHM in asked.only else 0, dtype=dtype, group=group.shm)
    return {
        name: BenchBackend(shared if name == SHM else ordinary, reducer(name, group, operation))
        for name in asked.only
    }


def reducer(name: str, group: BenchGroup, operation: Operation) -> Callable[[Tensor], object]:
    if name not in (GLOO, SHM, ELSEWHERE):
        scheduled = Reducer(build_schedule(name, group.hosts), group.rank, TorchTransport())
        return lambda tensor: scheduled.all_reduce(tensor, operation)
    op, over = operation.combining_op, None if name == GLOO else group.shm

    def native(tensor: Tensor) -> None:
        dist.all_reduce(tensor, op, group=over)
        operation.finish(tensor, group.workers)

    return native


def worth_measuring(backends: Sequence[str], teams: Sequence[int]) -> tuple[str, ...]:
    """Leave out what such teams make useless: where no two workers share memory, shm is Gloo with a detour."""
    useless = () if len(teams) == 1 else (SHM, ELSEWHERE) if max(teams) == 1 else (ELSEWHERE,)
    if not (found := tuple(name for name in backends if name not in useless)):
        raise UsageError(
            f"{', '.join(backends)}: no two workers share memory here; choose a schedule such as ring, or start two "
            "workers on a host"
        )
    return found


class Pattern:
    """Known inputs of each rank, small whole numbers, and the exact result of combining them in any order."""

    def __init__(self, operation: Operation, dtype: torch.dtype, rank: int, workers: int) -> None:
        self._mine = _values(operation, rank, dtype)
        self._expected = _values(operation, 0, dtype)
        for other in range(1, workers):
            operation.combine(self._expected, _values(operation, other, dtype))
        operation.finish(self._expected, workers)

    def fill(self, tensor: Tensor) -> None:
        for part in torch.split(tensor, PERIOD):
            part.copy_(self._mine[: len(part)])

    def holds(self, tensor: Tensor) -> bool:
        return all(torch.equal(part, self._expected[: len(part)]) for part in torch.split(tensor, PERIOD))


def _values(operation: Operation, rank: int, dtype: torch.dtype) -> Tensor:
    drawn = torch.randint(0, 5, (PERIOD,), generator=torch.Generator().manual_seed(rank))
    return (1 + drawn // 4 if operation.name == "product" else drawn).to(dtype)
