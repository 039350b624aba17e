"""``events/rank-N.jsonl``, a line for each step and each pause, and ``metrics.jsonl``, one for each evaluation."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from paceline.records.files import LineWriter, read_blocks, read_lines, repair
from paceline.records.spans import StepRecord

TEST_LOSS = 2
"""The place of the test loss in a vector of sums; 0 where nothing was tested."""


@dataclass(frozen=True)
class MetricsRow:
    """One evaluation of the central model: means over the training samples since the last one and over test data."""

    step: int
    epoch: float
    train_loss: float
    test_loss: float | None
    metrics: Mapping[str, float]
    learning_rate: float
    seconds: float
    noise_scale: float | None = None
    """The gradient noise scale in samples, where it was measured."""

    @classmethod
    def from_sums(cls, sums: Sequence[float], names: Iterable[str], **row: Any) -> Self:
        """Read sums over samples: [train loss, train samples, test loss, test samples, one a metric]."""
        train_loss, trained, test_loss, tested, *values = sums
        return cls(
            train_loss=train_loss / trained if trained else float("nan"),
            test_loss=test_loss / tested if tested else None,
            metrics={name: value / tested for name, value in zip(names, values, strict=True)},
            **row,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "epoch": round(self.epoch, 6),
            "train_loss": self.train_loss,
            **({} if self.test_loss is None else {"test_loss": self.test_loss}),
            **self.metrics,
            "learning_rate": self.learning_rate,
            "seconds": self.seconds,
            **({} if self.noise_scale is None else {"noise_scale": self.noise_scale}),
        }

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Self:
        """Read what ``to_json`` gave; null, which stands for a number that is not finite, becomes nan."""
        values = {key: float("nan") if value is None else value for key, value in line.items()}
        row = {key: values.pop(key) for key in ("epoch", "train_loss", "learning_rate", "seconds")}
        row |= {key: values.pop(key, None) for key in ("test_loss", "noise_scale")}
        return cls(step=int(values.pop("step")), metrics=values, **row)


EventWriter = LineWriter[StepRecord]


def append_metrics(path: Path, row: MetricsRow) -> None:
    with LineWriter[dict[str, float]](path, at_once=1) as lines:
        lines.append(row.to_json())


_decode_step = msgspec.json.Decoder(StepRecord).decode
_decode_line = msgspec.json.Decoder(dict[str, float | None]).decode


def _decode_row(line: bytes) -> MetricsRow:
    return MetricsRow.from_json(_decode_line(line))


def read_events(path: Path) -> Iterator[StepRecord]:
    return read_lines(path, _decode_step, "a record of a step")


def sample_events(path: Path, blocks: int = 32, size: int = 16_384) -> list[list[StepRecord]]:
    """Records in blocks that follow each other in time, all of a short file and a bounded part of a long one.

    Of a file of more than ``blocks`` times ``size`` bytes, as many blocks of that size are read, evenly spaced, the
    first and the last among them: neither memory nor time grows with the run.
    """
    if path.stat().st_size <= blocks * size:
        records = list(read_events(path))
        many = max(1, -(-len(records) // blocks))
        return [records[start : start + many] for start in range(0, len(records), many)]
    return read_blocks(path, _decode_step, "a record of a step", blocks, size)


def read_metrics(path: Path) -> Iterator[MetricsRow]:
    return read_lines(path, _decode_row, "a row of metrics")


def truncate_events(path: Path, step: int) -> list[str]:
    """Drop one worker's records beyond a step, for a run that resumes from there; see ``repair``.

    A damaged line becomes a record that says so, so that later totals know of it.
    """
    return repair(
        path,
        _decode_step,
        keep=lambda _, last: last is None or last.step <= step,
        stand_in=lambda last: StepRecord(step=last.step if last else 0, is_step=False, damaged=1),
    )


def truncate_metrics(path: Path, step: int) -> list[str]:
    return repair(path, _decode_row, keep=lambda _, row: row is None or row.step <= step)
