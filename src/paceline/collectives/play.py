"""The slow and obvious way to carry a schedule out: all ranks in one process, round by round."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from paceline.collectives.schedule import Round, Schedule, Then, chunk_bounds

if TYPE_CHECKING:
    from torch import Tensor

    from paceline.shm.operations import Operation

Vector = Any
"""What a rank holds: a flat tensor, or a list of numbers."""
Combine = Callable[[Vector, Vector], Vector]
"""Makes a new one of two of the same length."""


def play(schedule: Schedule, vectors: Sequence[Vector], combine: Combine) -> Iterator[list[Vector]]:
    """What every rank holds after each round, in vectors of its own; the given ones are not changed.

    There is one a rank, all of the same length. What remains to be done at the end, as for a mean, is the caller's.
    """
    assert len(vectors) == schedule.workers
    held = list(vectors)
    bounds = chunk_bounds(len(vectors[0]), schedule.chunks)
    for turn in schedule.rounds:
        held = _after(turn, held, combine, bounds)
        yield held


def _after(turn: Round, before: list[Vector], combine: Combine, bounds: list[int]) -> list[Vector]:
    after = deepcopy(before)
    for transfer in turn.transfers:
        part = slice(bounds[transfer.start], bounds[transfer.stop])
        message, target = before[transfer.source][part], after[transfer.target]
        target[part] = combine(target[part], message) if transfer.then is Then.REDUCE else message
    return after


def reduce_all(schedule: Schedule, tensors: "Sequence[Tensor]", operation: "Operation") -> "list[Tensor]":
    """What every rank ends with."""
    held = [tensor.clone() for tensor in tensors]
    for after in play(schedule, tensors, operation.into):
        held = after
    for tensor in held:
        operation.finish(tensor, schedule.workers)
    return held
