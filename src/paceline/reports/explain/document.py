"""The document that an explanation is: from it the JSON, the text and the page are made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Values = tuple[float, ...]
Parts = tuple[tuple[tuple[int, ...], ...], ...]
"""By rank and column, the ranks whose values are in it."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A codec's message."""

    contents: dict[str, Values]
    """By name, such as "indices" and "values"."""
    stands_for: Values


Cell = Values | Encoded
Cells = tuple[tuple[Cell, ...], ...]
"""By rank and column."""


def numbers_in(cells: Sequence[Cell]) -> Values:
    return tuple(
        number for cell in cells for number in (cell.stands_for if isinstance(cell, Encoded) else cell)
    )


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """Columns ``start`` to ``stop`` (excluded) from one rank to another."""

    source: int
    target: int
    start: int
    stop: int
    on_receive: str
    """What the target does: "reduce" or "replace"."""
    cells: tuple[Cell, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one rank does in a round, besides sending."""

    target: int
    text: str
    """Such as "p1 receives chunk 0 from p0: max(3, 5) = 5"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankValues:
    """What every rank holds, between rounds."""

    cells: Cells
    parts: Parts

    @property
    def values(self) -> tuple[Values, ...]:
        return tuple(map(numbers_in, self.cells))

    def finished(self, rank: int, column: int) -> bool:
        return len(self.parts[rank][column]) == len(self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedRound(RankValues):
    """A round, or what every rank does by itself, and what it holds afterwards."""

    round: int | None = None
    """From 1; None where nothing travels."""
    phase: str
    title: str
    sentence: str = ""
    progress: str = ""
    messages: tuple[ShownMessage, ...] = ()
    received: tuple[Receipt, ...] = ()
    encoded: tuple[tuple[int, ...], ...] = ()
    """Where nothing travels: the columns that go into each rank's message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedStage:
    """Rounds whose columns have the same meaning."""

    title: str = ""
    columns: tuple[str, ...]
    start: RankValues
    steps: tuple[ExplainedRound, ...]

    @property
    def states(self) -> tuple[RankValues, ...]:
        return (self.start, *self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A collective on values, from what each rank begins with to what all end with."""

    schema: int = 3
    schedule: str
    op: str
    codec: str = "identity"
    workers: int
    hosts: tuple[int, ...]
    segments: int
    about: str
    how: str
    opening: str
    stages: tuple[ExplainedStage, ...]
    result: Values
    agreed: Literal[True] = True
    """For readers of this schema: a schedule whose ranks end with different values is refused."""
    balance: Mapping[str, Values] | None = None
    """With a codec: what went in and what came out, over all ranks, by name."""
    totals: Mapping[str, Any]
    summary: Sequence[str]

    @property
    def steps(self) -> tuple[ExplainedRound, ...]:
        return tuple(step for stage in self.stages for step in stage.steps)
