"""The slow and obvious way to carry a schedule out: all ranks in one process, round by round."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from paceline.collectives.operations import Operation
from paceline.collectives.schedule import Round, Schedule, Then, chunk_bounds


def play(schedule: Schedule, tensors: Sequence[Tensor], operation: Operation) -> Iterator[list[Tensor]]:
    """What every rank holds after each round, in tensors of its own; the given ones are not changed.

    The tensors are flat, one a rank and of the same length. The operation's ``finish`` is not part of a round:
    ``reduce_all`` does that at the end.
    """
    assert len(tensors) == schedule.workers
    held = list(tensors)
    bounds = chunk_bounds(len(tensors[0]), schedule.chunks)
    for turn in schedule.rounds:
        held = _after(turn, held, operation, bounds)
        yield held


def _after(turn: Round, before: list[Tensor], operation: Operation, bounds: list[int]) -> list[Tensor]:
    after = [tensor.clone() for tensor in before]
    for transfer in turn.transfers:
        part = slice(bounds[transfer.start], bounds[transfer.stop])
        message, place = before[transfer.source][part], after[transfer.target][part]
        if transfer.then is Then.REDUCE:
            operation.combine(place, message)
        else:
            place.copy_(message)
    return after


def reduce_all(schedule: Schedule, tensors: Sequence[Tensor], operation: Operation) -> list[Tensor]:
    """What every rank ends with."""
    held = [tensor.clone() for tensor in tensors]
    for after in play(schedule, tensors, operation):
        held = after
    for tensor in held:
        operation.finish(tensor, schedule.workers)
    return held
