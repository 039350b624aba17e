"""A run while it goes on: results on stdout, progress and notes on stderr, or one JSON document at the end."""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from paceline.records.events import MetricsRow
from paceline.records.files import json_text
from paceline.records.folder import short_path
from paceline.records.summary import Observer, Started, Summary
from paceline.reports.summary import summary_text
from paceline.reports.text import can_draw, counted, figure, time_left

if TYPE_CHECKING:
    from paceline.reports.forecast import Expectation
    from paceline.studies.findings import Finding

SCHEMA = 2
BAR_EVERY, LINE_EVERY = 0.25, 10.0
"""Seconds between two looks at the progress: as a bar on a terminal, as a line in a file or a pipe."""
TELLING = 0.01
"""The part that must be done before it tells how long the rest takes."""


class Screen:
    """Results on one stream, progress and notes on the other; where both are one terminal, they share it."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None, *, bar: bool = True) -> None:
        self.out, self._err = out or sys.stdout, err or sys.stderr
        console = Console(file=self.out if self.out.isatty() else self._err, force_terminal=True)
        draws = bar and self._err.isatty() and not console.is_dumb_terminal
        self.bar = _bar(console) if draws else None
        self.begin()

    def begin(self) -> None:
        self.begun = time.monotonic()
        self.due = self.begun + self._every

    @property
    def _every(self) -> float:
        return BAR_EVERY if self.bar else LINE_EVERY

    def show(self, done: float | None, words: str) -> None:
        """``done`` is the part that is done, or None where nobody knows."""
        if self.bar is None or done is None:
            self.note(words if done is None else f"{100 * done:.0f} %  {words}")
        else:
            if not self.bar.live.is_started:
                self.bar.add_task("", total=1.0, words=words)
                self.bar.start()
                self.bar.console.show_cursor()  # a worker that is killed could not give it back
            self.bar.update(self.bar.task_ids[0], completed=done, words=words)
            self.bar.refresh()
        self.due = time.monotonic() + (LINE_EVERY if done is None else self._every)

    def count_down(self, done: float, words: str) -> None:
        """Show it, when it is due, with about how long the rest takes."""
        now = time.monotonic()
        if now >= self.due:
            left = (now - self.begun) * (1 - done) / done if done >= TELLING else 0.0
            self.show(done, f"{words}  about {time_left(left)} left" if left else words)

    def note(self, sentence: str) -> None:
        if self.bar is None:
            self._err.write(f"{sentence}\n")
            self._err.flush()
        else:
            self.bar.console.print(sentence, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def print(self, text: str) -> None:
        if self.bar and self.bar.console.file is self.out:
            self.note(text)
            return
        try:
            self.out.write(f"{text}\n")
            self.out.flush()
        except BrokenPipeError:
            # The reader has seen enough, as `head` does; the run is worth more than its rows.
            self.out = Path(os.devnull).open("w")  # noqa: SIM115

    def close(self) -> None:
        """Leave the last state on the screen; may be called twice."""
        if self.bar and self.bar.live.is_started:
            self.bar.stop()


def _bar(console: Console) -> Progress:
    """Drawn when it is told to and by no thread of its own, which would take time from the training."""
    words = Column(no_wrap=True, overflow="crop")
    return Progress(
        TextColumn("{task.percentage:>4.0f} %"),
        BarColumn(max(6, min(20, console.width - 66)), complete_style="cyan", finished_style="green"),
        TextColumn("{task.fields[words]}", markup=False, table_column=words),
        console=console,
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
    )


Expect = Callable[[Started], "Expectation | None"]
"""What is expected of a run that is about to begin."""
Diagnose = Callable[[Path], "Sequence[Finding]"]
"""What kept a run that has ended from being faster, by its folder."""


class ProgressObserver(Observer):
    """Shows how far a run has come, with its rate and its loss."""

    _run: Started

    def __init__(
        self, screen: Screen, expect: Expect = lambda _: None, diagnose: Diagnose = lambda _: ()
    ) -> None:
        self.screen, self._expect, self._diagnose = screen, expect, diagnose
        self._expected: Expectation | None = None

    def started(self, run: Started) -> None:
        self._expected = self._expect(run)
        self.screen.begin()
        self._run, self._progress = run, run.first_step
        self._seconds = self._since = run.seconds
        self._samples = self._steps = 0
        self._loss = 0.0
        self._measured: list[str] = []

    def stepped(self, progress: int, samples: int, loss: float, seconds: float) -> None:
        self._samples += samples
        self._steps += 1
        self._loss += loss
        self._progress, self._seconds = progress, seconds
        if time.monotonic() >= self.screen.due:
            self.show()

    def show(self) -> None:
        run, progress = self._run, self._progress
        if self._steps and self._seconds > self._since:
            rate = self._samples / (self._seconds - self._since)
            self._measured = [f"{rate:,.0f} samples/s"]
            if isfinite(self._loss):  # of a script it is not known
                self._measured.append(f"loss {figure(self._loss / self._steps)}")
            self._samples = self._steps = 0
            self._loss, self._since = 0.0, self._seconds
        if not run.last_step:
            self.screen.show(None, "  ".join([f"{progress:,} steps", *self._measured]))
            return
        epochs, rest = divmod(run.last_step, run.steps_per_epoch)
        at = f"{progress / run.steps_per_epoch:.{0 if progress == run.last_step else 1}f}/{epochs} epochs"
        words = [f"{progress:,}/{run.last_step:,} steps" if rest else at, *self._measured]
        done, left = progress - run.first_step, run.last_step - progress
        if done and left > 0:
            words.append(f"{time_left((time.monotonic() - self.screen.begun) / done * left)} left")
        self.screen.show(min(1.0, progress / run.last_step), "  ".join(words))

    def noted(self, sentence: str) -> None:
        self.screen.note(sentence)

    def finished(self, summary: Summary) -> None:
        for sentence in summary.notes:
            self.noted(sentence)

    def findings(self) -> "Sequence[Finding]":
        return self._diagnose(Path(self._run.folder)) if self._run.folder else ()

    def close(self) -> None:
        self.screen.close()


class ConsoleObserver(ProgressObserver):
    """What runs, a row an evaluation, the summary."""

    def __init__(
        self,
        out: TextIO | None = None,
        err: TextIO | None = None,
        clock: str = "wall",
        expect: Expect = lambda _: None,
        diagnose: Diagnose = lambda _: (),
    ) -> None:
        """``clock`` says whose seconds a run counts: "wall", "simulated" or "recorded"."""
        super().__init__(Screen(out, err), expect, diagnose)
        self._clock = clock
        self._titled = False

    def started(self, run: Started) -> None:
        self.screen.print("\n".join(header(run)))
        super().started(run)
        if self._expected:
            self.screen.print(self._expected.before)

    def evaluated(self, row: MetricsRow) -> None:
        cells = {
            "epoch": f"{row.epoch:.6g}" if round(row.epoch, 2) == row.epoch else f"{row.epoch:.2f}",
            "train loss": figure(row.train_loss),
            **({} if row.test_loss is None else {"test loss": figure(row.test_loss)}),
            **{name: figure(value) for name, value in row.metrics.items()},
            "lr": figure(row.learning_rate),
            f"{self._clock} s": f"{row.seconds:.{1 if self._clock == 'wall' else 3}f}",
        }
        lines = [list(cells.values())] if self._titled else [list(cells), list(cells.values())]
        if not self._titled:
            self.screen.print("")
        self._titled = True
        for line in lines:
            widths = [max(len(title), 6) + 2 for title in cells]
            self.screen.print(" ".join(map(str.rjust, line, widths)))

    def finished(self, summary: Summary) -> None:
        if self.screen.bar:
            self.show()
        self.close()
        blocks, timed = can_draw(self.screen.out), self._clock != "recorded"
        predicted = self._expected.step if self._expected else None
        folder = self._run.folder and short_path(self._run.folder)
        text = summary_text(summary, folder, blocks=blocks, timed=timed, predicted=predicted)
        self.screen.print(f"\n{text}")
        if self._expected and (outcome := self._expected.after(summary)):
            self.screen.print(outcome)
        if findings := self.findings():
            from paceline.reports.findings import findings_text  # which needs torch

            if told := findings_text(findings, but=summary.notes):
                self.screen.print(f"\n{told}")
        super().finished(summary)


class JsonObserver(ProgressObserver):
    """One JSON document when the run is over; progress in lines."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        out: TextIO | None = None,
        err: TextIO | None = None,
        expect: Expect = lambda _: None,
        diagnose: Diagnose = lambda _: (),
    ) -> None:
        super().__init__(Screen(out, err, bar=False), expect, diagnose)
        self._settings = dict(settings)
        self._rows: list[MetricsRow] = []

    def evaluated(self, row: MetricsRow) -> None:
        self._rows.append(row)

    def finished(self, summary: Summary) -> None:
        super().finished(summary)
        run = asdict(replace(self._run, probe=None, subject=None))
        document = {
            "schema": SCHEMA,
            "settings": self._settings,
            "run": {key: value for key, value in run.items() if key not in ("subject", "model")},
            "prediction": self._expected and self._expected.document,
            "rows": [row.to_json() for row in self._rows],
            "summary": summary.to_json(),
            "findings": self._findings_document(),
        }
        self.screen.print(json_text(document))

    def _findings_document(self) -> list[dict[str, Any]]:
        if not (findings := self.findings()):
            return []
        from paceline.reports.findings import findings_document  # which needs torch

        return findings_document(findings)


