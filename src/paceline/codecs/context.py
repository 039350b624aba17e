"""What a codec may know of a vector besides its elements: the parameters it is made of, the round, the ranks, seeds."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Self

from torch import Tensor

if TYPE_CHECKING:
    from paceline.codecs.base import Codec

STEADY = 2**62
"""A round in which every warm-up is over."""

MEMORY = "memory"
"""The name of the error memory among a codec's state."""


@dataclass(frozen=True)
class Layout:
    """The parameters that a flat vector is made of, one after the other."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of_vector(cls, elements: int, name: str = "vector") -> Self:
        return cls((name,), ((elements,),))

    @classmethod
    def of_vectors(cls, *elements: int) -> Self:
        return cls(tuple(map(str, range(len(elements)))), tuple((one,) for one in elements))

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each parameter starts in the vector, and the vector's length."""
        return (0, *accumulate(map(prod, self.shapes)))

    @property
    def elements(self) -> int:
        return self.offsets[-1]

    def between(self, start: int, stop: int) -> "Layout":
        """The layout of a part of the vector, in elements; a parameter that it cuts is a vector there."""
        names, shapes = [], []
        for name, shape, first, last in zip(
            self.names, self.shapes, self.offsets, self.offsets[1:], strict=False
        ):
            inside = min(last, stop) - max(first, start)
            if inside > 0:
                names.append(name)
                shapes.append(shape if inside == last - first else (inside,))
        return Layout(tuple(names), tuple(shapes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a codec may know of the vector that it encodes or decodes, besides its elements."""

    layout: Layout
    state: Mapping[str, Tensor] = field(default_factory=dict)
    """What this rank keeps for the vector from round to round, by name; changed in place."""
    start: int = 0
    """Where the vector starts in the flat vector of all parameters."""
    round: int = 0
    """The step, or the server's version, that the vector belongs to: the same at both ends of a message."""
    rank: int = 0
    workers: int = 1
    share: float = 1.0
    """An even share of the sum of all ranks' vectors: 1 / workers where this is a mean.

    What a rank keeps is in units of it, so it is the same whatever part of the samples the rank has in a round, and the
    mean of all ranks' memories holds for any number of ranks.
    """
    seed: int = 0
    stride: int = 0
    """Where rows of a matrix are chunks of the vector: how far apart they start. 0: all stand for the same part."""
    elementwise: frozenset[str] = frozenset({MEMORY})
    """Which of the state has a number for each element, and is cut as the vector is."""
    second: "Codec | None" = None
    """What sends the floats of a message, where a chain does; None sends them as they are."""

    @property
    def memory(self) -> Tensor | None:
        """What messages have left out so far; None without error memory."""
        return self.state.get(MEMORY)

    @property
    def shared_seed(self) -> int:
        """The same on all ranks, and another for each round and each part of the vector."""
        return _mix(self.seed, self.round, self.start)

    @property
    def own_seed(self) -> int:
        return _mix(self.shared_seed, self.rank + 1, 0)

    def round_trip(self, floats: Tensor) -> Tensor:
        """Return a vector of a message as its receiver decodes it: rounded, where a chain sends it with fewer bits."""
        if self.second is None:
            return floats
        return self.second.encode(floats, self)[0].to(floats.dtype)

    def chunk(self, rank: int) -> tuple[slice, "Context"]:
        """The part of the vector that a rank sums for all. The first ones may have an element more than the others.

        Only elementwise state goes along.
        """
        length, longer = divmod(self.layout.elements, self.workers)
        start, stop = (one * length + min(one, longer) for one in (rank, rank + 1))
        state = {name: one[start:stop] for name, one in self._elementwise().items()}
        part = replace(self, layout=Layout.of_vector(stop - start), state=state, start=self.start + start)
        return slice(start, stop), part

    def rows(self, vector: Tensor) -> list[tuple[Tensor, "Context"]]:
        """All chunks, as rows of one matrix or of two, one for each length; each with the context of its rows.

        They share the vector's memory, and the context's state is cut in the same way.
        """
        length, longer = divmod(self.layout.elements, self.workers)
        found, start = [], 0
        for count, width in ((longer, length + 1), (self.workers - longer, length)):
            if count:
                where, shape = slice(start, start + count * width), (count, width)
                state = {name: one[where].view(shape) for name, one in self._elementwise().items()}
                context = replace(
                    self,
                    layout=Layout.of_vector(width),
                    state=state,
                    start=self.start + start,
                    stride=width,
                )
                found.append((vector[where].view(shape), context))
                start = where.stop
        return found

    def row(self, place: int) -> "Context":
        """Of one row."""
        if not self.stride:
            return self
        state = {name: one[place] for name, one in self.state.items()}
        return replace(self, state=state, start=self.start + place * self.stride, stride=0)

    def _elementwise(self) -> dict[str, Tensor]:
        return {name: one for name, one in self.state.items() if name in self.elementwise}


def _mix(*numbers: int) -> int:
    """One seed of several numbers; neighbouring numbers give seeds that have nothing in common."""
    mixed = 0
    for number in numbers:
        mixed = (mixed * 6_364_136_223_846_793_005 + number + 1_442_695_040_888_963_407) % 2**64
        mixed ^= mixed >> 29
    return mixed >> 1
