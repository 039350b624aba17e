"""``events/rank-N.jsonl``, a line for each step and each pause, and ``metrics.jsonl``, one for each evaluation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from paceline.records.files import DamagedFile, LineWriter, read_lines, repair
from paceline.records.spans import StepRecord

_AT_ONCE = 4096
"""Records that are written together: some 5 MB, which takes 10 ms."""

_Line = dict[str, float | None]
"""A row of metrics as it is written; null stands for a number that is not finite."""

TEST_LOSS = 2
"""The place of the test loss in a vector of sums; 0 where nothing was tested."""


@dataclass(frozen=True)
class Scores:
    """Means over the training samples since the last evaluation, and over the test data."""

    train_loss: float
    test_loss: float | None
    """None where there is no test data."""
    metrics: Mapping[str, float]

    @classmethod
    def from_sums(cls, sums: Sequence[float], names: Sequence[str]) -> Self:
        """Read sums over samples: [train loss, train samples, test loss, test samples, one a metric]."""
        train_loss, trained, test_loss, tested, *values = sums
        return cls(
            train_loss=train_loss / trained if trained else float("nan"),
            test_loss=test_loss / tested if tested else None,
            metrics={name: value / tested for name, value in zip(names, values, strict=True)},
        )


@dataclass(frozen=True)
class MetricsRow:
    """One evaluation of the central model."""

    step: int
    epoch: float
    scores: Scores
    learning_rate: float
    seconds: float
    """Seconds since the run began: wall time live, simulated time otherwise."""

    def to_json(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "epoch": round(self.epoch, 6),
            "train_loss": self.scores.train_loss,
            **({} if self.scores.test_loss is None else {"test_loss": self.scores.test_loss}),
            **self.scores.metrics,
            "learning_rate": self.learning_rate,
            "seconds": self.seconds,
        }

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Self:
        """Read what ``to_json`` gave; null, which stands for a number that is not finite, becomes nan."""
        values = {key: float("nan") if value is None else value for key, value in line.items()}
        step, epoch, rate, seconds, train_loss = (
            values.pop(key) for key in ("step", "epoch", "learning_rate", "seconds", "train_loss")
        )
        scores = Scores(train_loss=train_loss, test_loss=values.pop("test_loss", None), metrics=values)
        return cls(step=int(step), epoch=epoch, scores=scores, learning_rate=rate, seconds=seconds)


class EventWriter(LineWriter[StepRecord]):
    def __init__(self, path: Path) -> None:
        super().__init__(path, _AT_ONCE)


def append_metrics(path: Path, row: MetricsRow) -> None:
    """Add a row at once, so that other programs can follow a run."""
    with LineWriter[dict[str, float]](path, at_once=1) as lines:
        lines.append(row.to_json())


def read_events(path: Path) -> Iterator[StepRecord]:
    return read_lines(path, StepRecord, "a record of a step")


def read_metrics(path: Path) -> Iterator[MetricsRow]:
    for number, line in enumerate(read_lines(path, _Line, "a row of metrics"), start=1):
        try:
            yield MetricsRow.from_json(line)
        except KeyError as error:
            raise DamagedFile(path, f"is damaged: line {number} is not a row of metrics") from error


def truncate_events(path: Path, step: int) -> list[str]:
    """Drop one worker's records beyond a step, for a run that resumes from there; see ``repair``.

    A damaged line becomes a record that says so, so that later totals know of it.
    """
    last = 0

    def keep(_: int, record: StepRecord) -> bool:
        nonlocal last
        last = record.step
        return last <= step

    def stand_in(_: int) -> StepRecord | None:
        return StepRecord(step=last, is_step=False, damaged=1) if last <= step else None

    return repair(path, StepRecord, keep, stand_in)


def truncate_metrics(path: Path, step: int) -> list[str]:
    return repair(path, _Line, lambda _, line: MetricsRow.from_json(line).step <= step, lambda _: None)
