"""A run's spans for Perfetto (ui.perfetto.dev) and chrome://tracing."""

import gzip
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from paceline.records.events import read_events
from paceline.records.files import replacing
from paceline.records.folder import RunFolder
from paceline.records.servers import Received, Updated, read_server_log
from paceline.records.spans import Span, StepRecord

STEPS, HIDDEN = 0, 1
UPDATES, CREW = 0, 1

MOST = 20_000
"""Records of all workers that a trace shows, the first of each; viewers do not take much more."""


def write_trace(folder: RunFolder, most: int = MOST) -> Path:
    """Write ``trace.json.gz`` from what every worker recorded first, and return its path.

    A worker is a process with two tracks: its steps, and the communication that was hidden behind backward. A
    server is one as well: its updates, and the workers that joined and left.
    The same record gives the same bytes.
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


def _events(folder: RunFolder, most: int) -> Iterator[dict[str, Any]]:
    files = folder.event_files()
    for rank, path in files.items():
        yield _name("process_name", rank, STEPS, f"rank {rank}")
        yield _name("thread_name", rank, STEPS, "steps")
        yield _name("thread_name", rank, HIDDEN, "hidden communication")
        for record in islice(read_events(path), max(1, most // len(files))):
            yield from _complete(record, rank, STEPS, record.spans)
            yield from _complete(record, rank, HIDDEN, record.hidden)
    first = max(files, default=-1) + 1
    for server, path in folder.server_event_files().items():
        yield from _server(first + server, server, path, most)


def _server(process: int, server: int, path: Path, most: int) -> Iterator[dict[str, Any]]:
    """A server's moments, as instant events."""
    yield _name("process_name", process, UPDATES, f"server {server}")
    yield _name("thread_name", process, UPDATES, "updates")
    yield _name("thread_name", process, CREW, "workers")
    for entry in islice(read_server_log(path), most):
        if isinstance(entry, Updated):
            whose = [one._asdict() for one in entry.used]
            yield _instant(process, UPDATES, entry.at, f"update {entry.version}", {"gradients": whose})
        elif isinstance(entry, Received) and entry.kind in ("Join", "Left"):
            what = "joins" if entry.kind == "Join" else entry.how or "left"
            yield _instant(process, CREW, entry.at, f"rank {entry.worker} {what}", {})


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
    what = {"meeting": True} if record.meeting else {"samples": record.samples}
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
