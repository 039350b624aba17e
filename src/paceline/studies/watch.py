"""A run that goes on, from its files only: how far it is, how fast, where its time goes, who waits for whom."""

import socket
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

from paceline.records.events import MetricsRow
from paceline.records.files import DamagedFile, from_document, read_json, to_document
from paceline.records.folder import RunFolder, is_locked, no_run
from paceline.records.load import SystemSample, WorkerUsage, worker_ranks
from paceline.records.servers import Entry, Received, Updated
from paceline.records.spans import PLACE, WIDTH, StepBreakdown, StepRecord, breakdown
from paceline.records.summary import Started, Summary, read_summary
from paceline.records.tail import LineTail, tail_events, tail_metrics, tail_samples, tail_server_log

SCHEMA = 1
SECONDS = 10
"""The last seconds of each worker that rates and parts are of; where steps are longer than a second, the last steps."""
LAST_ROWS, LAST_UPDATES = 5, 1000
SILENT, SILENT_STEPS = 10.0, 10.0
"""A run is silent after this many seconds without a record, or this many times as long as its steps."""
COPIED = 2.0
"""Seconds by which the summary of a run may be older than its records: a copy has all its files in any order."""
NOTABLE = 0.05
"""The share of their time that others wait before it is said for whom."""

RunStatus = Literal["starting", "running", "silent", "ended", "failed"]


@dataclass(frozen=True, kw_only=True)
class RankState:
    rank: int
    step: int
    seconds: float
    """The run's time at the end of its last record."""
    samples_per_second: float
    steps_per_second: float
    last_steps: StepBreakdown
    """The mean of its last steps."""
    waiting: float
    """The share of its last seconds that it waited for others, 0 to 1."""
    usage: WorkerUsage | None = None


@dataclass(frozen=True, kw_only=True)
class ServerState:
    server: int
    version: int
    updates_per_second: float
    staleness: float
    """Updates that a gradient missed, in the mean of the last ones."""
    depth: int
    """Messages that were waiting when the last one was taken."""


@dataclass(frozen=True, kw_only=True)
class WaitedFor:
    """The rank that others wait for: the one that waits least."""

    rank: int
    waiting: float
    others: float
    """The share of their time that all other ranks wait, in the mean."""


@dataclass(frozen=True, kw_only=True)
class RunState:
    """One look at a run."""

    name: str
    status: RunStatus
    silence: float | None
    """Seconds since the last record of any worker; None before the first."""
    locked: bool | None
    """Whether a process of this host uses the folder; None where that cannot be known."""
    seconds: float
    """The run's time so far."""
    step: float
    """The mean over workers."""
    last_step: int | None
    """The budget; None where it is in epochs and nothing says how many steps these have."""
    epochs: int | None
    seconds_left: float | None
    samples_per_second: float
    last_steps: StepBreakdown
    waited_for: WaitedFor | None
    ranks: tuple[RankState, ...]
    servers: tuple[ServerState, ...]
    rows: tuple[MetricsRow, ...]
    """The last evaluations."""
    host: SystemSample | None
    failures: tuple[str, ...]
    """Files that hold the traceback of a worker or server."""
    damaged: int
    """Lines that could not be read."""
    started: Started | None
    summary: Summary | None
    """Once the run has ended."""
    abandoned: bool = False
    """Whether it is silent and was recorded on this host alone, no process of which uses it."""

    @property
    def over(self) -> bool:
        return self.abandoned or self.status in ("ended", "failed")

    def to_json(self) -> dict[str, Any]:
        document = to_document(self)
        return {"schema": SCHEMA, **document, "rows": [row.to_json() for row in self.rows]}


@dataclass(slots=True)
class SecondOfWork:
    """What a worker recorded within one second of the run."""

    second: int
    parts: list[float] = field(default_factory=lambda: [0.0] * (WIDTH + 1))
    """Seconds by kind within steps, and hidden communication."""
    steps: int = 0
    samples: int = 0
    waited: float = 0.0
    whole: float = 0.0
    """Seconds of steps and of pauses between them."""


