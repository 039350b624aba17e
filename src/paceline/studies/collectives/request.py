"""What a benchmark of collectives is asked for, checked before anything starts, and what it finds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from paceline.collectives import SCHEDULES, find_schedule
from paceline.errors import UsageError, unknown
from paceline.units import parse_bytes, show_bytes

SCHEMA = 3

GLOO, SHM, ELSEWHERE = "gloo", "shm", "shm-elsewhere"

BENCH_BACKENDS = (GLOO, SHM, ELSEWHERE, *SCHEDULES)
"""Gloo's own all-reduce, shared memory in place and on ordinary tensors, and each schedule over Gloo."""

SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 256_000_000)
LARGEST = 4_000_000_000

DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")

BenchEnding = Literal["done", "wrong", "interrupted"]


@dataclass(frozen=True, kw_only=True)
class BenchRequest:
    """What to measure; ``sizes`` are bytes of whole elements, and without ``repeats`` as many calls as fit."""

    sizes: tuple[int, ...] = SIZES
    only: tuple[str, ...] = BENCH_BACKENDS
    op: str = "sum"
    dtype: str = "float32"
    repeats: int | None = None
    cell_seconds: float = 0.6
    """How long the timed calls of a cell may take together, three of them at least."""

    def __post_init__(self) -> None:
        if self.repeats is not None and self.repeats < 1:
            raise UsageError(f"{self.repeats} repeats are too few: a cell needs at least 1 timed call")
        if not 0 < self.cell_seconds < float("inf"):
            raise UsageError(
                f"a cell cannot take {self.cell_seconds:g} seconds: give a number above 0, such as 0.6"
            )


def parse_request(sizes: str | None, only: str | None, op: str, dtype: str, **more: Any) -> BenchRequest:
    """Read what a user writes; a UsageError says what is wrong. ``more`` are other fields, None if not given."""
    import torch

    from paceline.collectives.execute import find_operation

    if dtype not in DTYPES:
        raise unknown("dtype", dtype, DTYPES)
    kind: torch.dtype = getattr(torch, dtype)
    find_operation(op, kind)
    given = {name: value for name, value in more.items() if value is not None}
    return BenchRequest(
        sizes=parse_sizes(sizes, kind.itemsize), only=parse_only(only), op=op, dtype=dtype, **given
    )


def check_workers(workers: int) -> None:
    if workers < 2:
        raise UsageError(f"an all-reduce needs at least 2 workers in all, got {workers}; start more workers")


def parse_sizes(text: str | None, element: int) -> tuple[int, ...]:
    """Read "1kB,25MiB"; each is rounded down to whole elements, and they are sorted."""
    asked = SIZES if text is None else [_size(piece.strip(), element) for piece in text.split(",")]
    return tuple(sorted({size // element * element for size in asked}))


def _size(piece: str, element: int) -> int:
    size = int(piece) if piece.isdecimal() else int(parse_bytes(piece))
    if not element <= size <= LARGEST:
        raise UsageError(
            f"size {piece} is out of range: one element takes {element} B, and {show_bytes(LARGEST)} is the most"
        )
    return size


def parse_only(text: str | None) -> tuple[str, ...]:
    """Read "ring,shm,my_file.py:function"; the order of rows is the usual one, with a user's own schedules last."""
    asked = BENCH_BACKENDS if text is None else [piece.strip() for piece in text.split(",")]
    own = [name for name in asked if name not in BENCH_BACKENDS]
    for name in own:
        if ":" not in name:
            raise unknown("schedule or backend", name, BENCH_BACKENDS)
        find_schedule(name)
    return (*(backend for backend in BENCH_BACKENDS if backend in asked), *dict.fromkeys(own))


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    request: BenchRequest
    hosts: tuple[int, ...]
    threads: int
    torch: str
    workers: int


@dataclass(frozen=True, kw_only=True)
class BenchPrediction:
    """What the probes found, and what was predicted from it before any cell was measured.

    ``how`` has a sentence for each figure, ``figures`` are in SI units, ``seconds`` by backend and size.
    """

    made_at: float
    how: tuple[str, ...]
    figures: Mapping[str, Any]
    probes: Sequence[Mapping[str, Any]]
    seconds: Mapping[str, Mapping[int, float]]


@dataclass(frozen=True, kw_only=True)
class BenchMeasurement:
    what: str
    size: int
    median: float
    """Seconds of the slowest rank; so are the quartiles ``low`` and ``high``."""
    low: float
    high: float
    repeats: int
    algbw: float
    """Bytes a second, and so is ``busbw``; both as nccl-tests defines them."""
    busbw: float
    right: bool
    """Whether every rank held the expected result, element by element, in the first and in the last call."""
    predicted: float
    error: float
    """Of the prediction, as a part of the median."""
    measured_at: float


class BenchProgress(NamedTuple):
    done: float
    words: str


BenchEvent = BenchSettings | BenchPrediction | Sequence[BenchMeasurement] | BenchProgress


@dataclass(kw_only=True)
class BenchResult:
    settings: BenchSettings
    prediction: BenchPrediction | None = None
    cells: list[BenchMeasurement] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ending: BenchEnding = "interrupted"
