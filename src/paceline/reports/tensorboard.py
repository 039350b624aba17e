"""TensorBoard event files, for people who look at runs there."""

import time
from dataclasses import fields
from pathlib import Path
from statistics import median
from typing import Any

from paceline.errors import UsageError
from paceline.records.events import MetricsRow
from paceline.records.folder import RunFolder
from paceline.records.spans import StepBreakdown
from paceline.records.summary import Observer, Started, Summary

POINTS = 200
"""Points of the training loss, at least, in a run of at least that many steps."""


class TensorBoardObserver(Observer):
    """Writes a run's scalars into its folder: losses, metrics, learning rate, samples/s, step times.

    The time of each point is the run's own, so simulated runs show simulated time on the relative axis.
    """

    _writer: Any = None
    _progress = _steps = _samples = 0
    _loss = 0.0

    def __init__(self, every: float = 0.5) -> None:
        self._every = every
        self._lengths: list[float] = []

    def started(self, run: Started) -> None:
        assert run.folder, "a run without a folder has no place for event files"
        self._writer = _open(RunFolder(Path(run.folder)).tensorboard)
        self._begun = time.time() - run.seconds
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
        self.close()

    def close(self) -> None:
        if self._writer:
            self._writer.close()

    def _point(self, seconds: float) -> None:
        if self._steps:
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


def _open(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError(
            "TensorBoard event files need the package tensorboard, which is not installed; "
            "install it with: pip install 'paceline[tensorboard]'"
        ) from error
    return SummaryWriter(str(folder), flush_secs=10)
