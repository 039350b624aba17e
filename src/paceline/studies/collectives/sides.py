"""The ways to all-reduce that are measured against each other, on buffers that all of them share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from paceline import shm
from paceline.collectives import build_schedule
from paceline.collectives.execute import Reducer
from paceline.collectives.over_torch import TorchTransport
from paceline.shm.operations import Operation
from paceline.studies.collectives.request import ELSEWHERE, GLOO, PROBED, SHM, Request
from paceline.studies.collectives.room import BenchGroup


@dataclass(frozen=True)
class Side:
    """One way."""

    name: str
    buffer: Tensor
    """Where it finds its tensor: as long as the longest; a call takes the first part of it."""
    reduce: Callable[[Tensor], object]
    """All-reduce a part of the buffer, in place."""


def build_sides(
    asked: Request, room: BenchGroup, operation: Operation, dtype: torch.dtype
) -> dict[str, Side]:
    """All that were asked for; the schedules and Gloo share one buffer, as they never run at the same time."""
    length = max(*asked.sizes, *PROBED) // asked.element
    ordinary = torch.zeros(length if set(asked.what) != {SHM} else 0, dtype=dtype)
    shared = shm.zeros(length if SHM in asked.what else 0, dtype=dtype, group=room.shm)
    native = _native(operation, room.workers)
    return {name: _side(name, ordinary, shared, native, room, operation) for name in asked.what}


def _side(
    name: str,
    ordinary: Tensor,
    shared: Tensor,
    native: Callable[[Tensor, dist.ProcessGroup | None], object],
    room: BenchGroup,
    operation: Operation,
) -> Side:
    if name == GLOO:
        return Side(name, ordinary, lambda tensor: native(tensor, None))
    if name in (SHM, ELSEWHERE):
        return Side(name, shared if name == SHM else ordinary, lambda tensor: native(tensor, room.shm))
    reducer = Reducer(build_schedule(name, room.hosts), room.rank, TorchTransport())
    return Side(name, ordinary, lambda tensor: reducer.all_reduce(tensor, operation))


def _native(operation: Operation, workers: int) -> Callable[[Tensor, dist.ProcessGroup | None], object]:
    """A backend's own all-reduce."""
    op = operation.combining_op

    def reduce(tensor: Tensor, group: dist.ProcessGroup | None) -> None:
        dist.all_reduce(tensor, op, group=group)
        operation.finish(tensor, workers)

    return reduce


def left_out(asked: Request, teams: Sequence[int]) -> tuple[str, ...]:
    """What makes no difference where so many workers share memory: without two that do, it is Gloo with a detour."""
    if len(teams) > 1 and max(teams) == 1:
        return tuple(name for name in asked.what if name in (SHM, ELSEWHERE))
    return (ELSEWHERE,) if len(teams) > 1 and ELSEWHERE in asked.what else ()
