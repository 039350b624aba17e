"""What a user asks to be measured, checked before anything starts."""

import json
from dataclasses import asdict, dataclass

from paceline.collectives import SCHEDULES
from paceline.errors import UsageError, unknown
from paceline.units import parse_bytes, show_bytes

GLOO, SHM, ELSEWHERE = "gloo", "shm", "shm-elsewhere"

SIDES = (GLOO, SHM, ELSEWHERE, *SCHEDULES)
"""Gloo's own all-reduce, shared memory in place and on ordinary tensors, and each schedule over Gloo."""

SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 256_000_000)
PROBED = (2_016, 20_032, 300_032, 700_032, 3_000_064, 30_000_064)
"""Bytes of the all-reduces that shared memory's figures are fitted to: odd ones that nobody asks for."""
LARGEST = 4_000_000_000
"""Bytes of the largest tensor: every worker holds two of them."""

ELEMENTS = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "int64": 8,
}
"""The types that all sides have, and their bytes."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to measure; ``sizes`` are whole elements."""

    sizes: tuple[int, ...] = SIZES
    what: tuple[str, ...] = SIDES
    op: str = "sum"
    dtype: str = "float32"
    repeats: int | None = None
    """Timed calls a cell; None is as many as fit."""
    cell_seconds: float = 0.6
    """How long the timed calls of a cell may take together, three of them at least."""

    def __post_init__(self) -> None:
        if self.repeats is not None and self.repeats < 1:
            raise UsageError(f"--repeats {self.repeats} is too small: a cell needs at least 1 timed call")
        if not 0 < self.cell_seconds < float("inf"):
            raise UsageError(
                f"--cell-seconds {self.cell_seconds:g} cannot be: write a number of seconds above 0, such as 0.6"
            )

    def unlike(self, other: str) -> str | None:
        """The first option in which this and another request, as text, differ, with both values; None if none does."""
        theirs = json.loads(other)
        for name, mine in json.loads(str(self)).items():
            if mine != theirs[name]:
                option = "--only" if name == "what" else f"--{name.replace('_', '-')}"
                return f"{option} is {_words(theirs[name])} there and {_words(mine)} here"
        return None

    def __str__(self) -> str:
        return json.dumps(asdict(self))

    @property
    def element(self) -> int:
        """Bytes of one element."""
        return ELEMENTS[self.dtype]


def request(
    *,
    sizes: str | None,
    only: str | None,
    op: str,
    dtype: str,
    repeats: int | None,
    cell_seconds: float | None,
) -> Request:
    """Read the options as a user writes them; a UsageError says which one cannot be."""
    import torch

    from paceline.collectives.over_torch import find_operation

    if dtype not in ELEMENTS:
        raise unknown("dtype", dtype, ELEMENTS)
    find_operation(op, getattr(torch, dtype))
    return Request(
        sizes=parse_sizes(sizes, ELEMENTS[dtype]),
        what=parse_only(only) if only is not None else SIDES,
        op=op,
        dtype=dtype,
        repeats=repeats,
        cell_seconds=Request.cell_seconds if cell_seconds is None else cell_seconds,
    )


def check_workers(workers: int) -> None:
    """An all-reduce needs somebody else."""
    if workers < 2:
        raise UsageError(f"--workers {workers} is too small: an all-reduce needs at least 2 workers in all")


def _words(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "not given" if value is None else str(value)


def parse_sizes(text: str | None, element: int) -> tuple[int, ...]:
    """Read "1kB,25MiB"; each is rounded down to whole elements, and they come in order."""
    asked = SIZES if text is None else [_size(piece.strip(), element) for piece in text.split(",")]
    return tuple(sorted({size // element * element for size in asked}))


def _size(piece: str, element: int) -> int:
    try:
        size = int(piece) if piece.isdecimal() else int(parse_bytes(piece))
    except UsageError as mistake:
        raise UsageError(f"--sizes {piece}: {mistake}") from mistake
    if size < element:
        raise UsageError(f"--sizes {piece}: too small, an element alone takes {element} B")
    if size > LARGEST:
        raise UsageError(f"--sizes {piece}: too large, the largest is {show_bytes(LARGEST)}")
    return size


def parse_only(text: str) -> tuple[str, ...]:
    """Read "ring,shm"; the order of rows stays the usual one."""
    asked = [piece.strip() for piece in text.split(",")]
    for name in asked:
        if name not in SIDES:
            raise unknown("schedule or backend", name, SIDES)
    return tuple(side for side in SIDES if side in asked)
