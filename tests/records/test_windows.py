"""Records out of the middle of a long file: those that reading all of it would give, at the price of a few seeks."""

import pytest

from paceline.records.events import EventWriter, read_events
from paceline.records.spans import Span, StepRecord
from paceline.records.windows import LINE, record_end, record_start, record_step, records_from

STEPS = 4000


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "rank-0.jsonl"
    with EventWriter(path) as lines:
        for step in range(1, STEPS + 1):
            spans = [Span("forward", float(step), 0.5), Span("backward", step + 0.5, 0.5)]
            lines.append(StepRecord(step=step, samples=8, spans=spans))
            if step % 100 == 0:
                pause = [Span("checkpoint", step + 1.0, 0.0)]
                lines.append(StepRecord(step=step, spans=pause, is_step=False))
    assert path.stat().st_size > 4 * LINE, "or nothing is bisected"
    return path


@pytest.mark.parametrize("step", [0, 1, 2, 77, 1999, 2000, 2001, STEPS, STEPS + 1])
@pytest.mark.parametrize("key", [record_step, record_start, record_end])
def test_a_window_begins_where_reading_everything_would(events, key, step):
    expected = [record for record in read_events(events) if key(record) >= step]
    assert list(records_from(events, key, step)) == expected


def test_damaged_and_empty_lines_are_skipped(tmp_path):
    path = tmp_path / "rank-0.jsonl"
    with EventWriter(path) as lines:
        lines.append(StepRecord(step=1, spans=[Span("forward", 0.0, 1.0)]))
        lines.append(StepRecord(step=1, is_step=False, damaged=1))
        lines.append(StepRecord(step=2, spans=[Span("forward", 1.0, 1.0)]))
    with path.open("ab") as file:
        file.write(b'\xff nothing\n{"step":3,"spans":[["forw')
    assert [record.step for record in records_from(path, record_step, 0)] == [1, 2]