class Tee(Observer):
    """Tells several observers, in order."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        for name in ("started", "stepped", "evaluated", "noted", "finished", "close"):
            setattr(self, name, partial(_call_each, [getattr(one, name) for one in observers]))


def _call_each(functions: Sequence[Callable[..., None]], *arguments: Any) -> None:
    for function in functions:
        function(*arguments)


_TRANSPORTS = {"shm": "shared memory"}


def header(run: Started) -> list[str]:
    size = counted(run.parameters, "parameter")
    backend, by, schedule = run.transport.partition(", by ")
    way = f" over {_TRANSPORTS.get(backend, backend)}{by}{schedule}" if run.transport else ""
    codec = f", codec {run.codec}" if run.codec else ""
    lines = [f"{run.job} ({size}), {_workers(run.batch_sizes)}{run.step}, {run.strategy}{way}{codec}"]
    if run.learning_rate:
        lines.append(f"learning rate {run.learning_rate}")
    if run.threads and run.cores:
        each = " each" if len(run.batch_sizes) > 1 else ""
        lines.append(f"{counted(run.threads, 'thread')}{each} of {counted(run.cores, 'core')}")
    if run.first_step:
        whole = f" of {run.last_step:,}" if run.last_step else ""  # a script ends when it does
        lines.append(f"resumed at step {run.first_step:,}{whole}")
    if run.folder:
        lines.append(f"recorded in {short_path(run.folder)}")
    return lines


def _workers(sizes: Sequence[int]) -> str:
    count = counted(len(sizes), "worker")
    if len(set(sizes)) == 1:
        return f"{count} x batch {sizes[0]}"
    shown = [*map(str, sizes)] if len(sizes) <= 8 else [*map(str, sizes[:7]), "...", str(sizes[-1])]
    return f"{count} with batches {','.join(shown)}"
