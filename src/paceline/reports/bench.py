"""A benchmark as people and programs read it: the settings, what was expected, a row a cell."""

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from paceline.records.files import finite
from paceline.reports.meters import Bar, Lines, Meter, meter_for
from paceline.reports.text import time_left
from paceline.reports.winners import winners
from paceline.studies.collectives.results import SCHEMA, Bench, Cell, Ending, Prediction
from paceline.units import show_bytes, show_seconds

_TITLES = (
    f"{'size':>8}  {'what':16}  {'time':>8}  {'low .. high':>20}  {'algbw':>9}  {'busbw':>9}  "
    f"{'predicted':>9}  {'error':>6}  result"
)


class ConsoleBench:
    """Rows on stdout as sizes are done; progress on stderr, or both on one terminal."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._meter = meter_for(self._out, err or sys.stderr)
        self._progress = _Progress(self._meter)
        self._cells: list[Cell] = []

    def started(self, bench: Bench) -> None:
        """Say what is measured, and how."""
        for line in header(bench):
            self._print(line)

    def predicted(self, prediction: Prediction) -> None:
        """Say what predictions are made of."""
        self._print("predicted from:")
        for sentence in prediction.how:
            self._print(f"  {sentence}")
        for line in ("", _TITLES):
            self._print(line)

    def progressed(self, done: float, words: str) -> None:
        """Show it when it is time."""
        self._progress.show(done, words)

    def measured(self, cells: Sequence[Cell]) -> None:
        """Print the rows of a size, below those of the size before."""
        if self._cells:
            self._print("")
        self._cells += cells
        for cell in cells:
            self._print(row(cell))

    def noted(self, sentence: str) -> None:
        """Say it on stderr."""
        self._meter.say(sentence)

    def finished(self, ending: Ending) -> None:
        """Say which way was the fastest at each size, and how it went."""
        self.close()
        self._print("")
        for found in winners(self._cells):
            if found.compared:
                self._print(str(found))
        self._print(verdict(self._cells, ending))

    def close(self) -> None:
        """Leave the terminal tidy."""
        self._meter.stop()

    def _print(self, text: str) -> None:
        if isinstance(self._meter, Bar) and self._meter.console.file is self._out:
            self._meter.say(text)
            return
        try:
            self._out.write(f"{text}\n")
            self._out.flush()
        except BrokenPipeError:
            # Whoever read along has seen enough, as `head` does; the other workers still measure.
            self._out = Path(os.devnull).open("w")  # noqa: SIM115


class JsonBench:
    """One JSON document on stdout at the end; a line of progress on stderr now and then."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._meter = Lines(err or sys.stderr)
        self._progress = _Progress(self._meter)
        self._document: dict[str, Any] = {"schema": SCHEMA}
        self._cells: list[Cell] = []

    def started(self, bench: Bench) -> None:
        """Remember the settings."""
        self._document["settings"] = asdict(bench)

    def predicted(self, prediction: Prediction) -> None:
        """Remember the prediction, as it was made."""
        self._document["prediction"] = asdict(prediction)

    def progressed(self, done: float, words: str) -> None:
        """Show it when it is time."""
        self._progress.show(done, words)

    def measured(self, cells: Sequence[Cell]) -> None:
        """Remember the cells."""
        self._cells += cells

    def noted(self, sentence: str) -> None:
        """Say it on stderr, and remember it."""
        self._document.setdefault("notes", []).append(sentence)
        self._meter.say(sentence)

    def finished(self, ending: Ending) -> None:
        """Print the document."""
        self._document |= {"ending": ending, "fastest": [asdict(found) for found in winners(self._cells)]}
        self._document["cells"] = [cell.to_json() for cell in self._cells]
        self._out.write(json.dumps(finite(self._document), indent=2, allow_nan=False) + "\n")
        self._out.flush()

    def close(self) -> None:
        """Nothing is open."""


class _Progress:
    """Shows how far it is, now and then."""

    def __init__(self, meter: Meter) -> None:
        self._meter, self._begun = meter, time.monotonic()
        self._due = self._begun + meter.interval

    def show(self, done: float, words: str) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        left = (now - self._begun) / done * (1 - done) if done else 0.0
        more = f"  about {time_left(left)} left" if left else ""
        self._meter.show(done, f"{words}{more}")
        self._due = now + self._meter.interval


def header(bench: Bench) -> list[str]:
    """What is measured, in two lines."""
    where = "one host" if len(bench.hosts) == 1 else f"{len(bench.hosts)} hosts"
    calls = (
        f"{bench.repeats} timed calls a cell"
        if bench.repeats
        else f"as many timed calls as fit {show_seconds(bench.cell_seconds)} a cell"
    )
    many = "s" if bench.threads > 1 else ""
    return [
        f"all-reduce ({bench.op}) of {bench.dtype}, {bench.workers} workers on {where}; "
        f"torch {bench.torch}, {bench.threads} thread{many} a worker",
        f"{calls}, all ways in turn; time is the slowest worker's: the median, and the middle half (low .. high)",
    ]


def row(cell: Cell) -> str:
    """One line of the table."""
    spread = f"{show_seconds(cell.low)} .. {show_seconds(cell.high)}"
    return (
        f"{show_bytes(cell.size):>8}  {cell.what:16}  {show_seconds(cell.median):>8}  {spread:>20}  "
        f"{_rate(cell.algbw):>9}  {_rate(cell.busbw):>9}  {show_seconds(cell.predicted):>9}  "
        f"{100 * cell.error:>+4.0f} %  {'ok' if cell.right else 'WRONG'}"
    )


def verdict(cells: Sequence[Cell], ending: Ending) -> str:
    """The last sentence."""
    if ending == "interrupted":
        return f"interrupted after {len(cells)} rows"
    wrong = [f"{cell.what} at {show_bytes(cell.size)}" for cell in cells if not cell.right]
    if wrong:
        return f"WRONG results: {', '.join(wrong)}"
    if len(cells) < 3:
        return "all results are right" if len(cells) > 1 else "the result is right"
    errors = sorted(abs(cell.error) for cell in cells)
    middle = (errors[(len(errors) - 1) // 2] + errors[len(errors) // 2]) / 2
    return f"all results are right; half of the predictions are within {100 * middle:.0f} %"


def _rate(rate: float) -> str:
    return f"{show_bytes(rate)}/s"
