"""What a benchmark answers: the fastest way at each size."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from paceline.collectives import SCHEDULES
from paceline.studies.collectives.results import Cell
from paceline.units import show_bytes, show_seconds

_GLOO = "gloo"


@dataclass(frozen=True, kw_only=True)
class Winner:
    """The fastest way at one size, among those whose result was right."""

    size: int
    """Bytes."""
    what: str
    seconds: float
    compared: int
    """How many other ways were right."""
    times_gloo: float | None
    """How many times as fast as Gloo's own all-reduce; None if that was not measured, or won."""
    schedule: str | None
    """The fastest schedule; None if there was none."""
    schedule_seconds: float | None

    def __str__(self) -> str:
        text = f"{show_bytes(self.size)}: {self.what} {show_seconds(self.seconds)}"
        if self.times_gloo is not None:
            text += f", {_times(self.times_gloo)} times as fast as gloo"
        if self.schedule_seconds is not None and self.schedule != self.what:
            text += f"; best schedule {self.schedule} {show_seconds(self.schedule_seconds)}"
        return text


def winners(cells: Sequence[Cell]) -> list[Winner]:
    """One a size, in the order of the cells; none where no result was right."""
    right = (cell for cell in cells if cell.right)
    return [_winner(list(some)) for _, some in groupby(right, key=lambda cell: cell.size)]


def _winner(cells: list[Cell]) -> Winner:
    best = min(cells, key=_median)
    gloo = next((cell for cell in cells if cell.what == _GLOO and cell is not best), None)
    schedule = min((cell for cell in cells if cell.what in SCHEDULES), key=_median, default=None)
    return Winner(
        size=best.size,
        what=best.what,
        seconds=best.median,
        compared=len(cells) - 1,
        times_gloo=gloo.median / best.median if gloo else None,
        schedule=schedule.what if schedule else None,
        schedule_seconds=schedule.median if schedule else None,
    )


def _median(cell: Cell) -> float:
    return cell.median


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 1.1 else f"{ratio:.2g}" if ratio < 100 else f"{ratio:.0f}"
