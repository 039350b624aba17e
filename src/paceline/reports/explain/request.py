"""What is asked of ``paceline explain``, checked: how many processes, on which hosts, with which values."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from paceline.errors import UsageError
from paceline.reports.explain.document import Values


class DisplayLimits(NamedTuple):
    """How much a way of showing can take before it cannot be read."""

    workers: int
    length: int
    what: str

    def check(self, workers: int, length: int = 0) -> None:
        for number, what, most, written in (
            (workers, "workers", self.workers, WRITTEN.workers),
            (length, "values per worker", self.length, WRITTEN.length),
        ):
            if number > most:
                larger = f"; as JSON, up to {written}" if written > most else ""
                raise UsageError(f"{number} {what} are too many {self.what}: choose at most {most}{larger}")


DRAWN = DisplayLimits(16, 64, "to draw")
WRITTEN = DisplayLimits(32, 256, "for one JSON document")


@dataclass(frozen=True, kw_only=True)
class ExplainRequest:
    """None means that it was not asked for; the texts are as people write them."""

    schedule: str
    op: str = "sum"
    codec: str = "identity"
    """A spec, such as "top-k:ratio=0.25"."""
    workers: int | None = None
    hosts: str | None = None
    """Workers a host: "2,2"."""
    values: str | None = None
    """A row a worker: "5 2; 3 8"."""
    length: int | None = None
    seed: int | None = None
    segments: int = 1

    def __post_init__(self) -> None:
        for setting, least, most in (("workers", 1, 0), ("length", 1, 0), ("seed", 0, 0), ("segments", 1, 8)):
            number = getattr(self, setting)
            if number is not None and (number < least or 0 < most < number):
                allowed = f"{least} to {most}" if most else f"at least {least}"
                raise UsageError(f"{setting} {number} is out of range: choose {allowed}")
        for setting in ("length", "seed"):
            if self.values is not None and (given := getattr(self, setting)) is not None:
                raise UsageError(
                    f"{setting} {given} cannot be used with values, which say it all; leave one of them out"
                )

    @property
    def random_seed(self) -> int:
        return 1 if self.seed is None else self.seed


def host_of_each(request: ExplainRequest, limits: DisplayLimits) -> tuple[int, ...]:
    """The host of every worker; how many there are is said by workers, hosts or values, which must agree.

    Too many to show are refused before anything is made of them.
    """
    pieces = request.hosts.split(",") if request.hosts is not None else ()
    counts = [int(piece) if piece.strip().isdecimal() else 0 for piece in pieces]
    if 0 in counts:
        raise UsageError(
            f"hosts {request.hosts}: write how many workers each host has, at least 1, such as 2,2"
        )
    workers = request.workers or sum(counts) or (4 if request.values is None else len(_rows(request.values)))
    limits.check(workers, request.length or 0)
    if not counts:
        halves = request.schedule == "hierarchical" and workers > 1
        return tuple(2 * rank // workers if halves else 0 for rank in range(workers))
    if sum(counts) != workers:
        raise UsageError(
            f"hosts {request.hosts} have {sum(counts)} workers and {workers} workers were asked for; "
            "make them agree, or leave the number of workers out"
        )
    return tuple(host for host, count in enumerate(counts) for _ in range(count))


def first_values(
    request: ExplainRequest, workers: int, usual_length: int, choices: Sequence[float]
) -> tuple[Values, ...]:
    """What each worker begins with: the user's own values, or some drawn from the seed.

    No two workers draw the same value in the same place, so that it shows whose values are largest.
    """
    if request.values is not None:
        return _own_values(request.values, workers)
    drawn = random.Random(request.random_seed)  # noqa: S311
    columns = [drawn.sample(choices, workers) for _ in range(request.length or usual_length)]
    return tuple(tuple(float(column[rank]) for column in columns) for rank in range(workers))


def _own_values(text: str, workers: int) -> tuple[Values, ...]:
    rows = _rows(text)
    wrong = [word for row in rows for word in row if not _is_number(word)]
    if len(rows) != workers:
        problem = f"{len(rows)} rows for {workers} workers"
    elif len({len(row) for row in rows}) > 1:
        problem = f"rows of {', '.join(str(len(row)) for row in rows)} values"
    elif wrong:
        problem = f"{wrong[0]!r} is not a number"
    elif not rows[0]:
        problem = "there is no value"
    else:
        return tuple(tuple(map(float, row)) for row in rows)
    raise UsageError(f"values {text!r}: {problem}; write as many numbers for each worker, such as '5 2; 3 8'")


def _rows(text: str) -> list[list[str]]:
    """The words of each row; a last semicolon may be there or not, and commas may stand between values."""
    return [row.replace(",", " ").split() for row in text.strip().removesuffix(";").split(";")]


def _is_number(word: str) -> bool:
    try:
        return math.isfinite(float(word))
    except ValueError:
        return False
