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
from paceline.records.spans import Span, StepRecord
from paceline.records.summary import Observer, Started, Summary

MOST = 20_000
"""Records of all workers that a trace shows, the first of each; viewers do not take much more."""

Events = Iterator[dict[str, Any]]


LANES = ("compute", "communicate", "wait", "outside of steps", "hidden communication")
"""The threads of a worker, in order. Time within steps that is none of the first three is shown with compute."""
_IN_STEPS = {"communicate": 1, "wait": 2}
_OUTSIDE, _HIDDEN = 3, 4


def write_trace(folder: RunFolder, most: int = MOST, out: Path | None = None) -> Path:
    """Write ``trace.json.gz``, or ``out``, from what every worker recorded first, and return its path.

    A worker is a process with a thread for each of LANES, in none of which spans overlap, and with counters: samples/s,
    bytes sent, CPU, memory. The first one has the losses too. A server is a process as well: its updates, the workers
    that joined and left, staleness and queue depth. What can be added up has one name; numbers are arguments. The same
    record gives the same bytes.
    """
    out = out or folder.trace
    with (
        replacing(out) as file,
        gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as packed,
    ):
        packed.write(b'{"displayTimeUnit":"ms","traceEvents":[')
        for number, event in enumerate(_events(folder, most)):
            text = json.dumps(event, separators=(",", ":"))
            packed.write(f"{',' if number else ''}\n{text}".encode())
        packed.write(b"\n]}\n")
    return out


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
        lanes = WorkerLanes(rank)
        yield from _names(rank, f"rank {rank}", *LANES)
        for record in islice(read_events(path), max(1, most // len(files))):
            yield from lanes.spans(record)
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


class WorkerLanes:
    """Puts a worker's spans into its threads. Transfers that ran at the same time get further threads."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._ends = [0] * len(LANES)
        """Where the last span of each thread ended, in nanoseconds."""

    def spans(self, record: StepRecord) -> Events:
        about = {"samples": record.samples} if record.is_step else {"is_step": False}
        args = {"step": record.step, **about}
        for span in record.spans:
            yield self._event(_IN_STEPS.get(span.kind, 0) if record.is_step else _OUTSIDE, span, args)
        for span in record.hidden:
            free = (
                lane for lane in range(_HIDDEN, len(self._ends)) if self._ends[lane] <= _ns(span.start) + 1
            )
            lane = next(free, len(self._ends))
            if lane == len(self._ends):
                self._ends.append(0)
                yield _thread_name(self._rank, lane, f"{LANES[_HIDDEN]} {lane - _HIDDEN + 1}")
            yield self._event(lane, span, args)

    def _event(self, lane: int, span: Span, args: Any) -> dict[str, Any]:
        # Of two spans that follow each other, the end of one and the start of the next may be rounded apart.
        start = max(_ns(span.start), self._ends[lane])
        end = self._ends[lane] = max(start, _ns(span.start + span.length))
        # An integer's thousandth is the float nearest to it, and is written with three decimals or fewer.
        more = {"tid": lane, "dur": (end - start) / 1000}
        return {"ph": "X", "name": span.kind, "pid": self._rank, "ts": start / 1000, **more, "args": args}


def _ns(seconds: float) -> int:
    return round(1e9 * seconds)


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
        yield _thread_name(process, number, track)
        yield {**what, "name": "thread_sort_index", "tid": number, "args": {"sort_index": number}}


def _thread_name(process: int, number: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "name": "thread_name", "tid": number, "args": {"name": name}}


def _counter(process: int, at: float, name: str, value: float) -> dict[str, Any]:
    """A point of a series; counters belong to a process, and each has one series, for viewers stack several."""
    return _event("C", process, at, name, {"value": value})


def _event(phase: str, process: int, at: float, name: str, args: Any, **more: Any) -> dict[str, Any]:
    """The format's times are microseconds."""
    return {"ph": phase, "name": name, "pid": process, "ts": round(1e6 * at, 3), **more, "args": args}