class RecentWork:
    """The last seconds of one worker; what it holds does not grow with the run."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._seconds: deque[SecondOfWork] = deque(maxlen=SECONDS)
        self.step, self.end = 0, 0.0

    def add(self, record: StepRecord) -> None:
        self.step = record.step
        if not record.spans:
            return
        last = record.spans[-1]
        self.end = last.start + last.length
        if not self._seconds or self._seconds[-1].second != int(self.end):
            self._seconds.append(SecondOfWork(int(self.end)))
        now = self._seconds[-1]
        for kind, _, length in record.spans:
            now.whole += length
            now.waited += length if kind == "wait" else 0.0
            if record.is_step:
                now.parts[PLACE[kind]] += length
        if record.is_step:
            now.parts[-1] += sum(span.length for span in record.hidden)
            now.steps += 1
            now.samples += record.samples

    def state(self, rank: int, usage: WorkerUsage | None) -> RankState:
        found = list(self._seconds)
        steps, whole = sum(one.steps for one in found), sum(one.whole for one in found) or 1.0
        parts = [sum(column) for column in zip(*(one.parts for one in found), strict=True)] or [0.0] * (
            WIDTH + 1
        )
        return RankState(
            rank=rank,
            step=self.step,
            seconds=self.end,
            samples_per_second=sum(one.samples for one in found) / whole,
            steps_per_second=steps / whole,
            last_steps=breakdown(parts) * (1 / max(1, steps)),
            waiting=sum(one.waited for one in found) / whole,
            usage=usage,
        )


class RecentUpdates:
    """The last updates of one server."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._updates: deque[tuple[float, float]] = deque(maxlen=LAST_UPDATES)
        self._version = self._depth = 0

    def add(self, entry: Entry) -> None:
        if isinstance(entry, Updated):
            self._version = entry.version
            self._updates.append((entry.at, fmean([one.staleness for one in entry.used] or [0])))
        elif isinstance(entry, Received):
            self._depth = entry.depth

    def state(self, server: int) -> ServerState:
        times = [at for at, _ in self._updates]
        passed = times[-1] - times[0] if times else 0.0
        return ServerState(
            server=server,
            version=self._version,
            updates_per_second=(len(times) - 1) / passed if passed else 0.0,
            staleness=fmean(missed for _, missed in self._updates) if times else 0.0,
            depth=self._depth,
        )


