"""``events/rank-N.jsonl`` and ``metrics.jsonl``: one line a step or meeting, one line an evaluation."""

from collections.abc import Iterator
from pathlib import Path

from paceline.records.files import DamagedFile, finite
from paceline.records.lines import LineWriter, encode, read_lines
from paceline.records.lines import truncate_after as truncate_after
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


def _event_line(record: StepRecord) -> str:
    """The text of ``StepRecord.to_json``, at more than twice its speed."""
    hidden = f'"hidden":[{_spans(record.hidden)}],' if record.hidden else ""
    meeting = ',"meeting":true' if record.meeting else ""
    return (
        f'{{"step":{record.step},"samples":{record.samples},"spans":[{_spans(record.spans)}],'
        f'{hidden}"sent":{record.sent},"received":{record.received}{meeting}}}'
    )


def _spans(spans: list[Span]) -> str:
    return ",".join([f'["{kind}",{start:.9f},{length:.9f}]' for kind, start, length in spans])


def _metrics_line(row: Row) -> str:
    return encode(finite(row.to_json()))
