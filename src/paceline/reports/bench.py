"""A benchmark as people and programs read it: the settings, what was predicted, a row a cell, the fastest by size."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from statistics import median
from typing import TextIO

from paceline.records.files import json_text
from paceline.reports.progress import Screen
from paceline.reports.text import counted
from paceline.studies.collectives import request
from paceline.units import show_bytes, show_seconds

_TITLES = (
    f"{'size':>8}  {'what':16}  {'time':>8}  {'low .. high':>20}  {'algbw':>9}  {'busbw':>9}  "
    f"{'predicted':>9}  {'error':>6}  result"
)


class BenchReport:
    """Rows on stdout as sizes are done, or one JSON document at the end; progress on stderr."""

    def __init__(self, *, as_json: bool, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._as_json, self._screen = as_json, Screen(out, err, bar=not as_json)
        self.close = self._screen.close

    def show(self, found: request.BenchEvent) -> None:
        match found:
            case request.BenchProgress():
                self._screen.count_down(*found)
            case _ if self._as_json:
                pass
            case request.BenchSettings():
                self._print(*header(found))
            case request.BenchPrediction():
                self._print("predicted from:", *(f"  {sentence}" for sentence in found.how), "", _TITLES)
            case _:
                self._print(*map(row, found), "")

    def finish(self, result: request.BenchResult) -> None:
        self.close()
        for note in result.notes:
            self._screen.note(note)
        fastest = winners(result.cells)
        if self._as_json:
            self._print(json_text({"schema": request.SCHEMA, **vars(result), "fastest": fastest}))
        else:
            answers = (str(found) for found in fastest if found.compared)
            self._print(*answers, conclusion(result.cells, result.ending))

    def _print(self, *lines: str) -> None:
        self._screen.print("\n".join(lines))


def header(settings: request.BenchSettings) -> list[str]:
    asked, hosts = settings.request, len(settings.hosts)
    fit = f"as many timed calls as fit {show_seconds(asked.cell_seconds)} per cell"
    calls = f"{asked.repeats} timed calls per cell" if asked.repeats else fit
    return [
        f"all-reduce ({asked.op}) of {asked.dtype}, {settings.workers} workers on "
        f"{'one host' if hosts == 1 else f'{hosts} hosts'}; "
        f"torch {settings.torch}, {counted(settings.threads, 'thread')} per worker",
        f"{calls}, all backends in turn; time is the slowest worker's: the median, and the quartiles (low .. high)",
    ]


def row(cell: request.BenchMeasurement) -> str:
    spread = f"{show_seconds(cell.low)} .. {show_seconds(cell.high)}"
    algbw, busbw = (f"{show_bytes(rate)}/s" for rate in (cell.algbw, cell.busbw))
    return (
        f"{show_bytes(cell.size):>8}  {cell.what:16}  {show_seconds(cell.median):>8}  {spread:>20}  "
        f"{algbw:>9}  {busbw:>9}  {show_seconds(cell.predicted):>9}  "
        f"{100 * cell.error:>+4.0f} %  {'ok' if cell.right else 'WRONG'}"
    )


def conclusion(cells: Sequence[request.BenchMeasurement], ending: request.BenchEnding) -> str:
    if ending == "interrupted":
        return f"interrupted after {len(cells)} rows"
    if wrong := [f"{cell.what} at {show_bytes(cell.size)}" for cell in cells if not cell.right]:
        return f"WRONG results: {', '.join(wrong)}"
    error = median(abs(cell.error) for cell in cells)
    return f"all results are right; median error of the predictions {100 * error:.0f} %"


@dataclass(frozen=True, kw_only=True)
class Winner:
    """The fastest backend at one size, among those whose result was right."""

    size: int
    what: str
    seconds: float
    compared: int
    times_gloo: float | None
    """How many times as fast as Gloo's own all-reduce; None if that was not measured, or won."""
    schedule: str | None
    schedule_seconds: float | None

    def __str__(self) -> str:
        text = f"{show_bytes(self.size)}: {self.what} {show_seconds(self.seconds)}"
        if (ratio := self.times_gloo) is not None:
            times = f"{ratio:.2f}" if ratio < 1.1 else f"{ratio:.2g}" if ratio < 100 else f"{ratio:.0f}"
            text += f", {times} times as fast as gloo"
        if self.schedule_seconds is not None and self.schedule != self.what:
            text += f"; best schedule {self.schedule} {show_seconds(self.schedule_seconds)}"
        return text


def winners(cells: Sequence[request.BenchMeasurement]) -> list[Winner]:
    right = (cell for cell in cells if cell.right)
    return [_winner(list(some)) for _, some in groupby(right, key=attrgetter("size"))]


def _winner(cells: list[request.BenchMeasurement]) -> Winner:
    seconds = attrgetter("median")
    best = min(cells, key=seconds)
    gloo = next((cell for cell in cells if cell.what == request.GLOO and cell is not best), None)
    schedules = (cell for cell in cells if cell.what not in (request.GLOO, request.SHM, request.ELSEWHERE))
    schedule = min(schedules, key=seconds, default=None)
    return Winner(
        size=best.size,
        what=best.what,
        seconds=best.median,
        compared=len(cells) - 1,
        times_gloo=gloo.median / best.median if gloo else None,
        schedule=schedule.what if schedule else None,
        schedule_seconds=schedule.median if schedule else None,
    )
