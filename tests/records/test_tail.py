from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.records import tail
from paceline.records.events import EventWriter, truncate_events
from paceline.records.files import encode_line
from paceline.records.spans import Span, StepRecord
from paceline.records.tail import tail_events


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rank-0.jsonl"


def lines(*steps: int) -> bytes:
    return b"".join(encode_line(StepRecord(step, 32, [Span("forward", step, 0.5)])) for step in steps)


def test_each_look_gives_what_was_added_and_a_half_written_line_waits_for_its_end(path):
    seen = tail_events(path, lambda: None)
    assert list(seen.read()) == [], "the file is not there yet"
    whole = lines(1, 2, 3)
    path.write_bytes(whole[:-20])
    assert [record.step for record in seen.read()] == [1, 2]
    path.write_bytes(whole)
    assert [record.step for record in seen.read()] == [3]
    assert list(seen.read()) == []


def test_a_run_that_resumes_and_cuts_its_file_is_read_again(path):
    restarts: list[int] = []
    seen = tail_events(path, lambda: restarts.append(1))
    with EventWriter(path) as writer:
        for step in range(1, 9):
            writer.append(StepRecord(step))
    assert [record.step for record in seen.read()] == list(range(1, 9))
    truncate_events(path, 3)
    with EventWriter(path) as writer:
        writer.append(StepRecord(4))
    assert [record.step for record in seen.read()] == [1, 2, 3, 4]
    assert restarts == [1]
    path.write_bytes(encode_line(StepRecord(1)))
    assert [record.step for record in seen.read()] == [1], "the same file, but shorter"
    assert restarts == [1, 1]


def test_a_long_file_is_read_from_near_its_end(path, monkeypatch):
    monkeypatch.setattr(tail, "LAST", 200)
    path.write_bytes(lines(*range(1000)))
    seen = tail_events(path, lambda: None)
    found = [record.step for record in seen.read()]
    assert found == list(range(1000 - len(found), 1000))
    assert 1 <= len(found) <= 4
    assert seen.damaged == 0


def test_a_damaged_line_is_counted_and_skipped(path):
    path.write_bytes(lines(1) + b"{nonsense\n" + lines(2))
    seen = tail_events(path, lambda: None)
    assert [record.step for record in seen.read()] == [1, 2]
    assert seen.damaged == 1


def test_a_line_that_never_ends_is_not_kept_in_memory(path, monkeypatch):
    monkeypatch.setattr(tail, "BLOCK", 300)
    path.write_bytes(b"x" * 1000 + b"\n" + lines(7))
    seen = tail_events(path, lambda: None)
    assert [record.step for record in seen.read()] == [7]
    assert seen.damaged > 0


@given(cuts=st.lists(st.integers(0, 2000), max_size=8))
def test_however_the_writer_is_interrupted_every_line_is_read_once(tmp_path_factory, cuts):
    path = tmp_path_factory.mktemp("tail") / "rank-0.jsonl"
    whole = lines(*range(30))
    seen, found = tail_events(path, lambda: None), []
    for size in [*sorted(min(cut, len(whole)) for cut in cuts), len(whole)]:
        path.write_bytes(whole[:size])
        found += [record.step for record in seen.read()]
    assert found == list(range(30))
