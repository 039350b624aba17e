"""What a fit to one point of a table of measured epochs foretells of the others."""

from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import median
from typing import Any, NamedTuple

from paceline.errors import UsageError

INTERVAL = 1.2816
"""Standard deviations on either side of the middle of a normal distribution that hold 80 % of it."""


class Point(NamedTuple):
    """A place in the table, written "2x128"."""

    workers: int
    batch: int
    """Samples of a worker and step."""

    def __str__(self) -> str:
        return f"{self.workers}x{self.batch}"

    @classmethod
    def parse(cls, text: str, where: str) -> "Point":
        """Read "2x128"."""
        workers, cross, batch = text.strip().lower().partition("x")
        if not cross or not workers.strip().isdecimal() or not batch.strip().isdecimal():
            raise UsageError(
                f"{where}: {text!r} is not a point of a table: write workers x batch, such as '2x128'"
            )
        return cls(int(workers), int(batch))


@dataclass(frozen=True, kw_only=True)
class Foretold:
    """One point as it was predicted and, where it was, measured."""

    point: Point
    seconds: float
    """Predicted, an epoch."""
    measured: float | None

    @property
    def error(self) -> float | None:
        """Predicted over measured, less one."""
        return None if self.measured is None else self.seconds / self.measured - 1


@dataclass(frozen=True, kw_only=True)
class TableFit:
    """One collective, fitted to one point."""

    collective: str
    start: Point
    """The point that it was fitted to."""
    transfer: float
    """Seconds in which one worker's gradients cross one link."""
    rate: float
    """Bytes a second that this makes."""
    points: tuple[Foretold, ...]
    """All others of more than one worker."""

    @property
    def errors(self) -> list[float]:
        """Of the points that were measured."""
        return [point.error for point in self.points if point.error is not None]

    @property
    def median(self) -> float | None:
        """Of the errors' sizes; None where nothing else was measured."""
        return median(map(abs, self.errors)) if self.errors else None

    @property
    def worst(self) -> float | None:
        """The largest error."""
        return max(self.errors, key=abs) if self.errors else None

    @property
    def spread(self) -> float | None:
        """Root mean square of the logarithms of predicted over measured; None where nothing else was measured."""
        logs = [log(1 + error) for error in self.errors]
        return sqrt(sum(one * one for one in logs) / len(logs)) if logs else None

    def interval(self, seconds: float) -> tuple[float, float] | None:
        """Where the truth lies in 8 of 10 cases, if this table is like those to come; by the fit's own residuals."""
        if self.spread is None:
            return None
        width = exp(INTERVAL * self.spread)
        return seconds / width, seconds * width

    def to_json(self) -> dict[str, Any]:
        """A plain document."""
        points = [
            {"point": str(one.point), "seconds": one.seconds, "measured": one.measured, "error": one.error}
            | dict(zip(("low", "high"), self.interval(one.seconds) or (None, None), strict=True))
            for one in self.points
        ]
        return {
            "collective": self.collective,
            "from": str(self.start),
            "transfer": self.transfer,
            "rate": self.rate,
            "median": self.median,
            "worst": self.worst,
            "points": points,
        }
