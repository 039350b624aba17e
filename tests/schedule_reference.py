"""The slow and obvious way to carry a schedule out: all ranks in one process, message by message."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from paceline.collectives.schedule import Round, Schedule, chunk_bounds
from paceline.shm.operations import Operation


class Transfer(NamedTuple):
    """One message."""

    source: int
    target: int
    start: int
    stop: int
    reduces: bool


def transfers(turn: Round) -> list[Transfer]:
    columns = (turn.sources, turn.targets, turn.starts, turn.stops, turn.reduces)
    return [Transfer(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def round_of(phase: str, sent: Sequence[Transfer]) -> Round:
    columns = zip(*sent, strict=True) if sent else [()] * 5
    *numbers, reduces = (np.array(column) for column in columns)
    return Round(phase, *(column.astype(np.int64) for column in numbers), reduces.astype(bool))


def play(
    schedule: Schedule, vectors: Sequence[Any], combine: Callable[[Any, Any], Any]
) -> Iterator[list[Any]]:
    """What every rank holds after each round; the given vectors are not changed."""
    held = list(vectors)
    bounds = chunk_bounds(len(vectors[0]), schedule.chunks).tolist()
    for turn in schedule.each_round():
        before, held = held, deepcopy(held)
        for sent in transfers(turn):
            part = slice(bounds[sent.start], bounds[sent.stop])
            message, target = before[sent.source][part], held[sent.target]
            target[part] = combine(target[part], message) if sent.reduces else message
        yield held


def reduce_all(schedule: Schedule, tensors: Sequence[Tensor], operation: Operation) -> list[Tensor]:
    """What every rank ends with."""
    held = [tensor.clone() for tensor in tensors]
    for after in play(schedule, tensors, operation.into):
        held = after
    for tensor in held:
        operation.finish(tensor, schedule.workers)
    return held


def schedule_bytes(schedule: Schedule, size: int, rank: int, element: int = 4) -> tuple[int, int]:
    """Bytes that a rank (sends, receives) when a tensor of ``size`` bytes goes through a schedule."""
    bounds = (element * chunk_bounds(size // element, schedule.chunks)).tolist()
    every = [one for turn in schedule.each_round() for one in transfers(turn)]
    sent = sum(bounds[one.stop] - bounds[one.start] for one in every if one.source == rank)
    received = sum(bounds[one.stop] - bounds[one.start] for one in every if one.target == rank)
    return sent, received
