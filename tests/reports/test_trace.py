import gzip
import json

import pytest

from paceline.records.events import EventWriter, MetricsRow, append_metrics
from paceline.records.folder import RunFolder
from paceline.records.servers import AppliedGradient, Received, ServerLog, Ticked, Updated
from paceline.records.spans import Span, StepRecord
from paceline.reports.trace import write_trace


def record_run(folder: RunFolder) -> None:
    for rank in (0, 1):
        with EventWriter(folder.events(rank)) as writer:
            spans = [Span("forward", 0.001, 0.002), Span("backward", 0.003, 0.004)]
            writer.append(StepRecord(1, 32, spans, [Span("communicate", 0.004, 0.002)], sent=8, received=8))
            writer.append(StepRecord(1, 0, [Span("evaluate", 0.007, 0.1)], is_step=False))


def test_each_worker_has_a_track_for_its_steps_and_one_for_hidden_traffic(tmp_path):
    folder = RunFolder(tmp_path)
    record_run(folder)
    path = write_trace(folder)
    assert path == tmp_path / "trace.json.gz"
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = [(e["pid"], e["tid"], e["args"]["name"]) for e in events if e["ph"] == "M"]
    assert names == [
        (rank, track, name)
        for rank in (0, 1)
        for track, name in ((0, f"rank {rank}"), (0, "steps"), (1, "hidden communication"))
    ]
    spans = [(e["tid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["pid"] == 1]
    assert spans == [
        (0, "forward", 1000.0, 2000.0),
        (0, "backward", 3000.0, 4000.0),
        (1, "communicate", 4000.0, 2000.0),
        (0, "evaluate", 7000.0, 100000.0),
    ]
    assert all(e["args"]["step"] == 1 for e in events if e["ph"] == "X")
    assert [e["name"] for e in events if e["args"].get("is_step") is False and e["pid"] == 0] == ["evaluate"]


def test_the_same_record_gives_the_same_bytes(tmp_path):
    folder = RunFolder(tmp_path)
    record_run(folder)
    first = write_trace(folder).read_bytes()
    assert write_trace(folder).read_bytes() == first


def test_a_run_without_spans_gives_an_empty_trace(tmp_path):
    path = write_trace(RunFolder(tmp_path))
    assert json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] == []


def test_a_long_run_shows_the_first_records_of_every_worker(tmp_path):
    folder = RunFolder(tmp_path)
    record_run(folder)
    events = json.loads(gzip.decompress(write_trace(folder, most=2).read_bytes()))["traceEvents"]
    assert {(e["pid"], e["name"]) for e in events if e["ph"] == "X"} >= {(0, "forward"), (1, "forward")}
    assert not [e for e in events if e["name"] == "evaluate"]


def test_a_server_is_a_process_of_its_own_with_its_updates_and_its_workers(tmp_path):
    folder = RunFolder(tmp_path)
    record_run(folder)
    with ServerLog(folder.server_events(0)) as log:
        for entry in (
            Received(0.0, 1, "Join", depth=1),
            Received(0.01, 1, "Push", clock=0, version=0, depth=1),
            Updated(0.011, 1, (AppliedGradient(1, 0, 0, 0, 32),)),
            Ticked(0.02),
            Received(0.03, 1, "Leave", clock=1, depth=1, how="died"),
        ):
            log.append(entry)
    events = json.loads(gzip.decompress(write_trace(folder).read_bytes()))["traceEvents"]
    assert {e["args"]["name"] for e in events if e["ph"] == "M" and e["pid"] == 2} == {
        "server 0",
        "updates",
        "workers",
    }
    moments = [(e["tid"], e["name"], e["ts"]) for e in events if e["ph"] == "i" and e["pid"] == 2]
    assert moments == [(1, "joins", 0.0), (0, "update", 11000.0), (1, "died", 30000.0)]
    (update,) = [e for e in events if e["name"] == "update"]
    assert update["args"] == {
        "version": 1,
        "gradients": [{"worker": 1, "clock": 0, "version": 0, "staleness": 0, "samples": 32}],
    }
    assert {e["args"]["rank"] for e in events if e["name"] in ("joins", "died")} == {1}
    assert counters(events, 2) == {
        "queue depth": [(0.0, 1), (10000.0, 1), (30000.0, 1)],
        "staleness": [(11000.0, 0)],
    }


def counters(events: list[dict], process: int) -> dict[str, list[tuple[float, float]]]:
    """The series of a process by name, as the format has them: one number each, at increasing times."""
    found: dict[str, list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "C" and event["pid"] == process:
            (value,) = event["args"].values()
            found.setdefault(event["name"], []).append((event["ts"], value))
    return found


def test_names_are_kinds_that_can_be_added_up(tmp_path):
    """If this failed, a viewer could not say how much time or how many updates there were of a kind."""
    folder = RunFolder(tmp_path)
    record_run(folder)
    with ServerLog(folder.server_events(0)) as log:
        for version in range(1, 700):
            log.append(Updated(version / 1000, version, (AppliedGradient(version % 2, version, 0, 3, 32),)))
    events = json.loads(gzip.decompress(write_trace(folder).read_bytes()))["traceEvents"]
    assert len({e["name"] for e in events if e["ph"] in "Xi"}) < 10
    assert sum(e["name"] == "update" for e in events) == 699


def test_counters_follow_the_run(tmp_path):
    folder = RunFolder(tmp_path)
    record_run(folder)
    append_metrics(folder.metrics, MetricsRow(1, 0.5, 2.0, 1.5, {}, 0.1, 0.1))
    append_metrics(folder.metrics, MetricsRow(2, 1.0, float("nan"), 1.0, {}, 0.1, 0.105))
    workers = [{"pid": 70 + rank, "cpu_percent": 90.0 + rank, "memory_bytes": 1000 + rank} for rank in (0, 1)]
    sample = {
        "time": 0.05,
        "cpu_percent": 55.0,
        "workers": workers,
        "sent_per_second": 0,
        "received_per_second": 0,
    }
    folder.system.write_text("".join(json.dumps({**sample, "time": at}) + "\n" for at in (0.05, 99.0)))
    events = json.loads(gzip.decompress(write_trace(folder).read_bytes()))["traceEvents"]
    first, second = counters(events, 0), counters(events, 1)
    assert first["samples/s"] == [(1000.0, pytest.approx(32 / 0.006, abs=1e-3)), (7000.0, 0.0)]
    assert first["bytes sent"] == [(1000.0, 8), (7000.0, 0)]
    assert (first["train loss"], first["test loss"]) == (
        [(100000.0, 2.0)],
        [(100000.0, 1.5), (105000.0, 1.0)],
    )
    assert (first["CPU % of a core"], second["CPU % of a core"]) == ([(50000.0, 90.0)], [(50000.0, 91.0)])
    assert second["memory bytes"] == [(50000.0, 1001)], "what came after the last shown step is left out"
    assert counters(events, 2) == {"CPU % of all cores": [(50000.0, 55.0)]}
