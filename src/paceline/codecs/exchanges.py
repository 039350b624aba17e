"""What the programs of a reduction yield, and how these are run."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Reduction = Generator[Any, Any, None]
"""One rank's part in the sum of all ranks' vectors; it yields ``Sum``, ``AllGather`` or ``AllToAll``."""


@dataclass(frozen=True, slots=True)
class Sum:
    """The tensor of every rank becomes the sum of all, in place."""

    tensor: Tensor
    what: str = ""
    """For people, where a reduction has several sums: "Q = M' P"."""


@dataclass(frozen=True, slots=True)
class AllGather:
    """Answered with the vectors of all ranks, by rank; they are equally long."""

    vector: Tensor


@dataclass(frozen=True, slots=True)
class AllToAll:
    """``vectors[r]`` goes to rank r; answered with what each rank sent to this one. All are equally long."""

    vectors: Sequence[Tensor]


Asked = Sequence[Sum | AllGather | AllToAll | None]
"""What the programs of all ranks yield at the same time: all the same kind."""
Answers = Sequence[list[Tensor] | None]


def exchange_all(asked: Asked) -> Answers:
    """What each rank is resumed with."""
    first = asked[0]
    match first:
        case Sum():
            _sum_all([one.tensor for one in asked if isinstance(one, Sum)])
            return [None] * len(asked)
        case AllGather():
            vectors = [one.vector.clone() for one in asked if isinstance(one, AllGather)]
            return [vectors] * len(asked)
        case AllToAll():
            rows = [one.vectors for one in asked if isinstance(one, AllToAll)]
            return [[row[rank] for row in rows] for rank in range(len(asked))]
    raise AssertionError(f"{first} is no exchange")


def _sum_all(tensors: Sequence[Tensor]) -> None:
    first, *others = tensors
    for tensor in others:
        first.add_(tensor)
    for tensor in others:
        tensor.copy_(first)


def exchange_alone(asked: Asked, ranks: int) -> Answers:
    """What one rank is resumed with, as if every rank had given the same."""
    (one,) = asked
    match one:
        case AllGather(vector):
            return [[vector] * ranks]
        case AllToAll(vectors):
            return [[*vectors]]
    return [None]


def run_programs(programs: Sequence[Reduction], exchange: Callable[[Asked], Answers] = exchange_all) -> None:
    """Run the programs of ranks to their ends; ``exchange`` carries out what they yield at the same time.

    By default they are those of all ranks, and what they exchange is handed over as it is.
    """
    asked = [next(program, None) for program in programs]
    while asked[0] is not None:
        answers = exchange(asked)
        asked = [_resume(program, answer) for program, answer in zip(programs, answers, strict=True)]
    assert not any(asked), "all ranks exchange the same"


def _resume(program: Reduction, answer: list[Tensor] | None) -> Sum | AllGather | AllToAll | None:
    try:
        found: Sum | AllGather | AllToAll = program.send(answer)
    except StopIteration:
        return None
    return found
