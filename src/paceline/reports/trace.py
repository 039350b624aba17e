"""A run's spans for Perfetto (ui.perfetto.dev) and chrome://tracing."""

import gzip
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any

from paceline.records.events import read_events, read_metrics
from paceline.records.files import read_lines, replacing
from paceline.records.folder import RunFolder
from paceline.records.servers import Received, Updated, read_server_log
from paceline.records.spans import Span, StepRecord
from paceline.records.summary import Observer, Started, Summary

STEPS, HIDDEN = 0, 1
UPDATES, CREW = 0, 1

MOST = 20_000
"""Records of all workers that a trace shows, the first of each; viewers do not take much more."""


def write_trace(folder: RunFolder, most: int = MOST) -> Path:
    """Write ``trace.json.gz`` from what every worker recorded first, and return its path.

    A worker is a process with two tracks, its steps and the communication that was hidden behind backward, and with
    counters: samples/s, bytes sent, CPU, memory. The first one has the losses too. A server is a process as well: its
    updates, the workers that joined and left, staleness and queue depth. What can be added up has one name; numbers
    are arguments. The same record gives the same bytes.
    """
    with (
        replacing(folder.trace) as file,
        gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as packed,
    ):
        packed.write(b'{"displayTimeUnit":"ms","traceEvents":[')
        for number, event in enumerate(_events(folder, most)):
            packed.write(
                (",\n" if number else "\n").encode() + json.dumps(event, separators=(",", ":")).encode()
            )
        packed.write(b"\n]}\n")
    return folder.trace


class TraceObserver(Observer):
    """Writes the trace of a run that has finished, once nothing else is written to its record."""

    _folder: str | None = None
    _finished = False

    def started(self, run: Started) -> None:
        self._folder = run.folder

    def finished(self, summary: Summary) -> None:  # noqa: ARG002
        self._finished = True

    def close(self) -> None:
        if self._finished and self._folder is not None:
            self._finished = False
            write_trace(RunFolder(Path(self._folder)))


def _events(folder: RunFolder, most: int) -> Iterator[dict[str, Any]]:
    files = folder.event_files()
    end = 0.0
    for rank, path in files.items():
        yield _name("process_name", rank, STEPS, f"rank {rank}")
        yield _name("thread_name", rank, STEPS, "steps")
        yield _name("thread_name", rank, HIDDEN, "hidden communication")
        for record in islice(read_events(path), max(1, most // len(files))):
            yield from _complete(record, rank, STEPS, record.spans)
            yield from _complete(record, rank, HIDDEN, record.hidden)
            yield from _step_counters(record, rank)
            end = max([end, *(span.start + span.length for span in record.spans)])
    first = max(files, default=-1) + 1
    servers = folder.server_event_files()
    for server, path in servers.items():
        yield from _server(first + server, server, path, most)
    if files:
        yield from _losses(folder, min(files), end)
        yield from _system(
            folder, list(files), max([first, *(first + server + 1 for server in servers)]), end
        )


def _server(process: int, server: int, path: Path, most: int) -> Iterator[dict[str, Any]]:
    """A server's moments, as instant events, and how its queue and its gradients' staleness went."""
    yield _name("process_name", process, UPDATES, f"server {server}")
    yield _name("thread_name", process, UPDATES, "updates")
    yield _name("thread_name", process, CREW, "workers")
    for entry in islice(read_server_log(path), most):
        if isinstance(entry, Updated):
            whose = {"version": entry.version, "gradients": [one._asdict() for one in entry.used]}
            yield _instant(process, UPDATES, entry.at, "update", whose)
            stalest = max((one.staleness for one in entry.used), default=0)
            yield _counter(process, entry.at, "staleness", stalest)
        elif isinstance(entry, Received):
            yield _counter(process, entry.at, "queue depth", entry.depth)
            if entry.kind in ("Join", "Leave"):
                what = "joins" if entry.kind == "Join" else entry.how or "left"
                yield _instant(process, CREW, entry.at, what, {"rank": entry.worker})


def _step_counters(record: StepRecord, rank: int) -> Iterator[dict[str, Any]]:
    """What a step came to, from its beginning on; a counter keeps its value until the next one."""
    length = sum(span.length for span in record.spans)
    if not length:
        return
    yield _counter(rank, record.spans[0].start, "samples/s", round(record.samples / length, 3))
    yield _counter(rank, record.spans[0].start, "bytes sent", record.sent)


def _losses(folder: RunFolder, rank: int, end: float) -> Iterator[dict[str, Any]]:
    """One value an evaluation, at its end; nothing where a loss is no number."""
    for row in read_metrics(folder.metrics) if folder.metrics.exists() else ():
        for name, value in (("train loss", row.scores.train_loss), ("test loss", row.scores.test_loss)):
            if value is not None and isfinite(value) and row.seconds <= end:
                yield _counter(rank, row.seconds, name, value)


def _system(folder: RunFolder, ranks: list[int], process: int, end: float) -> Iterator[dict[str, Any]]:
    """CPU and memory of the workers that the run began with here, in order of rank, and of the machine."""
    known: dict[int, int] = {}
    for line in read_lines(folder.system, dict, "a sample") if folder.system.exists() else ():
        if line["time"] > end:
            continue
        if not known:
            yield _name("process_name", process, STEPS, "machine")
        yield _counter(process, line["time"], "CPU % of all cores", line["cpu_percent"])
        for worker in line["workers"]:
            rank = known.setdefault(worker["pid"], ranks[len(known) % len(ranks)])
            yield _counter(rank, line["time"], "CPU % of a core", worker["cpu_percent"])
            yield _counter(rank, line["time"], "memory bytes", worker["memory_bytes"])


def _counter(process: int, at: float, name: str, value: float) -> dict[str, Any]:
    """A point of a series; counters belong to a process, and each has one series, for viewers stack several."""
    return {"ph": "C", "name": name, "pid": process, "ts": round(1e6 * at, 3), "args": {"value": value}}


def _instant(process: int, track: int, at: float, name: str, args: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "i",
        "s": "t",
        "name": name,
        "pid": process,
        "tid": track,
        "ts": round(1e6 * at, 3),
        "args": args,
    }


def _name(what: str, rank: int, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": track, "args": {"name": name}}


def _complete(record: StepRecord, rank: int, track: int, spans: Iterable[Span]) -> Iterator[dict[str, Any]]:
    """Spans as complete events; the format's times are microseconds."""
    what = {"samples": record.samples} if record.is_step else {"is_step": False}
    for kind, start, length in spans:
        yield {
            "ph": "X",
            "name": kind,
            "pid": rank,
            "tid": track,
            "ts": round(1e6 * start, 3),
            "dur": round(1e6 * length, 3),
            "args": {"step": record.step, **what},
        }
