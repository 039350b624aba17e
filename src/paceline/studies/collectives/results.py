"""What a benchmark of collectives found, and who is told while it runs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

SCHEMA = 2

Ending = Literal["done", "wrong", "interrupted"]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What is measured, where and how."""

    what: tuple[str, ...]
    """Backends and schedules, in the order of rows."""
    sizes: tuple[int, ...]
    """Bytes, whole elements."""
    op: str
    dtype: str
    workers: int
    hosts: tuple[int, ...]
    """Workers on each host."""
    repeats: int | None
    """Timed calls a cell; None is as many as fit the time that a cell has."""
    cell_seconds: float
    """That time."""
    threads: int
    torch: str


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What the probes found, and what was made of it before any cell was measured."""

    made_at: float
    """When, in seconds since the epoch."""
    how: tuple[str, ...]
    """Each figure that predictions use and how it was got, a sentence each."""
    figures: Mapping[str, Any]
    """The same as numbers, in SI units."""
    probes: Sequence[Mapping[str, Any]]
    """What was measured for them."""
    seconds: Mapping[str, Mapping[int, float]]
    """What to size to seconds."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One size by one way."""

    what: str
    size: int
    """Bytes."""
    median: float
    """Seconds of the slowest rank; so are the others."""
    low: float
    """The first quartile."""
    high: float
    """The third quartile."""
    repeats: int
    algbw: float
    """Bytes a second, and so is ``busbw``; both as nccl-tests defines them."""
    busbw: float
    right: bool
    """Whether every rank held the expected result, element by element, first and last."""
    predicted: float
    measured_at: float
    """When its first call began, in seconds since the epoch."""

    @property
    def error(self) -> float:
        """How far the prediction lies above the median, as a share of it."""
        return self.predicted / self.median - 1

    def to_json(self) -> dict[str, Any]:
        """All fields and the error."""
        return {**asdict(self), "error": self.error}


class BenchObserver(Protocol):
    """What a person or a program sees of a benchmark; only rank 0 talks."""

    def started(self, bench: Bench) -> None:
        """Before the probes."""

    def predicted(self, prediction: Prediction) -> None:
        """After the probes and before the first cell."""

    def progressed(self, done: float, words: str) -> None:
        """The share that is done, now and then."""

    def measured(self, cells: Sequence[Cell]) -> None:
        """All cells of one size."""

    def noted(self, sentence: str) -> None:
        """What somebody must know who uses the figures; before the end."""

    def finished(self, ending: Ending) -> None:
        """After the last cell, or when it was interrupted."""

    def close(self) -> None:
        """It is over, however it ended; may be called twice."""


class SilentBench:
    """Tells nobody."""

    def started(self, bench: Bench) -> None:
        """Say nothing."""

    def predicted(self, prediction: Prediction) -> None:
        """Say nothing."""

    def progressed(self, done: float, words: str) -> None:
        """Say nothing."""

    def measured(self, cells: Sequence[Cell]) -> None:
        """Say nothing."""

    def noted(self, sentence: str) -> None:
        """Say nothing."""

    def finished(self, ending: Ending) -> None:
        """Say nothing."""

    def close(self) -> None:
        """Nothing is open."""
