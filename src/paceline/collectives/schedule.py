"""A collective as data: rounds of transfers among ranks. Executed, priced, drawn and proved from this one object."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Then(Enum):
    """What the target does with what it receives."""

    REDUCE = "reduce"
    """Combine it with what it holds: target op= source."""
    REPLACE = "replace"
    """Put it in the place of what it holds."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One message: the chunks ``start`` to ``stop`` (excluded) of the source's tensor, as they were before it."""

    source: int
    target: int
    start: int
    stop: int
    then: Then


@dataclass(frozen=True, slots=True)
class Round:
    """Messages that leave at the same time; each rank takes in what it is sent in the order of the list."""

    phase: str
    """What this part of the collective does, for people: "share-reduce"."""
    transfers: tuple[Transfer, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """An all-reduce among ``workers`` ranks whose tensors are cut into ``chunks`` equal parts."""

    name: str
    workers: int
    chunks: int
    rounds: Sequence[Round]
    """May be made as they are asked for (``turns``): many ranks make many transfers."""


def chunk_bounds(length: int, chunks: int) -> list[int]:
    """Where each chunk of ``length`` elements starts, and the end: sizes differ by at most one, some may be empty."""
    return [index * length // chunks for index in range(chunks + 1)]


Hosts = Sequence[int]
"""The host of each rank, in the order of ranks; its length is the number of workers."""


def number_hosts(names: Sequence[str]) -> Hosts:
    """Number the hosts of all ranks, given by any names, from 0 on in the order of ranks."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return [numbers[name] for name in names]