class RunWatcher:
    """Looks at a run's files, which may lie on a shared file system; reads what was added since the last look."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._rows: deque[MetricsRow] = deque(maxlen=LAST_ROWS)
        self._samples: deque[SystemSample] = deque(maxlen=1)
        self._metrics = tail_metrics(folder.metrics, self._rows.clear)
        self._system = tail_samples(folder.system, self._samples.clear)
        self._ranks: dict[int, tuple[RecentWork, LineTail[StepRecord]]] = {}
        self._servers: dict[int, tuple[RecentUpdates, LineTail[Entry]]] = {}

    def look(self) -> RunState:
        folder = self._folder
        if not folder.config.exists():
            raise no_run(folder)
        self._read()
        usages = self._usages()
        ranks = tuple(work.state(rank, usages.get(rank)) for rank, (work, _) in sorted(self._ranks.items()))
        started, summary = _read_started(folder), self._summary()
        silence, locked, failures = self._silence(), is_locked(folder), self._failures()
        working = [one for one in ranks if one.steps_per_second]
        step = fmean(one.step for one in ranks) if ranks else 0.0
        epochs, last_step = _budget(folder, started, self._rows)
        status = _status(summary, silence, locked, failures, working)
        return RunState(
            name=folder.path.name,
            status=status,
            abandoned=status == "silent" and locked is False and _is_recorded_here(folder),
            silence=silence,
            locked=locked,
            seconds=max((one.seconds for one in ranks), default=0.0),
            step=step,
            last_step=last_step,
            epochs=epochs,
            seconds_left=_seconds_left(step, last_step, working),
            samples_per_second=sum(one.samples_per_second for one in ranks),
            last_steps=_mean([one.last_steps for one in working]),
            waited_for=find_waited_for(working),
            ranks=ranks,
            servers=tuple(log.state(server) for server, (log, _) in sorted(self._servers.items())),
            rows=tuple(self._rows),
            host=self._samples[-1] if self._samples else None,
            failures=failures,
            damaged=sum(tail.damaged for tail in self._tails()),
            started=started,
            summary=summary,
        )

    def _read(self) -> None:
        for rank, path in self._folder.event_files().items():
            if rank not in self._ranks:
                work = RecentWork()
                self._ranks[rank] = work, tail_events(path, work.forget)
        for server, path in self._folder.server_event_files().items():
            if server not in self._servers:
                log = RecentUpdates()
                self._servers[server] = log, tail_server_log(path, log.forget)
        for work, events in self._ranks.values():
            for record in events.read():
                work.add(record)
        for log, entries in self._servers.values():
            for entry in entries.read():
                log.add(entry)
        self._rows.extend(self._metrics.read())
        self._samples.extend(self._system.read())

    def _tails(self) -> list[LineTail[Any]]:
        events = [tail for _, tail in self._ranks.values()]
        return [self._metrics, self._system, *events, *(tail for _, tail in self._servers.values())]

    def _usages(self) -> dict[int, WorkerUsage]:
        ranks = worker_ranks(self._folder.env)
        workers = self._samples[-1].workers if self._samples else ()
        return {ranks[worker.pid]: worker for worker in workers if worker.pid in ranks}

    def _newest(self) -> float | None:
        times = []
        for _, tail in self._ranks.values():
            with suppress(OSError):
                times.append(tail.path.stat().st_mtime)
        return max(times, default=None)

    def _silence(self) -> float | None:
        newest = self._newest()
        return None if newest is None else max(0.0, time.time() - newest)

    def _summary(self) -> Summary | None:
        """Of this run, and not of its start before it was resumed: that is older than what was recorded since.

        A damaged one raises DamagedFile: nothing says how the run ended, and it does not go on.
        """
        try:
            if self._folder.summary.stat().st_mtime >= (self._newest() or 0.0) - COPIED:
                return read_summary(self._folder)
        except OSError:
            pass
        return None

    def _failures(self) -> tuple[str, ...]:
        newest = self._newest() or 0.0
        found = sorted(self._folder.path.glob(self._folder.failure("*").name))
        return tuple(str(path) for path in found if path.stat().st_mtime >= newest - SILENT)


def _read_started(folder: RunFolder) -> Started | None:
    try:
        return from_document(read_json(folder.start), Started)
    except (OSError, DamagedFile, ValueError):  # a simulated run, or one of another version
        return None


def _is_recorded_here(folder: RunFolder) -> bool:
    """Whether all processes that have used this very folder were of this host."""
    try:
        host = read_json(folder.env).get("host")
    except (OSError, DamagedFile, AttributeError):
        return False
    return host == socket.gethostname() and len(folder.lock_nodes()) == 1


def _budget(
    folder: RunFolder, started: Started | None, rows: Sequence[MetricsRow]
) -> tuple[int | None, int | None]:
    """The run's epochs, where it counts in epochs, and its last step; evaluations tell how many steps an epoch has."""
    settings = read_json(folder.config)["settings"]
    epochs, last = settings["epochs"], settings["iterations"]
    if last is None and started is not None:
        last = started.last_step or None  # of a script it is not known
    elif last is None and rows and rows[-1].epoch:
        last = round(epochs * rows[-1].step / rows[-1].epoch)
    return epochs, last


def _status(
    summary: Summary | None,
    silence: float | None,
    locked: bool | None,
    failures: Sequence[str],
    working: Sequence[RankState],
) -> RunStatus:
    if summary:
        return "ended"
    if failures and not locked:
        return "failed"
    if silence is None:
        return "starting"
    longest = max((one.last_steps.total for one in working), default=0.0)
    return "silent" if silence > max(SILENT, SILENT_STEPS * longest) else "running"


def _seconds_left(step: float, last: int | None, working: Sequence[RankState]) -> float | None:
    if last is None or not working:
        return None
    return max(0.0, last - step) / fmean(one.steps_per_second for one in working)


def _mean(steps: Sequence[StepBreakdown]) -> StepBreakdown:
    return sum(steps, StepBreakdown()) * (1 / max(1, len(steps)))


def find_waited_for(ranks: Sequence[RankState]) -> WaitedFor | None:
    """The rank that waits least, where the others wait notably longer; who waits for nobody is waited for."""
    if len(ranks) < 2:
        return None
    least = min(ranks, key=lambda one: one.waiting)
    others = fmean(one.waiting for one in ranks if one is not least)
    if others - least.waiting < NOTABLE:
        return None
    return WaitedFor(rank=least.rank, waiting=least.waiting, others=others)
