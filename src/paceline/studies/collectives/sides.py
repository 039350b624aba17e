"""The all-reduces that are measured against each other, on buffers that they share, and how results are checked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from paceline import shm
from paceline.collectives import build_schedule
from paceline.collectives.execute import Reducer, TorchTransport
from paceline.shm.operations import Operation
from paceline.studies.collectives.group import BenchGroup
from paceline.studies.collectives.request import ELSEWHERE, GLOO, SHM, BenchRequest

PROBED = (2_016, 20_032, 300_032, 700_032, 3_000_064, 30_000_064)
"""Bytes of the all-reduces that shared memory's figures are fitted to: odd sizes that no table has."""
PERIOD = 8191
"""Elements until the values of a pattern repeat; a prime, so that no chunk begins where another does."""


@dataclass(frozen=True)
class Side:
    """One backend or schedule."""

    name: str
    buffer: Tensor
    """As long as the longest tensor; a call takes the first part of it."""
    reduce: Callable[[Tensor], object]
    """All-reduce a part of the buffer, in place."""


def build_sides(
    asked: BenchRequest, group: BenchGroup, operation: Operation, dtype: torch.dtype
) -> dict[str, Side]:
    """All that were asked for; the schedules and Gloo share one buffer, as they never run at the same time."""
    length = max(*asked.sizes, *PROBED) // dtype.itemsize
    ordinary = torch.zeros(length if set(asked.only) != {SHM} else 0, dtype=dtype)
    shared = shm.zeros(length if SHM in asked.only else 0, dtype=dtype, group=group.shm)
    return {
        name: Side(name, shared if name == SHM else ordinary, reducer(name, group, operation))
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


def left_out(asked: BenchRequest, teams: Sequence[int]) -> tuple[str, ...]:
    """What makes no difference where so many workers share memory: without two that do, it is Gloo with a detour."""
    if len(teams) > 1 and max(teams) == 1:
        return tuple(name for name in asked.only if name in (SHM, ELSEWHERE))
    return (ELSEWHERE,) if len(teams) > 1 and ELSEWHERE in asked.only else ()


class Pattern:
    """Known inputs of each rank, small whole numbers, and the exact result of combining them in any order."""

    def __init__(self, operation: Operation, dtype: torch.dtype, rank: int, workers: int) -> None:
        self._mine = _values(operation, rank, dtype)
        self._expected = _values(operation, 0, dtype)
        for other in range(1, workers):
            operation.combine(self._expected, _values(operation, other, dtype))
        operation.finish(self._expected, workers)

    def fill(self, tensor: Tensor) -> None:
        body, rest = _blocks(tensor)
        body.copy_(self._mine.expand_as(body))
        rest.copy_(self._mine[: len(rest)])

    def holds(self, tensor: Tensor) -> bool:
        body, rest = _blocks(tensor)
        return bool((body == self._expected).all()) and torch.equal(rest, self._expected[: len(rest)])


def _values(operation: Operation, rank: int, dtype: torch.dtype) -> Tensor:
    drawn = torch.randint(0, 5, (PERIOD,), generator=torch.Generator().manual_seed(rank))
    return (1 + drawn // 4 if operation.name == "product" else drawn).to(dtype)


def _blocks(tensor: Tensor) -> tuple[Tensor, Tensor]:
    whole = len(tensor) // PERIOD * PERIOD
    return tensor[:whole].view(-1, PERIOD), tensor[whole:]
