"""TensorBoard event files, for people who look at runs there."""

import time
from collections.abc import Iterator
from dataclasses import fields
from heapq import merge
from math import inf, isnan, nan
from pathlib import Path
from statistics import median
from typing import Any

from paceline.errors import UsageError
from paceline.records.events import MetricsRow, read_events
from paceline.records.folder import RunFolder
from paceline.records.spans import StepBreakdown, StepRecord
from paceline.records.summary import Observer, Started, Summary
from paceline.reports.findings import findings_text
from paceline.reports.summary import summary_text
from paceline.specs import shorten
from paceline.strategies import RECORDED
from paceline.studies.findings import find
from paceline.studies.recorded import RecordedRun

POINTS = 200
"""Points of the training loss, at least, in a run of at least that many steps."""


class TensorBoardObserver(Observer):
    """Writes a run's scalars into its folder: losses, metrics, learning rate, samples/s, step times; and its profile.

    The time of each point is the run's own, so simulated runs show simulated time on the relative axis.
    """

    _writer: Any = None
    _progress = _steps = _samples = 0
    _loss = 0.0
    findings = ""
    """What kept the run from being faster, where that is known before its end is written."""

    def __init__(self, every: float = 0.5, out: Path | None = None, begun: float | None = None) -> None:
        """Without ``out``, the files go into the run's folder; without ``begun``, in Unix time, the run begins now."""
        self._every, self._out, self._start = every, out, begun
        self._lengths: list[float] = []

    def started(self, run: Started) -> None:
        assert run.folder, "a run without a folder has no place for event files"
        self._folder = RunFolder(Path(run.folder))
        self._writer = _open(self._out or self._folder.tensorboard)
        self._begun = time.time() - run.seconds if self._start is None else self._start
        self._since = run.seconds
        self._due = time.monotonic() + self._every
        self._stride = max(1, (run.last_step - run.first_step) // POINTS)
        self._next = run.first_step + self._stride
        self._last: tuple[int, float] | None = (run.first_step, run.seconds)
        text = f"{run.job}, {run.parameters:,} parameters, {run.strategy}, {len(run.batch_sizes)} workers"
        self._writer.add_text("run", text, run.first_step)

    def stepped(self, progress: int, samples: int, loss: float, seconds: float) -> None:
        self._loss += loss
        self._samples += samples
        self._steps += 1
        self._progress = progress
        if self._last is None or progress > self._last[0]:
            if self._last:
                self._lengths.append((seconds - self._last[1]) / (progress - self._last[0]))
            self._last = (progress, seconds)
        if progress >= self._next or time.monotonic() >= self._due:
            self._point(seconds)

    def evaluated(self, row: MetricsRow) -> None:
        """Write the row's scores; the time that it took is in no rate and in no step."""
        if self._last:
            self._point(self._last[1])
        scores = {"train/mean_loss": row.train_loss, "train/learning_rate": row.learning_rate}
        if row.test_loss is not None:
            scores["test/loss"] = row.test_loss
        if row.noise_scale is not None:
            scores["train/noise_scale"] = row.noise_scale
        scores |= {f"test/{name}": value for name, value in row.metrics.items()}
        for name, value in scores.items():
            self._scalar(name, value, row.step, row.seconds)
        self._last, self._since = None, row.seconds

    def noted(self, sentence: str) -> None:
        if self._writer:
            self._writer.add_text("notes", sentence, self._progress)

    def finished(self, summary: Summary) -> None:
        self._point(summary.seconds)
        workers = [totals.typical for totals in summary.totals if totals.steps]
        for part in fields(StepBreakdown) if workers else ():
            if part.name != "hidden":
                mean = sum(getattr(step, part.name) for step in workers) / len(workers)
                self._scalar(f"step_ms/{part.name}", 1e3 * mean, summary.steps, summary.seconds)
        for name, text in (texts(self._folder, summary) | {"findings": self.findings}).items():
            walltime = self._begun + summary.seconds
            if text:
                self._writer.add_text(name, f"```\n{text}\n```", summary.steps, walltime=walltime)
        self.close()

    def close(self) -> None:
        if self._writer:
            self._writer.close()

    def _point(self, seconds: float) -> None:
        if self._steps:
            if not isnan(self._loss):
                self._scalar("train/loss", self._loss / self._steps, self._progress, seconds)
            if seconds > self._since:
                rate = self._samples / (seconds - self._since)
                self._scalar("train/samples_per_second", rate, self._progress, seconds)
        if self._lengths:
            self._scalar("step_ms/step", 1e3 * median(self._lengths), self._progress, seconds)
            self._lengths.clear()
        self._next = self._progress + self._stride
        self._loss, self._samples, self._steps, self._since = 0.0, 0, 0, seconds
        self._due = time.monotonic() + self._every

    def _scalar(self, name: str, value: float, step: int, seconds: float) -> None:
        self._writer.add_scalar(name, value, step, walltime=self._begun + seconds)


def texts(folder: RunFolder, summary: Summary) -> dict[str, str]:
    """What is no series: where a step went and all else that the end of a run says, and its configuration."""
    found = {"profile": "\n".join([summary_text(summary), *summary.notes])}
    if folder.config.exists():
        found["configuration"] = folder.config.read_text().rstrip()
    return found


def export_tensorboard(run: RecordedRun, out: Path) -> Path:
    """Write what a run with TensorBoard event files would have written, but the loss between two evaluations.

    That is not in the record: ``train/loss`` is left out, and ``train/mean_loss`` is there.
    """
    begun = run.folder.summary.stat().st_mtime - run.summary.seconds
    observer = TensorBoardObserver(inf, out, begun)
    observer.started(started_again(run))
    rows = iter([*run.rows, None])
    row, samples = next(rows), 0
    for end, rank, record in _steps_in_time(run.folder):
        samples += record.samples
        while row is not None and row.seconds <= end:
            observer.evaluated(row)
            row = next(rows)
        if rank == 0:
            observer.stepped(record.step, samples, nan, end)
            samples = 0
    for left in (row, *rows):
        if left is not None:
            observer.evaluated(left)
    observer.findings = findings_text(find(run))
    observer.finished(run.summary)
    return out


def started_again(run: RecordedRun) -> Started:
    """What was said before the first step, as far as the record knows it."""
    summary, settings, job = run.summary, run.config.settings, run.config.settings.job
    return Started(
        name=run.name,
        job=job.path or f"{job.data}, {job.model.partition(':')[0]}",
        parameters=summary.parameters,
        strategy=shorten(settings.strategy, RECORDED),
        batch_sizes=settings.batch_sizes,
        transport="",
        last_step=max(1, summary.steps),
        steps_per_epoch=max(1, round(summary.steps / summary.epochs)) if summary.epochs else 1,
        target=summary.target,
        folder=str(run.folder.path),
    )


def _steps_in_time(folder: RunFolder) -> Iterator[tuple[float, int, StepRecord]]:
    """When each step of each worker ended, in the order of these ends; a line of each file is in memory."""

    def steps(rank: int, path: Path) -> Iterator[tuple[float, int, StepRecord]]:
        for record in read_events(path):
            if record.is_step and record.spans:
                yield record.spans[-1].start + record.spans[-1].length, rank, record

    files = folder.event_files().items()
    return merge(*(steps(rank, path) for rank, path in files), key=lambda one: one[:2])


def _open(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError(
            "TensorBoard event files need the package tensorboard, which is not installed; "
            "install it with: pip install 'paceline[tensorboard]'"
        ) from error
    return SummaryWriter(str(folder), flush_secs=10)
