import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.records.events import EventWriter, MetricsRow, append_metrics, read_events
from paceline.records.folder import RunFolder
from paceline.records.servers import AppliedGradient, Received, ServerLog, Ticked, Updated
from paceline.records.spans import KINDS, Span, StepRecord
from paceline.reports.trace import LANES, WorkerLanes, write_trace


def record_run(folder: RunFolder) -> None:
    for rank in (0, 1):
        with EventWriter(folder.events(rank)) as writer:
            spans = [Span("forward", 0.001, 0.002), Span("backward", 0.003, 0.004)]
            writer.append(StepRecord(1, 32, spans, [Span("communicate", 0.004, 0.002)], sent=8, received=8))
            writer.append(StepRecord(1, 0, [Span("evaluate", 0.007, 0.1)], is_step=False))


def test_each_worker_has_a_lane_for_each_kind_of_its_time(tmp_path):
    folder = RunFolder(tmp_path)
    record_run(folder)
    path = write_trace(folder)
    assert path == tmp_path / "trace.json.gz"
    events = read_trace(path)
    names = [(e["pid"], e["tid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"]
    assert names == [(rank, lane, name) for rank in (0, 1) for lane, name in enumerate(LANES)]
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["rank 0", "rank 1"]
    spans = [(e["tid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["pid"] == 1]
    compute, outside, hidden = (
        LANES.index(name) for name in ("compute", "outside of steps", "hidden communication")
    )
    assert spans == [
        (compute, "forward", 1000.0, 2000.0),
        (compute, "backward", 3000.0, 4000.0),
        (hidden, "communicate", 4000.0, 2000.0),
        (outside, "evaluate", 7000.0, 100000.0),
    ]
    assert all(e["args"]["step"] == 1 for e in events if e["ph"] == "X")
    assert [e["name"] for e in events if e["args"].get("is_step") is False and e["pid"] == 0] == ["evaluate"]


def read_trace(path: Path) -> list[dict]:
    return json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


WHOLE, NUMBER, TEXT, OBJECT = (int,), (int, float), (str,), (dict,)
SCHEMA = {
    "M": {"name": TEXT, "pid": WHOLE, "tid": WHOLE, "args": OBJECT},
    "X": {"name": TEXT, "pid": WHOLE, "tid": WHOLE, "ts": NUMBER, "dur": NUMBER, "args": OBJECT},
    "i": {"name": TEXT, "pid": WHOLE, "tid": WHOLE, "ts": NUMBER, "s": TEXT, "args": OBJECT},
    "C": {"name": TEXT, "pid": WHOLE, "ts": NUMBER, "args": OBJECT},
}
"""The keys of each phase of the Trace Event Format that we write, with their types; no other key is there."""
METADATA = {
    "process_name": {"name": TEXT},
    "thread_name": {"name": TEXT},
    "thread_sort_index": {"sort_index": WHOLE},
}


def faults(events: list[dict]) -> list[str]:
    """What is wrong with a trace: events that break the schema, threads without a name, spans that overlap."""
    found = []
    named = {(e["pid"], e["tid"]) for e in events if e.get("name") == "thread_name"}
    ends: dict[tuple[int, int], float] = {}
    for event in events:
        keys = SCHEMA.get(event.get("ph"), {})
        if set(event) != {"ph", *keys} or any(type(event[key]) not in keys[key] for key in keys):
            found.append(f"keys of {event}")
        elif event["ph"] == "M":
            args = METADATA.get(event["name"], {})
            right = set(event["args"]) == set(args) and all(
                type(event["args"][key]) in args[key] for key in args
            )
            found += [] if right else [f"arguments of {event}"]
        elif event["ph"] == "C":
            values = list(event["args"].values())
            found += [] if len(values) == 1 and isinstance(values[0], NUMBER) else [f"value of {event}"]
        elif event["ph"] in "Xi":
            thread = (event["pid"], event["tid"])
            found += [] if thread in named else [f"thread of {event}"]
            found += [] if event["ts"] >= 0 and event.get("dur", 0) >= 0 else [f"time of {event}"]
            if event["ph"] == "X":
                start = round(1000 * event["ts"])
                found += [f"overlap of {event}"] if start < ends.get(thread, 0) else []
                ends[thread] = start + round(1000 * event["dur"])
    return found


@pytest.mark.parametrize("name", ["all-reduce", "served"])
def test_every_event_of_a_real_run_is_as_the_format_has_it_and_no_spans_of_a_thread_overlap(name, tmp_path):
    golden = RunFolder(Path(__file__).parents[1] / "golden" / name)
    events = read_trace(write_trace(golden, out=tmp_path / "trace.json.gz"))
    assert faults(events) == []
    shown = {LANES[e["tid"]] for e in events if e["ph"] == "X"}
    assert shown == set(LANES) - ({"hidden communication"} if name == "served" else set())
    recorded = sum(span.length for record in read_events(golden.events(0)) for span in record.spans)
    lanes = range(LANES.index("hidden communication"))
    drawn = sum(e["dur"] for e in events if e["ph"] == "X" and e["pid"] == 0 and e["tid"] in lanes)
    assert drawn == pytest.approx(1e6 * recorded, rel=1e-6)


@pytest.mark.parametrize(
    "broken",
    [
        {"ph": "X", "name": "a", "pid": 0, "tid": 0, "ts": 1.0, "args": {}},
        {"ph": "X", "name": "a", "pid": 0, "tid": 0, "ts": "1", "dur": 1.0, "args": {}},
        {"ph": "X", "name": "a", "pid": 0, "tid": 9, "ts": 1.0, "dur": 1.0, "args": {}},
        {"ph": "X", "name": "a", "pid": 0, "tid": 0, "ts": 0.0, "dur": -1.0, "args": {}},
        {"ph": "C", "name": "a", "pid": 0, "ts": 1.0, "args": {"value": 1, "other": 2}},
        {"ph": "Z", "name": "a", "pid": 0},
    ],
)
def test_the_check_of_traces_can_fail(broken):
    name = {"ph": "M", "name": "thread_name", "pid": 0, "tid": 0, "args": {"name": "compute"}}
    assert faults([name]) == []
    assert faults([name, broken])


def test_the_check_of_traces_sees_an_overlap():
    name = {"ph": "M", "name": "thread_name", "pid": 0, "tid": 0, "args": {"name": "compute"}}
    span = {"ph": "X", "name": "a", "pid": 0, "tid": 0, "dur": 2.0, "args": {}}
    assert faults([name, {**span, "ts": 1.0}, {**span, "ts": 3.0}]) == []
    assert faults([name, {**span, "ts": 1.0}, {**span, "ts": 2.999}])


LENGTHS = st.lists(st.tuples(st.sampled_from(KINDS), st.floats(0, 1e3)), min_size=1, max_size=6)


@settings(max_examples=50)
@given(
    st.floats(0, 1e5),
    st.lists(
        st.tuples(LENGTHS, st.booleans(), st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), max_size=4))
    ),
)
def test_spans_of_a_thread_never_overlap(start, records):
    """Whatever was recorded: also transfers that ran at the same time, and times that are no whole nanoseconds."""
    lanes, events, now = WorkerLanes(0), [], start
    names = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": n, "args": {"name": x}}
        for n, x in enumerate(LANES)
    ]
    for lengths, is_step, hidden in records:
        begun, spans = now, []
        for kind, length in lengths:
            spans.append(Span(kind, now, length))
            now += length
        behind = sorted(Span("communicate", begun + after, length) for after, length in hidden)
        events += lanes.spans(StepRecord(1, 1, spans, behind, is_step=is_step))
    assert faults([*names, *events]) == []


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
    assert {e["args"]["name"] for e in events if "name" in e["args"] and e["pid"] == 2} == {
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
