"""``events/rank-N.jsonl`` and ``metrics.jsonl``: one line a step or meeting, one line an evaluation."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paceline.records.files import DamagedFile, finite
from paceline.records.lines import LineWriter, encode, read_lines, repair
from paceline.records.metrics import Row
from paceline.records.spans import Span, StepRecord

_AT_ONCE = 4096
"""Records that are kept before they are written: some 5 MB, and 40 ms of writing now and then."""


class EventWriter(LineWriter[StepRecord]):
    """Writes one worker's records; times are rounded to a nanosecond."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, _event_line, _AT_ONCE)


class MetricsWriter(LineWriter[Row]):
    """Writes one row an evaluation, at once, so that others can follow a run."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, _metrics_line, at_once=1)


def read_events(path: Path) -> Iterator[StepRecord]:
    """One worker's records in order; a line torn by a crash is skipped, a damaged one is named."""
    for number, line in enumerate(read_lines(path), start=1):
        try:
            yield StepRecord.from_json(line)
        except (KeyError, TypeError) as error:
            raise DamagedFile(path, f"is damaged: line {number} is not a record of a step") from error


def read_metrics(path: Path) -> Iterator[Row]:
    """The rows in order, read as ``read_events`` reads."""
    for number, line in enumerate(read_lines(path), start=1):
        try:
            yield Row.from_json(line)
        except (KeyError, TypeError) as error:
            raise DamagedFile(path, f"is damaged: line {number} is not a row of metrics") from error


def truncate_events(path: Path, step: int) -> list[str]:
    """Drop one worker's records beyond a step, for a run that goes on from there; see ``repair``.

    A damaged line is replaced by a record that says so, so that every later total knows of it.
    """
    last = 0

    def keep(_: int, document: dict[str, Any]) -> bool:
        nonlocal last
        record = StepRecord.from_json(document)
        record.check()
        last = record.step
        return last <= step

    def stand_in(_: int) -> str:
        return _event_line(StepRecord(step=last, meeting=True, damaged=1)) if last <= step else ""

    return repair(path, keep, stand_in)


def truncate_metrics(path: Path, step: int) -> list[str]:
    """Drop the rows beyond a step, and damaged ones, for a run that goes on from there; see ``repair``."""

    def keep(_: int, document: dict[str, Any]) -> bool:
        row = Row.from_json(document)
        numbers = (
            row.epoch,
            row.learning_rate,
            row.seconds,
            row.scores.train_loss,
            row.scores.test_loss or 0.0,
        )
        if not all(isinstance(number, float | int) for number in (*numbers, *row.scores.metrics.values())):
            raise TypeError("not a row of metrics")
        return row.step <= step

    return repair(path, keep, lambda _: "")


def _event_line(record: StepRecord) -> str:
    """The text of ``StepRecord.to_json``, at more than twice its speed."""
    hidden = f'"hidden":[{_spans(record.hidden)}],' if record.hidden else ""
    meeting = ',"meeting":true' if record.meeting else ""
    warm_up = ',"warm_up":true' if record.warm_up else ""
    damaged = f',"damaged":{record.damaged}' if record.damaged else ""
    return (
        f'{{"step":{record.step},"samples":{record.samples},"spans":[{_spans(record.spans)}],'
        f'{hidden}"sent":{record.sent},"received":{record.received}{meeting}{warm_up}{damaged}}}'
    )


def _spans(spans: list[Span]) -> str:
    return ",".join([f'["{kind}",{start:.9f},{length:.9f}]' for kind, start, length in spans])


def _metrics_line(row: Row) -> str:
    return encode(finite(row.to_json()))
