"""Observers that show a run: on the console, as one JSON document, or several at once."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from paceline.records.events import MetricsRow
from paceline.records.files import json_text
from paceline.records.summary import Observer, Started, Summary
from paceline.reports.meters import Meter, ProgressBar, ProgressLines, StepProgress, meter_for
from paceline.reports.summary import summary_text
from paceline.reports.text import can_draw, counted, figure

SCHEMA = 2


class _ProgressObserver(Observer):
    """Shows steps and notes on a meter."""

    def __init__(self, meter: Meter, out: TextIO) -> None:
        self._meter, self._out = meter, out
        self._run: Started | None = None
        self._progress: StepProgress | None = None

    def started(self, run: Started) -> None:
        self._run, self._progress = run, StepProgress(self._meter, run)

    def stepped(self, progress: int, samples: int, loss: float, seconds: float) -> None:
        assert self._progress
        self._progress.count(progress, samples, loss, seconds)

    def noted(self, sentence: str) -> None:
        self._meter.say(sentence)

    def close(self) -> None:
        self._meter.stop()

    def _write(self, text: str) -> None:
        try:
            self._out.write(f"{text}\n")
            self._out.flush()
        except BrokenPipeError:  # the reader has ended, as `head` does; the run goes on
            self._out = Path(os.devnull).open("w")  # noqa: SIM115


class ConsoleObserver(_ProgressObserver):
    """Results on stdout: what runs, a row an evaluation, the summary. Progress and notes on stderr.

    Where both are one terminal, the bar and the rows share it and do not break each other.
    """

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None, clock: str = "wall") -> None:
        out = out or sys.stdout
        super().__init__(meter_for(out, err or sys.stderr), out)
        self._table = RowTable(clock)
        self._timed = clock != "recorded"

    def started(self, run: Started) -> None:
        super().started(run)
        self._print(header(run))

    def evaluated(self, row: MetricsRow) -> None:
        self._print(self._table.lines(row))

    def finished(self, summary: Summary) -> None:
        if self._progress and isinstance(self._meter, ProgressBar):
            self._progress.show()
        self.close()
        folder = self._run.folder if self._run else None
        self._print(["", summary_text(summary, folder, blocks=can_draw(self._out), timed=self._timed)])
        for sentence in summary.notes:
            self.noted(sentence)

    def _print(self, lines: Iterable[str]) -> None:
        shared = isinstance(self._meter, ProgressBar) and self._meter.console.file is self._out
        for line in lines:
            (self._meter.say if shared else self._write)(line)


class JsonObserver(_ProgressObserver):
    """One JSON document on stdout when the run is over; lines of progress on stderr."""

    def __init__(
        self, settings: Mapping[str, Any], out: TextIO | None = None, err: TextIO | None = None
    ) -> None:
        super().__init__(ProgressLines(err or sys.stderr), out or sys.stdout)
        self._settings = dict(settings)
        self._rows: list[MetricsRow] = []

    def evaluated(self, row: MetricsRow) -> None:
        self._rows.append(row)

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
        self._write(json_text(document))


class Tee(Observer):
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


def header(run: Started) -> list[str]:
    """What runs, on how many threads, from which step on, and where it is recorded."""
    backend, by, schedule = run.transport.partition(", by ")
    backend = "shared memory" if backend == "shm" else backend
    over = f" over {backend}{by}{schedule}" if run.transport else ""
    workers = f"{_workers(run.batch_sizes)}{run.step}"
    lines = [f"{run.job} ({run.parameters:,} parameters), {workers}, {run.strategy}{over}"]
    if run.threads and run.cores:
        each = " each" if len(run.batch_sizes) > 1 else ""
        lines.append(f"{counted(run.threads, 'thread')}{each} of {counted(run.cores, 'core')}")
    if run.first_step:
        lines.append(f"resumed at step {run.first_step:,} of {run.last_step:,}")
    if run.folder:
        lines.append(f"recorded in {run.folder}")
    return lines


def _workers(sizes: Sequence[int]) -> str:
    count = counted(len(sizes), "worker")
    if len(set(sizes)) == 1:
        return f"{count} x batch {sizes[0]}"
    shown = sizes if len(sizes) <= 8 else [*sizes[:7], "...", sizes[-1]]
    return f"{count} with batches {','.join(map(str, shown))}"


class RowTable:
    """A line a row; the first is preceded by the header. ``clock`` is "wall" or "simulated"."""

    def __init__(self, clock: str = "wall") -> None:
        self._clock, self._has_header = clock, False

    def lines(self, row: MetricsRow) -> list[str]:
        scores = row.scores
        cells = {
            "epoch": f"{row.epoch:.6g}" if round(row.epoch, 2) == row.epoch else f"{row.epoch:.2f}",
            "train loss": figure(scores.train_loss),
            **({} if scores.test_loss is None else {"test loss": figure(scores.test_loss)}),
            **{name: figure(value) for name, value in scores.metrics.items()},
            "lr": figure(row.learning_rate),
            f"{self._clock} s": f"{row.seconds:.{1 if self._clock == 'wall' else 3}f}",
        }
        widths = [max(len(title), 6) + 2 for title in cells]
        rows = [cells.values()] if self._has_header else [(), cells, cells.values()]
        self._has_header = True
        return [" ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=False)) for row in rows]
