import math
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.records import files
from paceline.records.events import (
    EventWriter,
    MetricsRow,
    append_metrics,
    read_events,
    read_metrics,
    truncate_events,
    truncate_metrics,
)
from paceline.records.files import DamagedFile
from paceline.records.spans import KINDS, Span, StepRecord, TimeLedger

TIMES = st.floats(0, 1e6)
SPANS = st.lists(st.builds(Span, st.sampled_from(KINDS), TIMES, TIMES), max_size=4)
RECORDS = st.builds(
    StepRecord,
    step=st.integers(0, 10**9),
    samples=st.integers(0, 10**6),
    spans=SPANS,
    hidden=SPANS,
    sent=st.integers(0, 10**15),
    received=st.integers(0, 10**15),
    is_step=st.booleans(),
)


def record(step: int) -> StepRecord:
    return StepRecord(
        step, 32, [Span("forward", step * 0.1, 0.06), Span("backward", step * 0.1 + 0.06, 0.04)], sent=8
    )


def write(path, steps) -> None:
    with EventWriter(path) as writer:
        for step in steps:
            writer.append(record(step))


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=st.lists(RECORDS, max_size=5))
def test_records_are_read_back_bit_for_bit(records, tmp_path):
    path = tmp_path / "rank-0.jsonl"
    path.unlink(missing_ok=True)
    with EventWriter(path) as writer:
        for one in records:
            writer.append(one)
    assert list(read_events(path)) == records


def test_nothing_is_written_before_a_flush_and_everything_after_it(tmp_path):
    path = tmp_path / "events" / "rank-0.jsonl"
    writer = EventWriter(path)
    writer.append(record(1))
    assert path.read_text() == ""
    writer.flush()
    assert [one.step for one in read_events(path)] == [1]
    writer.append(record(2))
    writer.close()
    writer.close()
    assert [one.step for one in read_events(path)] == [1, 2]


def test_another_thread_may_write_down_what_is_kept(tmp_path):
    """If this failed, a worker that is ended while it is stuck would lose its record, or tear its lines."""
    path = tmp_path / "rank-0.jsonl"
    writer = EventWriter(path)
    threads = [threading.Thread(target=writer.flush) for _ in range(50)]
    for step, thread in enumerate(threads):
        writer.append(record(step))
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.step for one in read_events(path)) == list(range(50))
    writer.close()
    writer.flush()


def test_a_run_without_meetings_does_not_keep_its_records_in_memory_for_ever(tmp_path):
    writer = EventWriter(tmp_path / "events.jsonl")
    for step in range(10_000):
        writer.append(record(step))
    assert len(list(read_events(tmp_path / "events.jsonl"))) >= 5_000
    writer.close()


def test_a_line_torn_anywhere_is_skipped(tmp_path):
    path = tmp_path / "events.jsonl"
    write(path, [1, 2, 3])
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rindex(b"\n") + 1
    for length in range(last, len(whole)):
        path.write_bytes(whole[:length])
        assert [one.step for one in read_events(path)] == [1, 2]


@pytest.mark.parametrize(
    "line", [b"{]\n", b"5\n", b"{}\n", b"\xff\n", b'{"step": 1, "samples": 1, "spans": [5]}\n']
)
def test_a_damaged_line_in_the_middle_is_named(line, tmp_path):
    path = tmp_path / "events.jsonl"
    write(path, [1])
    path.write_bytes(path.read_bytes() + line + path.read_bytes())
    with pytest.raises(DamagedFile, match=r"events.jsonl is damaged: line 2"):
        list(read_events(path))


def test_a_resumed_run_goes_on_after_the_saved_step(tmp_path):
    path = tmp_path / "events.jsonl"
    write(path, [1, 2, 3, 4])
    with path.open("ab") as file:
        file.write(b'{"step": 5, "sam')
    truncate_events(path, 2)
    write(path, [3])
    assert [one.step for one in read_events(path)] == [1, 2, 3]
    truncate_events(tmp_path / "no such file", 2)
    assert [entry.name for entry in tmp_path.iterdir()] == ["events.jsonl"]


DAMAGE = [b"{]\n", b"5\n", b"{}\n", b"\xff\n", b'{"step":"2","samples":1,"spans":[],"sent":0,"received":0}\n']


@pytest.mark.parametrize(
    "line", [*DAMAGE, b'{"step":2,"samples":1,"spans":[["nap",1,1]],"sent":0,"received":0}\n']
)
def test_a_damaged_line_does_not_block_a_run_that_resumes_and_totals_say_so(line, tmp_path):
    """If this failed, one bad line would make whole checkpoints useless, or be lost without a word."""
    path = tmp_path / "events.jsonl"
    write(path, [1, 2, 3, 4])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], line, *lines[2:]]))
    (told,) = truncate_events(path, 3)
    assert f"{path}: damaged lines, the first of 1 is line 2" in told
    assert truncate_events(path, 3) == [], "the second resume finds nothing new"
    ledger = TimeLedger()
    for record in read_events(path):
        ledger.add(record)
    totals = ledger.totals()
    assert (totals.steps, totals.damaged) == (2, 1)


@pytest.mark.parametrize(
    "line", [*DAMAGE, b'{"step":9,"epoch":"x","train_loss":1,"test_loss":1,"learning_rate":1}\n']
)
def test_a_damaged_row_does_not_block_a_run_that_resumes(line, tmp_path):
    path = tmp_path / "metrics.jsonl"
    good = MetricsRow(10, 1.0, 0.5, 0.25, {"accuracy": 0.9}, 0.1, 1.25)
    append_metrics(path, good)
    path.write_bytes(line + path.read_bytes())
    (told,) = truncate_metrics(path, 10)
    assert f"{path}: damaged lines, the first of 1 is line 1" in told
    assert list(read_metrics(path)) == [good]


def test_rows_are_read_back_and_can_be_followed_line_by_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    good = MetricsRow(10, 1.0, 0.5, 0.25, {"accuracy": 0.9, "top5": 1.0}, 0.1, 1.25, noise_scale=1900.0)
    lost = MetricsRow(20, 2.0, math.inf, math.nan, {"accuracy": 0.1, "top5": 0.5}, 0.1, 2.5)
    append_metrics(path, good)
    assert list(read_metrics(path)) == [good]
    append_metrics(path, lost)
    (_, again) = read_metrics(path)
    assert math.isnan(again.train_loss)
    assert again.metrics == lost.metrics
    assert "NaN" not in path.read_text(), "other programs read this file too"
    truncate_metrics(path, 10)
    assert list(read_metrics(path)) == [good]


def test_damaged_lines_are_told_in_one_sentence_a_file(tmp_path):
    """If this failed, a file of many damaged lines would be more than workers can tell each other at the start."""
    path = tmp_path / "events.jsonl"
    write(path, [1])
    path.write_bytes(path.read_bytes() + b"{]\n" * 8000)
    (told,) = truncate_events(path, 3)
    assert told.startswith(f"{path}: damaged lines, the first of 8000 is line 2; ")


def test_lines_that_are_kept_are_written_with_the_next_one_after_a_second(tmp_path, monkeypatch):
    """If this failed, those who follow a run with few steps would see nothing of it."""
    now = [100.0]
    monkeypatch.setattr(files.time, "monotonic", lambda: now[0])
    with EventWriter(tmp_path / "rank-0.jsonl") as writer:
        writer.append(StepRecord(1))
        assert not list(read_events(tmp_path / "rank-0.jsonl"))
        now[0] += files.LATEST
        writer.append(StepRecord(2))
        assert [record.step for record in read_events(tmp_path / "rank-0.jsonl")] == [1, 2]
