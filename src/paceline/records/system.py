"""What the machine did meanwhile: CPU, memory and network, sampled by a thread."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import psutil

from paceline.records.lines import LineWriter
from paceline.records.load import HostLoad, LoadMeter


class _Usage(NamedTuple):
    """One process at one moment."""

    time: float
    cpu: float
    """Seconds of CPU used since it began."""
    memory: int


class SystemSampler:
    """Writes ``system.jsonl`` while a block runs, at least one line however short it is.

    A worker that is gone is left out of later lines. A disk that is full ends the sampling and not the run.
    """

    def __init__(
        self,
        path: Path,
        pids: Sequence[int],
        interval: float = 1.0,
        *,
        since: float = 0.0,
        roots: Sequence[int] = (),
        wanted: int = 1,
    ) -> None:
        """``pids`` are workers; the job is these and ``roots`` with all that they start, and ``wanted`` its threads.

        ``since`` is the run's time so far, where a run goes on.
        """
        self.path, self.pids, self.interval, self._since = path, tuple(pids), interval, since
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="system-sampler", daemon=True)
        self._first: dict[int, _Usage] = {}
        self._last: dict[int, _Usage] = {}
        self._largest = 0
        self._meter = LoadMeter((*self.pids, *roots), wanted)
        self.load: HostLoad | None = None
        """What other processes used meanwhile; known at the end."""

    def __enter__(self) -> Self:
        self._begun = time.monotonic()
        self._processes = {pid: process for pid in self.pids if (process := _process(pid))}
        self._first = self._last = self._usages()
        self._network = (self._begun, *_traffic())
        self._meter.restart()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.load = self._meter.load()

    @property
    def cpu_percent(self) -> float | None:
        """Mean CPU use of a worker over the whole time, of one core."""
        times = [(self._last[pid], first) for pid, first in self._first.items()]
        shares = [
            (last.cpu - first.cpu) / (last.time - first.time)
            for last, first in times
            if last.time > first.time
        ]
        return 100 * sum(shares) / len(shares) if shares else None

    @property
    def memory_bytes(self) -> float | None:
        """The largest resident memory of any worker."""
        return float(self._largest) if self._largest else None

    def _run(self) -> None:
        psutil.cpu_percent()  # psutil measures from the last call of the same thread
        try:
            with LineWriter[dict[str, Any]](self.path, at_once=1) as lines:
                over = False
                while not over:
                    over = self._over.wait(self.interval)
                    lines.append(self._sample())
        except OSError:
            return

    def _sample(self) -> dict[str, Any]:
        before, usages = self._last, self._usages()
        now, sent, received = time.monotonic(), *_traffic()
        then, sent_then, received_then = self._network
        self._last, self._network = {**before, **usages}, (now, sent, received)
        passed = max(now - then, 1e-6)
        return {
            "time": round(self._since + now - self._begun, 3),
            "cpu_percent": psutil.cpu_percent(),
            "workers": [_line(pid, before[pid], usage) for pid, usage in usages.items()],
            "sent_per_second": round((sent - sent_then) / passed),
            "received_per_second": round((received - received_then) / passed),
        }

    def _usages(self) -> dict[int, _Usage]:
        found = {pid: usage for pid, process in self._processes.items() if (usage := _usage(process))}
        self._largest = max([self._largest, *(usage.memory for usage in found.values())])
        return {pid: usage for pid, usage in found.items() if not self._first or pid in self._first}


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.Error:
        return None


def _usage(process: psutil.Process) -> _Usage | None:
    try:
        with process.oneshot():
            times = process.cpu_times()
            return _Usage(time.monotonic(), times.user + times.system, process.memory_info().rss)
    except (psutil.Error, OSError):
        return None


def _line(pid: int, before: _Usage, now: _Usage) -> dict[str, Any]:
    passed = max(now.time - before.time, 1e-6)
    return {
        "pid": pid,
        "cpu_percent": round(100 * (now.cpu - before.cpu) / passed, 1),
        "memory_bytes": now.memory,
    }


def _traffic() -> tuple[int, int]:
    """Bytes sent and received by all interfaces since the machine began, the loopback included."""
    counters = psutil.net_io_counters()
    return (counters.bytes_sent, counters.bytes_recv) if counters else (0, 0)
