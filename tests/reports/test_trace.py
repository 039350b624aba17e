import gzip
import json

from paceline.records.events import EventWriter
from paceline.records.folder import RunFolder
from paceline.records.servers import Received, ServerLog, Ticked, Updated, Used
from paceline.records.spans import Span, StepRecord
from paceline.reports.trace import write_trace


def record_run(folder: RunFolder) -> None:
    for rank in (0, 1):
        with EventWriter(folder.events(rank)) as writer:
            spans = [Span("forward", 0.001, 0.002), Span("backward", 0.003, 0.004)]
            writer.append(StepRecord(1, 32, spans, [Span("communicate", 0.004, 0.002)], sent=8, received=8))
            writer.append(StepRecord(1, 0, [Span("evaluate", 0.007, 0.1)], meeting=True))


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
    assert [e["name"] for e in events if e["args"].get("meeting") and e["pid"] == 0] == ["evaluate"]


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
            Updated(0.011, 1, (Used(1, 0, 0, 0, 32),)),
            Ticked(0.02),
            Received(0.03, 1, "Left", clock=1, depth=1, how="died"),
        ):
            log.append(entry)
    events = json.loads(gzip.decompress(write_trace(folder).read_bytes()))["traceEvents"]
    assert {e["args"]["name"] for e in events if e["ph"] == "M" and e["pid"] == 2} == {
        "server 0",
        "updates",
        "workers",
    }
    moments = [(e["tid"], e["name"], e["ts"]) for e in events if e["ph"] == "i" and e["pid"] == 2]
    assert moments == [(1, "rank 1 joins", 0.0), (0, "update 1", 11000.0), (1, "rank 1 died", 30000.0)]
    (update,) = [e for e in events if e["name"] == "update 1"]
    assert update["args"]["gradients"] == [
        {"worker": 1, "clock": 0, "version": 0, "staleness": 0, "samples": 32}
    ]
