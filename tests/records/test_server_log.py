import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.errors import UsageError
from paceline.records.files import DamagedFile, from_document, to_document, write_json
from paceline.records.folder import RunFolder
from paceline.records.servers import (
    AppliedGradient,
    Damaged,
    Entry,
    MembershipChange,
    Received,
    ServerLog,
    ServerTotals,
    Ticked,
    Updated,
    keep_entries,
    read_server_log,
)
from paceline.records.summary import Summary, read_summary

TIMES = st.floats(0, 1e6).map(lambda seconds: round(seconds, 9))
COUNTS = st.integers(0, 10**9)
RANKS = st.integers(0, 20)
PUSHES = st.builds(
    Received, at=TIMES, worker=RANKS, kind=st.just("Push"), clock=COUNTS, version=COUNTS, depth=COUNTS
)
WORDS = st.builds(
    Received, at=TIMES, worker=RANKS, kind=st.sampled_from(["Join", "Pause", "Pull"]), depth=COUNTS
)
GOODBYES = st.builds(
    Received,
    at=TIMES,
    worker=RANKS,
    kind=st.just("Leave"),
    clock=COUNTS,
    depth=COUNTS,
    how=st.sampled_from(["finished", "left", "died"]),
)
USED = st.builds(AppliedGradient, worker=RANKS, clock=COUNTS, version=COUNTS, staleness=RANKS, samples=COUNTS)
UPDATES = st.builds(Updated, at=TIMES, version=COUNTS, used=st.lists(USED, max_size=3).map(tuple))
ENTRIES = st.lists(st.one_of(PUSHES, WORDS, GOODBYES, UPDATES, st.builds(Ticked, at=TIMES)), max_size=8)


def write(path, entries) -> None:
    path.unlink(missing_ok=True)
    with ServerLog(path) as log:
        for entry in entries:
            log.append(entry)


def totals_of(entries: list[Entry]) -> ServerTotals:
    totals = ServerTotals()
    for entry in entries:
        totals.add(entry)
    return totals


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(entries=ENTRIES)
def test_a_log_is_read_back_entry_by_entry(entries, tmp_path):
    path = tmp_path / "server-0.jsonl"
    write(path, entries)
    assert list(read_server_log(path)) == entries


@settings(max_examples=50, deadline=None)
@given(entries=ENTRIES)
def test_totals_survive_json_where_keys_become_text(entries):
    totals = totals_of(entries)
    assert from_document(json.loads(json.dumps(to_document(totals))), ServerTotals) == totals


def test_a_resumed_run_keeps_the_entries_up_to_its_checkpoint_and_adds_to_them(tmp_path):
    path = RunFolder(tmp_path).server_events(0)
    entries = [Received(at=0.1 * n, worker=n % 2, kind="Pause", depth=1) for n in range(5)]
    write(path, entries)
    with path.open("a") as file:
        file.write('{"at":0.6,"torn')
    assert keep_entries(path, 3) == []
    with ServerLog(path) as log:
        log.append(Ticked(1.0))
    assert list(read_server_log(path)) == [*entries[:3], Ticked(1.0)]
    assert RunFolder(tmp_path).server_event_files() == {0: path}
    assert RunFolder(tmp_path).event_files() == {}, "a server's log is not a worker's"


def test_a_damaged_entry_keeps_its_place_so_that_a_run_can_resume_twice(tmp_path):
    """If this failed, a bad line would block resuming, or later lines be taken for those before a checkpoint."""
    path = tmp_path / "server-0.jsonl"
    assert keep_entries(path, 2) == []
    write(path, [Ticked(1.0), Ticked(2.0), Ticked(3.0), Ticked(4.0)])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b"{]\n", *lines[2:]]))
    (told,) = keep_entries(path, 3)
    assert f"{path}: damaged lines, the first of 1 is line 2" in told
    assert keep_entries(path, 3) == []
    assert list(read_server_log(path)) == [Ticked(1.0), Damaged(1.0), Ticked(3.0)]
    assert totals_of(list(read_server_log(path))).damaged == 1


@pytest.mark.parametrize(
    "line", ['{"at":1.0}', '{"at":1.0,"update":1,"of":[[1]]}', '{"at":1,"kind":"Push","x":1}']
)
def test_a_damaged_line_is_named(line, tmp_path):
    path = tmp_path / "server-0.jsonl"
    path.write_text(f'{{"entry":"ticked","at":0.5}}\n{line}\n')
    with pytest.raises(DamagedFile, match="line 2 is not an entry of a server"):
        list(read_server_log(path))


def test_totals_tell_who_came_late_and_who_went_and_how_many_were_left():
    entries = [
        Received(0.0, 0, "Join", depth=2),
        Received(0.0, 1, "Join", depth=1),
        Received(0.2, 0, "Push", clock=0, version=0, depth=1),
        Updated(0.2, 1, (AppliedGradient(0, 0, 0, 0, 32),)),
        Received(0.3, 2, "Join", depth=1),
        Received(0.4, 1, "Push", clock=0, version=0, depth=1),
        Updated(0.4, 2, (AppliedGradient(1, 0, 0, 1, 32),)),
        Received(0.5, 1, "Leave", clock=1, depth=1, how="died"),
        Received(0.6, 0, "Push", clock=1, version=1, depth=3),
        Received(0.9, 0, "Leave", clock=2, depth=1, how="finished"),
    ]
    totals = totals_of(entries)
    assert totals.changes == [
        MembershipChange(2, 0.3, "joined", 0, 3),
        MembershipChange(1, 0.5, "died", 1, 2),
        MembershipChange(0, 0.9, "finished", 2, 1),
    ]
    assert (totals.updates, totals.pushes, totals.used, totals.staleness) == (2, 3, 2, {0: 1, 1: 1})
    assert (totals.depth_sum, totals.depth_max, totals.messages) == (11, 3, 8)


def test_a_worker_that_joins_again_after_a_resume_is_not_late_and_one_that_was_given_up_comes_back():
    totals = totals_of(
        [
            Received(0.0, 0, "Join"),
            Updated(0.2, 1, ()),
            Received(0.3, 0, "Join"),
            Received(0.5, 0, "Leave", clock=1, how="died"),
            Received(0.6, 0, "Push", clock=1, version=1),
        ]
    )
    assert totals.changes[-1] == MembershipChange(0, 0.6, "joined", 0, 1)
    assert totals.present == [0]


def test_a_summary_is_read_back_and_that_of_another_version_is_refused(tmp_path):
    summary = Summary(
        name="r",
        runtime="live",
        ending="budget",
        workers=1,
        steps=1,
        epochs=0.1,
        seconds=1.0,
        samples=8,
        parameters=2,
        servers=[
            totals_of([Received(0.0, 0, "Join", depth=1), Updated(0.2, 1, (AppliedGradient(0, 0, 0, 3, 8),))])
        ],
    )
    folder = RunFolder(tmp_path)
    write_json(folder.summary, summary.to_json())
    assert read_summary(folder) == summary
    write_json(folder.summary, {**summary.to_json(), "schema": 1})
    with pytest.raises(UsageError, match="of schema 1, made by another version of paceline"):
        read_summary(folder)
