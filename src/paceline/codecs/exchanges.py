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


TensorExchange = Sum | AllGather | AllToAll
Exchanges = Sequence[TensorExchange | None]
"""What the programs of ranks yield at the same time, all of one kind; None for a program that has ended."""
Gathered = Sequence[list[Tensor] | None]
"""What each rank is resumed with; None after a sum, which is in place."""


def exchange_all(exchanges: Exchanges) -> Gathered:
    """Carry out what the programs of all ranks yield, in this process."""
    first = exchanges[0]
    match first:
        case Sum():
            _sum_all([one.tensor for one in exchanges if isinstance(one, Sum)])
            return [None] * len(exchanges)
        case AllGather():
            vectors = [one.vector.clone() for one in exchanges if isinstance(one, AllGather)]
            return [vectors] * len(exchanges)
        case AllToAll():
            rows = [one.vectors for one in exchanges if isinstance(one, AllToAll)]
            return [[row[rank] for row in rows] for rank in range(len(exchanges))]
    raise AssertionError(f"{first} is no exchange")


def _sum_all(tensors: Sequence[Tensor]) -> None:
    first, *others = tensors
    for tensor in others:
        first.add_(tensor)
    for tensor in others:
        tensor.copy_(first)


def exchange_with_copies(exchanges: Exchanges, ranks: int) -> Gathered:
    """Answer one rank as if every rank had given the same; nothing is sent."""
    (one,) = exchanges
    match one:
        case AllGather(vector):
            return [[vector] * ranks]
        case AllToAll(vectors):
            return [[*vectors]]
    return [None]


def run_programs(
    programs: Sequence[Reduction], exchange: Callable[[Exchanges], Gathered] = exchange_all
) -> None:
    """Run the programs of ranks to their ends; ``exchange`` carries out what they yield at the same time.

    By default they are those of all ranks, and what they exchange is handed over as it is.
    """
    exchanges = [next(program, None) for program in programs]
    while exchanges[0] is not None:
        received = exchange(exchanges)
        exchanges = [_resume(program, answer) for program, answer in zip(programs, received, strict=True)]
    assert not any(exchanges), "all ranks exchange the same"


def _resume(program: Reduction, answer: list[Tensor] | None) -> TensorExchange | None:
    try:
        found: TensorExchange = program.send(answer)
    except StopIteration:
        return None
    return found
