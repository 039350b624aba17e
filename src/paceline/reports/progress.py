"""Who tells people and programs of a run: the console, one JSON document, or several at once."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from paceline.records.events import MetricsRow
from paceline.records.files import json_text
from paceline.records.summary import Observer, Started, Summary
from paceline.reports.meters import ProgressBar, ProgressLines, StepProgress, meter_for
from paceline.reports.summary import summary_text
from paceline.reports.text import can_draw, counted, figure

SCHEMA = 2


class ConsoleObserver(Observer):
    """Results on stdout: what runs, a row an evaluation, the summary. Progress and notes on stderr.

    Where both are one terminal, the bar and the rows share it and do not break each other.
    """

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None, clock: str = "wall") -> None:
        self._out = out or sys.stdout
        self._meter = meter_for(self._out, err or sys.stderr)
        self._table = RowTable(clock)
        self._timed = clock != "recorded"
        self._pace: StepProgress | None = None
        self._folder: str | None = None

    def started(self, run: Started) -> None:
        self._folder = run.folder
        self._pace = StepProgress(self._meter, run)
        for line in header(run):
            self._print(line)

    def stepped(self, progress: int, samples: int, loss: float, seconds: float) -> None:
        assert self._pace
        self._pace.count(progress, samples, loss, seconds)

    def evaluated(self, row: MetricsRow) -> None:
        for line in self._table.lines(row):
            self._print(line)

    def noted(self, sentence: str) -> None:
        self._meter.say(sentence)

    def finished(self, summary: Summary) -> None:
        if self._pace and isinstance(self._meter, ProgressBar):
            self._pace.show()
        self.close()
        text = summary_text(summary, self._folder, blocks=can_draw(self._out), timed=self._timed)
        self._print(f"\n{text}")
        for sentence in summary.notes:
            self.noted(sentence)

    def close(self) -> None:
        """Leave the terminal tidy, also when the run never finishes; may be called twice."""
        self._meter.stop()

    def _print(self, text: str) -> None:
        if isinstance(self._meter, ProgressBar) and self._meter.console.file is self._out:
            self._meter.say(text)
        else:
            self._write(text)

    def _write(self, text: str) -> None:
        try:
            self._out.write(f"{text}\n")
            self._out.flush()
        except BrokenPipeError:
            # Whoever read along has seen enough, as `head` does; the run is worth more than its rows.
            self._out = Path(os.devnull).open("w")  # noqa: SIM115


class JsonObserver(Observer):
    """One JSON document on stdout when the run is over; a line of progress on stderr now and then."""

    def __init__(
        self, settings: Mapping[str, Any], out: TextIO | None = None, err: TextIO | None = None
    ) -> None:
        self._settings = dict(settings)
        self._out = out or sys.stdout
        self._meter = ProgressLines(err or sys.stderr)
        self._rows: list[MetricsRow] = []
        self._run: Started | None = None
        self._pace: StepProgress | None = None

    def started(self, run: Started) -> None:
        self._run, self._pace = run, StepProgress(self._meter, run)

    def stepped(self, progress: int, samples: int, loss: float, seconds: float) -> None:
        assert self._pace
        self._pace.count(progress, samples, loss, seconds)

    def evaluated(self, row: MetricsRow) -> None:
        self._rows.append(row)

    def noted(self, sentence: str) -> None:
        self._meter.say(sentence)

    def finished(self, summary: Summary) -> None:
        for sentence in summary.notes:
            self.noted(sentence)
        document = {
            "schema": SCHEMA,
            "settings": self._settings,
            "run": asdict(self._run) if self._run else None,
            "rows": [row.to_json() for row in self._rows],
            "summary": summary.to_json(),
        }
        self._out.write(json_text(document) + "\n")
        self._out.flush()


class Tee(Observer):
    """Tells several observers, in order."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def started(self, run: Started) -> None:
        for observer in self._observers:
            observer.started(run)

    def stepped(self, progress: int, samples: int, loss: float, seconds: float) -> None:
        for observer in self._observers:
            observer.stepped(progress, samples, loss, seconds)

    def evaluated(self, row: MetricsRow) -> None:
        for observer in self._observers:
            observer.evaluated(row)

    def noted(self, sentence: str) -> None:
        for observer in self._observers:
            observer.noted(sentence)

    def finished(self, summary: Summary) -> None:
        for observer in self._observers:
            observer.finished(summary)

    def close(self) -> None:
        for observer in self._observers:
            observer.close()


_TRANSPORTS = {"shm": "shared memory"}
"""What people call a backend, where it is not its name."""


def header(run: Started) -> list[str]:
    """What runs, in a line; then where it goes on, and where it is recorded."""
    size = f"{run.parameters:,} parameters"
    backend, by, schedule = run.transport.partition(", by ")
    way = f" over {_TRANSPORTS.get(backend, backend)}{by}{schedule}" if run.transport else ""
    lines = [f"{run.job} ({size}), {_workers(run.batch_sizes)}{run.step}, {run.strategy}{way}"]
    if run.threads and run.cores:
        each = " each" if len(run.batch_sizes) > 1 else ""
        lines.append(f"{counted(run.threads, 'thread')}{each} of {counted(run.cores, 'core')}")
    if run.first_step:
        lines.append(f"resumed at step {run.first_step:,} of {run.last_step:,}")
    if run.folder:
        lines.append(f"recorded in {run.folder}")
    return lines


def _workers(sizes: Sequence[int]) -> str:
    count = "1 worker" if len(sizes) == 1 else f"{len(sizes)} workers"
    if len(set(sizes)) == 1:
        return f"{count} x batch {sizes[0]}"
    shown = (
        [str(size) for size in sizes] if len(sizes) <= 8 else [*map(str, sizes[:7]), "...", str(sizes[-1])]
    )
    return f"{count} with batches {','.join(shown)}"


class RowTable:
    """Lines that stand below each other; the columns are set by the first row."""

    def __init__(self, clock: str = "wall") -> None:
        self._clock = clock
        """Whose seconds they are: "wall" or "simulated"."""
        self._titles: list[str] = []

    def lines(self, row: MetricsRow) -> list[str]:
        """The row's line, below the header if it is the first."""
        scores = row.scores
        cells = {
            "epoch": f"{row.epoch:.6g}" if round(row.epoch, 2) == row.epoch else f"{row.epoch:.2f}",
            "train loss": figure(scores.train_loss),
            **({} if scores.test_loss is None else {"test loss": figure(scores.test_loss)}),
            **{name: figure(value) for name, value in scores.metrics.items()},
            "lr": figure(row.learning_rate),
            f"{self._clock} s": f"{row.seconds:.{1 if self._clock == 'wall' else 3}f}",
        }
        line = _cells(list(cells.items()))
        if self._titles:
            return [line]
        self._titles = list(cells)
        return ["", _cells([(title, title) for title in cells]), line]


def _cells(cells: list[tuple[str, str]]) -> str:
    """Right-aligned cells, three spaces apart, each column at least as wide as its title and as a loss."""
    return " ".join(cell.rjust(max(len(title), 6) + 2) for title, cell in cells)
