"""What a user wants explained, checked and filled in: which ranks take part, on which hosts, with which values."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import UsageError

Values = tuple[float, ...]

DEFAULT_WORKERS, DEFAULT_SEED = 4, 1
MOST_SEGMENTS = 8


@dataclass(frozen=True, kw_only=True)
class DisplayLimits:
    """How much a way of showing can take before it cannot be read."""

    workers: int
    length: int
    what: str
    """What it is too much for."""

    def check(self, workers: int, length: int = 0) -> None:
        for number, what, most, written in (
            (workers, "workers", self.workers, WRITTEN.workers),
            (length, "values a worker", self.length, WRITTEN.length),
        ):
            if number > most:
                larger = f"; as JSON, up to {written}" if written > most else ""
                raise UsageError(f"{number} {what} are too many {self.what}: choose at most {most}{larger}")


DRAWN = DisplayLimits(workers=16, length=64, what="to draw")
WRITTEN = DisplayLimits(workers=32, length=256, what="for one JSON document")


@dataclass(frozen=True, kw_only=True)
class ExplainRequest:
    """None means that it was not asked for; the texts are as people write them."""

    schedule: str
    op: str = "sum"
    workers: int | None = None
    hosts: str | None = None
    """Workers a host: "2,2"."""
    values: str | None = None
    """A row a worker: "5 2; 3 8"."""
    length: int | None = None
    seed: int | None = None
    segments: int = 1

    def __post_init__(self) -> None:
        for setting, number in (("workers", self.workers), ("length", self.length)):
            if number is not None and number < 1:
                raise UsageError(f"{setting} {number} is too small: it takes at least 1")
        if not 1 <= self.segments <= MOST_SEGMENTS:
            raise UsageError(
                f"segments {self.segments} is out of range: choose 1, for none, to {MOST_SEGMENTS}"
            )
        if self.seed is not None and self.seed < 0:
            raise UsageError(f"seed {self.seed} is out of range: choose a whole number from 0")
        for setting, given in (("length", self.length), ("seed", self.seed)):
            if self.values is not None and given is not None:
                raise UsageError(
                    f"{setting} {given} has no place beside values, which say it all; leave one of them out"
                )


def host_of_each(request: ExplainRequest, limits: DisplayLimits) -> tuple[int, ...]:
    """The host of every worker; how many there are is said by workers, hosts or values, which must agree.

    Too many to show are refused before anything is made of them.
    """
    limits.check(request.workers or 0, request.length or 0)
    if request.hosts is not None:
        counts = _parse_hosts(request.hosts)
        limits.check(sum(counts))
        if request.workers is not None and sum(counts) != request.workers:
            raise UsageError(
                f"hosts {request.hosts} have {sum(counts)} workers and {request.workers} workers were asked for; "
                "make them agree, or leave the number of workers out"
            )
        return tuple(host for host, count in enumerate(counts) for _ in range(count))
    workers = request.workers
    if workers is None:
        workers = len(_rows(request.values)) if request.values is not None else DEFAULT_WORKERS
    if request.schedule == "hierarchical":
        return tuple(2 * rank // workers if workers > 1 else 0 for rank in range(workers))
    return (0,) * workers


def _parse_hosts(text: str) -> list[int]:
    try:
        counts = [int(piece) for piece in text.split(",")]
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        raise UsageError(f"hosts {text}: write how many workers each host has, at least 1, such as 2,2")
    return counts


def first_values(request: ExplainRequest, workers: int, usual_length: int) -> tuple[Values, ...]:
    """What each worker begins with: the user's own values, or small ones drawn from the seed.

    No two workers draw the same value in the same place, so that it shows whose values are largest.
    """
    if request.values is not None:
        return _own_values(request.values, workers)
    drawn = random.Random(DEFAULT_SEED if request.seed is None else request.seed)  # noqa: S311
    length = request.length or usual_length
    choices = range(1, max(9, 2 * workers) + 1)
    columns = [drawn.sample(choices, workers) for _ in range(length)]
    return tuple(tuple(float(column[rank]) for column in columns) for rank in range(workers))


def _own_values(text: str, workers: int) -> tuple[Values, ...]:
    rows = _rows(text)
    if len(rows) != workers:
        raise UsageError(
            f"the values have {_count(len(rows), 'row')} for {_count(workers, 'worker')}: "
            "write a row a worker, with ; between rows"
        )
    for rank, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise UsageError(
                f"values: the row of worker {rank} has {_count(len(row), 'value')}, that of worker 0 has "
                f"{len(rows[0])}; write as many in each"
            )
    if not rows[0]:
        raise UsageError(f"values {text!r} have no value: write a row a worker, such as '5 2; 3 8'")
    return tuple(tuple(_number(word, rank) for word in row) for rank, row in enumerate(rows))


def _rows(text: str) -> list[Sequence[str]]:
    """The words of each row; a last semicolon may be there or not, and commas may stand between values."""
    return [row.replace(",", " ").split() for row in text.strip().removesuffix(";").split(";")]


def _number(word: str, rank: int) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(
            f"{word!r} in the values, row of worker {rank}, is not a number: write one such as 5 or 2.5"
        )
    return value


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
