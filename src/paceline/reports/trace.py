"""A run's spans for Perfetto (ui.perfetto.dev) and chrome://tracing."""

import gzip
import json
from collections.abc import Iterator
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any

from paceline.records.events import read_events, read_metrics
from paceline.records.files import replacing
from paceline.records.folder import RunFolder
from paceline.records.load import read_samples
from paceline.records.servers import Received, Updated, read_server_log
from paceline.records.summary import Observer, Started, Summary

MOST = 20_000
"""Records of all workers that a trace shows, the first of each; viewers do not take much more."""

Events = Iterator[dict[str, Any]]


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
            text = json.dumps(event, separators=(",", ":"))
            packed.write(f"{',' if number else ''}\n{text}".encode())
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


def _events(folder: RunFolder, most: int) -> Events:
    files, servers = folder.event_files(), folder.server_event_files()
    end = 0.0
    for rank, path in files.items():
        yield from _names(rank, f"rank {rank}", "steps", "hidden communication")
        for record in islice(read_events(path), max(1, most // len(files))):
            about = {"samples": record.samples} if record.is_step else {"is_step": False}
            for track, spans in enumerate((record.spans, record.hidden)):
                for kind, start, length in spans:
                    duration, args = round(1e6 * length, 3), {"step": record.step, **about}
                    yield _event("X", rank, start, kind, args, tid=track, dur=duration)
            # A counter keeps its value until the next one.
            if seconds := sum(span.length for span in record.spans):
                start = record.spans[0].start
                yield _counter(rank, start, "samples/s", round(record.samples / seconds, 3))
                yield _counter(rank, start, "bytes sent", record.sent)
            end = max([end, *(span.start + span.length for span in record.spans)])
    first = max(files, default=-1) + 1
    for server, path in servers.items():
        yield from _server(first + server, f"server {server}", path, most)
    if files:
        yield from _losses(folder, min(files), end)
        yield from _system(folder, list(files), first + max(servers, default=-1) + 1, end)


def _server(process: int, name: str, path: Path, most: int) -> Events:
    yield from _names(process, name, "updates", "workers")
    for entry in islice(read_server_log(path), most):
        if isinstance(entry, Updated):
            whose = {"version": entry.version, "gradients": [one._asdict() for one in entry.used]}
            yield _event("i", process, entry.at, "update", whose, tid=0, s="t")
            stalest = max((one.staleness for one in entry.used), default=0)
            yield _counter(process, entry.at, "staleness", stalest)
        elif isinstance(entry, Received):
            yield _counter(process, entry.at, "queue depth", entry.depth)
            if entry.kind in ("Join", "Leave"):
                what = "joins" if entry.kind == "Join" else entry.how or "left"
                yield _event("i", process, entry.at, what, {"rank": entry.worker}, tid=1, s="t")


def _losses(folder: RunFolder, rank: int, end: float) -> Events:
    for row in read_metrics(folder.metrics) if folder.metrics.exists() else ():
        for name, value in (("train loss", row.train_loss), ("test loss", row.test_loss)):
            if value is not None and isfinite(value) and row.seconds <= end:
                yield _counter(rank, row.seconds, name, value)


def _system(folder: RunFolder, ranks: list[int], process: int, end: float) -> Events:
    """CPU and memory of the workers that the run began with here, in order of rank, and of the machine."""
    known: dict[int, int] = {}
    for sample in read_samples(folder.system):
        if sample.time > end:
            continue
        if not known:
            yield from _names(process, "machine")
        yield _counter(process, sample.time, "CPU % of all cores", sample.cpu_percent)
        for worker in sample.workers:
            rank = known.setdefault(worker.pid, ranks[len(known) % len(ranks)])
            yield _counter(rank, sample.time, "CPU % of a core", worker.cpu_percent)
            yield _counter(rank, sample.time, "memory bytes", worker.memory_bytes)


def _names(process: int, name: str, *tracks: str) -> Events:
    what = {"ph": "M", "pid": process}
    yield {**what, "name": "process_name", "tid": 0, "args": {"name": name}}
    for number, track in enumerate(tracks):
        yield {**what, "name": "thread_name", "tid": number, "args": {"name": track}}


def _counter(process: int, at: float, name: str, value: float) -> dict[str, Any]:
    """A point of a series; counters belong to a process, and each has one series, for viewers stack several."""
    return _event("C", process, at, name, {"value": value})


def _event(phase: str, process: int, at: float, name: str, args: Any, **more: Any) -> dict[str, Any]:
    """The format's times are microseconds."""
    return {"ph": phase, "name": name, "pid": process, "ts": round(1e6 * at, 3), **more, "args": args}
